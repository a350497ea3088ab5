"""The values about queues that methods of ``Fairness`` return: counts, shares and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_fairness.config.numbers import PARTITION, values_of
from celery_fairness.util.value import Value


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant with waiting tasks in a queue.

    Attributes:
        key: Key of its tier limit, or ``_system``.
        tier: Name of its tier. "" for system tasks.
        weight: Its weight.
        limit: Its concurrency now. None is unlimited.
        held: Its live leases, of all queues.
        entitled: Its share, by weight, of the slots that the tenants of the queue hold, within its
            limit and its tasks.
        waiting: Its waiting tasks in the queue.
        startable: Tasks of these that free places could start now.
        state: Why no more of its tasks could start: ``ready`` if all could, ``tier`` at its tier's
            limit, ``paused``, or ``limit`` if another limit blocks them.
        waits_seconds: Time for which its first task has waited. None if unknown.
    """

    key: str
    tier: str
    weight: float
    limit: int | None
    held: int
    entitled: float
    waiting: int
    startable: int
    state: str
    waits_seconds: float | None


@dataclass(frozen=True, slots=True)
class KeySaving:
    """What a key saves for the first task that waits there and takes several slots or units.

    Attributes:
        needs: How many the task takes.
        of: The concurrency of the key, or its rate.
        free: How many of them are free now. Others see as many less as the task needs.
        tenant: Key of the tenant of the task.
    """

    needs: int
    of: int
    free: int
    tenant: str


@dataclass(frozen=True, slots=True)
class BlockingLimit:
    """A limit at which tasks of a queue wait.

    Attributes:
        key: Key of the limit.
        reason: ``concurrency``, ``rate``, ``throttle``, ``paused`` or ``cool-down``. "" if the next
            claim checks the limit.
        waiting: Waiting tasks that have a limit of this key, in all queues.
        saving: What the key saves for a task. None if it saves nothing.
    """

    key: str
    reason: str
    waiting: int
    saving: KeySaving | None = None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue.

    Attributes:
        queue: Name of the queue. "" are the tasks that gates have parked for one broker.
        waiting: Tasks in lanes.
        delayed: Tasks with an eta or a countdown that has not ended.
        running: Running tasks. Estimated if more than 500 tasks run.
        dead: Dead letters.
        active: Tenants of which a task may start.
        blocked: Tenants with waiting tasks of which none may start.
        startable: Waiting tasks that free places could start now, at least. None if the tenants of
            the queue were not looked at.
        blocked_tasks: The other waiting tasks of tenants by the state of the tenant, at least.
        oldest_wait_seconds: The longest wait of a tenant's first task, at least. None if unknown.
        tenants: Tenants with waiting tasks, the longest wait first: the first 70 that may start a
            task, and the first 70 that may not.
        limits: The 20 limits with the most tasks, among a hundred at which tasks wait.
        is_complete: Whether ``tenants`` has all tenants, so that no number is a lower bound.
    """

    queue: str
    waiting: int
    delayed: int
    running: int
    dead: int
    active: int
    blocked: int
    startable: int | None = None
    blocked_tasks: Mapping[str, int] = field(default_factory=dict)
    oldest_wait_seconds: float | None = None
    tenants: tuple[TenantShare, ...] = ()
    limits: tuple[BlockingLimit, ...] = ()
    is_complete: bool = False


class PartitionLimit(values_of(PARTITION, Value)):  # type: ignore[misc]  # mypy cannot read the table
    """The limit that each partition of a queue has for itself.

    Attributes:
        source: As for :class:`QueueLimit`.
        concurrency: Tasks at once in all processes. None is unlimited and 0 pauses.
        local_limit: Tasks at once in one process, likewise.
        rate: Starts in any window, in the form of the Open Job Spec. None is unlimited.
        throttle: Evenly spaced starts, likewise.
        on_limit: Action on a task above the limit: ``wait``, ``reschedule`` or ``drop``.
    """

    source: str
    on_limit: str


class QueueLimit(values_of("queue", Value)):  # type: ignore[misc]  # as above
    """The limit of a queue.

    Attributes:
        queue: Name of the queue.
        key: Key of the whole queue. The key of a partition adds ``:`` and its values.
        source: Source of the numbers: ``people`` if an operator set them, or ``settings``; "" if
            there are none.
        partition: The limit of each partition, beside that of the whole queue. None if the tasks of
            the queue have no partitions.
        global_limit: Tasks at once in all processes. None is unlimited and 0 pauses.
        local_limit: Tasks at once in one process, likewise.
        rate: Starts in any window, in the form of the Open Job Spec. None is unlimited.
        throttle: Evenly spaced starts, likewise.
        on_limit: Action on a task above the limit: ``wait``, ``reschedule`` or ``drop``.
        held: Live leases of the whole queue.
    """

    queue: str
    key: str
    source: str
    partition: PartitionLimit | None
    on_limit: str
    held: int


class QueueState(Value):
    """A queue: its tasks and its limit.

    Attributes:
        queue: The name of the queue.
        tasks: Counts of its tasks, or None on a broker that does not claim fairly.
        limit: The limit of the queue, or None if it has none.
    """

    queue: str
    tasks: QueueStatus | None
    limit: QueueLimit | None
