"""The state of a key in the form of the Open Job Spec (10.1 and 10.3).

``model_dump(mode="json")`` is the object of the specification's routes. Times are by the server's
clock, RFC 3339 in UTC. Periods are ISO 8601.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import SerializerFunctionWrapHandler, computed_field, model_serializer

from celery_fairness.config.numbers import numbers_of, values_of
from celery_fairness.control.key.limit_in_force import LimitInForce
from celery_fairness.limiter.types import HeldLease, KeyHolds, WaitedLimit, WaitingLane
from celery_fairness.util.value import Value

#: The fields of :class:`KeyFacts` that the Open Job Spec has.
OF_SPEC = ("key", "concurrency", "rate", "throttle", "waiting_count", "override")


class Concurrency(Value):
    """The concurrency of a key.

    Attributes:
        limit: Tasks at once. With 0 nothing starts. None is unlimited or unknown. It is unknown if
            the tasks bring it, or if the tenant's tier is ``unknown``.
        active: Slots that live leases take. A lease takes one, or as many as its task has
            ``slots``.
        available: Further tasks that this number lets start. None is unlimited.
    """

    limit: int | None
    active: int

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated property
    @property
    def available(self) -> int | None:
        """See above."""
        return None if self.limit is None else max(0, self.limit - self.active)


class RateState(Value):
    """A sliding window of starts.

    Attributes:
        limit: Starts in any window.
        period: Length of the window.
        current_count: Starts in the window that ends now.
        window_resets_at: If the window is full, the time when one more start fits. Otherwise the
            time when the first start leaves it, or now if it is empty. Never before the end of a
            cool-down or a pause. None if the key is paused until somebody resumes it.
    """

    limit: int
    period: str
    current_count: int
    window_resets_at: datetime | None


class ThrottleState(Value):
    """A throttle: evenly spaced starts.

    Attributes:
        limit: Starts in a period.
        period: Length of the period.
        next_allowed_at: Time of the next start, now or later. A cool-down and a pause count as for
            a rate.
    """

    limit: int
    period: str
    next_allowed_at: datetime | None


class Override(values_of("override", Value)):  # type: ignore[misc]  # mypy cannot read the table
    """An operator's numbers, which replace the key's own.

    A field without a number is absent from its dump. None is unlimited.

    Its numbers are those of the table ``celery_fairness.config.numbers``, in the form of JSON.

    Attributes:
        expires_at: Time when it ends. None if it lasts until it is cleared.
        reason: The operator's reason.
        by: Name of the operator.
        pattern: The pattern that it has been set for, such as ``api.*``. None, and absent from the
            dump, if it has been set for the key itself.
    """

    expires_at: datetime | None
    reason: str | None = None
    by: str | None = None
    pattern: str | None = None

    @property
    def numbers(self) -> dict[str, Any]:
        """The overridden numbers by name."""
        names = numbers_of("override")
        return {name: getattr(self, name) for name in names if name in self.model_fields_set}

    @model_serializer
    def _dump_given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}


class SavedForTask(Value):
    """The slots and units that a key saves for a task that takes several, the first that waits.

    Attributes:
        slots: Slots that no other task gets. 0 if the key saves none.
        units: Units of the rate, likewise.
        tenant: Key of the tenant of the task.
        ends_in_seconds: Time until the saving ends, if the task has not started. None while slots
            gather.
    """

    slots: int
    units: int
    tenant: str
    ends_in_seconds: float | None = None


class KeyFacts(Value):
    """All facts of a key: its limits, leases and waiting tasks. ``--json`` prints them.

    Attributes:
        key: The key in its form in Redis. A hash replaces a tenant that is not allowed in a key.
        concurrency: Running tasks and their limit.
        rate: The rate, or of several the one nearest to its limit. None, and absent from the dump,
            if there is none.
        throttle: Likewise.
        waiting_count: Waiting tasks of the key in all places, without scheduled ones.
        override: The operator's numbers. Absent from the dump if there are none.
        in_force: The number of ``concurrency`` and the reasons for it.
        delayed_count: Its tasks that wait for their time, if the key is a tenant's or a queue's.
            None for another key.
        known: Whether Redis has anything about the key, or this app declares it.
        tier: The tier whose numbers apply. "" if it is ``unknown`` or the key is no tenant's.
        unknown: Why the tenant's tier is unknown, for example because its resolver failed. "" if it
            is known or the key is no tenant's.
        burst: Of a tenant: its concurrency while a claim finds nothing else. None is no burst.
        weight: The tenant's share among waiting tenants. None if unknown or the key is no tenant's.
        published: Whether a record of this tenant's tier is published.
        local_limit: Tasks at once in one process, if the key is a queue's. None is unlimited.
        leases: The first hundred, the oldest first.
        ended_unswept: Leases whose time is over and that no call has ended yet. They do not count
            as active, but keep their slots until then.
        waiting: The waiting tasks of a tenant on the dispatch path, by queue and priority.
        waited: The first hundred limits of a key that claims found exhausted, each with its waiting
            tasks.
        holds: Its pause and cool-down.
        blocked_by: Why no task of the key starts now: ``paused``, ``cool-down``, ``concurrency``,
            ``rate`` or ``throttle``. "" if one may start.
        opens_in_seconds: The time until ``blocked_by`` ends by itself. None if that needs the end
            of a lease or an operator, or if nothing is in the way.
        at_limit: Whether a claim found the tenant at its limit, and no slot became free since.
        full_in: Queues in which the tenant is blocked. "" is that of parked tasks.
        checked_by: Version of the published tiers by which the tenant was found at its limit. None
            if it is not, or if the next claim checks it again.
        saving: What the key saves for a task. None if it saves nothing.
        limit: Its concurrency.
        held: The slots that its live leases take.
    """

    key: str
    concurrency: Concurrency
    rate: RateState | None = None
    throttle: ThrottleState | None = None
    waiting_count: int
    override: Override | None = None
    in_force: LimitInForce
    delayed_count: int | None = None
    known: bool
    tier: str = ""
    unknown: str = ""
    burst: int | None = None
    weight: float | None = None
    published: bool = False
    local_limit: int | None = None
    leases: tuple[HeldLease, ...]
    ended_unswept: int = 0
    waiting: tuple[WaitingLane, ...] = ()
    waited: tuple[WaitedLimit, ...] = ()
    holds: KeyHolds
    blocked_by: str = ""
    opens_in_seconds: float | None = None
    at_limit: bool = False
    full_in: tuple[str, ...] = ()
    checked_by: int | None = None
    saving: SavedForTask | None = None

    @computed_field(repr=False)  # type: ignore[prop-decorator]  # as above
    @property
    def limit(self) -> int | None:
        """Its concurrency."""
        return self.concurrency.limit

    @computed_field(repr=False)  # type: ignore[prop-decorator]  # as above
    @property
    def held(self) -> int:
        """The slots that its live leases take."""
        return self.concurrency.active

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = dump(self)
        # As the Open Job Spec has it: what a key does not have is left out.
        absent = [name for name in OF_SPEC if dumped[name] is None]
        return {name: value for name, value in dumped.items() if name not in absent}


class Inspection(KeyFacts):
    """The state of a key, with the facts as attributes.

    ``str()`` of it has a line for the key, its limit in force, and each lease. The dump has only
    the fields of the Open Job Spec, up to ``override``.
    """

    @model_serializer
    def _dump(self) -> dict[str, Any]:  # type: ignore[override]  # plain: it has other fields
        values = {name: getattr(self, name) for name in OF_SPEC}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        head = self.key + (f": tier {self.tier}" if self.tier else "")
        return "\n".join(
            [
                f"{head}, held {self.held}, waiting {self.waiting_count}",
                *self.in_force.lines,
                *(_lease_line(each) for each in self.leases),
            ]
        )

    @property
    def facts(self) -> KeyFacts:
        """All facts of the key, whose dump has all of them."""
        return KeyFacts(**{name: getattr(self, name) for name in KeyFacts.model_fields})


def _lease_line(lease: HeldLease) -> str:
    """Return a line with the task that holds a lease, and its age if known."""
    task = " ".join(filter(None, (lease.task, lease.task_id))) or f"lease {lease.id}"
    held = "" if lease.held_seconds is None else f" for {lease.held_seconds:.1f} s"
    return f"held by {task}{held}{f' ({lease.state})' if lease.state else ''}"


class Pagination(Value):
    """The position of a page in the whole.

    Attributes:
        total: Number of entries on all pages.
        page: Number of this page, from 1.
        per_page: Most entries on a page.
    """

    total: int
    page: int
    per_page: int


class InspectionPage(Value):
    """One page of the known keys, by name."""

    items: tuple[Inspection, ...]
    pagination: Pagination


class ReportedLimit(Value):
    """What the headers of an answer said about the limit of an API, and what follows.

    Attributes:
        key: The key.
        is_read: Whether they said anything. If not, nothing was stored, and the rest is empty.
        cool_down_seconds: For how long nothing starts. 0 if tasks may start.
        left: How many more starts are free by all reports. None without such a report.
        until: Until when that holds, by the server's clock. None likewise.
    """

    key: str
    is_read: bool
    cool_down_seconds: float = 0.0
    left: int | None = None
    until: datetime | None = None


class ChangedHolds(KeyHolds):
    """The pause and cool-down of a key after an operator changed it.

    Attributes:
        known: Whether anything was known of the key before. False is either a key without a task
            so far, or a typing mistake.
    """

    known: bool
