"""The values that methods of ``Fairness`` return.

An inspected key with its override is in :mod:`.ojs_views`, and an event in :mod:`.event_types`.

A result is a :class:`Value`. Its rows are dataclasses, because a result may have many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from celery_fairness.control.limit_in_force import LimitInForce
from celery_fairness.control.ojs_views import Pagination
from celery_fairness.limiter.types import HeldLease, KeyHolds
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
class BlockingLimit:
    """A limit at which tasks of a queue wait.

    Attributes:
        key: Key of the limit.
        reason: ``concurrency``, ``rate``, ``throttle``, ``paused`` or ``cool-down``. "" if the next
            claim checks the limit.
        waiting: Waiting tasks that have a limit of this key, in all queues.
    """

    key: str
    reason: str
    waiting: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue.

    Attributes:
        queue: Name of the queue. "" are the tasks that gates have parked for one broker.
        waiting: Tasks in lanes.
        later: Tasks with an eta or a countdown that has not ended.
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
    later: int
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


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """One process that runs tasks, and its number of leases."""

    owner: str
    leases: int


class WorkerStatus(Value):
    """One live worker process, which stores this as JSON in Redis.

    Attributes:
        name: Celery's name of it, such as ``celery@web-3``.
        pid: Process id of its main process.
        path: ``dispatch`` or ``gate``.
        enforcement: ``on``, ``observe`` or ``off``. With the last two the worker starts tasks above
            their limits.
        owner: Its name as the owner of leases.
        places: Tasks that its pool runs at once.
        queues: Queues that it consumes.
        shares: Its places for each queue of a service. Empty if it takes its queues in turn.
        lends: Whether other queues may use places that their queue does not need.
        app: Name of its Celery app. None is not announced.
        backend: A hash of its result backend, or "" if it has none.
        lease_seconds: Its setting. 0 is not announced.
        started_at: When it started, by the clock of its host. None is not announced.
    """

    name: str
    pid: int
    path: str
    enforcement: str
    owner: str = ""
    places: int = 0
    queues: tuple[str, ...] = ()
    shares: dict[str, int] = {}
    lends: bool = False
    app: str | None = None
    backend: str = ""
    lease_seconds: float = 0.0
    started_at: datetime | None = None

    def most_of(self, queue: str) -> int:
        """Return how many tasks of a queue it runs at once at most."""
        return self.places if self.lends else self.shares.get(queue, self.places)


@dataclass(frozen=True, slots=True)
class UnannouncedWorker:
    """A worker that answers Celery and is not announced in the installation.

    It lacks this package, or it has another namespace or Redis.

    Attributes:
        name: Celery's name of it, such as ``celery@web-3``.
        queues: Queues that it consumes. None if it did not send them.
        shares: Whether it may take tasks of the installation: one of its queues is known here, or
            its queues are not known.
    """

    name: str
    queues: tuple[str, ...] | None
    shares: bool


class WorkerReplies(Value):
    """The workers that answered Celery, compared with those that are announced.

    Attributes:
        at: When they were asked, by the clock of this process.
        answered: How many workers answered.
        unannounced: Those of them that are not announced, those that share a queue first.
        problem: Why nobody was seen, although workers may run. "" if Celery's control bus worked.
    """

    at: datetime
    answered: int = 0
    unannounced: tuple[UnannouncedWorker, ...] = ()
    problem: str = ""

    @property
    def sharing(self) -> tuple[UnannouncedWorker, ...]:
        """The unannounced workers that may take tasks of the installation."""
        return tuple(each for each in self.unannounced if each.shares)


@dataclass(frozen=True, slots=True)
class UnresolvedTenant:
    """A tenant for which the tier resolver failed in some process, so that the default tier held.

    Attributes:
        key: Key of its tier limit.
        failures: How often it failed, while the row was kept.
        last_at: When it failed last, by the server's clock.
        error: The type of the last error. ``UnknownTier`` is a tier that is not in the table.
    """

    key: str
    failures: int
    last_at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier in force.

    Attributes:
        tier: Its name.
        concurrency: Tasks of one tenant at once. None is unlimited.
        weight: Its weight.
        queue_class: The class of queue that its tasks take.
        rejected: How often it has rejected a task or a tenant.
        max_waiting: Waiting tasks of one tenant at most. None is unlimited.
    """

    tier: str
    concurrency: int | None
    weight: float
    queue_class: str
    rejected: int
    max_waiting: int | None


class KeyRejections(Value):
    """The number of rejections by limits of a key.

    Attributes:
        key: The key. After the first thousand keys, others are counted together as ``_other``.
        strategy: The number that rejected: ``concurrency``, ``rate``, ``throttle``, ``paused`` or
            ``cool-down``.
        total: Rejections since the installation's memory began.
    """

    key: str
    strategy: str
    total: int


