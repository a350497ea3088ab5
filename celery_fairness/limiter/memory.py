"""The limiter in memory, for users' own tests: the same contract, one process.

Weakness: it counts in this process only. Workers use
:class:`~celery_fairness.limiter.redis.RedisLimiter`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from celery_fairness.decision import (
    Admitted,
    Copy,
    Enforcement,
    HeldLease,
    Lease,
    LimitState,
    Reason,
    Refused,
    Renewal,
    SlotRequest,
)
from celery_fairness.settings import Settings
from celery_fairness.tiers import Tier, by_name
from celery_fairness.units import Milliseconds, milliseconds, seconds

#: As in ``lua/includes/tick.lua``.
_NOTE_AFTER_MS = 50


@dataclass(slots=True)
class _Copies:
    current: str = ""
    next: str = ""
    admitted: str | None = None


@dataclass(slots=True)
class _Tables:
    source: str = ""
    tiers: dict[str, Tier] = field(default_factory=dict)
    tenants: dict[str, tuple[str, int | str | None]] = field(default_factory=dict)
    version: int = 0


class InMemoryLimiter:
    """A :class:`~celery_fairness.limiter.protocol.Limiter` without a server.

    Args:
        settings: Lease, tiers and default tier; the defaults where none are given.
        clock: The time in ms; a test may give a frozen one.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        clock: Callable[[], Milliseconds] = lambda: milliseconds(time.time()),
    ) -> None:
        self._settings = settings or Settings()
        self._lease_ms = milliseconds(self._settings.lease_seconds)
        self._clock = clock
        self._lock = threading.Lock()
        self._epoch = self._seen_ms = self._logical_ms = int(clock())
        self._leases: dict[str, dict[str, int]] = {}
        self._copies: dict[str, _Copies] = {}
        self._tables = _Tables()
        self._counts: Counter[str] = Counter()

    def acquire(
        self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON
    ) -> Admitted | Refused:
        """Take one lease, or say why not."""
        lease, copy = request.lease, request.copy
        with self._lock:
            now = self._tick()
            news = self._tables.version
            tier, limit = self._entitlement(request.tenant, request.tier)
            live = self._clear_ended(lease.key, now)
            held = len(live)
            if lease.id in live:
                return Admitted(lease, tier, limit, held, news=news)
            if copy is not None and self._superseded(copy):
                self._counts["superseded"] += 1
                return Refused(Reason.SUPERSEDED, None, tier, limit, held, news)
            over = limit is not None and held >= limit
            if over and enforcement is not Enforcement.OFF:
                self._counts[f"refused:{tier}"] += 1
            if over and enforcement is Enforcement.ON:
                if copy is not None:
                    self._copies[copy.message] = _Copies(copy.serial, request.next_serial)
                if limit == 0:
                    return Refused(Reason.PAUSED, None, tier, limit, held, news)
                wait = seconds(min(live.values()) - now)
                return Refused(Reason.AT_CONCURRENCY_LIMIT, wait, tier, limit, held, news)
            if copy is not None and (copy.serial or copy.message in self._copies):
                self._copies.setdefault(copy.message, _Copies()).admitted = copy.serial
            live[lease.id] = now + self._lease_ms
            self._leases[lease.key] = live
            observed = over and enforcement is Enforcement.OBSERVE
            return Admitted(lease, tier, limit, held + 1, observed, news)

    def renew(self, leases: Sequence[Lease], epoch: int | None = None) -> Renewal:
        """Keep ``leases`` and move the clock."""
        with self._lock:
            end = self._tick() + self._lease_ms
            lost = epoch is not None and epoch != self._epoch
            gone = []
            for lease in leases:
                if lost or lease.id in self._leases.get(lease.key, {}):
                    self._leases.setdefault(lease.key, {})[lease.id] = end
                else:
                    gone.append(lease)
            return Renewal(tuple(gone), self._epoch)

    def release(self, leases: Sequence[Lease]) -> int:
        """End ``leases``; returns how many were held."""
        with self._lock:
            held = 0
            for lease in leases:
                kept = self._leases.get(lease.key, {})
                held += kept.pop(lease.id, None) is not None
                if not kept:
                    self._leases.pop(lease.key, None)
            return held

    def release_soon(self, lease: Lease) -> None:
        """End ``lease``."""
        self.release((lease,))

    def supersede(self, refused: Copy, next_serial: str) -> bool:
        """Say that the successor of ``refused`` is published once more."""
        with self._lock:
            known = self._copies.get(refused.message)
            if known is None:
                return True
            if known.admitted is not None or known.current != refused.serial:
                return False
            known.next = next_serial
            return True

    def inspect(self, key: str, tenant: str, tier: str) -> LimitState:
        """Return what ``key`` holds now."""
        with self._lock:
            now = self._reading()
            judged, limit = self._entitlement(tenant, tier)
            live = [
                HeldLease(id_, seconds(end - now))
                for id_, end in self._leases.get(key, {}).items()
                if end > now
            ]
        live.sort(key=lambda lease: (lease.expires_in_seconds, lease.id))
        return LimitState(key, judged, limit, len(live), tuple(live[:100]))

    def publish_tiers(self, tiers: Iterable[Tier], source: str, *, force: bool = True) -> bool:
        """Put a whole tier table in force."""
        with self._lock:
            tables, table = self._tables, by_name(tiers)
            if not force and tables.source == "database":
                return False
            if (tables.source, tables.tiers) != (source, table):
                tables.source, tables.tiers = source, table
                tables.version += 1
            return True

    def published_tiers(self) -> tuple[str, Mapping[str, Tier]]:
        """Return the source of the table in force and its tiers."""
        with self._lock:
            return self._tables.source, dict(self._tables.tiers)

    def publish_tenant(
        self, tenant: str, tier: str | None, concurrency: int | str | None, *, keep: bool = False
    ) -> None:
        """Publish one tenant's tier and number; kept for ever, so for a test."""
        del keep
        with self._lock:
            before = self._tables.tenants.pop(tenant, None)
            if tier:
                self._tables.tenants[tenant] = (tier, concurrency)
            self._tables.version += before != self._tables.tenants.get(tenant)

    def published_tenant(self, tenant: str) -> str | None:
        """Return the tier that was published for ``tenant``."""
        with self._lock:
            record = self._tables.tenants.get(tenant)
            return record[0] if record else None

    def news(self) -> int:
        """Return the version of what was published."""
        with self._lock:
            return self._tables.version

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[counter] += amount

    def counts(self) -> Mapping[str, int]:
        """Return every counter."""
        with self._lock:
            return dict(self._counts)

    def _clear_ended(self, key: str, now: int) -> dict[str, int]:
        live = {id_: end for id_, end in self._leases.get(key, {}).items() if end > now}
        if live:
            self._leases[key] = live
        else:
            self._leases.pop(key, None)
        return live

    def _reading(self) -> int:
        step = max(0, int(self._clock()) - self._seen_ms)
        return self._logical_ms + min(step, self._lease_ms // 3)

    def _tick(self) -> int:
        now, logical = int(self._clock()), self._reading()
        if abs(now - self._seen_ms) >= _NOTE_AFTER_MS:
            self._logical_ms, self._seen_ms = logical, now
        return logical

    def _entitlement(self, tenant: str, tier: str) -> tuple[str, int | None]:
        """The rules of ``lua/includes/entitlement.lua``."""
        record = self._tables.tenants.get(tenant)
        default, own = self._settings.default_tier, self._settings.tiers
        wanted, table = record[0] if record else tier, self._tables.tiers
        if wanted in table:
            judged = table[wanted]
        elif default in table:
            judged = table[default]
        else:
            judged = own[tier] if wanted == tier and tier in own else own[default]
        if record is None or record[1] == "":
            return judged.name, judged.concurrency
        return judged.name, None if record[1] is None else int(record[1])

    def _superseded(self, copy: Copy) -> bool:
        known = self._copies.get(copy.message)
        if known is None:
            return False
        if known.admitted is not None:
            return known.admitted != copy.serial
        return copy.serial not in (known.current, known.next)
