"""A shop for every test: broker, limiter, producer, workers and a ledger."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult
from kombu import pools

from celery_fairness import Fairness
from celery_fairness.config.tenants import tier_key
from celery_fairness.control.key.views import Inspection
from tests.support.fork_server import ForkServer
from tests.support.kombu_channel import close_soon
from tests.support.local_process import clean_environment
from tests.support.nodes import WorkerNode
from tests.support.shop import make_app
from tests.support.waiting import at_most, eventually

#: RabbitMQ with both kinds of queue; the mark counts and selects the tests.
RABBITMQ = tuple(
    pytest.param(name, marks=pytest.mark.rabbitmq)
    for name in ("rabbitmq_classic", "rabbitmq_quorum")
)
#: Every broker that the gate's contract runs on.
BROKERS = ("redis", *RABBITMQ)

RESULT_SECONDS = at_most(20.0)


class Shop:
    """One installation: a producer in this process, workers in others."""

    def __init__(
        self,
        env: dict[str, str],
        start_worker: Callable[..., WorkerNode],
        fork_server: Callable[[str], ForkServer],
        folder: Path,
    ) -> None:
        self.env = env
        self.fork_server = fork_server
        self.app: Celery = make_app(env)
        self.fairness = Fairness.of(self.app)
        self.folder = folder
        self._start_worker = start_worker
        self._workers: list[WorkerNode] = []
        self._files = 0

    def worker(self, **options: Any) -> WorkerNode:
        """Start a worker and wait until it consumes and hears commands."""
        env = {**self.env, **options.pop("env", {})}
        app = options.pop("app", "tests.support.shop")
        worker = self._start_worker(app, env=env, **options)
        self._workers.append(worker)
        if options.get("pool") == "gevent" and options.get("wait", True):
            # It says that it is ready before it hears: stock Celery's as well.
            self.ask(worker, "ping")
        return worker

    def command(
        self, *words: str, app: str = "tests.support.shop", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``celery -A APP …`` to its end."""
        argv = [sys.executable, "-m", "celery", "-A", app, *words]
        return self.fork_server("prefork").run(
            argv, {**clean_environment(), **self.env, **(env or {})}
        )

    def ask(self, worker: WorkerNode, command: str, *args: Any) -> Any:
        """Return a worker's answer to a command that only reads.

        Command and reply may be lost, so it asks again: that changes nothing.
        """
        name = worker.hostname()
        inspect = self.app.control.inspect([name], timeout=at_most(1), limit=1)

        def answered() -> list[Any]:
            replies = getattr(inspect, command)(*args) or {}
            assert name in replies, f"{name} does not answer {command}"
            return [replies[name]]

        return eventually(answered)[0]

    def tell(self, worker: WorkerNode, command: str, *args: Any, **options: Any) -> None:
        """Send a worker a command that changes something, and return after it has handled it.

        It is sent once. A worker that is ready subscribes a moment later and misses a command from
        before, so it answers a ping first. It handles commands in their order, so the answer to a
        second ping comes after the change.
        """
        self.ask(worker, "ping")
        send = getattr(self.app.control, command)
        send(*args, destination=[worker.hostname()], **options)
        self.ask(worker, "ping")

    def send(self, name: str, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Send a task of the shop; ``options=`` are those of apply_async."""
        options = kwargs.pop("options", {})
        return self.app.tasks[f"shop.{name}"].apply_async(args, kwargs, **options)

    def revoke(self, *ids: str, **options: Any) -> None:
        """Revoke tasks, and wait until each worker has noted it.

        A command and a task reach a worker over two channels, in any order.
        """
        for worker in self._workers:
            if worker.alive:
                self.tell(worker, "revoke", list(ids), **options)

    def held(self, user: str) -> int:
        """Return how many slots the tenant holds."""
        return self.state(user).held

    def state(self, user: str) -> Inspection:
        """Return the tenant's limit."""
        return self.fairness.limits.inspect(tier_key(user))

    def await_held(self, user: str, count: int, timeout_seconds: float = at_most(10.0)) -> None:
        """Wait until the tenant holds ``count`` slots."""

        def holds() -> None:
            assert self.held(user) == count

        eventually(holds, timeout_seconds)

    def gate_file(self) -> Path:
        """Return a file that is not there yet, for a body to wait for."""
        self._files += 1
        return self.folder / f"gate{self._files}"

    def ledger(self, event: str = "", name: str = "") -> list[dict[str, Any]]:
        """Return what bodies wrote: all, or of one event and task."""
        path = Path(self.env["SHOP_LEDGER"])
        text = path.read_text() if path.exists() else ""
        # A read may see only the beginning of a line that a body writes now.
        finished = text[: text.rfind("\n") + 1]
        entries = [json.loads(line) for line in finished.splitlines()]
        return [
            entry
            for entry in entries
            if event in ("", entry["event"]) and name in ("", entry["name"])
        ]

    def forget_ledger(self) -> None:
        """Begin the ledger anew."""
        Path(self.env["SHOP_LEDGER"]).unlink(missing_ok=True)

    def runs(self) -> dict[str, int]:
        """Return how often each task's body started, by id."""
        count: dict[str, int] = {}
        for entry in self.ledger("start"):
            count[entry["id"]] = count.get(entry["id"], 0) + 1
        return count

    def most_at_once(self, user: str | None = None) -> int:
        """Return the largest number of bodies, of a tenant or of all, that ran at the same time."""
        running = most = 0
        entries = [e for e in self.ledger() if user in (None, e.get("user"))]
        for entry in sorted(entries, key=lambda e: (e["at"], e["event"] == "start")):
            running += 1 if entry["event"] == "start" else -1
            most = max(most, running)
        return most

    def close(self) -> None:
        """Close every connection of this process."""
        self.fairness.close()
        self.app.close()
        pools.reset()
        self.close_backend()

    def close_backend(self) -> None:
        """Close the connections of this thread's result backend."""
        backend: Any = self.app.backend
        if not hasattr(backend, "result_consumer"):
            return
        # A result that nobody waited for would connect again when it is collected.
        backend.result_consumer.cancel_for = lambda _: None
        backend.result_consumer.stop()
        backend.client.close()


@pytest.fixture
def make_shop(
    request: pytest.FixtureRequest,
    redis_url: str,
    stock_redis_url: str,
    start_worker: Callable[..., WorkerNode],
    fork_server: Callable[[str], ForkServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Shop]]:
    """A factory of shops: ``make_shop(broker, conf=…, fairness=…, variables=…)``.

    The broker is a kind or a URL.
    """
    close_soon(monkeypatch)
    shops: list[Shop] = []

    def make(
        broker: str = "redis",
        conf: Mapping[str, Any] | None = None,
        fairness: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Shop:
        settings, celery = dict(fairness or {}), dict(conf or {})
        env = {
            "CELERY_BROKER_URL": stock_redis_url,
            # A cluster has one database.
            "CELERY_RESULT_BACKEND": re.sub(r"^(redis:.*)/0$", r"\1/1", redis_url),
            "SHOP_LEDGER": str(tmp_path / f"ledger{len(shops)}"),
            **(variables or {}),
        }
        if broker == "fairredis":
            env["CELERY_BROKER_URL"] = f"fair{redis_url}"
        elif "://" in broker:
            env["CELERY_BROKER_URL"] = broker
        else:
            if broker != "redis":
                env["CELERY_BROKER_URL"] = request.getfixturevalue("rabbit_url")
            if env["CELERY_BROKER_URL"] != redis_url:
                settings.setdefault("redis_url", redis_url)
        if broker == "rabbitmq_quorum":
            # Celery delays messages of quorum queues in the broker, through topic exchanges.
            celery.setdefault("task_default_queue_type", "quorum")
            celery.setdefault("task_default_exchange_type", "topic")
            celery.setdefault("task_create_missing_queue_type", "quorum")
            celery.setdefault("task_create_missing_queue_exchange_type", "topic")
        env["SHOP_CONF"] = json.dumps(celery)
        env["SHOP_FAIRNESS"] = json.dumps(settings)
        monkeypatch.setenv("SHOP_LEDGER", env["SHOP_LEDGER"])
        shops.append(Shop(env, start_worker, fork_server, tmp_path))
        return shops[-1]

    yield make
    for shop in shops:
        shop.close()


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    """A shop on stock Redis with the default settings of the tests."""
    return make_shop()