@dataclass(frozen=True, slots=True)
class WaitCount:
    """Tasks with a wait in one range.

    Attributes:
        below_seconds: Upper end of the range, exclusive. The lower end is half of it.
        tasks: Number of tasks.
    """

    below_seconds: float
    tasks: int


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """The work of claims and gates in one minute, for one queue and one tier.

    A wait begins with the put, or with the task's eta, and ends with the first claim. A gate cannot
    measure waits. A task is alone if no other task of its tenant waited in the queue at its put.

    Attributes:
        queue: Name of the queue. ``_other`` counts queues above the bound together. "" is a message
            of a gate without a queue's name.
        tier: Name of the tier, or "" for system tasks.
        started: Tasks that were claimed, or that passed a gate.
        rejected: Rejections of tenants by their tier's limit.
        alone: Waits of tasks that were alone and started, the shortest first.
        behind_own: Waits of tasks that started behind their tenant's own tasks.
    """

    queue: str
    tier: str
    started: int
    rejected: int
    alone: tuple[WaitCount, ...] = ()
    behind_own: tuple[WaitCount, ...] = ()


class Minute(Value):
    """One minute: its start by the server's clock, and a row for each queue and tier."""

    at: datetime
    counts: tuple[MinuteCount, ...]


class QueueLimit(Value):
    """The limit of a queue.

    Attributes:
        queue: Name of the queue.
        key: Key of the whole queue. The key of a partition adds ``:`` and its values.
        source: Source of the numbers: ``people`` if an operator set them, or ``settings``; "" if
            there are none.
        partitioned: Whether the numbers apply to each partition.
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
    partitioned: bool
    global_limit: int | None
    local_limit: int | None
    rate: Mapping[str, Any] | None
    throttle: Mapping[str, Any] | None
    on_limit: str
    held: int


class ChangedHolds(KeyHolds):
    """The pause and cool-down of a key after an operator changed it.

    Attributes:
        known: Whether anything was known of the key before. False is either a key without a task
            so far, or a typing mistake.
    """

    known: bool


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


class Rejections(Value):
    """The number of starts that limits rejected, since the installation's memory began.

    Attributes:
        tiers: By the name of the tier.
        keys: By key and number. After a thousand keys of tenants, and a thousand others, further
            keys are counted together as ``_other``.
    """

    tiers: Mapping[str, int]
    keys: tuple[KeyRejections, ...]


class ObservedHour(Value):
    """One hour: its start by the server's clock, and the tasks that started above a limit."""

    at: datetime
    over_limit: int


class ObservedTier(Value):
    """The tasks of one tier that started above its limit.

    Attributes:
        tier: Name of the tier.
        concurrency: Its limit now. None is unlimited, or no tier that is known now.
        over_limit: Tasks that started above the limit.
        tenants: Tenants of these tasks, as far as they are counted by name.
        most_at_once: Most tasks that one of them ran at once.
    """

    tier: str
    concurrency: int | None
    over_limit: int
    tenants: int
    most_at_once: int


class ObservedTenant(Value):
    """The tasks of one tenant that started above the limit of its tier.

    Attributes:
        key: Key of the tenant.
        tier: Name of its tier then. A tenant with two tiers in this time occurs twice.
        over_limit: Tasks that started above the limit.
        most_at_once: Most tasks that it ran at once.
    """

    key: str
    tier: str
    over_limit: int
    most_at_once: int


class Observed(Value):
    """The tasks that workers started above a tier's limit, because these workers only observe.

    A worker that enforces limits would have rejected each of them at that moment.

    Attributes:
        observing: Live workers that only observe.
        workers: All live workers.
        since: Since when workers observe, as far as it is known: the start of the oldest of them,
            or the first hour with such a task. None if there is neither.
        hours: The last hours, the oldest first. The last one still counts.
        tiers: A row for each tier with such a task, the most tasks first.
        tenants: The tenants with the most of these tasks, the most first.
        others: Tasks of all other tenants. An hour has at most five hundred by name.
    """

    observing: int
    workers: int
    since: datetime | None
    hours: tuple[ObservedHour, ...]
    tiers: tuple[ObservedTier, ...]
    tenants: tuple[ObservedTenant, ...]
    others: int

    @property
    def over_limit(self) -> int:
        """All tasks that started above a limit."""
        return sum(each.over_limit for each in self.hours)


class Verdict(Value):
    """How an installation is, in one sentence, with the causes.

    Attributes:
        level: ``trouble`` if somebody must act. ``busy`` if tasks wait for a place, or for a limit
            that somebody has set. Otherwise ``ok``.
        line: The sentence.
        causes: Further sentences, the most important first.
        ruled_out: What was checked and is not a cause, a sentence each.
        unchecked: What could not be checked, a sentence each.
        at: When the tables of Redis were read. None if they could not be read.
    """

    level: Literal["ok", "busy", "trouble"]
    line: str
    causes: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    at: datetime | None = None


