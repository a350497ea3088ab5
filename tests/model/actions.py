"""What becomes of a task that its limits refuse: it waits, is tried again later, or is dropped.

Of several limits that refuse at once ``drop`` goes before ``reschedule``, and that before ``wait``.
A pause and a cool-down only wait, and keep no other from what it says.

    lane --refused, drop-------> outcome   (a worker writes its result)
         --refused, reschedule-> later      (and from there, last in its lane)

Whoever is dropped or tried again has not started: its tenant is not charged, its attempts are those
of before.

Weakness: a lane that is parked is not looked at, so what waits in it behind a limit that says
``wait`` is dropped or tried again when that one opens, and not before.
"""

from __future__ import annotations

from typing import NamedTuple

from celery_fairness.config.limit_spec import Limit, read_limits
from celery_fairness.scheduler.types import Rules
from tests.model.blocking import Blocking
from tests.model.lanes import Part
from tests.model.pace import JITTER_PARTS, SAME_TIME_AT_MOST, TRY_AGAIN_MS
from tests.model.rows import Running
from tests.model.window import NEVER


class Refusal(NamedTuple):
    """The limits of a task refuse it.

    Attributes:
        at: The first that is closed, at which its lane waits.
        action: ``wait``, ``reschedule`` or ``drop``.
        by: The first limit that said so.
        again_ms: How soon the limits may be open, or may be asked again.
    """

    at: Limit
    action: str
    by: Limit
    again_ms: float


class Actions(Blocking):
    """An installation that can say what its limits make of a task."""

    def refusal(self, limits: str, logical: int, rules: Rules) -> Refusal | None:
        """Say which limit is closed and what that means; private ones are asked first."""
        waits = {each: self.waits_ms(each, logical, rules) for each in read_limits(limits)}
        closed = [limit for limit, each in waits.items() if max(each, default=0) > 0]
        if not closed:
            return None
        again_ms = max(self._again_ms(limit, waits[limit], logical) for limit in closed)
        for action in ("drop", "reschedule"):
            for limit in closed:
                says = self.judged(limit).on_limit
                if says == action and not self.stopped_ms(limit, logical):
                    return Refusal(closed[0], action, limit, again_ms)
        return Refusal(closed[0], "wait", closed[0], again_ms)

    def _again_ms(self, limit: Limit, waits: list[float], logical: int) -> float:
        is_full = not self.stopped_ms(limit, logical) and self.has_no_slot(limit, logical)
        known = [wait for wait in waits if wait < NEVER]
        return max([TRY_AGAIN_MS] * (is_full or not known) + known)

    def act(
        self, queue: str, key: str, part: Part, refusal: Refusal, logical: int, rules: Rules
    ) -> int | None:
        """Drop the first task of a part, or let it be tried again; return how soon that is."""
        by, now = refusal.by, self.now_ms()
        closed = self.why_closed(refusal.at, logical)
        self.count_exceeded(closed)
        task = self.pop(queue, key, part)
        self.task_left(queue, key)
        if refusal.action == "drop":
            self.known.discard(task.tag)
            self.expires[queue].pop(task.tag, None)
            self.counts["dropped"] += 1
            self.happenings.tell_of("rate_limit.dropped", queue, task, key=by.key)
            self.outcomes[Running(by.key, "dropped", queue, task)] = logical
            return None
        self.counts["rescheduled"] += 1
        task = self.tell_blocked(queue, task, closed)
        wait_ms = self.paces.wait_ms(
            *(self.judged(by), refusal.again_ms, self.has_no_slot(by, logical)),
            *(now, logical, rules.snooze_ms),
            *(f"{task.tag}.{task.seq}", rules.snooze_ms / JITTER_PARTS),
        )
        self.wait_until(queue, task, now + wait_ms)
        self.paces.remember(by.key, queue, task.seq, now + wait_ms, now)
        return wait_ms

    def bring_forward(self, key: str) -> None:
        """Somebody says something else of a key: what it has put back is judged anew."""
        now = self.now_ms()
        for queue, seq, eta in self.paces.forget(key, now):
            later = self.later[queue]
            of_time = [each for each in later if each[0] == eta][:SAME_TIME_AT_MOST]
            for each in of_time:
                if each[1] == seq:
                    later[later.index(each)] = (now, seq, each[2])
                    self.rings[queue].bell = True
            later.sort(key=lambda each: each[:2])
