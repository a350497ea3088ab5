"""The verdict: what a ledger says against the thresholds.

R1  nothing is lost that can be redelivered; no tenant is above its limit at any instant; no window
    has more starts than a rate or a throttle allows (``windows``)
R2  the slot of a killed child is back within 2 s, that of a killed worker within a lease and 1 s
R3  after an outage of Redis no limit is exceeded, and work resumes within 5 s; in a cluster each
    worker works again within 10 s after a change, and no call of ``delay()`` fails by a planned one
R5  when all has ended Redis knows no task any more
R6  no early-acked task begins twice; a late-acked poison begins at most ``max_deliveries`` times;
    a dead letter has died so often; each message that nobody can read is set aside

R6 is judged on fairredis. An outage or a freeze may lose the note that a body begins, so each of
them explains one more begin. No worker may end by an error of the package.

A sample of R2 that an outage fell into may take longer by the outage and what R3 allows. If another
worker was killed in the outage, it may take a lease more: Redis answers the dead worker's claim
afterwards. These samples are not judged:

- A freeze fell into it. The frozen worker may have the next task.
- No worker had a place free at its bound.
- Its next task has died before. Such tasks start one after the other in their worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from tests.chaos.ledger import Event
from tests.chaos.plan import OF_CLUSTER, PLANNED, Pace
from tests.chaos.story import Attempt, Span, Story
from tests.chaos.windows import Rush, rushes

CHILD_SECONDS = 2.0
#: How late the end of a lease may be seen: a claim that found nothing sleeps for so long.
SLACK_SECONDS = 1.0
RESUME_SECONDS = 5.0
RESUME_IN_CLUSTER_SECONDS = 10.0
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
    """A tenant ran more than it may for a while."""

    tenant: str
    begun: float
    over: float
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """How long something took after a fault.

    Attributes:
        bound: How long it may take.
        more: How much longer it may for the outages that fell into it.
    """

    what: str
    at: float
    seconds: float
    bound: float
    more: float = 0.0

    @property
    def allowed(self) -> float:
        """The longest time that it may take, in seconds."""
        return self.bound + self.more

    @property
    def holds(self) -> bool:
        """Whether it was in time."""
        return self.seconds <= self.allowed


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
    leftovers: Mapping[str, str]
    crashed: list[str]
    crashed_by_celery: int

    @property
    def holds(self) -> bool:
        """Whether every threshold does."""
        return self.holds_within(1.0)

    def holds_within(self, patience: float) -> bool:
        """Whether every threshold does, if each wait may take ``patience`` times its bound."""
        waits = [*self.after_child, *self.after_worker, *self.resumes, *self.workers_back]
        broken = (self.lost, self.excesses, self.rushes, self.excesses_of_outages, self.leftovers)
        broken = (*broken, self.refused)
        unexplained = UNEXPLAINED in self.duplicates.values()
        again = UNEXPLAINED in self.early_again.values()
        if self.judges_begins and (again or self.too_often or self.innocents or self.not_set_aside):
            return False
        # A run at a gate without a parked task shows nothing of them.
        return not any((*broken, self.crashed, unexplained, self.parked == 0)) and all(
            wait.seconds <= patience * wait.allowed for wait in waits
        )


def judge(
    story: Story,
    limits: Mapping[str, int | None],
    leftovers: Mapping[str, str] | None = None,
    paces: Mapping[str, Pace] | None = None,
    *,
    max_deliveries: int | None = None,
    parks: bool = False,
) -> Verdict:
    """Judge a ledger.

    Args:
        story: The ledger.
        limits: What each tenant may run at once; None: no limit.
        leftovers: What Redis still knew at the end.
        paces: Limits of starts, by tenant.
        max_deliveries: Deaths of a dead letter. None: the broker delivers again without a bound,
            and R6 is not judged.
        parks: The run is at a gate that parks tasks.
    """
    lost, gone, unheld = story.unfinished()
    frozen_apart = [
        replace(each, over=max(each.begun, min(each.over, story.frozen_too_long(each))))
        for each in story.attempts
    ]
    found = list(excesses(frozen_apart, limits))
    of_outages = [each for each in found if _in_outage(story, each)]
    slots, not_checked = slots_back(story, limits)
    crashes = [event for event in story.gone if event["status"] != 0]
    return Verdict(
        submitted=len(story.submits),
        done=sum(map(story.is_done, story.submits)),
        parked=sum(each.promoted for each in story.attempts) if parks else None,
        lost=lost,
        gone=gone,
        unheld=unheld,
        refused=list(refused(story)),
        excesses=[each for each in found if each not in of_outages],
        rushes=list(rushes(story, paces or {})),
        excesses_of_outages=of_outages,
        excesses_of_freezes=max(0, len(list(excesses(story.attempts, limits))) - len(found)),
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
        leftovers=leftovers or {},
        crashed=[event["worker"] for event in crashes if event["ours"]],
        crashed_by_celery=len([event for event in crashes if not event["ours"]]),
    )


def resume_seconds(outage: Span) -> float:
    """Return how soon after an outage work must go on."""
    return RESUME_IN_CLUSTER_SECONDS if outage.what in OF_CLUSTER else RESUME_SECONDS


def refused(story: Story) -> Iterator[Event]:
    """Yield the calls of ``delay()`` that failed, if no outage explains it that nobody planned."""
    for call in story.failed_submits:
        if not any(
            outage.what not in PLANNED
            and outage.meets(call["at"] - resume_seconds(outage), call["failed"])
            for outage in story.outages
        ):
            yield call


def excesses(attempts: list[Attempt], limits: Mapping[str, int | None]) -> Iterator[Excess]:
    """Yield every span in which a tenant ran more than it may."""
    moments: dict[str, list[tuple[float, int, str]]] = {}
    for attempt in attempts:
        if limits.get(attempt.tenant) is not None and attempt.begun < attempt.over:
            # An end and a start at one moment are in this order.
            moments.setdefault(attempt.tenant, []).append((attempt.begun, 1, attempt.id))
            moments[attempt.tenant].append((attempt.over, -1, attempt.id))
    for tenant, of_tenant in moments.items():
        limit = limits[tenant]
        running: list[str] = []
        since: float | None = None
        seen: tuple[str, ...] = ()
        for at, change, task_id in sorted(of_tenant):
            if change > 0:
                running.append(task_id)
            elif task_id in running:
                running.remove(task_id)
            above = limit is not None and len(running) > limit
            if above and since is None:
                since, seen = at, tuple(running)
            elif not above and since is not None:
                yield Excess(tenant, since, at, seen)
                since = None


def _in_outage(story: Story, excess: Excess) -> bool:
    return any(
        excess.begun <= outage.over + story.lease_seconds and outage.begun <= excess.over
        for outage in story.outages
    )


def duplicates(story: Story) -> dict[str, str]:
    """Return the tasks that reached an end again, and what explains it."""
    found = {}
    for task_id, attempts in story.attempts_of.items():
        of_try: dict[int, list[Attempt]] = {}
        for attempt in attempts:
            of_try.setdefault(attempt.retries, []).append(attempt)
        for same in of_try.values():
            if sum(each.outcome in ("ok", "retry") for each in same) > 1:
                found[task_id] = _why_again(story, same)
    return found


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
    found = {}
    for task_id, attempts in story.attempts_of.items():
        of_try: dict[int, list[Attempt]] = {}
        for attempt in attempts:
            of_try.setdefault(attempt.retries, []).append(attempt)
        for same in of_try.values():
            if not same[0].late and len(same) > 1:
                found[task_id] = _why_not_noted(story, same)
    return found


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
        max_deliveries: How often a late-acked one may begin. An early-acked one may begin once.
    """
    found = []
    for task_id, submit in story.poisons.items():
        begins = [each.begun for each in story.attempts_of.get(task_id, ())]
        lost = sum(
            any(outage.meets(at - SETTLE_SECONDS, at + SETTLE_SECONDS) for outage in story.outages)
            for at in begins
        )
        if len(begins) - lost > (max_deliveries if submit["late"] else 1):
            found.append(task_id)
    return found


