"""Where parked tasks wait, and whose turn it is: as ``lua/parked.lua`` says.

A *place* is a limit with the numbers by which it is judged, or a tenant's tier. There each tenant's
tasks are in the order in which they came, and the tenants in that of the key's own virtual time:
who has the least start is next, of equal ones the one whose first task waits longest. A start
charges its tenant one, divided by its weight, at every key of the task at which anybody waits. A
task that may start goes first to whichever other place it has at which somebody is before it.

Invariant: a tenant begins to wait at the larger of its own finish and the key's virtual time, so it
has no credit for having been away, and loses no debt by leaving.

Weakness: what starts without having waited is not charged, and what is parked again has had its
turn. Where nobody waits at a key its time begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


def key_of(place: str) -> str:
    """Return the key of a place."""
    return place.partition("|")[0]


class Head(NamedTuple):
    """The first task of the tenant whose turn it is at a place; the least is first of a key.

    Attributes:
        start: When the tenant's turn is, in the key's virtual time.
        seq: Since when the task waits.
        place: Where.
        tenant: Whose.
        tag: Which.
    """

    start: float
    seq: int
    place: str
    tenant: str
    tag: str


@dataclass(slots=True)
class Places:
    """All that wait."""

    _lanes: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    _turns: dict[str, dict[str, float]] = field(default_factory=dict)
    _virtual: dict[str, float] = field(default_factory=dict)
    _finish: dict[str, dict[str, float]] = field(default_factory=dict)

    def __contains__(self, place: str) -> bool:
        """Say whether any wait there."""
        return place in self._turns

    def waiting(self, key: str) -> int:
        """Return how many wait at ``key``."""
        return sum(len(lane) for (_, place), lane in self._lanes.items() if key_of(place) == key)

    def wait(self, tag: str, seq: int, tenant: str, place: str) -> None:
        """Let a task wait."""
        self._virtual.setdefault(key_of(place), 0.0)
        self._turns.setdefault(place, {}).setdefault(tenant, self._start(key_of(place), tenant))
        self._lanes.setdefault((tenant, place), {})[tag] = seq

    def leave(self, tag: str, tenant: str, places: Iterable[str]) -> None:
        """Take a task out of whichever of ``places`` it waits at."""
        for place in places:
            lane = self._lanes.get((tenant, place), {})
            if lane.pop(tag, None) is None or lane:
                continue
            del self._lanes[tenant, place], self._turns[place][tenant]
            if not self._turns[place]:
                del self._turns[place]
            key = key_of(place)
            if not any(key_of(each) == key for each in self._turns):
                del self._virtual[key]
                self._finish.pop(key, None)

    def head(self, key: str, closed: Iterable[str]) -> Head | None:
        """Return who is next at ``key``, but for the places that are ``closed``."""
        heads: list[Head] = []
        for place, turns in self._turns.items():
            if key_of(place) == key and place not in closed:
                for tenant, start in turns.items():
                    lane = self._lanes[tenant, place]
                    seq, tag = min((seq, tag) for tag, seq in lane.items())
                    heads.append(Head(start, seq, place, tenant, tag))
        return min(heads, default=None)

    def charge(self, tenant: str, places: Iterable[str], weight: float) -> None:
        """A task that could wait at ``places`` starts."""
        for key in dict.fromkeys(map(key_of, places)):
            if key not in self._virtual:
                continue
            start = self._virtual[key] = self._start(key, tenant)
            finish = self._finish.setdefault(key, {})[tenant] = start + 1 / weight
            for place, turns in self._turns.items():
                if key_of(place) == key and tenant in turns:
                    turns[tenant] = finish

    def others_turn(self, head: Head, places: Iterable[str]) -> str:
        """Return another of a task's places at which it is another tenant's turn, "" for none."""
        for place in places:
            turns = self._turns.get(place, {})
            heads = [
                (start, min(self._lanes[tenant, place].values()), tenant)
                for tenant, start in turns.items()
            ]
            start, seq, tenant = min(heads, default=(0.0, 0, head.tenant))
            if tenant != head.tenant and place != head.place:
                own = self._start(key_of(place), head.tenant)
                if (start, seq) < (own, head.seq):
                    return place
        return ""

    def _start(self, key: str, tenant: str) -> float:
        return max(self._finish.get(key, {}).get(tenant, 0.0), self._virtual[key])
