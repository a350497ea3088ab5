"""What must agree of a ring whose members are kept by their rank too.

As in ``checks``: the commands of one run as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_fairness.control.keys import Keys
from celery_fairness.control.scan import Command
from celery_fairness.control.views import Finding

RANKS = range(10)


@dataclass(frozen=True, slots=True)
class RankOfMember:
    """A member of a ring stands by the rank of its first ready task, with its start; no other does.

    Attributes:
        key: Who is charged.
        queue: Where.
    """

    key: str
    queue: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HEXISTS", keys.clock, "ranked"),
            ("ZSCORE", keys.of("ring", self.queue), self.key),
            ("ZRANGE", keys.of("ready", f"{self.key} {self.queue}"), 0, 0),
            ("ZSCORE", keys.of("unranked", self.queue), self.key),
            ("ZSCORE", keys.of("ranked", self.queue), self.key),
            *(("ZSCORE", keys.of("rank", f"{rank} {self.queue}"), self.key) for rank in RANKS),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        is_kept, start, ready, unranked, ranked, *starts = answers
        ranked = None if ranked is None else int(float(ranked))
        places = {rank: at for rank, at in zip(RANKS, starts, strict=True) if at is not None}
        due = {int(ready[0][0]): start} if is_kept and start is not None and ready else {}
        if places == due and ranked == next(iter(due), None):
            return
        # One that was there before is looked at by a claim.
        if unranked is not None and not places and ranked is None:
            return
        name = f"{self.key} {self.queue}"
        yield Finding("rank of a tenant", name, _told(due), _told(places, ranked))


def _told(places: dict[int, Any], ranked: int | None = None) -> str:
    found = [f"rank {rank} at {start}" for rank, start in places.items()]
    if ranked is not None and ranked not in places:
        found.append(f"rank {ranked} in ranked")
    return ", ".join(found) or "none"
