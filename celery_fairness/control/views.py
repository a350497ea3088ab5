"""What is shown of an installation: values only.

What a method of ``Fairness`` returns is a :class:`Value`; the rows within one, of which there may
be many, are dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_fairness.control.limit_in_force import LimitInForce
from celery_fairness.limiter.types import HeldLease, KeyStops
from celery_fairness.util.value import Value


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue of the dispatch path.

    Attributes:
        queue: Its name; of the totals "".
        waiting: Tasks in lanes.
        later: Tasks that wait for their time.
        ring: Tenants that could start something.
        full: Tenants with something waiting of which nothing may start: they are at their limit, or
            all their lanes are parked.
        behind_full: Tasks of those; None where there are too many tenants to ask.
        running: Claimed tasks.
        dead: Dead letters.
        virtual_time: Of the ring; None in the totals.
    """

    queue: str
    waiting: int
    later: int
    ring: int
    full: int
    behind_full: int | None
    running: int
    dead: int
    virtual_time: float | None


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """One process that claims, and how many leases it holds."""

    owner: str
    leases: int


class WorkerStatus(Value):
    """One worker process that lives.

    Attributes:
        name: As Celery calls it, ``celery@web-3``.
        pid: Of its main process.
        path: ``dispatch`` or ``gate``.
        enforcement: ``on``; ``observe`` or ``off``: the worker starts tasks above their limits.
    """

    name: str
    pid: int
    path: str
    enforcement: str

    @property
    def announced(self) -> str:
        """The same as the worker announces it; :meth:`model_validate_json` reads it."""
        return self.model_dump_json()


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier in force; ``concurrency`` None is unlimited, ``refused`` as ``refusals()``."""

    tier: str
    concurrency: int | None
    weight: float
    queue_class: str
    refused: int


class TenantLimit(Value):
    """A tenant at a glance, for a page that shows many.

    Attributes:
        key: Of its tier limit.
        tier: The tier that it is judged by.
        in_force: How many of its tasks may run at once, and why.
        held: Live leases.
        waiting: Tasks that wait in Redis: on the dispatch path all, at a gate those that it parked.
            Tasks that wait for their time are not counted.
    """

    key: str
    tier: str
    in_force: LimitInForce
    held: int
    waiting: int


class KeyRefusals(Value):
    """How often limits of a key have refused.

    Attributes:
        key: The key; ``_other`` where there are too many to tell them apart.
        strategy: By which number: ``concurrency``, ``rate``, ``throttle``, ``paused`` or
            ``cool-down``.
        total: Since the installation's memory began.
    """

    key: str
    strategy: str
    total: int


@dataclass(frozen=True, slots=True)
class WaitCount:
    """Tasks that waited about as long.

    Attributes:
        below_seconds: They waited less, and half of it or more.
        tasks: How many.
    """

    below_seconds: float
    tasks: int


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """What claims and gates did in a minute in one queue with tenants of one tier.

    A wait is from the put, or the time for which it was put off, to the first claim; a gate knows
    of none. A task is quiet where nothing of its tenant waited in the queue before it.

    Attributes:
        queue: Its name; ``_other`` where there are too many to tell them apart, "" where a gate's
            message named none.
        tier: Its name; "" of system tasks.
        started: Tasks that were claimed, or that a gate let through.
        refused: Tenants that were found at their tier's limit, as ``refusals()`` counts them.
        quiet: How long quiet tasks had waited which started, the shortest waits first.
        noisy: The same of those that waited behind their tenant's own.
    """

    queue: str
    tier: str
    started: int
    refused: int
    quiet: tuple[WaitCount, ...] = ()
    noisy: tuple[WaitCount, ...] = ()


class Minute(Value):
    """One minute: when it began, by the server's clock, and what was done in it."""

    at: datetime
    counts: tuple[MinuteCount, ...]


