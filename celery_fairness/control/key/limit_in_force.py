"""The concurrency of a key now, with its reasons; every view takes it from here.

Several reasons may set the number of a key. The order is: a pause, a cool-down, an override, and
then the key's own number, which comes from the tenant, its tier, the queue or the tasks. The first
reason is in force. When it ends, the next one takes its place.

The text of a reason is here too. Commands show it for a key, and for a limit that blocks a task.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from celery_fairness.limiter.types import KeyHolds
from celery_fairness.util.value import Value

if TYPE_CHECKING:
    from celery_fairness.control.key.views import Override

Kind = Literal[
    "paused", "cool-down", "override", "own", "tier", "unknown", "queue", "settings", "tasks"
]

_TEXTS = {
    "own": "own number of the tenant",
    "queue": "set for the queue by a person",
    "settings": "declared in the setting queues",
    "tasks": "declared by its tasks",
}


class LimitReason(Value):
    """One reason for the concurrency of a key.

    Attributes:
        kind: ``paused``, ``cool-down``, ``override``, ``tier``, or one of these. With ``own`` the
            tenant has a number of its own. With ``unknown`` its tier is unknown. With ``queue`` an
            operator set the queue's limit. With ``settings`` the setting ``queues`` declares it.
            With ``tasks`` the tasks bring it.
        limit: Tasks at once. None is unlimited, or unknown, and with 0 nothing starts.
        tier: Name of the tier, if the kind is ``own`` or ``tier``.
        until: Time when it ends by itself, by the server's clock. None if an operator must end it.
        since: Start of a pause, or None if unknown.
        by: Operator who paused or overrode the key, or "" if unknown.
        why: The operator's reason, or why the tier is unknown, or "" if there is none.
        pattern: The pattern of an override that was set for many keys, or "".
        pause_of: The tenant's key, if all services of the tenant are paused and this key is of one
            service, or "" if not.
    """

    kind: Kind
    limit: int | None
    tier: str = ""
    until: datetime | None = None
    since: datetime | None = None
    by: str = ""
    why: str = ""
    pattern: str = ""
    pause_of: str = ""

    @property
    def by_people(self) -> bool:
        """Whether an operator's hold or override sets the number, which ends some time."""
        return self.kind in ("paused", "cool-down", "override")

    @property
    def number(self) -> str:
        """The limit as text."""
        return "unknown" if self.kind == "unknown" else number_text(self.limit)

    @property
    def text(self) -> str:
        """The reason as text, such as ``paused until it is resumed, by ada since …``."""
        if self.kind == "tier":
            return f"tier {self.tier}"
        if self.kind == "unknown":
            return f"tier unknown: {self.why}"
        if self.kind in _TEXTS:
            return _TEXTS[self.kind]
        of_all = f"paused with all services of its tenant ({self.pause_of})"
        what = of_all if self.pause_of else f"{self.kind} {self.pattern}".strip()
        ends = {"paused": "it is resumed", "override": "it is cleared"}.get(self.kind, "")
        until = ends if self.until is None else time_text(self.until)
        since = f"since {time_text(self.since)}" if self.since else ""
        by = " ".join(filter(None, (f"by {self.by}" if self.by else "", since)))
        return ", ".join(filter(None, (f"{what} until {until}", by))) + (
            f": {self.why}" if self.why else ""
        )


class LimitInForce(Value):
    """The concurrency of a key now, with its reasons.

    ``str()`` of it is a line such as ``0: paused until it is resumed, by ada since …; otherwise 3:
    tier pro``.

    Attributes:
        limit: Tasks at once, and with 0 nothing starts. None is unlimited or unknown. It is unknown
            if ``reasons`` is empty (the tasks bring it) or the first kind is ``unknown``.
        reasons: The reasons, the one in force first. Each takes effect when all before it have
            ended.
    """

    limit: int | None
    reasons: tuple[LimitReason, ...]

    @property
    def number(self) -> str:
        """The limit as text."""
        return self.reasons[0].number if self.reasons else number_text(self.limit)

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each number and its reason, the one in force first; never empty."""
        if not self.reasons:
            return ("limit unlimited: none is known",)
        return tuple(
            f"{'otherwise' if place else 'limit'} {each.number}: {each.text}"
            for place, each in enumerate(self.reasons)
        )

    @property
    def reasons_text(self) -> str:
        """The reasons without the number in force, such as ``tier pro``, or "" without a reason."""
        return str(self).partition(": ")[2] if self.reasons else ""

    def __str__(self) -> str:
        return "; ".join(self.lines).removeprefix("limit ")


def limit_in_force(
    own: LimitReason | None, holds: KeyHolds, override: Override | None
) -> LimitInForce:
    """Return the concurrency of a key and the reasons for it.

    ``own`` is the key's own number, or None if it is unknown.
    """
    reasons = holds_of(holds)
    if override is not None and "concurrency" in override.numbers:
        reasons.append(
            LimitReason(
                kind="override",
                limit=override.concurrency,
                until=override.expires_at,
                by=override.by or "",
                why=override.reason or "",
                pattern=override.pattern or "",
            )
        )
    if own is not None:
        reasons.append(own)
    return LimitInForce(limit=reasons[0].limit if reasons else None, reasons=tuple(reasons))


def holds_of(holds: KeyHolds) -> list[LimitReason]:
    """Return the reasons for a key's pause and cool-down, if it has them."""
    found = []
    if holds.paused:
        found.append(
            LimitReason(
                kind="paused",
                limit=0,
                until=holds.paused_until,
                since=holds.paused_since,
                by=holds.paused_by,
                pause_of=holds.pause_of,
            )
        )
    if holds.cool_down_seconds:
        why = "an API has reported that no start is free" if holds.reported_left == 0 else ""
        found.append(LimitReason(kind="cool-down", limit=0, until=holds.cools_until, why=why))
    return found


def number_text(concurrency: int | None) -> str:
    """Return a concurrency as text."""
    return "unlimited" if concurrency is None else str(concurrency)


def time_text(at: datetime) -> str:
    """Return a time as text, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
