"""A limiter without a Redis, whose answers a test chooses. It records every call.

With it a test checks how a gate handles an answer. It does not implement limits. ::

    limiter = AnsweringLimiter()
    limiter.reject(Rejected(Reason.AT_CONCURRENCY_LIMIT))
    ...
    assert [each.tenant for each in limiter.requests] == ["42"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.numbers import NO_NUMBERS
from celery_fairness.config.queue_limits import How, QueueRow
from celery_fairness.config.settings import Enforcement, build_settings
from celery_fairness.config.tiers import Tier, by_name
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import (
    Admitted,
    Job,
    KeyLeases,
    Lease,
    Parking,
    Promoted,
    Promotion,
    PromotionEnd,
    Rejected,
    SlotRequest,
    Unresolved,
)
from celery_fairness.message.attribution import Attribution
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler.types import Renewal, Verdict
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection


class Call(NamedTuple):
    """One call of a limiter: the method's name and its arguments by position."""

    name: str
    args: tuple[Any, ...]


class AnsweringLimiter(Limiter):
    """Grants every request until a test calls :meth:`reject`.

    Attributes:
        calls: Every call, in order. Calls that failed because it was away are among them.
        leases: The granted leases that were not released, by id.
        away: If True, every call raises :class:`~celery_fairness.errors.LimiterUnavailable`.
        epoch: The epoch that renewals return. :meth:`lose_memory` raises it.
        parking: The answer of :meth:`park`.
        promotions: The answers of :meth:`promote`, in order. After the last, nothing is parked.
    """

    def __init__(self) -> None:
        # No Redis answers the code that calls one past the methods below.
        nowhere = Connection(address_from_url("redis://127.0.0.1:1/0"), retries=0)
        super().__init__(nowhere, build_settings({}))
        self.calls: list[Call] = []
        self.leases: dict[str, Lease] = {}
        self.away = False
        self.epoch = 1
        self.parking = Parking.PARKED
        self.promotions: list[Promotion] = []
        self._lost_memory_at = self.epoch
        self._rejection: Rejected | None = None
        self._rejections_left: int | None = 0
        self._published: tuple[str, Mapping[str, Tier]] = ("", {})
        self._tenants: dict[str, str] = {}
        self._version = 0
        self._counts: Counter[str] = Counter()

    def reject(self, rejection: Rejected, times: int | None = None) -> None:
        """Answer requests with ``rejection``.

        Args:
            rejection: The answer.
            times: The number of requests. None means all requests until :meth:`grant`.
        """
        self._rejection, self._rejections_left = rejection, times

    def grant(self) -> None:
        """Grant every request from now on."""
        self._rejections_left = 0

    def lose_memory(self) -> None:
        """Remove all leases and start another epoch, like a Redis that restarts empty."""
        self.leases.clear()
        self.epoch += 1
        self._lost_memory_at = self.epoch

    def called(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of the method ``name``, in order."""
        return [call.args for call in self.calls if call.name == name]

    @property
    def requests(self) -> list[SlotRequest]:
        """Every request for a slot, in order."""
        return [request for request, _ in self.called("acquire")]

    def acquire(
        self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON
    ) -> Admitted | Rejected:
        """Grant the request, or return the rejection given to :meth:`reject`."""
        self._record("acquire", request, enforcement)
        if self._rejections_left != 0 and self._rejection is not None:
            if self._rejections_left is not None:
                self._rejections_left -= 1
            if enforcement is Enforcement.ON:
                return self._rejection
        self.leases[request.lease.id] = request.lease
        held = self._held(request.tier_key)
        return Admitted(request.lease, request.tier, None, held, config_version=self._version)

    def renew(self, leases: Sequence[Lease], epoch: int | None = None) -> Renewal[Lease]:
        """Return the leases that are gone. If another epoch has begun, register them again."""
        self._record("renew", leases, epoch)
        gone = tuple(lease for lease in leases if lease.id not in self.leases)
        if epoch in (None, self.epoch):
            return Renewal(gone, self.epoch)
        self.leases.update((lease.id, lease) for lease in gone)
        return Renewal((), self.epoch, gone)

    def announce(
        self,
        worker: str,
        epoch: int | None = None,
        *,
        ends: bool = False,
        limits: Sequence[str] = (),
    ) -> bool:
        """Return whether :meth:`lose_memory` was called since ``epoch``."""
        self._record("announce", worker, epoch, ends, limits)
        return epoch is not None and epoch < self._lost_memory_at

    def release(self, leases: Sequence[Lease], *, died: bool = False) -> int:
        """End leases and return how many of them were held."""
        self._record("release", leases, died)
        return len([self.leases.pop(lease.id) for lease in leases if lease.id in self.leases])

    def release_soon(self, lease: Lease, outcome: Verdict = Verdict.DONE) -> None:
        """End a lease."""
        self._record("release_soon", lease, outcome)
        self.leases.pop(lease.id, None)

    def supersede(self, rejected: Copy, next_serial: str) -> bool:
        """Return that no copy has started."""
        self._record("supersede", rejected, next_serial)
        return True

    def park(
        self, request: SlotRequest, message: str, expires_ms: int = 0, rank: int = 0
    ) -> Parking:
        """Return :attr:`parking`."""
        self._record("park", request, message, expires_ms, rank)
        return self.parking

    def promote(self, want: int, enforcement: Enforcement = Enforcement.ON) -> Promotion:
        """Return the next of :attr:`promotions`."""
        self._record("promote", want, enforcement)
        return self.promotions.pop(0) if self.promotions else Promotion((), 60.0)

    def end_promotion(self, promoted: Promoted, how: PromotionEnd) -> None:
        """Record the call."""
        self._record("end_promotion", promoted, how)

    def trace_put(self, job: Job, attribution: Attribution, start_ms: int) -> bool:
        """Return that no trace is on."""
        self._record("trace_put", job, attribution, start_ms)
        return False

    def await_parked(self, timeout_seconds: float) -> None:
        """Return at once."""
        self._record("await_parked", timeout_seconds)

    def leases_of(self, key: str) -> KeyLeases:
        """Return the number of held leases of ``key``."""
        self._record("leases_of", key)
        return KeyLeases(self._held(key), ())

    def publish_tiers(self, tiers: Iterable[Tier], source: str, *, force: bool = True) -> bool:
        """Keep the tier table."""
        table = by_name(tiers)
        self._record("publish_tiers", table, source, force)
        if not force and self._published[0] == "database":
            return False
        self._published = (source, table)
        self._version += 1
        return True

    def published_tiers(self) -> tuple[str, Mapping[str, Tier]]:
        """Return the tier table."""
        self._record("published_tiers")
        return self._published

    def publish_tenant(
        self,
        tenant: str,
        tier: str | None,
        numbers: Mapping[str, Any] = NO_NUMBERS,
        *,
        keep: bool = False,
        ends_ms: int | None = None,
    ) -> int:
        """Keep a tenant's tier, and return the number of publications."""
        self._record("publish_tenant", tenant, tier, numbers, keep, ends_ms)
        self._version += 1
        if tier is None:
            self._tenants.pop(tenant, None)
        else:
            self._tenants[tenant] = tier
        return self._version

    def published_tenant(self, tenant: str) -> str | None:
        """Return a tenant's tier."""
        self._record("published_tenant", tenant)
        return self._tenants.get(tenant)

    def limit_queue(
        self, how: How, queue: str, limit: Limit | None = None, part: Limit | None = None
    ) -> QueueRow | None:
        """Return None: no limit of a queue is kept."""
        self._record("limit_queue", how, queue, limit, part)
        return None

    def queue_rows(self) -> Mapping[str, QueueRow]:
        """Return no rows."""
        self._record("queue_rows")
        return {}

    def config_version(self) -> int:
        """Return the number of publications."""
        self._record("config_version")
        return self._version

    def report_unresolved(self, failed: int, tenants: Mapping[str, Unresolved]) -> int:
        """Count the failures, and return the number of publications."""
        self._record("report_unresolved", failed, dict(tenants))
        self._counts["unresolved"] += failed
        return self._version

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a counter."""
        self._record("count", counter, amount)
        self._counts[counter] += amount

    def counts(self) -> Mapping[str, int]:
        """Return the counters."""
        self._record("counts")
        return dict(self._counts)

    def _held(self, key: str) -> int:
        return sum(key in lease.keys for lease in self.leases.values())

    def _record(self, name: str, *args: Any) -> None:
        self.calls.append(Call(name, args))
        if self.away:
            raise LimiterUnavailable("redis://nowhere", "the test has taken it away")
