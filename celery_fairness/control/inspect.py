"""The state of a key, combined from all places that have facts about it.

The numbers of a key come from the first of these sources that has any:

1. an override;
2. its queue, and the waiting task that was put last; the stricter number counts;
3. a running task;
4. the last start, while Redis stores it;
5. this app: the setting ``queues``, or a policy of a task whose key has no field but the name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from celery_fairness.config.limit_spec import Limit, of_one_key, read_limits
from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.config.tenants import Reserved, tier_key
from celery_fairness.control.blocked_tasks import WaitingOfKey, waiting_of
from celery_fairness.control.counting import Seen, Starts, starts_of
from celery_fairness.control.find_task import heads_of
from celery_fairness.control.holders import with_jobs
from celery_fairness.control.holds import judged_by, logical_now, server_now, with_holds
from celery_fairness.control.keys import Keys, is_tenants, tag_of
from celery_fairness.control.limit_in_force import Kind, LimitInForce, LimitReason, limit_in_force
from celery_fairness.control.list_limits import known_keys
from celery_fairness.control.ojs_views import (
    Concurrency,
    Inspection,
    InspectionPage,
    Override,
    Pagination,
    RateState,
    ThrottleState,
    at_ms,
)
from celery_fairness.control.parked import parked
from celery_fairness.control.scan import Reader
from celery_fairness.control.stats import Stats
from celery_fairness.control.tenant_state import ROWS
from celery_fairness.control.waiters import numbered, row_of
from celery_fairness.errors import NotFound
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiter.types import KeyStops, LimitState
from celery_fairness.scheduler.types import SYSTEM
from celery_fairness.util.durations import iso_duration, seconds

_NOT_KNOWN = (
    "is not known: nothing holds it, nothing of it waits, it is forgotten, or no task had it yet; "
    "a tenant's key is tenant:{tenant}"
)


class Inspector:
    """Inspects keys of one installation.

    Args:
        looker: The statistics of the installation.
        limiter: Its limiter. A fake limiter has fewer facts.
        declared: Returns the limit that this app declares for a key.
        by_service: Whether each service of a tenant counts apart.
    """

    def __init__(
        self,
        looker: Stats,
        limiter: Limiter,
        declared: Callable[[str], Limit | None],
        by_service: bool,
    ) -> None:
        self._looker = looker
        self._declared = declared
        self._by_service = by_service
        self._reader: Reader | None = None
        if isinstance(limiter, RedisLimiter):
            self._reader = Reader(limiter.connection, Keys(limiter.prefix))

    def inspect(self, key: str, *, known: bool = True) -> Inspection:
        """Return the state of a key; see ``LimitsApi.inspect``.

        Args:
            key: The key, in its form in Redis.
            known: Whether an unknown key is an error.

        Raises:
            NotFound: Nothing is known of the key.
        """
        state = self._looker.inspect(key)
        if self._reader is None:
            return _shown(state)
        state = self._with_holds(self._reader, state)
        if not self._looker.claims:
            state = replace(state, leases=with_jobs(self._reader, state.leases))
        waiting = waiting_of(self._reader, [state.key])[state.key]
        if known and not self._is_known(self._reader, state, waiting):
            raise NotFound("key", key, _NOT_KNOWN)
        return self._look(self._reader, state, waiting)

    def page(self, page: int, per_page: int) -> InspectionPage:
        """Return a page of the known keys; see ``LimitsApi.list``."""
        reader = self._reader
        if reader is None:
            raise ValueError("limiter: expected one in Redis, whose keys can be listed")
        keys = sorted({*known_keys(reader), *_parked_keys(reader)})
        some = keys[(page - 1) * per_page : page * per_page]
        waiting = waiting_of(reader, some) if some else {}
        items = (
            self._look(reader, self._with_holds(reader, self._looker.of_known(reader, key)), of_key)
            for key, of_key in waiting.items()
        )
        return InspectionPage(
            items=tuple(items),
            pagination=Pagination(total=len(keys), page=page, per_page=per_page),
        )

    def _with_holds(self, reader: Reader, state: LimitState) -> LimitState:
        """Return ``state`` with holds and override, unless it has them already."""
        if state.stops is not None:
            return state
        of_all = ""
        if self._by_service and state.tier:
            tenant = state.key.partition(":")[2].rpartition(":")[0]
            of_all = tier_key(Reserved(tenant))
        return with_holds(reader, state, of_all)

    def _is_known(self, reader: Reader, state: LimitState, waiting: WaitingOfKey) -> bool:
        """Return whether anything is known of a key; a tenant's key always has a tier."""
        kept = (reader.keys.of(kind, state.key) for kind in ("leases", "window"))
        row = row_of(reader, state.key)
        return bool(
            is_tenants(state.key)
            or state.known
            or waiting.lanes
            or waiting.parked
            or (row is not None and row.key == state.key)
            or reader.read("EXISTS", *kept)
            or self._was_used(reader, state.key)
            or self._declared(state.key)
        )

    def _was_used(self, reader: Reader, key: str) -> bool:
        """Return whether a lease of a key has ended lately."""
        until = reader.read("ZSCORE", reader.keys.idle, f" {key}")
        return until is not None and float(until) > logical_now(reader)

    def _look(self, reader: Reader, state: LimitState, waiting: WaitingOfKey) -> Inspection:
        starts = starts_of(reader, state.key)
        limit, in_force = self._limit(reader, state, waiting, starts)
        now_ms, logical = server_now(reader), logical_now(reader)
        stopped_ms = _stopped_ms(state.stops)
        rates = [starts.rate(*each, logical) for each in limit.rates]
        rate = max(rates, key=lambda each: (each.count / each.starts, each.wait_ms), default=None)
        spaced = starts.throttle(*limit.throttle, logical) if limit.throttle else None
        count = waiting.count(reader)
        queue = reader.read("HGET", reader.keys.queue_keys, state.key)
        if queue is not None:
            # Every task of a queue waits for the queue's limit, which is not in the lanes' names.
            in_queue = int(reader.read("HGET", reader.keys.waiting, queue) or 0)
            count = waiting.count(reader, without=queue) + in_queue
        return Inspection(
            key=state.key,
            concurrency=Concurrency(limit=limit.concurrency, active=state.held),
            rate=None if rate is None else _rate(rate, now_ms, stopped_ms),
            throttle=None if spaced is None else _throttle(spaced, now_ms, stopped_ms),
            waiting_count=count,
            override=None if state.override is None else Override.of(state.override),
            in_force=in_force,
            state=state,
        )

    def _limit(
        self, reader: Reader, state: LimitState, waiting: WaitingOfKey, starts: Starts
    ) -> tuple[Limit, LimitInForce]:
        """Return the known numbers of a key, and the reasons for them."""
        key = state.key
        row = row_of(reader, key)
        found = []
        kinds: dict[int | None, Kind] = {}
        if row is not None and row.parts == (key != row.key) and (row.by_operator or row.declared):
            found.append(row.numbers.limit(key))
            kinds[row.numbers.concurrency] = "queue" if row.by_operator else "settings"
        brought = waiting.limit(reader)
        if brought is None and not found:
            brought = _of_running(reader, state) or starts.asked or self._declared(key)
        if brought is not None:
            found.append(numbered(reader, brought))
            declared: Kind = "settings" if key.startswith(PREFIX) else "tasks"
            kinds.setdefault(found[-1].concurrency, declared)
        if is_tenants(key):
            found.append(Limit(key, state.entitled))
            # This number comes from the tenant or its tier, not from a queue or a task.
            kinds.pop(state.entitled, None)
        limit = _stricter(key, found)
        stricter = kinds.get(limit.concurrency)
        own = None if stricter is None else LimitReason(kind=stricter, limit=limit.concurrency)
        if state.override is not None:
            limit = judged_by(limit, state.override)
        stopped = state.stops is not None and state.stops.paused
        in_force = limit_in_force(state, own)
        return (limit._replace(concurrency=0) if stopped else limit), in_force


