"""Tasks a second of several workers that take turns: one runs, and the others are stopped.

A shared machine is two or three times slower for seconds at a time. With turns of a second, slow
seconds fall on every worker alike. Each worker has a database of its own on the same server, or
the broker that takes no time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import redis

from tests.benchmarks import idle_broker
from tests.benchmarks.harness import backlog, publish, wait_until, worker
from tests.benchmarks.server_cpu import cpu_us
from tests.support.redis_cluster import Node
from tests.support.redis_server import RedisServer

TENANTS = 200
#: Tasks that a worker runs before its first turn.
WARM_TASKS = 300
#: From its signal until a worker has found its pace again, in seconds.
PAUSE_SECONDS = 0.15
#: More tasks a second than any worker runs.
MOST_A_SECOND = 8_000
#: Tasks for so many turns are published at once.
TURNS_AT_ONCE = 4


@dataclass(frozen=True)
class Contender:
    """A worker and its tasks.

    Attributes:
        task: The name of a no-op task in the benchmarks' app.
        args: The worker's arguments.
        ours: Whether its broker is this package's transport.
        node: The node of a cluster that has its tasks; None: a database of the server.
        idle: The address of a broker that takes no time; None: Redis.
        partitions: The number of partitions of its installation.
        servers: The servers of its partitions. Without any, it is on the server of the others.
    """

    task: str
    args: tuple[str, ...]
    ours: bool = False
    node: Node | None = None
    idle: str | None = None
    partitions: int = 1
    servers: tuple[RedisServer, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its processes."""
        if self.partitions == 1:
            return {}
        return {"BENCH_FAIRNESS": json.dumps({"partitions": self.partitions})}


@dataclass
class Pace:
    """The work of a worker and its servers in all turns.

    Attributes:
        tasks: How many tasks the worker began.
        seconds: The time of the turns.
        calls: How many functions the servers ran.
        worker_us: The CPU time of the worker's processes, in microseconds.
        server_us: That of the servers.
    """

    tasks: int = 0
    seconds: float = 0.0
    calls: int = 0
    worker_us: float = 0.0
    server_us: float = 0.0

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.tasks / self.seconds

    def a_task(self, count: float) -> float:
        """Return one of the counts for a task."""
        return count / max(1, self.tasks)


class _Run:
    """A worker that is stopped between its turns."""

    def __init__(self) -> None:
        self.pace = Pace()
        self._process: subprocess.Popen[bytes] | None = None

    def done(self) -> int:
        """Return how many tasks its worker has begun."""
        raise NotImplementedError

    def called(self) -> int:
        """Return how many functions its servers have run."""
        return 0

    def server_us(self) -> float:
        """Return the CPU time that its servers have used."""
        return 0.0

    def fill(self, least: int, full: int) -> None:
        """Let ``full`` tasks wait, if fewer than ``least`` do."""

    def run(self, at_end: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        """Start its worker."""
        raise NotImplementedError

    def start(self, at_end: contextlib.ExitStack) -> None:
        before = self.done()
        self._process = self.run(at_end)
        wait_until(lambda: self.done() >= before + WARM_TASKS)
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> None:
        self._signal(signal.SIGCONT)
        time.sleep(PAUSE_SECONDS)
        called, worker_us, server_us = self.called(), self._worker_us(), self.server_us()
        before, begun = self.done(), time.monotonic()
        time.sleep(seconds)
        after, ended = self.done(), time.monotonic()
        self._signal(signal.SIGSTOP)
        self.pace.server_us += self.server_us() - server_us
        self.pace.worker_us += self._worker_us() - worker_us
        self.pace.calls += self.called() - called
        self.pace.tasks += after - before
        self.pace.seconds += ended - begun

    def _worker_us(self) -> float:
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        times = [each.cpu_times() for each in (parent, *parent.children(recursive=True))]
        return 1e6 * sum(each.user + each.system for each in times)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)


class _RedisRun(_Run):
    """A contender on Redis, with a database of its own."""

    def __init__(self, server: RedisServer, contender: Contender, database: int) -> None:
        super().__init__()
        self._contender = contender
        where = f"{server.url.removesuffix('/0')}/{database}"
        self._client: Any
        if contender.node is None:
            self._client = redis.Redis.from_url(where)
        else:
            where, self._client = contender.node.url, contender.node.client()
        self._clients = [self._client]
        self._url = f"fair{where}" if contender.ours else where
        if contender.servers:
            addresses = [f"127.0.0.1:{each.port}/{database}" for each in contender.servers]
            self._url = f"fairservers://{';'.join(addresses)}"
            self._clients = [redis.Redis.from_url(f"redis://{each}") for each in addresses]
        self._published = 0

    def _backlog(self) -> int:
        its = self._contender
        return sum(
            backlog(each, ours=its.ours, partitions=its.partitions) for each in self._clients
        )

    def called(self) -> int:
        stats = [each.info("commandstats") for each in self._clients]
        return sum(each.get("cmdstat_fcall", {}).get("calls", 0) for each in stats)

    def server_us(self) -> float:
        return sum(cpu_us(each) for each in self._clients)

    def done(self) -> int:
        waiting = self._backlog()
        assert waiting > 0, f"more than {MOST_A_SECOND} tasks a second: the queue ran empty"
        return self._published - waiting

    def fill(self, least: int, full: int) -> None:
        if (waiting := self._backlog()) < least:
            its = self._contender
            publish(self._url, its.task, full - waiting, TENANTS, **its.variables)
            self._published += full - waiting

    def run(self, at_end: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        for client in (self._client, *self._clients):
            at_end.callback(client.close)
        its = self._contender
        return at_end.enter_context(worker(self._url, its.args, **its.variables))


class _IdleRun(_Run):
    """A contender on the broker that takes no time."""

    def __init__(self, url: str, contender: Contender, folder: str) -> None:
        super().__init__()
        self._url, self._contender = url, contender
        self._acks, self._variables = idle_broker.count_acks(folder)

    def done(self) -> int:
        return self._acks.read()

    def run(self, at_end: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        return at_end.enter_context(
            worker(self._url, self._contender.args, app=idle_broker.__name__, **self._variables)
        )


def rates(
    server: RedisServer, contenders: Sequence[Contender], rounds: int, seconds: float
) -> list[float]:
    """Return the tasks a second of each contender, in all of its turns."""
    return [each.rate for each in paces(server, contenders, rounds, seconds)]


def paces(
    server: RedisServer, contenders: Sequence[Contender], rounds: int, seconds: float
) -> list[Pace]:
    """Return what each contender did in its turns.

    Every second round goes backwards: stock, ours, ours, stock.

    Args:
        rounds: Turns of each contender.
        seconds: Of one turn.
    """
    with server.client() as client:
        client.flushall()
    least = int(MOST_A_SECOND * (PAUSE_SECONDS + seconds))
    with contextlib.ExitStack() as at_end:
        folder = at_end.enter_context(tempfile.TemporaryDirectory())
        runs = [
            _IdleRun(each.idle, each, folder) if each.idle else _RedisRun(server, each, database)
            for database, each in enumerate(contenders)
        ]
        for run in runs:
            run.fill(least, WARM_TASKS + least * min(TURNS_AT_ONCE, rounds))
            run.start(at_end)
        for each_round in range(rounds):
            for run in runs[:: 1 if each_round % 2 == 0 else -1]:
                run.fill(least, least * min(TURNS_AT_ONCE, rounds - each_round))
                run.turn(seconds)
    return [run.pace for run in runs]
