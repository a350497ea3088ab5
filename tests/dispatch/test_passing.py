"""What a worker does not know, and what is over a rate limit, waits in Redis for who takes it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from redis import Redis

from tests.dispatch.conftest import PREFIX, assert_nothing_left, send, waiting_in
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.nodes import WorkerNode
from tests.support.waiting import at_most, eventually

KINDS = "tests.dispatch.kinds"
POOLS = ["prefork", "threads", "gevent", "solo"]


def unknown(worker: WorkerNode) -> int:
    return worker.log_text().count("this worker does not have the task")


def scripts(memory: Redis) -> int:
    """Return how many scripts ran."""
    stats = memory.info("commandstats")
    return int(stats["cmdstat_fcall"]["calls"])


def seconds_of_scripts(memory: Redis, count: int) -> float:
    """Return how long a worker that finds nothing takes for so many scripts."""
    first = scripts(memory)
    eventually(lambda: scripts(memory) > first, at_most(5.0))
    begin, first = time.monotonic(), scripts(memory)
    eventually(lambda: scripts(memory) >= first + count, at_most(10.0))
    return time.monotonic() - begin


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_a_worker_does_not_know_waits_for_one_that_does(
    fair_shop: Shop, memory: Redis, pool: str
) -> None:
    stranger = fair_shop.worker(pool=pool, concurrency=1)
    waiting = [send(fair_shop, "kinds.late", "42") for _ in range(3)]
    waiting += [send(fair_shop, "kinds.late", None)]
    stranger.wait_for_log(
        "this worker does not have the task kinds.late: its messages in queue celery"
    )
    # What is behind it runs, of the same tenant too, whose slot it does not hold.
    assert fair_shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    assert fair_shop.send("plain").get(timeout=RESULT_SECONDS) is not None
    eventually(lambda: sorted(waiting_in(memory)) == sorted(each.id for each in waiting))
    assert [each for each in waiting_in(memory) if each != waiting[3].id] == [
        each.id for each in waiting[:3]
    ]
    # A result is known before its slot is free.
    fair_shop.await_held("42", 0)
    assert {result.state for result in waiting} == {"PENDING"}
    # It sleeps beside what it cannot take: a claim and a question for outcomes each second, two
    # of each at most, and a renewal and a look at queues that expire may come between.
    assert seconds_of_scripts(memory, 8) > 1.0
    assert unknown(stranger) == 1

    fair_shop.worker(app=KINDS, pool=pool, concurrency=1)
    assert [result.get(timeout=RESULT_SECONDS) for result in waiting] == ["done"] * 4
    # Both are idle, and either may hear of it first.
    for _ in range(6):
        assert send(fair_shop, "kinds.late", "42").get(timeout=RESULT_SECONDS) == "done"
    assert unknown(stranger) == 1
    assert_nothing_left(memory)
    assert not memory.hgetall(f"{PREFIX}counters").get("dead_lettered")


def test_many_tenants_with_a_task_that_nobody_knows_hide_nobody(
    fair_shop: Shop, memory: Redis
) -> None:
    for number in range(100):
        send(fair_shop, "kinds.nobody_knows", f"user{number}")
    # Its first claim has four of them.
    worker = fair_shop.worker(concurrency=4)
    results = [fair_shop.send("work", user=f"u{number}") for number in range(5)]
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 5
    # What is read is not of one moment.
    eventually(lambda: len(waiting_in(memory)) == 100)
    assert unknown(worker) == 1


def test_a_worker_at_its_rate_limit_looks_slowly_over_a_crowd_and_finds_what_it_takes(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(conf={"task_annotations": {"kinds.late": {"rate_limit": "1/h"}}})
    for number in range(1000):
        send(shop, "kinds.late", f"user{number}")
    shop.worker(app=KINDS, pool="threads", concurrency=1)
    # One has run, and the first look has come to all the others.
    eventually(lambda: len(waiting_in(memory)) == 999, at_most(20.0))
    # One look over all takes 63 claims; there are two seconds of other scripts among them.
    assert seconds_of_scripts(memory, 60) > 2.0
    for number in range(2):
        early = send(shop, "kinds.early", f"early{number}")
        assert early.get(timeout=RESULT_SECONDS) == "done"
    eventually(lambda: len(waiting_in(memory)) == 999)
    assert seconds_of_scripts(memory, 60) > 2.0


def test_what_a_worker_comes_to_know_it_takes(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(conf={"worker_pool_restarts": True})
    worker = shop.worker(concurrency=1)
    result = send(shop, "kinds.later", "42")
    worker.wait_for_log("this worker does not have the task kinds.later")
    shop.tell(worker, "pool_restart", modules=["tests.dispatch.later_kind"])
    assert result.get(timeout=RESULT_SECONDS) == "known now"
    assert_nothing_left(memory)
