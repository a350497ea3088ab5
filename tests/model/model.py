"""The scheduler as pure Python: what the functions in ``store/lua/functions`` do, to be read.

A task that is put waits in a lane, or in ``later`` until its time. A claim leases it to a process:
it is running, and its lease counts for its tenant's limit until a settle says how it ended, or
until nobody has renewed the lease for its length.

    put --> later --> lane --claim--> running --settle--> done
              |        ^  ^              |
              +--------+  +---- head, tail, died, lease ended ---> dead (died too often, unreadable)

A limit beside the tier's may let what it refuses wait in its lane, put it back into ``later``, or
drop it (``actions``).

Where a task ends for good and nobody is there to write its result (a dead letter, a dropped one, a
cancelled one (``cancelling``), and an acknowledged one whose lease ended) it leaves an outcome,
which ``next_outcome`` hands to a worker until one says that the result is written.

What a put is told is its own matter (``putting``), who is served the ring's (``ring``), which of
its tasks the lanes' (``lanes``), what a process leaves to others its own (``passing``), how long a
lease lives the clock's (``clock``), and what a tenant may hold the entitlements'. What a limit
beside the tier's counts is its own matter (``limits``), what waits for it the parking's, and which
task is next, of ring and parking, the candidates'. Here they meet.

A claim that meets a tenant at its limit in a ring moves it out, and *closes* it: from then on no
claim looks at it. What opens it again:

    one of its leases ends            settle, and expiry in a claim, judge it at once
    news of tiers or tenants          `closed` says by which version it was judged; a claim judges
                                      what is older than the news
    a put that says another tier      marks its judgement as out of date
    a lease of the gate ends          a due entry, at most LOOK_AGAIN_MS ahead
    a tenant's record is forgotten    a due entry (in the functions; records of the model stay)
    a worker that enforces nothing    its claims judge all that are not paused

Invariants, after every operation:

1. With enforcement on, no claim grants a tenant a lease at or above its limit.
2. A known task is in exactly one place: a lane, later, running, or the dead letters.
3. A claim serves the member of the ring with the least start that is open and that it does not pass
   over; one that it was asked to go on with, of those behind its place.
4. A tenant with something waiting in a queue is in its ring; or it is full there, and is closed or
   has nothing ready. Where it is closed and would be open, one of the due entries above stands. A
   queue whose ring is not empty, or that has a candidate, has a bell set, unless a worker has heard
   it and has not claimed yet.
5. A tenant with nothing waiting and nothing running is in no table, but for a debt in a ring.

Every verb does a bounded part of what is due, and says so where there is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from celery_fairness.config.limit_spec import read_limits
from celery_fairness.control.keys import tag_of
from celery_fairness.scheduler.cost import cost_of
from celery_fairness.scheduler.types import (
    Claim,
    Claimed,
    Outcome,
    Passing,
    Rules,
    Settle,
    Settled,
    Verdict,
)
from celery_fairness.util.durations import Milliseconds
from tests.model.candidates import Turns
from tests.model.charging import Charged
from tests.model.entering import Entering
from tests.model.lanes import Lanes, Part
from tests.model.moving import other_queue
from tests.model.passing import Look
from tests.model.rounds import Rounds
from tests.model.rows import Running
from tests.model.window import NEVER

#: Longest sleep: a bell may be lost with the worker that heard it. Nor is it longer than the
#: logical clock may step: that would fall behind, and leases end late.
SLEEP_MS = 1000
#: So soon a process has entered again what it holds.
ENTERED_MS = 10
#: Nothing is passed over.
NOTHING = Passing()


class Scheduler(Entering):
    """One installation, and what can be asked of it."""

    # -- claim ------------------------------------------------------------------------------------

    def claim(
        self,
        owner: str,
        number: int,
        want: int,
        queues: Sequence[str],
        rules: Rules,
        passing: Passing = NOTHING,
        epoch: int | None = None,
        ends: Sequence[Settle] = (),
    ) -> Claim:
        """Hear what ended; lease the next tasks that may start, or say how long to sleep.

        Where the memory was lost since ``epoch`` it leases nothing: what the process holds counts
        for no limit until a renewal enters it again.
        """
        logical = self.begin(rules.lease_ms)
        for end in ends:
            self._settle(end, logical, rules)
        self.open_freed(logical, rules)
        if epoch is not None and epoch != self.clock.epoch:
            return Claim((), Milliseconds(ENTERED_MS), {}, self.clock.epoch)
        last, leases = self.replies.get(owner, (None, []))
        if last == number:
            again = [self._claimed(lease) for lease in leases if lease in self.running]
            return Claim(tuple(again), Milliseconds(0), {}, self.clock.epoch)

        more = self._end_steering(logical, rules) == self.budget.due
        more |= self._expire(logical, rules) == self.budget.due
        more |= self._judge_anew(logical, rules) == self.budget.due
        more |= self._look_at_limits(queues, logical, rules) == self.budget.due
        more |= self.look_anew(queues, logical) == self.budget.due
        longest = min(SLEEP_MS, rules.lease_ms // 3)
        sleep_ms = min([longest, *(self._bring_in(queue) for queue in queues)])
        more |= self.end_expired(queues, logical)

        leases = []
        is_local = rules.enforcement == "on" and self.queues.are_local(queues)
        local = self.queues.local_of if is_local else None
        look = Look(passing, self.budget, local)
        turns = Turns(self.budget.moves, queues, sleep_ms)
        waiting = {queue for queue, _ in self.lanes}
        asked, taken = [queue for queue in queues if queue in waiting], 0
        turns.ranked = self._rank(asked, rules)
        more |= rules.priority_scope == "queue" and len(turns.ranked) < len(asked)
        rounds = Rounds(asked, turns, passing)
        while len(leases) < want and taken < self.budget.taken:
            queue = rounds.queue()
            if queue is None:
                break
            found = self.find_in(queue, logical, rules, turns, look)
            if found is None:
                rounds.nothing()
                continue
            leases.append(self._serve(queue, *found, owner, logical, rules))
            task = self.running[leases[-1]].task
            taken += 1 + len(read_limits(task.limits)) + self.units_of(task)
            look.took(task)
            rounds.took()
        more |= turns.over
        if leases:
            self.replies[owner] = (number, leases)
        for queue in {self.running[lease].queue for lease in leases}:
            self.rings[queue].forget_passed(len(leases))
        for queue in queues:
            # What is left is for somebody else who sleeps; a bell for nothing would only wake, but
            # who was given something does not sleep.
            if queue in self.rings and (queue in waiting or not leases):
                ring = self.rings[queue]
                some = bool(ring.members) or self.parking.candidate(queue) is not None
                ring.left = some and queue not in turns.shut
                ring.bell = ring.bell and ring.left
                if not some and queue not in turns.shut and len(leases) < want:
                    ring.forget_debts()
                self._forget_unused(queue)
        tasks = tuple(map(self._claimed, leases))
        sleep_ms = min(
            [
                turns.sleep_ms,
                *self._steering_ends_ms(),
                *(ceil(at - logical) for at in self.parking.due.values()),
            ]
        )
        sleep = Milliseconds(0 if more or tasks else max(0, sleep_ms))
        return Claim(tasks, sleep, look.places, self.clock.epoch)

    def _rank(self, queues: Sequence[str], rules: Rules) -> frozenset[str]:
        """Return those of some queues in which the highest rank goes first in a claim."""
        if rules.priority_scope != "queue":
            return frozenset()
        if not self.ranked:
            self.ranked = True
            for ring in self.rings.values():
                ring.unranked = dict(ring.members)
        most = self.budget.moves
        return frozenset(each for each in queues if not self.rings[each].rank_some(most))

    def _forget_unused(self, queue: str) -> None:
        if not any(other == queue for other, _ in self.lanes):
            del self.rings[queue]

    def _claimed(self, lease: str) -> Claimed:
        row = self.running[lease]
        task = row.task
        keys = ",".join(task.keys)
        return Claimed(lease, row.queue, task.attempt, keys, task.rank, task.message)

    def _serve(
        self, queue: str, key: str, part: Part, owner: str, logical: int, rules: Rules
    ) -> str:
        ring = self.rings[queue]
        entitled = self.entitlement(key, rules)
        weight = entitled.weight
        task = self.pop(queue, key, part)
        self.expires[queue].pop(task.tag, None)
        task = replace(self.tell_started(queue, task), attempt=task.attempt + 1)
        self.minutes.note_start(self.now_ms(), task, entitled.tier, queue)
        self.watch.started(self.now_ms(), queue, task, owner)
        expected, by_runtime = self.expected(task, rules), rules.fairness_by == "runtime"
        charge = cost_of(expected, weight)
        finish = ring.charge(key, charge, lags=by_runtime)
        lease = task.lease_of(owner)
        if by_runtime:
            self.charged[lease] = Charged(expected, weight, logical, finish, queue)
        group = self.lanes[queue, key].parked.get(part.lane)
        task = self.with_whole(queue, task)
        self.take(task, lease, logical, charge)
        if group is not None:
            self.parking.served(queue, group, key)
        self.task_left(queue, key)
        mean_ms = self.took.mean_ms(task.kind)
        self.running[lease] = Running(owner, "claimed", queue, task, logical, mean_ms)
        self.ends[lease] = logical + rules.lease_ms
        self.leases[key][lease] = NEVER
        return lease

    # -- what is due ------------------------------------------------------------------------------

    def _expire(self, logical: int, rules: Rules) -> int:
        """End the leases that nobody renewed; return how many entries were due."""
        due = sorted((end, name) for name, end in self.ends.items() if end <= logical)
        due = due[: self.budget.due]
        for _, name in due:
            if name.startswith(" "):
                self.end_wait(name, logical, rules)
                continue
            row = self.end_lease(name, logical)
            self.watch.ended(self.now_ms(), logical, row, "expired")
            keys, row = row.task.keys, row.as_it_waits
            self.counts["expired"] += 1
            self.happenings.tell_of(
                "fairness.lease_expired", row.queue, row.task, owner=row.owner, state=row.state
            )
            if row.state == "acked":
                self.known.discard(row.task.tag)
                self.counts["abandoned"] += 1
                self.happenings.tell_of("fairness.abandoned", row.queue, row.task, owner=row.owner)
                self.outcomes[row] = logical
            elif row.state == "begun":
                self.after_death(row, logical, rules)
            else:
                self.enqueue(row.queue, row.task, back=True)
            self.freed(keys)
        self.open_freed(logical, rules)
        return len(due)

    def _judge_anew(self, logical: int, rules: Rules) -> int:
        """Judge tenants that were found closed before the last news; return how many."""
        now = self.news.version + 1
        stale = sorted(
            (judged, key)
            for key, judged in self.closed.items()
            if -now < judged < now or (rules.enforcement != "on" and judged > 0)
        )[: self.budget.due]
        for _, key in stale:
            self.reopen(key, logical, rules)
        return len(stale)

    def _bring_in(self, queue: str) -> int:
        """Put tasks whose time has come last in their lanes; return how soon to look again."""
        now = self.now_ms()
        later = self.later[queue]
        due = [each for each in later if each[0] <= now][: self.budget.due]
        del later[: len(due)]
        for eta_ms, _, task in due:
            self.bring_in(queue, task, eta_ms)
        if due:
            return 0
        return later[0][0] - now if later else SLEEP_MS

    # -- settle -----------------------------------------------------------------------------------

    def settle(self, ends: Sequence[Settle], rules: Rules) -> list[Settled]:
        """Say what became of claimed tasks."""
        logical = self.begin(rules.lease_ms)
        answers = [self._settle(each, logical, rules) for each in ends]
        self.kept_took = self.took.kept()
        self.open_freed(logical, rules)
        return answers

    def _settle(self, end: Settle, logical: int, rules: Rules) -> Settled:
        row = self.running.get(end.lease)
        if row is None:
            return self._settle_late(end)
        if end.verdict in (Verdict.BEGUN, Verdict.ACKED):
            if row.state != "acked":
                self.running[end.lease] = replace(row, state=end.verdict.value)
            return Settled.SETTLED
        if not end.begun and row.state == "claimed" and row.since is not None:
            self.give_starts_back(read_limits(row.task.limits), row.since)
        self.end_lease(end.lease, logical)
        self.watch.ended(self.now_ms(), logical, row, end.verdict.value)
        since, mean_ms = row.since, row.mean_ms
        keys, row = row.task.keys, row.as_it_waits
        if end.verdict is Verdict.DONE and since is not None and end.begun:
            self.took.note(row.task.kind, logical - since, mean_ms)
        if end.verdict is Verdict.DONE or row.state == "acked":
            self.known.discard(row.task.tag)
        elif end.verdict is Verdict.TAIL:
            self.enqueue(row.queue, replace(row.task, seq=self.next_seq()))
        elif end.verdict is Verdict.DIED:
            self.after_death(row, logical, rules)
        elif end.verdict is Verdict.UNREADABLE:
            self.bury(replace(row, state="unreadable"), logical)
        else:
            self.enqueue(row.queue, row.task, back=True)
        self.freed(keys)
        return Settled.SETTLED

    def _settle_late(self, end: Settle) -> Settled:
        """A task that waits again and is over, or may not run twice, is taken out of its lane."""
        words, rank, queue = end.lane.split(" ", 2)
        keys = words.split(",")
        if end.verdict not in (Verdict.BEGUN, Verdict.ACKED):
            # A lease that was entered again after the memory was lost.
            gone = [self.drop_lease(key, end.lease) for key in keys]
            self.forget_entered(keys)
            if any(gone):
                self.freed(keys)
        if end.verdict not in (Verdict.DONE, Verdict.ACKED):
            return Settled.LATE
        tag = tag_of(end.lease)
        its = partial(Lanes.withdraw, rank=int(rank), tag=tag)
        for each in (queue, *other_queue(queue)):
            if self.take_out(each, keys[0], its):
                self.expires[each].pop(tag, None)
                self.known.discard(tag)
                return Settled.WITHDRAWN
        return Settled.LATE

    # -- ends that nobody was there to tell -------------------------------------------------------

    def next_outcome(self, written: str, rules: Rules) -> Outcome | None:
        """Forget the outcome whose text is ``written``, and hand out the next for a lease."""
        logical = self.begin(rules.lease_ms)
        self._expire(logical, rules)
        left = {row: due for row, due in self.outcomes.items() if row.text != written}
        self.outcomes = left
        row = min(left, key=lambda row: (left[row], row.text), default=None)
        if row is None or left[row] > logical:
            return None
        left[row] = logical + rules.lease_ms
        task = row.task
        return Outcome(
            row.text, row.owner, row.state, row.queue, task.tenant, task.deaths, task.message
        )

    # -- looking and clearing ---------------------------------------------------------------------

    def size(self, queue: str) -> tuple[int, int]:
        """Return how many tasks wait in lanes, and for their time."""
        waiting = sum(len(lanes) for (other, _), lanes in self.lanes.items() if other == queue)
        return waiting, len(self.later[queue])

    def purge(self, queue: str) -> int:
        """Forget waiting tasks, until it returns 0; those that run are not touched."""
        later = self.later[queue]
        gone = [task for _, _, task in later[: self.budget.purged]]
        del later[: len(gone)]
        while len(gone) < self.budget.purged and queue in self.rings:
            ring = self.rings[queue]
            full = min(ring.full, key=lambda key: (ring.full[key], key), default=None)
            key = ring.at(0) or full
            if key is None:
                break
            lanes = self.lanes[queue, key]
            first = lanes.in_order() or lanes.in_order(lanes.first_parked())
            gone.append(self.pop(queue, key, first[0]))
            self.task_left(queue, key)
        for task in gone:
            self.known.discard(task.tag)
            self.expires[queue].pop(task.tag, None)
        if gone:
            self.happenings.tell("fairness.purged", queue=queue, tasks=len(gone))
        if len(gone) < self.budget.purged:
            self.rings.pop(queue, None)
        return len(gone)
