"""pytest-celery's nodes on processes of this machine instead of containers.

Invariant: whatever pytest-celery offers on a node (`kill`, `restart`, `ready`, `wait_for_log`,
`assert_log_exists`) means the same here, and a node that could not start says so with its log.

Weakness: `exec_run` and what is built on it (`get_running_processes_info`) are not there; ask
`children()` instead.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self
from uuid import uuid4

import psutil
from pytest_celery import CeleryTestWorker
from pytest_celery.vendors.rabbitmq.api import RabbitMQTestBroker
from pytest_celery.vendors.rabbitmq.container import RabbitMQContainer
from pytest_celery.vendors.redis.broker.api import RedisTestBroker
from pytest_celery.vendors.redis.container import RedisContainer
from pytest_celery.vendors.worker.container import CeleryWorkerContainer

from tests.support.fork_server import ForkServer
from tests.support.local_process import LocalProcess
from tests.support.waiting import at_most, eventually

READY_TIMEOUT_SECONDS = at_most(30.0)
STOP_TIMEOUT_SECONDS = at_most(10.0)


class WorkerDied(RuntimeError):
    """A worker ended while somebody waited for it; the message holds its log."""


class Server(Protocol):
    """What a broker node needs of RedisServer and RabbitServer."""

    @property
    def alive(self) -> bool: ...
    @property
    def port(self) -> int: ...
    @property
    def url(self) -> str: ...
    def kill(self) -> None: ...
    def restart(self) -> Any: ...
    def stop(self) -> None: ...
    def log_text(self) -> str: ...


class _ServerAsContainer:
    """A server in the form of a docker-py container."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.id = uuid4().hex
        self.name = type(server).__name__
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": "localhost", "Env": []},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {"lo": {"IPAddress": "127.0.0.1"}}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self.server.alive else "exited"

    def logs(self) -> bytes:
        return self.server.log_text().encode()

    def kill(self, signal: str | int | None = None) -> None:
        assert signal in (None, 9, "SIGKILL"), f"a server is only killed outright, got: {signal}"
        self.server.kill()

    def restart(self, timeout: float = at_most(10.0)) -> None:
        self.server.restart()

    def reload(self) -> None: ...


class _LocalRedis(RedisContainer):
    port = property(lambda self: self._container.server.port)
    url = property(lambda self: self._container.server.url)
    host_url = url


class _LocalRabbit(RabbitMQContainer):
    port = property(lambda self: self._container.server.port)
    url = property(lambda self: self._container.server.url)
    host_url = url
    # The broker's own log line; without a plugin it is printed before the listeners are open.
    ready_prompt = property(lambda _: None)


class RedisNode(RedisTestBroker):
    """A Redis server as a broker of pytest-celery."""

    def __init__(self, server: Server, app: Any = None) -> None:
        super().__init__(_LocalRedis(_ServerAsContainer(server)), app)


class RabbitNode(RabbitMQTestBroker):
    """A RabbitMQ server as a broker of pytest-celery."""

    def __init__(self, server: Server, app: Any = None) -> None:
        super().__init__(_LocalRabbit(_ServerAsContainer(server)), app)


class _LocalWorker(CeleryWorkerContainer):
    """The container of a worker that is a process."""


class WorkerNode(CeleryTestWorker):
    """A real `celery worker`: main process, pool, log."""

    def __init__(self, process: LocalProcess, hostname: str, app: Any = None) -> None:
        super().__init__(_LocalWorker(process), app)
        self.process = process
        self._hostname = hostname

    @classmethod
    def launch(
        cls,
        app: str,
        *,
        pool: str,
        concurrency: int,
        queues: Sequence[str] | None,
        env: Mapping[str, str],
        args: Sequence[str],
        alone: bool = True,
        fork_server: ForkServer | None = None,
    ) -> Self:
        """Start a worker without waiting for it; without `queues` it is given no -Q."""
        name = f"worker-{uuid4().hex[:8]}"
        hostname = f"{name}@localhost"
        argv = [sys.executable, "-m", "celery", "-A", app, "worker", "--hostname", hostname]
        argv += ["--pool", pool, "--concurrency", str(concurrency), "--loglevel", "INFO"]
        if alone:
            # Looking for other workers at the start costs a second, and is rarely what is tested.
            argv += ["--without-mingle", "--without-gossip"]
        if queues is not None:
            argv += ["--queues", ",".join(queues)]
        process = LocalProcess(name, [*argv, *args], env=env, fork_server=fork_server)
        return cls(process.start(), hostname)

    @property
    def pid(self) -> int:
        """Process id of the worker's main process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the main process runs."""
        return self.process.alive

    @property
    def exit_code(self) -> int | None:
        """Exit status of the main process, negative for a signal; None while it runs."""
        return self.process.exit_code

    def hostname(self) -> str:
        """The name that `inspect` and events know it by."""
        return self._hostname

    def children(self) -> list[int]:
        """Process ids of the pool's processes, oldest first; none on a pool of threads."""
        main = self.pid
        found: list[tuple[float, int]] = []
        for child in self.process.children():
            # It may be gone since it was listed.
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.ppid() == main:
                    found.append((child.create_time(), child.pid))
        return [pid for _, pid in sorted(found)]

    def log_text(self) -> str:
        """All that it printed, over restarts too."""
        return self.process.log_text()

    def wait_ready(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> Self:
        """Return once it consumes.

        Raises:
            WorkerDied: it ended instead; with its log.
        """
        self._await_log(f"{self._hostname} ready.", timeout_seconds, since_start=True)
        return self

    def wait_for_log(
        self, log: str, message: str = "", timeout: float = READY_TIMEOUT_SECONDS
    ) -> None:
        """Return once `log` is in what it printed.

        Raises:
            AssertionError: it was not printed in time.
            WorkerDied: the worker ended without printing it.
        """
        self._await_log(log, timeout, since_start=False)

    def _await_log(self, wanted: str, timeout_seconds: float, *, since_start: bool) -> None:
        def is_there() -> None:
            alive = self.alive
            text = self.process.log_text(since_start=since_start)
            if wanted in text:
                return
            if not alive:
                raise WorkerDied(
                    f"{self._hostname} ended with {self.exit_code} and never printed {wanted!r}; "
                    f"its log:\n{text}"
                )
            raise AssertionError(f"{wanted!r} is not in the log of {self._hostname}:\n{text}")

        eventually(is_there, timeout_seconds=timeout_seconds)

    def terminate(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> int:
        """Warm shutdown: returns its exit status.

        Raises:
            AssertionError: it did not end in time (and is killed).
        """
        status = self.process.stop("SIGTERM", timeout_seconds)
        assert status is not None, (
            f"{self._hostname} expected to end within {timeout_seconds} s:\n{self.log_text()}"
        )
        return status

    def restart(self, reload_container: bool = True, force: bool = False) -> None:
        """End it if it runs (`force`: by SIGKILL), start it again and wait until it consumes."""
        if force:
            self.process.kill()
        self.process.restart(STOP_TIMEOUT_SECONDS)
        self.wait_ready()

    def signal(self, number: int) -> None:
        """Send a signal to the main process alone; `kill()` ends the children too."""
        os.kill(self.pid, number)
