"""What goes into the scheduler and what comes out of it.

The same values are the arguments and answers of the functions in ``store/lua/functions`` and of the
model that they are compared with.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from celery_fairness.util.durations import Milliseconds

#: The key of tasks without a tenant: one member of each ring, without a limit.
SYSTEM = "_system"


class Bounds(NamedTuple):
    """How many may wait, as the producer's settings say it.

    Attributes:
        default_tier: For a tier that is not known.
        of_tier: Of one tenant, where nobody has published tiers yet; None is any number.
        of_queue: In the queue; None is any number.
    """

    default_tier: str = "free"
    of_tier: int | None = None
    of_queue: int | None = None


class Waiting(NamedTuple):
    """One task that begins to wait.

    Attributes:
        queue: Where.
        tag: Its delivery tag, which no other message has; without a space.
        tenant: Who is charged, as written in keys; "" is a system task.
        service: "" unless each service counts apart.
        tier: The tenant's tier as the producer knows it, may be "".
        rank: 0 to 9; 9 goes first.
        cost: What the tenant is charged, before the weight.
        eta_ms: Server time before which it does not start; 0: none.
        message: What the broker keeps.
        kind: Name of the task as written in keys; "": the message does not say it in its headers.
        limits: Those beside the tier's, as one word (``config.limit_spec.write_limits``).
        expires_ms: Server time from which it does not start any more; 0: none.
        bounds: Over which it is refused; None: it was accepted before, or nothing is enforced.
        is_new: Its limits are the newest of their keys; False where it was accepted before.
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


class Full(NamedTuple):
    """A put was refused: too many wait.

    Attributes:
        key: Whose tasks: the key of the tenant's tier limit, or ``queue:QUEUE``.
        limit: How many may wait.
        waiting: How many do.
    """

    key: str
    limit: int
    waiting: int


class Said(enum.IntEnum):
    """What became of an override."""

    DONE = 1
    #: Its end is past: nothing was done.
    PAST = 0


class Put(enum.IntEnum):
    """What became of a put."""

    KNOWN = 0
    WAITS = 1
    WAITS_FOR_ITS_TIME = 2
    #: Nothing was put: the exchange has other bindings than the producer knew.
    BINDINGS_CHANGED = 3
    #: Nothing was put: another has taken the message out of its plain list.
    GONE = 4


class Claimed(NamedTuple):
    """One task that was leased to the process that asked.

    Attributes:
        lease: Its name, of this attempt alone.
        queue: Where it waited.
        attempt: Which claim of the task this is, from 1.
        key: Who is charged: the key of the tenant's tier limit, or ``_system``; and with commas the
            keys of its other limits.
        rank: Its rank.
        message: As it was put.
    """

    lease: str
    queue: str
    attempt: int
    key: str
    rank: int
    message: str

    @property
    def lane(self) -> str:
        """Where it waited, as the functions name it."""
        return f"{self.key} {self.rank} {self.queue}"


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim.

    Attributes:
        tasks: What may start now, in this order.
        sleep_ms: How long there is nothing more to ask, unless a bell rings; 0: ask again.
        passed: By queue, how many members at the beginning of its ring were passed over.
        epoch: When the memory that answered began, in ms.
    """

    tasks: tuple[Claimed, ...]
    sleep_ms: Milliseconds
    passed: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Passing:
    """What one claim leaves where it is, for reasons of its own process alone.

    Attributes:
        never: TaskFilter that it does not take.
        once: TaskFilter of which it takes one task at most.
        places: By queue, how many members of its ring the claim before has passed over: where a
            look goes on that one call could not finish.
        held: By key, how many slots of limits of queues this process holds.
        rooms: By queue, how many tasks it takes of its share; of other queues any number.
        lends: Of a queue without room it takes more where no queue with room has any.
        strict: A queue is served only if nothing may start in the queues before it.
    """

    never: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    rooms: Mapping[str, int] = field(default_factory=dict)
    lends: bool = False
    strict: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.never or self.once or self.places or self.held or self.rooms or self.strict
        )


class Outcome(NamedTuple):
    """A task that ended for good while nobody was there to write its result.

    Attributes:
        text: All of it, as it is kept: says which one was written.
        owner: The process that held it last; of what was dropped, the key of the limit that did.
        state: ``acked``: its lease ended; ``dead``: it is a dead letter, as its process died too
            often; ``unreadable``: it is one, as its message could not be read; ``dropped``: a limit
            refused it; ``cancelled``: somebody did; ``expired``: its expiry came while it waited.
        queue: Where it waited.
        tenant: Who was charged, as written in keys; "" is a system task.
        deaths: How often its process died after its body began, where that was counted.
        message: As it was put.
    """

    text: str
    owner: str
    state: str
    queue: str
    tenant: str
    deaths: int
    message: str


class Verdict(enum.Enum):
    """What became of a claimed task."""

    #: Its body runs.
    BEGUN = "begun"
    #: Its body runs and its message is acknowledged: it is never delivered again.
    ACKED = "acked"
    #: It ended.
    DONE = "done"
    #: It waits again, in its place.
    HEAD = "head"
    #: It waits again, behind all others.
    TAIL = "tail"
    #: Its process died: as HEAD, until that was too often.
    DIED = "died"
    #: Its message cannot be read: it is a dead letter.
    UNREADABLE = "unreadable"


class Settled(enum.IntEnum):
    """What a settle found."""

    #: The lease had ended: the verdict changed nothing.
    LATE = 0
    SETTLED = 1
    #: The lease had ended, and the task was taken out of its lane before it could run twice.
    WITHDRAWN = 2


class Settle(NamedTuple):
    """One end, as it is told to the scheduler.

    Attributes:
        lease: Whose.
        verdict: What became of the task.
        lane: Where it waited.
        begun: Its body may have begun; False: it has not, and its starts do not count.
    """

    lease: str
    verdict: Verdict
    lane: str
    begun: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """What a worker's settings say to a claim.

    Attributes:
        lease_ms: How long a lease lives without a renewal.
        enforcement: ``on``, ``observe`` or ``off``.
        default_tier: For a tier that is not known.
        default_limit: Of the default tier; None is unlimited.
        max_deliveries: Deaths after which a task goes to the dead letters; 0: never.
        fairness_by: What a task charges: ``tasks``, ``cost`` or ``runtime``.
        snooze_ms: How long a task waits at most that a limit puts back, where nobody knows when it
            may start.
        priority_scope: What a rank orders: the tasks of one ``tenant``, or of the whole ``queue``.
    """

    lease_ms: int = 15_000
    enforcement: str = "on"
    default_tier: str = "free"
    default_limit: int | None = 1
    max_deliveries: int = 5
    fairness_by: str = "tasks"
    snooze_ms: int = 30_000
    priority_scope: str = "tenant"
