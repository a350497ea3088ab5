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
    ├── TaskExists             a task was not sent: another one has its unique key
    ├── Unroutable             a task was not sent: no queue is bound for it
    ├── LimiterUnavailable     the limiter's Redis does not answer             (ConnectionError)
    │   └── NotWithPartitions  a command needs all partitions together
    ├── DeliveriesExhausted    the result of a dead letter: its process died too often
    ├── MessageUnreadable      the result of a dead letter: a worker could not read it
    ├── RateLimitDropped       the result of a task that a limit dropped
    ├── DuplicateTask          the result of a task whose unique key another one has
    ├── PublishFailed          the result of a rejected task that its broker does not take back
    ├── NotFound               no such task, queue, key or library             (LookupError)
    ├── RateLimitExceeded      raised by a task's body: an API answered "too many requests"
    ├── store.library.LibraryUnusable  Redis cannot load the functions of this version
    └── testing.server.ServerFailed  a test's own Redis did not start or stop  (RuntimeError)

Each error has its facts as fields, names the next step, and survives pickling, because a result
backend may store it. All except ``ServerFailed`` can be imported from ``celery_fairness``.
:mod:`celery_fairness.store.connection` turns errors of redis-py into :class:`LimiterUnavailable`.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, NoReturn

#: Similarity from which a name counts as misspelled, 0 to 1. One wrong letter of six gives 0.83.
#: Celery's own most similar name, ``time_limit``, has 0.63 with ``limits``.
MISSPELLED = 0.82
#: A longer name is never a misspelling of one of our names.
LONGEST_NAME = 20


class FairnessError(Exception):
    """Base of every error of this package.

    A subclass is a dataclass of the error's facts. Pickling and result backends store the facts in
    order, and the text is made from them.
    """

    #: The text, with names of facts in braces.
    _text: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return self._text.format(**vars(self)) if self._text else " ".join(map(str, self.args))


