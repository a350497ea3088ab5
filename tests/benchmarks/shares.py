"""P8, P9 and P10: what saturated tenants get of a worker's time and starts, and a rate under load.

What ran is told by the bodies themselves, in a ledger, and read from when the worker has found its
pace. Its seconds are those of the places in its pool: each is a task's from when the one before it
has left the place, so that what claims and settles take is somebody's too.

A body begins some milliseconds after its claim, which a limit counts. So windows are read shorter
by BEGINS_WITHIN: of two starts the later body may begin sooner after its claim than the earlier.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Waiting
from celery_fairness.store.library import library
from tests.benchmarks.claims import QUEUE, UNLIMITED, Bench
from tests.benchmarks.harness import PREFIX, Row, url_of, wait_until, worker
from tests.support.redis_server import RedisServer
from tests.support.tiers import tier_row

POOL = ("--pool=threads", "--concurrency=8", "--queues=flood_default")
#: From the first body on, until estimates are means.
WARM_SECONDS = 5.0
BEGINS_WITHIN = 0.25
#: Long and short tasks in seconds: 34 to 1.
LONG, SHORT = 0.68, 0.02
#: Tenants and their tiers, which have these weights.
WEIGHTS = {"w1": 1.0, "w2": 2.0, "w5": 5.0}
#: Starts in any so many seconds.
RATE, PERIOD = 250, 5.0

_SEND = """
import json, sys, time
from tests.benchmarks import app as b
with b.app.producer_pool.acquire() as producer:
    for task, user, amount, seconds in json.loads(sys.argv[1]):
        for _ in range(amount):
            getattr(b, task).apply_async((time.time(), seconds), {"user": user}, producer=producer)
"""
_SET_TIERS = """
import json, sys, time
from tests.benchmarks.app import fairness
begins_at = time.time()
for tenant, tier in json.loads(sys.argv[1]).items():
    fairness.tenants.set_tier(tenant, tier)
print(json.dumps([begins_at, time.time()]))
"""

#: Task, tenant, how many, and how long each takes in seconds.
Sent = tuple[str, str, int, float]


def saturated(
    server: RedisServer,
    sent: Sequence[Sent],
    seconds: float,
    fairness: Mapping[str, Any],
    midway: Callable[[dict[str, str]], None] = lambda _: None,
) -> tuple[list[dict[str, Any]], float, float]:
    """Let a worker run for a time.

    Args:
        server: The broker.
        sent: What waits before it begins; more than it can run.
        seconds: How long it is read, after it has found its pace.
        fairness: Settings.
        midway: Called with the environment when half of that has passed.

    Returns:
        What the bodies wrote, and from when and until when it is read.
    """
    with server.client() as client:
        client.flushall()
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        ledger.touch()
        variables = {"BENCH_LEDGER": str(ledger), "BENCH_FAIRNESS": json.dumps(fairness)}
        environment = {"BENCH_BROKER_URL": url_of(server, ours=True), **variables}
        _run(_SEND, sent, environment)
        with worker(url_of(server, ours=True), POOL, **variables):
            wait_until(lambda: ledger.stat().st_size > 0)
            begins_at = time.time() + WARM_SECONDS
            _sleep_until(begins_at + seconds / 2)
            midway(environment)
            ends_at = time.time() + seconds / 2
            # What runs at the end is told a task's length later.
            _sleep_until(ends_at + max(length for *_, length in sent) + 0.5)
        entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    ended = Counter(entry["user"] for entry in entries)
    for _, user, amount, _ in sent:
        assert ended[user] < amount, f"{user} had not enough to do"
    return entries, begins_at, ends_at


def _run(code: str, said: Any, environment: Mapping[str, str]) -> str:
    argv = [sys.executable, "-c", code, json.dumps(said)]
    env = {**os.environ, **environment}
    # What it writes to stderr is seen.
    return subprocess.run(argv, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.time()))


def seconds_within(
    entries: list[dict[str, Any]], begins: float, ends: float
) -> Mapping[str, float]:
    """Return each tenant's worker seconds between two times."""
    held: defaultdict[str, float] = defaultdict(float)
    left: dict[str, float] = {}
    for each in sorted(entries, key=lambda entry: float(entry["ended_at"])):
        since = left.get(each["place"], each["began_at"])
        held[each["user"]] += max(0.0, min(each["ended_at"], ends) - max(since, begins))
        left[each["place"]] = each["ended_at"]
    return held


def starts_within(entries: list[dict[str, Any]], begins: float, ends: float) -> Counter[str]:
    """Return each tenant's starts between two times."""
    return Counter(each["user"] for each in entries if begins <= each["began_at"] < ends)


def furthest(seen: Mapping[str, float], entitled: Mapping[str, float]) -> float:
    """Return by which part of its entitled share a tenant is off, at most."""
    got, due = sum(seen.values()), sum(entitled.values())
    return max(abs(seen[each] / got / (entitled[each] / due) - 1) for each in entitled)


def most_in_a_window(times: Sequence[float], seconds: float) -> int:
    """Return the largest number of starts in any window."""
    most = first = 0
    for number, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        most = max(most, number - first + 1)
    return most


