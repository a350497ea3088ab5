"""What other snoozes would have given: a run's jobs once more, on paper.

Each job asks for a slot of its user when it was sent; it gets one if fewer than the limit run, and
else asks again after a snooze. How long it runs once it has a slot is what it took in the run.

Invariant: one seed gives one answer; no more than the limit run at once.

Weakness: it knows the limits and nothing else: a job never waits for a worker, so it tells what the
snoozes alone would cost.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass

from examples.code_analysis.jobs import Job


@dataclass(frozen=True)
class Snooze:
    """How long a refused job waits: the fixed part, and up to the jitter more."""

    seconds: float
    jitter_seconds: float

    def __str__(self) -> str:
        """As people write it."""
        return f"{self.seconds:g} s + {self.jitter_seconds:g} s"

    def draw(self, chance: random.Random) -> float:
        """One wait."""
        return self.seconds + chance.random() * self.jitter_seconds


@dataclass(frozen=True)
class Replayed:
    """What became of one job."""

    sent_seconds: float
    start_seconds: float
    end_seconds: float
    refusals: int

    @property
    def wait_seconds(self) -> float:
        """From its submission to its start."""
        return self.start_seconds - self.sent_seconds


def replay(jobs: Iterable[Job], limit: int | None, snooze: Snooze, seed: int) -> list[Replayed]:
    """Replay the jobs of one user that ran to their end.

    Args:
        jobs: of one user; those that did not run are left out.
        limit: how many run at once; None is no limit. With 0 nothing would ever run: an empty list.
        snooze: how long a refused job waits. A snooze of nothing would ask without end: it is
            taken as a millisecond.
        seed: of the jitter.
    """
    if limit == 0:
        return []
    chance = random.Random(seed)
    # (when it asks, a number that keeps equal times apart, its first asking, its length, refusals)
    asking = [
        (min(job.sends), number, min(job.sends), job.ends[0] - job.starts[0], 0)
        for number, job in enumerate(jobs)
        if job.sends and job.starts and job.ends
    ]
    heapq.heapify(asking)
    running: list[float] = []
    replayed = []
    while asking:
        now, number, sent, length, refusals = heapq.heappop(asking)
        while running and running[0] <= now:
            heapq.heappop(running)
        if limit is None or len(running) < limit:
            heapq.heappush(running, now + length)
            replayed.append(Replayed(sent, now, now + length, refusals))
        else:
            again = now + max(0.001, snooze.draw(chance))
            heapq.heappush(asking, (again, number, sent, length, refusals + 1))
    return replayed
