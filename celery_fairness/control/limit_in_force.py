"""Which concurrency a key has now, and why: the one place that decides it for all that show it.

Several things may set the number of a key. The first of these that holds is in force, and the next
one takes its place when that ends: a pause, a cool-down, an override, and below them the key's own
number: that of the tenant, of its tier, of its queue, or of its tasks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from celery_fairness.limiter.types import KeyOverride, KeyStops, LimitState
from celery_fairness.util.value import Value

Kind = Literal[
    "paused", "cool-down", "override", "own", "tier", "unknown", "queue", "settings", "tasks"
]

_TEXTS = {
    "own": "own number of the tenant",
    "queue": "set for the queue by a person",
    "settings": "of the setting queues",
    "tasks": "of its tasks",
}


class LimitReason(Value):
    """One thing that sets the concurrency of a key.

    Attributes:
        kind: What: ``paused``, ``cool-down``, ``override``, ``own`` (a number of the tenant's own),
            ``tier``, ``unknown`` (the tier is unknown, and so is its number), ``queue`` (a person
            set the limit of the queue), ``settings`` (the setting ``queues`` declares it) or
            ``tasks`` (the tasks bring it).
        limit: Tasks at once; None is unlimited, or unknown; 0 lets nothing start.
        tier: Of a tenant's tier or number: the name of the tier; else "".
        until: When it ends by itself, by the server's clock; None: when a person ends it.
        since: When a pause began; None where that is not known.
        by: The person who paused or overrode; "" where that is not known.
        why: The reason that the person gave, or why the tier is unknown; "" where there is none.
        pause_of: The key that is paused, where that is the tenant's and this one is of one service
            of it; else "".
    """

    kind: Kind
    limit: int | None
    tier: str = ""
    until: datetime | None = None
    since: datetime | None = None
    by: str = ""
    why: str = ""
    pause_of: str = ""

    @property
    def by_people(self) -> bool:
        """Whether it is a hold or an override, which end, and not the key's own number."""
        return self.kind in ("paused", "cool-down", "override")

    @property
    def number(self) -> str:
        """The limit in words."""
        return "unknown" if self.kind == "unknown" else number_text(self.limit)

    @property
    def text(self) -> str:
        """The reason in words, such as ``paused until it is resumed, by ada since …``."""
        if self.kind == "tier":
            return f"tier {self.tier}"
        if self.kind == "unknown":
            return f"tier unknown: {self.why}"
        if self.kind in _TEXTS:
            return _TEXTS[self.kind]
        of_all = f"paused with all services of its tenant ({self.pause_of})"
        what = of_all if self.pause_of else self.kind
        ends = {"paused": "it is resumed", "override": "it is cleared"}.get(self.kind, "")
        until = ends if self.until is None else time_text(self.until)
        since = f"since {time_text(self.since)}" if self.since else ""
        by = " ".join(filter(None, (f"by {self.by}" if self.by else "", since)))
        return ", ".join(filter(None, (f"{what} until {until}", by))) + (
            f": {self.why}" if self.why else ""
        )


class LimitInForce(Value):
    """The concurrency of a key now, and why.

    ``str()`` of it is a line such as ``0: paused until it is resumed, by ada since …; otherwise 3:
    tier pro``.

    Attributes:
        limit: Tasks at once; None is unlimited, or not known: where ``reasons`` is empty the tasks
            bring it, and where the first is of the kind ``unknown`` the tier is unknown. 0: nothing
            starts.
        reasons: What sets the number, the one in force first; each takes effect when those
            before it have ended.
    """

    limit: int | None
    reasons: tuple[LimitReason, ...]

    @property
    def number(self) -> str:
        """The limit in words."""
        return self.reasons[0].number if self.reasons else number_text(self.limit)

    @property
    def lines(self) -> tuple[str, ...]:
        """The numbers with their reasons, the one in force first; or that none is known."""
        if not self.reasons:
            return ("limit unlimited: none is known",)
        return tuple(
            f"{'otherwise' if place else 'limit'} {each.number}: {each.text}"
            for place, each in enumerate(self.reasons)
        )

    @property
    def reasons_text(self) -> str:
        """The reasons without the number in force, such as ``tier pro``; "" without one."""
        return str(self).partition(": ")[2] if self.reasons else ""

    def __str__(self) -> str:
        return "; ".join(self.lines).removeprefix("limit ")


def limit_in_force(state: LimitState, own: LimitReason | None = None) -> LimitInForce:
    """Return the concurrency of a key and the reasons for it.

    Args:
        state: What is known of the key, with its stops and its override.
        own: The number that the key has without these; None: what ``state`` has of a tenant's.
    """
    reasons = [*holds_of(state.stops), *_overridden(state.override)]
    if state.unknown:
        # Whatever other number the key has, that of the tier may be the stricter one.
        own = LimitReason(kind="unknown", limit=None, why=state.unknown)
    elif own is None and state.tier:
        kind: Kind = "own" if state.own_number else "tier"
        # Nobody has asked what people set of the key, as a limiter alone does not.
        number = state.limit if state.stops is None else state.entitled
        own = LimitReason(kind=kind, limit=number, tier=state.tier)
    if own is not None:
        reasons.append(own)
    return LimitInForce(limit=reasons[0].limit if reasons else None, reasons=tuple(reasons))


def holds_of(stops: KeyStops | None) -> list[LimitReason]:
    """Return the pause and the cool-down of a key, as far as it has them."""
    found = []
    if stops is not None and stops.paused:
        found.append(
            LimitReason(
                kind="paused",
                limit=0,
                until=stops.paused_until,
                since=stops.paused_since,
                by=stops.paused_by,
                pause_of=stops.pause_of,
            )
        )
    if stops is not None and stops.cool_down_seconds:
        found.append(LimitReason(kind="cool-down", limit=0, until=stops.cools_until))
    return found


def _overridden(override: KeyOverride | None) -> list[LimitReason]:
    if override is None or "concurrency" not in override.numbers:
        return []
    ends = override.expires_at
    return [
        LimitReason(
            kind="override",
            limit=override.numbers["concurrency"],
            until=None if ends is None else datetime.fromtimestamp(ends, UTC),
            by=override.author or "",
            why=override.reason or "",
        )
    ]


def number_text(concurrency: int | None) -> str:
    """Return a concurrency for people."""
    return "unlimited" if concurrency is None else str(concurrency)


def time_text(at: datetime) -> str:
    """Return a time for people, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
