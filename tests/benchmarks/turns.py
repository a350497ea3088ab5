"""Tasks a second of several workers that take turns: one runs, and the others are stopped.

A shared machine is two or three times slower for seconds at a time. With turns of a second, slow
seconds fall on every worker alike. Each worker has a database of its own on the same server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from tests.benchmarks.harness import backlog, publish, wait_until, worker
from tests.support.redis_server import RedisServer

TENANTS = 200
#: Tasks that a worker runs before its first turn.
WARM_TASKS = 300
#: From its signal until a worker has found its pace again, in seconds.
PAUSE_SECONDS = 0.15
#: More tasks a second than any worker runs.
MOST_A_SECOND = 4_000
#: Tasks for so many turns are published at once.
TURNS_AT_ONCE = 4


@dataclass(frozen=True)
class Contender:
    """A worker and its tasks.

    Attributes:
        task: The name of a no-op task in the benchmarks' app.
        args: The worker's arguments.
        ours: Whether its broker is this package's transport.
    """

    task: str
    args: tuple[str, ...]
    ours: bool = False


class _Run:
    """A contender with its database and its worker, which is stopped between its turns."""

    def __init__(self, server: RedisServer, contender: Contender, database: int) -> None:
        self._contender = contender
        where = f"{server.url.removesuffix('/0')}/{database}"
        self._url = f"fair{where}" if contender.ours else where
        self._client: Any = redis.Redis.from_url(where)
        self.tasks, self.seconds = 0, 0.0

    @property
    def waiting(self) -> int:
        return backlog(self._client, ours=self._contender.ours)

    def fill(self, least: int, full: int) -> None:
        if (waiting := self.waiting) < least:
            publish(self._url, self._contender.task, full - waiting, TENANTS)

    def start(self, at_end: contextlib.ExitStack) -> None:
        at_end.callback(self._client.close)
        before = self.waiting
        self._process = at_end.enter_context(worker(self._url, self._contender.args))
        wait_until(lambda: self.waiting <= before - WARM_TASKS)
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> None:
        self._signal(signal.SIGCONT)
        time.sleep(PAUSE_SECONDS)
        before, begun = self.waiting, time.monotonic()
        time.sleep(seconds)
        after, ended = self.waiting, time.monotonic()
        self._signal(signal.SIGSTOP)
        assert after > 0, f"more than {MOST_A_SECOND} tasks a second: the queue ran empty"
        self.tasks += before - after
        self.seconds += ended - begun

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)


def rates(
    server: RedisServer, contenders: Sequence[Contender], rounds: int, seconds: float
) -> list[float]:
    """Return the tasks a second of each contender, in all of its turns.

    Every second round goes backwards: stock, ours, ours, stock.

    Args:
        rounds: Turns of each contender.
        seconds: Of one turn.
    """
    with server.client() as client:
        client.flushall()
    least = int(MOST_A_SECOND * (PAUSE_SECONDS + seconds))
    runs = [_Run(server, each, database) for database, each in enumerate(contenders)]
    with contextlib.ExitStack() as at_end:
        for run in runs:
            run.fill(least, WARM_TASKS + least * min(TURNS_AT_ONCE, rounds))
            run.start(at_end)
        for each_round in range(rounds):
            for run in runs[:: 1 if each_round % 2 == 0 else -1]:
                run.fill(least, least * min(TURNS_AT_ONCE, rounds - each_round))
                run.turn(seconds)
    return [run.tasks / run.seconds for run in runs]