def rows(server: RedisServer, seconds: float) -> Iterator[Row]:
    """Read for so many seconds of saturation each."""
    yield _runtime_row(server, seconds)
    yield from _weight_rows(server, seconds)
    yield _next_claim_row(server)
    yield from _rate_rows(server, seconds)


def _runtime_row(server: RedisServer, seconds: float) -> Row:
    whole = seconds + WARM_SECONDS + LONG + 5
    sent = [
        ("span", "long", int(5 * whole / LONG), LONG),
        ("span", "short", int(5 * whole / SHORT), SHORT),
    ]
    entries, begins, ends = saturated(server, sent, seconds, {"fairness_by": "runtime"})
    held = seconds_within(entries, begins, ends)
    off = furthest(held, {"long": 1, "short": 1})
    return Row(
        "P8",
        f"worker seconds of two equal tenants with tasks of {LONG} s and {SHORT} s, "
        f"{seconds:.0f} s, off the entitled half",
        "<= 2 %",
        f"{off:.1%} ({held['long']:.0f} s and {held['short']:.0f} s)",
        off <= 0.02,
    )


def _weight_rows(server: RedisServer, seconds: float) -> Iterator[Row]:
    turned = {"w1": "w5", "w5": "w1"}
    changed: list[float] = []

    def turn(environment: dict[str, str]) -> None:
        changed.extend(json.loads(_run(_SET_TIERS, turned, environment)))

    tiers = {name: {"concurrency": 1000, "weight": weight} for name, weight in WEIGHTS.items()}
    # The change takes a process a while, in which they go on.
    amount = int(8 * (seconds + 6 * WARM_SECONDS) / 0.05)
    sent = [("span", tenant, amount, 0.05) for tenant in WEIGHTS]
    entries, begins, ends = saturated(server, sent, seconds, {"tiers": tiers}, turn)
    after = {tenant: WEIGHTS[turned.get(tenant, tenant)] for tenant in WEIGHTS}
    change_begins, change_ends = changed
    # What was claimed before the change begins soon after it.
    for what, entitled, since, until in (
        ("weights 1:2:5", WEIGHTS, begins, change_begins),
        ("and 5:2:1 by a change while they wait", after, change_ends + BEGINS_WITHIN, ends),
    ):
        seen = starts_within(entries, since, until)
        off = furthest(seen, entitled)
        yield Row(
            "P9",
            f"starts of three saturated tenants, {what}, {until - since:.0f} s, off their shares",
            "<= 2 %",
            f"{off:.1%} ({':'.join(str(seen[tenant]) for tenant in WEIGHTS)})",
            off <= 0.02,
        )


def _next_claim_row(server: RedisServer) -> Row:
    """The function library alone: what starts after a change, from the first claim on."""
    bench = Bench(server)
    for tenant in WEIGHTS:
        bench.put(
            [Waiting(QUEUE, f"{tenant}.{n}", tenant, tier=tenant, message="m") for n in range(400)]
        )

    def publish(weights: Mapping[str, float]) -> None:
        table = {name: tier_row(weight=weight) for name, weight in weights.items()}
        function = library().function(calls.PUBLISH_TIERS)
        bench.client.fcall(function, 1, PREFIX, *calls.tiers_args(table, "settings"))

    def start(amount: int, rules: Rules = UNLIMITED) -> Counter[str]:
        seen: Counter[str] = Counter()
        for _ in range(amount):
            claim = bench.claim(1, rules=rules)
            seen[claim.tasks[0].key.removeprefix("tenant:")] += 1
            bench.settle(claim, rules)
        return seen

    publish(WEIGHTS)
    start(80)
    turned = {"w1": 5.0, "w2": 2.0, "w5": 1.0}
    publish(turned)
    seen = start(80)
    off = max(abs(seen[tenant] - 10 * weight) for tenant, weight in turned.items())
    return Row(
        "P9",
        "the 80 starts from the next claim on after weights 1:2:5 became 5:2:1, off their number",
        "<= 2",
        f"{off:.0f} ({':'.join(str(seen[tenant]) for tenant in WEIGHTS)})",
        off <= 2,
    )


def _rate_rows(server: RedisServer, seconds: float) -> Iterator[Row]:
    amount = int(2 * RATE * (seconds + 2 * WARM_SECONDS) / PERIOD)
    sent = [("rated", f"r{n}", amount // 4, 0.005) for n in range(4)]
    entries, begins, ends = saturated(server, sent, seconds, {})
    times = sorted(each["began_at"] for each in entries)
    most = most_in_a_window(times, PERIOD - BEGINS_WITHIN)
    yield Row(
        "P10",
        f"starts under a rate of {RATE} in {PERIOD:.0f} s and more demand, most in any "
        f"{PERIOD - BEGINS_WITHIN:.2f} s of {seconds:.0f} s",
        f"<= {RATE}",
        str(most),
        most <= RATE,
    )
    used = sum(begins <= at < ends for at in times) / (RATE * (ends - begins) / PERIOD)
    yield Row("P10", "and how much of the rate is used", ">= 95 %", f"{used:.1%}", used >= 0.95)
