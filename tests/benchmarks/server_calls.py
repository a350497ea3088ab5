"""P15: CPU time of the Redis process for each call of an installation with partitions.

The simulation of many servers takes these figures as its costs (``tests/simulation/costs.py``).
Eight connections have one write open each, like eight busy workers. The cost of a write with one
plain command comes first. It is subtracted from the others, so a write costs that and the sum of
its calls.

Machines differ, and other work on a machine only adds time. So each figure is the least of several
rounds. Each round also times the plain commands of a task in one script, and the figures are those
of a machine on which they take 65 µs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from redis import Redis

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Bounds, Claimed, Rules, Settle, Verdict, Waiting
from celery_fairness.store.connection import pack
from celery_fairness.store.library import library, load
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport.merged_claims import ring_args
from celery_fairness.transport.ring_merge import Look
from tests.benchmarks.claims import YARDSTICK
from tests.benchmarks.harness import Row
from tests.benchmarks.server_cpu import cpu_us
from tests.simulation.costs import MEASURED
from tests.support.redis_server import RedisServer

QUEUE, RULES = "bench", Rules(lease_ms=3_600_000, default_limit=1_000)
CLIENTS, TENANTS, BODY = 8, 1_000, "x" * 1000
#: Tasks of a claim of several.
BATCH = 4
#: The plain commands of a task on the machine whose figures the benchmarks quote, in microseconds.
PLAIN_US = 65.0
#: A row may differ from the costs of the simulation by this factor. It may also differ by this
#: time, because a short call is less than the noise of a write.
AT_MOST, NOISE_US = 2.0, 5.0

Command = tuple[Any, ...]


class Callers:
    """Connections that send one write each and then read the answers."""

    def __init__(self, server: RedisServer) -> None:
        self.client: Any = Redis.from_url(server.url, decode_responses=True)
        self.client.flushall()
        load(self.client.execute_command)
        self.partitions = Partitions("fairness", count=16)
        pool = self.client.connection_pool
        self._connections = [pool.get_connection() for _ in range(CLIENTS)]
        self._numbers = itertools.count(1)

    def us_of(self, commands: Sequence[Command]) -> tuple[float, list[Any]]:
        """Return the CPU time of the server for each command, and the answers."""
        answers = []
        before = cpu_us(self.client)
        for start in range(0, len(commands), CLIENTS):
            sent = commands[start : start + CLIENTS]
            for connection, command in zip(self._connections, sent, strict=False):
                connection.send_packed_command([pack(command)])
            answers += [each.read_response() for each in self._connections[: len(sent)]]
        return (cpu_us(self.client) - before) / len(commands), answers

    def call(self, function: str, args: Sequence[Any], partition: int | None = 0) -> Command:
        """Return a call in a partition, or in the home."""
        prefix = self.partitions.home.prefix
        if partition is not None:
            prefix = self.partitions.prefix(partition)
        return ("FCALL", library().function(function), "1", prefix, *args)

    def put(self, tag: int) -> Command:
        """Return a put of a task of one of the tenants."""
        bounds, tenant = Bounds("free"), str(tag % TENANTS)
        waiting = Waiting(QUEUE, f"t{tag}", tenant, message=BODY, task_id=f"t{tag}", bounds=bounds)
        return self.call(calls.PUT, calls.put_args(waiting))

    def claim(self, want: int, lease: str = "", partition: int = 0) -> Command:
        """Return a claim, which may carry the end of a lease."""
        ends = [Settle(lease, Verdict.DONE)] if lease else []
        ring = ring_args(Look(partition), {QUEUE: 0.0})
        options: Any = {"ends": ends, "is_first": True, "ring": ring}
        number = next(self._numbers)
        args = calls.claim_args(f"w{number % CLIENTS}", number, want, [QUEUE], RULES, **options)
        return self.call(calls.CLAIM, args, partition)

    def tasks_of(self, answers: Sequence[Any]) -> list[Claimed]:
        """Return the tasks that claims have brought."""
        return [
            task for answer in answers for task in calls.read_claim(answer, in_partition=True).tasks
        ]


def measured(server: RedisServer, count: int) -> dict[str, float]:
    """Return each cost in microseconds by its name in the simulation, in one round."""
    callers, us = Callers(server), dict[str, float]()

    def of(commands: Sequence[Command]) -> tuple[float, list[Any]]:
        cost, answers = callers.us_of(commands)
        return cost - us.get("write", 0.0), answers

    script = callers.client.script_load(YARDSTICK)
    us["write"], _ = of([("PING",)] * count)
    us["plain"], _ = of([("EVALSHA", script, "1", "yardstick:", BODY)] * count)
    tags = iter(range(10**9))
    waiting = 2 * TENANTS + (BATCH + 1) * count
    us["put"], _ = of([callers.put(next(tags)) for _ in range(waiting)])
    # A look at a partition in which nothing waits.
    us["look"], _ = of([callers.claim(1, partition=1) for _ in range(count)])
    us["claim"], answers = of([callers.claim(1) for _ in range(count)])
    ended = [callers.claim(0, task.lease) for task in callers.tasks_of(answers)]
    cost, _ = of(ended)
    us["settle"] = cost - us["look"]
    cost, answers = of([callers.claim(BATCH) for _ in range(count)])
    us["more"] = (cost - us["claim"]) / (BATCH - 1)
    leases = [(task.lease, task.key) for task in callers.tasks_of(answers)]
    two = [leases[start : start + 2] for start in range(0, 2 * count, 2)]
    us["renew"], _ = of([callers.call(calls.RENEW, calls.renew_args(each, RULES)) for each in two])
    bell = callers.partitions.home.of("bell", f"new {QUEUE}")
    us["pop"], _ = of([("LMPOP", "1", bell, "LEFT")] * count)
    rings = [calls.ring_args(number % 16, [QUEUE]) for number in range(count)]
    us["ring"], _ = of([callers.call(calls.RING, args, None) for args in rings])
    worker = [calls.announce_args(RULES, f"worker {number}", 15_000, None) for number in range(100)]
    us["announce"], _ = of([callers.call(calls.ANNOUNCE, args, None) for args in worker * 10])
    return us


def rows(server: RedisServer, rounds: int, count: int) -> Iterator[Row]:
    """Compare the costs of this machine with those of the simulation."""
    seen = [measured(server, count) for _ in range(rounds)]
    # Permits have no part here.
    of_simulation: Mapping[str, float] = asdict(MEASURED)
    least = {name: min(each[name] for each in seen) for name in seen[0]}
    pace = PLAIN_US / least.pop("plain")
    for name, seen_us in least.items():
        us, taken = seen_us * pace, of_simulation[name]
        yield Row(
            "P15",
            f"CPU time of the Redis process for a {name}",
            f"the simulation takes {taken:g} us, off by a factor of {AT_MOST:g} at most",
            f"{us:.1f} us",
            taken / AT_MOST <= us <= taken * AT_MOST or abs(us - taken) <= NOISE_US,
        )
