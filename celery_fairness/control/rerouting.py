"""Moves waiting tasks to the queue of their tenant's new tier.

Only tasks that are routed by tier move: tasks in the priority or the default queue of their own
service, unless they were submitted as scheduled. One function call moves a task, if it still waits
where it was read. So a claim, put or cancel at the same time never sees it twice, or nowhere.

Invariant: a second run changes nothing, and completes a run that stopped halfway.

Weakness: for up to a second, producers use the old tier and put into the old queue. A running task
that is rescheduled goes back to the old queue, too. To find scheduled tasks, a run reads the heads
of all of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Settings
from celery_fairness.config.tenants import reserved, tier_key
from celery_fairness.config.tiers import Tier, queues_of, select_queue
from celery_fairness.control.find_task import later, messages_of
from celery_fairness.control.keys import Keys, group_of, lane_key, order_key
from celery_fairness.control.scan import Reader, batches
from celery_fairness.errors import HeaderInvalid
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.message.headers import HEADER, Header, parse_header
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import SYSTEM

#: Tasks that one call moves.
TOGETHER = 50
#: Number of passes. A task that changed its place during the first pass is found in the second.
PASSES = 2


class Rerouting:
    """Moves waiting tasks after a change of tiers, if the broker claims fairly.

    Args:
        limiter: The limiter of the installation.
        settings: The settings in force.
        claims: Whether the broker claims fairly. On other brokers no task moves.
    """

    def __init__(self, limiter: Limiter, settings: Settings, *, claims: bool) -> None:
        self._limiter = limiter
        self._settings = settings
        self._claims = claims

    def of_tenants(self, tenants: Iterable[str]) -> int:
        """Move the waiting tasks of tenants; return their number."""
        if not isinstance(self._limiter, RedisLimiter) or not self._claims:
            return 0
        names = [tier_key(reserved(tenant)).partition(":")[2] for tenant in tenants]
        return Rerouter(self._limiter, self._settings).of_tenants(names)

    def of_changed_tiers(self, before: Mapping[str, Tier]) -> None:
        """Move the waiting tasks of tiers whose queue class differs from ``before``."""
        if not isinstance(self._limiter, RedisLimiter) or not self._claims:
            return
        after = self._limiter.published_tiers()[1]
        changed = changed_tiers(before, after, self._settings.default_tier)
        if changed:
            Rerouter(self._limiter, self._settings).of_tiers(changed)


class Rerouter:
    """Moves the waiting tasks of one installation.

    Args:
        limiter: The limiter of the installation.
        settings: The default tier, the scope of tier limits, and the tiers if none are published.
    """

    def __init__(self, limiter: RedisLimiter, settings: Settings) -> None:
        self._limiter = limiter
        self._reader = Reader(limiter.connection, Keys(limiter.prefix))
        self._default, self._scope = settings.default_tier, settings.tier_scope
        self._tiers: Mapping[str, Tier] = limiter.published_tiers()[1] or settings.tiers

    def of_tenants(self, tenants: Collection[str]) -> int:
        """Move the waiting tasks of tenants, in their form in keys; return the number of tasks."""
        moved = 0
        for _ in range(PASSES if tenants else 0):
            services = {queue.rpartition("_")[0] for queue in self._queues()}
            for key in (key for tenant in tenants for key in self._keys(tenant, services)):
                fields = self._reader.read("HKEYS", self._reader.keys.of("account", key))
                queues = (field[2:] for field in fields if field.startswith("q:"))
                moved += sum(self._of_key(queue, key) for queue in filter(_is_routed, queues))
            moved += self._later(frozenset(tenants), ())
        return moved

    def of_tiers(self, changed: Collection[str]) -> int:
        """Move the waiting tasks of all tenants of some tiers; return the number of tasks."""
        moved = 0
        for _ in range(PASSES if changed else 0):
            for queue in self._queues():
                for key in self._members(queue):
                    tenant, tier = self._account(key)
                    if self._tier(tenant, tier) in changed:
                        moved += self._of_key(queue, key)
            moved += self._later((), changed)
        return moved

    # -- who waits where --------------------------------------------------------------------------

    def _queues(self) -> list[str]:
        """Return the queues with waiting tasks between which a tier may decide."""
        return list(filter(_is_routed, self._reader.read("HKEYS", self._reader.keys.waiting)))

    def _keys(self, tenant: str, services: Collection[str]) -> list[str]:
        """Return the keys of a tenant's tier limit."""
        if self._scope == "global":
            return [f"tenant:{tenant}"]
        return [f"tenant:{tenant}:{service}" for service in services]

    def _members(self, queue: str) -> Iterator[str]:
        for kind in ("ring", "full"):
            for key, _ in self._reader.pairs("ZSCAN", self._reader.keys.of(kind, queue)):
                if key != SYSTEM:
                    yield key

    def _account(self, key: str) -> tuple[str, str]:
        """Return tenant and tier of a key, as its last put knew them."""
        found = self._reader.read("HMGET", self._reader.keys.of("account", key), "tenant", "tier")
        return found[0] or "", found[1] or ""

    def _tier(self, tenant: str, tier: str) -> str:
        """Return the tier by which a claim judges."""
        published = self._reader.read("HGET", self._reader.keys.of("tenant", tenant), "tier")
        name = published or tier
        return name if name in self._tiers else self._default

    # -- moving -----------------------------------------------------------------------------------

    def _of_key(self, queue: str, key: str) -> int:
        tenant, known = self._account(key)
        if not tenant:
            return 0
        tier = self._tier(tenant, known)
        if queue == select_queue(queue.rpartition("_")[0], tier, False, self._tiers):
            return 0
        return sum(self._of_lane(queue, key, lane, tier) for lane in self._lanes(queue, key))

    def _lanes(self, queue: str, key: str) -> list[str]:
        """Return a tenant's lanes, with blocked lanes."""
        keys, pairs = self._reader.keys, self._reader.pairs
        parked = pairs("ZSCAN", keys.of("parked", f"{key} {queue}"))
        groups = dict.fromkeys(["", *(group_of(key, lane, alone) for lane, alone in parked)])
        return [
            lane
            for group in groups
            for lane, _ in pairs("ZSCAN", order_key(keys, key, group, queue))
        ]

    def _of_lane(self, queue: str, key: str, lane: str, tier: str) -> int:
        name = lane_key(self._reader.keys, key, lane, queue)
        moved = others = 0
        for _ in range(0, self._reader.read("ZCARD", name), TOGETHER):
            tags = self._reader.read("ZRANGE", name, others, others + TOGETHER - 1)
            gone = self._move(queue, tags, tier)
            moved, others = moved + gone, others + len(tags) - gone
        return moved

    def _later(self, tenants: Collection[str], tiers: Collection[str]) -> int:
        """Move the scheduled tasks of some tenants, or of all tenants of some tiers."""
        moved = 0
        for queue in list(filter(_is_routed, self._reader.names("later"))):
            its = (
                task
                for task in later(self._reader, [queue])
                if task.tenant and (not tenants or task.tenant in tenants)
            )
            for some in batches(its, TOGETHER):
                by_tier: dict[str, list[str]] = {}
                for task in some:
                    tier = self._tier(task.tenant, self._account(task.key)[1] or task.tier)
                    if not tiers or tier in tiers:
                        by_tier.setdefault(tier, []).append(task.tag)
                moved += sum(self._move(queue, tags, tier) for tier, tags in by_tier.items())
        return moved

    def _move(self, queue: str, tags: Sequence[str], tier: str) -> int:
        """Move tasks if they still wait; return the number that did."""
        service = queue.rpartition("_")[0]
        target = select_queue(service, tier, False, self._tiers)
        if target == queue:
            return 0
        messages = messages_of(self._reader, tags)
        read = ((tag, _header(text)) for tag, text in zip(tags, messages, strict=True))
        its = [(tag, _partition(head, target)) for tag, head in read if _service(head) == service]
        if not its:
            return 0
        answer = self._reader.call(calls.REROUTE, calls.reroute_args(target, its))
        return sum(calls.read_reroute(answer))


