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
from math import ceil
from typing import NamedTuple

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
    slots_of,
)
from celery_fairness.queues import queue_key
from celery_fairness.scheduling.limits import NEVER, Limit, Window, of_one_key, read_limits
from celery_fairness.scheduling.overrides import Override, Overrides
from celery_fairness.scheduling.queues import KNOWN, How, QueueLimits, QueueNumbers, QueueRow
from celery_fairness.scheduling.stops import Stops
from celery_fairness.settings import Settings
from celery_fairness.tenants import tier_key
from celery_fairness.tiers import Tier, by_name
from celery_fairness.units import Milliseconds, milliseconds, seconds

#: As in ``lua/includes/tick.lua``.
_NOTE_AFTER_MS = 50


@dataclass(slots=True)
class _Copies:
    current: str = ""
    next: str = ""
    admitted: str | None = None


class _Closed(NamedTuple):
    limit: Limit
    reason: Reason
    wait_ms: float


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
        self._windows: dict[str, Window] = {}
        #: When what a key remembers of its starts is forgotten.
        self._idle: dict[str, int] = {}
        self._stops = Stops()
        self._overrides = Overrides()
        self._queues = QueueLimits()
        self._copies: dict[str, _Copies] = {}
        self._tables = _Tables()
        self._counts: Counter[str] = Counter()

    def acquire(
        self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON
    ) -> Admitted | Refused:
        """Take every slot, or say why not."""
        lease, copy = request.lease, request.copy
        with self._lock:
            now = self._tick()
            news = self._tables.version
            tier, limit, held = "", None, 0
            for key in lease.keys:
                self._clear_ended(key, now)
            if request.tenant:
                tier, limit = self._entitlement(request.tenant, request.tier)
                limit = self._steered(request, limit)
                held = len(self._leases.get(request.tier_key, {}))
            limits = read_limits(request.limits)
            if lease.id in self._leases.get(limits[0].key if limits else lease.key, {}):
                return Admitted(lease, tier, limit, held, news=news)
            if copy is not None and self._superseded(copy):
                self._counts["superseded"] += 1
                return Refused(Reason.SUPERSEDED, None, tier, limit, held, news)
            over = limit is not None and held >= limit
            closed: list[_Closed] = []
            if enforcement is not Enforcement.OFF:
                closed = [each for each in (self._closed(it, now) for it in limits) if each]
                self._counts.update([f"refused:{tier}"] * over + ["limited"] * bool(closed))
            if (over or closed) and enforcement is Enforcement.ON:
                reason, wait, key, action = self._judged(request, now, over, limit, closed)
                if action == "drop":
                    self._copy_admitted(copy)
                elif copy is not None:
                    self._copies[copy.message] = _Copies(copy.serial, request.next_serial)
                return Refused(reason, wait, tier, limit, held, news, key, action)
            self._copy_admitted(copy)
            for key in lease.keys:
                self._leases.setdefault(key, {})[lease.id] = now + self._lease_ms
            for each in of_one_key(tuple(map(self._numbered, limits))):
                self._count_start(each, now)
            self._forget(now)
            observed = bool(over or closed) and enforcement is Enforcement.OBSERVE
            return Admitted(lease, tier, limit, held + bool(request.tenant), observed, news)

    def _judged(
        self, request: SlotRequest, now: int, over: bool, limit: int | None, closed: list[_Closed]
    ) -> tuple[Reason, float | None, str, str]:
        """Return why, for how long, which key and what of the task, as ``admit.lua`` does."""
        for action in ("drop", "reschedule"):
            for each in closed:
                if each.limit.on_limit == action and not self._stopped(each):
                    self._counts["dropped" if action == "drop" else "rescheduled"] += 1
                    return each.reason, _longest(closed), each.limit.key, action
        if not over:
            return closed[0].reason, _longest(closed), closed[0].limit.key, "wait"
        if limit == 0:
            return Reason.PAUSED, None, "", "wait"
        wait = None
        if not request.limits:
            wait = seconds(min(self._leases[request.tier_key].values()) - now)
        return Reason.AT_CONCURRENCY_LIMIT, wait, "", "wait"

    def _stopped(self, closed: _Closed) -> bool:
        return closed.reason in (Reason.PAUSED, Reason.COOLING_DOWN)

    def renew(self, leases: Sequence[Lease], epoch: int | None = None) -> Renewal:
        """Keep ``leases`` and move the clock."""
        with self._lock:
            end = self._tick() + self._lease_ms
            lost = epoch is not None and epoch != self._epoch
            gone: dict[Lease, None] = {}
            for lease, key in slots_of(leases):
                if lost or lease.id in self._leases.get(key, {}):
                    self._leases.setdefault(key, {})[lease.id] = end
                else:
                    gone[lease] = None
            self._forget(end - self._lease_ms)
            return Renewal(tuple(gone), self._epoch)

    def release(self, leases: Sequence[Lease]) -> int:
        """End ``leases``; returns how many slots they held."""
        with self._lock:
            held = 0
            for lease, key in slots_of(leases):
                kept = self._leases.get(key, {})
                held += kept.pop(lease.id, None) is not None
                if not kept:
                    self._leases.pop(key, None)
            return held

    def stop(self, how: str, key: str, wait_seconds: float = 0.0) -> None:
        """``pause`` (0: until resumed) or ``resume`` a key, ``cool`` it down, or ``clear`` that."""
        with self._lock:
            wait_ms, now, logical = milliseconds(wait_seconds), int(self._clock()), self._tick()
            if how == "pause":
                self._stops.pause(key, now + wait_ms if wait_ms else None)
            elif how == "resume":
                self._stops.resume(key)
            elif how == "cool":
                self._stops.cool(key, logical + wait_ms)
            else:
                self._stops.clear(key)

    def override(self, key: str, override: Override | None) -> None:
        """Put numbers in the place of a key's own; None clears them."""
        with self._lock:
            self._overrides.put(key, override)

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

    def limit_queue(
        self, how: How, queue: str, numbers: QueueNumbers | None = None, parts: bool = False
    ) -> QueueRow | None:
        """Say what a queue may."""
        with self._lock:
            row = self._queues.rows.get(queue, QueueRow(queue_key(queue)))
            self._queues.rows[queue] = row = row.after(how, parts, numbers)
            if row.declared is None and row.said is None and how != KNOWN:
                del self._queues.rows[queue]
            return self._queues.rows.get(queue)

    def queue_rows(self) -> Mapping[str, QueueRow]:
        """Return what is known of queues."""
        with self._lock:
            return dict(self._queues.rows)

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

    def _steered(self, request: SlotRequest, limit: int | None) -> int | None:
        """The rules of ``lua/dispatch/includes/stops.lua`` for a tenant."""
        now, key = int(self._clock()), request.tier_key
        if any(self._stops.paused_ms(name, now) for name in (key, tier_key(request.tenant))):
            return 0
        return self._overrides.judged(Limit(key, limit), now).concurrency

    def _clear_ended(self, key: str, now: int) -> None:
        live = {id_: end for id_, end in self._leases.get(key, {}).items() if end > now}
        if live:
            self._leases[key] = live
        else:
            self._leases.pop(key, None)

    def _closed(self, limit: Limit, now: int) -> _Closed | None:
        """Return why a limit is closed and for how long, None where it is open."""
        server_now = int(self._clock())
        limit = self._numbered(limit)
        stopped_ms = self._stops.wait_ms(limit, now, server_now)
        if stopped_ms:
            paused = limit.concurrency == 0 or self._stops.paused_ms(limit.key, server_now)
            return _Closed(limit, Reason.PAUSED if paused else Reason.COOLING_DOWN, stopped_ms)
        waits: list[tuple[Reason, float]] = []
        live = self._leases.get(limit.key, {})
        if limit.concurrency is not None and len(live) >= limit.concurrency:
            waits.append((Reason.AT_CONCURRENCY_LIMIT, min(live.values()) - now))
        window = self._windows.get(limit.key, Window())
        waits += [(Reason.AT_RATE_LIMIT, window.rate_wait_ms(*rate, now)) for rate in limit.rates]
        if limit.throttle:
            waits.append((Reason.AT_THROTTLE, window.throttle_wait_ms(*limit.throttle, now)))
        waits = [(reason, wait_ms) for reason, wait_ms in waits if wait_ms > 0]
        if not waits:
            return None
        return _Closed(limit, waits[0][0], max(wait_ms for _, wait_ms in waits))

    def _numbered(self, limit: Limit) -> Limit:
        """Return a limit with the numbers that it is judged by now."""
        return self._overrides.judged(self._queues.judged(limit), int(self._clock()))

    def _count_start(self, limit: Limit, now: int) -> None:
        if limit.rates or limit.throttle or limit.key in self._windows:
            window = self._windows.setdefault(limit.key, Window())
            window.start(limit, now)
            self._idle[limit.key] = now + window.kept_ms

    def _forget(self, now: int) -> None:
        """Forget starts of long ago, and what people said for a time that is over."""
        over = int(self._clock())
        self._stops.resumed(over, len(self._stops.paused_until))
        self._overrides.ended(over, len(self._overrides.rows))
        for key in [key for key, until in self._idle.items() if until <= now]:
            del self._idle[key], self._windows[key]
        self._stops.forget(now, len(self._stops.cooled))

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

    def _copy_admitted(self, copy: Copy | None) -> None:
        if copy is not None and (copy.serial or copy.message in self._copies):
            self._copies.setdefault(copy.message, _Copies()).admitted = copy.serial

    def _superseded(self, copy: Copy) -> bool:
        known = self._copies.get(copy.message)
        if known is None:
            return False
        if known.admitted is not None:
            return known.admitted != copy.serial
        return copy.serial not in (known.current, known.next)


def _longest(closed: list[_Closed]) -> float | None:
    """Return when all of them are open, in seconds; None where nobody knows."""
    wait_ms = max(each.wait_ms for each in closed)
    return None if wait_ms == NEVER else seconds(ceil(wait_ms))
