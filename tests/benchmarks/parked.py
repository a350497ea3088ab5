"""P3 with limits beside the tier's: lanes that wait at limits, and two limits that both are full.

Each freed slot is one settle and one claim. What it costs is the same whether a hundred lanes wait
or a hundred thousand: a claim meets those of a group as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler.types import Claim, Waiting
from tests.benchmarks.claims import (
    BATCH,
    CALLS,
    QUEUE,
    RUNS,
    UNLIMITED,
    Bench,
    Times,
    longest_row,
    median_of,
    time_rows,
)
from tests.benchmarks.harness import Row
from tests.support.redis_server import RedisServer

#: What is asked of a claim and of a settle for a task with three limits, in microseconds.
LIMITED_US = 100
#: Of a shared limit: a run of claims holds them. No more than a hundred lanes have first tasks.
SLOTS = CALLS * BATCH


@dataclass(frozen=True)
class Freed:
    """What freed slots cost.

    Attributes:
        commands: Of the settle and the claim of most.
        calls_us: The time of every single call.
    """

    commands: tuple[int, int]
    calls_us: list[float]


def _freed(bench: Bench, held: list[Claim], refill: Callable[[Claim], None]) -> Freed:
    """Settle one claim after another, and claim what starts in its place."""
    commands = []
    want = len(held[0].tasks)
    bench.calls.clear()
    for _ in range(CALLS):
        bench.client.config_resetstat()
        bench.settle(held.pop(0), UNLIMITED)
        settled = sum(bench.commands().values())
        bench.client.config_resetstat()
        claim = bench.claim(want, rules=UNLIMITED)
        commands.append((settled, sum(bench.commands().values())))
        assert len(claim.tasks) == want
        held.append(claim)
        refill(claim)
    # Two limits are freed in turns, and one of them takes a few commands more than the other.
    (of_most, _), *_ = Counter(commands[::2]).most_common(1)
    return Freed(of_most, bench.calls)


def _run_of_freed(bench: Bench, held: list[Claim], refill: Callable[[Claim], None]) -> Times:
    """Settle a run of claims, and claim what starts in their places."""
    settle_us = bench.timed(lambda: bench.settle_all(held, UNLIMITED), SLOTS)
    held.clear()
    claim_us = bench.timed(
        lambda: held.extend(bench.claim(BATCH, rules=UNLIMITED) for _ in range(CALLS)), SLOTS
    )
    assert all(len(claim.tasks) == BATCH for claim in held)
    for claim in held:
        refill(claim)
    return Times(claim_us, settle_us, bench.yardsticks())


def three_limits(server: RedisServer, lanes: int) -> tuple[Freed, Times]:
    """Lanes of so many tenants wait at one of two shared limits; a third is each tenant's own."""
    bench = Bench(server)
    number = 0

    def put(tenants: list[str]) -> None:
        nonlocal number
        tasks = []
        for tenant in tenants:
            number += 1
            limits = (
                Limit(f"own:{tenant}", concurrency=3, private=True),
                Limit("api", concurrency=SLOTS),
                Limit("region", concurrency=1_000_000),
            )
            word = write_limits(limits)
            tasks.append(Waiting(QUEUE, f"t{number}", tenant, message="m", limits=word))
        bench.put(tasks)

    put([f"h{each}" for each in range(SLOTS)])
    held = [bench.claim(BATCH, rules=UNLIMITED) for _ in range(SLOTS // BATCH)]
    # Two of each, so that no tenant comes or goes while it is measured.
    for _ in range(2):
        put([str(each) for each in range(lanes)])
    while not bench.claim(1, rules=UNLIMITED).sleep_ms:
        pass
    freed = _freed(bench, held, lambda claim: put(_tenants(claim)))
    runs = [_run_of_freed(bench, held, lambda claim: put(_tenants(claim))) for _ in range(RUNS)]
    return freed, median_of(runs)


def two_limits(server: RedisServer, lanes: int) -> Freed:
    """Lanes want two full limits, of each of which others take every slot that is freed."""
    bench = Bench(server)
    number = 0

    def put(tenants: list[str], *keys: str) -> None:
        nonlocal number
        word = write_limits(tuple(Limit(key, concurrency=1) for key in keys))
        tasks = []
        for tenant in tenants:
            number += 1
            tasks.append(Waiting(QUEUE, f"t{number}", tenant, message="m", limits=word))
        bench.put(tasks)

    held = []
    for key in ("x", "y"):
        put([f"{key}-only"], key)
        held.append(bench.claim(1, rules=UNLIMITED))
        put([f"{key}-only"] * 3, key)
    put([str(each) for each in range(lanes)], "x", "y")
    while not bench.claim(1, rules=UNLIMITED).sleep_ms:
        pass

    def refill(claim: Claim) -> None:
        key = _tenants(claim)[0][0]
        put([f"{key}-only"], key)

    return _freed(bench, held, refill)


def _tenants(claim: Claim) -> list[str]:
    return [task.key.partition(",")[0].removeprefix("tenant:") for task in claim.tasks]


def rows(server: RedisServer, parked: int, thrashing: int) -> Iterator[Row]:
    """P3 with so many lanes at three limits, and so many at two that are full."""
    (few, few_times), (many, times) = three_limits(server, 100), three_limits(server, parked)
    again, _ = three_limits(server, parked)
    yield _commands("three limits, one of them the tenant's own", parked, many, few)
    what = f"three limits, {parked:,} blocked lanes"
    yield from time_rows(f"{what} against 100", times, few_times, LIMITED_US)
    yield longest_row(what, many.calls_us, again.calls_us, times)
    few, many = two_limits(server, 100), two_limits(server, thrashing)
    yield _commands("two full limits", thrashing, many, few)


def _commands(what: str, lanes: int, many: Freed, few: Freed) -> Row:
    return Row(
        "P3",
        f"Redis commands in a settle and in a claim, {what}, {lanes:,} lanes against 100",
        "the same",
        "{} and {} against {} and {}".format(*many.commands, *few.commands),
        many.commands == few.commands,
    )
