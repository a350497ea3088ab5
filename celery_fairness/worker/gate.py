"""The gate: asks the limiter before a task's body runs, and sends a refused task back.

It wraps the task's tracer, so that a refused attempt begins nothing: no state STARTED, no
``task_prerun``, no ``before_start``; and so that what is let through holds its slot whatever the
body does. Eager tasks and direct calls have no such tracer and are never limited.

A refused task is on the broker again before its old message is acknowledged: a late-acked message
is acknowledged when this returns, and an early-acked attempt keeps its pool slot until the broker
has the new one.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from celery.app.task import Context
from celery.app.trace import FAILURE, IGNORED, REJECTED, TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject
from kombu.exceptions import EncodeError

from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import Reserved
from celery_fairness.errors import LimiterUnavailable, PublishFailed, RateLimitDropped
from celery_fairness.limiter.protocol import Limiter
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
    new_serial,
    parse_copy,
    was_accepted,
)
from celery_fairness.util.ids import new_lease_id
from celery_fairness.util.throttled_log import Notices, log_misspelling
from celery_fairness.worker.attempt import Attempt, current_attempt
from celery_fairness.worker.because import because
from celery_fairness.worker.deadlock_warning import tell_of_parent
from celery_fairness.worker.failure import write_failure
from celery_fairness.worker.moment import after_a_moment
from celery_fairness.worker.of_queue import queue_of, words_of_queue
from celery_fairness.worker.parked_message import as_text, expires_ms
from celery_fairness.worker.resend import NotTaken, Resender, whole_message
from celery_fairness.worker.unsaid import with_declared

logger = logging.getLogger("celery_fairness")

Tracer = Callable[..., Any]

#: A full limit may say that it is free in no time: its leases end.
LEAST_WAIT_SECONDS = 1.0
#: A task that may start by the time it would be parked asks again, so often.
ASK_AT_MOST = 3
#: A shorter wait beside a free slot is the way through the broker, in seconds.
IDLE_SHORT_SECONDS = 0.5
#: Less than this in all is not logged, and no more often than that by one worker, in seconds.
IDLE_LEAST_SECONDS, IDLE_EVERY_SECONDS = 5.0, 3600.0
#: Why a limit may open before the time it says.
_NOT_BY_TIME = (Reason.AT_CONCURRENCY_LIMIT, Reason.AT_LOCAL_LIMIT, Reason.COOLING_DOWN)

#: Where the main process leaves what it knows of an attempt, in the request that the pool gets.
ATTEMPT_KEY = "_fairness_attempt"


class _Asked(NamedTuple):
    """What an attempt asks the limiter with."""

    charge: Attribution
    lease: Lease
    copy: Copy
    #: Of the copy that a refusal publishes.
    serial: str
    job: Job
    #: It was not accepted before, and is no copy that a rejection published.
    is_new: bool


class Gate:
    """Lets attempts through, or sends them back.

    Args:
        settings: Snooze, jitter, what to do while Redis is away.
        limiter: Where slots are taken.
        directory: Tiers of tenants.
        resender: Sends refused tasks back.
        notices: Where trouble is logged.
        ended: Told of every lease whose attempt ended here.
        longest_countdown_seconds: The broker's visibility timeout bounds it; None where there is
            none.
        not_begun: Called for every attempt whose body does not begin.
    """

    def __init__(
        self,
        settings: Settings,
        limiter: Limiter,
        directory: TierCache,
        resender: Resender,
        notices: Notices,
        ended: Callable[[Lease], None],
        longest_countdown_seconds: float | None = None,
        not_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._enforcement = settings.enforcement
        self._tier_waits = settings.tier_on_limit == "wait"
        self._limiter = limiter
        self._directory = directory
        self._resender = resender
        self._notices = notices
        self._ended = ended
        self._not_begun = not_begun
        self._longest = longest_countdown_seconds
        self._uncounted = 0

    def charge(self, task: Any, request: dict[str, Any], args: Any, kwargs: Any) -> Attribution:
        """Return who an attempt is charged to; the same in the main process and in the pool."""
        source = getattr(task, "tenant_source", None)
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
            args, kwargs = (), {}
        known = self._settings, self._directory, self._notices
        request = with_declared(*known, task, request, args, kwargs)
        of_queue, problem = words_of_queue(self._settings, task, request, args, kwargs)
        scopes = source, task.service, self._settings
        charge = attribution_of(request, args, kwargs, *scopes, problem=problem)
        return replace(charge, of_queue=of_queue)

    def wrap(self, task: Any, tracer: Tracer) -> Tracer:
        """Return ``tracer`` behind the gate."""
        if task.name.startswith("celery."):
            return tracer

        def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any] | None = None) -> Any:
            request = request or {}
            known = request.pop(ATTEMPT_KEY, None) or {}
            if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
                # No body can run with these: the tracer says so.
                return tracer(uuid, args, kwargs, request)
            charge = self.charge(task, request, args, kwargs)
            if charge.misspelling:
                log_misspelling(self._notices, task.name, charge.misspelling)
            if not charge.keys:
                return tracer(uuid, args, kwargs, request)
            lease = Lease(known.get("lease") or new_lease_id(uuid), charge.keys)
            # A message that has none is known by this one from here on.
            copy = parse_copy(request.get(COPY_HEADER)) or Copy(first_copy()["message"])
            job = Job(uuid, task.name, queue_of(request))
            is_new = not (copy.serial or was_accepted(request))
            asked = _Asked(charge, lease, copy, new_serial(), job, is_new)

            def context() -> Context:
                return Context(request, args=args, kwargs=kwargs, called_directly=False)

            try:
                outcome = self._enter_or_park(task, context, asked, known)
            except SoftTimeLimitExceeded:
                # The question took the task's whole time, and nobody knows the answer.
                Attempt(task, lease, self._limiter, watched=True).end()
                outcome = Rejected(Reason.LIMITER_UNAVAILABLE)
            except BaseException:
                Attempt(task, lease, self._limiter, watched=True).end()
                self._ended(lease)
                raise
            if not isinstance(outcome, Attempt):
                self._not_begun()
            if outcome is None:
                return _ended(IGNORED, Parked())
            if isinstance(outcome, Rejected):
                if outcome.action == "drop":
                    return self._drop(task, context(), charge, outcome)
                if outcome.reason is Reason.LIMITER_UNAVAILABLE:
                    # The limiter knows of no successor: the same copy goes back.
                    asked = asked._replace(serial=copy.serial)
                return self._send_back(task, context(), asked, outcome, known)
            token = current_attempt.set(outcome)
            try:
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
        known: dict[str, Any],
    ) -> Attempt | Rejected | None:
        """Return what came of asking, None where the task waits in the limiter."""
        charge = asked.charge
        for _ in range(ASK_AT_MOST):
            outcome = after_a_moment(functools.partial(self._enter, task, asked))
            if not isinstance(outcome, Rejected):
                return outcome
            context = make_context()
            tell_of_parent(self._notices, self._limiter, task, context, charge, outcome)
            if not self._is_parked(outcome):
                return outcome
            _complete(task, context, charge, outcome)
            try:
                message = self._resender.take(task, context, asked.copy, known.get("content_type"))
                text, expires = as_text(message), expires_ms(message)
            except (EncodeError, TypeError, ValueError) as error:
                logger.info("task %s[%s] cannot be parked: %r", task.name, context.id, error)
                return outcome
            try:
                parking = self._limiter.park(self._request(asked), text, expires)
            except LimiterUnavailable as error:
                # It may wait there: what goes back is dropped then.
                self._notices.error("away", "%s", error)
                return Rejected(Reason.LIMITER_UNAVAILABLE)
            if parking is Parking.SUPERSEDED:
                return replace(outcome, reason=Reason.SUPERSEDED)
            if parking is Parking.ELSEWHERE:
                return outcome
            if parking is Parking.PARKED:
                logger.info(
                    "task %s[%s] is parked: %s", task.name, context.id, because(charge, outcome)
                )
                return None
        return outcome

    def _is_parked(self, refused: Rejected) -> bool:
        """Say whether what refuses a task has it wait in the limiter, and not on the broker."""
        if refused.reason in (Reason.SUPERSEDED, Reason.LIMITER_UNAVAILABLE):
            return False
        by_tier = not refused.key and self._settings.tier_on_limit != "wait"
        return refused.action == "wait" and not by_tier

    def _request(self, asked: _Asked) -> SlotRequest:
        charge, lease, copy, serial, job, _ = asked
        tenant = charge.tenant or ""
        tier = self._directory.tier_of(tenant, charge.tier) if tenant else ""
        return SlotRequest(lease, tenant, tier, copy, serial, charge.limits_text, job, asked.is_new)

    def _enter(self, task: Any, asked: _Asked) -> Attempt | Rejected:
        charge = asked.charge
        try:
            answer = self._limiter.acquire(self._request(asked), self._enforcement)
        except LimiterUnavailable as error:
            return self._without_limiter(task, error)
        self._directory.set_version(answer.news)
        if charge.problem or self._uncounted:
            self._count(task, charge)
        if isinstance(answer, Admitted):
            if (
                asked.copy.serial
                and charge.tenant
                and not charge.limits_text
                and not self._tier_waits
            ):
                self._log_idle(asked.lease)
            return Attempt(task, asked.lease, self._limiter, watched=answer.watched)
        return answer

    def _log_idle(self, lease: Lease) -> None:
        """Log how long tasks that were sent back waited while their tenant had a free slot.

        A call that fails must not cost the task its slot.
        """
        try:
            tenants, waited = self._limiter.idle(
                lease, IDLE_SHORT_SECONDS, IDLE_LEAST_SECONDS, IDLE_EVERY_SECONDS
            )
        except LimiterUnavailable as error:
            self._notices.error("away", "%s", error)
            return
        if tenants:
            logger.warning(
                "tasks waited %.0f s in all while their tenant had a free slot (tenants: %d): "
                "they come back when their snooze ends; "
                'set tier_on_limit = "wait" to start them at once',
                waited,
                tenants,
            )

    def _count(self, task: Any, charge: Attribution) -> None:
        """Count what is rare; a count that fails must not cost the task its slot."""
        try:
            if charge.problem:
                self._limiter.count("invalid")
            if self._uncounted:
                self._limiter.count("opened", self._uncounted)
                self._uncounted = 0
        except LimiterUnavailable as error:
            self._notices.error("away", "%s", error)
        if not charge.problem:
            return
        self._notices.error(
            f"invalid:{task.name}",
            "task %s is charged to the tenant _invalid: %s",
            task.name,
            charge.problem,
        )

    def _without_limiter(self, task: Any, error: LimiterUnavailable) -> Attempt | Rejected:
        # Who refuses nothing does not refuse because nobody can be asked.
        on = self._enforcement is Enforcement.ON
        mode = self._settings.redis_lost if on else "open"
        self._notices.error("away", "%s (redis_lost is %r)", error, mode)
        if mode == "defer":
            return Rejected(Reason.LIMITER_UNAVAILABLE)
        if mode == "open":
            self._uncounted += 1
            return Attempt(task, None, self._limiter)
        return Attempt(task, None, self._limiter, error)

    def countdown_seconds(self, refused: Rejected) -> float:
        """Return how long a refused task waits, bounded.

        Where its tier refused, or nobody knows when it may start: snooze + uniform [0, jitter).
        Else until it is expected to start, and the same jitter; none where a limit says
        ``reschedule``, whose answer has one, unless that is a snooze or more, when all those come
        that have no time of their own.
        """
        settings = self._settings
        wait, jitter = settings.snooze_seconds, settings.snooze_jitter_seconds
        expected = refused.retry_after_seconds
        if refused.key and expected is not None:
            if refused.reason in _NOT_BY_TIME:
                # It may open before, and nobody would tell.
                expected = min(max(expected, LEAST_WAIT_SECONDS), wait)
            wait = expected
            if refused.action == "reschedule" and expected < settings.snooze_seconds:
                jitter = 0.0
        wait += random.random() * jitter
        return wait if self._longest is None else min(wait, self._longest)

    def _send_back(
        self,
        task: Any,
        context: Context,
        asked: _Asked,
        refused: Rejected,
        known: dict[str, Any],
    ) -> Any:
        if refused.reason is Reason.SUPERSEDED:
            logger.info(
                "task %s[%s]: this copy is dropped, another of it has started or is waiting",
                task.name,
                context.id,
            )
            return _ignored()
        wait = self.countdown_seconds(refused)
        charge, _, copy, serial, *_ = asked
        _complete(task, context, charge, refused)
        known_type = known.get("content_type")
        try:
            sent = self._resender.send(task, context, copy, serial, wait, known_type)
        except NotTaken as error:
            return self._not_taken(task, context, error)
        except Exception as error:  # noqa: BLE001 - the message is kept whatever it is
            return self._cannot_send(task, context, error)
        if not sent:
            return self._cannot_send(task, context, None)
        logger.info(
            "task %s[%s] waits %.1f s: %s",
            task.name,
            context.id,
            wait,
            because(charge, refused),
        )
        return _ignored()

    def _drop(self, task: Any, context: Context, charge: Attribution, refused: Rejected) -> Any:
        """A limit says that a task it refuses shall not run: that is its result."""
        error = RateLimitDropped(task.name, context.id or "", refused.key)
        who = "no tenant" if charge.tenant is None else f"tenant {charge.tenant!r}"
        logger.info(
            "task %s[%s] of %s was dropped by the limit %s: it has not run",
            task.name,
            context.id,
            who,
            refused.key,
        )
        return _failed(task, context, error)

    def _not_taken(self, task: Any, context: Context, problem: NotTaken) -> Any:
        """The broker answers and does not take the task back: it fails, and keeps no place."""
        place = context.delivery_info or {}
        exchange, key = (str(place.get(each) or "") for each in ("exchange", "routing_key"))
        error = PublishFailed(task.name, context.id or "", exchange, key, str(problem))
        logger.error("%s", error)
        return _failed(task, context, error)

    def _cannot_send(self, task: Any, context: Context, error: Exception | None) -> Any:
        """The message is on no broker again: leave it where it is, or say it whole."""
        if task.acks_late:
            return _ended(REJECTED, Reject(error, requeue=True))
        logger.error(
            "task %s[%s] was refused and could not be sent back to the broker (%r); "
            "it is lost unless it is sent again: %s",
            task.name,
            context.id,
            error,
            whole_message(task, context),
        )
        return _ignored()


class NotBegun(Ignore):
    """Ends an attempt whose body has not begun: the main process sees it."""


class Parked(NotBegun):
    """Ends one whose task waits in the limiter."""


#: How attempts end whose body has not begun.
NOT_BEGUN = (NotBegun, RateLimitDropped, PublishFailed)


def _complete(task: Any, context: Context, charge: Attribution, refused: Rejected) -> None:
    """Put the header into a message of a producer without this package."""
    headers = context.headers if isinstance(context.headers, dict) else {}
    context.headers = headers
    if HEADER not in headers and not charge.problem:
        # What was read from its arguments goes with it.
        header = Header(_plain(charge.tenant), refused.tier or None, task.service)
        context.headers = {**headers, HEADER: header.to_wire()}


def _plain(tenant: str | None) -> str | None:
    """Return a tenant as it stands in a header, where the reserved two have no place."""
    return None if isinstance(tenant, Reserved) else tenant


def _failed(task: Any, context: Context, error: Exception) -> Any:
    """Store a failure of a task whose body has not run; return what a tracer returns for one."""
    ignored = task.ignore_result or context.ignore_result
    store = bool(task.store_errors_even_if_ignored or not ignored)
    info = write_failure(task, context, error, store=store)
    return trace_ok_t(info, TraceInfo(FAILURE, error), None, None)


@functools.cache
def _ignored() -> Any:
    """Return what a tracer returns for a task that raised Ignore: the same every time."""
    return _ended(IGNORED, NotBegun())


def _ended(state: str, exception: Exception) -> Any:
    """Return what a tracer returns for a task that raised ``exception``."""
    try:
        raise exception
    except (Ignore, Reject):
        info = ExceptionInfo(internal=True)
    return trace_ok_t(info, TraceInfo(state, exception), None, None)
