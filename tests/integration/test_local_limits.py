"""`local_limit` behind the gate: in one worker, which is its main process with its pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from billiard.exceptions import WorkerLostError

from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import assert_all_free, await_count
from tests.support.nodes import WorkerNode
from tests.support.waiting import at_most

QUEUE = "queue:celery"
FREE = {"tiers": {"free": {"concurrency": None}}, "lease_seconds": 60}
QUICK = {**FREE, "snooze_seconds": 1, "snooze_jitter_seconds": 0}


def most_in(shop: Shop, workers: Sequence[WorkerNode]) -> tuple[list[int], int]:
    """Return how many bodies ran at once at most: in each worker, and in all."""
    main_of = {pid: each.pid for each in workers for pid in (each.pid, *each.children())}
    at = {entry["id"]: main_of[entry["pid"]] for entry in shop.ledger("start")}
    running: Counter[int] = Counter()
    most: Counter[int] = Counter()
    at_once = 0
    for entry in sorted(shop.ledger(), key=lambda e: (e["at"], e["event"] == "start")):
        running[at[entry["id"]]] += 1 if entry["event"] == "start" else -1
        at_once = max(at_once, running.total())
        most |= running
    return [most[worker.pid] for worker in workers], at_once


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("broker", BROKERS)
def test_one_worker_runs_so_many_and_two_run_more(
    make_shop: Callable[..., Shop], broker: str, pool: str
) -> None:
    queues = {"celery": {"local_limit": 2}}
    shop = make_shop(broker, fairness={**QUICK, "queues": queues})
    workers = [shop.worker(pool=pool, concurrency=4) for _ in range(2)]
    results = [shop.send("work", user=f"u{n}", seconds=0.4) for n in range(14)]
    for result in results:
        assert result.get(timeout=at_most(60)) == "done"
    of_each, of_all = most_in(shop, workers)
    assert of_each == [2, 2]
    assert of_all > 2
    assert set(shop.runs().values()) == {1}
    # It spends no retry.
    assert {entry["retries"] for entry in shop.ledger("start")} == {0}
    assert shop.fairness.stats.counters()["rescheduled"] >= 1
    assert_all_free(shop, QUEUE, "tenant:u0", "tenant:u13")


def test_a_number_that_people_set_holds_for_what_runs_and_what_it_rejects_goes_elsewhere(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop("redis", fairness={**QUICK, "queues": {"celery": {}}})
    shop.worker(pool="prefork", concurrency=3)
    gate = shop.gate_file()
    first = [shop.send("work", user=f"u{n}", gate=str(gate)) for n in range(2)]
    shop.await_held("u0", 1)
    shop.await_held("u1", 1)
    shop.fairness.queues.set_limit("celery", local_limit=2)
    third = shop.send("work", user="u2")
    await_count(shop, "rescheduled", 1)
    assert shop.fairness.limits.inspect(QUEUE).waiting_count == 0
    # The other worker may run it.
    other = shop.worker(pool="threads", concurrency=1)
    assert third.get(timeout=RESULT_SECONDS) == "done"
    assert shop.ledger("start")[-1]["pid"] == other.pid
    gate.touch()
    for result in first:
        assert result.get(timeout=RESULT_SECONDS) == "done"


def test_a_killed_body_frees_its_place_in_the_worker(make_shop: Callable[..., Shop]) -> None:
    queues = {"celery": {"local_limit": 1}}
    shop = make_shop("redis", fairness={**QUICK, "queues": queues})
    shop.worker(pool="prefork", concurrency=2)
    killed = shop.send("work", "kill_child", user="u0")
    with pytest.raises(WorkerLostError):
        killed.get(timeout=RESULT_SECONDS)
    assert shop.send("work", user="u1").get(timeout=RESULT_SECONDS) == "done"
