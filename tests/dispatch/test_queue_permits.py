"""Limits of a queue with real workers and several partitions (ADR 30, ADR 32)."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from celery_fairness.scheduler import calls
from tests.dispatch.test_permits import CLOCK_SECONDS, several
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.parts import parts_of
from tests.support.waiting import eventually

COUNT = 4
TO = {"queue": "a"}
USERS = [f"user{number}" for number in range(12)]
#: A customer is the value of this argument of the task.
CUSTOMERS = {"by_args": ["seconds"], "partition": {"concurrency": 1}}


def limited(**numbers: Any) -> dict[str, Any]:
    return {**several(COUNT), "queues": {"a": numbers}}


def most_of_each(shop: Shop, of: dict[str, Any]) -> int:
    """Return the largest number of bodies of one customer that ran at the same time."""
    running: Counter[Any] = Counter()
    most = 0
    for entry in sorted(shop.ledger(), key=lambda each: (each["at"], each["event"] == "start")):
        running[of[entry["id"]]] += 1 if entry["event"] == "start" else -1
        most = max(most, *running.values())
    return most


def test_a_queue_and_its_customers_have_their_limits_over_all_partitions(
    make_fair_shop: Callable[..., Shop],
) -> None:
    shop = make_fair_shop(fairness=limited(global_limit=3, **CUSTOMERS))
    for _ in range(2):
        shop.worker(pool="threads", concurrency=8, queues=["a"])
    seconds = [0.05, 0.06, 0.07, 0.08, 0.09]
    of, results = {}, []
    for number, user in enumerate(4 * USERS):
        customer = seconds[number % len(seconds)]
        result = shop.send("work", user=user, seconds=customer, options=TO)
        of[result.id] = customer
        results.append(result)
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once() <= 3
    assert most_of_each(shop, of) == 1


def test_a_limit_that_people_set_acts_on_running_and_waiting_tasks(
    make_fair_shop: Callable[..., Shop],
) -> None:
    shop = make_fair_shop(fairness=several(COUNT))
    for _ in range(2):
        shop.worker(pool="threads", concurrency=4, queues=["a"])
    first, second = shop.gate_file(), shop.gate_file()
    results = [shop.send("work", user=user, gate=str(first), options=TO) for user in USERS[:8]]
    eventually(lambda: len(shop.ledger("start")) == 8, RESULT_SECONDS)
    shop.fairness.queues.set_limit("a", global_limit=2)
    results += [shop.send("work", user=user, gate=str(second), options=TO) for user in USERS]
    first.touch()
    eventually(lambda: len(shop.ledger("start")) == 10, RESULT_SECONDS)
    assert shop.fairness.queues.inspect("a").limit.held == 2
    text = shop.command("fairness", "limit", "show", "queue:a").stdout
    assert "queue:a: held 2\nlimit 2: set for the queue by a person\nwaiting 10\n" in text
    assert shop.fairness.queues.clear_limit("a")
    eventually(lambda: len(shop.ledger("start")) == 16, RESULT_SECONDS)
    second.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}


def test_the_rates_of_a_queue_and_of_its_customers_hold_over_all_partitions(
    make_fair_shop: Callable[..., Shop],
) -> None:
    most, most_of_each = 12, 5
    parts = {"by_args": ["seconds"], "partition": {"rate": f"{most_of_each}/s"}}
    shop = make_fair_shop(fairness=limited(rate=f"{most}/s", **parts))
    sent_at = time.time()
    of, results = {}, []
    for number, user in enumerate(4 * USERS):
        customer = (number % 4) / 1000
        result = shop.send("work", user=user, seconds=customer, options=TO)
        of[result.id] = customer
        results.append(result)
    for _ in range(2):
        shop.worker(pool="threads", concurrency=8, queues=["a"])
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    starts = defaultdict[Any, list[float]](list)
    for entry in sorted(shop.ledger("start"), key=lambda each: each["at"]):
        starts["all"].append(entry["at"])
        starts[of[entry["id"]]].append(entry["at"])
    # A body may begin long after its start was counted, and never before.
    for whose, times in starts.items():
        rate = most if whose == "all" else most_of_each
        assert all(at - sent_at > n // rate - CLOCK_SECONDS for n, at in enumerate(times))
    assert starts["all"][-1] - starts["all"][0] < 2 * (len(results) // most)


@pytest.mark.parametrize(
    ("numbers", "key"),
    [({"rate": "1/h"}, "queue:a"), ({"partition": {"rate": "1/h"}}, "queue:a:")],
)
def test_a_rate_that_people_set_and_clear_acts_on_waiting_tasks(
    make_fair_shop: Callable[..., Shop], numbers: dict[str, Any], key: str
) -> None:
    shop = make_fair_shop(fairness=limited(by_args=["seconds"]))
    shop.fairness.queues.set_limit("a", **numbers)
    results = [shop.send("work", user=user, options=TO) for user in USERS]
    for _ in range(2):
        shop.worker(pool="threads", concurrency=4, queues=["a"])
    eventually(lambda: len(shop.ledger("start")) == 1, RESULT_SECONDS)
    waits = next(result.id for result in results if result.id not in shop.runs())
    text = "rate, waits for its partition's turn: the home of the key lends 1/PT1H, available in"

    def explained() -> bool:
        found = shop.command("fairness", "task", "explain", waits).stdout
        return f"blocked by {key}" in found and text in found

    eventually(explained, RESULT_SECONDS)
    assert shop.command("fairness", "check").returncode == 0
    assert len(shop.ledger("start")) == 1
    assert shop.fairness.queues.clear_limit("a")
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}


def test_a_worker_completes_a_limit_whose_process_died_after_the_home(
    make_fair_shop: Callable[..., Shop],
) -> None:
    shop = make_fair_shop(fairness=several(COUNT))
    shop.worker(pool="threads", concurrency=4, queues=["a"])
    limiter = parts_of(shop.fairness).limiter
    limiter.meet_home()
    args = calls.queue_args("set", "a", "queue:a", "C0|w", "", limiter.lease_ms, "on")
    limiter.connection.run(calls.SET_QUEUE_LIMIT, limiter.prefix, args)

    def has_it() -> bool:
        return all("C0|w" in each.queue_texts().get("a", "") for each in limiter.parts)

    eventually(has_it, RESULT_SECONDS)
    assert shop.fairness.queues.clear_limit("a")
    assert not any(each.queue_texts() for each in limiter.parts)
