"""Moves waiting tasks to the queue of their tenant's new tier.

Only tasks that are routed by tier move: tasks in the priority or the default queue of their own
service, unless they were submitted as scheduled. One function call moves a task, if it still waits
where it was read. So a claim, put or cancel at the same time never sees it twice, or nowhere.

Invariant: a second run for the same tenants changes nothing, and completes a run that stopped
halfway. A publication of tiers that stopped halfway does not run again: its tasks wait in their
former queues until a run for their tenants.

Weakness: for up to a second, producers use the old tier and put into the old queue. A running task
that is rescheduled goes back to the old queue, too. A change of
tiers reads the heads of all scheduled tasks, one of tenants only those of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby

from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Settings
from celery_fairness.config.tenants import Reserved, reserved, tier_key
from celery_fairness.config.tiers import Tier, queues_of, select_queue
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import Reader
from celery_fairness.control.installation.task_records import TaskHead
from celery_fairness.control.task.search import headers_of, messages_of, tasks_of, waiting_tasks
from celery_fairness.errors import HeaderInvalid
from celery_fairness.limiter.redis import Limiter
from celery_fairness.message.headers import HEADER, Header, parse_header
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import SYSTEM


class Rerouting:
    """Moves waiting tasks that are in the wrong queue by the tiers that are published now.

    On other brokers no task moves.
    """

    def __init__(self, installation: Installation) -> None:
        self._settings = installation.settings
        limiter, reader = installation.limiter, installation.reader
        its = zip(limiter.parts, reader.parts, strict=True) if installation.claims else ()
        self._parts = {part: _Moves(self._settings, part, its_reader) for part, its_reader in its}
        self._parts_of_key = limiter.parts_of_key

    def of_tenants(self, tenants: Iterable[str]) -> int:
        """Move the waiting tasks of tenants; return their number."""
        found = defaultdict[Limiter, set[str]](set)
        for tenant in tenants if self._parts else ():
            key = tier_key(reserved(tenant))
            for part in self._parts_of_key(key):
                found[part].add(key)
        return sum(self._parts[part].of_tenants(keys) for part, keys in found.items())

    def of_changed_tiers(self, before: Mapping[str, Tier]) -> None:
        """Move the waiting tasks of tiers whose queue class differs from ``before``."""
        for part in self._parts.values():
            part.of_changed_tiers(before)


class _Moves:
    """Moves the waiting tasks of one partition."""

    def __init__(self, settings: Settings, limiter: Limiter, reader: Reader) -> None:
        self._settings, self._limiter, self._reader = settings, limiter, reader

    @cached_property
    def _published(self) -> Mapping[str, Tier]:
        return self._limiter.published_tiers()[1]

    @property
    def _tiers(self) -> Mapping[str, Tier]:
        return self._published or self._settings.tiers

    def of_tenants(self, keys: Collection[str]) -> int:
        """Move the waiting tasks of tenants, by their keys; return their number."""
        found = tasks_of(self._reader, sorted(keys))
        its = (
            [
                task
                for task in tasks
                if _is_routed(task.queue) and self._tenant_key(task.key) in keys
            ]
            for tasks in found
        )
        return self._move_all(its)

    def of_changed_tiers(self, before: Mapping[str, Tier]) -> None:
        """Move the waiting tasks of tiers whose queue class differs from ``before``."""
        changed = changed_tiers(before, self._published, self._settings.default_tier)
        if changed:
            known = (None, *changed)

            def may_move(key: str, queue: str) -> bool:
                return _is_routed(queue) and key != SYSTEM and self._tier(key) in known

            self._move_all(waiting_tasks(self._reader, may_move), changed)

    def _tenant_key(self, key: str) -> str:
        """Return the key of all services of a tenant, by the key of its tier limit."""
        return key.rpartition(":")[0] if self._settings.tier_scope == "service" else key

    def _tier(self, key: str, known: str = "") -> str | None:
        """Return the tier by which a claim checks the tasks of a key; None if nothing is known.

        Args:
            key: Key of a tenant's tier limit.
            known: The tier that a task brings. It counts if no task of the key waits in a lane.
        """
        tenant = Reserved(self._tenant_key(key).removeprefix("tenant:"))
        name = self._limiter.published_tenant(tenant)
        name = name or self._reader.read("HGET", self._reader.keys.of("tenant_state", key), "tier")
        name = name or known
        if not name:
            return None
        return name if name in self._tiers else self._settings.default_tier

    def _move_all(self, found: Iterable[Sequence[TaskHead]], tiers: Collection[str] = ()) -> int:
        """Move waiting tasks to the queue of their tier; return their number.

        Args:
            found: The tasks, in groups.
            tiers: The tiers whose tasks move. An empty one means all tiers.
        """
        moved = 0
        for tasks in found:
            # Scheduled tasks are of several tenants.
            for (queue, key), some in groupby(sorted(tasks, key=_place), _place):
                its = list(some)
                tier = self._tier(key, its[0].tier) or self._settings.default_tier
                if not tiers or tier in tiers:
                    moved += self._move(queue, [task.tag for task in its], tier)
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
        return sum(calls.read_done(answer))


def _place(task: TaskHead) -> tuple[str, str]:
    return task.queue, task.key


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
        return parse_header(headers_of(message).get(HEADER))
    except HeaderInvalid:
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
