"""P3, P5, P6 and P11: the function library alone, without workers.

P3 counts the Redis commands inside one claim and one settle. The time of a task is the server's
``usec_per_call``, divided by the tasks of a call. It is the median of five runs of claims and five
of settles. It is no ratio to stock, so a script of plain commands is timed beside it. The bound
grows with the time of that script, because a slower machine needs longer for both. The longest call
comes from two runs of the same calls. The shorter time of each call counts, because others may use
the machine during one run.
"""

from __future__ import annotations

import statistics
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import kombu
import redis

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claim, Rules, Settle, Verdict, Waiting
from celery_fairness.store.library import library, load
from celery_fairness.transport import register
from tests.benchmarks.harness import PREFIX, Row
from tests.support.redis_server import RedisServer

QUEUE = "bench"
RULES = Rules(lease_ms=3_600_000, default_limit=1)
UNLIMITED = Rules(lease_ms=3_600_000, default_limit=None)
BODY = "x" * 1000
#: Tasks of one claim.
BATCH = 4
#: Claims of one run, and settles; how often either is measured.
CALLS, RUNS = 25, 5
#: What is asked of a claim and of a settle for a task, in microseconds, where the yardstick takes
#: the other: as where an empty script takes 1.9.
TASK_US, YARDSTICK_US = 60, 32
#: The commands that put, claim and settle one task, and nothing between them.
YARDSTICK = """
local p, body = KEYS[1], ARGV[1]
redis.call("RPUSH", p .. "lane", body)
redis.call("ZADD", p .. "ready", 1, "lane")
redis.call("ZADD", p .. "active", 1, "tenant")
redis.call("HINCRBY", p .. "tenant_state", "waiting", 1)
redis.call("SADD", p .. "known", "task")
redis.call("TIME")
redis.call("HMGET", p .. "clock", "logical", "seen", "epoch", "limited")
redis.call("HDEL", p .. "clock", "")
redis.call("GET", p .. "reply")
redis.call("ZRANGEBYSCORE", p .. "ends", "-inf", 0, "LIMIT", 0, 16)
redis.call("ZRANGE", p .. "active", 0, 0, "WITHSCORES")
redis.call("ZRANGE", p .. "ready", 0, 1)
redis.call("HMGET", p .. "tenant_state", "tier", "tenant", "at_limit")
redis.call("HMGET", p .. "tenant", "tier", "concurrency")
redis.call("ZCOUNT", p .. "leases", "(1", "+inf")
local record = redis.call("LPOP", p .. "lane")
redis.call("ZREM", p .. "ready", "lane")
redis.call("ZADD", p .. "leases", "+inf", "lease")
redis.call("ZADD", p .. "ends", 1, "lease")
redis.call("HSET", p .. "running", "lease", "owner claimed " .. record)
redis.call("HSET", p .. "virtual_times", "queue", 1)
redis.call("DEL", p .. "tenant_state")
redis.call("ZREM", p .. "active", "tenant")
redis.call("ZADD", p .. "debts", 1, "tenant")
redis.call("ZRANGEBYSCORE", p .. "debts", "-inf", 1, "LIMIT", 0, 4)
redis.call("SET", p .. "reply", "lease", "PX", 1000)
redis.call("HGET", p .. "running", "lease")
redis.call("SREM", p .. "known", "task")
redis.call("HDEL", p .. "running", "lease")
redis.call("ZREM", p .. "ends", "lease")
redis.call("ZREM", p .. "leases", "lease")
redis.call("HEXISTS", p .. "tenant_state", "at_limit")
return "lease " .. record
"""
#: What is asked of the longest call on that machine.
LONGEST_US = 5_000


