"""The state of a key in the form of the Open Job Spec (10.1 and 10.3).

``model_dump(mode="json")`` is the object of the specification's routes. Other attributes are our
own. Times are by the server's clock, RFC 3339 in UTC. Periods are ISO 8601.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    computed_field,
    model_serializer,
)

from celery_fairness.control.keys import is_tenants
from celery_fairness.control.limit_in_force import LimitInForce
from celery_fairness.limiter.types import (
    HeldLease,
    KeyOverride,
    KeyStops,
    LimitState,
    WaitedLimit,
    WaitingLane,
)
from celery_fairness.util.value import Value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at_ms(unix_ms: int) -> datetime:
    """Return Unix milliseconds as a time, exactly."""
    return _EPOCH + timedelta(milliseconds=unix_ms)


class Concurrency(Value):
    """The concurrency of a key.

    Attributes:
        limit: Tasks at once. With 0 nothing starts. None is unlimited or unknown. It is unknown if
            the tasks bring it, or if the tenant's tier is ``unknown``.
        active: Live leases.
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


class Override(Value):
    """An operator's numbers, which replace the key's own.

    A field without a number is absent from its dump. None is unlimited.

    Attributes:
        concurrency: Tasks at once.
        rate: Starts in any window, in the form of the Open Job Spec.
        throttle: Evenly spaced starts, in the same form.
        expires_at: Time when it ends. None if it lasts until it is cleared.
        reason: The operator's reason.
        author: Name of the operator.
    """

    concurrency: int | None = None
    rate: dict[str, Any] | None = None
    throttle: dict[str, Any] | None = None
    expires_at: datetime | None
    reason: str | None = None
    author: str | None = None

    @classmethod
    def of(cls, override: KeyOverride) -> Override:
        """Return the override of a key."""
        values, ends = dict(override.numbers), override.expires_at
        values["expires_at"] = None if ends is None else at_ms(round(ends * 1000))
        notes = {"reason": override.reason, "author": override.author}
        values |= {name: text for name, text in notes.items() if text is not None}
        return cls(**values)

    @model_serializer(mode="wrap")
    def _dump_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _only(handler(self), self.model_fields_set)


class Inspection(Value):
    """The state of a key: its limits, leases and waiting tasks.

    ``str()`` of it has a line for the key, its limit in force, and each lease.

    Attributes:
        key: The key in its form in Redis. A hash replaces a tenant that is not allowed in a key.
        concurrency: Running tasks and their limit.
        rate: The rate, or of several the one nearest to its limit. None, and absent from the dump,
            if there is none.
        throttle: Likewise.
        waiting_count: Waiting tasks of the key in all places, without scheduled ones.
        override: The operator's numbers. Absent from the dump if there are none.
        in_force: The number of ``concurrency`` and the reasons for it. Not in the dump.
        state: All other facts about the key.
    """

    key: str
    concurrency: Concurrency
    rate: RateState | None = None
    throttle: ThrottleState | None = None
    waiting_count: int
    override: Override | None = None
    in_force: LimitInForce = Field(exclude=True)
    state: LimitState = Field(exclude=True, repr=False)

    @model_serializer(mode="wrap")
    def _dump_present(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        present = {name for name in type(self).model_fields if getattr(self, name) is not None}
        return _only(handler(self), present)

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
    def tier(self) -> str:
        """The tier whose numbers apply; "" if it is ``unknown`` or the key is no tenant's."""
        return self.state.tier

    @property
    def unknown(self) -> str:
        """Why the tenant's tier is unknown; "" if it is known or the key is no tenant's."""
        return self.state.unknown

    @property
    def limit(self) -> int | None:
        """Its concurrency."""
        return self.concurrency.limit

    @property
    def local_limit(self) -> int | None:
        """Tasks at once in one process, if the key is a queue's; None is unlimited."""
        return self.state.local_limit

    @property
    def held(self) -> int:
        """Live leases."""
        return self.concurrency.active

    @property
    def leases(self) -> tuple[HeldLease, ...]:
        """The first hundred of them, soonest end first."""
        return self.state.leases

    @property
    def known(self) -> bool:
        """Whether Redis has anything about a tenant's key; True for other keys."""
        return self.state.known or self.waiting_count > 0 or not is_tenants(self.key)

    @property
    def weight(self) -> float | None:
        """The tenant's share among waiting tenants; None if unknown or the key is no tenant's."""
        return self.state.weight

    @property
    def published(self) -> bool:
        """Whether a record of this tenant's tier is published."""
        return self.state.published

    @property
    def waiting(self) -> tuple[WaitingLane, ...]:
        """The waiting tasks of a tenant on the dispatch path, by queue and priority."""
        return self.state.waiting

    @property
    def waited(self) -> tuple[WaitedLimit, ...]:
        """The limits of a key that claims found exhausted, each with its waiting tasks."""
        return self.state.waited

    @property
    def parked(self) -> int:
        """Parked tasks of the key."""
        return self.state.parked

    @property
    def stops(self) -> KeyStops | None:
        """Its pause and cool-down; None if the limiter has none."""
        return self.state.stops

    @property
    def closed(self) -> bool:
        """Whether a claim found the tenant at its limit, and no slot became free since."""
        return self.state.closed

    @property
    def full_in(self) -> tuple[str, ...]:
        """Queues in which the tenant is blocked."""
        return self.state.full_in

    @property
    def ended_unswept(self) -> int:
        """Leases that have ended and that no call has removed yet; ``held`` is without them."""
        return self.state.ended_unswept

    @property
    def blocked_by(self) -> str:
        """Why no task of the key starts now, such as ``rate``; "" if one may start."""
        return self.state.blocked_by

    @property
    def opens_in_seconds(self) -> float | None:
        """The time until ``blocked_by`` ends by itself; None if an end or a person is needed."""
        return self.state.opens_in_seconds

    @property
    def judged_by(self) -> int | None:
        """Version of the published tiers by which the tenant was found at its limit."""
        return self.state.judged_by


def _lease_line(lease: HeldLease) -> str:
    """Return a line with the task that holds a lease, and its age if known."""
    task = " ".join(filter(None, (lease.task, lease.task_id))) or f"lease {lease.id}"
    held = "" if lease.held_seconds is None else f" for {lease.held_seconds:.1f} s"
    return f"held by {task}{held}{f' ({lease.state})' if lease.state else ''}"


class Pagination(Value):
    """The position of a page in the whole.

    Attributes:
        total: Number of keys on all pages.
        page: Number of this page, from 1.
        per_page: Most keys on a page.
    """

    total: int
    page: int
    per_page: int


class InspectionPage(Value):
    """One page of the known keys, by name."""

    items: tuple[Inspection, ...]
    pagination: Pagination


def _only(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
