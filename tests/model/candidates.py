"""Which task a claim takes next: out of the ring, or out of a group whose limit has opened.

Of the two the tenant with the lesser start goes first. What is met on the way and may not start is
put where no claim looks at it: a tenant at its tier's limit leaves the ring, a lane that a limit
refuses is parked, a group whose second limit is closed moves there, and what the limits of a task
say of it is done (``actions``). Each of these is one move, and a claim makes a bounded number of
them. A long message that is read for it, and a lane of which many kinds came back, are more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_fairness.control.keys import CLOSED, PAUSED
from celery_fairness.scheduler.types import Rules
from tests.model.actions import Actions, Refusal
from tests.model.blocking import Closed
from tests.model.lanes import Part
from tests.model.passing import Look

#: Limits of a queue that are open and are compared, where the highest rank goes first.
LIMITS_AT_MOST = 8


@dataclass(slots=True)
class Turns:
    """How one claim goes on.

    Attributes:
        moves: So many are left.
        queues: Those that are asked.
        sleep_ms: How soon something of them is due, as far as is known.
        over: One more move was wanted.
        left: Queues in which a limit's next was left to another queue, where somebody is due
            before. None: nothing is left to others any more.
        shut: Queues whose own limit lets nothing start now.
        ranked: Queues in which the highest rank goes first, whoever's it is.
    """

    moves: int
    queues: Sequence[str] = ()
    sleep_ms: int = 0
    over: bool = False
    left: list[str] | None = field(default_factory=list)
    shut: set[str] = field(default_factory=set)
    ranked: frozenset[str] = frozenset()

    def spend(self) -> bool:
        """Take one move; False where none is left."""
        if not self.moves:
            self.over = True
            return False
        self.moves -= 1
        return True

    def weigh(self, more: int) -> None:
        """A move was more than one; the last may be more than were left."""
        self.moves = max(0, self.moves - more)


class Candidates(Actions):
    """An installation that can say what is next."""

    def find(
        self, queue: str, logical: int, rules: Rules, turns: Turns, look: Look
    ) -> tuple[str, Part] | None:
        """Return the key and the part that is served next; None: nothing, or no move is left."""
        best = self._of_groups(queue, logical, rules, turns, look)
        beyond = 0  # Members that may start something of a lower rank than that they stand by.
        while (key := self.at(queue, look.places.get(queue, 0) + beyond, turns)) is not None:
            lanes = self.lanes[queue, key]
            first = lanes.in_order()[0]
            if best and self._goes_first(queue, best, (key, first), turns):
                break
            part: Part | None = look.open_part(lanes) if look.passes else first
            if part is None:
                # Who has more lanes than one claim looks at hides nobody: the next goes on behind.
                passed = look.spend() if beyond else look.pass_over(queue)
                beyond += bool(beyond)
                if passed and look.lanes:
                    continue
                turns.over = True
                break
            full = not self.is_open(key, logical, rules)
            refused = None if full else self.refusal(part.lane.limits, logical, rules)
            if not full and refused is None:
                if queue not in turns.ranked or part.lane.rank == first.lane.rank:
                    return self._chosen(queue, key, part, logical, rules)
                if best is None or not self._goes_first(queue, best, (key, part), turns):
                    best = key, part
                if not look.spend():
                    break
                beyond += 1
                continue
            if not turns.spend():
                break
            if refused is None:
                self._block(queue, key, part, self.why_full(key, logical, rules), turns)
                self.rings[queue].fill(key)
                self.count_refusal(queue, key, rules)
                self.close(key, logical, rules)
            elif refused.action == "wait":
                self._block(queue, key, part, self.why_closed(refused.at, logical), turns)
                turns.weigh(self.park(queue, key, part.lane, refused.at, logical, rules))
            else:
                self._act(queue, key, part, refused, logical, rules, turns)
        return self._chosen(queue, *best, logical, rules) if best else None

    def at(self, queue: str, place: int, turns: Turns) -> str | None:
        """Return who stands at ``place`` of a queue's ring, in the order of this claim."""
        if queue not in turns.ranked:
            return self.rings[queue].at(place)
        firsts = {key: self.lanes[queue, key].in_order()[0] for key in self.rings[queue].members}
        order = sorted(self._turn(queue, key, part, turns) for key, part in firsts.items())
        return order[place][2] if place < len(order) else None

    def _turn(self, queue: str, key: str, part: Part, turns: Turns) -> tuple[int, float, str]:
        """Return by what a tenant with this part is compared with others: the least goes first."""
        rank = part.lane.rank if queue in turns.ranked else 0
        return -rank, self.rings[queue].start_of(key), key

    def _goes_first(
        self, queue: str, best: tuple[str, Part], other: tuple[str, Part], turns: Turns
    ) -> bool:
        """Say whether what was found goes before another; of equals it does, met before."""
        return self._turn(queue, *best, turns)[:2] <= self._turn(queue, *other, turns)[:2]

    def _chosen(
        self, queue: str, key: str, part: Part, logical: int, rules: Rules
    ) -> tuple[str, Part]:
        """What is served may have been found closed before."""
        self.reopen(key, logical, rules)
        if rules.enforcement == "observe" and self.is_full(key, logical, rules):
            self.count_refusal(queue, key, rules)
        return key, part

    def _of_groups(
        self, queue: str, logical: int, rules: Rules, turns: Turns, look: Look
    ) -> tuple[str, Part] | None:
        """Return who of the queue's parked lanes is next where limits have opened."""
        best: tuple[str, Part] | None = None
        met: list[str] = []
        for _ in range(LIMITS_AT_MOST if queue in turns.ranked else 1):
            of_limit = self._of_limit(queue, logical, rules, turns, look, met)
            if of_limit is None:
                break
            name, key, part = of_limit
            if best is None or not self._goes_first(queue, best, (key, part), turns):
                best = key, part
            met.append(name)
        return best

    def _of_limit(
        self,
        queue: str,
        logical: int,
        rules: Rules,
        turns: Turns,
        look: Look,
        met: Sequence[str],
    ) -> tuple[str, str, Part] | None:
        """Return a limit that is open, but those ``met``, and who is next there."""
        parking = self.parking
        while (name := parking.candidate(queue, met)) is not None:
            group_name = parking.best_group(queue, name)
            group = parking.groups[queue, group_name]
            key = group.first()
            if (due := parking.overdue(group, key)) is not None:
                if not turns.spend():
                    return None
                group.tags[key] = due
                continue
            lanes = self.lanes[queue, key]
            part = lanes.in_order(group_name)[0]
            ready = lanes.in_order()
            refused = self.refusal(part.lane.limits, logical, rules)
            if refused is not None and refused.action == "wait":
                if not turns.spend():
                    return None
                at = refused.at
                self._block(queue, key, part, self.why_closed(at, logical), turns)
                if at.name == name:
                    parking.shut(queue, name, self.shut_as(at, logical))
                    self._arm(at, logical, rules)
                else:
                    turns.weigh(self.park(queue, key, part.lane, at, logical, rules))
            elif (
                (ready and ready[0].lane.rank > part.lane.rank)
                or not self.is_open(key, logical, rules)
                or not look.takes(lanes.lists[part][0])
                or look.is_full(part.lane.limits)
            ):
                if not turns.spend():
                    return None
                turns.weigh(self.unpark(queue, key, part.lane))
            elif refused is not None:
                if not turns.spend():
                    return None
                self._act(queue, key, part, refused, logical, rules, turns)
            else:
                if turns.left is not None and any(
                    parking.is_before(other, name, group.tags[key]) for other in turns.queues
                ):
                    turns.left.append(queue)
                    return None
                parking.open(queue, name, logical)
                return name, key, part
        return None

    def _block(self, queue: str, key: str, part: Part, closed: Closed, turns: Turns) -> None:
        """The first task of a part is refused, and is read for it."""
        turns.weigh(self.units_of(self.lanes[queue, key].lists[part][0]))
        self.block(queue, key, part, closed)

    def _act(
        self,
        queue: str,
        key: str,
        part: Part,
        refusal: Refusal,
        logical: int,
        rules: Rules,
        turns: Turns,
    ) -> None:
        """What may be dropped or tried again is what would start but for its limits."""
        turns.weigh(self.units_of(self.lanes[queue, key].lists[part][0]))
        again_ms = self.act(queue, key, part, refusal, logical, rules)
        if again_ms is not None:
            turns.sleep_ms = min(turns.sleep_ms, again_ms)

    def _look_at_limits(self, queues: Sequence[str], logical: int, rules: Rules) -> int:
        """Look at limits whose time has come; return how many were due."""
        due = sorted((at, key) for key, at in self.parking.due.items() if at <= logical)
        self.looks = self.budget.looks
        for _, key in due[: self.budget.due]:
            if not self.looks:
                break
            self.parking.due.pop(key, None)
            self.pump(key.strip(), logical, rules, anew=not key.startswith(" "))
        looked = len(due[: self.budget.due])
        idle = sorted((at, key) for key, at in self.idle.items() if at <= logical)
        for _, key in idle[: self.budget.idle]:
            del self.idle[key]
            self.windows.pop(key, None)
        if len(idle) >= self.budget.idle:
            looked = self.budget.due
        self.stops.forget(logical, self.budget.due)
        if rules.enforcement == "on":
            return looked
        for queue in queues:
            looks = self.parking.candidates.get(queue, {})
            shut = sorted((at, name) for name, at in looks.items() if PAUSED < at <= CLOSED)
            shut = shut[: self.budget.due]
            for _, name in shut:
                self.parking.open(queue, name, logical)
            looked = max(looked, len(shut))
        return looked
