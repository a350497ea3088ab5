"""Every error that this package raises, as one tree.

::

    FairnessError
    ├── SettingsError          a setting or variable that cannot be meant     (ValueError)
    ├── NotWired               a FairTask of an app without ``Fairness(app)``  (RuntimeError)
    ├── TaskDeclarationError   ``tenant=`` or ``service=`` that cannot work    (TypeError)
    ├── TenantError            a tenant that cannot be charged
    │   ├── TenantInvalid      the wrong type, or too long                     (TypeError)
    │   └── TenantMissing      no tenant although ``no_tenant="error"``        (ValueError)
    ├── HeaderInvalid          a ``fairness`` header that cannot be read       (ValueError)
    ├── LimiterUnavailable     the limiter's Redis does not answer             (ConnectionError)
    ├── DeliveriesExhausted    the result of a dead letter: its process died too often
    ├── MessageUnreadable      the result of a dead letter: a worker could not read it
    └── testing.server.ServerFailed  a test's own Redis did not start or stop  (RuntimeError)

Each carries its facts as fields, says the next step, and survives pickling: a result backend
may store it. Errors of redis-py become :class:`LimiterUnavailable` in one place,
:mod:`celery_fairness.store.connection`.
"""

from __future__ import annotations

from typing import Any


class FairnessError(Exception):
    """Base of every error of this package.

    The fields of a subclass are its constructor's arguments, in order, which is also what
    pickling keeps; the text is made from them and says what to do next.
    """

    def __str__(self) -> str:
        return self._text()

    def _text(self) -> str:
        return " ".join(str(part) for part in self.args)


class SettingsError(FairnessError, ValueError):
    """A setting that cannot be meant: nothing is started with a guess in its place.

    Attributes:
        problems: One sentence each, ``NAME: expected X, got: Y``.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def _text(self) -> str:
        return "; ".join(self.problems)


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
        option: ``tenant`` or ``service``.
        problem: What is wrong and what is expected.
    """

    def __init__(self, task: str, option: str, problem: str) -> None:
        super().__init__(task, option, problem)
        self.task, self.option, self.problem = task, option, problem

    def _text(self) -> str:
        return f"task {self.task}: option {self.option!r}: {self.problem}"


class TenantError(FairnessError):
    """A tenant that cannot be charged."""


class TenantInvalid(TenantError, TypeError):
    """A value that cannot be a tenant.

    Attributes:
        problem: What was given and what is expected; never the value itself, which may be long.
        task: The task's name, where known.
        parameter: The parameter or source of the value, where known.
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


class LimiterUnavailable(FairnessError, ConnectionError):
    """The limiter's Redis does not answer.

    Attributes:
        address: Where it was looked for, without a password.
        problem: What the connection said.
    """

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(address, problem)
        self.address, self.problem = address, problem

    def _text(self) -> str:
        return (
            f"the limiter's Redis at {self.address} does not answer ({self.problem}): "
            "start it, or set FAIRNESS_REDIS_URL; "
            "the setting redis_lost says what tasks do meanwhile"
        )


class DeliveriesExhausted(FairnessError):
    """The result of a task whose process died too often: it is a dead letter and not run again.

    Attributes:
        task: The task's name.
        task_id: Its id.
        deliveries: How many of them ended with their process.
        queue: Among whose dead letters it lies.
    """

    def __init__(self, task: str, task_id: str, deliveries: int, queue: str) -> None:
        super().__init__(task, task_id, deliveries, queue)
        self.task, self.task_id, self.deliveries, self.queue = task, task_id, deliveries, queue

    def _text(self) -> str:
        return (
            f"task {self.task}[{self.task_id}] was delivered {self.deliveries} times and its "
            f"process died each time: it lies in the dead letters of queue {self.queue!r}; "
            "find what ends its process, then send it again"
        )


class MessageUnreadable(FairnessError):
    """The result of a task whose message a worker could not read: it is a dead letter.

    Attributes:
        task: The task's name.
        task_id: Its id.
        queue: Among whose dead letters it lies.
    """

    def __init__(self, task: str, task_id: str, queue: str) -> None:
        super().__init__(task, task_id, queue)
        self.task, self.task_id, self.queue = task, task_id, queue

    def _text(self) -> str:
        return (
            f"task {self.task}[{self.task_id}] has a message that a worker could not read: it lies "
            f"in the dead letters of queue {self.queue!r}; give all workers the types and codecs "
            "of its producer, then send it again"
        )


def got(value: Any, longest: int = 80) -> str:
    """Return ``value`` as it stands in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"
