"""What a limiter is asked and what it answers: values only.

A refusal is not a failure: it spends no retry and makes no traceback. Reasons are an enum and are
never matched as text.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from celery_fairness.message.headers import Copy
from celery_fairness.util.value import Value


class Reason(enum.Enum):
    """Why a limiter refused."""

    AT_CONCURRENCY_LIMIT = "at_concurrency_limit"
    AT_RATE_LIMIT = "at_rate_limit"
    AT_THROTTLE = "at_throttle"
    PAUSED = "paused"
    COOLING_DOWN = "cooling_down"
    #: A newer copy of the same task is on the broker, or another copy has started.
    SUPERSEDED = "superseded"
    LIMITER_UNAVAILABLE = "limiter_unavailable"
    #: It may start, but others wait for the same limit since longer.
    BEHIND_OTHERS = "behind_others"
    #: This worker runs as many as one worker may; another may start it.
    AT_LOCAL_LIMIT = "at_local_limit"


@dataclass(frozen=True, slots=True)
class Lease:
    """Proof that one attempt of one task holds its slot.

    Attributes:
        id: Unique per attempt, never per task: a redelivered copy has another. What stands before
            an ``@`` is the worker whose body it is, for limits of one worker.
        key: The limit's key, such as ``tenant:42``; with commas the keys of all limits whose slots
            it holds, that of the tenant's tier first.
    """

    id: str
    key: str

    @property
    def keys(self) -> list[str]:
        """The key of each slot."""
        return self.key.split(",")

    @property
    def worker(self) -> str:
        """Whose body it is; "" where it does not say."""
        worker, named, _ = self.id.partition("@")
        return worker if named else ""


def slots_of(leases: Iterable[Lease]) -> list[tuple[Lease, str]]:
    """Return every slot of ``leases``, as the lease and the key."""
    return [(lease, key) for lease in leases for key in lease.keys]


class Job(NamedTuple):
    """A task as events name it.

    Attributes:
        id: Its id.
        type: Its name.
        queue: Through which its message came, "" where that says none.
    """

    id: str
    type: str
    queue: str


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """One attempt that asks for a slot of its tenant's tier, and one of each of its other limits.

    Attributes:
        lease: The lease to take.
        tenant: Who is charged; "" is a system task, which has no tier's limit.
        tier: The tier as this process knows it; news in Redis win over it.
        copy: Which copy of the message asks; None where the producer said nothing.
        next_serial: Which copy a refusal would publish.
        limits: Those beside the tier's, as one word (``celery_fairness.message.limits.word_of``).
        job: Whom events name; None: nothing is told of it.
        is_new: Its limits are the newest of their keys; False for a retry, or a copy that a
            rejection published.
    """

    lease: Lease
    tenant: str
    tier: str
    copy: Copy | None = None
    next_serial: str = ""
    limits: str = ""
    job: Job | None = None
    is_new: bool = True

    @property
    def tier_key(self) -> str:
        """The key of the tier's limit, "" of a system task."""
        return self.lease.keys[0] if self.tenant else ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Every slot is taken.

    Attributes:
        lease: To be renewed, and released when the attempt ends.
        tier: The tier that was judged by, "" of a system task.
        limit: Its concurrency; None is unlimited.
        held: Leases of the tier's key now, this one included.
        over_limit: A refusal was due, and was not made (``enabled="observe"``).
        news: Version of the tier tables in Redis.
        watched: Somebody watches what becomes of tasks: its end is to be told.
    """

    lease: Lease
    tier: str
    limit: int | None
    held: int
    over_limit: bool = False
    news: int = 0
    watched: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """No slot is taken; nothing was changed but a count.

    Attributes:
        reason: Why.
        retry_after_seconds: When all that refuses lets it through: its time comes, or the first
            lease in the way ends if nobody renews it. None where nothing is known.
        tier, limit, held, news: As for :class:`Admitted`.
        key: Of the limit beside the tier's that refused; "" where it was the tier's.
        action: What shall become of the task: ``wait``, ``reschedule`` or ``drop``. Of several
            limits that refuse, one that says ``drop`` decides, else one that says ``reschedule``.
    """

    reason: Reason
    retry_after_seconds: float | None = None
    tier: str = ""
    limit: int | None = None
    held: int = 0
    news: int = 0
    key: str = ""
    action: str = "wait"


class Parking(enum.Enum):
    """What became of a task that a gate wanted to park."""

    #: It waits in the limiter: its old message may be acknowledged.
    PARKED = 1
    #: It may start by now, or another limit says otherwise: acquire again.
    ASK_AGAIN = 0
    #: Another copy of it waits or has started.
    SUPERSEDED = -2
    #: What is parked came from another broker: it waits on its own.
    ELSEWHERE = -3


#: How a parked task ends.
Unparked: TypeAlias = Literal["published", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class Promoted:
    """A parked task that is to be published again.

    Attributes:
        copy: Which copy of its message is published; no other serial is.
        message: As it was parked.
        ended: It has expired, or was cancelled: whoever receives it shall end it.
    """

    copy: Copy
    message: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a worker was given to publish.

    Attributes:
        tasks: In the order in which they waited.
        sleep_seconds: When to ask again, though nothing rings; None: nothing is parked.
        elsewhere: What is parked came from another broker than the caller's.
    """

    tasks: tuple[Promoted, ...]
    sleep_seconds: float | None
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal found.

    Attributes:
        gone: Leases that are no longer held: expired, released or never taken.
        epoch: Changes when the limiter's memory may have been lost: a Redis that came back empty,
            or another server. Leases renewed with another epoch are entered again where they are
            missing.
        entered: Those that were missing, and were entered again.
    """

    gone: tuple[Lease, ...]
    epoch: int
    entered: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease as inspection shows it.

    Attributes:
        id: Its name.
        expires_in_seconds: Until it ends unless renewed.
        owner: Of a claimed task the process that holds it; at a gate its worker.
        queue: Of a claimed task: where it waited.
        state: Of a claimed task: ``claimed``, ``begun`` or ``acked``.
        task: Of a claimed task: its name, as it is written in keys.
        charged: Of a claimed task: the key of its tenant, ``_system`` without one.
        task_id: Its id, "" where its message says none, or a gate's lease names none.
        held_seconds: For how long it has held its place; None where that is not known, as of the
            tier's slots at a gate.
        usual_seconds: Of a claimed task: how long those of its name held theirs lately; at a gate,
            how long the key's last slots were held. None where nothing was known of that.
    """

    id: str
    expires_in_seconds: float
    owner: str = ""
    queue: str = ""
    state: str = ""
    task: str = ""
    charged: str = ""
    task_id: str = ""
    held_seconds: float | None = None
    usual_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class WaitingLane:
    """Tasks of one tenant that wait in one queue with one rank."""

    queue: str
    rank: int
    tasks: int


