"""The verdict: what a ledger says against the thresholds.

R1  nothing is lost that can be redelivered; no tenant is above its limit at any instant; no window
    has more starts than a rate or a throttle allows (``windows``)
R2  the slot of a killed child is back within 2 s, that of a killed worker within a lease and 1 s
R3  after an outage of Redis no limit is exceeded, but by a claim that died with its primary before
    a replica had it; work resumes within 5 s; in a cluster each worker works again within 10 s
    after a change, and no call of ``delay()`` fails by a planned one
R5  when all has ended Redis knows no task any more
R6  no early-acked task begins twice; a late-acked poison begins at most ``max_deliveries`` times;
    a dead letter has died so often; each message that nobody can read is set aside
R7  nobody starves: what waits for units, bursts, rates, partitions or a key begins in its time
R8  unique tasks: what their declarations promise (``uniques``)

R6 is judged on fairredis. An outage or a freeze may lose the note that a body begins, so each of
them explains one more begin. No worker may end by an error of the package.

A sample of R2 that an outage fell into may take longer by the outage and what R3 allows. If another
worker was killed in the outage, it may take a lease more: Redis answers the dead worker's claim
afterwards. These samples are not judged:

- A freeze fell into it. The frozen worker may have the next task.
- No worker had a place free at its bound, or a task with one delivery left may have kept it.
- Its next task has died before. Such tasks start one after the other in their worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from tests.chaos.ledger import Event
from tests.chaos.plan import PLANNED, Cap, Pace
from tests.chaos.story import Attempt, Story
from tests.chaos.uniques import Broken, Counts, broken_promises, counts
from tests.chaos.waits import Wait, resume_seconds, resumes, slots_back, waits_of, workers_back
from tests.chaos.windows import Rush, rushes

#: How long after a run's end a fault may still have kept its worker from saying so.
SETTLE_SECONDS = 1.0

#: What explains that an end was reached twice.
SENT_TWICE = "sent twice"
PROCESS_DIED = "process died"
FROZEN = "frozen"
OUTAGE = "outage"
#: At a gate: another broker delivers a message again that was not acknowledged, at any time.
REDELIVERED = "delivered again by its broker"
UNEXPLAINED = "no fault near"
EXPLANATIONS = (SENT_TWICE, PROCESS_DIED, FROZEN, OUTAGE, REDELIVERED, UNEXPLAINED)


@dataclass(frozen=True)
class Excess:
    """A tenant or another key ran more than it may for a while."""

    key: str
    begun: float
    over: float
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Everything that was found.

    Attributes:
        submitted: Tasks that the broker took.
        done: Those that ran to their end.
        parked: Attempts of tasks that were parked. None if nothing parks tasks.
        lost: Those that did not and could have been redelivered.
        gone: Early-acked ones that were given to a process which died.
        unheld: Those that no replica had when their primary died.
        refused: Calls of ``delay()`` that failed without an outage that nobody planned.
        excesses: While no worker was frozen and Redis was there.
        rushes: Windows with more starts than a rate or a throttle allows.
        excesses_of_outages: In or soon after an outage of Redis.
        excesses_of_lost_writes: Soon after a primary died, by claims that no replica had.
        excesses_of_freezes: Only with attempts of workers frozen for longer than their leases.
        duplicates: Tasks that ran to an end which had been reached already, with what explains it.
        early_again: Early-acked tasks whose body began more than once, with what explains it.
        too_often: Poisons that began more often than they may.
        poisons: How many were sent.
        letters: Tasks that are dead letters.
        innocents: Those that began less often than a dead letter must.
        unreadable: Messages that nobody can read: how many were sent.
        not_set_aside: How many of them are neither dead letters nor in quarantine.
        judges_begins: Whether R6 is judged.
        after_child: Slots after a child was killed.
        after_worker: Slots after a worker was killed.
        not_checked: Slots of killed processes that are not judged.
        resumes: Work after outages.
        starvable: The first begins of tasks that wait for something slow, by what it is.
        uniques: How many unique tasks had which end. None if none were sent.
        broken: Promises of unique tasks that were broken.
        workers_back: The work of each worker after each change of a cluster.
        leftovers: What Redis and RabbitMQ know at the end.
        crashed: Workers that ended by an error with the package in its traceback.
        crashed_by_celery: The others that ended by an error; Celery has some.
    """

    submitted: int
    done: int
    parked: int | None
    lost: list[str]
    gone: list[str]
    unheld: list[str]
    refused: list[Event]
    excesses: list[Excess]
    rushes: list[Rush]
    excesses_of_outages: list[Excess]
    excesses_of_lost_writes: int
    excesses_of_freezes: int
    duplicates: dict[str, str]
    early_again: dict[str, str]
    too_often: list[str]
    poisons: int
    letters: int
    innocents: list[str]
    unreadable: int
    not_set_aside: int
    judges_begins: bool
    after_child: list[Wait]
    after_worker: list[Wait]
    not_checked: int
    resumes: list[Wait]
    workers_back: list[Wait]
    starvable: Mapping[str, list[Wait]]
    uniques: Counts | None
    broken: list[Broken]
    leftovers: Mapping[str, str]
    crashed: list[str]
    crashed_by_celery: int

    @property
    def holds(self) -> bool:
        """Whether every threshold does."""
        return self.holds_within(1.0)

    def holds_within(self, patience: float) -> bool:
        """Whether every threshold does, if waits may take ``patience`` times as long."""
        waits = [*self.after_child, *self.after_worker, *self.resumes, *self.workers_back]
        starvable = [wait for each in self.starvable.values() for wait in each]
        broken = (self.lost, self.excesses, self.rushes, self.excesses_of_outages, self.leftovers)
        broken = (*broken, self.refused, self.broken)
        unexplained = UNEXPLAINED in self.duplicates.values()
        again = UNEXPLAINED in self.early_again.values()
        if self.judges_begins and (again or self.too_often or self.innocents or self.not_set_aside):
            return False
        # A run without a parked task shows nothing of them, and so do no duplicates.
        shows_nothing = self.parked == 0 or (self.uniques is not None and 0 in self.uniques)
        if any((*broken, self.crashed, unexplained, shows_nothing)):
            return False
        # A quick run is so short that with patience for outages too no task of it could starve.
        return all(wait.seconds <= patience * wait.allowed for wait in waits) and all(
            wait.seconds <= patience * wait.bound + wait.more for wait in starvable
        )