class ProblemsError(FairnessError, ValueError):
    """Invalid values; the error names all of them at once.

    Attributes:
        problems: One sentence each, ``NAME: expected X, got: Y``.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(self.problems)


class SettingsError(ProblemsError):
    """An invalid setting. Nothing starts with a guess in its place."""


class PolicyInvalid(ProblemsError):
    """An invalid limit. It is not created, and no task runs without it instead."""


@dataclass(eq=False, repr=False)
class NotWired(FairnessError, RuntimeError):
    """A Celery app that has no ``Fairness``."""

    #: The app's name.
    app: str

    _text = (
        "the Celery app {app!r} has no Fairness: "
        "add 'fairness = Fairness(app)' where the app is made"
    )


@dataclass(eq=False, repr=False)
class TaskDeclarationError(FairnessError, TypeError):
    """An option of a FairTask that cannot work, found when the task is registered."""

    #: The task's name.
    task: str
    #: Its name, such as ``tenant``, ``service`` or ``limits``.
    option: str
    #: What is wrong and what is expected.
    problem: str

    _text = "task {task}: option {option!r}: {problem}"


class TenantError(FairnessError):
    """A tenant that cannot be used."""


@dataclass(eq=False, repr=False)
class TenantInvalid(TenantError, TypeError):
    """A value that cannot be a tenant."""

    #: The kind of value that was given, and what is expected. The value itself may be long.
    problem: str
    #: The task's name. "" if it is not known.
    task: str = ""
    #: The parameter or source of the value. "" if it is not known.
    parameter: str = ""

    def __str__(self) -> str:
        where = f"task {self.task}: " if self.task else ""
        source = f"tenant from {self.parameter!r}: " if self.parameter else "tenant: "
        return f"{where}{source}{self.problem}"


@dataclass(eq=False, repr=False)
class TenantMissing(TenantError, ValueError):
    """A task without a tenant while the setting ``no_tenant`` is ``"error"``."""

    #: The task's name.
    task: str

    _text = (
        "task {task} was sent without a tenant and no_tenant is 'error': "
        "give the parameter that its option tenant= names, "
        "or set no_tenant to 'bypass' or 'shared'"
    )


@dataclass(eq=False, repr=False)
class KeyMissing(FairnessError, ValueError):
    """A task without a value for a field in the key of one of its limits."""

    #: The task's name.
    task: str
    #: The key as it was declared, with its fields.
    key: str
    #: Which field has no value, such as ``tenant`` or ``args.customer_id``.
    field: str

    _text = (
        "task {task}: key {key!r}: {{{field}}} has no value: send the task "
        "with one, or declare the limit with missing='empty', which counts such tasks together"
    )


@dataclass(eq=False, repr=False)
class KeyInvalid(FairnessError, TypeError):
    """A value that cannot stand in the key of a limit."""

    #: The kind of value that was given, and what is expected. The value itself may be long.
    problem: str
    #: The task's name.
    task: str
    #: The key as it was declared, with its fields.
    key: str
    #: Which field, such as ``args.customer_id``.
    field: str

    _text = "task {task}: key {key!r}: {{{field}}}: {problem}"


@dataclass(eq=False, repr=False)
class HeaderInvalid(FairnessError, ValueError):
    """A ``fairness`` header that cannot be read."""

    #: Which field, and what was expected.
    problem: str

    _text = "header 'fairness': {problem}"


@dataclass(eq=False, repr=False)
class BacklogFull(FairnessError):
    """A task was not sent: its tenant or its queue has the maximum number of waiting tasks."""

    #: ``tenant:TENANT`` or ``queue:QUEUE``, the one that has the maximum.
    key: str
    #: The maximum number of waiting tasks, its ``max_waiting``.
    limit: int
    #: The number of tasks that wait now.
    waiting: int

    _text = (
        "the task was not sent: {waiting} tasks of {key!r} wait, and max_waiting "
        "is {limit}: send it when fewer wait, or raise max_waiting"
    )


@dataclass(eq=False, repr=False)
class TaskExists(FairnessError):
    """Nothing was sent, because another task has the unique key of the message.

    ``apply_async`` of a FairTask returns the result of that task instead.
    """

    #: The id of the task that exists.
    task_id: str

    _text = (
        "the task was not sent: task {task_id} has its unique key and has not ended; wait for "
        "that one, or send with on_duplicate='replace'"
    )


@dataclass(eq=False, repr=False)
class Unroutable(FairnessError):
    """A task was not sent: its exchange leads to no queue."""

    #: The exchange to which the task was published.
    exchange: str
    #: The routing key with which it was published.
    routing_key: str

    def __str__(self) -> str:
        return (
            f"the task was not sent: exchange {got(self.exchange)} has no queue for routing key "
            f"{got(self.routing_key)}: start a worker that consumes the queue, or declare the "
            "queue in task_queues, then send the task again"
        )


@dataclass(eq=False, repr=False)
class LimiterUnavailable(FairnessError, ConnectionError):
    """The limiter's Redis does not answer."""

    #: The address of that Redis, without a password.
    address: str
    #: The error of the connection.
    problem: str
    #: Whether this Redis is the broker too, as on ``fairredis``.
    is_broker: bool = False
    #: Whether it answers, and only takes no commands now, as a replica without its master.
    is_not_ready: bool = False
    #: Whether it answered with an error, as to a wrong password.
    has_answered: bool = False

    def __str__(self) -> str:
        if self.is_broker:
            whose, source = "the broker's", "broker_url"
            fix = "start it, or correct broker_url"
            until = "its tasks wait there, and running tasks keep their slots"
        else:
            whose, source = "the limiter's", "FAIRNESS_REDIS_URL"
            fix = "start it, or set FAIRNESS_REDIS_URL"
            until = "the setting redis_lost decides what tasks do"
        if self.is_not_ready:
            fix = "docs/how-to/recover-redis.md has the cause for its first word"
        elif self.problem.startswith("SCHEMA "):
            fix = "docs/how-to/upgrade.md has the rules for another schema"
        elif self.has_answered:
            fix = f"correct the user and the password in {source}, or what that user may do"
        return (
            f"{whose} Redis at {self.address} {self.what} ({self.problem}): {fix}; "
            f"until then {until}"
        )

    @property
    def what(self) -> str:
        """The state of the server, as the end of a sentence."""
        if self.is_not_ready:
            return "takes no commands now"
        return "answers with an error" if self.has_answered else "does not answer"