class Bench:
    """The function library on a private Redis."""

    def __init__(self, server: RedisServer, queue: str = QUEUE) -> None:
        self._queue = queue
        # Any: redis-py says of each answer that it may be awaited.
        self.client: Any = redis.Redis.from_url(server.url, decode_responses=True)
        # Memory that is freed later would be counted as used before.
        self.client.execute_command("FLUSHALL", "SYNC")
        load(self.client.execute_command)
        self._yardstick = self.client.script_load(YARDSTICK)
        self._number = 0
        self._times_calls = True
        #: What each call of a function but put took of the server, in microseconds.
        self.calls: list[float] = []

    def put(self, tasks: Sequence[Waiting]) -> None:
        """Put many tasks."""
        name = library().function(calls.PUT)
        for start in range(0, len(tasks), 1000):
            pipe = self.client.pipeline(transaction=False)
            for task in tasks[start : start + 1000]:
                pipe.fcall(name, 1, PREFIX, *calls.put_args(task))
            pipe.execute()

    def claim(self, want: int, owner: str = "bench", rules: Rules = RULES) -> Claim:
        """Claim once."""
        self._number += 1
        args = calls.claim_args(owner, self._number, want, [self._queue], rules)
        return calls.read_claim(self._run(calls.CLAIM, args))

    def settle(self, claim: Claim, rules: Rules = RULES, verdict: Verdict = Verdict.DONE) -> None:
        """End every task of a claim."""
        ends = [Settle(task.lease, verdict) for task in claim.tasks]
        if ends:
            self._run(calls.SETTLE, calls.settle_args(ends, rules))

    def settle_all(self, claims: Iterable[Claim], rules: Rules = RULES) -> None:
        """End every task of several claims, one after the other."""
        for claim in claims:
            self.settle(claim, rules)

    def fill_tenants(self, tenants: int, tier: str = "") -> None:
        """Let ``tenants`` hold all that they may for an hour, and want one more each."""
        for name in "ab":
            self.put(
                [
                    Waiting(self._queue, f"{name}{n}", str(n), tier=tier, message="m")
                    for n in range(tenants)
                ]
            )
            # The full ones leave the ring; then nothing may start.
            while not (claim := self.claim(64)).sleep_ms or claim.tasks:
                pass

    def timed(self, act: Callable[[], object], tasks: int, command: str = "fcall") -> float:
        """Return what functions took of the server in ``act``, a task, in microseconds.

        Args:
            act: What calls them.
            tasks: How many.
            command: ``evalsha`` where it runs scripts.
        """
        self.client.config_resetstat()
        self._times_calls = False
        act()
        self._times_calls = True
        return self.usec(command) / tasks

    def yardsticks(self) -> float:
        """Return what the plain commands take, in microseconds."""

        def run() -> None:
            for _ in range(CALLS):
                self.yardstick()

        return self.timed(run, CALLS, "evalsha")

    def _run(self, function: str, args: list[str]) -> list[object]:
        before = self.usec() if self._times_calls else 0.0
        name = library().function(function)
        answer: list[object] = self.client.fcall(name, 1, PREFIX, *args)
        if self._times_calls:
            self.calls.append(self.usec() - before)
        return answer

    def yardstick(self) -> None:
        """Run the plain commands."""
        self.client.evalsha(self._yardstick, 1, "yardstick:", BODY)

    def commands(self) -> Counter[str]:
        """Return how often each command ran since the statistics were reset."""
        stats: dict[str, dict[str, int]] = self.client.info("commandstats")
        outside = ("fcall", "info", "config")
        return Counter(
            {
                name[8:]: row["calls"]
                for name, row in stats.items()
                if not name[8:].startswith(outside)
            }
        )

    def usec(self, command: str = "fcall") -> float:
        """Return the time of calls in microseconds since the statistics were reset."""
        row = self.client.info("commandstats").get(f"cmdstat_{command}", {"usec": 0})
        return float(row["usec"])


@dataclass(frozen=True)
class Times:
    """What a run took of the server, in microseconds: of a claim and of a settle by task, and of
    the yardstick."""

    claim_us: float
    settle_us: float
    yardstick_us: float


def median_of(runs: Sequence[Times]) -> Times:
    """Return the median of each."""
    rows = ((run.claim_us, run.settle_us, run.yardstick_us) for run in runs)
    return Times(*map(statistics.median, zip(*rows, strict=True)))


