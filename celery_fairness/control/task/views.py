"""The values about tasks that methods of ``Fairness`` return: lists, places and changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from celery_fairness.control.installation.views import WorkerStatus
from celery_fairness.control.key.limit_in_force import LimitInForce
from celery_fairness.control.key.views import Pagination
from celery_fairness.limiter.types import HeldLease
from celery_fairness.util.value import Value


class DeadLetter(Value):
    """A task that killed its processes too often, or whose message a worker could not read.

    Attributes:
        task_id: Id of the task, or the delivery tag if its message has no id.
        task: Name of the task, or "" if its message has no name.
        queue: Queue of the task.
        tenant: Charged tenant, in its form in keys. "" is a system task.
        attempts: Number of claims.
        deaths: Number of times that its process died after the body began.
        cause: Why it is a dead letter: ``deaths`` if its processes died too often, ``unreadable``
            if a worker cannot read its message, or ``lost`` if Redis no longer has the message, as
            after an eviction.
    """

    task_id: str
    task: str
    queue: str
    tenant: str
    attempts: int
    deaths: int
    cause: Literal["deaths", "unreadable", "lost"]


class DeadLetterPage(Value):
    """One page of the dead letters, by queue, the newest of each queue first.

    Attributes:
        items: Those of this page.
        pagination: The position of the page among those of the wanted queue, or of all queues.
        by_queue: Number of dead letters in each queue that has any.
    """

    items: tuple[DeadLetter, ...]
    pagination: Pagination
    by_queue: dict[str, int]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task of a list.

    Attributes:
        task_id: Its id, or the delivery tag if its message has no id.
        task: Its name, or "" if its message has no name.
        state: ``waiting``, ``delayed`` (until its time), ``parked`` (by a gate), ``running`` or
            ``dead``.
        why: Why it is in this state:

            - waiting or parked: ``concurrency``, ``rate``, ``throttle``, ``paused`` or
              ``cool-down`` of the limit ``key``, or "" if the task needs only its turn
            - parked, and its broker did not take it: ``broker``
            - delayed: which of these made the limit ``key`` reschedule it, or ""
            - running: ``claimed`` before its body begins, then ``begun`` or ``acked``; ``held`` at
              a gate
            - dead: ``deaths``, ``unreadable`` or ``lost``, as ``cause`` of a :class:`DeadLetter`
        key: Key of the limit of ``why``, or "".
        owner: Process that runs it, or "".
        age_seconds: How long it has waited in its queue. A running task has the time for which it
            holds its slots. None if unknown.
        due_at: When it becomes ready, or when its broker is tried again. None if it waits for no
            time.
        due_in_seconds: The time until then.
        tenant: Charged tenant, as the message has it, or else in its form in keys. "" is a system
            task.
        tier: The tier by which its tenant is checked now. "" if unknown.
        priority: 0 to 9, and 9 goes first. None if unknown.
        queue: Its queue. A parked task has the one to which it goes back.
        args: The first 80 characters of its arguments, as the headers ``argsrepr`` and
            ``kwargsrepr`` of its message have them. None if it has none, or if the message is
            larger than 64 KiB.
    """

    task_id: str
    task: str
    state: Literal["waiting", "delayed", "parked", "running", "dead"]
    why: str
    key: str
    owner: str
    age_seconds: float | None
    due_at: datetime | None
    due_in_seconds: float | None
    tenant: str
    tier: str
    priority: int | None
    queue: str
    args: str | None


#: The states of tasks, as :class:`TaskRow` has them.
STATES = ("waiting", "delayed", "parked", "running", "dead")


class TaskPage(Value):
    """One page of tasks: dead letters, then running, waiting, parked and delayed ones.

    Attributes:
        items: The tasks. A page may have fewer than wanted, even none, and others follow.
        cursor: Where the next page begins, or None after the last page.
        is_ordered: Whether each state of this page is in order: waiting and running tasks the
            oldest first, delayed ones by time, dead letters the newest first. False if running
            tasks of all tenants are listed, or if waiting tasks have more than 250 combinations of
            tenant, name, priority and limits.
    """

    items: tuple[TaskRow, ...]
    cursor: str | None
    is_ordered: bool


class TasksCancelled(Value):
    """The result of a bulk cancel.

    Attributes:
        cancelled: Number of cancelled tasks.
        has_more: Whether the call ended at its bound, so that others may be left.
    """

    cancelled: int
    has_more: bool


class Cancelled(Value):
    """The result of a cancellation.

    Attributes:
        task_id: Id of the task.
        state: ``cancelled``, or ``running`` if it goes on because it had started.
        queue: Queue of the task.
        owner: Process that runs the task, or "" if it was cancelled.
    """

    task_id: str
    state: str
    queue: str
    owner: str = ""


class Requeued(Value):
    """A dead letter that waits again."""

    task_id: str
    queue: str


@dataclass(frozen=True, slots=True)
class TaskLimit:
    """One of the limits of a task, with the numbers that apply now.

    Attributes:
        key: Key of the limit. The tenant's own limit has the key of its tier limit.
        numbers: Its numbers by name. One that it lacks is absent, and a concurrency of 0 stops. A
            rate has ``(starts, period_ms)`` for each of its windows.
        on_limit: Action on a task above the limit: ``wait``, ``reschedule`` or ``drop``.
        held: Live leases of the key.
        blocked_by: Why it blocks the task, as ``reason`` of a :class:`Blocker`. "" if it does not.
        in_force: The concurrency, and the reasons for it.
    """

    key: str
    numbers: Mapping[str, Any]
    on_limit: str
    held: int
    blocked_by: str
    in_force: LimitInForce