class NotWithPartitions(LimiterUnavailable):
    """The installation has several partitions, and the command works with one alone."""

    @classmethod
    def of(cls, address: str, what: str) -> NotWithPartitions:
        """Return the error of ``what``, a function or a command."""
        problem = f"{what} is not there with them: docs/how-to/partitions.md has the reason"
        return cls(address, problem, is_broker=True, has_answered=True)

    @property
    def what(self) -> str:
        """The state of the server, as the end of a sentence."""
        return "has several partitions"

    def __str__(self) -> str:
        return f"the broker's Redis at {self.address} {self.what}: {self.problem}"


@dataclass(eq=False, repr=False)
class DeliveriesExhausted(FairnessError):
    """The result of a task whose process died too often: it is a dead letter and not run again."""

    #: The task's name.
    task: str
    #: Its id.
    task_id: str
    #: The number of deliveries whose process died.
    deliveries: int
    #: The queue that has the dead letter.
    queue: str

    _text = (
        "task {task}[{task_id}] was delivered {deliveries} times and its "
        "process died each time: it is in the dead letters of queue {queue!r}; "
        "find what ends its process, then send it again"
    )


@dataclass(eq=False, repr=False)
class MessageUnreadable(FairnessError):
    """The result of a task whose message a worker could not read: it is a dead letter."""

    #: The task's name.
    task: str
    #: Its id.
    task_id: str
    #: The queue that has the dead letter.
    queue: str

    _text = (
        "task {task}[{task_id}] has a message that a worker could not read: it is "
        "in the dead letters of queue {queue!r}; give all workers the types and codecs "
        "of its producer, then send it again"
    )


@dataclass(eq=False, repr=False)
class RateLimitDropped(FairnessError):
    """The result of a task that did not run: a limit with ``on_limit="drop"`` rejected it."""

    #: The task's name.
    task: str
    #: Its id.
    task_id: str
    #: The key of the limit that dropped it.
    key: str

    _text = (
        "task {task}[{task_id}] was dropped and has not run: the limit {key!r} "
        "has on_limit='drop' and rejected it; send it again later, or declare the "
        "limit with on_limit='wait' or 'reschedule'"
    )


@dataclass(eq=False, repr=False)
class DuplicateTask(FairnessError):
    """The result of a task that has not run, because another task has its unique key."""

    #: The task's name.
    task: str
    #: Its id.
    task_id: str
    #: The unique key.
    key: str
    #: The id of the other task.
    of: str
    #: ``dropped``: the other task was there before. ``replaced``: the other task is newer.
    how: str

    _text = (
        "task {task}[{task_id}] was {how} and has not run: task {of} has the unique key {key!r}; "
        "wait for that one"
    )


@dataclass(eq=False, repr=False)
class PublishFailed(FairnessError):
    """The result of a task that was rejected, and that its broker did not take back."""

    #: The task's name.
    task: str
    #: Its id.
    task_id: str
    #: The exchange to which it was published. "" is the default exchange.
    exchange: str
    #: The routing key; on the default exchange, the queue.
    routing_key: str
    #: The broker's error.
    problem: str

    _text = (
        "task {task}[{task_id}] has not run: a limit rejected it, and its broker "
        "does not take it back to exchange {exchange!r}, routing key "
        "{routing_key!r} ({problem}): declare its queue in task_queues, then send "
        "it again"
    )


@dataclass(eq=False, repr=False)
class NotFound(FairnessError, LookupError):
    """There is no such thing in the installation."""

    #: ``task``, ``queue``, ``key`` or ``library``.
    what: str
    #: The task's id, or the name of the queue, key or library.
    name: str
    #: The rest of the sentence that begins with ``what`` and ``name``.
    problem: str

    def __str__(self) -> str:
        return f"{self.what} {got(self.name)} {self.problem}"


@dataclass(eq=False, repr=False)
class RateLimitExceeded(FairnessError):
    """Raised by a task's body when an API answers "too many requests", such as HTTP 429.

    The keys of the task's limits cool down for all tasks. Then the task runs again, and this uses
    none of its retries. A task without limits waits alone. A task that is no FairTask fails with
    this error, as with any other.

    If neither ``until`` nor ``retry_after`` is given, the wait is ``default_retry_delay`` of the
    task.
    """

    #: The time from which requests are accepted: an aware datetime, or Unix seconds.
    until: datetime | float | None = None
    #: The wait: seconds, or text as in the header ``Retry-After``.
    retry_after: float | str | None = None
    #: The only key that cools down. None means the keys of the task's limits.
    key: str | None = None

    def __str__(self) -> str:
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