def slots_back(story: Story, limits: Mapping[str, int | None]) -> tuple[list[Wait], int]:
    """Return how long the slots of killed bodies were gone, and how many cannot be judged.

    Looked at are tenants that may run one task, whose task was killed while another was due. Where
    every worker runs all that it may, a slot that is back shows nowhere.
    """
    waits, not_checked = [], 0
    for kill in story.kills:
        at, what = kill["at"], kill["what"]
        bound = CHILD_SECONDS if what == "child" else story.lease_seconds + SLACK_SECONDS
        for tenant, limit in limits.items():
            attempts = story.of_tenant.get(tenant, [])
            if limit != 1 or not any(_killed_by(kill, each) for each in attempts):
                continue
            next_at = min((each.begun for each in attempts if each.begun > at), default=inf)
            if not _work_waits(story, tenant, at, next_at):
                continue
            over = min(next_at, at + bound)
            disturbed = any(freeze.meets(at, over) for freeze in story.freezes)
            if what == "child":
                died_too = story.death(kill["worker"], -1, at)
                disturbed = disturbed or died_too <= over
            disturbed = disturbed or _has_died(story, attempts, next_at)
            if next_at - at > bound and (disturbed or not story.has_free_place(over)):
                not_checked += 1
                continue
            waits.append(Wait(what, at, next_at - at, bound, _outage_after(story, at, over)))
    return waits, not_checked


