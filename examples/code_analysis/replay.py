"""Calculates the waits of a run's jobs with another snooze.

Each job requests a slot of its user at its time of sending. If the user is at the limit, the job
requests again after a snooze. With a slot it runs as long as it did in the run.

Invariant: one seed gives one answer, and no more jobs than the limit run at once.

Weakness: it has only limits and no workers, so it shows the cost of the snoozes alone.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass

from examples.code_analysis.jobs import Job


@dataclass(frozen=True)
class Snooze:
    """The wait of a rejected job: a fixed part, plus a random part up to the jitter."""

    seconds: float
    jitter_seconds: float

    def __str__(self) -> str:
        """Its form as text."""
        return f"{self.seconds:g} s + {self.jitter_seconds:g} s"

    def draw(self, chance: random.Random) -> float:
        """One wait."""
        return self.seconds + chance.random() * self.jitter_seconds


@dataclass(frozen=True)
class Replayed:
    """The result for one job."""

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
        jobs: jobs of one user. Those that did not run are left out.
        limit: jobs at once. None is no limit. With 0 the result is an empty list.
        snooze: the wait of a rejected job, at least a millisecond.
        seed: the seed of the jitter.
    """
    if limit == 0:
        return []
    chance = random.Random(seed)
    # (time of the request, a number that orders equal times, first request, run time, rejections)
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