class Status(Value):
    """The status of an installation.

    Attributes:
        at: Time of the look, by the server's clock.
        path: ``dispatch`` or ``gate``.
        redis: Address of its Redis, without a password.
        namespace: The setting ``namespace``.
        config_version: Version of the published tiers and limits.
        tiers_from: ``database``, ``settings``, or "" if nothing is published yet.
        tiers: Tiers in force.
        counts: Every other counter.
        queues: The hundred queues with the most waiting tasks. The first of them have
            tenants.
        queue_count: Number of all queues.
        running: Number of all running tasks.
        owners: Processes that run tasks, the most leases first: of 500 tasks, if more run.
        workers: The first thousand live worker processes that are announced, by name.
        replies: The workers that answered Celery, compared with these.
        unresolved: The hundred tenants for which the tier resolver failed last, in the last day.
            The newest is first.
        fairness_index: Jain's index of the slots that tenants hold against those to which they are
            entitled: 1 if each has its share. None if no two tenants compete.
        verdict: How the installation is.
    """

    at: datetime
    path: str
    redis: str
    namespace: str
    config_version: int
    tiers_from: str
    tiers: tuple[TierStatus, ...]
    counts: Mapping[str, int]
    queues: tuple[QueueStatus, ...]
    queue_count: int
    running: int
    owners: tuple[OwnerStatus, ...]
    workers: tuple[WorkerStatus, ...]
    replies: WorkerReplies
    unresolved: tuple[UnresolvedTenant, ...]
    fairness_index: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between tables in Redis that must agree.

    Attributes:
        check: The name of the check that found it, such as ``slot_without_task``.
        key: The key in Redis, without the prefix of the installation.
        row: The row in it, such as a lease or a queue. "" is the whole key.
        problem: What is wrong and what follows from it.
        repaired: What a repair did. "" if nothing was repaired.
        advice: What an operator does next. "" if nothing is left to do.
    """

    check: str
    key: str
    row: str
    problem: str
    repaired: str
    advice: str


class Check(Value):
    """The findings of a check of an installation.

    Attributes:
        findings: Every difference, each once.
        keys: How many keys were compared.
    """

    findings: tuple[Finding, ...]
    keys: int


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


class PublishedTier(Value):
    """The published tier of a tenant.

    Attributes:
        tenant: The tenant.
        tier: Name of its tier, or None if the publication was cleared.
        until: Time when the tier ends, or None if it holds until somebody changes it.
    """

    tenant: str
    tier: str | None
    until: datetime | None


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


class Purged(Value):
    """The number of a tenant's waiting tasks that were cancelled."""

    tenant: str
    cancelled: int


class Requeued(Value):
    """A dead letter that waits again."""

    task_id: str
    queue: str


@dataclass(frozen=True, slots=True)
class TaskLimit:
    """One of the limits of a task, with the numbers that apply now.

    Attributes:
        key: Key of the limit. The tenant's own limit has the key of its tier limit.
        concurrency: Tasks at once. None is unlimited, with 0 nothing starts.
        local: Tasks at once in one process, if it is a queue's limit. None is unlimited.
        rates: ``(starts, period_ms)`` each.
        throttle: ``(starts, period_ms)``, evenly spaced, or None if there is none.
        on_limit: Action on a task above the limit: ``wait``, ``reschedule`` or ``drop``.
        held: Live leases of the key.
        blocked_by: Why it blocks the task, as ``reason`` of a :class:`Blocker`. "" if it does not.
        in_force: The concurrency, and the reasons for it.
    """

    key: str
    concurrency: int | None
    local: int | None
    rates: tuple[tuple[int, int], ...]
    throttle: tuple[int, int] | None
    on_limit: str
    held: int
    blocked_by: str
    in_force: LimitInForce


@dataclass(frozen=True, slots=True)
class Blocker:
    """A limit that keeps a task from starting.

    Attributes:
        key: Key of the limit. The tenant's own limit has the key of its tier limit.
        reason: ``concurrency``, ``rate`` (or throttle), ``paused``, ``cool-down``, or ``local`` for
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


class Explanation(Value):
    """The place of a task, and why it does not start.

    Attributes:
        task_id: Id of the task.
        task: Name of the task, or "" if its message has no name.
        key: Key of the charged tenant's tier limit, or ``_system``.
        queue: Queue of the task.
        state: ``waiting``, ``later`` (until its eta), ``running``, ``dead``, or ``parked`` (by a
            gate).
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
