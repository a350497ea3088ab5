"""Every error that this package raises, as one tree.

::

    FairnessError
    ├── ProblemsError          invalid values, one sentence for each           (ValueError)
    │   ├── SettingsError      a setting or variable
    │   └── PolicyInvalid      a limit, rate or key
    ├── NotWired               a FairTask of an app without ``Fairness(app)``  (RuntimeError)
    ├── TaskDeclarationError   an option of a FairTask that cannot work        (TypeError)
    ├── TenantError            a tenant that cannot be used
    │   ├── TenantInvalid      the wrong type, or too long                     (TypeError)
    │   └── TenantMissing      no tenant although ``no_tenant="error"``        (ValueError)
    ├── KeyMissing             a field of a limit's key has no value           (ValueError)
    ├── KeyInvalid             a value that cannot stand in a limit's key      (TypeError)
    ├── HeaderInvalid          a ``fairness`` header that cannot be read       (ValueError)
    ├── BacklogFull            a task was not sent: too many wait already
    ├── Unroutable             a task was not sent: no queue is bound for it
    ├── LimiterUnavailable     the limiter's Redis does not answer             (ConnectionError)
    ├── DeliveriesExhausted    the result of a dead letter: its process died too often
    ├── MessageUnreadable      the result of a dead letter: a worker could not read it
    ├── RateLimitDropped       the result of a task that a limit dropped
    ├── PublishFailed          the result of a rejected task that its broker does not take back
    ├── NotFound               no such task, queue, key or library             (LookupError)
    ├── RateLimitExceeded      raised by a task's body: an API answered "too many requests"
    └── testing.server.ServerFailed  a test's own Redis did not start or stop  (RuntimeError)

Each error has its facts as fields, names the next step, and survives pickling, because a result
backend may store it. All except ``ServerFailed`` can be imported from ``celery_fairness``.
:mod:`celery_fairness.store.connection` turns errors of redis-py into :class:`LimiterUnavailable`.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

#: Similarity from which a name counts as misspelled, 0 to 1. One wrong letter of six gives 0.83.
#: Celery's own most similar name, ``time_limit``, has 0.63 with ``limits``.
MISSPELLED = 0.82
#: A longer name is never a misspelling of one of our names.
LONGEST_NAME = 20


class FairnessError(Exception):
    """Base of every error of this package.

    The constructor of a subclass takes its fields in order. Pickling stores these arguments, and
    the text is made from them.
    """

    def __str__(self) -> str:
        return self._text()

    def _text(self) -> str:
        return " ".join(str(part) for part in self.args)


class ProblemsError(FairnessError, ValueError):
    """Invalid values; the error names all of them at once.

    Attributes:
        problems: One sentence each, ``NAME: expected X, got: Y``.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def _text(self) -> str:
        return "; ".join(self.problems)


class SettingsError(ProblemsError):
    """An invalid setting. Nothing starts with a guess in its place."""


class PolicyInvalid(ProblemsError):
    """An invalid limit. It is not created, and no task runs without it instead."""


class NotWired(FairnessError, RuntimeError):
    """A Celery app that has no ``Fairness``.

    Attributes:
        app: The app's name.
    """

    def __init__(self, app: str) -> None:
        super().__init__(app)
        self.app = app

    def _text(self) -> str:
        return (
            f"the Celery app {self.app!r} has no Fairness: "
            "add 'fairness = Fairness(app)' where the app is made"
        )


class TaskDeclarationError(FairnessError, TypeError):
    """An option of a FairTask that cannot work, found when the task is registered.

    Attributes:
        task: The task's name.
        option: ``tenant``, ``service`` or ``limits``.
        problem: What is wrong and what is expected.
    """

    def __init__(self, task: str, option: str, problem: str) -> None:
        super().__init__(task, option, problem)
        self.task, self.option, self.problem = task, option, problem

    def _text(self) -> str:
        return f"task {self.task}: option {self.option!r}: {self.problem}"


class TenantError(FairnessError):
    """A tenant that cannot be used."""


class TenantInvalid(TenantError, TypeError):
    """A value that cannot be a tenant.

    Attributes:
        problem: What was given and what is expected. It never has the value, which may be long.
        task: The task's name. "" if it is not known.
        parameter: The parameter or source of the value. "" if it is not known.
    """

    def __init__(self, problem: str, task: str = "", parameter: str = "") -> None:
        super().__init__(problem, task, parameter)
        self.problem, self.task, self.parameter = problem, task, parameter

    def _text(self) -> str:
        where = f"task {self.task}: " if self.task else ""
        source = f"tenant from {self.parameter!r}: " if self.parameter else "tenant: "
        return f"{where}{source}{self.problem}"


class TenantMissing(TenantError, ValueError):
    """A task without a tenant while the setting ``no_tenant`` is ``"error"``.

    Attributes:
        task: The task's name.
    """

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task

    def _text(self) -> str:
        return (
            f"task {self.task} was sent without a tenant and no_tenant is 'error': "
            "give the parameter that its option tenant= names, "
            "or set no_tenant to 'bypass' or 'shared'"
        )


