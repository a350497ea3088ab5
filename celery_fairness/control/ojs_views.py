"""What is known of a key, as the Open Job Spec writes it (10.1 and 10.3).

``model_dump(mode="json")`` is the object of its routes; what else is known of the key are
attributes beside that. Times are of the server's clock, RFC 3339 in UTC; periods are ISO 8601.
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
    """How many tasks of a key run.

    Attributes:
        limit: At once; None is unlimited, or not known: tasks bring it, or the tenant's tier is
            ``unknown``. 0: nothing starts.
        active: Live leases.
        available: How many more may start by this number; None where there is none.
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
        period: Its length.
        current_count: Starts in the window that ends now.
        window_resets_at: When one more start fits, where the window is full; else when the first
            of those that are counted leaves it; now, where none is. Not before a cool-down or a
            pause of the key ends; None: it is paused until somebody resumes it.
    """

    limit: int
    period: str
    current_count: int
    window_resets_at: datetime | None


class ThrottleState(Value):
    """Starts that are evenly spaced.

    Attributes:
        limit: Starts in a period.
        period: Its length.
        next_allowed_at: When the next start is due: now, or later. Stops as for a rate.
    """

    limit: int
    period: str
    next_allowed_at: datetime | None


class Override(Value):
    """Numbers that people put in the place of a key's own.

    What it does not say is left out of its dump; None is unlimited.

    Attributes:
        concurrency: At once.
        rate: As the Open Job Spec writes it.
        throttle: Likewise.
        expires_at: When it ends; None: when it is cleared.
        reason: As it was given.
        author: Who gave it.
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
        said, ends = dict(override.numbers), override.expires_at
        said["expires_at"] = None if ends is None else at_ms(round(ends * 1000))
        told = {"reason": override.reason, "author": override.author}
        said |= {name: text for name, text in told.items() if text is not None}
        return cls(**said)

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _only(handler(self), self.model_fields_set)


class Inspection(Value):
    """What a key holds and may hold now.

    ``str()`` of it has a line for the key, the limit in force, what waits, and each lease.

    Attributes:
        key: As it is written in Redis: a tenant that no key can hold as it is stands as a hash.
        concurrency: How many run.
        rate: Of several the one that is nearest to its limit; None, and left out of the dump, where
            there is none.
        throttle: Likewise.
        waiting_count: Tasks of the key that wait, wherever they do; not those that run, nor those
            that wait for their time.
        override: What people put in the place of its numbers; left out where there is nothing.
        in_force: The number of ``concurrency`` and the reasons for it; not in the dump.
        state: What else is known of it.
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
    def _there(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        there = {name for name in type(self).model_fields if getattr(self, name) is not None}
        return _only(handler(self), there)

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
        """The tier that it was judged by; "" of a key of no tenant, and if ``unknown``."""
        return self.state.tier

    @property
    def unknown(self) -> str:
        """Why the tenant's tier is unknown; "" where it is known, and of a key of no tenant."""
        return self.state.unknown

    @property
    def limit(self) -> int | None:
        """Its concurrency."""
        return self.concurrency.limit

    @property
    def local_limit(self) -> int | None:
        """Of a queue's key how many run at once in one process; None is unlimited."""
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
        """Whether anything but its tier is known of a tenant; of other keys something is."""
        return self.state.known or self.waiting_count > 0 or not is_tenants(self.key)

    @property
    def weight(self) -> float | None:
        """The tenant's share among waiting tenants; None of a key of no tenant, and if unknown."""
        return self.state.weight

    @property
    def published(self) -> bool:
        """Whether a record of this tenant's tier is published."""
        return self.state.published

    @property
    def waiting(self) -> tuple[WaitingLane, ...]:
        """What a tenant has waiting on the dispatch path, by queue and rank."""
        return self.state.waiting

    @property
    def waited(self) -> tuple[WaitedLimit, ...]:
        """What waits at a key that is no tenant's, as far as claims have met it."""
        return self.state.waited

    @property
    def parked(self) -> int:
        """Tasks of a gate that wait at it."""
        return self.state.parked

    @property
    def stops(self) -> KeyStops | None:
        """Whether it is paused or cools down; None where that cannot be."""
        return self.state.stops

    @property
    def closed(self) -> bool:
        """Whether a claim found the tenant at its limit, and nothing has opened it since."""
        return self.state.closed

    @property
    def full_in(self) -> tuple[str, ...]:
        """Queues in whose ring the tenant is not, though something of it waits there."""
        return self.state.full_in

    @property
    def judged_by(self) -> int | None:
        """By which version of the news the tenant was found closed."""
        return self.state.judged_by


def _lease_line(lease: HeldLease) -> str:
    """Return which task holds a lease and for how long, as far as that is known."""
    task = " ".join(filter(None, (lease.task, lease.task_id))) or f"lease {lease.id}"
    held = "" if lease.held_seconds is None else f" for {lease.held_seconds:.1f} s"
    return f"held by {task}{held}{f' ({lease.state})' if lease.state else ''}"


class Pagination(Value):
    """Which part of the whole a page is.

    Attributes:
        total: How many keys there are on all pages.
        page: Which this is, from 1.
        per_page: How many a page has at most.
    """

    total: int
    page: int
    per_page: int


class InspectionPage(Value):
    """Some of the keys of which anything is known, by name."""

    items: tuple[Inspection, ...]
    pagination: Pagination


def _only(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