class QueueLimit(Value):
    """The limit of a queue.

    Attributes:
        queue: Which.
        key: Of it as a whole; a partition's has ``:`` and its values behind that.
        source: Whose numbers they are: ``people``, who set them, or the ``settings``; "" where
            neither says any.
        partitioned: They are of each partition.
        global_limit: At once over all processes; None is unlimited, 0 pauses.
        local_limit: At once in one process, likewise.
        rate: Starts in any window, as the Open Job Spec writes it; None is unlimited.
        throttle: The same, evenly spaced.
        on_limit: What becomes of a task over it.
        held: Live leases of the queue as a whole.
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


class ChangedStops(KeyStops):
    """What stops a key after an operator changed it.

    Attributes:
        known: Whether anything was known of the key before. A key can be paused before its first
            task; a typing mistake looks the same.
    """

    known: bool

    @classmethod
    def of(cls, stops: KeyStops, *, known: bool) -> ChangedStops:
        """Return ``stops`` with ``known``."""
        return cls(**dict(stops), known=known)


class QueueState(Value):
    """A queue: its tasks and its limit.

    Attributes:
        queue: The name of the queue.
        tasks: What waits and runs; None on a broker that does not claim fairly.
        limit: The limit of the queue; None if it has none.
    """

    queue: str
    tasks: QueueStatus | None
    limit: QueueLimit | None


class Rejections(Value):
    """How often limits rejected a start, since the installation's memory began.

    Attributes:
        tiers: By the name of the tier.
        keys: By key and number; of more than a thousand keys of tenants, and as many others, the
            later ones are counted as ``_other``.
    """

    tiers: Mapping[str, int]
    keys: tuple[KeyRefusals, ...]


class Status(Value):
    """An installation at a glance.

    Attributes:
        path: ``dispatch`` or ``gate``.
        redis: Where its Redis is, without a password.
        namespace: The setting.
        news: Version of what was published.
        tiers_from: ``database``, ``settings``, or "" where nothing was published yet.
        tiers: Those in force.
        counts: Every other counter.
        queues: Of the dispatch path, by name.
        total: Of all queues; a tenant of two queues counts twice.
        owners: Of the dispatch path, who holds most first.
        workers: The first thousand processes that live, by name.
        notes: What was left out to stay within bounds.
    """

    path: str
    redis: str
    namespace: str
    news: int
    tiers_from: str
    tiers: tuple[TierStatus, ...]
    counts: Mapping[str, int]
    queues: tuple[QueueStatus, ...] = ()
    total: QueueStatus | None = None
    owners: tuple[OwnerStatus, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    notes: tuple[str, ...] = ()


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
        task_id: Its id; the delivery tag where its message says none.
        task: Its name; "" where its message says none.
        queue: In which it was.
        tenant: Who was charged, as written in keys; "" is a system task.
        attempts: How often it was claimed.
        deaths: How often its process died after its body began.
    """

    task_id: str
    task: str
    queue: str
    tenant: str
    attempts: int
    deaths: int


class PublishedTier(Value):
    """The tier of a tenant that was set.

    Attributes:
        tenant: The tenant.
        tier: The name of its tier; None if what was published is forgotten.
        until: Until when the tier holds; None if it holds until somebody changes it.
    """

    tenant: str
    tier: str | None
    until: datetime | None


class Cancelled(Value):
    """What became of a task that was to be cancelled.

    Attributes:
        task_id: Its id.
        state: ``cancelled``, or ``running``: it is not stopped.
        queue: In which it waited, or from which it was claimed.
        owner: The process that runs it; "" where it was cancelled.
    """

    task_id: str
    state: str
    queue: str
    owner: str = ""


class Purged(Value):
    """How many waiting tasks of a tenant were cancelled."""

    tenant: str
    cancelled: int


class Requeued(Value):
    """A dead letter that waits again."""

    task_id: str
    queue: str