def judge(
    story: Story,
    limits: Mapping[str, int | None],
    leftovers: Mapping[str, str] | None = None,
    paces: Mapping[str, Pace] | None = None,
    *,
    caps: Mapping[str, Cap] | None = None,
    starvable: Mapping[str, tuple[tuple[str, ...], float]] | None = None,
    lenders: Mapping[str, Collection[str]] | None = None,
    max_deliveries: int | None = None,
    parks: bool = False,
    has_uniques: bool = False,
) -> Verdict:
    """Judge a ledger.

    Args:
        story: The ledger.
        limits: What each tenant may run at once; None: no limit.
        leftovers: What Redis still knew at the end.
        paces: Limits of starts, by key.
        caps: Limits at once, by key, beside those of tenants.
        starvable: Tenants whose tasks wait for something slow, and the most seconds that they may.
        lenders: What lends slots to them, as `waits_of` takes it.
        max_deliveries: Deaths of a dead letter. None: the broker delivers again without a bound,
            and R6 is not judged.
        parks: The run is at a gate that parks tasks.
        has_uniques: Unique tasks were sent.
    """
    lost, gone, unheld = story.unfinished()
    frozen_apart = [
        replace(each, over=max(each.begun, min(each.over, story.frozen_too_long(each))))
        for each in story.attempts
    ]
    found = list(excesses(frozen_apart, limits, caps))
    of_lost = [
        each for each in found if any(story.runs_unheld(name, each.begun) for name in each.ids)
    ]
    of_outages = [each for each in found if each not in of_lost and _in_outage(story, each)]
    slots, not_checked = slots_back(story, limits, max_deliveries)
    crashes = [event for event in story.gone if event["status"] != 0]
    return Verdict(
        submitted=len(story.submits),
        done=sum(map(story.is_done, story.submits)),
        parked=sum(each.promoted for each in story.attempts) if parks else None,
        lost=lost,
        gone=gone,
        unheld=unheld,
        refused=list(refused(story)),
        excesses=[each for each in found if each not in (*of_lost, *of_outages)],
        rushes=list(rushes(story, paces or {})),
        excesses_of_outages=of_outages,
        excesses_of_lost_writes=len(of_lost),
        excesses_of_freezes=max(0, len(list(excesses(story.attempts, limits, caps))) - len(found)),
        duplicates=duplicates(story),
        early_again=early_again(story),
        too_often=too_often(story, max_deliveries or 1),
        poisons=len(story.poisons),
        letters=len(story.dead_letters.keys() & story.submits.keys()),
        innocents=[
            task_id
            for task_id in story.dead_letters.keys() & story.submits.keys()
            if len(story.attempts_of.get(task_id, ())) + story.unseen_begins(task_id)
            < (max_deliveries or 0)
        ],
        unreadable=story.unreadable,
        # A producer that lost its connection may have sent one twice.
        not_set_aside=max(0, story.unreadable - story.set_aside),
        judges_begins=max_deliveries is not None,
        after_child=[wait for wait in slots if wait.what == "child"],
        after_worker=[wait for wait in slots if wait.what == "worker"],
        not_checked=not_checked,
        resumes=resumes(story),
        workers_back=list(workers_back(story)),
        starvable={
            what: waits_of(
                *(story, tenants, bound, (lenders or {}).get(what, ())),
                _beside(tenants, caps or {}),
            )
            for what, (tenants, bound) in (starvable or {}).items()
        },
        uniques=counts(story) if has_uniques else None,
        broken=list(broken_promises(story)),
        leftovers=leftovers or {},
        crashed=[event["worker"] for event in crashes if event["ours"]],
        crashed_by_celery=len([event for event in crashes if not event["ours"]]),
    )


