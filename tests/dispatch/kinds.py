"""The shop with tasks of every kind that Celery knows, each of which waits for a file."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from billiard.process import current_process
from celery import Celery, Task, shared_task
from celery.signals import task_postrun
from celery.worker.request import Request

from celery_fairness import FairTask, RateLimitExceeded
from tests.support.shop import ledger_line, make_app, wait_for_file

#: Names of the tasks.
KINDS = (
    "kinds.plain",
    "kinds.based",
    "kinds.shared",
    "kinds.classy",
    "kinds.requested",
    "kinds.requested_by_name",
    "kinds.fair",
)
#: What a body says that met a 429, by its argument ``how``: two seconds, said in each way.
TOO_MUCH: dict[str, Callable[[], dict[str, Any]]] = {
    "429": lambda: {"retry_after": "2"},
    "429_until": lambda: {"until": datetime.now(UTC) + timedelta(seconds=2)},
    "429_until_unix": lambda: {"until": time.time() + 2},
}


class Based(Task):
    """A user's base class."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the body, as many a base class does."""
        return self.run(*args, **kwargs)


class OwnRequest(Request):
    """A user's request class that sees ends."""

    def on_failure(self, *args: Any, **kwargs: Any) -> Any:
        """See a failure."""
        ledger_line("own_on_failure", self.name, self.id)
        return super().on_failure(*args, **kwargs)

    def acknowledge(self) -> None:
        """See an ack."""
        ledger_line("own_acknowledge", self.name, self.id)
        super().acknowledge()


class Requested(Task):
    """Tasks with a request class of the user's own."""

    abstract = True
    Request = OwnRequest


class BrokenRequest(Request):
    """A user's request class that cannot hand its tasks to a pool."""

    @property
    def time_limits(self) -> Any:
        """Fail where Celery reads them for the pool."""
        raise TypeError("a secret")

    @time_limits.setter
    def time_limits(self, value: Any) -> None: ...


class Broken(Task):
    """Tasks that never reach a pool."""

    abstract = True
    Request = BrokenRequest


class RequestedByName(Task):
    """The same, by its name as Celery's own is given."""

    abstract = True
    Request = "tests.dispatch.kinds:OwnRequest"


class Classy(Task):
    """A task that is a class."""

    name = "kinds.classy"

    def run(self, gate: str, how: str = "ok") -> str:
        """Wait."""
        return body(self, gate, how)


def body(task: Any, gate: str = "/", how: str = "ok", seconds: float = 0.0) -> str:
    """Wait for a file, run for a while and end."""
    request = task.request
    headers = request.headers or {}
    user = headers.get("fairness", {}).get("tenant")
    facts = {
        "user": user,
        "redelivered": request.delivery_info.get("redelivered"),
        "eta": request.eta,
        "waited_for": headers.get("fairness_eta"),
        "retries": request.retries,
    }
    ledger_line("start", task.name, request.id, **facts)
    try:
        wait_for_file(gate, 30)
        time.sleep(seconds)
        if how == "error":
            raise ValueError("as asked")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "kill_worker":
            kill_worker()
        if how == "sys_exit":
            sys.exit(3)
        if how == "retry" and not request.retries:
            raise task.retry(countdown=0)
        if how in TOO_MUCH and facts["waited_for"] is None:
            raise RateLimitExceeded(**TOO_MUCH[how]())
        return "done"
    finally:
        ledger_line("end", task.name, request.id, user=user)


def kill_worker() -> None:
    """Kill the whole worker that runs the caller: it gets no moment for a report."""
    if current_process()._name != "MainProcess":
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@task_postrun.connect
def kill_worker_after(kwargs: Any = None, **_: Any) -> None:
    """Kill the worker between the end of a body, whose result is stored, and its report."""
    if isinstance(kwargs, dict) and kwargs.get("how") == "kill_worker_after":
        kill_worker()


@shared_task(bind=True, name="kinds.shared")
def shared(self: Any, gate: str, how: str = "ok") -> str:
    """Wait."""
    return body(self, gate, how)


def note_failure(task_id: str) -> None:
    """Be told that a task failed."""
    ledger_line("errback", "kinds.note_failure", task_id)


def make_kinds(app: Celery) -> Celery:
    """Give ``app`` a task of every kind."""
    app.set_default()
    for name, base in (
        ("plain", None),
        ("based", Based),
        ("requested", Requested),
        ("requested_by_name", RequestedByName),
        ("broken", Broken),
        ("fair", FairTask),
    ):
        given = {} if base is None else {"base": base}
        app.task(body, bind=True, name=f"kinds.{name}", shared=False, **given)
    for late in (False, True):
        name = "kinds.late" if late else "kinds.early"
        app.task(
            body,
            bind=True,
            name=name,
            shared=False,
            acks_late=late,
            reject_on_worker_lost=late,
        )
    app.task(note_failure, name="kinds.note_failure", shared=False)
    app.register_task(Classy())
    return app


if os.environ.get("CELERY_BROKER_URL"):
    app = make_kinds(make_app())
