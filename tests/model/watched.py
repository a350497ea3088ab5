"""The model, watched from outside: a mistake that it shares with the scripts breaks a rule here.

Invariant: nothing that is asked here changes what the model does.
"""

from __future__ import annotations

from collections import defaultdict

from celery_fairness.config.limit_spec import OF_QUEUE, read_limits
from tests.model.lanes import Lane
from tests.model.model import NOTHING, Scheduler
from tests.model.ring import Ring


class WatchedRing(Ring):
    """A ring that remembers every finish, and asks it again at each entry."""

    def __init__(self):
        super().__init__()
        self.finish = {}

    def charge(self, key, amount, lags=False):
        places = self.members if key in self.members else self.full
        start, virtual = places[key], self.virtual
        finish = super().charge(key, amount, lags)
        assert self.virtual >= virtual, "the ring's time went back"
        assert self.virtual >= start
        assert places[key] > (start if lags else self.virtual)
        self.finish[key] = places[key]
        return finish

    def correct(self, key, amount, finish):
        super().correct(key, amount, finish)
        for places in (self.members, self.full, self.out):
            self.finish[key] = places.get(key, self.finish.get(key, 0.0))

    def _enter(self, key, finish):
        assert key not in self.members
        super()._enter(key, finish)
        assert self.members[key] == max(self.virtual, self.finish.get(key, 0.0))


class WatchedScheduler(Scheduler):
    """A scheduler that is asked at each start whether it was the right one."""

    def __init__(self, *args):
        super().__init__(*args)
        self.rings = defaultdict(WatchedRing)
        #: By queue whose own limit was found closed: when whoever found it so wakes, as `lived_ms`.
        self.shut_until = {}
        self._lived = self._seen = 0

    def claim(self, owner, number, want, queues, rules, passing=NOTHING, epoch=None, ends=()):
        self.passing, self.taken = passing, []
        #: Queues in which places of the ring have moved since the claim began to count them.
        self.moved = set()
        return super().claim(owner, number, want, queues, rules, passing, epoch, ends)

    def _shut(self, queue, whole, logical, rules, turns):
        super()._shut(queue, whole, logical, rules, turns)
        wait_ms = self.wait_ms(whole, logical, rules)
        assert turns.sleep_ms < wait_ms + 1
        self.shut_until[queue] = self.lived_ms() + wait_ms

    def lived_ms(self):
        """A sleeper's own time: the server's clock may be set back meanwhile."""
        now = self.now_ms()
        self._lived, self._seen = self._lived + max(0, now - self._seen), now
        return self._lived

    def wake_queue(self, queue):
        super().wake_queue(queue)
        self.shut_until.pop(queue, None)

    def opens_alone(self, queue, logical, rules):
        """Say whether nobody need be woken: a queue's limit is closed, or who saw that wakes."""
        whole, now = self.queues.whole(queue), self.now_ms()
        if whole is None or queue not in self.shut_until:
            return False
        override = self.overrides.rows.get(whole.key)
        ends = [self.stops.paused_until.get(whole.key), override and override.ends_ms]
        # The next claim, of whomever, hears that it has ended, and wakes.
        is_due = any(end is not None and end <= now for end in ends)
        woke = self.shut_until[queue] <= self.lived_ms() + 50
        return is_due or woke or self.wait_ms(whole, logical, rules) > 0

    def find(self, queue, logical, rules, turns, look):
        self.places, self.look, self.turns = look.places, look, turns
        return super().find(queue, logical, rules, turns, look)

    def unpark(self, queue, key, lane):
        self.moved.add(queue)
        return super().unpark(queue, key, lane)

    def is_full_here(self, task, rules):
        """Say whether the process holds as much as it may of a partition of a task."""
        return rules.enforcement == "on" and any(
            limit.of == OF_QUEUE and self.held_here(limit.key) >= most
            for limit in read_limits(task.limits)
            if (most := self.queues.local_of(limit)) is not None
        )

    def held_here(self, key):
        taken = sum(key in each.keys for each in self.taken)
        return self.passing.held.get(key, 0) + taken

    def takes(self, task):
        kinds = [each.kind for each in self.taken]
        return task.kind not in self.passing.never and not (
            task.kind in self.passing.once and task.kind in kinds
        )

    def _serve(self, queue, key, part, owner, logical, rules):
        group = self.lanes[queue, key].parked.get(part.lane)
        if group is None:
            self.check_ring(queue, key, logical, rules)
        wanted = [task for task in self.waiting(queue, key, part.lane) if self.takes(task)]
        limit = self.entitlement(key, rules).limit
        held = self.held(key, logical)
        assert limit is None or held < limit or (rules.enforcement != "on" and limit > 0)
        if group is not None:
            self.moved.add(queue)
        whole = self.queues.whole(queue)
        most = self.queues.local_of(whole) if whole else None
        here = most is None or self.held_here(whole.key) < most
        assert here or rules.enforcement != "on", "more of a queue than one process may hold"
        assert not self.is_full_here(wanted[0], rules)
        lease = super()._serve(queue, key, part, owner, logical, rules)
        self.taken.append(self.running[lease].task)
        stopped = [x.key for x in read_limits(self.taken[-1].limits) if self.stopped_ms(x, logical)]
        assert not stopped, "started under a key that is stopped"
        assert self.taken[-1].tag == wanted[0].tag, "not the first of what it takes"
        return lease

    def check_ring(self, queue, key, logical, rules):
        """Of the members of the ring that may start something it is the first."""
        members = self.rings[queue].members
        places = self.places if queue in self.moved else self.passing.places
        passed = places.get(queue, 0) if self.look.passes else 0
        by_rank = queue in self.turns.ranked

        def turn(other, tasks):
            rank = max(task.rank for task in tasks) if by_rank else 0
            return -rank, members[other], other

        ready = {
            other: [
                task
                for task in self.waiting(queue, other)
                if Lane(task.rank, task.limits) not in self.lanes[queue, other].parked
            ]
            for other in members
        }
        order = sorted(members, key=lambda other: turn(other, ready[other]))
        opened = {
            other: [
                task
                for task in ready[other]
                if self.takes(task)
                and self.refusal(task.limits, logical, rules) is None
                and not self.is_full_here(task, rules)
            ]
            for other in order[passed:]
            if self.is_open(other, logical, rules)
        }
        over = self.turns.over or not (self.look.moves and self.look.lanes)
        if by_rank and self.look.passes and over:
            # What stands before may be what no move was left for; what was found meanwhile goes.
            return
        first = min(turn(other, tasks) for other, tasks in opened.items() if tasks)
        if by_rank and self.look.passes:
            # Of equals the one that was met first, by the priority of what is not taken, starts.
            assert turn(key, opened[key])[:2] == first[:2]
        else:
            assert key == first[2]

    def waiting(self, queue, key, lane=None):
        """Everything in a tenant's lanes, in the order in which it would go."""
        tasks = [
            task
            for part, each in self.lanes[queue, key].lists.items()
            for task in each
            if lane in (None, part.lane)
        ]
        return sorted(tasks, key=lambda task: (-task.rank, task.seq))
