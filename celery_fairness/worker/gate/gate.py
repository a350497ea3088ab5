"""The gate: takes a slot before a task's body runs, or sends the task back.

The gate wraps the task's tracer. A rejected attempt therefore starts nothing: no state STARTED, no
``task_prerun``, no ``before_start``. An admitted attempt holds its slot in any case.
Eager tasks and direct calls have no such tracer, so the gate never limits them.

Invariant: a rejected task is on the broker again before its old message is acknowledged. A
late-acked message is acknowledged after the gate returns. An early-acked attempt keeps its pool
slot until the broker has the new message.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from celery.app.task import Context
from celery.app.trace import FAILURE, IGNORED, REJECTED, TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject

from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import Reserved
from celery_fairness.errors import LimiterUnavailable, PublishFailed, RateLimitDropped
from celery_fairness.limiter.current_lease import running
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.limiter.types import (
    Admitted,
    Job,
    Lease,
    Parking,
    Reason,
    Rejected,
    SlotRequest,
)
from celery_fairness.message.attribution import Attribution, attribution_of
from celery_fairness.message.headers import (
    COPY_HEADER,
    HEADER,
    Copy,
    Header,
    first_copy,
    log_misspelling,
    new_serial,
    parse_copy,
    was_accepted,
)
from celery_fairness.message.task_options import service_of
from celery_fairness.message.tenant_header import carried_header
from celery_fairness.util.ids import new_lease_id
from celery_fairness.util.log_fields import about
from celery_fairness.util.throttled_log import Notices
from celery_fairness.util.timestamps import expires_ms
from celery_fairness.worker.attempt import Attempt, NotBegun, current_attempt
from celery_fairness.worker.attempt_limits import queue_limits_of, queue_of, with_declared
from celery_fairness.worker.gate.deadlock_warning import DeadlockWarning
from celery_fairness.worker.gate.resender import NotAccepted, Resender, whole_message
from celery_fairness.worker.unrun_failure import write_failure

logger = logging.getLogger("celery_fairness")

Tracer = Callable[..., Any]

#: Least wait for a limit without a free slot, in seconds. Its expected time may be 0, because
#: leases end early.
LEAST_WAIT_SECONDS = 1.0
#: The longest wait for a throttle in a pool slot, in seconds: the way back through Redis and the
#: broker would take as long. The number of such waits, because another task may take the start.
SHORT_WAIT_SECONDS, SHORT_WAITS_AT_MOST = 0.02, 3
#: Rejections that may end before their expected time.
_MAY_END_EARLIER = (Reason.AT_CONCURRENCY_LIMIT, Reason.AT_LOCAL_LIMIT, Reason.COOLING_DOWN)
#: How the log describes a limit that rejects.
_TEXTS_OF_LIMITS = {
    Reason.AT_CONCURRENCY_LIMIT: "has no free slot",
    Reason.AT_RATE_LIMIT: "has reached its rate",
    Reason.AT_THROTTLE: "spaces its starts",
    Reason.PAUSED: "is paused",
    Reason.COOLING_DOWN: "cools down",
    Reason.BEHIND_OTHERS: "has others waiting for it",
    Reason.AT_LOCAL_LIMIT: "lets this worker run no more",
}

#: The key in the pool's request with the main process's data about an attempt.
ATTEMPT_KEY = "_fairness_attempt"


class _Asked(NamedTuple):
    """The data for one call to the limiter."""

    attribution: Attribution
    lease: Lease
    copy: Copy
    #: The serial of the copy that a rejection publishes.
    serial: str
    job: Job
    #: False for a task that was accepted before, and for a copy that a rejection published.
    is_new: bool


class Gate:
    """Admits attempts, or sends them back.

    Args:
        ended: Called with every lease whose attempt ended in this process.
        longest_countdown_seconds: The longest countdown that the broker's visibility timeout
        allows, or None without a bound.
        not_begun: Called for every attempt whose body does not start.
    """

    def __init__(
        self,
        settings: Settings,
        limiter: Limiter,
        tier_cache: TierCache,
        resender: Resender,
        notices: Notices,
        ended: Callable[[Lease], None],
        longest_countdown_seconds: float | None = None,
        not_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._enforcement = settings.enforcement
        self._limiter = limiter
        self._tier_cache = tier_cache
        self._resender = resender
        self._notices = notices
        self._deadlock_warning = DeadlockWarning(notices, limiter)
        self._ended = ended
        self._not_begun = not_begun
        self._longest = longest_countdown_seconds
        self._uncounted = 0

    def attribution(
        self, task: Any, request: dict[str, Any], args: Any, kwargs: Any
    ) -> Attribution:
        """Return the tenant and the limits of an attempt."""
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
            args, kwargs = (), {}
        request = self._with_carried_header(task, request)
        known = self._settings, self._tier_cache, self._notices
        request = with_declared(*known, task, request, args, kwargs)
        of_queue, problem = queue_limits_of(self._settings, task, request, args, kwargs)
        attribution = attribution_of(request, args, kwargs, task, self._settings, problem)
        return attribution._replace(of_queue=of_queue) if of_queue else attribution

    def _with_carried_header(self, task: Any, request: dict[str, Any]) -> dict[str, Any]:
        properties, names = request.get("properties") or {}, self._settings.tenant_header
        made = carried_header(request, properties, names, service=service_of(task))
        return request if made is None else {**request, HEADER: made}

    def wrap(self, task: Any, tracer: Tracer) -> Tracer:
        """Return ``tracer`` behind the gate."""
        if task.name.startswith("celery."):
            return tracer

        def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
            request = request or {}
            known = request.pop(ATTEMPT_KEY, None) or {}
            if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
                # No body can run with these arguments, and the tracer reports it.
                return tracer(uuid, args, kwargs, request)
            request = self._with_carried_header(task, request)
            # The main process has read the message already.
            attribution = known.get("attribution") or self.attribution(task, request, args, kwargs)
            log_misspelling(self._notices, task.name, request)
            if not attribution.keys:
                return tracer(uuid, args, kwargs, request)
            if HEADER not in request and not attribution.problem:
                request = {**request, HEADER: _header(task, attribution)}
            lease = Lease(known.get("lease") or new_lease_id(), attribution.keys)
            # A message without the header gets an identity here, and keeps it.
            copy = parse_copy(request.get(COPY_HEADER)) or Copy(first_copy()["message"])
            job = Job(uuid, task.name, queue_of(request))
            is_new = not (copy.serial or was_accepted(request))
            asked = _Asked(attribution, lease, copy, new_serial(), job, is_new)

            def context() -> Context:
                return Context(request, args=args, kwargs=kwargs, called_directly=False)

            try:
                outcome = self._enter_or_park(task, context, asked)
            except SoftTimeLimitExceeded:
                # The call took the task's whole time limit, and its outcome is unknown.
                Attempt(task, lease, self._limiter).end()
                outcome = Rejected(Reason.LIMITER_UNAVAILABLE)
            except BaseException:
                Attempt(task, lease, self._limiter).end()
                self._ended(lease)
                raise
            if not isinstance(outcome, Attempt):
                self._not_begun()
            if outcome is None:
                return _as_traced(IGNORED, Parked())
            if isinstance(outcome, Rejected):
                if outcome.action == "drop":
                    return self._drop(task, context(), attribution, outcome)
                if outcome.reason is Reason.LIMITER_UNAVAILABLE:
                    # The limiter has stored no successor, so the same copy goes back.
                    asked = asked._replace(serial=copy.serial)
                return self._send_back(task, context(), asked, outcome)
            token = current_attempt.set(outcome)
            try:
                with running(lease.id if outcome.has_lease else ""):
                    return tracer(uuid, args, kwargs, request)
            finally:
                outcome.end()
                self._ended(lease)
                current_attempt.reset(token)

        return trace

    def _enter_or_park(
        self,
        task: Any,
        make_context: Callable[[], Context],
        asked: _Asked,
    ) -> Attempt | Rejected | None:
        """Return the answer of the limiter, or None if the task is parked."""
        attribution = asked.attribution
        outcome = self._enter_soon(task, asked)
        if not isinstance(outcome, Rejected):
            return outcome
        context = make_context()
        self._deadlock_warning.check(task, context, attribution, outcome)
        if not self._is_parked(outcome):
            return outcome
        try:
            message = self._resender.take(context, asked.copy)
            text, expires = message.to_text(), expires_ms(message.headers.get("expires"))
        except (LookupError, TypeError, ValueError) as error:
            self._notices.warning(
                f"park:{task.name}",
                "task %s[%s] cannot be parked: %r",
                task.name,
                context.id,
                error,
                extra=_about(task, context, attribution, outcome),
            )
            return outcome
        rank = self._resender.rank_of(message)
        # The queue of a task may have changed with its tenant's tier.
        parked = asked._replace(job=asked.job._replace(queue=message.routing_key))
        try:
            parking = self._limiter.park(self._request(parked), text, expires, rank)
        except LimiterUnavailable as error:
            # If the task was parked after all, the limiter drops the copy that goes back.
            self._notices.error("away", "%s", error)
            return Rejected(Reason.LIMITER_UNAVAILABLE)
        if parking is Parking.SUPERSEDED:
            return replace(outcome, reason=Reason.SUPERSEDED)
        self._notices.info(
            f"parked:{_cause(attribution, outcome)}",
            "task %s[%s] is parked: %s",
            task.name,
            context.id,
            _rejection_text(attribution, outcome),
            extra=_about(task, context, attribution, outcome),
        )
        return None

    def _is_parked(self, rejected: Rejected) -> bool:
        """Return whether a rejected task waits in the limiter, and not on the broker."""
        if rejected.reason in (Reason.SUPERSEDED, Reason.LIMITER_UNAVAILABLE):
            return False
        by_tier = not rejected.key and self._settings.tier_on_limit != "wait"
        return rejected.action == "wait" and not by_tier

    def _request(self, asked: _Asked) -> SlotRequest:
        attribution, lease, copy, serial, job, _ = asked
        tenant = attribution.tenant or ""
        tier = self._tier_cache.tier_of(tenant, attribution.tier) if tenant else ""
        return SlotRequest(
            lease, tenant, tier, copy, serial, attribution.limits_text, job, asked.is_new
        )

    def _enter_soon(self, task: Any, asked: _Asked) -> Attempt | Rejected:
        """Return the answer of the limiter after each wait that is shorter than a way back."""
        outcome = self._enter(task, asked)
        for _ in range(SHORT_WAITS_AT_MOST):
            soon = short_wait_seconds(outcome)
            if not soon:
                break
            time.sleep(soon)
            outcome = self._enter(task, asked)
        return outcome

    def _enter(self, task: Any, asked: _Asked) -> Attempt | Rejected:
        attribution = asked.attribution
        try:
            answer = self._limiter.acquire(self._request(asked), self._enforcement)
        except LimiterUnavailable as error:
            return self._without_limiter(task, error)
        self._tier_cache.set_version(answer.config_version)
        if attribution.problem or self._uncounted:
            self._count(task, attribution)
        if isinstance(answer, Admitted):
            return Attempt(task, asked.lease, self._limiter)
        return answer

    def _count(self, task: Any, attribution: Attribution) -> None:
        """Count rare outcomes; a count that fails must not cost the task its slot."""
        try:
            if attribution.problem:
                self._limiter.count("invalid")
            if self._uncounted:
                self._limiter.count("opened", self._uncounted)
                self._uncounted = 0
        except LimiterUnavailable as error:
            self._notices.error("away", "%s", error)
        if not attribution.problem:
            return
        self._notices.error(
            f"invalid:{task.name}",
            "task %s is attributed to the tenant _invalid: %s",
            task.name,
            attribution.problem,
            extra=about(task_name=task.name, tenant=attribution.tenant),
        )

    def _without_limiter(self, task: Any, error: LimiterUnavailable) -> Attempt | Rejected:
        # Without enforcement no task is rejected, so a missing limiter rejects none either.
        on = self._enforcement is Enforcement.ON
        mode = self._settings.redis_lost if on else "open"
        self._notices.error("away", "%s (redis_lost is %r)", error, mode)
        if mode == "defer":
            return Rejected(Reason.LIMITER_UNAVAILABLE)
        if mode == "open":
            self._uncounted += 1
            return Attempt(task, None, self._limiter)
        return Attempt(task, None, self._limiter, error)

    def countdown_seconds(self, rejected: Rejected) -> float:
        """Return the countdown of a rejected task, at most the broker's longest one.

        If the time of its start is unknown, as for a tier without a free slot: snooze + uniform [0,
        jitter). Otherwise: the time until its expected start, with the same jitter. With
        ``reschedule`` the limiter has added a jitter already, so there is none. If that time is a
        snooze or more, the jitter stays, because tasks without an expected time return at the same
        moment.
        """
        settings = self._settings
        wait, jitter = settings.snooze_seconds, settings.snooze_jitter_seconds
        expected = rejected.retry_after_seconds
        if expected is not None:
            if rejected.reason in _MAY_END_EARLIER:
                # The limit may have a free slot earlier, and nothing would wake the task.
                expected = min(max(expected, LEAST_WAIT_SECONDS), wait)
            wait = expected
            if rejected.action == "reschedule" and expected < settings.snooze_seconds:
                jitter = 0.0
        wait += random.random() * jitter
        return wait if self._longest is None else min(wait, self._longest)

    def _send_back(
        self,
        task: Any,
        context: Context,
        asked: _Asked,
        rejected: Rejected,
    ) -> Any:
        if rejected.reason is Reason.SUPERSEDED:
            logger.info(
                "task %s[%s]: this copy is dropped, another copy has started or is waiting",
                task.name,
                context.id,
                extra=_about(task, context, asked.attribution, rejected),
            )
            return _ignored()
        wait = self.countdown_seconds(rejected)
        attribution, _, copy, serial, *_ = asked
        try:
            sent = self._resender.send(task, context, copy, serial, wait)
        except NotAccepted as error:
            return self._not_accepted(task, context, error)
        except Exception as error:  # noqa: BLE001 - no error may lose the message
            return self._cannot_send(task, context, error)
        if not sent:
            return self._cannot_send(task, context, None)
        self._notices.info(
            f"waits:{_cause(attribution, rejected)}",
            "task %s[%s] waits %.1f s: %s",
            task.name,
            context.id,
            wait,
            _rejection_text(attribution, rejected),
            extra=_about(task, context, attribution, rejected),
        )
        return _ignored()

    def _drop(
        self, task: Any, context: Context, attribution: Attribution, rejected: Rejected
    ) -> Any:
        """Store the failure of a task that a limit with ``drop`` has rejected."""
        error = RateLimitDropped(task.name, context.id or "", rejected.key)
        who = "no tenant" if attribution.tenant is None else f"tenant {attribution.tenant!r}"
        logger.info(
            "task %s[%s] of %s was dropped by the limit %s: it has not run",
            task.name,
            context.id,
            who,
            rejected.key,
            extra=_about(task, context, attribution, rejected),
        )
        return _failed(task, context, error)

    def _not_accepted(self, task: Any, context: Context, problem: NotAccepted) -> Any:
        """Store the failure of a task that the broker does not accept; it keeps no pool slot."""
        exchange = str((context.delivery_info or {}).get("exchange") or "")
        queue = queue_of(context)
        error = PublishFailed(task.name, context.id or "", exchange, queue, str(problem))
        fields = about(task_name=task.name, task_id=context.id, queue=queue)
        logger.error("%s", error, extra=fields)
        return _failed(task, context, error)

    def _cannot_send(self, task: Any, context: Context, error: Exception | None) -> Any:
        """Requeue the old message, or log the whole task if there is no old message.

        Without an error the worker is stopping while its broker is away, and so may be the backend.
        """
        if task.acks_late:
            return _as_traced(REJECTED, NotSentBack(error, requeue=True))
        logger.error(
            "task %s[%s] was rejected and could not be sent back to the broker (%r); "
            "it is lost unless it is sent again: %s",
            task.name,
            context.id,
            error,
            whole_message(task, context),
            extra=about(task_name=task.name, task_id=context.id),
        )
        return _ignored() if error is None else _failed(task, context, error)


class Parked(NotBegun):
    """Ends an attempt whose task is parked."""


class NotSentBack(Reject):
    """Ends an attempt whose task could not be sent back; the broker gets the old message again."""


#: The exceptions of attempts whose task comes back, so that they are no failures.
COMES_BACK = (NotBegun, NotSentBack)
#: The exceptions of attempts whose body has not started.
NOT_BEGUN = (*COMES_BACK, RateLimitDropped, PublishFailed)


def short_wait_seconds(rejected: object) -> float:
    """Return how long a rejected task waits in its slot; 0 if anything but a throttle blocks it."""
    if not isinstance(rejected, Rejected) or rejected.action != "wait":
        return 0.0
    wait = (rejected.retry_after_seconds or 0.0) if rejected.reason is Reason.AT_THROTTLE else 0.0
    return wait if wait <= SHORT_WAIT_SECONDS else 0.0


def _rejection_text(attribution: Attribution, rejected: Rejected) -> str:
    """Return the reason for the log, whose line begins with the task."""
    if rejected.reason is Reason.LIMITER_UNAVAILABLE:
        return "the limiter's Redis does not answer"
    if rejected.key:
        return f"the limit {rejected.key!r} {_TEXTS_OF_LIMITS[rejected.reason]}"
    tenant = f"tenant {attribution.tenant!r} ({rejected.tier})"
    if rejected.reason is Reason.AT_CONCURRENCY_LIMIT:
        return f"{tenant} is at its limit of {rejected.limit}"
    return f"{tenant} {_TEXTS_OF_LIMITS[rejected.reason]}"


def _cause(attribution: Attribution, rejected: Rejected) -> str:
    """Return the kind of a line on a rejection: a flood rejects many tasks for one cause."""
    return f"{rejected.key or attribution.key}:{rejected.reason.name}"


def _about(
    task: Any, context: Context, attribution: Attribution, rejected: Rejected
) -> dict[str, str]:
    """Return the fields of a line on a rejected task."""
    return about(
        task_name=task.name,
        task_id=context.id,
        tenant=attribution.tenant,
        tier=rejected.tier,
        queue=queue_of(context),
        key=rejected.key or attribution.key,
    )


def _header(task: Any, attribution: Attribution) -> dict[str, Any]:
    """Return the header that a producer with this package would have sent, without tier and limits.

    With it the tasks that this task sends belong to its tenant, and so does its next message.
    """
    tenant = attribution.tenant
    named = None if isinstance(tenant, Reserved) else tenant
    return Header(named, service=task.service).to_wire()


def _failed(task: Any, context: Context, error: Exception) -> Any:
    """Store the failure of a task whose body has not run; return it as a tracer does."""
    ignored = task.ignore_result or context.ignore_result
    store = bool(task.store_errors_even_if_ignored or not ignored)
    info = write_failure(task, context, error, store=store)
    return trace_ok_t(info, TraceInfo(FAILURE, error), None, None)


@functools.cache
def _ignored() -> Any:
    """Return what a tracer returns for a task that raised Ignore."""
    return _as_traced(IGNORED, NotBegun())


def _as_traced(state: str, exception: Exception) -> Any:
    """Return what a tracer returns for a task that raised ``exception``."""
    try:
        raise exception
    except (Ignore, Reject):
        info = ExceptionInfo(internal=True)
    return trace_ok_t(info, TraceInfo(state, exception), None, None)
