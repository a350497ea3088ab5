"""The requests and answers of a limiter, and the state of a key, as plain values.

A rejection is not a failure. It uses no retry and prints no traceback. Its reason is an enum, which
no code compares as text.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from celery_fairness.config.limit_spec import keys_of_lease
from celery_fairness.message.headers import Copy
from celery_fairness.util.durations import Milliseconds
from celery_fairness.util.value import Value


class Reason(enum.Enum):
    """Why a limiter rejected an attempt."""

    AT_CONCURRENCY_LIMIT = "at_concurrency_limit"
    AT_RATE_LIMIT = "at_rate_limit"
    AT_THROTTLE = "at_throttle"
    PAUSED = "paused"
    COOLING_DOWN = "cooling_down"
    #: A newer copy of the same task is on the broker, or another copy has started.
    SUPERSEDED = "superseded"
    LIMITER_UNAVAILABLE = "limiter_unavailable"
    #: The limit is available, but other tasks have waited longer for it.
    BEHIND_OTHERS = "behind_others"
    #: This worker is at the limit of one worker. Another worker may start the task.
    AT_LOCAL_LIMIT = "at_local_limit"


@dataclass(frozen=True, slots=True)
class Lease:
    """Proof that one attempt of one task holds its slot.

    Attributes:
        id: Unique per attempt, not per task: a redelivered copy has another id. The part before an
            ``@`` is the worker that runs the body, for limits of one worker.
        key: The limit's key, such as ``tenant:42``. If it holds slots of several limits, their
            keys joined by commas, the tenant's tier first, each with what the task takes of it
            (``key_with_amounts``).
    """

    id: str
    key: str

    @property
    def keys(self) -> list[str]:
        """The key of each slot."""
        return keys_of_lease(self.key)

    @property
    def worker(self) -> str:
        """The worker that runs the body; "" if the id has none."""
        worker, named, _ = self.id.partition("@")
        return worker if named else ""


class Unresolved(NamedTuple):
    """The failures of the tier resolver for one tenant since the last report of a process.

    Attributes:
        failures: Their number.
        error: The type of the last error, such as ``OperationalError``. Its text may have a secret.
        age_ms: How long ago the last failure was.
    """

    failures: int
    error: str
    age_ms: int = 0


class Job(NamedTuple):
    """A task, for events.

    Attributes:
        id: The task's id.
        type: The task's name.
        queue: The queue of its message. "" if the message has none.
    """

    id: str
    type: str
    queue: str


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """One attempt's request for a slot of its tenant's tier and of each of its other limits.

    Attributes:
        lease: The lease to take.
        tenant: The task's tenant. "" for a system task, which has no tier limit.
        tier: The tier in this process's cache. A newer one in Redis replaces it.
        copy: The copy of the message. None if the producer set none.
        next_serial: The serial of the copy that a rejection would publish.
        limits: The other limits as text (``celery_fairness.config.limit_spec.write_limits``).
        job: The task, for events. None if no event is emitted.
        is_new: Whether the numbers of its limits replace those of their keys. False for a retry,
            or a copy that a rejection published.
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
        """The key of the tier's limit; "" for a system task."""
        return self.lease.keys[0] if self.tenant else ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Every slot is taken.

    Attributes:
        lease: The lease. The caller renews it, and releases it when the attempt ends.
        tier: The tier that was checked. "" for a system task.
        limit: The tier's concurrency. None is unlimited.
        held: The leases of the tier's key, including this one.
        over_limit: Whether it would have been rejected without ``enabled="observe"``.
        config_version: The version of the tier tables in Redis.
    """

    lease: Lease
    tier: str
    limit: int | None
    held: int
    over_limit: bool = False
    config_version: int = 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """No slot is taken, and only a counter has changed.

    Attributes:
        reason: Why it was rejected.
        retry_after_seconds: The time until no limit rejects it. None if it is not known, as for a
            task that waits for the end of a lease.
        tier, limit, held, config_version: As for :class:`Admitted`.
        key: The key of the limit that rejected it. "" if that is the tier's.
        action: The action for the task: ``wait``, ``reschedule`` or ``drop``. If several limits
            reject it, ``drop`` precedes ``reschedule``, which precedes ``wait``.
    """

    reason: Reason
    retry_after_seconds: float | None = None
    tier: str = ""
    limit: int | None = None
    held: int = 0
    config_version: int = 0
    key: str = ""
    action: str = "wait"


class Counted(enum.IntEnum):
    """What a report of used units found: COUNTED, ENDED (no such lease now), or OTHER_KEY."""

    COUNTED = 1
    ENDED = 0
    OTHER_KEY = -1


class Parking(enum.Enum):
    """The result of parking a task."""

    #: The limiter has it. The caller may acknowledge the old message.
    PARKED = 1
    #: Another copy of it waits or has started.
    SUPERSEDED = -2


#: The result of publishing a promoted task: its broker has the copy, the copy could not be
#: published, or the broker rejected it.
PromotionEnd: TypeAlias = Literal["sent", "unsent", "rejected"]


@dataclass(frozen=True, slots=True)
class Promoted:
    """A parked task that the caller must publish again.

    Attributes:
        copy: The copy of its message. Only this serial may be published. It is the name of the
            lease that keeps the task's slots for the copy.
        message: The parked message.
        waited_ms: How long ago it was first parked. None if that is not known.
        limit: The key of the limit for which it waited. "" if there was none.
    """

    copy: Copy
    message: str
    waited_ms: Milliseconds | None = None
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Promotion:
    """The parked tasks that a worker must publish.

    Attributes:
        tasks: The tasks, in their fair order.
        sleep_seconds: The time after which to promote again without a wake-up.
    """

    tasks: tuple[Promoted, ...]
    sleep_seconds: float


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease, for ``inspect``.

    Attributes:
        id: The lease's id.
        expires_in_seconds: The time until it ends, unless it is renewed.
        owner: The process that holds a claimed task. At a gate, the worker.
        queue: The task's queue. "" if its state is ``sent``.
        state: The state of a claimed task: ``claimed``, ``begun`` or ``acked``. That of a parked
            task that goes back to its broker: ``promoted``, then ``sent``.
        task: The task's name, in the form that keys have.
        charged: The key of a claimed task's tenant, ``_system`` without one.
        task_id: The task's id, in the form that keys have. "" if the message has none, or if the
            lease was registered again after a loss of memory.
        held_seconds: The time for which it has held its slot. None if it is not known.
        usual_seconds: How long recent tasks of the same name held their slots. None if it is not
            known.
        slots: The slots of the key that it takes.
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
    slots: int = 1


@dataclass(frozen=True, slots=True)
class WaitingLane:
    """The waiting tasks of one tenant in one queue with one priority.

    Attributes:
        queue: The queue. "" if gates have parked the tasks.
        rank: Their priority, 9 first.
        tasks: Their number.
    """

    queue: str
    rank: int
    tasks: int


@dataclass(frozen=True, slots=True)
class WaitedLimit:
    """A limit at which tasks of one queue wait. A key may have several such limits.

    A task with several limits waits at one of them, and only that limit counts it. A task whose
    lane no claim has reached yet is not counted.

    Attributes:
        queue: The queue of the tasks. "" if gates have parked them.
        numbers: The numbers of the limit by name. A rate has ``(starts, period_ms)`` for each of
            its windows.
        state: ``exhausted``, ``paused``, ``cool-down``, or ``available``: the next claim checks it.
        tenants: The number of tenants that wait, counted once for each group of lanes.
        tasks: The number of waiting tasks. None if there are too many lanes to count them.
    """

    queue: str
    numbers: Mapping[str, Any]
    state: str
    tenants: int
    tasks: int | None


class KeyHolds(Value):
    """The holds of a key: its pause and its cool-down. They act independently of its limits.

    Attributes:
        key: The key.
        paused: Whether the key is paused, so that none of its tasks start.
        cool_down_seconds: The rest of the cool-down, in which none of its tasks start. 0 if there
            is none.
        pause_seconds: The rest of the pause. None if it lasts until an operator resumes the key, or
            if there is none.
        paused_until: The end of the pause, by the server's clock.
        paused_since: The beginning of the pause, by the server's clock. None if there is none.
        paused_by: The person who paused it. "" if it is not known.
        pause_of: The paused key if it is another one: the key of all services of the tenant.
        cools_until: The end of the cool-down, by the server's clock. None if there is none.
        reported_left: How many more starts are free, as an API has reported. None if no report
            holds.
        reported_until: Until when that holds, by the server's clock. None likewise.
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
    reported_left: int | None = None
    reported_until: datetime | None = None

    @property
    def on_hold(self) -> bool:
        """Whether nothing may start."""
        return self.paused or self.cool_down_seconds > 0


class KeyLeases(NamedTuple):
    """The live leases of a key.

    Attributes:
        held: Their number.
        first: The first hundred of them, the oldest at the top.
    """

    held: int
    first: tuple[HeldLease, ...]