def time_rows(what: str, many: Times, few: Times, asked_us: int) -> Iterator[Row]:
    """P3: the times of a claim and of a settle, where much waits and where little does."""
    slowness = max(1.0, many.yardstick_us / YARDSTICK_US)
    for name, at_many, at_few in (
        ("claim", many.claim_us, few.claim_us),
        ("settle", many.settle_us, few.settle_us),
    ):
        yield Row(
            "P3",
            f"server time of a {name} of {BATCH}, a task, {what}",
            f"<= 2 x, <= {asked_us} us where plain commands in one script take {YARDSTICK_US} us; "
            f"here they take {many.yardstick_us:.0f} us: <= {asked_us * slowness:.0f} us",
            f"{at_many:.0f} us against {at_few:.0f} us: {at_many / at_few:.2f} x",
            at_many <= 2 * at_few and at_many <= asked_us * slowness,
        )


@dataclass(frozen=True)
class Measured:
    """Commands of a claim of four tasks and of their settle, what they took, and the time of every
    single call in microseconds."""

    claim_commands: int
    settle_commands: int
    times: Times
    calls_us: Sequence[float]


def behind_full_tenants(server: RedisServer, tenants: int) -> Measured:
    """Measure claims of four free tenants; ``tenants`` others are at their limit with a task
    waiting."""
    bench = Bench(server)
    bench.fill_tenants(tenants)
    counts = []
    for number in range(200):
        bench.put(
            [Waiting(QUEUE, f"free{number}.{n}", f"free{n}", message=BODY) for n in range(BATCH)]
        )
        bench.client.config_resetstat()
        claimed = bench.claim(BATCH)
        assert len(claimed.tasks) == BATCH
        commands = sum(bench.commands().values())
        bench.client.config_resetstat()
        bench.settle(claimed)
        counts.append((commands, sum(bench.commands().values())))
    (claims, settles), _ = Counter(counts).most_common(1)[0]
    runs = [_run_of_free(bench, number) for number in range(RUNS)]
    return Measured(claims, settles, median_of(runs), bench.calls)


def _run_of_free(bench: Bench, number: int) -> Times:
    tasks = CALLS * BATCH
    bench.put([Waiting(QUEUE, f"{number}.{n}", f"run{n}", message=BODY) for n in range(tasks)])
    claims: list[Claim] = []
    claim_us = bench.timed(lambda: claims.extend(bench.claim(BATCH) for _ in range(CALLS)), tasks)
    assert all(len(claim.tasks) == BATCH for claim in claims)
    settle_us = bench.timed(lambda: bench.settle_all(claims), tasks)
    return Times(claim_us, settle_us, bench.yardsticks())


def scale_rows(server: RedisServer, tenants: int) -> Iterator[Row]:
    """P3."""
    few = behind_full_tenants(server, 100)
    many, again = (behind_full_tenants(server, tenants) for _ in range(2))
    for what, at_many, at_few in (
        ("claim", many.claim_commands, few.claim_commands),
        ("settle", many.settle_commands, few.settle_commands),
    ):
        yield Row(
            "P3",
            f"Redis commands in a {what} of {BATCH}, {tenants:,} full tenants against 100",
            "the same",
            f"{at_many} against {at_few}",
            at_many == at_few,
        )
    yield from time_rows(f"{tenants:,} full tenants against 100", many.times, few.times, TASK_US)
    yield longest_row(f"{tenants:,} full tenants", many.calls_us, again.calls_us, many.times)


def longest_row(what: str, one: Sequence[float], again: Sequence[float], times: Times) -> Row:
    """P3: the longest call of two runs of the same calls."""
    longest = max(map(min, one, again))
    at_most = LONGEST_US * max(1.0, times.yardstick_us / YARDSTICK_US)
    return Row(
        "P3",
        f"longest single call, {what}",
        f"<= {LONGEST_US / 1000:.0f} ms at that pace: {at_most / 1000:.1f} ms",
        f"{longest / 1000:.1f} ms",
        longest <= at_most,
    )


