"""Rates and throttles in a run: whether more bodies began in a window than may start in it.

The ledger knows when a body began, which is after its claim; the claim is what a limit counts. So
of two starts the first may have begun late and the second at once, and both look nearer than they
were claimed. A window is therefore read shorter by BEGINS_WITHIN: with eight workers on two
processors a body begins that soon after its claim. What may have taken longer, by a frozen worker,
a killed process or a Redis that did not answer shortly before, is left out, and so is a task that
has died, which waits in its worker for the one before it: who leaves out a start finds less, and
never what was not there.

A start that counts units counts what the body has reported, once Redis has answered. A claim that
came while the report was on its way may have seen either number, so the smaller one counts.
"""

from __future__ import annotations

from collections import defaultdict
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

    key: str
    begun: float
    seconds: float
    ids: tuple[str, ...]
    counted: int


def rushes(story: Story, paces: Mapping[str, Pace]) -> Iterator[Rush]:
    """Yield every window in which a key started more than its pace allows."""
    for name, pace in paces.items():
        of_key: dict[str, list[Attempt]] = defaultdict(list)
        for tenant in pace.tenants:
            for attempt in story.of_tenant.get(tenant, []):
                key = f"{name} {attempt.part}" if pace.by_part else name
                if not _delayed(story, attempt):
                    of_key[key].append(attempt)
        for key, attempts in of_key.items():
            yield from _rushes_of(key, pace, sorted(attempts, key=lambda each: each.begun))


def _rushes_of(key: str, pace: Pace, attempts: list[Attempt]) -> Iterator[Rush]:
    """Look at the window that ends with each start, which had room for this start when it came."""
    first = 0
    for number, last in enumerate(attempts):
        while last.begun - attempts[first].begun >= pace.seconds - BEGINS_WITHIN:
            first += 1
        window = attempts[first : number + 1]
        counted = len(window)
        if pace.counts == "units":
            # A body may have corrected the start before it since the claim.
            since = last.begun - BEGINS_WITHIN
            counted = last.units
            counted += sum(each.least_units(since, last.begun) for each in window[:-1])
        if counted > pace.most:
            ids = tuple(each.id for each in window)
            begun = window[0].begun
            yield Rush(key, begun, last.begun - begun, ids, counted)


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
