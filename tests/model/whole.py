"""The limit of a queue as a whole, in a claim: asked before anything of the queue is looked at.

Where it is closed and lets wait, the claim passes by the queue: nothing is parked, so what waits
there costs nothing, however much it is, and new numbers act on all of it at once. Where it says
``drop`` or ``reschedule``, that is done with the tasks that would start but for it.

What starts holds a slot of the queue, as of its other limits, under the word that its record has
while it runs. Whoever changes or frees the key of a queue rings the queue's bell.

Of a closed queue one task is told as blocked: the first lane's of the tenant whose turn it is.

Weakness: what opens by time alone rings no bell; who found it closed sleeps until then, and all
others ask again within a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_limits import CLEARED, KNOWN, SET, How, QueueNumbers, QueueRow
from celery_fairness.control.keys import CLOSED, PAUSED
from celery_fairness.scheduler.types import Rules
from tests.model.candidates import Candidates, Turns
from tests.model.lanes import Part, Task
from tests.model.parking import VERSIONS
from tests.model.passing import Look
from tests.model.window import NEVER


class WholeQueues(Candidates):
    """An installation whose queues have limits."""

    def find_in(
        self, queue: str, logical: int, rules: Rules, turns: Turns, look: Look
    ) -> tuple[str, Part] | None:
        """Return what is served next of a queue, unless its own limit is closed."""
        whole = self.queues.whole(queue)
        refused = None if whole is None else self.refusal(whole.text, logical, rules)
        if refused is not None and refused.action == "wait":
            if queue not in turns.shut:
                self._shut(queue, refused.at, logical, rules, turns)
            return None
        if whole is not None and refused is None and look.is_full(whole.text):
            look.stay(queue)
            return None
        while found := self.find(queue, logical, rules, turns, look):
            if refused is None:
                return found
            if not turns.spend():
                return None
            self._act(queue, *found, refused, logical, rules, turns)
        return None

    def _shut(self, queue: str, whole: Limit, logical: int, rules: Rules, turns: Turns) -> None:
        turns.shut.add(queue)
        wait_ms = self.wait_ms(whole, logical, rules)
        if wait_ms < NEVER:
            turns.sleep_ms = min(turns.sleep_ms, ceil(wait_ms))
        key = self.at(queue, 0, turns)
        if key is not None:
            part = self.lanes[queue, key].in_order()[0]
            self._block(queue, key, part, self.why_closed(whole, logical), turns)

    def with_whole(self, queue: str, task: Task) -> Task:
        """Return a task that starts, with the limit of its queue."""
        whole = self.queues.whole(queue)
        if whole is None:
            return task
        word = whole.text
        return replace(task, limits=f"{task.limits},{word}" if task.limits else word)

    def limit_queue(
        self,
        how: How,
        queue: str,
        key: str,
        rules: Rules,
        numbers: QueueNumbers | None = None,
        parts: bool = False,
    ) -> str:
        """Say what a queue may; return all that is said of it, "" where that is nothing.

        Args:
            how: What is said: its declared numbers, or those of people, or that these end; or that
                it has a key, of which people are about to say something.
            queue: Which.
            key: Its own, as it is written in keys.
            rules: The lease, and whether limits are enforced.
            numbers: Those; None: there are none declared.
            parts: They are declared for each partition of it.
        """
        self.begin(rules.lease_ms)
        rows, before = self.queues.rows, self.queues.rows.get(queue)
        if before is not None and how == KNOWN:
            return before.text
        row = (before or QueueRow(key)).after(how, parts, numbers)
        if how == SET:
            said = row.by_operator.text if row.by_operator else ""
            self.happenings.tell("fairness.queue_limit_set", key=key, numbers=said)
        elif how == CLEARED and before is not None and before.by_operator is not None:
            self.happenings.tell("fairness.queue_limit_cleared", key=key)
        steered = self.stops.says_of(key) or key in self.overrides.rows
        waits = queue in self.parking.candidates
        if row.declared or row.by_operator or how == KNOWN or steered or waits:
            self.queues.version += 1
            rows[queue] = replace(row, version=self.queues.version)
        else:
            rows.pop(queue, None)
        self.wake_queue(queue)
        self.bring_forward(key)
        return rows[queue].text if queue in rows else ""

    def look_anew(self, queues: Sequence[str], logical: int) -> int:
        """Look at partitions that were found closed by older numbers; return the most of a kind."""
        most = 0
        for queue in queues:
            row = self.queues.rows.get(queue)
            closed = self.parking.candidates.get(queue, {}) if row else {}
            for kind in (PAUSED, CLOSED):
                now = kind - (row.version if row else 0) / VERSIONS
                older = sorted((at, name) for name, at in closed.items() if now < at < kind)
                older = older[: self.budget.due]
                for _, name in older:
                    self.parking.open(queue, name, logical)
                most = max(most, len(older))
        return most
