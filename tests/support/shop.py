"""The Celery app that real workers run in tests, and the app that sends to them.

What a task does is written to a ledger file that is not the server under test: one JSON line when
a body starts, one when it ends, so that a test can count runs and what ran at once.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_fairness import Fairness, FairTask, RateLimitExceeded, RateLimitPolicy
from celery_fairness.errors import LimiterUnavailable

#: How a body ends, where its argument ``how`` says so.
EXITS = ("ok", "error", "ignore", "reject", "sys_exit", "retry", "kill_child")


def ledger_line(event: str, name: str, task_id: str | None, **more: Any) -> None:
    """Append one line to the ledger; several processes may."""
    path = os.environ.get("SHOP_LEDGER")
    if not path:
        return
    line = {"at": time.time(), "event": event, "name": name, "id": task_id, **more}
    data = (json.dumps(line) + "\n").encode()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def wait_for_file(path: str, seconds: float) -> None:
    """Hold a body until a file is there: a test lets it go."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at and not Path(path).exists():
        time.sleep(0.01)


class Prepared(FairTask):
    """A user's base class with a hook that may fail before the body."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """End the attempt before its body, where its argument says so."""
        how = kwargs.get("how") or (args[0] if args else "")
        if not str(how).startswith("before_start"):
            return
        ledger_line("start", self.name, task_id, user=kwargs.get("user"))
        if kwargs.get("gate"):
            wait_for_file(kwargs["gate"], 30)
        ledger_line("end", self.name, task_id, user=kwargs.get("user"))
        if how == "before_start_error":
            raise ValueError("as asked")
        if how == "before_start_ignore":
            raise Ignore


class Called(FairTask):
    """A user's base class that calls the body itself."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the body, as many a base class does."""
        return self.run(*args, **kwargs)


class PlainBase(Task):  # type: ignore[type-arg]  # Celery 5.6 has no Task[...]
    """A user's task class without anything of ours."""

    abstract = True


def make_app(environ: Any = os.environ) -> Celery:
    """Make the shop's app.

    Args:
        environ: SHOP_CONF and SHOP_FAIRNESS (JSON), CELERY_BROKER_URL, CELERY_RESULT_BACKEND.
    """
    app = Celery(
        "shop",
        broker=environ.get("CELERY_BROKER_URL"),
        backend=environ.get("CELERY_RESULT_BACKEND"),
        set_as_current=False,
    )
    app.conf.update(result_expires=600, broker_connection_retry_on_startup=True)
    app.conf.update(json.loads(environ.get("SHOP_CONF", "{}")))
    app.conf.fairness = {
        "snooze_seconds": 0.3,
        "snooze_jitter_seconds": 0.2,
        **json.loads(environ.get("SHOP_FAIRNESS", "{}")),
    }
    ours = ("FAIRNESS_", "AN_QUEUE_")
    variables = {k: v for k, v in environ.items() if k.startswith(ours)}
    Fairness(app, variables)
    _add_tasks(app)
    return app