@dataclass(frozen=True, slots=True)
class Amount:
    """What a task takes of a number that blocks it.

    Attributes:
        needs: How much it takes, at most all of the number.
        of: The number of the key.
        free: How much is free now. Less than 0 if more was used than the number allows.
        saves: How much the key saves for the first task that waits there. 0 if it saves nothing.
        saved_for: Key of the tenant of that task. "" if it is this task, or one that waits with it.
        saved_seconds: Time after which the saving ends, if that task has not started. None while
            slots gather.
    """

    needs: int
    of: int
    free: int
    saves: int = 0
    saved_for: str = ""
    saved_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Blocker:
    """A limit that keeps a task from starting.

    Attributes:
        key: Key of the limit. The tenant's own limit has the key of its tier limit.
        reason: ``concurrency``, ``rate``, ``throttle``, ``paused``, ``cool-down``, or ``local`` for
            a queue's limit of one process.
        held: Live leases of the key. With ``local``, the leases of the process with the fewest,
            among processes that run a task of the queue.
        limit: Its concurrency, or that of one process. None is unlimited.
        opens_in_seconds: Time until it is available by itself. None if that needs the end of a
            lease or an operator.
        holders: Leases, the oldest first. If the limits that block the task have more than a
            hundred, each shows an even sample.
        callers: Ids of the task that called this one, and of the first of its callers, if they are
            among the holders. If one of them waits for this task's result, neither ends.
        starts_in_seconds: Estimated time until this limit alone would let the task start. None if
            unknown.
        in_force: The concurrency, and the reasons for it. None for a queue's limit of one process.
        opens_at: When it is available by itself, by the server's clock, or None as above.
        counted: The starts in the full window of a rate, such as ``100 of 100/PT1H``. "" if no
            window is full.
        amount: What the task takes of the number that blocks it. None if it takes 1 and the key
            saves nothing.
        burst: The tasks that a tenant may run in all while a worker has nothing else. None if it
            may run no more than its concurrency.
        permits: Of a key that tenants of several partitions share: how many of its slots the
            partition of the task may take now. None for any other key.
        lends: The rate or the throttle that tenants of several partitions share, if the home of
            the key has lent the partition too few starts. "" otherwise.
    """

    key: str
    reason: str
    held: int
    limit: int | None
    opens_in_seconds: float | None = None
    holders: tuple[HeldLease, ...] = ()
    callers: tuple[str, ...] = ()
    starts_in_seconds: float | None = None
    in_force: LimitInForce | None = None
    opens_at: datetime | None = None
    counted: str = ""
    amount: Amount | None = None
    burst: int | None = None
    permits: int | None = None
    lends: str = ""


class Explanation(Value):
    """The place of a task, and why it does not start.

    Attributes:
        task_id: Id of the task.
        task: Name of the task, or "" if its message has no name.
        key: Key of the charged tenant's tier limit, or ``_system``.
        queue: Queue of the task.
        state: ``waiting``, ``delayed`` (until its eta), ``running``, ``dead``, ``moving`` (to
            another installation), or ``parked`` (by a gate).
        owner: Process that runs the task, or "" if none does.
        due_in_seconds: Time until its eta, or until a parked task is tried again. None if it waits
            for no time.
        ahead_in_lane: Tasks before it with the same tenant, priority and limits.
        ahead_is_least: Whether there are more of them, because their names are too many to count.
        tenants_ahead: Tenants before its own: of its queue, or with parked tasks of its broker.
            None if its own tenant is not active: see ``blocked_by``.
        blocked_by: Limits that block the task. If it is empty, the task needs its turn and a worker
            that takes its queue, has its name registered and is not at the task's
            ``rate_limit``. Redis does not store the last two.
        starts_in_seconds: Estimated time until a waiting task starts, or None if unknown.
        limits: All limits of a waiting task with the numbers that apply now. The tenant's comes
            first, the limit of the whole queue last.
        put_back_by: Key of the limit that rescheduled the task (``on_limit="reschedule"``); "" if
            none did.
        not_enforcing: Workers that do not enforce limits and may start the task above them.
        taken_by: Names of the announced workers that take the queue. None if the task runs or is a
            dead letter.
        tenant_from: The header or property that named the tenant, by the setting ``tenant_header``.
            "" if the ``fairness`` header or an argument did, or if the task has no tenant.
        unique_key: Its unique key, or "" if it has none.
        raised: Whether it goes as one of the highest priority, because it has waited for
            ``priority_aging``.
    """

    task_id: str
    task: str
    key: str
    queue: str
    state: str
    owner: str = ""
    due_in_seconds: float | None = None
    ahead_in_lane: int | None = None
    ahead_is_least: bool = False
    tenants_ahead: int | None = None
    blocked_by: tuple[Blocker, ...] = ()
    starts_in_seconds: float | None = None
    limits: tuple[TaskLimit, ...] = ()
    put_back_by: str = ""
    not_enforcing: tuple[WorkerStatus, ...] = ()
    taken_by: tuple[str, ...] | None = None
    tenant_from: str = ""
    unique_key: str = ""
    raised: bool = False