def _has_died(story: Story, attempts: list[Attempt], at: float) -> bool:
    """Say whether the task that begins at a moment has died before, so that it waited its turn."""
    ids = {each.id for each in attempts if each.begun == at}
    return any(
        each.outcome is None and each.over < at
        for task_id in ids
        for each in story.attempts_of[task_id]
    )


def _killed_by(kill: Mapping[str, object], attempt: Attempt) -> bool:
    return (
        attempt.outcome is None
        and attempt.worker == kill["worker"]
        and (kill["what"] == "worker" or attempt.pid == kill["pid"])
        and attempt.begun <= kill["at"] == attempt.over
    )


def _work_waits(story: Story, tenant: str, at: float, next_at: float) -> bool:
    """Say whether a task was due at a moment that had not begun; by what began next, or never."""
    for task_id, submit in story.submits.items():
        if submit["tenant"] != tenant or submit["due"] > at:
            continue
        first = min((each.begun for each in story.attempts_of.get(task_id, ())), default=inf)
        if first > at and (next_at < inf or first == inf):
            return True
    return False


def _outage_after(story: Story, at: float, over: float) -> float:
    """Return how much longer a wait may be for the outages that fell into it.

    Args:
        over: When it is over without any.
    """
    more, fell = 0.0, []
    for outage in sorted(story.outages, key=lambda each: each.begun):
        # What came shortly before may still be recovered from, and the next may come meanwhile.
        resumes = resume_seconds(outage)
        if outage.begun <= over + more and at <= outage.over + resumes:
            more += outage.over - max(at, outage.begun) + resumes
            fell.append(outage)
    deaths = [kill["at"] for kill in story.kills if kill["what"] == "worker" and kill["at"] > at]
    if any(outage.begun <= death <= outage.over for outage in fell for death in deaths):
        more += story.lease_seconds
    return more


def resumes(story: Story) -> list[Wait]:
    """Return how long after each outage the next body began."""
    begins = [each.begun for each in story.attempts]
    return [
        Wait(
            outage.what,
            outage.over,
            min((at for at in begins if at > outage.over), default=inf) - outage.over,
            resume_seconds(outage),
        )
        for outage in story.outages
    ]


def workers_back(story: Story) -> Iterator[Wait]:
    """Yield how long after each change of a cluster each worker began its next body.

    A late worker is judged if it had a place for half of the time, and tasks were sent. Nothing
    else may have happened to it or to the cluster.
    """
    begins: dict[str, list[float]] = {}
    for attempt in story.attempts:
        begins.setdefault(attempt.worker, []).append(attempt.begun)
    sent_until = max((each["at"] for each in story.submits.values()), default=0.0)
    for outage in story.outages:
        over, bound = outage.over, RESUME_IN_CLUSTER_SECONDS
        if outage.what not in OF_CLUSTER or sent_until < over + bound:
            continue
        judged: set[str] = set()
        if not any(over < each.begun <= over + bound for each in story.outages):
            judged = story.with_place(outage.begun, over + bound / 2)
            judged &= story.with_place(outage.begun, over + bound)
        before = {worker for worker, times in begins.items() if min(times) < outage.begun}
        for worker in sorted(before | judged):
            seconds = min((at for at in begins.get(worker, ()) if at > over), default=inf) - over
            if seconds <= bound or worker in judged:
                yield Wait(f"{worker} after {outage.what}", over, seconds, bound)
