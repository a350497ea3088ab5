"""Unique tasks in a run: whether each key has had the tasks that its declaration promises.

A call took its key at some moment between its begin and its answer. A task has its key at least
until a body has reached its end. If no fault comes, it gives the key back within SETTLE_SECONDS
after that. The bounds here are wider: a lease and an outage may come between.

- While a task has its key, `drop` and `existing` let no other one begin.
- A task is dropped, or a call gets the existing task, only while another task may have the key.
- A task is replaced only if a newer one was put.
- A replaced task begins nothing later. A task that may have been given to a process that died or
  froze is not judged, because it ran when it should have been replaced.
- A debounced task begins after its time, or at the latest time after the first call.

That no unique task is lost, and that no key outlives its task, R1 and R5 say too (``verdict``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import NamedTuple

from tests.chaos.ledger import Event
from tests.chaos.plan import DEBOUNCE_AT_MOST_SECONDS, DEBOUNCE_SECONDS, LOSING
from tests.chaos.story import Story
from tests.chaos.waits import SLACK_SECONDS, outage_after
from tests.chaos.windows import BEGINS_WITHIN

#: How much earlier than its time a debounced task may begin: clocks have milliseconds.
EARLY_SECONDS = 0.1


@dataclass(frozen=True)
class Broken:
    """A promise that was broken, and the tasks that show it."""

    what: str
    ids: tuple[str, ...]


class Counts(NamedTuple):
    """How many unique tasks had which end."""

    ran: int
    dropped: int
    replaced: int
    existing: int


class _Call(NamedTuple):
    id: str
    key: str
    at: float
    #: Until when it was put, if it was.
    taken: float
    #: Whether it was put for sure.
    sure: bool

    @property
    def alone(self) -> bool:
        return self.key.startswith(("drop:", "existing:"))


def counts(story: Story) -> Counts:
    """Return how many unique tasks had which end."""
    how = [event["how"] for event in story.ended_as_duplicates.values()]
    ran = sum(story.is_done(name) for name, each in story.submits.items() if each.get("unique"))
    return Counts(ran, how.count("dropped"), how.count("replaced"), len(story.existing))


def broken_promises(story: Story) -> Iterator[Broken]:
    """Yield every promise of a unique task that was broken."""
    for key, calls in _calls(story).items():
        for call in calls:
            others = [each for each in calls if each.id != call.id]
            yield from _judged(story, call, others)
        for event in story.existing:
            if event["unique"] == key:
                yield from _judged_existing(story, event, calls)


def _calls(story: Story) -> dict[str, list[_Call]]:
    found: dict[str, list[_Call]] = defaultdict(list)
    for event in [*story.submits.values(), *story.failed_submits]:
        if "unique" in event:
            sure = "taken" in event
            taken = event["taken"] if sure else event["failed"]
            key = event["unique"]
            found[key].append(_Call(event["id"], key, event["at"], taken, sure))
    return found


def _judged(story: Story, call: _Call, others: list[_Call]) -> Iterator[Broken]:
    end = story.ended_as_duplicates.get(call.id)
    attempts = story.attempts_of.get(call.id, ())
    if attempts and call.alone and call.sure:
        for other in others:
            if other.sure and other.taken < call.at and call.taken < _has_key_until(story, other):
                yield Broken("began while another task had its key", (call.id, other.id))
    how = end and end["how"]
    if how == "dropped" and not any(
        _may_have_key(story, each, call.at, call.taken) for each in others
    ):
        yield Broken("dropped while no task had its key", (call.id,))
    newer = any(each.taken >= call.at and (not end or each.at <= end["at"]) for each in others)
    if how == "replaced" and not newer:
        yield Broken("replaced by no newer task", (call.id,))
    begun = min((each.begun for each in attempts), default=inf)
    if not call.alone and begun < inf and call.sure:
        yield from _judged_begin(story, call, others, begun)


def _judged_begin(story: Story, call: _Call, others: list[_Call], begun: float) -> Iterator[Broken]:
    # What was given to a process that cannot go on ran, as far as Redis knows.
    since = call.at - story.lease_seconds
    ran_before = (
        any(since <= death["at"] <= begun for death in [*story.kills, *story.gone])
        or any(freeze.meets(since, begun) for freeze in story.freezes)
        or any(outage.meets(since, begun) for outage in story.outages)
    )
    for other in others:
        newer = other.sure and call.taken < other.at and other.taken + BEGINS_WITHIN < begun
        if newer and not ran_before and not story.accepted_before(call.id, other.taken):
            yield Broken("began though a newer task had replaced it", (call.id, other.id))
    if call.key.startswith("debounce:") and not _clock_was_set(story, call.at, begun):
        waited = begun >= call.at + DEBOUNCE_SECONDS - EARLY_SECONDS
        at_latest = _first_of(story, call, others).at + DEBOUNCE_AT_MOST_SECONDS
        if not waited and begun < at_latest - EARLY_SECONDS:
            yield Broken("began before its debounce was over", (call.id,))


def _first_of(story: Story, call: _Call, others: list[_Call]) -> _Call:
    """Return the first of the calls that were replaced one after the other, up to this one."""
    first = call
    for other in sorted(others, key=lambda each: each.at, reverse=True):
        if other.at < call.at:
            if other.sure and not story.ended_as_duplicates.get(other.id):
                break
            first = other
    return first


def _judged_existing(story: Story, event: Event, calls: list[_Call]) -> Iterator[Broken]:
    holder = next((each for each in calls if each.id == event["of"]), None)
    if holder is None or not _may_have_key(story, holder, event["at"], event["taken"]):
        yield Broken("got an existing task that had ended", (event["id"], event["of"]))


def _clock_was_set(story: Story, begun: float, over: float) -> bool:
    return any(each.what == "clock" and each.meets(begun, over) for each in story.outages)


@cache
def _has_key_until(story: Story, call: _Call) -> float:
    """Return until when a task has its key for sure; minus infinity if that is not known."""
    end = story.ended_as_duplicates.get(call.id)
    if end is not None:
        return -inf
    over = min(
        (
            each.over
            for each in story.attempts_of.get(call.id, ())
            if each.outcome == "ok" and story.frozen_too_long(each) == inf
        ),
        default=-inf,
    )
    # A replica that takes over may have neither the task nor its key.
    if any(each.what in LOSING and each.meets(call.at, over) for each in story.outages):
        return -inf
    return over


def _may_have_key(story: Story, call: _Call, since: float, until: float) -> bool:
    """Say whether a task may have its key at some moment of a span."""
    end = story.ended_as_duplicates.get(call.id)
    if call.at > until or (end is not None and end["how"] == "dropped"):
        return False
    attempts = story.attempts_of.get(call.id, ())
    over = max((each.over for each in attempts), default=inf)
    if end is not None:
        over = end["at"]
    elif not any(each.outcome == "ok" for each in attempts):
        # It may have begun elsewhere, and died there.
        over = inf
    kept = story.lease_seconds + SLACK_SECONDS
    if since <= over + kept:
        return True
    return since <= over + kept + outage_after(story, over, over + kept)