def _beside(tenants: Collection[str], caps: Mapping[str, Cap]) -> set[str]:
    """Return the other tenants that share a key with these."""
    keys = [set(cap.tenants) for cap in caps.values()]
    return set[str]().union(*(key for key in keys if key & set(tenants))) - set(tenants)


def refused(story: Story) -> Iterator[Event]:
    """Yield the calls of ``delay()`` that failed, if no outage explains it that nobody planned."""
    for call in story.failed_submits:
        if not any(
            outage.what not in PLANNED
            and outage.meets(call["at"] - resume_seconds(outage), call["failed"])
            for outage in story.outages
        ):
            yield call


def excesses(
    attempts: list[Attempt],
    limits: Mapping[str, int | None],
    caps: Mapping[str, Cap] | None = None,
) -> Iterator[Excess]:
    """Yield every span in which a tenant or another key ran more than it may."""
    moments: dict[str, list[tuple[float, int, str]]] = {}
    most: dict[str, int] = {}
    slots = {attempt.id: attempt.slots for attempt in attempts}
    by_slots = {name for name, cap in (caps or {}).items() if cap.counts == "slots"}
    for attempt in attempts:
        if attempt.begun >= attempt.over:
            continue
        limit = limits.get(attempt.tenant)
        allowed = {} if limit is None else {attempt.tenant: limit}
        for name, cap in (caps or {}).items():
            if attempt.tenant in cap.tenants:
                allowed[f"{name} {attempt.part}" if cap.by_part else name] = cap.most
        most |= allowed
        for key in allowed:
            # An end and a start at one moment are in this order.
            moments.setdefault(key, []).append((attempt.begun, 1, attempt.id))
            moments[key].append((attempt.over, -1, attempt.id))
    for key, of_key in moments.items():
        running: list[str] = []
        since: float | None = None
        seen: tuple[str, ...] = ()
        for at, change, task_id in sorted(of_key):
            if change > 0:
                running.append(task_id)
            elif task_id in running:
                running.remove(task_id)
            taken = sum(slots[each] for each in running) if key in by_slots else len(running)
            above = taken > most[key]
            if above and since is None:
                since, seen = at, tuple(running)
            elif not above and since is not None:
                yield Excess(key, since, at, seen)
                since = None


