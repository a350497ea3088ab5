"""The limiter in memory, for users' own tests: the same contract, one process.

Weakness: it counts in this process only, keeps no minutes, and has no stream to tell events in.
Workers use :class:`~celery_fairness.limiter.redis.RedisLimiter`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from celery_fairness.config.limit_spec import NEVER, Limit, Window, of_one_key, read_limits
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import tier_key
from celery_fairness.config.tiers import Tier, by_name
from celery_fairness.limiter.closed import Closed, longest
from celery_fairness.limiter.copies import CopyMemory
from celery_fairness.limiter.here import crowded_here
from celery_fairness.limiter.parked import LOOK_MS, Kept, ParkedTasks, early_ms
from celery_fairness.limiter.places import key_of
from celery_fairness.limiter.said import SaidInMemory
from celery_fairness.limiter.tables import Tables
from celery_fairness.limiter.types import (
    Admitted,
    HeldLease,
    Lease,
    LimitState,
    Parking,
    Promotion,
    Reason,
    Rejected,
    Renewal,
    SlotRequest,
    Unparked,
    slots_of,
)
from celery_fairness.message.headers import Copy
from celery_fairness.scheduling.pace import TRY_AGAIN_MS
from celery_fairness.util.durations import Milliseconds, milliseconds, seconds

_FULL = Reason.AT_CONCURRENCY_LIMIT


class InMemoryLimiter(SaidInMemory):
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
        super().__init__(clock, milliseconds(self._settings.lease_seconds))
        self._leases: dict[str, dict[str, int]] = {}
        self._windows: dict[str, Window] = {}
        #: When what a key remembers of its starts is forgotten.
        self._idle: dict[str, int] = {}
        self._snooze_ms = milliseconds(self._settings.snooze_seconds)
        self._copies = CopyMemory()
        self._tier_waits = self._settings.tier_on_limit == "wait"
        self._parked = ParkedTasks(self._copies, self._tier_waits)
        self._bell = threading.Event()
        self._tables = Tables(self._settings)
        self._counts: Counter[str] = Counter()

    def acquire(
        self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON
    ) -> Admitted | Rejected:
        """Take every slot, or say why not."""
        lease, copy = request.lease, request.copy
        with self._lock:
            now = self._tick()
            news = self._tables.version
            tier, limit, held = "", None, 0
            for key in lease.keys:
                self._clear_ended(key, now)
            if request.tenant:
                tier, limit = self._tables.entitlement(request.tenant, request.tier)
                limit = self._steered(request, limit)
                held = len(self._leases.get(request.tier_key, {}))
            limits = read_limits(request.limits)
            for key in self._declared.declare(limits, is_new=request.is_new):
                self._parked.freed(key, now)
                self._bell.set()
            if lease.id in self._leases.get(limits[0].key if limits else lease.key, {}):
                return Admitted(lease, tier, limit, held, news=news)
            if copy is not None and self._copies.superseded(copy):
                self._counts["superseded"] += 1
                return Rejected(Reason.SUPERSEDED, None, tier, limit, held, news)
            ahead = self._parked.known
            if ahead and copy is not None and self._copies.seq(copy) is not None:
                self._parked.forget(copy.message, request)
                ahead = False
            promised = self._parked.promised(request.tier_key, now) if ahead else 0
            over = limit is not None and held + promised >= limit
            closed: list[Closed] = []
            here = crowded_here(self._queues, self._leases, limits, lease.worker, now)
            if enforcement is not Enforcement.OFF:
                closed = [each for each in (self._closed(it, now, ahead) for it in limits) if each]
                if ahead and not over and not closed and enforcement is Enforcement.ON:
                    queue = key_of(self._queue(request, limits))
                    closed = [Closed(Limit(queue), Reason.BEHIND_OTHERS, NEVER)] if queue else []
                if here and not over and not closed:
                    closed = [Closed(here, Reason.AT_LOCAL_LIMIT, NEVER, TRY_AGAIN_MS)]
                self._counts.update([f"refused:{tier}"] * over + ["limited"] * bool(closed))
            if (over or closed) and enforcement is Enforcement.ON:
                reason, wait, key, action = self._judged(request, now, over, limit, closed)
                if action == "drop":
                    self._copies.admitted(copy)
                else:
                    self._copies.refused(copy, request.next_serial)
                return Rejected(reason, wait, tier, limit, held, news, key, action)
            self._copies.admitted(copy)
            for key in lease.keys:
                self._leases.setdefault(key, {})[lease.id] = now + self._lease_ms
            for each in of_one_key(tuple(map(self._numbered, limits))):
                self._count_start(each, lease.id, now)
            self._forget(now)
            observed = bool(over or closed) and enforcement is Enforcement.OBSERVE
            return Admitted(lease, tier, limit, held + bool(request.tenant), observed, news)

    def _judged(
        self, request: SlotRequest, now: int, over: bool, limit: int | None, closed: list[Closed]
    ) -> tuple[Reason, float | None, str, str]:
        """Return why, for how long, which key and what of the task, as ``admit.lua`` does."""
        for action in ("drop", "reschedule"):
            for each in closed:
                if each.limit.on_limit == action and not each.stopped:
                    self._counts["dropped" if action == "drop" else "rescheduled"] += 1
                    wait = longest(closed)
                    if action == "reschedule":
                        wait = self._pace(each, closed, now, request.lease.id)
                    return each.reason, wait, each.limit.key.partition(" ")[0], action
        if not over:
            return closed[0].reason, longest(closed), closed[0].limit.key, "wait"
        if limit == 0:
            return Reason.PAUSED, None, "", "wait"
        wait = None
        if not request.limits:
            live = self._leases.get(request.tier_key, {}).values()
            wait = seconds(min(live) - now) if live else None
        return Reason.AT_CONCURRENCY_LIMIT, wait, "", "wait"

    def _pace(self, by: Closed, closed: list[Closed], now: int, lease: str) -> float:
        """Return how long a task waits that ``by`` puts back, in seconds."""
        asked = by.limit, max(each.again_ms for each in closed), by.reason is _FULL
        times = int(self._clock()), now, self._snooze_ms
        return seconds(self._paces.wait_ms(*asked, *times, lease, 0))

    def renew(self, leases: Sequence[Lease], epoch: int | None = None) -> Renewal:
        """Keep ``leases`` and move the clock."""
        with self._lock:
            end = self._tick() + self._lease_ms
            lost = epoch is not None and epoch != self._logical.epoch
            missing: dict[Lease, None] = {}
            for lease, key in slots_of(leases):
                counts = lease.id in self._leases.get(key, {})
                if not counts:
                    missing[lease] = None
                if counts or lost:
                    self._leases.setdefault(key, {})[lease.id] = end
            self._forget(end - self._lease_ms)
            gone, entered = ((), tuple(missing)) if lost else (tuple(missing), ())
            return Renewal(gone, self._logical.epoch, entered)

    def announce(self, worker: str, epoch: int | None = None, *, ends: bool = False) -> bool:
        """Return False: this memory is lost only with its process, which has no other to show."""
        del worker, epoch, ends
        return False

    def release(self, leases: Sequence[Lease], *, died: bool = False) -> int:
        """End ``leases``; returns how many slots they held."""
        del died
        with self._lock:
            held = 0
            for lease, key in slots_of(leases):
                kept = self._leases.get(key, {})
                self._paces.ends(key, lease.id, self._reading())
                if kept.pop(lease.id, None) is not None:
                    held += 1
                    self._parked.freed(key, self._reading())
                    self._bell.set()
                if not kept:
                    self._leases.pop(key, None)
            return held

    def park(self, request: SlotRequest, message: str, expires_ms: int | None = None) -> Parking:
        """Keep a refused task until it may start."""
        copy = request.copy
        if copy is None:
            raise ValueError("copy: expected one that names the message, got: None")
        with self._lock:
            now = self._tick()
            if self._copies.superseded(copy):
                return Parking.SUPERSEDED
            seq = self._copies.seq(copy)
            ahead = self._parked.known and seq is None
            kept = self._keeps(request, now, ahead)
            if not kept.place and ahead:
                kept = kept._replace(place=self._queue(request, read_limits(request.limits)))
            if kept.others or not kept.place:
                return Parking.ASK_AGAIN
            self._parked.park(request, copy, seq, kept, message, expires_ms, now)
            self._bell.set()
            return Parking.PARKED

    def promote(
        self, want: int, serial: str, enforcement: Enforcement = Enforcement.ON
    ) -> Promotion:
        """Give parked tasks that may start by now."""
        on = enforcement is Enforcement.ON
        with self._lock:
            now = self._tick()
            times = now, int(self._clock()), self._lease_ms

            def keeps(request: SlotRequest) -> Kept:
                return (
                    self._keeps(request, now, True, early=True) if on else Kept("", 0, others=False)
                )

            return self._parked.promote(want, serial, *times, keeps, self._tables.weight, on)

    def unpark(self, messages: Sequence[str], how: Unparked = "published") -> int:
        """Say that tasks are published, cancelled, or have failed."""
        with self._lock:
            return self._parked.unpark(messages, how)

    def put_off(self, message: str) -> int:
        """Say that a promoted task could not be published."""
        with self._lock:
            return self._parked.put_off(message, self._lease_ms)

    def forgo(self, message: str, keys: Sequence[str]) -> None:
        """Give back what was promised to a task."""
        with self._lock:
            self._parked.forgo(message, keys, self._reading())

    def parked(self, key: str) -> int:
        """Return how many tasks wait at ``key``."""
        with self._lock:
            return self._parked.waiting(key)

    def await_parked(self, timeout_seconds: float) -> None:
        """Wait until tasks that are parked may start."""
        self._bell.wait(timeout_seconds)
        self._bell.clear()

    def release_soon(self, lease: Lease, *, watched: bool = False) -> None:
        """End ``lease``."""
        del watched
        self.release((lease,))

    def idle(
        self, lease: Lease, short_seconds: float, least_seconds: float, every_seconds: float
    ) -> tuple[int, float]:
        """Return nothing to log: this limiter measures no wait."""
        del lease, short_seconds, least_seconds, every_seconds
        return 0, 0.0

    def supersede(self, refused: Copy, next_serial: str) -> bool:
        """Say that the successor of ``refused`` is published once more."""
        with self._lock:
            return self._copies.again(refused, next_serial)

    def inspect(self, key: str, tenant: str, tier: str) -> LimitState:
        """Return what ``key`` holds now."""
        with self._lock:
            now = self._reading()
            judged, limit = self._tables.entitlement(tenant, tier)
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
            return self._tables.publish(by_name(tiers), source, force=force)

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
            self._tables.publish_tenant(tenant, tier, concurrency)

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

    def _steered(self, request: SlotRequest, limit: int | None) -> int | None:
        """The rules of ``lua/config.lua`` for a tenant."""
        now, key = int(self._clock()), request.tier_key
        if any(self._stops.paused_ms(name, now) for name in (key, tier_key(request.tenant))):
            return 0
        return self._overrides.judged(Limit(key, limit), now).concurrency

    def _clear_ended(self, key: str, now: int) -> None:
        leases = self._leases.pop(key, {})
        for end, id_ in sorted((end, id_) for id_, end in leases.items() if end <= now):
            del leases[id_]
            # It has lived until then, however late it is cleared away.
            self._paces.ends(key, id_, end)
        if leases:
            self._leases[key] = leases

    def _queue(self, request: SlotRequest, limits: Sequence[Limit]) -> str:
        waits = [limit.name for limit in limits if self._numbered(limit).on_limit == "wait"]
        return self._parked.queue([request.tier_key, *waits])

    def _keeps(self, request: SlotRequest, now: int, ahead: bool, early: bool = False) -> Kept:
        """The rules of ``lua/parked.lua``."""
        place, closed_ms, others = "", 0.0, False
        if self._tier_waits and request.tenant:
            most = self._tables.entitlement(request.tenant, request.tier)[1]
            most = self._steered(request, most)
            held = sum(end > now for end in self._leases.get(request.tier_key, {}).values())
            held += self._parked.promised(request.tier_key, now) if ahead else 0
            if most is not None and held >= most:
                place, closed_ms = request.tier_key, LOOK_MS
        for limit in read_limits(request.limits):
            each = self._numbered(limit)
            closed = self._closed(each, now, ahead, early)
            if closed is not None and each.on_limit != "wait" and not closed.stopped:
                others = True
            elif closed is not None and not place:
                place, closed_ms = limit.name, closed.wait_ms
        return Kept(place, closed_ms, others)

    def _closed(self, limit: Limit, now: int, ahead: bool, early: bool = False) -> Closed | None:
        """Return why a limit is closed and for how long, None where it is open."""
        promised = self._parked.promised(limit.key, now) if ahead else 0
        server_now = int(self._clock())
        limit = self._numbered(limit)
        stopped_ms = self._stops.wait_ms(limit, now, server_now)
        if stopped_ms:
            paused = limit.concurrency == 0 or self._stops.paused_ms(limit.key, server_now)
            again_ms = TRY_AGAIN_MS if stopped_ms == NEVER else stopped_ms
            reason = Reason.PAUSED if paused else Reason.COOLING_DOWN
            return Closed(limit, reason, stopped_ms, again_ms)
        waits: list[tuple[Reason, float]] = []
        live = [end for end in self._leases.get(limit.key, {}).values() if end > now]
        if limit.concurrency is not None and len(live) + promised >= limit.concurrency:
            waits.append((_FULL, min(live, default=NEVER) - now))
        window = self._windows.get(limit.key, Window())
        for starts, period_ms in limit.rates:
            wait_ms = float(min(LOOK_MS, period_ms))
            if promised < starts:
                wait_ms = window.rate_wait_ms(starts - promised, period_ms, now)
            waits.append((Reason.AT_RATE_LIMIT, wait_ms))
        if limit.throttle:
            wait_ms = window.throttle_wait_ms(*limit.throttle, now, promised)
            waits.append((Reason.AT_THROTTLE, wait_ms - early * early_ms(*limit.throttle)))
        if not (waits := [(reason, wait_ms) for reason, wait_ms in waits if wait_ms > 0]):
            return None
        again_ms = max(TRY_AGAIN_MS if reason is _FULL else wait_ms for reason, wait_ms in waits)
        return Closed(limit, waits[0][0], max(wait_ms for _, wait_ms in waits), again_ms)

    def _count_start(self, limit: Limit, lease: str, now: int) -> None:
        # As ``lua/leases.lua`` says.
        if not limit.key.startswith("tenant:"):
            self._paces.holds(limit, lease, now)
        if limit.rates or limit.throttle or limit.key in self._windows:
            window = self._windows.setdefault(limit.key, Window())
            window.start(limit, now)
            self._idle[limit.key] = now + window.kept_ms

    def _forget(self, now: int) -> None:
        """Forget starts of long ago, and what people said for a time that is over."""
        self._forget_said(now)
        for key in [key for key, until in self._idle.items() if until <= now]:
            del self._idle[key], self._windows[key]
