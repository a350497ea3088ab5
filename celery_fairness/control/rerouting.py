"""Moves waiting tasks to the queue of their tenant's new tier.

Only tasks that are routed by tier move: tasks in the priority or the default queue of their own
service, unless they were submitted as scheduled. One function call moves a task, if it still waits
where it was read. So a claim, put or cancel at the same time never sees it twice, or nowhere.

Invariant: a second run changes nothing, and completes a run that stopped halfway.

Weakness: for up to a second, producers use the old tier and put into the old queue. A running task
that is rescheduled goes back to the old queue, too. To find scheduled tasks, a run reads all of
them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Settings
from celery_fairness.config.tenants import reserved, tier_key
from celery_fairness.config.tiers import Tier, queues_of, select_queue
from celery_fairness.control.keys import (
    ORDER_LENGTH,
    Keys,
    group_of,
    order_key,
    part_key,
    read_part,
    read_record,
)
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
        return sum(self._of_part(queue, key, part, tier) for part in self._parts(queue, key))

    def _parts(self, queue: str, key: str) -> list[str]:
        """Return the parts of a tenant's lanes, with blocked lanes."""
        keys, pairs = self._reader.keys, self._reader.pairs
        parked = pairs("ZSCAN", keys.of("parked", f"{key} {queue}"))
        groups = dict.fromkeys(["", *(group_of(key, lane, alone) for lane, alone in parked)])
        return [
            part
            for group in groups
            for part, _ in pairs("ZSCAN", order_key(keys, key, group, queue))
        ]

    def _of_part(self, queue: str, key: str, part: str, tier: str) -> int:
        name = part_key(self._reader.keys, key, part, queue)
        if read_part(part)[1] is not None:
            tags = [tag for tag, _ in self._reader.pairs("ZSCAN", name)]
            returned = self._reader.keys.returned
            some = batches((self._reader.read("HGET", returned, tag) for tag in tags), TOGETHER)
            return sum(self._move(queue, list(filter(None, each)), tier) for each in some)
        moved = others = 0
        for _ in range(0, self._reader.read("LLEN", name), TOGETHER):
            records = self._reader.read("LRANGE", name, others, others + TOGETHER - 1)
            gone = self._move(queue, records, tier)
            moved, others = moved + gone, others + len(records) - gone
        return moved

    def _later(self, tenants: Collection[str], tiers: Collection[str]) -> int:
        """Move the scheduled tasks of some tenants, or of all tenants of some tiers."""
        moved = 0
        for queue in list(filter(_is_routed, self._reader.names("later"))):
            found = self._reader.pairs("ZSCAN", self._reader.keys.of("later", queue))
            records = (member[ORDER_LENGTH:] for member, _ in found)
            for some in batches((each for each in records if _charges(each, tenants)), TOGETHER):
                by_tier: dict[str, list[str]] = {}
                for key, its in _by_key(some).items():
                    tenant, known = _tenant_of(its[0])
                    tier = self._tier(tenant, self._account(key)[1] or known)
                    if not tiers or tier in tiers:
                        by_tier.setdefault(tier, []).extend(its)
                moved += sum(self._move(queue, its, tier) for tier, its in by_tier.items())
        return moved

    def _move(self, queue: str, records: Sequence[str], tier: str) -> int:
        """Move tasks if they still wait where they were read; return the number that did."""
        service = queue.rpartition("_")[0]
        target = select_queue(service, tier, False, self._tiers)
        read = ((record, _header(record)) for record in records)
        its = [(each, _partition(head, target)) for each, head in read if _service(head) == service]
        if target == queue or not its:
            return 0
        args = calls.reroute_args(queue, target, its)
        answer = self._limiter.connection.run(calls.REROUTE, self._limiter.prefix, args)
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


def _header(record: str) -> Header:
    """Return the header of a task; an empty one if it cannot be read."""
    try:
        headers: Any = json.loads(record.partition("\n")[2])["headers"]
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


def _charges(record: str, tenants: Collection[str]) -> bool:
    """Return whether a record is charged to one of ``tenants``, or to any tenant if it is empty."""
    task, (tenant, _) = read_record(record), _tenant_of(record)
    return task is not None and bool(tenant) and (not tenants or tenant in tenants)


def _tenant_of(record: str) -> tuple[str, str]:
    """Return the tenant and the tier in a record."""
    fields = record.partition("\n")[0].split(" ")
    return (fields[6], fields[8]) if len(fields) > 8 else ("", "")


def _by_key(records: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records:
        if task := read_record(record):
            found.setdefault(task.key, []).append(record)
    return found
