"""P3 with limits beside the tier's: lanes that wait at limits, and two limits that both are full.

Each freed slot is one settle and one claim. What it costs is the same whether a hundred lanes wait
or a hundred thousand: a claim meets those of a group as one.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from celery_fairness.scheduling.limits import Limit, write_limits
from celery_fairness.scheduling.words import Claim, Waiting
from celery_fairness.testing.server import RedisServer
from tests.benchmarks.claims import (
    BATCH,
    LONGEST_US,
    QUEUE,
    UNLIMITED,
    YARDSTICK_US,
    Bench,
)
from tests.benchmarks.harness import Row

#: What is asked for a task with three limits, in microseconds.
LIMITED_US = 100
#: Of a shared limit: two claims of BATCH hold them.
SLOTS = 2 * BATCH
#: No more than a hundred lanes have first tasks.
ROUNDS = 100 // BATCH


@dataclass(frozen=True)
class Freed:
    """What freed slots cost.

    Attributes:
        commands: Of the settle and the claim of most.
        usec: Of both a task, of the server.
        yardstick_us: What plain commands take, as for a claim without limits.
        longest_us: The longest single call.
    """

    commands: tuple[int, int]
    usec: float
    yardstick_us: float
    longest_us: float


def _freed(bench: Bench, held: list[Claim], refill: Callable[[Claim], None]) -> Freed:
    """Settle one claim after another, and claim what starts in its place."""
    commands, times, yardsticks = [], [], []
    want = len(held[0].tasks)
    bench.calls.clear()
    for _ in range(ROUNDS):
        bench.client.config_resetstat()
        bench.settle(held.pop(0), UNLIMITED)
        settled, usec = sum(bench.commands().values()), bench.script_usec()
        bench.client.config_resetstat()
        claim = bench.claim(want, rules=UNLIMITED)
        commands.append((settled, sum(bench.commands().values())))
        times.append((usec + bench.script_usec()) / want)
        assert len(claim.tasks) == want
        held.append(claim)
        refill(claim)
        bench.client.config_resetstat()
        bench.yardstick()
        yardsticks.append(bench.script_usec())
    (of_most, _), *_ = Counter(commands).most_common(1)
    return Freed(of_most, statistics.median(times), statistics.median(yardsticks), max(bench.calls))


def three_limits(server: RedisServer, lanes: int) -> Freed:
    """Lanes of so many tenants wait at one of two shared limits; a third is each tenant's own."""
    bench = Bench(server)
    number = 0

    def put(tenants: list[str]) -> None:
        nonlocal number
        tasks = []
        for tenant in tenants:
            number += 1
            limits = (
                Limit(f"own:{tenant}", 3, private=True),
                Limit("api", SLOTS),
                Limit("region", 1_000_000),
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
    return _freed(bench, held, lambda claim: put(_tenants(claim)))


def two_limits(server: RedisServer, lanes: int) -> Freed:
    """Lanes want two full limits, of each of which others take every slot that is freed."""
    bench = Bench(server)
    number = 0

    def put(tenants: list[str], *keys: str) -> None:
        nonlocal number
        word = write_limits(tuple(Limit(key, 1) for key in keys))
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
    few, many = three_limits(server, 100), three_limits(server, parked)
    again = three_limits(server, parked)
    yield _commands("three limits, one of them the tenant's own", parked, many, few)
    slowness = max(1.0, many.yardstick_us / YARDSTICK_US)
    asked = f"where plain commands in one script take {YARDSTICK_US} us: "
    yield Row(
        "P3",
        "server time of both, the same",
        f"<= 2 x, <= {LIMITED_US} us {asked}{LIMITED_US * slowness:.0f} us",
        f"{many.usec:.0f} us against {few.usec:.0f} us: {many.usec / few.usec:.2f} x",
        many.usec <= 2 * few.usec and many.usec <= LIMITED_US * slowness,
    )
    longest = min(many.longest_us, again.longest_us)
    yield Row(
        "P3",
        f"longest single call of these, {parked:,} parked lanes",
        f"<= {LONGEST_US / 1000:.0f} ms {asked}{LONGEST_US * slowness / 1000:.1f} ms",
        f"{longest / 1000:.1f} ms",
        longest <= LONGEST_US * slowness,
    )
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