class KeyMissing(FairnessError, ValueError):
    """A task without a value for a field in the key of one of its limits.

    Attributes:
        task: The task's name.
        key: The key as it was declared, with its fields.
        field: Which field has no value, such as ``tenant`` or ``args.customer_id``.
    """

    def __init__(self, task: str, key: str, field: str) -> None:
        super().__init__(task, key, field)
        self.task, self.key, self.field = task, key, field

    def _text(self) -> str:
        return (
            f"task {self.task}: key {self.key!r}: {{{self.field}}} has no value: send the task "
            "with one, or declare the limit with missing='empty', which counts such tasks together"
        )


class KeyInvalid(FairnessError, TypeError):
    """A value that cannot stand in the key of a limit.

    Attributes:
        problem: What was given and what is expected. It never has the value, which may be long.
        task: The task's name.
        key: The key as it was declared, with its fields.
        field: Which field, such as ``args.customer_id``.
    """

    def __init__(self, problem: str, task: str, key: str, field: str) -> None:
        super().__init__(problem, task, key, field)
        self.problem, self.task, self.key, self.field = problem, task, key, field

    def _text(self) -> str:
        return f"task {self.task}: key {self.key!r}: {{{self.field}}}: {self.problem}"


class HeaderInvalid(FairnessError, ValueError):
    """A ``fairness`` header that cannot be read.

    Attributes:
        problem: Which field, and what was expected.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def _text(self) -> str:
        return f"header 'fairness': {self.problem}"


class BacklogFull(FairnessError):
    """A task was not sent: its tenant or its queue has the maximum number of waiting tasks.

    Attributes:
        key: ``tenant:TENANT`` or ``queue:QUEUE``, the one that has the maximum.
        limit: The maximum number of waiting tasks, its ``max_waiting``.
        waiting: The number of tasks that wait now.
    """

    def __init__(self, key: str, limit: int, waiting: int) -> None:
        super().__init__(key, limit, waiting)
        self.key, self.limit, self.waiting = key, limit, waiting

    def _text(self) -> str:
        return (
            f"the task was not sent: {self.waiting} tasks of {self.key!r} wait, and max_waiting "
            f"is {self.limit}: send it when fewer wait, or raise max_waiting"
        )


class Unroutable(FairnessError):
    """A task was not sent: its exchange leads to no queue.

    Attributes:
        exchange: The exchange to which the task was published.
        routing_key: The routing key with which it was published.
    """

    def __init__(self, exchange: str, routing_key: str) -> None:
        super().__init__(exchange, routing_key)
        self.exchange, self.routing_key = exchange, routing_key

    def _text(self) -> str:
        return (
            f"the task was not sent: exchange {got(self.exchange)} has no queue for routing key "
            f"{got(self.routing_key)}: start a worker that consumes the queue, or declare the "
            "queue in task_queues, then send the task again"
        )


class LimiterUnavailable(FairnessError, ConnectionError):
    """The limiter's Redis does not answer.

    Attributes:
        address: The address of that Redis, without a password.
        problem: The error of the connection.
        is_broker: True on ``fairredis``, where limits and queues are in the same Redis.
    """

    def __init__(self, address: str, problem: str, is_broker: bool = False) -> None:
        super().__init__(address, problem, is_broker)
        self.address, self.problem, self.is_broker = address, problem, is_broker

    def _text(self) -> str:
        if self.is_broker:
            return (
                f"the broker's Redis at {self.address} does not answer ({self.problem}): "
                "start it, or correct broker_url; "
                "until then its tasks wait there, and running tasks keep their slots"
            )
        return (
            f"the limiter's Redis at {self.address} does not answer ({self.problem}): "
            "start it, or set FAIRNESS_REDIS_URL; "
            "until then the setting redis_lost decides what tasks do"
        )


class DeliveriesExhausted(FairnessError):
    """The result of a task whose process died too often: it is a dead letter and not run again.

    Attributes:
        task: The task's name.
        task_id: Its id.
        deliveries: The number of deliveries whose process died.
        queue: The queue that has the dead letter.
    """

    def __init__(self, task: str, task_id: str, deliveries: int, queue: str) -> None:
        super().__init__(task, task_id, deliveries, queue)
        self.task, self.task_id, self.deliveries, self.queue = task, task_id, deliveries, queue

    def _text(self) -> str:
        return (
            f"task {self.task}[{self.task_id}] was delivered {self.deliveries} times and its "
            f"process died each time: it is in the dead letters of queue {self.queue!r}; "
            "find what ends its process, then send it again"
        )


class MessageUnreadable(FairnessError):
    """The result of a task whose message a worker could not read: it is a dead letter.

    Attributes:
        task: The task's name.
        task_id: Its id.
        queue: The queue that has the dead letter.
    """

    def __init__(self, task: str, task_id: str, queue: str) -> None:
        super().__init__(task, task_id, queue)
        self.task, self.task_id, self.queue = task, task_id, queue

    def _text(self) -> str:
        return (
            f"task {self.task}[{self.task_id}] has a message that a worker could not read: it is "
            f"in the dead letters of queue {self.queue!r}; give all workers the types and codecs "
            "of its producer, then send it again"
        )


class RateLimitDropped(FairnessError):
    """The result of a task that did not run: a limit with ``on_limit="drop"`` rejected it.

    Attributes:
        task: The task's name.
        task_id: Its id.
        key: The key of the limit that dropped it.
    """

    def __init__(self, task: str, task_id: str, key: str) -> None:
        super().__init__(task, task_id, key)
        self.task, self.task_id, self.key = task, task_id, key

    def _text(self) -> str:
        return (
            f"task {self.task}[{self.task_id}] was dropped and has not run: the limit {self.key!r} "
            "has on_limit='drop' and rejected it; send it again later, or declare the "
            "limit with on_limit='wait' or 'reschedule'"
        )


class PublishFailed(FairnessError):
    """The result of a task that was rejected, and that its broker did not take back.

    Attributes:
        task: The task's name.
        task_id: Its id.
        exchange: The exchange to which it was published. "" is the default exchange.
        routing_key: The routing key; on the default exchange, the queue.
        problem: The broker's error.
    """

    def __init__(
        self, task: str, task_id: str, exchange: str, routing_key: str, problem: str
    ) -> None:
        super().__init__(task, task_id, exchange, routing_key, problem)
        self.task, self.task_id, self.problem = task, task_id, problem
        self.exchange, self.routing_key = exchange, routing_key

    def _text(self) -> str:
        return (
            f"task {self.task}[{self.task_id}] has not run: a limit rejected it, and its broker "
            f"does not take it back to exchange {self.exchange!r}, routing key "
            f"{self.routing_key!r} ({self.problem}): declare its queue in task_queues, then send "
            "it again"
        )


class NotFound(FairnessError, LookupError):
    """There is no such thing in the installation.

    Attributes:
        what: ``task``, ``queue``, ``key`` or ``library``.
        name: The task's id, or the name of the queue, key or library.
        problem: The rest of the sentence that begins with ``what`` and ``name``.
    """

    def __init__(self, what: str, name: str, problem: str) -> None:
        super().__init__(what, name, problem)
        self.what, self.name, self.problem = what, name, problem

    def _text(self) -> str:
        return f"{self.what} {got(self.name)} {self.problem}"


class RateLimitExceeded(FairnessError):
    """Raised by a task's body when an API answers "too many requests", such as HTTP 429.

    The keys of the task's limits cool down for all tasks. Then the task runs again, and this uses
    none of its retries. A task without limits waits alone. A task that is no FairTask fails with
    this error, as with any other.

    Attributes:
        until: The time from which requests are accepted: an aware datetime, or Unix seconds.
        retry_after: The wait: seconds, or text as in the header ``Retry-After``.
        key: The only key that cools down. None means the keys of the task's limits.

    If neither ``until`` nor ``retry_after`` is given, the wait is ``default_retry_delay`` of the
    task.
    """

    def __init__(
        self,
        until: datetime | float | None = None,
        retry_after: float | str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(until, retry_after, key)
        self.until = until
        self.retry_after = retry_after
        self.key = key

    def _text(self) -> str:
        what = self.key or "the limits of this task"
        if self.until is not None:
            return f"{what}: too many requests until {_shown(self.until)}"
        return f"{what}: too many requests, retry after {_shown(self.retry_after or 'a while')}"


def _shown(value: Any) -> str:
    # A body may give any value, also a number that is too long for str().
    return got(value) if isinstance(value, int) else str(value)


#: A callback for an error: it raises the error, or keeps it so that the valid rest can be used.
OnError = Callable[[FairnessError], None]


def raise_it(error: FairnessError) -> NoReturn:
    """Raise an error: the :data:`OnError` for calls whose caller sees the error."""
    raise error


def got(value: Any, longest: int = 80) -> str:
    """Return ``value`` as text for a message, cut after ``longest`` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Python writes no int of more than 4300 digits and no value that is nested too deeply.
        text = f"{type(value).__name__} that is too long to show"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def suggestion(name: Any, known: Iterable[str]) -> str:
    """Return ``, did you mean X?`` for the most similar known name; "" if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1) if isinstance(name, str) else []
    return f", did you mean {near[0]!r}?" if near else ""


def misspelled(name: Any, known: tuple[str, ...]) -> str | None:
    """Return the known name that ``name`` misspells; None if it is no misspelling.

    A misspelling has one or two letters that are wrong, missing or added. This is stricter than
    :func:`suggestion`, because most of the names it sees belong to Celery or to users.
    """
    if not isinstance(name, str) or len(name) > LONGEST_NAME or name in known:
        return None
    return _near(name, known)


@functools.lru_cache(maxsize=1_000)
def _near(name: str, known: tuple[str, ...]) -> str | None:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=MISSPELLED)
    return near[0] if near else None
