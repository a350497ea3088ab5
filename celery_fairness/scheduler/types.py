"""The requests and answers of the scheduler, as plain values.

They are the arguments and answers of the functions in ``store/lua/functions``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from celery_fairness.util.durations import Milliseconds

T = TypeVar("T")

#: The key of tasks without a tenant. A queue treats them as one tenant without a limit.
SYSTEM = "_system"


class Bounds(NamedTuple):
    """The most waiting tasks, from the producer's settings.

    Attributes:
        default_tier: The tier that replaces an unknown one.
        of_tier: Most waiting tasks of one tenant, until tiers are published. None is unlimited.
        of_queue: Most waiting tasks in the queue. None is unlimited.
    """

    default_tier: str = "free"
    of_tier: int | None = None
    of_queue: int | None = None


class Waiting(NamedTuple):
    """One task to put.

    Attributes:
        queue: The task's queue.
        tag: The message's delivery tag, unique and without a space.
        tenant: The task's tenant, in the form that keys have. "" for a system task.
        service: The task's service. "" unless each service counts apart.
        tier: The tenant's tier in the message. "" if the message has none.
        rank: The priority, 0 to 9. Rank 9 goes first.
        cost: The cost for the tenant, before division by the weight.
        eta_ms: The server time before which the task must not start. 0 for none.
        message: The message.
        kind: The task's name, in the form that keys have. "" if the headers lack it.
        limits: Its limits without the tier's, as text
            (``celery_fairness.config.limit_spec.write_limits``).
        expires_ms: The server time from which the task must not start. 0 for none.
        bounds: The most waiting tasks. None if the task was accepted before, or nothing is
            enforced.
        is_new: Whether the numbers of its limits replace those of their keys. False if it was
            accepted before.
        task_id: The task's id, in the form that keys have. "" if the headers lack it.
        unique: Its unique key and what a duplicate does, as text
            (``celery_fairness.message.unique.Unique.text``). "" if it has none.
    """

    queue: str
    tag: str
    tenant: str = ""
    service: str = ""
    tier: str = ""
    rank: int = 0
    cost: float = 1.0
    eta_ms: int = 0
    message: str = ""
    kind: str = ""
    limits: str = ""
    expires_ms: int = 0
    bounds: Bounds | None = None
    is_new: bool = True
    task_id: str = ""
    unique: str = ""


class Existing(NamedTuple):
    """Nothing was put, because another task has the unique key.

    Attributes:
        task_id: The id of that task, in the form that keys have.
    """

    task_id: str


class Full(NamedTuple):
    """A put was rejected, because too many tasks wait.

    Attributes:
        key: The key that has too many: the tenant's tier limit, or ``queue:QUEUE``.
        limit: The most waiting tasks.
        waiting: The number of waiting tasks.
    """

    key: str
    limit: int
    waiting: int


class Put(enum.IntEnum):
    """The result of a put."""

    KNOWN = 0
    WAITS = 1
    WAITS_FOR_ITS_TIME = 2
    #: Nothing was put, because the bindings of the exchange have changed.
    BINDINGS_CHANGED = 3
    #: Nothing was put, because another process has taken the message out of its plain list.
    GONE = 4
    #: Nothing was put, because the messages of the queue stay in plain lists.
    STAYS = 5
    #: The task has ended with the error DuplicateTask, because another one has its unique key.
    DUPLICATE = 6


class Claimed(NamedTuple):
    """One task that a claim leased to the calling process.

    Attributes:
        lease: The lease, unique to this attempt.
        queue: The task's queue.
        attempt: The number of this claim of the task, from 1.
        key: The key of the tenant's tier limit, or ``_system``, and the keys of its other limits,
            joined by commas, each with what the task takes of it (``key_with_amounts``).
        rank: The task's priority.
        message: The message.
        waited_ms: The time since the task began to wait. None if it is not known.
        limit: The key of the last limit that was reported to reject it. "" if there is none.
        deaths: How often its process died after the body began.
    """

    lease: str
    queue: str
    attempt: int
    key: str
    rank: int
    message: str
    waited_ms: Milliseconds | None = None
    limit: str = ""
    deaths: int = 0

    @property
    def tag(self) -> str:
        """The task's delivery tag."""
        return self.lease.rsplit(".", 2)[0]


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim.

    Attributes:
        tasks: The tasks to start now, in this order.
        sleep_ms: The time until the next claim, unless a wake-up comes. 0 means claim again.
        passed: By queue, the number of tenants at its beginning that were skipped.
        epoch: The beginning of the Redis memory that answered, in ms.
        ring: The state of the rings of a partition, as ``rings.lua`` answers it.
    """

    tasks: tuple[Claimed, ...]
    sleep_ms: Milliseconds
    passed: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0
    ring: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkippedTasks:
    """Tasks that a claim skips for reasons of its own process.

    Attributes:
        never: Names of tasks that it does not take.
        once: Names of tasks of which it takes at most one.
        places: By queue, the number of tenants that the previous claim has skipped. This claim
            continues there.
        held: By key, the number of slots of queues' limits that this process holds.
        rooms: By queue, the number of tasks that its share allows. Other queues are unlimited.
        lends: Take more tasks than a queue's share if no queue below its share has any.
        strict: Take tasks of a queue only if nothing may start in the queues before it.
        spare: Lend no place if so many places are left.
    """

    never: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    rooms: Mapping[str, int] = field(default_factory=dict)
    lends: bool = False
    strict: bool = False
    spare: int = 0

    def __bool__(self) -> bool:
        return bool(
            self.never
            or self.once
            or self.places
            or self.held
            or self.rooms
            or self.strict
            or self.spare
        )


class Outcome(NamedTuple):
    """A task that ended while no worker ran it, so that its result is not written yet.

    ``state`` is one of these:

    - ``acked``: the lease of an acknowledged task ended
    - ``dead``: a dead letter, because the task's process died too often
    - ``unreadable``: a dead letter, because the message could not be read
    - ``dropped``: a limit rejected it
    - ``cancelled``: an operator cancelled it
    - ``expired``: it expired while it waited
    - ``unpublished``: a gate had parked it, and its broker rejected it ten times
    - ``duplicate``: another task had its unique key
    - ``replaced``: a newer task with its unique key replaced it

    Attributes:
        seq: The task's sequence number. A requeue gives the task another one.
        tag: The task's delivery tag.
        owner: The last process that held the task. If it was dropped, the key of the limit. If it
            was a duplicate or replaced, the id of the other task.
        state: The cause of its end.
        queue: The task's queue.
        tenant: The task's tenant, in the form that keys have. "" for a system task.
        deaths: How often its process died after the body began, if that was counted.
        message: The message.
    """

    seq: int
    tag: str
    owner: str
    state: str
    queue: str
    tenant: str
    deaths: int
    message: str

    @property
    def name(self) -> str:
        """The name of the outcome after the write."""
        return f"{self.seq} {self.tag}"


class Verdict(enum.Enum):
    """The end or the new state of a claimed task."""

    #: Its body runs.
    BEGUN = "begun"
    #: Its body runs and its message is acknowledged: it is never delivered again.
    ACKED = "acked"
    #: As ACKED, but only if its lease has not ended: its queue keeps a task that waits there again.
    TAKEN = "taken"
    #: It ended.
    DONE = "done"
    #: It ended, and its body failed.
    FAILED = "failed"
    #: It ended, and another message has its next attempt.
    RETRIED = "retried"
    #: It waits again, at its old position.
    HEAD = "head"
    #: It waits again, at the end of its lane.
    TAIL = "tail"
    #: Its process died. It waits like HEAD, or is a dead letter after too many deaths.
    DIED = "died"
    #: Its message cannot be read. It is a dead letter.
    UNREADABLE = "unreadable"
    #: A promoted task: its broker has the copy.
    SENT = "sent"
    #: A promoted task: its copy could not be published. It is promoted again after a pause.
    UNSENT = "unsent"
    #: A promoted task: its broker rejected the copy. It waits like UNSENT, or has failed.
    REJECTED = "rejected"


class Settled(enum.IntEnum):
    """The result of a settle."""

    #: The lease had ended, so nothing was changed.
    LATE = 0
    SETTLED = 1
    #: The lease had ended. The task was removed from its lane, so that it does not run twice.
    WITHDRAWN = 2


class Settle(NamedTuple):
    """One end to settle.

    Attributes:
        lease: The lease.
        verdict: The end or the new state of the task.
        begun: Whether its body may have begun. If False, its starts are given back.
    """

    lease: str
    verdict: Verdict
    begun: bool = True


class Renewal(NamedTuple, Generic[T]):
    """The result of a renewal of leases.

    Attributes:
        gone: Leases that are not held: expired, released or never taken.
        epoch: A number that changes if Redis may have lost its memory, for example after a restart
            or a failover. A renewal with another epoch registers missing leases again.
        entered: Missing leases that were registered again.
    """

    gone: tuple[T, ...]
    epoch: int
    entered: tuple[T, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a worker that a claim needs.

    Attributes:
        lease_ms: How long a lease lives without a renewal.
        enforcement: ``on``, ``observe`` or ``off``.
        default_tier: The tier that replaces an unknown one.
        default_limit: The concurrency of the default tier. None is unlimited.
        max_deliveries: Deaths after which a task goes to the dead letters. 0 means never.
        fairness_by: The cost of a task for its tenant: ``tasks``, ``cost`` or ``runtime``.
        snooze_ms: How long a rescheduled task waits if the time of its start is not known.
        priority_scope: The tasks that a priority orders: of one ``tenant``, or of the ``queue``.
        priority_aging_ms: The time after which a task counts as one of the highest priority. None
            if waiting time does not count.
        copies_ms: How long the copies of promoted tasks are remembered. None if the claim is not a
            promoter's.
        default_numbers: The other numbers of the default tier by name, in the form of a limit.
    """

    lease_ms: int = 15_000
    enforcement: str = "on"
    default_tier: str = "free"
    default_limit: int | None = 1
    max_deliveries: int = 5
    fairness_by: str = "tasks"
    snooze_ms: int = 30_000
    priority_scope: str = "tenant"
    priority_aging_ms: int | None = None
    copies_ms: int | None = None
    default_numbers: Mapping[str, Any] = field(default_factory=dict)
