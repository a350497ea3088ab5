"""The verdict: one sentence on an installation, with its causes and those that were ruled out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from celery_fairness.control.health.views import Verdict
from celery_fairness.control.installation.views import (
    OwnerStatus,
    UnannouncedWorker,
    WorkerReplies,
    WorkerStatus,
)
from celery_fairness.control.installation.workers import not_enforcing
from celery_fairness.control.queue.views import QueueStatus
from celery_fairness.control.tenant.views import UnresolvedTenant
from celery_fairness.limiter.unresolved_tenants import TENANTS_AT_MOST

#: If a place is free, a task that may start has normally started within this time, in seconds.
SLOW_SECONDS = 5.0
#: With at least this value of Jain's index, the tenants hold about what they are entitled to.
FAIR = 0.9
#: Names that one sentence has.
NAMED = 3
#: A gate's Redis does not have the tasks that wait in the broker, or in a worker with a countdown.
NOTHING_AT_A_GATE = "no task is parked or holds a slot; tasks in the broker are not counted here"
#: The words for the states of tenants whose tasks do not start.
STATES = {
    "tier": "at their tenants' limits",
    "paused": "of paused tenants",
    "limit": "at other limits",
}


def verdict_of(
    queues: Sequence[QueueStatus],
    workers: Sequence[WorkerStatus],
    owners: Sequence[OwnerStatus],
    index: float | None,
    replies: WorkerReplies,
    *,
    at: datetime,
    claims: bool = True,
    unresolved: Sequence[UnresolvedTenant] = (),
    default_tier: str = "",
    missing: Sequence[str] = (),
) -> Verdict:
    """Return the verdict on an installation.

    Args:
        queues: Its queues, the first ones with their tenants.
        workers: Its live workers that are announced.
        owners: The processes that run tasks.
        index: Jain's index of its tenants' shares.
        replies: The workers that answered Celery, compared with the announced ones.
        at: When all but the replies was read.
        claims: Whether its Redis is the broker. At a gate only parked tasks and slots are counted.
        unresolved: The tenants for which the tier resolver failed lately, the newest first.
        default_tier: The tier that they had then.
        missing: The partitions that did not answer.
    """
    busy_places = {each.owner: each.leases for each in owners}
    checked = [_CheckedQueue(each, workers, busy_places) for each in queues if each.waiting]
    troubles = [missing_text(missing)] if missing else []
    troubles += [*_open_workers(workers), *_unannounced(replies)]
    if unresolved:
        troubles.append(f"{unresolved_text(unresolved)}; {they_had(unresolved, default_tier)}")
    troubles += _not_taken(checked)
    troubles += [line for each in checked for line in each.delays()]
    waits = [line for each in checked for line in each.reasons()]
    # A key may be that of limits in several queues.
    waits += dict.fromkeys(line for each in checked for line in each.savings())
    waits += _dead_letters(queues)
    ruled_out = tuple(_ruled_out(checked, workers, index, replies))
    unchecked = tuple(_unchecked(replies))
    lines = [*troubles, *waits]
    if not lines:
        runs = any(each.running for each in queues)
        idle = "nothing waits or runs" if claims else NOTHING_AT_A_GATE
        line = "all tenants get their share" if runs or checked else idle
        return Verdict(level="ok", line=line, ruled_out=ruled_out, unchecked=unchecked, at=at)
    return Verdict(
        level="trouble" if troubles else "busy",
        line=lines[0],
        causes=tuple(lines[1:]),
        ruled_out=ruled_out,
        unchecked=unchecked,
        at=at,
    )


def missing_text(missing: Sequence[str]) -> str:
    """Return that partitions do not answer, as a sentence without a full stop."""
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    names = ", ".join(missing[:NAMED])
    verb = "does" if len(missing) == 1 else "do"
    return f"{names}{more} {verb} not answer, so their tasks do not start and are not counted here"


class _CheckedQueue:
    """A queue with waiting tasks, and the workers that take it."""

    def __init__(
        self,
        queue: QueueStatus,
        workers: Sequence[WorkerStatus],
        busy_places: dict[str, int],
    ) -> None:
        self.queue = queue
        is_parked = not queue.queue
        self.takers = [
            each
            for each in workers
            if (each.path == "gate" if is_parked else queue.queue in each.queues)
        ]
        self.busy = sum(busy_places.get(each.owner, 0) for each in self.takers)
        self.free = sum(
            max(0, each.places - busy_places.get(each.owner, 0)) for each in self.takers
        )
        self.name = "the parked tasks" if is_parked else f"queue {queue.queue}"

    def delays(self) -> Iterator[str]:
        """Yield a problem if tasks could have started for a while and the workers run nothing.

        A worker that runs something may have a free place for the moment between two tasks.
        """
        queue, oldest = self.queue, self._oldest_ready()
        if self.takers and not self.busy and queue.startable and oldest > SLOW_SECONDS:
            yield (
                f"{self.name}: {tasks_text(queue.startable)} could start and {_places(self.free)} "
                f"free, but its workers run nothing, and one has waited {oldest:.0f} s"
            )

    def reasons(self) -> Iterator[str]:
        """Yield why tasks wait. If the next claim takes them, there is no reason."""
        queue = self.queue
        if not self.takers:
            return
        parts = [
            f"{queue.blocked_tasks[state]:,} of them {words}"
            for state, words in STATES.items()
            if queue.blocked_tasks.get(state)
        ]
        if not parts and self.free:
            return
        parts.append(f"{_places(self.free)} free" if self.free else "no place is free")
        yield f"{self.name}: {tasks_wait(queue.waiting)}, {'; '.join(parts)}"

    def savings(self) -> Iterator[str]:
        """Yield for which large tasks keys save slots or units, so that others wait."""
        for limit in self.queue.limits:
            if (saving := limit.saving) is not None:
                needs = f"needs {saving.needs:,} of {saving.of:,}, {saving.free:,} free"
                yield f"{limit.key}: a task of {saving.tenant} {needs}; the key saves for it"

    def _oldest_ready(self) -> float:
        waits = [each.waits_seconds or 0.0 for each in self.queue.tenants if each.startable]
        return max(waits, default=0.0)


def _open_workers(workers: Sequence[WorkerStatus]) -> Iterator[str]:
    others = not_enforcing(workers)
    if others:
        names = ", ".join(each.name for each in others[:NAMED])
        yield f"{not_enforced(len(others), len(workers))}: {names}"


def not_enforced(others: int, workers: int) -> str:
    """Return that some of the workers do not enforce limits."""
    noun, verb = "worker" if workers == 1 else "workers", "does" if others == 1 else "do"
    return f"{others} of {workers} {noun} {verb} not enforce limits"


def _unannounced(replies: WorkerReplies) -> Iterator[str]:
    if replies.sharing:
        whose = "its" if len(replies.sharing) == 1 else "their"
        yield f"{unannounced_text(replies)}; no limit of this installation holds for {whose} tasks"


def unannounced_text(replies: WorkerReplies) -> str:
    """Return who answers, is not announced and may take tasks of the installation."""
    others = replies.sharing
    names = named([unannounced_name(each) for each in others])
    are = "worker answers and is" if len(others) == 1 else "workers answer and are"
    return f"{len(others)} {are} not announced: {names}"


def unannounced_name(worker: UnannouncedWorker) -> str:
    """Return the name of a worker with its queues."""
    if worker.queues is None:
        return f"{worker.name} (it did not send its queues)"
    if not worker.queues:
        return f"{worker.name} (takes no queue)"
    noun = "queue" if len(worker.queues) == 1 else "queues"
    return f"{worker.name} (takes {noun} {named(worker.queues)})"


def unresolved_text(tenants: Sequence[UnresolvedTenant]) -> str:
    """Return for whom the tier resolver failed lately, and when last."""
    who = f"{len(tenants)} tenants" if len(tenants) > 1 else "1 tenant"
    if len(tenants) >= TENANTS_AT_MOST:
        # One report of a process names no more, and Redis keeps no more than a few reports.
        who = f"at least {who}"
    names = named([each.key.removeprefix("tenant:") for each in tenants])
    last = tenants[0]
    return (
        f"the tier resolver failed for {who} in the last 15 minutes: {names}; the last time at "
        f"{clock_text(last.last_at)} with {last.error}"
    )


def they_had(tenants: Sequence[UnresolvedTenant], default_tier: str) -> str:
    """Return the tier that these tenants had when the resolver failed."""
    who = "it" if len(tenants) == 1 else "they"
    return f"{who} had the default tier {default_tier} at that time"


def _not_taken(checked: Sequence[_CheckedQueue]) -> Iterator[str]:
    queues = [each for each in checked if not each.takers]
    if queues:
        names = named([each.name for each in queues])
        waiting = sum(each.queue.waiting for each in queues)
        yield f"no worker takes {names}: {tasks_wait(waiting)}"


def _dead_letters(queues: Sequence[QueueStatus]) -> Iterator[str]:
    dead = sum(each.dead for each in queues)
    if dead:
        yield f"{tasks_text(dead)} ended as dead letters: doctor names their causes"


def _ruled_out(
    checked: Sequence[_CheckedQueue],
    workers: Sequence[WorkerStatus],
    index: float | None,
    replies: WorkerReplies,
) -> Iterator[str]:
    if workers and not not_enforcing(workers):
        yield f"{_all(len(workers), 'announced worker')} {_s('enforce', len(workers))} limits"
    if replies.answered and not replies.unannounced:
        who = f"{_all(replies.answered, 'worker')} that answered at {clock_text(replies.at)}"
        yield f"{who} {'is' if replies.answered == 1 else 'are'} announced"
    if checked and all(each.takers for each in checked):
        yield "every queue with waiting tasks has a worker"
    if checked and not any(each.queue.blocked_tasks.get("paused") for each in checked):
        yield "no waiting task is of a paused tenant"
    if index is not None and index >= FAIR:
        yield f"the tenants hold what they are entitled to (Jain's index {index:.2f})"


def _unchecked(replies: WorkerReplies) -> Iterator[str]:
    if why := unseen_text(replies):
        yield f"whether a worker that is not announced takes tasks: {why}"


def unseen_text(replies: WorkerReplies) -> str:
    """Return why no worker was seen on the control bus. "" if one was."""
    if replies.problem:
        return replies.problem
    if not replies.answered:
        return f"no worker answered Celery's control bus at {clock_text(replies.at)}"
    return ""


def clock_text(at: datetime) -> str:
    """Return the time of day of a look."""
    return f"{at:%H:%M:%S} UTC"


def _all(count: int, noun: str) -> str:
    return f"the {noun}" if count == 1 else f"all {count:,} {noun}s"


def _s(verb: str, count: int) -> str:
    return f"{verb}s" if count == 1 else verb


def named(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def tasks_text(count: int) -> str:
    """Return a number of tasks."""
    return "1 task" if count == 1 else f"{count:,} tasks"


def tasks_wait(count: int) -> str:
    """Return that so many tasks wait."""
    return f"{tasks_text(count)} {'waits' if count == 1 else 'wait'}"


def _places(count: int) -> str:
    return "1 place is" if count == 1 else f"{count:,} places are"