@dataclass(frozen=True, slots=True)
class TaskLimit:
    """One of the limits of a task, as it is judged now.

    Attributes:
        key: Its key; the tenant's own is that of its tier.
        concurrency: At once; None is unlimited, 0 lets nothing start.
        local: At once in one process, of a queue's; None is unlimited.
        rates: ``(starts, period_ms)`` each.
        throttle: ``(starts, period_ms)``, spaced evenly; None where there is none.
        on_limit: What becomes of a task over it: ``wait``, ``reschedule`` or ``drop``.
        held: Leases of the key that live.
        closed: Why it keeps the task, as a :class:`Blocker` says it; "": it is open.
        in_force: The concurrency, and the reasons for it.
    """

    key: str
    concurrency: int | None
    local: int | None
    rates: tuple[tuple[int, int], ...]
    throttle: tuple[int, int] | None
    on_limit: str
    held: int
    closed: str
    in_force: LimitInForce


@dataclass(frozen=True, slots=True)
class Blocker:
    """A limit that keeps a task from starting.

    Attributes:
        key: Its key; the tenant's own is that of its tier.
        reason: ``concurrency``, ``rate`` (or throttle), ``paused``, ``cool-down``, or ``local``: a
            queue's limit of one process.
        held: Leases of the key that live; of ``local`` those of the process that has the fewest, as
            far as it runs something of the queue.
        limit: Its concurrency, or that of one process; None is unlimited.
        opens_in_seconds: When it opens by itself; None: when a lease ends, or a person says so.
        holders: The first hundred of the leases, soonest end first.
        ancestors: Of the tasks that hold them, by their ids, those that called the task, or called
            what called it: if one waits for the result, neither ends.
        starts_in_seconds: When it would let the task start if nothing else kept it, as far as what
            goes before says; None where that is not known.
        in_force: The concurrency, and the reasons for it; None of a queue's limit of one process.
    """

    key: str
    reason: str
    held: int
    limit: int | None
    opens_in_seconds: float | None = None
    holders: tuple[HeldLease, ...] = ()
    ancestors: tuple[str, ...] = ()
    starts_in_seconds: float | None = None
    in_force: LimitInForce | None = None


class Explanation(Value):
    """Where a task is, and why it does not run.

    Attributes:
        task_id: Its id.
        task: Its name; "" where its message says none.
        key: Who is charged: the key of the tenant's tier limit, or ``_system``.
        queue: In which it waits, waited or runs.
        state: ``waiting``, ``later`` (until its time), ``running``, ``dead``, or ``parked`` (at a
            limit of the gate).
        owner: The process that runs it, else "".
        due_in_seconds: How long until its time; None where it waits for none.
        ahead_in_lane: Tasks of its tenant, its priority and its limits that go before it; of a
            parked one, those of its tenant that wait at its limit since longer.
        ahead_in_ring: Tenants of its queue that have their turn before its tenant, of a parked one
            those at its limit; None where that is not in the ring: see ``blocked_by``.
        blocked_by: Which of its limits keep it; of one that a gate parked, that at which it waits.
            Empty: no limit keeps it. A worker that takes its queue, knows its name and is not at
            the ``rate_limit`` of that starts it when it is its turn: of those Redis knows nothing.
        starts_in_seconds: When a waiting task is expected to start; None where too little is known.
        limits: All limits of a task that waits, each as it is judged now: its tenant's first, that
            of its queue as a whole last.
        put_back_by: Key of the limit that has put it back until its time
            (``on_limit="reschedule"``); "": none has.
        not_enforcing: Workers that do not enforce limits; each may start the task above them.
    """

    task_id: str
    task: str
    key: str
    queue: str
    state: str
    owner: str = ""
    due_in_seconds: float | None = None
    ahead_in_lane: int | None = None
    ahead_in_ring: int | None = None
    blocked_by: tuple[Blocker, ...] = ()
    starts_in_seconds: float | None = None
    limits: tuple[TaskLimit, ...] = ()
    put_back_by: str = ""
    not_enforcing: tuple[WorkerStatus, ...] = ()
