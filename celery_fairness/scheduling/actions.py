"""What becomes of a task that its limits refuse: it waits, is tried again later, or is dropped.

Of several limits that refuse at once ``drop`` goes before ``reschedule``, and that before ``wait``.
A pause and a cool-down only wait, and keep no other from what it says.

    lane --refused, drop-------> obituary   (a worker writes its result)
         --refused, reschedule-> later      (and from there, last in its lane)

Whoever is dropped or tried again has not started: its tenant is not charged, its attempts are those
of before.

Weakness: a lane that is parked is not looked at, so what waits in it behind a limit that says
``wait`` is dropped or tried again when that one opens, and not before.
"""

from __future__ import annotations

import hashlib
from math import ceil
from typing import NamedTuple

from celery_fairness.scheduling.blocking import Blocking
from celery_fairness.scheduling.lanes import Part, Task
from celery_fairness.scheduling.limits import NEVER, Limit, read_limits
from celery_fairness.scheduling.rows import Running
from celery_fairness.scheduling.words import Rules

#: A full limit does not know when it opens: so soon a task is tried again.
TRY_AGAIN_MS = 1000
#: The jitter is a part of the wait, and not more than this.
JITTER_PARTS, JITTER_MS = 4, 1000


class Refusal(NamedTuple):
    """The limits of a task refuse it.

    Attributes:
        at: The first that is closed, at which its lane waits.
        action: ``wait``, ``reschedule`` or ``drop``.
        by: The key of the first limit that said so.
        again_ms: How soon it is tried again, before the jitter.
    """

    at: Limit
    action: str
    by: str
    again_ms: int


class Actions(Blocking):
    """An installation that can say what its limits make of a task."""

    def refusal(self, limits: str, logical: int, rules: Rules) -> Refusal | None:
        """Say which limit is closed and what that means; private ones are asked first."""
        waits = {each: self.waits_ms(each, logical, rules) for each in read_limits(limits)}
        closed = [limit for limit, each in waits.items() if max(each, default=0) > 0]
        if not closed:
            return None
        ahead = (wait for limit in closed for wait in waits[limit])
        again_ms = ceil(max(TRY_AGAIN_MS if wait == NEVER else wait for wait in ahead))
        for action in ("drop", "reschedule"):
            for limit in closed:
                says = self.judged(limit).on_limit
                if says == action and not self.stopped_ms(limit, logical):
                    return Refusal(closed[0], action, limit.key, again_ms)
        return Refusal(closed[0], "wait", closed[0].key, again_ms)

    def act(self, queue: str, key: str, part: Part, refusal: Refusal, logical: int) -> int | None:
        """Drop the first task of a part, or let it be tried again; return how soon that is."""
        closed = self.why_closed(refusal.at, logical)
        self.count_exceeded(closed)
        task = self.pop(queue, key, part)
        self.task_left(queue, key)
        if refusal.action == "drop":
            self.known.discard(task.tag)
            self.expires[queue].pop(task.tag, None)
            self.counts["dropped"] += 1
            self.happenings.tell_of("rate_limit.dropped", queue, task, key=refusal.by)
            self.obituaries[Running(refusal.by, "dropped", queue, task)] = logical
            return None
        self.counts["rescheduled"] += 1
        task = self.tell_blocked(queue, task, closed)
        wait_ms = refusal.again_ms + jitter_ms(task, refusal.again_ms)
        self.wait_until(queue, task, self.now_ms() + wait_ms)
        return wait_ms


def jitter_ms(task: Task, wait_ms: int) -> int:
    """Return by how much longer a task waits: those that were refused at once come one by one."""
    most = min(wait_ms // JITTER_PARTS, JITTER_MS)
    name = f"{task.tag}.{task.seq}".encode()
    return int(hashlib.sha1(name, usedforsecurity=False).hexdigest()[:8], 16) % (most + 1)