def order_rows(
    server: RedisServer, quiet_tenants: Sequence[int], noisy: int = 100_000
) -> Iterator[Row]:
    """P5 and P6."""
    for quiet in quiet_tenants:
        for consumers, slack in ((1, 2), (10, 11)):
            bench = Bench(server)
            bench.put([Waiting(QUEUE, f"n{n}", "noisy", message="m") for n in range(noisy)])
            held = [bench.claim(1, f"w{n}", UNLIMITED) for n in range(consumers)]
            bench.put([Waiting(QUEUE, f"q{n}", f"q{n}", message="m") for n in range(quiet)])
            rank = last = 0
            while last == 0 or rank < quiet + 20:
                for number in range(consumers):
                    bench.settle(held[number], UNLIMITED)
                    held[number] = bench.claim(1, f"w{number}", UNLIMITED)
                    rank += 1
                    if held[number].tasks[0].key != "tenant:noisy":
                        last = rank
                if rank >= quiet + 20:
                    break
            yield Row(
                "P5",
                f"rank of the last of {quiet:,} quiet tasks behind {noisy:,}, "
                f"{consumers} consumers",
                f"<= {quiet + slack:,}",
                f"{last:,}",
                last <= quiet + slack,
            )
    bench = Bench(server)
    bench.put(
        [Waiting(QUEUE, f"{t}.{n}", f"t{t}", message="m") for n in range(1_300) for t in range(9)]
    )
    counts: Counter[str] = Counter()
    held = [Claim((), bench.claim(1, "w0", UNLIMITED).sleep_ms)] * 10
    for number in range(9_000):
        bench.settle(held[number % 10], UNLIMITED)
        held[number % 10] = bench.claim(1, f"w{number % 10}", UNLIMITED)
        counts[held[number % 10].tasks[0].key] += 1
    index = sum(counts.values()) ** 2 / (len(counts) * sum(n * n for n in counts.values()))
    yield Row(
        "P6",
        "Jain's index of 9 equal tenants, 9,000 tasks",
        ">= 0.999",
        f"{index:.5f}",
        index >= 0.999,
    )


def _used_memory(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


def memory_rows(server: RedisServer, tasks: int = 10_000) -> Iterator[Row]:
    """P11."""
    register()
    waiting = {}
    for scheme, queue in (("", "stock"), ("fair", "ours")):
        with server.client() as client:
            client.execute_command("FLUSHALL", "SYNC")
            # A server has one library for any number of tasks.
            load(client.execute_command)
        with kombu.Connection(scheme + server.url) as connection:
            producer = connection.Producer()
            with server.client() as client:
                before = _used_memory(client)
                for _ in range(tasks):
                    headers = {"lang": "py", "task": "shop.work", "id": str(uuid.uuid4())}
                    producer.publish(BODY, routing_key=queue, headers=headers)
                waiting[queue] = (_used_memory(client) - before) / tasks
    ratio = waiting["ours"] / waiting["stock"]
    yield Row(
        "P11",
        "memory of a waiting task with a body of 1 kB",
        "<= 1.45 x stock",
        f"{waiting['ours']:.0f} B against {waiting['stock']:.0f} B: {ratio:.2f} x",
        ratio <= 1.45,
    )
    used = {}
    for what, tenant in (("many", "{n}"), ("one", "0")):
        bench = Bench(server)
        before = _used_memory(bench.client)
        bench.put(
            [
                Waiting(QUEUE, f"t{n}", tenant.format(n=n), tier="free", message=BODY)
                for n in range(tasks)
            ]
        )
        used[what] = _used_memory(bench.client) - before
    live = (used["many"] - used["one"]) / tasks
    yield Row(
        "P11", "memory of a live tenant beside its tasks", "<= 700 B", f"{live:.0f} B", live <= 700
    )
    while (claim := bench.claim(64, rules=UNLIMITED)).tasks:
        bench.settle(claim, UNLIMITED)
    of_all = ("clock", "counters", "exceeded", "sequence", "last_answer:bench")
    names = (key.removeprefix(PREFIX) for key in bench.client.keys(f"{PREFIX}*"))
    left = [name for name in names if name not in of_all and not name.startswith("stats:")]
    yield Row("P11", "keys of idle tenants", "0", str(len(left)), not left)
