"""What a ledger tells: every attempt with its end, every death, freeze and outage.

An attempt without an end of its own ended when its process died.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from tests.chaos.ledger import Event
from tests.chaos.plan import LOSING

#: So soon after a pool got a task its body has written its first line.
BEGINS_SOON = 0.5
#: So soon after a task was taken its sender has asked whether a replica has it.
ASKED_WITHIN = 1.0
#: A worker that has a place claims what waits within this time.
CLAIM_SECONDS = 1.0
#: How long after a freeze a body may begin that was claimed before it.
AFTER_THAW_SECONDS = 1.0


@dataclass(frozen=True)
class Span:
    """Something that lasted: a freeze of a worker, or an outage of Redis.

    Attributes:
        hit: How the keys begin that another server has afterwards.
    """

    what: str
    begun: float
    over: float
    hit: tuple[str, ...] = ()

    def meets(self, begun: float, over: float) -> bool:
        """Say whether it shares a moment with another span."""
        return self.begun <= over and begun <= self.over


@dataclass(frozen=True)
class Use:
    """A report of the units that a body has used.

    Attributes:
        begun: When it was about to be sent. From then on it may count.
        over: When it was answered: from then on it counts, if `counted`. Infinity if never.
    """

    units: int
    begun: float
    over: float
    counted: bool


@dataclass(frozen=True)
class Attempt:
    """One run of a body.

    Attributes:
        units: What its start counts at a rate of units.
        slots: What it counts at a concurrency of slots.
        uses: Reports in place of that, in their order.
        part: Which part of a queue its task is of.
        message: The identity that all copies of its message have at a gate.
        promoted: Whether the task was parked before.
        over: When it ended or its process died; infinity where neither is known.
        outcome: ``ok``, ``retry``, ``error ...``; None where it did not end by itself.
    """

    id: str
    tenant: str
    late: bool
    redelivered: bool
    message: str | None
    promoted: bool
    retries: int
    worker: str
    pid: int
    begun: float
    over: float
    outcome: str | None
    units: int = 1
    slots: int = 1
    uses: tuple[Use, ...] = ()
    part: str = ""

    def least_units(self, since: float, until: float) -> int:
        """Return the fewest units that its start may have counted at some moment of a span."""
        least = self.units
        for use in self.uses:
            if use.counted and use.over <= since:
                least = use.units
            elif use.begun <= until:
                least = min(least, use.units)
        return least


class Story:
    """A ledger that was read.

    Args:
        events: Its lines in any order.
        lease_seconds: The setting of the app.
    """

    def __init__(self, events: Iterable[Event], lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.events = sorted(events, key=lambda event: event["at"])
        kinds: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            kinds[event["event"]].append(event)
        self.kills = kinds["kill"]
        self.gone = kinds["gone"]
        self.submits = {event["id"]: event for event in kinds["submit"]}
        self.poisons = {name: each for name, each in self.submits.items() if each.get("poison")}
        #: Deaths by the id of a task that is a dead letter, or by its tag if it has no id.
        self.dead_letters = {event["id"]: event["deaths"] for event in kinds["dead letter"]}
        #: Messages that nobody can read: how many were sent, and what became of them.
        self.unreadable = len(kinds["unreadable"])
        self.set_aside = len(self.dead_letters.keys() - self.submits.keys()) + sum(
            event["amount"] for event in kinds["quarantined"]
        )
        self.failed_submits = kinds["submit_failed"]
        #: Unique tasks that ended because another one has their key, and calls that sent nothing.
        self.ended_as_duplicates = {event["id"]: event for event in kinds["duplicate"]}
        self.existing = kinds["existing"]
        #: Tasks that a replica had while their primary was there.
        self.held = {name for event in kinds["held"] for name in event["ids"]}
        self.outages = [
            Span(e["kind"], e["at"], e["over"], tuple(e.get("hit", ()))) for e in kinds["outage"]
        ]
        self.freezes = [Span(e["worker"], e["at"], e["over"]) for e in kinds["freeze"]]
        self._worker_deaths = {
            event["worker"]: event["at"]
            for event in [*self.gone, *self.kills]
            if event.get("what") != "child"
        }
        #: When workers began to consume, and how many bodies each runs at once.
        self._ready = {e["worker"]: (e["at"], e.get("places", inf)) for e in kinds["ready"]}
        #: When workers were asked to end in order: from then on they begin nothing.
        self._stops = {event["worker"]: event["at"] for event in kinds["stop"]}
        self._ended_in_order = {event["worker"] for event in self.gone if event["status"] == 0}
        self._child_deaths: dict[tuple[str, int], list[float]] = defaultdict(list)
        for kill in self.kills:
            self._child_deaths[kill["worker"], kill["pid"]].append(kill["at"])
        ends = {event["run"]: event for event in kinds["end"]}
        self._uses = _uses(kinds["using"], kinds["used"])
        self.attempts = [self._attempt(event, ends.get(event["run"])) for event in kinds["start"]]
        self.attempts_of: dict[str, list[Attempt]] = defaultdict(list)
        self.of_tenant: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            self.attempts_of[attempt.id].append(attempt)
            self.of_tenant[attempt.tenant].append(attempt)
        #: When a broker delivered a message again, by the id and the retries of its task.
        self.redeliveries: dict[tuple[str, int], list[float]] = defaultdict(list)
        for event in kinds["accepted"]:
            if event.get("redelivered"):
                self.redeliveries[event["id"], event["retries"]].append(event["at"])
        self._received: dict[str, list[Event]] = defaultdict(list)
        for event in kinds["received"]:
            self._received[event["id"]].append(event)
        self._accepted: dict[str, list[Event]] = defaultdict(list)
        sent_back: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event in kinds["sent back"]:
            sent_back[event["id"], event["worker"]].append(event["at"])
        for event in kinds["accepted"]:
            # A worker has a message once at a time, so the next one that it sent back is this one.
            until = min(
                (at for at in sent_back[event["id"], event["worker"]] if at >= event["at"]),
                default=inf,
            )
            self._accepted[event["id"]].append({**event, "until": until})

    def death(self, worker: str, pid: int, after: float, *, violent: bool = False) -> float:
        """Return when a process died, infinity where it lives; ``violent``: or ended in order."""
        times = [at for at in self._child_deaths.get((worker, pid), ()) if at >= after]
        if not (violent and worker in self._ended_in_order):
            times.append(self._worker_deaths.get(worker, inf))
        return min(times, default=inf)

    def _attempt(self, start: Event, end: Event | None) -> Attempt:
        begun = start["at"]
        if end is None:
            # A line may be written while the signal is on its way.
            over = max(begun, self.death(start["worker"], start["pid"], begun - 0.5))
        else:
            over = end["at"]
        return Attempt(
            id=start["id"],
            tenant=start["tenant"],
            late=start["late"],
            redelivered=start["redelivered"],
            message=start.get("message"),
            promoted=start.get("promoted", False),
            retries=start["retries"],
            worker=start["worker"],
            pid=start["pid"],
            begun=begun,
            over=over,
            outcome=None if end is None else end["outcome"],
            units=start.get("units", 1),
            slots=start.get("slots", 1),
            uses=tuple(self._uses.get(start["run"], ())),
            part=start.get("part", ""),
        )

    def frozen_too_long(self, attempt: Attempt) -> float:
        """Return when the attempt's worker could no more keep its lease; infinity: it could.

        A lease that was renewed a third of it ago has two thirds left; a sixth is for being late.
        If the clock is set in the freeze, the lease may lose a third more. The same holds if it is
        set before the freeze and after the last renewal, which was up to half a lease ago. If Redis
        was away shortly before the freeze, the worker may not have renewed since; the outage takes
        up to a third. A body that begins right after a freeze may have been claimed before it.
        """
        kept = inf
        jumps = [each for each in self.outages if each.what == "clock"]
        for freeze in self.freezes:
            # A lease that begins later has lost nothing; a body may begin right after the freeze.
            since = max(freeze.begun - self.lease_seconds / 2, min(attempt.begun, freeze.begun))
            fell = sum(since < each.begun <= freeze.over for each in jumps)
            left = self.lease_seconds * (1 / 2 - fell / 3) - self._unrenewed(freeze.begun)
            left = max(0.0, left)
            if (
                freeze.what == attempt.worker
                and freeze.over - freeze.begun > left
                and freeze.meets(attempt.begun - AFTER_THAW_SECONDS, attempt.over)
            ):
                kept = min(kept, freeze.begun + left)
        return kept

    def _unrenewed(self, at: float) -> float:
        """Return how much of a lease an outage has taken, if a renewal may not have followed it."""
        third = self.lease_seconds / 3
        away = [each for each in self.outages if each.what != "clock"]
        recent = (each for each in away if each.begun < at < each.over + third)
        return max(
            (min(each.over - each.begun, third) + max(0.0, at - each.over) for each in recent),
            default=0.0,
        )

    def unbegun(self, tenants: Collection[str], kept: float) -> list[tuple[float, float]]:
        """Return the times in which workers had tasks of tenants that did not run.

        A task that has died waits in its worker for the one before it (ADR 18).

        Args:
            kept: For so long Redis keeps a task for a worker that has died, in seconds.
        """
        spans = []
        for task_id, received in self._received.items():
            if self.submits.get(task_id, {}).get("tenant") not in tenants:
                continue
            attempts = self.attempts_of.get(task_id, ())
            for event in received:
                at, worker = event["at"], event["worker"]
                begins = [each.begun for each in attempts if each.worker == worker]
                begun = min((each for each in begins if each >= at), default=inf)
                spans.append((at, min(begun, self.death(worker, -1, at) + kept)))
        return [span for span in spans if span[1] < inf]

    def has_free_place(self, at: float, max_deliveries: int | None = None) -> bool:
        """Say whether some worker could begin a body at a moment, as far as is known.

        It had a second to find the task. A task with one delivery left may keep a whole worker.
        """
        able = self.with_place(at - CLAIM_SECONDS, at)
        return not self._ready or len(able) > self._kept_workers(at, max_deliveries)

    def _kept_workers(self, at: float, max_deliveries: int | None) -> int:
        """Return how many workers may claim nothing.

        Each of them has a task with one delivery left, which starts alone (ADR 18).
        """
        kept = 0
        for attempts in self.attempts_of.values():
            died = [each for each in attempts if each.outcome is None and each.over < at]
            if max_deliveries is None or not died:
                continue
            last = max(died, key=lambda each: each.over)
            deaths = sum(each.retries == last.retries for each in died)
            if (
                last.late
                and deaths == max_deliveries - 1
                # A lease has two thirds left at least when its worker dies.
                and last.over + self.lease_seconds * 2 / 3 <= at
                and not any(last.over < each.begun <= at for each in attempts)
            ):
                kept += 1
        return kept

    def unseen_begins(self, task_id: str) -> int:
        """Return how often a process died between a begin and its body's first line, at most."""
        seen = {each.worker for each in self.attempts_of.get(task_id, ())}
        return sum(
            each["worker"] not in seen
            and self.death(each["worker"], each["pid"], each["at"]) < each["at"] + BEGINS_SOON
            for each in self._accepted.get(task_id, ())
        )

    def accepted_before(self, task_id: str, at: float) -> bool:
        """Say whether a pool was given a task before a moment."""
        return any(each["at"] < at for each in self._accepted.get(task_id, ()))

    def with_place(self, begun: float, over: float) -> set[str]:
        """Return the workers that were there in a span, and could begin a body at its end.

        A worker that runs a task that has died may keep its other places for more of them, or for
        nothing (ADR 18).
        """
        bodies = [each for each in self.attempts if each.begun <= over < each.over]
        running = Counter(each.worker for each in bodies)
        suspected = {each.worker for each in bodies if each.redelivered}
        return {
            worker
            for worker, (since, places) in self._ready.items()
            if since <= begun
            and over < min(self._worker_deaths.get(worker, inf), self._stops.get(worker, inf))
            and not any(each.what == worker and each.meets(begun, over) for each in self.freezes)
            and running[worker] < places
            and worker not in suspected
        }

    # -- what became of tasks ---------------------------------------------------------------------

    def is_done(self, task_id: str) -> bool:
        """Say whether a task ran to its end."""
        return any(each.outcome == "ok" for each in self.attempts_of.get(task_id, ()))

    def died_with_its_process(self, task_id: str) -> bool:
        """Say whether an early-acked task was given to a process that then died.

        Its ack is sent when the pool takes it, so from then on nobody else has it, until a gate
        has sent it back. A worker that was asked to end waits for its bodies: what it leaves is
        lost. If a whole worker is killed right after it received the task, the process of the body
        may have sent its begin, although nobody has seen that the pool has the task.
        """
        attempts = self.attempts_of.get(task_id, ())
        now_at = max((each.retries + 1 for each in attempts if each.outcome == "retry"), default=0)
        accepted = self._accepted.get(task_id, ())
        taken = [
            *(
                (each["worker"], each["pid"], each["at"], each["until"])
                for each in accepted
                if each["retries"] >= now_at
            ),
            *(
                (each.worker, each.pid, each.begun, inf)
                for each in attempts
                if each.retries >= now_at and each.outcome is None
            ),
        ]
        # Of no process of a pool, so only the death of the worker counts.
        taken += [
            (each["worker"], -1, each["at"], each["at"] + BEGINS_SOON)
            for each in self._received.get(task_id, ())
            if each["retries"] >= now_at
        ]
        return any(
            self.death(worker, pid, at - 0.5, violent=True) < until
            for worker, pid, at, until in taken
        )

    def died_with_its_primary(self, submit: Event) -> bool:
        """Say whether a server took a task and lost its place before another server had it.

        A node that was cut off takes tasks until it learns that another node has its slots.
        """
        taken = submit.get("taken", submit["at"])
        return submit["id"] not in self.held and any(
            each.what in LOSING and each.meets(submit["at"] - ASKED_WITHIN, taken + ASKED_WITHIN)
            for each in self.outages
        )

    def runs_unheld(self, task_id: str, by: float) -> bool:
        """Say whether a replica may lack the claim of a task that runs.

        A new primary does not count the lease until its worker has registered it again, which takes
        at most a third of a lease. ``by`` is the time of an excess.
        """
        return any(
            each.what in LOSING
            and by <= each.over + ASKED_WITHIN + self.lease_seconds / 3
            and each.meets(attempt.begun - ASKED_WITHIN, attempt.begun + ASKED_WITHIN)
            for each in self.outages
            for attempt in self.attempts_of[task_id]
            if attempt.begun <= by
        )

    def unfinished(self) -> tuple[list[str], list[str], list[str]]:
        """Return the tasks that were sent and have not ended.

        The first are lost. The others are gone: early ones with their process, and those that no
        replica had with their primary.
        """
        lost: list[str] = []
        gone: list[str] = []
        unheld: list[str] = []
        for task_id, submit in self.submits.items():
            if self.is_done(task_id) or task_id in self.dead_letters:
                continue
            if task_id in self.ended_as_duplicates:
                continue
            early_gone = not submit["late"] and self.died_with_its_process(task_id)
            if early_gone:
                gone.append(task_id)
            elif self.died_with_its_primary(submit):
                unheld.append(task_id)
            else:
                lost.append(task_id)
        return lost, gone, unheld

    def lines_of(self, task_id: str) -> list[Event]:
        """Return the events of one task, of the deaths of its processes, and of outages."""
        own = [event for event in self.events if event.get("id") == task_id]
        first, last = own[0]["at"] - self.lease_seconds, own[-1]["at"]
        workers = {event["worker"] for event in own if "worker" in event}
        about = [
            event
            for event in self.events
            if event["event"] in {"kill", "gone", "freeze"} and event["worker"] in workers
            if event.get("what") != "child" or any(e.get("pid") == event["pid"] for e in own)
        ]
        about += [
            event
            for event in self.events
            if event["event"] == "outage" and event["at"] <= last and first <= event["over"]
        ]
        return sorted([*own, *about], key=lambda event: event["at"])


def _uses(sent: Iterable[Event], answered: Iterable[Event]) -> dict[str, list[Use]]:
    """Return the reports by the run of their body."""
    answers = {event["run"]: event for event in answered}
    found: dict[str, list[Use]] = defaultdict(list)
    for event in sent:
        answer = answers.get(event["run"], {"at": inf, "counted": False})
        use = Use(event["units"], event["at"], answer["at"], answer["counted"])
        found[event["run"]].append(use)
    return found
