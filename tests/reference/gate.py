"""The gate path as an executable specification: copies of messages that start, wait or are late.

It shares leases, starts and settings with the dispatch path (`Admission`). A parked task is a task
of the dispatch path (`Reference`), and so is its promotion. Like `Reference` it accepts answers.

Weakness: a parked task with several limits waits at one of them, and no answer names it. So the
reference leaves open which of these limits a newcomer must respect.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import ceil, inf
from typing import Any

from tests.reference.admission import SYSTEM, Entitlement, Other, Waiter
from tests.reference.events import OF_OUTCOME, RELEASED, Event
from tests.reference.limits import (
    DROP,
    RESCHEDULE,
    WAIT,
    Limit,
    one_per_key,
    read_limits,
    units_of,
)
from tests.reference.objection import require
from tests.reference.observed import Observed
from tests.reference.reference import ENDED_AT_MOST, Reference
from tests.reference.tasks import Task

_ACTIONS = {DROP: "drop", RESCHEDULE: "reschedule", WAIT: "wait"}


class Gates:
    """All gates of one installation.

    Args:
        reference: The dispatch path, with what limits count.
        rules: The settings of all workers.
    """

    def __init__(self, reference: Reference, rules: Any) -> None:
        self.reference, self.admission = reference, reference.admission
        self.rules, self.book = rules, reference.book
        #: By queue, what was parked since the last claim of it, at a limit that is closed.
        self.blocked: dict[str, set[str]] = defaultdict(set)
        #: A request whose rejection must be reported.
        self._unreported: Any = None
        #: The promotion of the last copy has reserved what its task takes.
        self._was_promoted = False

    def _finish(self, seen: Observed) -> None:
        """Each task is reported as rejected at its first rejection, and released when it starts."""
        self.reference.finish(seen, self._is_rejected)
        missing, self._unreported = self._unreported, None
        require(missing is None, "a gate reports the first rejection of a task", missing=missing)

    def _is_rejected(self, event: Event) -> bool:
        request, fields = self._unreported, dict(event.fields)
        if request is None or event.tag != request.copy.message:
            return False
        self._unreported = None
        copies = self.reference.copies[request.copy.message]
        copies.rejected_by = (fields["key"], fields["strategy"])
        return fields["key"] in request.lease.keys

    def acquire(self, request: Any, queue: str, rules: Any, answer: Any, seen: Observed) -> None:
        """A task takes a slot of its tenant's tier and of each of its limits, or none.

        Args:
            request: Of the gate.
            queue: That of the parked tasks of its broker.
            rules: Of the worker.
            answer: Of the call.
            seen: After the call.
        """
        self.admission.tick(rules.lease_ms)
        is_known = request.lease.id in self.admission.others
        is_late = self.reference.copies[request.copy.message].is_superseded(request.copy.serial)
        if not is_known and not is_late:
            self._end_promotion(request.copy)
        self.reference.end_leases(rules, seen, ENDED_AT_MOST)
        self.admission.declare(request.limits, request.is_new)
        reason = answer.reason.value if hasattr(answer, "reason") else ""
        if is_known:
            require(not reason, "the same lease again changes nothing")
        else:
            rule = "of the copies of a message one starts"
            require(is_late == (reason == "superseded"), rule, reason=reason)
            if not is_late:
                self._judge(request, queue, rules, answer, reason)
        self._finish(seen)

    def _judge(self, request: Any, queue: str, rules: Any, answer: Any, reason: str) -> None:
        copy, copies = request.copy, self.reference.copies[request.copy.message]
        reasons, actions, may_be = self._reasons(request)
        is_newcomer = copies.seq is None
        behind = self._is_behind(request, queue) if is_newcomer and not reasons else False
        if not reason:
            is_free = not reasons or rules.enforcement != "on"
            require(is_free, "no task starts that a limit rejects", reasons=reasons)
            if rules.enforcement == "on" and not self._was_promoted:
                passed = [x for x in self._limits_of(request) if self.admission.is_passed(x, None)]
                require(not passed, "a task leaves what a key saves for another", limits=passed)
            is_first = behind is not True or rules.enforcement != "on"
            require(is_first, "no newcomer overtakes a parked task")
            return self._start(request, rules)
        if behind is not False:
            reasons = {"behind_others"}
        is_right = reason in reasons | may_be
        require(is_right, "a gate rejects for a reason", got=reason, reasons=reasons)
        action = next(x for x in (DROP, RESCHEDULE, WAIT) if x in {*actions, WAIT})
        if may_be and answer.action == "wait":
            action = WAIT
        require(answer.action == _ACTIONS[action], "the strongest action counts", actions=actions)
        if action == WAIT and behind is False:
            # A key may have begun or ended to save for another task.
            waits = [self._wait_ms(request, beside) for beside in (None, Waiter())]
            least, most = (ceil(each) / 1000 if each < inf else None for each in waits)
            got = answer.retry_after_seconds
            rule = "a gate says when a task may start"
            is_right = got in (least, most) or (least or 0) <= (got or 0) <= (most or 0)
            require(is_right, rule, got=got, least=least, most=most)
        if action == DROP:
            copies.started = copy.serial
            self.book.expect(
                OF_OUTCOME["dropped"], request.copy.message, request.job.queue, key=answer.key
            )
            return None
        if copies.rejected_by is None and not copies.is_released:
            self._unreported = request
        return copies.name(copy.serial, request.next_serial)

    def _end_promotion(self, copy: Any) -> None:
        """A copy has come: its promotion ends, and its task waits no more."""
        lease = self.reference.leases.get(copy.serial)
        self._was_promoted = lease is not None
        if lease is not None:
            self.reference.end_lease(lease)
        task = self.reference.tasks.get(copy.message)
        if task is not None:
            self.reference.remove(task)

    def _limits_of(self, request: Any) -> list[Limit]:
        return one_per_key(tuple(map(self.admission.numbers, read_limits(request.limits))))

    def _reasons(self, request: Any) -> tuple[set[str], set[str], set[str]]:
        """Return why a task may not start, and the actions of the limits that reject it.

        The third are reasons only if a key saves for another task, which a call may begin or end.
        """
        admission, reasons, actions = self.admission, set(), set()
        may_be: set[str] = set()
        enforced = replace(self.rules, enforcement="on")
        own = self._tenant_of(request).limit
        if admission.tier_closed_ms(own, enforced) > 0:
            is_full = own.concurrency is not None and admission.held(own.key) >= own.concurrency
            at = {"at_rate_limit", "at_throttle"}
            reasons |= {"at_concurrency_limit" if own.concurrency else "paused"} if is_full else at
        for each in self._limits_of(request):
            if admission.closed_ms(each, enforced)[0] > 0:
                reasons |= self._reasons_of(each)
                if admission.hold_ms(each) <= 0:
                    actions.add(each.action)
            elif admission.closed_ms(each, enforced, beside=Waiter())[0] > 0:
                may_be |= self._reasons_of(each)
                actions.add(each.action)
        return reasons, actions, may_be

    def _tenant_of(self, request: Any) -> Entitlement:
        key = request.tier_key or SYSTEM
        return self.admission.entitlement(key, request.tenant, request.tier, self.rules)

    def _wait_ms(self, request: Any, beside: Waiter | None) -> float:
        """Return how long some limit of a request allows no start."""
        admission, enforced = self.admission, replace(self.rules, enforcement="on")
        limits = one_per_key(tuple(map(admission.numbers, read_limits(request.limits))))
        own = admission.tier_closed_ms(self._tenant_of(request).limit, enforced)
        return max([own, *(self._closed_ms(each, enforced, beside) for each in limits)])

    def _closed_ms(self, limit: Limit, rules: Any, beside: Waiter | None) -> float:
        """Return how long a limit allows no start. While it is held, its slots do not matter."""
        return (
            self.admission.hold_ms(limit)
            or self.admission.closed_ms(limit, rules, beside=beside)[0]
        )

    def _reasons_of(self, limit: Limit) -> set[str]:
        admission = self.admission
        if admission.hold_ms(limit) > 0:
            is_paused = limit.concurrency == 0 or admission.paused_ms(limit.key) > 0
            return {"paused" if is_paused else "cooling_down"}
        if admission.is_full(limit, admission.saved_for_others(limit, Waiter()).slots):
            return {"at_concurrency_limit", "at_rate_limit", "at_throttle"}
        return {"at_rate_limit", "at_throttle"}

    def _start(self, request: Any, rules: Any) -> None:
        copy, time = request.copy, self.admission.time
        copies = self.reference.copies[copy.message]
        if copy.serial or copies.current is not None or copies.started is not None:
            copies.started = copy.serial
        if copies.rejected_by and not copies.is_released:
            key, strategy = copies.rejected_by
            fields = {"key": key, "strategy": strategy}
            self.book.expect(RELEASED, request.copy.message, request.job.queue, **fields)
            copies.is_released = True
        keys = frozenset(request.lease.keys)
        units, slots = units_of(request.limits), self.admission.slots_of(request.limits)
        ends = time + rules.lease_ms
        self.admission.others[request.lease.id] = Other(keys, ends, time, units, slots)
        self.admission.count_starts(request.limits, self._tenant_of(request))

    def _is_behind(self, request: Any, queue: str) -> bool | None:
        """Whether a parked task of the broker waits where a newcomer would. None: perhaps.

        A parked task waits at its tenant's key, or at one of its limits.
        """
        own = {_place(limit) for limit in read_limits(request.limits) if limit.action == WAIT}
        own |= {request.tier_key} - {""}
        found: bool | None = False
        for task in self.reference.waiting(queue):
            places = {_place(limit) for limit in read_limits(task.limits)}
            if task.tag not in self.blocked[queue] or len(places) > 1:
                places.add(task.key)
            if places <= own:
                return True
            found = None if places & own else found
        return found

    def free(self, leases: list[Any], answer: int, seen: Observed) -> None:
        """Leases end. Ending them twice is harmless."""
        self.admission.tick(self.rules.lease_ms)
        held = sum(self.admission.others.pop(x.id, None) is not None for x in leases)
        require(answer == held, "an end counts the leases that were held", got=answer, held=held)
        self._finish(seen)

    def park(self, request: Any, task: Task, answer: Any, seen: Observed) -> None:
        """A rejected task waits until its limits open. It keeps the place that it had before.

        Args:
            request: Of the gate.
            task: What is stored.
            answer: Of the call.
            seen: After the call.
        """
        self.admission.tick(self.rules.lease_ms)
        copies, got = self.reference.copies[task.tag], answer.name
        is_late = copies.is_superseded(request.copy.serial)
        expected = "SUPERSEDED" if is_late else "PARKED"
        require(got == expected, "of the copies of a message one is parked", got=got)
        if is_late:
            return self._finish(seen)
        if copies.seq is None:
            copies.seq = self.reference.next_seq()
        task.seq, task.attempt = copies.seq, copies.attempts
        copies.name(request.next_serial, request.next_serial)
        self.reference.tasks[task.tag] = task
        self.reference.wait(task, is_put=True)
        # The gate wakes its own promoter.
        moment = self.reference.time, self.reference.now
        self.reference.claimed_at.setdefault(task.queue, moment)
        place = task.waiter
        rejected = self.admission.rejection(task.limits, self.rules, beside=place)
        if rejected and not rejected.by:
            self.reference.blocked.add(task.lane)
            if self.admission.rejection(task.limits, self.rules, early=True, beside=place):
                self.blocked[task.queue].add(task.tag)
        return self._finish(seen)

    def claimed(self, queue: str) -> None:
        """A claim of a queue of parked tasks has looked at their limits."""
        self.blocked[queue].clear()

    def supersede(self, copy: Any, next_serial: str, answer: bool, seen: Observed) -> None:
        """A rejected copy is published once more, unless another copy has replaced it by now."""
        copies = self.reference.copies[copy.message]
        is_current = copies.started is None and copies.current in (None, copy.serial)
        rule = "a rejected copy is published again if no other one counts"
        require(answer == is_current, rule, expected=is_current, got=answer)
        if is_current and copies.current is not None:
            copies.following = next_serial
        self._finish(seen)


def _place(limit: Limit) -> str:
    """Return where the tasks of a limit wait: its key and the kinds of its numbers."""
    concurrency = limit.concurrency if not limit.concurrency else "#"
    return f"{limit.key} {concurrency} {bool(limit.rates)} {limit.throttle is not None}"