@dataclass(frozen=True, slots=True)
class WaitedLimit:
    """A limit at which tasks of one queue wait; of one key there may be several.

    A task with several limits waits at one of them. It is not counted here where it waits at
    another, nor before a claim has met its lane.

    Attributes:
        queue: Where they wait.
        concurrency: Of the key at once; None is unlimited.
        rates: ``(starts, period_ms)`` each.
        throttle: ``(starts, period_ms)``, spaced evenly; None where there is none.
        state: ``closed``, ``paused``, ``cool-down``, or ``open``: the next claim looks at it.
        tenants: How many have something there, once for each group of lanes.
        tasks: How many wait; None where there are too many lanes to count them.
    """

    queue: str
    concurrency: int | None
    rates: tuple[tuple[int, int], ...]
    throttle: tuple[int, int] | None
    state: str
    tenants: int
    tasks: int | None


class KeyStops(Value):
    """Whether anything may start under a key of limits, whatever these say.

    Attributes:
        key: The key.
        paused: Nothing starts until somebody resumes it, or for ``pause_seconds``.
        cool_down_seconds: Nothing starts for so long; 0: it does not cool down.
        pause_seconds: How long it is paused; None: until somebody resumes it, or not at all.
        paused_until: The same as a time of the server's clock.
        paused_since: When the pause began, likewise; None: it is not paused.
        paused_by: The person who paused it; "" where that is not known.
        pause_of: The key that is paused, where it is another: that of all services of a tenant.
        cools_until: When the cool-down ends, a time of the server's clock; None: there is none.
    """

    key: str
    paused: bool
    cool_down_seconds: float
    pause_seconds: float | None = None
    paused_until: datetime | None = None
    paused_since: datetime | None = None
    paused_by: str = ""
    pause_of: str = ""
    cools_until: datetime | None = None

    @property
    def stopped(self) -> bool:
        """Whether nothing may start."""
        return self.paused or self.cool_down_seconds > 0