def _parked_keys(reader: Reader) -> set[str]:
    """Return the keys of parked tasks."""
    tasks = parked(reader)
    keys = {key for task in tasks for key in (task.key, *(limit.key for limit in task.limits))}
    return keys - {SYSTEM}


def _of_running(reader: Reader, state: LimitState) -> Limit | None:
    """Return the limit that one of the key's running tasks brings; None if none does."""
    for task in heads_of(reader, [tag_of(each.id) for each in state.leases[:ROWS]]):
        for limit in read_limits(task.limits):
            if limit.key == state.key:
                return limit
    return None


def _stricter(key: str, limits: list[Limit]) -> Limit:
    """Return one limit from several of a key, with the stricter numbers."""
    numbers = [each.concurrency for each in limits if each.concurrency is not None]
    (both,) = of_one_key(tuple(each._replace(key=key) for each in limits)) or [Limit(key)]
    return both._replace(concurrency=min(numbers, default=None))


def _stopped_ms(stops: KeyStops | None) -> int | None:
    """Return how long a pause or a cool-down lasts, in ms; None is without an end."""
    if stops is None:
        return 0
    if stops.paused and stops.pause_seconds is None:
        return None
    return round(1000 * max(stops.cool_down_seconds, stops.pause_seconds or 0.0))


def _rate(rate: Seen, now_ms: int, stopped_ms: int | None) -> RateState:
    return RateState(
        limit=rate.starts,
        period=iso_duration(seconds(rate.period_ms)),
        current_count=rate.count,
        window_resets_at=_until(rate, now_ms, stopped_ms),
    )


def _throttle(spaced: Seen, now_ms: int, stopped_ms: int | None) -> ThrottleState:
    return ThrottleState(
        limit=spaced.starts,
        period=iso_duration(seconds(spaced.period_ms)),
        next_allowed_at=_until(spaced, now_ms, stopped_ms),
    )


def _until(seen: Seen, now_ms: int, stopped_ms: int | None) -> datetime | None:
    return None if stopped_ms is None else at_ms(now_ms + max(seen.wait_ms, stopped_ms))


def _shown(state: LimitState) -> Inspection:
    """Return the state of a key of a fake limiter."""
    active = Concurrency(limit=state.limit, active=state.held)
    return Inspection(
        key=state.key,
        concurrency=active,
        waiting_count=state.parked,
        in_force=limit_in_force(state),
        state=state,
    )