def _in_outage(story: Story, excess: Excess) -> bool:
    return any(
        excess.begun <= outage.over + story.lease_seconds and outage.begun <= excess.over
        for outage in story.outages
    )


def _tries(story: Story) -> Iterator[tuple[str, list[Attempt]]]:
    """Yield each task with the attempts of each of its tries."""
    for task_id, attempts in story.attempts_of.items():
        of_try: dict[int, list[Attempt]] = {}
        for attempt in attempts:
            of_try.setdefault(attempt.retries, []).append(attempt)
        for same in of_try.values():
            yield task_id, same


def duplicates(story: Story) -> dict[str, str]:
    """Return the tasks that reached an end again, and what explains it."""
    return {
        task_id: _why_again(story, same)
        for task_id, same in _tries(story)
        if sum(each.outcome in ("ok", "retry") for each in same) > 1
    }


def _why_again(story: Story, attempts: list[Attempt]) -> str:
    """Say what could keep Redis from hearing in time that an attempt ended or went on."""
    # Copies that a gate made of one message are of one sending.
    firsts = (each for each in attempts if each.message or not each.redelivered)
    if len({each.message or each for each in firsts}) > 1:
        # Or a try died after its retry was sent, and sent it again.
        return SENT_TWICE
    # One that was claimed before a freeze may begin after the others.
    for attempt in sorted(attempts, key=lambda each: each.begun):
        settled = replace(attempt, over=attempt.over + SETTLE_SECONDS)
        if story.death(attempt.worker, attempt.pid, attempt.over) <= settled.over:
            return PROCESS_DIED
        if story.frozen_too_long(settled) < inf:
            return FROZEN
        begun = attempt.begun - SETTLE_SECONDS
        if any(outage.meets(begun, settled.over) for outage in story.outages):
            return OUTAGE
    # A gate may have parked the message that came again, and then its copy is a new message.
    first_end = min(each.over for each in attempts)
    again = story.redeliveries[attempts[0].id, attempts[0].retries]
    if attempts[0].message and any(at > first_end for at in again):
        return REDELIVERED
    return UNEXPLAINED


def early_again(story: Story) -> dict[str, str]:
    """Return the early-acked tasks that began again, and what explains it."""
    return {
        task_id: _why_not_noted(story, same)
        for task_id, same in _tries(story)
        if not same[0].late and len(same) > 1
    }


def _why_not_noted(story: Story, attempts: list[Attempt]) -> str:
    """Say what could keep from Redis that an attempt began."""
    first, *_ = sorted(attempts, key=lambda each: each.begun)
    begun, over = first.begun - SETTLE_SECONDS, first.begun + SETTLE_SECONDS
    if any(outage.meets(begun, over) for outage in story.outages):
        return OUTAGE
    return FROZEN if story.frozen_too_long(first) < inf else UNEXPLAINED


def too_often(story: Story, max_deliveries: int) -> list[str]:
    """Return the poisons that began more often than they may.

    Args:
        max_deliveries: How often a late-acked one may begin. An early-acked one may begin once. A
            task that was sent twice is two.
    """
    found = []
    for task_id, submit in story.poisons.items():
        attempts = story.attempts_of.get(task_id, ())
        begins = [each.begun for each in attempts]
        sendings = max(1, sum(not each.redelivered for each in attempts))
        lost = sum(
            any(outage.meets(at - SETTLE_SECONDS, at + SETTLE_SECONDS) for outage in story.outages)
            for at in begins
        )
        if len(begins) - lost > sendings * (max_deliveries if submit["late"] else 1):
            found.append(task_id)
    return found
