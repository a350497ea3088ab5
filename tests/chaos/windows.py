"""Rates and throttles in a run: whether more bodies began in a window than may start in it.

The ledger knows when a body began, which is after its claim; the claim is what a limit counts. So
of two starts the first may have begun late and the second at once, and both look nearer than they
were claimed. A window is therefore read shorter by BEGINS_WITHIN: with eight workers on two
processors a body begins that soon after its claim. What may have taken longer, by a frozen worker,
a killed process or a Redis that did not answer shortly before, is left out, and so is a task that
has died, which waits in its worker for the one before it: who leaves out a start finds less, and
never what was not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.chaos.plan import Pace
from tests.chaos.story import Attempt, Story

#: A body begins so soon after its claim where no fault comes between.
BEGINS_WITHIN = 1.0
#: How long after a fault a body may begin that was claimed before it.
HIDES = 5.0


@dataclass(frozen=True)
class Rush:
    """More began in a window than may start in it: the first and the last of them."""

    tenant: str
    begun: float
    seconds: float
    ids: tuple[str, ...]


def rushes(story: Story, paces: Mapping[str, Pace]) -> Iterator[Rush]:
    """Yield every window in which a tenant started more than its pace allows."""
    for tenant, pace in paces.items():
        attempts = story.of_tenant.get(tenant, [])
        judged = sorted(
            (each for each in attempts if not _delayed(story, each)), key=lambda each: each.begun
        )
        for number in range(pace.most, len(judged)):
            window = judged[number - pace.most : number + 1]
            seconds = window[-1].begun - window[0].begun
            if seconds < pace.seconds - BEGINS_WITHIN:
                yield Rush(tenant, window[0].begun, seconds, tuple(each.id for each in window))


def _delayed(story: Story, attempt: Attempt) -> bool:
    """Say whether the body may have begun long after its claim."""
    since = attempt.begun - HIDES
    return (
        any(
            each.outcome is None and each.over < attempt.begun
            for each in story.attempts_of[attempt.id]
        )
        or any(outage.meets(since, attempt.begun) for outage in story.outages)
        or any(
            freeze.what == attempt.worker and freeze.meets(since, attempt.begun)
            for freeze in story.freezes
        )
        or any(
            kill["worker"] == attempt.worker and since <= kill["at"] <= attempt.begun
            for kill in story.kills
        )
    )
