"""How long things took in a run, and how long they may take (``verdict``).

Nobody starves: each task that waits for something slow (``plan.STARVABLE``) must begin in its time.
It may wait longer by the time that these took of its wait, together:

- An outage, and a second. If slots of their key are lent to partitions, and another server has one
  of these or their home since: an outage, a lease and a margin. The home counts the slots of the
  server before for that long (ADR 30).
- The lease of a process that died with a task of the same key. If it was of the same tenants, also
  the time until that task begins again. It is the first of its lane, and a worker starts such tasks
  one by one.
- A freeze and a lease, in which the frozen worker may have the task.
- A lease of a worker that had a task of the same key, until its begin or the worker's death.

A killed worker may have had it too, which costs it one more lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from tests.chaos.plan import OF_CLUSTER
from tests.chaos.story import Attempt, Span, Story

CHILD_SECONDS = 2.0
#: How late the end of a lease may be seen: a claim that found nothing sleeps for so long.
SLACK_SECONDS = 1.0
RESUME_SECONDS = 5.0
#: How long after an outage nothing may begin, where not the first begin is judged but one of many.
AWAKE_SECONDS = 1.0
RESUME_IN_CLUSTER_SECONDS = 10.0


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


def resume_seconds(outage: Span) -> float:
    """Return how soon after an outage work must go on."""
    return RESUME_IN_CLUSTER_SECONDS if outage.what in OF_CLUSTER else RESUME_SECONDS


def slots_back(
    story: Story, limits: Mapping[str, int | None], max_deliveries: int | None = None
) -> tuple[list[Wait], int]:
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
            is_late = next_at - at > bound
            if is_late and (disturbed or not story.has_free_place(over, max_deliveries)):
                not_checked += 1
                continue
            waits.append(Wait(what, at, next_at - at, bound, outage_after(story, at, over)))
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


def outage_after(story: Story, at: float, over: float) -> float:
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
    else may have happened to it or to the cluster. A worker whose next body has died before kept
    its places for that one (ADR 18).
    """
    begins: dict[str, list[float]] = {}
    for attempt in story.attempts:
        begins.setdefault(attempt.worker, []).append(attempt.begun)
    suspects = {(each.worker, each.begun) for each in story.attempts if each.redelivered}
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
            next_at = min((at for at in begins.get(worker, ()) if at > over), default=inf)
            seconds, waits = next_at - over, (worker, next_at) not in suspects
            if seconds <= bound or (worker in judged and waits):
                yield Wait(f"{worker} after {outage.what}", over, seconds, bound)


def lent_seconds(lease_seconds: float) -> float:
    """Return for how long a home counts what a server had that was replaced (permits.lua)."""
    return lease_seconds + lease_seconds / 3 + 2.0


def waits_of(
    story: Story,
    tenants: tuple[str, ...],
    bound: float,
    lenders: Collection[str] = (),
    beside: Collection[str] = (),
) -> list[Wait]:
    """Return how long each task of some tenants waited until its body began first.

    Tasks that another one has replaced are left out, and so are those that died with their process.

    Args:
        lenders: How the keys begin of the partitions that slots are lent to, and of their home.
        beside: The other tenants of the same key.
    """
    kept = story.lease_seconds + SLACK_SECONDS
    died = [
        (each.over, max(each.over + kept, _begins_again(story, each) if tenant in tenants else 0.0))
        for tenant in (*tenants, *beside)
        for each in story.of_tenant.get(tenant, ())
        if each.outcome is None
    ]
    lent = AWAKE_SECONDS + lent_seconds(story.lease_seconds)
    faults = [
        (each.begun, each.over + (AWAKE_SECONDS if set(lenders).isdisjoint(each.hit) else lent))
        for each in story.outages
    ]
    faults += [(each.begun, each.over + kept) for each in story.freezes]
    faults += [(begun, over) for begun, over in story.unbegun((*tenants, *beside), kept)]
    gone = {name for names in story.unfinished()[1:] for name in names}
    found = []
    for task_id, submit in story.submits.items():
        attempts = story.attempts_of.get(task_id, ())
        if submit["tenant"] not in tenants or (not attempts and task_id in gone):
            continue
        if not attempts and task_id in story.ended_as_duplicates:
            continue
        due = submit["due"]
        begins = min((each.begun for each in attempts), default=inf)
        spans = [*faults, *died]
        # One worker at most had this task.
        killed = any(due <= kill["at"] <= begins for kill in story.kills)
        more = _length(spans, due, begins) + kept * killed
        found.append(Wait(submit["tenant"], due, begins - due, bound, more))
    return found


def _begins_again(story: Story, attempt: Attempt) -> float:
    """Return when the task of an attempt that died began again, or when it died if it never did."""
    begins = [each.begun for each in story.attempts_of[attempt.id] if each.begun > attempt.over]
    return min(begins, default=attempt.over)


def _length(spans: list[tuple[float, float]], begun: float, over: float) -> float:
    """Return how much of a time some of these spans cover."""
    length, until = 0.0, begun
    for first, last in sorted(spans):
        since, last = max(first, until), min(last, over)
        if last > since:
            length += last - since
            until = last
    return length