@dataclass(frozen=True, slots=True)
class KeyOverride:
    """Numbers that people put in the place of a key's own, for a time or until they clear them.

    Attributes:
        key: The key.
        numbers: Of ``concurrency``, ``rate`` and ``throttle`` those that it says, as the Open Job
            Spec writes them; None is unlimited. What it does not say is as the tasks have it.
        expires_at: When it ends, Unix seconds of the server's clock; None: when it is cleared.
        reason: As it was given.
        author: Who gave it.
    """

    key: str
    numbers: dict[str, Any]
    expires_at: float | None = None
    reason: str | None = None
    author: str | None = None


@dataclass(frozen=True, slots=True)
class LimitState:
    """What a key holds now; a limiter fills the first five, ``Fairness.inspect`` the others.

    Attributes:
        key: The limit's key.
        tier: The tier it was judged by; "" of a key that is no tenant's.
        limit: Concurrency as it is judged now; None is unlimited, 0 paused. Of a
            queue's key that of its limit; of another that is no tenant's None: its numbers came
            with the tasks, see ``waited``.
        held: Live leases.
        leases: The first hundred of them, soonest end first.
        weight: The tenant's share among waiting tenants; None where the key is no tenant's.
        published: Whether a record of this tenant's tier is published.
        waiting: On the dispatch path: what it has waiting, by queue and rank.
        closed: It was found at its limit: no claim looks at it until something opens it.
        full_in: Queues in whose ring it is not: it is closed, or all that it has there is parked.
        judged_by: By which version of the news it was found closed; None where it is not closed,
            or will be judged anew by the next claim.
        waited: Of a key that is no tenant's: what waits at it, the first hundred.
        stops: Whether it is paused or cools down; None where that cannot be.
        override: Numbers that people put in the place of its own.
        parked: Tasks of a gate that wait at it in Redis.
        local_limit: Of a queue's key, or of one of its partitions: at once in one process; None is
            unlimited.
        own_number: A tenant's number is published for it alone; else it is that of its tier.
        entitled: That number: its concurrency without pauses and overrides; None is unlimited.
        unknown: Why the tenant's tier is unknown, as where its resolver fails; "" where it is
            known. ``tier`` is "" then, and ``limit`` and ``weight`` None, as far as no operator
            set a number.
    """

    key: str
    tier: str
    limit: int | None
    held: int
    leases: tuple[HeldLease, ...]
    weight: float | None = None
    published: bool = False
    waiting: tuple[WaitingLane, ...] = ()
    closed: bool = False
    full_in: tuple[str, ...] = ()
    judged_by: int | None = None
    waited: tuple[WaitedLimit, ...] = ()
    stops: KeyStops | None = None
    override: KeyOverride | None = None
    parked: int = 0
    local_limit: int | None = None
    own_number: bool = False
    entitled: int | None = None
    unknown: str = ""

    @property
    def known(self) -> bool:
        """Whether anything at all is kept of this key."""
        stopped = self.stops is not None and self.stops.stopped
        said = stopped or self.override is not None or self.parked
        # A limit without a tier is that of a queue.
        of_queue = not self.tier and not self.unknown and self.limit is not None
        return bool(self.held or self.waiting or self.waited or self.published or said or of_queue)
