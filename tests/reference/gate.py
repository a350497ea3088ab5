"""The gate path as an executable specification: gates, parked tasks, promotions.

It shares leases, starts and settings with the dispatch path (`Admission`). Like `Reference` it
accepts answers. A parked task with several limits waits at one of them, and no answer names it. So
the reference leaves open which of these limits a newcomer must respect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.reference.admission import CLOCK_STEP_MS, Other
from tests.reference.events import OF_OUTCOME, RELEASED, Event
from tests.reference.limits import AGAIN_MS, DROP, RESCHEDULE, WAIT, Limit, one_per_key, read_limits
from tests.reference.objection import require
from tests.reference.observed import Observed
from tests.reference.reference import ENDED_AT_MOST, Reference

#: A promotion looks at what may start at least this often, in ms of the logical clock.
LOOKS_EVERY_MS = AGAIN_MS + 100
#: A task that could not be published pauses for this part of a lease at first.
FIRST_PAUSE = 1 / 16

_ACTIONS = {DROP: "drop", RESCHEDULE: "reschedule", WAIT: "wait"}


@dataclass
class Copies:
    """Which copy of a message may run: one that has started, or the last ones that were named."""

    current: str | None = None
    following: str | None = None
    started: str | None = None
    #: Place among the parked tasks, if the message was parked. It keeps it for good.
    seq: int | None = None
    #: How often its publication has failed since the last one that did not.
    failures: int = 0
    #: Key and strategy of the rejection that an event reported, and whether one reported the start.
    rejected_by: tuple[str, str] | None = None
    is_released: bool = False

    def is_superseded(self, serial: str) -> bool:
        """Whether another copy has started, or has replaced this one."""
        if self.started is not None:
            return self.started != serial
        return self.current is not None and serial not in (self.current, self.following)


@dataclass
class Parked:
    """A task that a gate rejected and that waits in Redis.

    Attributes:
        place: ``parked``, ``promoted`` (a worker publishes it) or ``published``.
        promoted_until: Logical time until which a worker has it.
        at_tenant: It may wait at the key of its tenant, in front of its limits. A task whose
            promotion has ended waits there at first, and newcomers of its tenant wait behind it.
        may_since: Logical time since which it may start and was not given.
    """

    request: Any
    message: str
    expires_ms: int | None
    seq: int
    place: str = "parked"
    promoted_until: int = 0
    at_tenant: bool = False
    is_ended: bool = False
    may_since: int | None = None
    #: An event has reported its end.
    is_reported: bool = False


class Gates:
    """All gates and promoters of one installation.

    Args:
        reference: The dispatch path, with what limits count.
        rules: The settings of all workers.
        tier_waits: A task over its tier's limit is parked.
    """

    def __init__(self, reference: Reference, rules: Any, tier_waits: bool) -> None:
        self.reference, self.admission = reference, reference.admission
        self.rules, self.tier_waits = rules, tier_waits
        self.copies: dict[str, Copies] = defaultdict(Copies)
        self.parked: dict[str, Parked] = {}
        #: By the limits of a group of parked tasks and two tenants: what the one was given since
        #: the other waits.
        self.passed: dict[tuple[str, str, str], float] = defaultdict(float)
        self._seq = 0
        #: Events that the last calls must have emitted. A gate ends leases of claims too.
        self.book = reference.book
        #: A request whose rejection must be reported.
        self._unreported: Any = None

    # -- events -----------------------------------------------------------------------------------

    def check_events(self, events: Sequence[Event]) -> None:
        """Each task is reported as rejected at its first rejection, and released when it starts."""
        self.book.check(events, self._is_rejected)
        missing, self._unreported = self._unreported, None
        require(missing is None, "a gate reports the first rejection of a task", missing=missing)

    def _is_rejected(self, event: Event) -> bool:
        request, fields = self._unreported, dict(event.fields)
        if request is None or event.tag != _tag(request):
            return False
        self._unreported = None
        self.copies[request.copy.message].rejected_by = (fields["key"], fields["strategy"])
        return fields["key"] in request.lease.keys

    # -- a gate -----------------------------------------------------------------------------------

    def acquire(self, request: Any, rules: Any, answer: Any, seen: Observed) -> None:
        """A task takes a slot of its tenant's tier and of each of its limits, or none."""
        admission, copy = self.admission, request.copy
        admission.tick(rules.lease_ms)
        self.reference.end_leases(rules, seen, ENDED_AT_MOST)
        admission.declare(request.limits, request.is_new)
        is_granted = not hasattr(answer, "reason")
        lease = request.lease
        keys = list(dict.fromkeys(lease.keys))
        if lease.id in admission.others:
            return require(is_granted, "the same lease again changes nothing")
        copies = self.copies[copy.message]
        reason = "" if is_granted else answer.reason.value
        is_late = copies.is_superseded(copy.serial)
        require(is_late == (reason == "superseded"), "of the copies of a message one starts")
        if is_late:
            return None
        is_newcomer = copies.seq is None
        if not is_newcomer:
            # It takes the starts that were reserved for it.
            self._forget(copy.message, keys)
        reasons, actions = self._reasons(request, rules, is_newcomer)
        if is_granted:
            is_free = not reasons or rules.enforcement != "on"
            require(is_free, "no task starts that a limit rejects", reasons=reasons)
            behind = self._is_behind(request) if is_newcomer and rules.enforcement == "on" else None
            require(behind is not True, "no newcomer overtakes a parked task")
            return self._start(request, rules)
        if is_newcomer and self._is_behind(request) is not False and not reasons:
            reasons = {"behind_others"}
        require(reason in reasons, "a gate rejects for a reason", got=reason, reasons=reasons)
        action = next(x for x in (DROP, RESCHEDULE, WAIT) if x in {*actions, WAIT})
        require(answer.action == _ACTIONS[action], "the strongest action counts", actions=actions)
        copies.started = copy.serial if action == DROP else None
        if action == DROP:
            self.book.expect(
                OF_OUTCOME["dropped"], _tag(request), request.job.queue, key=answer.key
            )
        elif copies.rejected_by is None and not copies.is_released:
            self._unreported = request
        if action != DROP:
            copies.current, copies.following = copy.serial, request.next_serial
        return None

    def _limits(self, request: Any) -> list[Limit]:
        limits = tuple(map(self.admission.numbers, read_limits(request.limits)))
        return one_per_key(limits)

    def _reasons(self, request: Any, rules: Any, is_newcomer: bool) -> tuple[set[str], set[str]]:
        """Return why a task may not start, and the actions of the limits that reject it.

        A newcomer takes no start that is reserved for another task.
        """
        admission = self.admission
        reasons, actions = set(), set()
        limit, _ = self._entitlement(request)
        key = request.tier_key
        ahead = admission.reserved(key) if is_newcomer and self.parked else 0
        if limit is not None and admission.held(key) + ahead >= limit:
            reasons.add("at_concurrency_limit" if limit else "paused")
        enforced = replace(rules, enforcement="on")
        for each in self._limits(request):
            ahead = admission.reserved(each.key) if is_newcomer and self.parked else 0
            if admission.closed_ms(each, enforced, ahead)[0] > 0:
                reasons |= self._reasons_of(each, ahead)
                if admission.hold_ms(each) <= 0:
                    actions.add(each.action)
        return reasons, actions

    def _reasons_of(self, limit: Limit, ahead: int) -> set[str]:
        admission = self.admission
        if admission.hold_ms(limit) > 0:
            is_paused = limit.concurrency == 0 or admission.paused_ms(limit.key) > 0
            return {"paused" if is_paused else "cooling_down"}
        reasons = set()
        full = limit.concurrency is not None
        if full and admission.held(limit.key) + ahead >= (limit.concurrency or 0):
            reasons.add("at_concurrency_limit")
        return reasons | {"at_rate_limit", "at_throttle"}

    def _entitlement(self, request: Any) -> tuple[int | None, float]:
        if not request.tenant:
            return None, 1.0
        return self.admission.entitlement(
            request.tier_key, request.tenant, request.tier, self.rules
        )

    def _start(self, request: Any, rules: Any) -> None:
        copy, time = request.copy, self.admission.time
        copies = self.copies[copy.message]
        if copy.serial or copies.current is not None or copies.started is not None:
            copies.started = copy.serial
        if copies.rejected_by and not copies.is_released:
            key, strategy = copies.rejected_by
            fields = {"key": key, "strategy": strategy}
            self.book.expect(RELEASED, _tag(request), request.job.queue, **fields)
            copies.is_released = True
        keys = frozenset(request.lease.keys)
        self.admission.others[request.lease.id] = Other(keys, time + rules.lease_ms)
        self.admission.count_starts(request.limits)

    def _is_behind(self, request: Any) -> bool | None:
        """Whether a parked task of the same key and kind of numbers waits. None: perhaps.

        A parked task with several places waits at one of them.
        """
        own = {_place(limit) for limit in read_limits(request.limits) if limit.action == WAIT}
        own |= {request.tier_key} - {""}
        found: bool | None = False
        for parked in self.parked.values():
            if parked.place != "parked":
                continue
            places = {_place(limit) for limit in read_limits(parked.request.limits)}
            places |= {parked.request.tier_key} - {""} if parked.at_tenant else set()
            if places & own:
                if len(places) == 1 and not parked.at_tenant:
                    return True
                found = None
        return found

    def free(self, leases: list[Any], answer: int) -> None:
        """Leases end. Ending them twice is harmless."""
        self.admission.tick(self.rules.lease_ms)
        held = sum(self.admission.others.pop(x.id, None) is not None for x in leases)
        require(answer == held, "an end counts the leases that were held", got=answer, held=held)

    # -- parked tasks -----------------------------------------------------------------------------

    def park(self, request: Any, message: str, expires_ms: int | None, answer: Any) -> None:
        """A rejected task waits until its limits open.

        If they are open by now, it goes to the gate again.
        """
        self.admission.tick(self.rules.lease_ms)
        copies, copy = self.copies[request.copy.message], request.copy
        is_late, got = copies.is_superseded(copy.serial), answer.name
        require(is_late == (got == "SUPERSEDED"), "of the copies of a message one is parked")
        if is_late:
            return
        is_newcomer = copies.seq is None
        reasons, actions = self._reasons(request, self.rules, is_newcomer)
        limit, _ = self._entitlement(request)
        ahead = self.admission.reserved(request.tier_key) if is_newcomer and self.parked else 0
        by_tier = limit is not None and self.admission.held(request.tier_key) + ahead >= limit
        closed = [
            each
            for each in self._limits(request)
            if self.admission.closed_ms(each, self.rules, self._ahead(each, is_newcomer))[0] > 0
        ]
        waits = bool(closed) or (self.tier_waits and by_tier)
        acts = any(x.action != WAIT and self.admission.hold_ms(x) <= 0 for x in closed)
        expected = {"ASK_AGAIN"} if acts or not waits else {"PARKED"}
        if not waits and is_newcomer:
            behind = self._is_behind(request)
            expected = (
                {"PARKED"} if behind else expected | ({"PARKED"} if behind is None else set())
            )
        facts = {"reasons": reasons, "actions": actions, "got": got, "expected": expected}
        require(got in expected, "a task is parked only if a limit lets it wait", **facts)
        if got == "PARKED":
            if copies.seq is None:
                self._seq += 1
                copies.seq = self._seq
            copies.current = copies.following = request.next_serial
            copies.started = None
            self._end_reservations(copy.message)
            parked = Parked(request, message, expires_ms, copies.seq)
            others = [x for x in self.parked.values() if x.request.tier_key == request.tier_key]
            parked.at_tenant = self.tier_waits or any(other.at_tenant for other in others)
            self.parked[copy.message] = parked

    def _ahead(self, limit: Limit, is_newcomer: bool) -> int:
        return self.admission.reserved(limit.key) if is_newcomer and self.parked else 0

    def promote(self, want: int, serial: str, rules: Any, answer: Any) -> None:
        """A worker gets parked tasks that may start, reserves their starts, and publishes them.

        If its worker dies before it has published a task, the next call gives it again after a
        lease. An expired or cancelled task is given too, so that a worker ends it.
        """
        admission = self.admission
        admission.tick(rules.lease_ms)
        require(len(answer.tasks) <= want or any(x.ended for x in answer.tasks), "at most `want`")
        for parked in self.parked.values():
            if parked.place == "promoted" and parked.promoted_until <= admission.time:
                parked.place, parked.may_since, parked.at_tenant = "parked", None, True
        for tag in [x for x, y in self.parked.items() if y.place == "published"]:
            if self.parked[tag].promoted_until <= admission.time:
                del self.parked[tag]
        for position, task in enumerate(answer.tasks):
            tag = task.copy.message
            parked = self.parked.get(tag)
            is_there = parked is not None and parked.place == "parked"
            require(is_there, "only a parked task is promoted", tag=tag)
            assert parked
            require(task.message == parked.message, "a task is promoted as it was parked", tag=tag)
            is_over = parked.expires_ms is not None and parked.expires_ms <= admission.now
            is_over = is_over or parked.is_ended
            require(task.ended == is_over, "only what is over is ended", tag=tag)
            if is_over:
                self._report(parked, "expired")
            if not is_over and rules.enforcement == "on":
                closed = self._keeps(parked)
                require(not closed, "no task is promoted that a limit rejects", closed=closed)
                self._check_turn(tag, parked)
                self._reserve(tag, parked)
            named = f"{serial}{4 * position + 1}"
            require(task.copy.serial == named, "each promotion has its serial", expected=named)
            copies = self.copies[tag]
            published = copies.following or named
            copies.current, copies.following, copies.started = published, named, None
            parked.place = "promoted"
            parked.promoted_until = admission.time + rules.lease_ms
        is_empty = not self.parked
        sleeps = answer.sleep_seconds
        require((sleeps is None) == is_empty, "a promoter sleeps until something is parked")
        if sleeps is not None:
            require(0 <= sleeps * 1000 <= AGAIN_MS, "a promoter looks each second", got=sleeps)
            # The clock forgets a shorter step, so a promoter may be as early.
            if sleeps * 1000 > CLOCK_STEP_MS and len(answer.tasks) < want:
                self._check_rest()
        self.look()

    def _keeps(self, parked: Parked) -> list[str]:
        """Return the keys that keep a parked task from starting now."""
        admission, request = self.admission, parked.request
        closed = [
            limit.key
            for limit in map(admission.numbers, read_limits(request.limits))
            if admission.closed_ms(limit, self.rules, admission.reserved(limit.key), True)[0] > 0
            and (limit.action == WAIT or admission.hold_ms(limit) > 0)
        ]
        limit, _ = self._entitlement(request)
        key = request.tier_key
        taken = admission.held(key) + admission.reserved(key)
        if self.tier_waits and limit is not None and taken >= limit:
            closed.append(key)
        return closed

    def _check_turn(self, tag: str, parked: Parked) -> None:
        """Tasks of one tenant with the same limits go in order; tenants take turns by weight.

        One tenant is given at most one turn more than its share.
        """
        request = parked.request
        place = request.limits
        _, weight = self._entitlement(request)
        waiting = [x for x in self.parked.values() if x.place == "parked" and x is not parked]
        waiting = [x for x in waiting if x.request.limits == place and not x.is_ended]
        waiting = [x for x in waiting if not x.at_tenant]
        first = [x.seq for x in waiting if x.request.tier_key == request.tier_key]
        first = [seq for seq in first if seq < parked.seq]
        if len(read_limits(place)) == 1 and not self.tier_waits:
            require(not first, "the parked tasks of a tenant go in order", tag=tag, first=first)
        for key in {x.request.tier_key for x in waiting} - {request.tier_key}:
            pair = (place, key, request.tier_key)
            self.passed[pair] += 1 / weight
            other = next(x for x in waiting if x.request.tier_key == key)
            most = 1 / self._entitlement(other.request)[1] + 2 / weight
            is_single = len(read_limits(place)) == 1 and not self.tier_waits
            rule = "tenants with parked tasks take turns"
            require(not is_single or self.passed[pair] <= most * (1 + 1e-9), rule, tag=tag)
        self._forget_passed(place, request.tier_key)

    def _forget_passed(self, place: str, key: str) -> None:
        for pair in [pair for pair in self.passed if pair[:2] == (place, key)]:
            del self.passed[pair]

    def _reserve(self, tag: str, parked: Parked) -> None:
        """A promoted task has a start of each of its limits for one lease."""
        request, ends = parked.request, self.admission.time + self.rules.lease_ms
        keys = [limit.key for limit in read_limits(request.limits)]
        for key in [*keys, *([request.tier_key] if self.tier_waits and request.tenant else [])]:
            self.admission.reservations[key][tag] = ends

    def _end_reservations(self, tag: str) -> None:
        for reserved in self.admission.reservations.values():
            reserved.pop(tag, None)

    def _forget(self, tag: str, keys: list[str]) -> None:
        self._end_reservations(tag)
        self.parked.pop(tag, None)

    def _check_rest(self) -> None:
        """A parked task that may start is promoted within a second."""
        for tag, parked in self.parked.items():
            if parked.place != "parked" or parked.may_since is None:
                continue
            waited = self.admission.time - parked.may_since
            rule = "a parked task that may start is promoted within a second"
            require(waited <= 2 * LOOKS_EVERY_MS or self._keeps(parked), rule, tag=tag, ms=waited)

    def look(self) -> None:
        """Note which parked tasks may start. The caller does this after each call."""
        for parked in self.parked.values():
            if parked.place != "parked" or self._keeps(parked):
                parked.may_since = None
            elif parked.may_since is None:
                parked.may_since = self.admission.time

    def published(self, tag: str, answer: int) -> None:
        """The broker has a promoted task again. Its reserved starts last until it comes."""
        parked = self.parked.get(tag)
        copies = self.copies[tag]
        is_there = parked is not None and parked.place != "published"
        is_there = (
            is_there
            and parked is not None
            and (parked.place == "promoted" or copies.current != copies.following)
        )
        require(answer == is_there, "a publication is noted once", got=answer, tag=tag)
        if is_there and parked:
            parked.place, copies.failures = "published", 0

    def put_off(self, tag: str, answer: int) -> None:
        """A promoted task could not be published. It reserves nothing, and waits for a pause."""
        parked, copies = self.parked.get(tag), self.copies[tag]
        is_promoted = parked is not None and parked.place == "promoted"
        copies.failures += is_promoted
        expected = copies.failures if is_promoted else 0
        require(answer == expected, "a failed publication is counted", want=expected, got=answer)
        if parked is not None and is_promoted:
            self._end_reservations(tag)
            lease_ms = self.rules.lease_ms
            pause_ms = min(lease_ms, lease_ms * FIRST_PAUSE * 2 ** (copies.failures - 1))
            parked.promoted_until = round(parked.promoted_until - lease_ms + pause_ms)

    def supersede(self, copy: Any, next_serial: str, answer: bool) -> None:
        """A rejected copy is published once more, unless another copy has replaced it by now."""
        copies = self.copies[copy.message]
        is_current = copies.started is None and copies.current in (None, copy.serial)
        rule = "a rejected copy is published again if no other one counts"
        require(answer == is_current, rule, expected=is_current, got=answer)
        if is_current and copies.current is not None:
            copies.following = next_serial

    def cancelled(self, tag: str, answer: int) -> None:
        """A parked task is cancelled: a worker ends it, even if its limits are closed."""
        parked = self.parked.get(tag)
        is_there = parked is not None and parked.place == "parked"
        require(answer == is_there, "what is parked is cancelled", got=answer, tag=tag)
        if is_there and parked:
            parked.is_ended = True
            self._report(parked, "cancelled")

    def _report(self, parked: Parked, state: str) -> None:
        """The end of a parked task is reported once. Its message names no queue."""
        if not parked.is_reported:
            self.book.expect(OF_OUTCOME[state], _tag(parked.request), "")
        parked.is_reported = True


def _tag(request: Any) -> str:
    """Return the name of a task in events."""
    return f"tag.{request.copy.message}"


def _place(limit: Limit) -> str:
    """Return where the tasks of a limit wait: its key and the kinds of its numbers."""
    concurrency = limit.concurrency if not limit.concurrency else "#"
    return f"{limit.key} {concurrency} {bool(limit.rates)} {limit.throttle is not None}"
