"""Tasks that a limit refuses: told once of each task, and once more when it starts after all.

*Blocked* is the first task of a lane that is refused; those behind it are not. What was told is
kept in the task, wherever it goes, so that nothing is left of it when it ends. A task that is
dropped or cancelled while it is blocked is told as that, and never starts.

    ""  --refused, told exceeded--> STRATEGY|KEY  --starts, told released-->  -
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Rules
from tests.model.installation import Installation
from tests.model.lanes import Part, Task

#: It was told of a task that it was blocked, and that it started.
STARTED = "-"
#: Keys and strategies whose refusals are counted apart, and what the others are counted as.
EXCEEDED_AT_MOST = 1000
OTHER_KEYS = "_other"


class Closed(NamedTuple):
    """Which number of a limit closes it.

    Attributes:
        strategy: ``concurrency``, ``rate``, ``throttle``, ``paused`` or ``cool-down``.
        key: Of the limit.
        limit: The number; 0 where it is stopped.
        current: How many leases are held; of a rate and a throttle as much as the limit.
    """

    strategy: str
    key: str
    limit: int
    current: int


class Blocking(Installation):
    """An installation that tells what it refuses."""

    def why_closed(self, limit: Limit, logical: int) -> Closed:
        """Say which number of a closed limit it is."""
        held, now = self.held(limit.key, logical), self.now_ms()
        limit = self.judged(limit)
        if self.stopped_ms(limit, logical):
            paused = limit.concurrency == 0 or self.stops.paused_ms(limit.key, now)
            return Closed("paused" if paused else "cool-down", limit.key, 0, held)
        if limit.concurrency is not None and held >= limit.concurrency:
            return Closed("concurrency", limit.key, limit.concurrency, held)
        for starts, period_ms in limit.rates:
            if self.windows[limit.key].rate_wait_ms(starts, period_ms, logical) > 0:
                return Closed("rate", limit.key, starts, starts)
        starts = limit.throttle[0] if limit.throttle else 0
        return Closed("throttle", limit.key, starts, starts)

    def why_full(self, key: str, logical: int, rules: Rules) -> Closed:
        """Say the same of a tenant that is at its tier's limit."""
        limit = self.entitlement(key, rules).limit or 0
        return Closed("concurrency" if limit else "paused", key, limit, self.held(key, logical))

    def block(self, queue: str, key: str, part: Part, closed: Closed) -> None:
        """The first task of a part is refused."""
        self.count_exceeded(closed)
        tasks = self.lanes[queue, key].lists[part]
        tasks[0] = self.tell_blocked(queue, tasks[0], closed)

    def count_exceeded(self, closed: Closed) -> None:
        """Count what a key has refused; of too many keys the others as those of one."""
        field = f"{closed.strategy} {closed.key}"
        # Tenants leave room for others.
        most = EXCEEDED_AT_MOST * (1 if closed.key.startswith("tenant:") else 2)
        if field not in self.exceeded and len(self.exceeded) >= most:
            field = f"{closed.strategy} {OTHER_KEYS}"
        self.exceeded[field] += 1

    def tell_blocked(self, queue: str, task: Task, closed: Closed) -> Task:
        """A task is refused; return what it is from now on."""
        if task.blocked:
            return task
        self.happenings.tell_of("rate_limit.exceeded", queue, task, **closed._asdict())
        return replace(task, blocked=f"{closed.strategy}|{closed.key}")

    def tell_started(self, queue: str, task: Task) -> Task:
        """A task starts; return what it is from now on."""
        if not task.blocked:
            return task
        if task.blocked != STARTED:
            strategy, _, key = task.blocked.partition("|")
            self.happenings.tell_of("rate_limit.released", queue, task, key=key, strategy=strategy)
        return replace(task, blocked=STARTED)