def changed_tiers(
    before: Mapping[str, Tier], after: Mapping[str, Tier], default_tier: str
) -> set[str]:
    """Return the names of tiers whose queue class differs from ``before``.

    Tenants of a deleted tier have the default tier, so that one is added if a tier is gone.
    """
    changed = {
        name for name, tier in after.items() if _class_of(before.get(name)) != _class_of(tier)
    }
    return changed | ({default_tier} if set(before) - set(after) else set())


def _class_of(tier: Tier | None) -> str:
    return "default" if tier is None else tier.queue_class


def _is_routed(queue: str) -> bool:
    service = queue.rpartition("_")[0]
    return bool(service) and queue in queues_of(service)[:2]


def _header(message: str | None) -> Header:
    """Return the header of a message; an empty one if it cannot be read."""
    try:
        headers: Any = json.loads(message or "")["headers"]
        return parse_header(headers[HEADER])
    except (ValueError, TypeError, KeyError, RecursionError, HeaderInvalid):
        return Header()


def _service(header: Header) -> str | None:
    """Return the service of a task that is routed by its tier; None for any other task."""
    return None if header.scheduled else header.service


def _partition(header: Header, queue: str) -> str:
    """Return the key of a task's partition in ``queue``; "" if it has none.

    The header has the key for the queue that the task was sent to. Other queues have the same
    partition values behind their own name.
    """
    if header.partition is None:
        return ""
    sent_to, key = header.partition
    return queue_key(queue) + key.removeprefix(queue_key(sent_to))