def _add_tasks(app: Celery) -> None:
    # Shared tasks would be registered with every other app of the test process too.
    task = functools.partial(app.task, shared=False)

    @task(
        base=Prepared,
        bind=True,
        tenant="user",
        name="shop.work",
        max_retries=3,
        default_retry_delay=float(os.environ.get("SHOP_RETRY_DELAY", "180")),
    )
    def work(
        self: Any,
        how: str = "ok",
        user: str | None = None,
        seconds: float = 0.0,
        gate: str | None = None,
    ) -> Any:
        """Run for a while and end in one of many ways."""
        task_id, retries = self.request.id, self.request.retries
        ledger_line("start", self.name, task_id, user=user, retries=retries, pid=os.getpid())
        try:
            if gate is not None:
                wait_for_file(gate, 30)
            if seconds:
                time.sleep(seconds)
            return _end(self, how)
        finally:
            ledger_line("end", self.name, task_id, user=user)

    def ends(self: Any, how: str = "ok", user: str | None = None) -> Any:
        """End in one of many ways."""
        ledger_line("start", self.name, self.request.id, user=user, retries=self.request.retries)
        return _end(self, how)

    task(base=Called, bind=True, tenant="user", name="shop.called")(ends)
    task(
        base=FairTask,
        bind=True,
        tenant="user",
        name="shop.retried",
        autoretry_for=(Exception,),
        dont_autoretry_for=(KeyError,),
        max_retries=0,
    )(ends)

    @task(base=FairTask, tenant="user", name="shop.add")
    def add(a: int, b: int, user: str | None = None) -> int:
        """Add two numbers."""
        ledger_line("start", "shop.add", None, user=user, pid=os.getpid())
        return a + b

    tokens = RateLimitPolicy("tokens", rate="100/h", units="args.estimate")

    @task(base=FairTask, tenant="user", limits=[tokens], name="shop.tokens")
    def count_tokens(estimate: int, used: int | None = None, user: str | None = None) -> bool:
        """Report how many tokens were used, and return whether that counted."""
        return used is not None and Fairness.of().limits.used("tokens", used)

    memory = RateLimitPolicy("memory", concurrency=3, slots="args.gigabytes")

    @task(base=FairTask, tenant="user", limits=[memory], name="shop.memory")
    def use_memory(gigabytes: int, gate: str, user: str | None = None) -> int:
        """Hold memory until a file is there."""
        ledger_line("start", "shop.memory", None, user=user, pid=os.getpid())
        wait_for_file(gate, 30)
        return gigabytes

    @task(base=FairTask, bind=True, tenant="user", name="shop.asks")
    def asks(self: Any, limit: dict[str, Any], user: str | None = None) -> str:
        """Wait for the result of a task under the same limit, and not for ever."""
        child = add.apply_async((1, 2), {"user": user}, limits=[limit])
        try:
            return str(child.get(timeout=1, disable_sync_subtasks=False))
        except CeleryTimeoutError:
            return "waited for itself"

    @task(base=FairTask, bind=True, tenant="user", name="shop.replaced")
    def replaced(self: Any, limit: dict[str, Any], user: str | None = None) -> int:
        """Be replaced by an addition that has a limit."""
        raise self.replace(add.s(7, 8, user=user).set(limits=[limit]))

    @task(
        base=FairTask,
        bind=True,
        tenant="user",
        name="shop.narrow",
        limits=[RateLimitPolicy("narrow", concurrency=1)],
    )
    def narrow(self: Any, user: str | None = None, gate: str | None = None) -> Any:
        """Wait for a file under a limit of its own; return the header that came with it."""
        ledger_line("start", self.name, self.request.id, user="narrow")
        if gate is not None:
            wait_for_file(gate, 30)
        ledger_line("end", self.name, self.request.id, user="narrow")
        return (self.request.headers or {}).get("fairness")

    @task(base=FairTask, tenant="user", name="shop.total")
    def total(numbers: list[int], user: str | None = None) -> int:
        """Add many numbers."""
        return sum(numbers)

    @task(base=FairTask, tenant="user", service="analysis", name="shop.routed", bind=True)
    def routed(self: Any, how: str = "ok", user: str | None = None, seconds: float = 0.0) -> str:
        """Say which queue it came from, as the second try of a retry does."""
        ledger_line("start", self.name, self.request.id, user=user)
        if seconds:
            time.sleep(seconds)
        ledger_line("end", self.name, self.request.id, user=user)
        if how == "retry" and self.request.retries == 0:
            raise self.retry(countdown=0.1)
        return str(self.request.delivery_info["routing_key"])

    @task(
        base=FairTask,
        tenant="user",
        name="shop.closed",
        autoretry_for=(LimiterUnavailable,),
        default_retry_delay=0.2,
        max_retries=50,
    )
    def closed(user: str | None = None) -> str:
        """Be retried by the user's own policy."""
        ledger_line("start", "shop.closed", None, user=user)
        return "ran"

    @task(base=FairTask, bind=True, name="shop.echo", tenant="user")
    def echo(self: Any, *args: Any, user: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return what came with the message."""
        request = self.request
        ledger_line("start", self.name, request.id, user=user)
        names = ("id", "retries", "expires", "timelimit", "root_id", "parent_id", "group", "origin")
        own = {k: v for k, v in (request.headers or {}).items() if k.startswith("x_")}
        facts = {name: getattr(request, name) for name in names}
        claim = (request.properties or {}).get("fairness_claim")
        return {**facts, "args": list(args), "kwargs": kwargs, "own_headers": own, "claim": claim}

    @task(base=PlainBase, name="shop.plain")
    def plain() -> str:
        """Have nothing to do with tenants."""
        return "plain"

    @task(base=FairTask, bind=True, name="shop.spawn", tenant="user")
    def spawn(self: Any, user: str | None = None) -> str:
        """Send a task that declares no tenant: it is charged to this one's."""
        return str(app.tasks["shop.child"].delay().id)

    @task(base=FairTask, bind=True, name="shop.child")
    def child(self: Any) -> Any:
        """Return the header that came with it."""
        return (self.request.headers or {}).get("fairness")


def _end(task: Any, how: str) -> Any:
    if how == "ok":
        return "done"
    if how == "error":
        raise ValueError("as asked")
    if how == "ignore":
        raise Ignore
    if how == "reject":
        raise Reject("as asked", requeue=False)
    if how == "reject_requeue":
        if task.request.delivery_info.get("redelivered"):
            return "second time"
        raise Reject("as asked", requeue=True)
    if how == "sys_exit":
        sys.exit(3)
    if how == "retry":
        if task.request.retries >= 2:
            return f"after {task.request.retries} retries"
        # Quorum queues delay by whole seconds.
        quorum = task.app.conf.task_default_queue_type == "quorum"
        raise task.retry(countdown=1 if quorum else 0.1)
    if how == "kill_child":
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    if how == "too_many":
        told = Path(f"{os.environ['SHOP_LEDGER']}.told")
        if told.exists():
            return "done"
        told.touch()
        raise RateLimitExceeded(retry_after=2)
    raise AssertionError(f"expected one of {EXITS}, got: {how!r}")


app = make_app() if os.environ.get("CELERY_BROKER_URL") else Celery("shop_without_broker")
