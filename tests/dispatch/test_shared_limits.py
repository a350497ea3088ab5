"""Limits beside the tier's hold over all workers, tenants and queues, and stop nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import ChordError
from celery.result import AsyncResult
from redis import Redis

from celery_fairness import RateLimitDropped
from celery_fairness.config.policy import RateLimitPolicy
from tests.dispatch.conftest import PREFIX, assert_nothing_left
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

KINDS = "tests.dispatch.kinds"
POOLS = ["prefork", "threads", "gevent", "solo"]
#: The clock of Redis has whole milliseconds.
CLOCK_SECONDS = 0.002


def send(
    shop: Shop, user: str | None, *limits: RateLimitPolicy, name: str = "late", **options: Any
) -> AsyncResult[Any]:
    """Send a task with limits, as a producer without its code does."""
    header: dict[str, Any] = {"v": 1, "limits": [limit.to_ojs() for limit in limits]}
    if user is not None:
        header["tenant"] = user
    kwargs = {"gate": options.pop("gate", "/"), "how": options.pop("how", "ok")}
    options |= {"kwargs": kwargs, "headers": {"fairness": header}}
    return shop.app.send_task(f"kinds.{name}", **options)


def starts(shop: Shop) -> list[float]:
    """Return when bodies began, in their order."""
    return sorted(entry["at"] for entry in shop.ledger("start"))


def test_a_concurrency_holds_over_workers_tenants_and_queues(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    for pool in POOLS:
        concurrency = 1 if pool == "solo" else 3
        shop.worker(app=KINDS, pool=pool, concurrency=concurrency, queues=["a", "b"])
    api = RateLimitPolicy("api.example.com", concurrency=2)
    users = [None, "41", "42", "43"]
    results = [
        send(shop, user, api, queue=queue) for _ in range(10) for user in users for queue in "ab"
    ]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once() <= 2
    assert_nothing_left(memory)


@pytest.mark.parametrize("name", ["late", "early"])
def test_what_waits_at_a_limit_starts_when_it_is_free_and_stops_nobody(
    make_fair_shop: Callable[..., Shop], memory: Redis, name: str
) -> None:
    shop = make_fair_shop()
    shop.worker(app=KINDS, pool="threads", concurrency=3)
    api = RateLimitPolicy("api", concurrency=1)
    gate = shop.gate_file()
    first = send(shop, "41", api, gate=str(gate), name=name)
    eventually(lambda: len(shop.ledger("start")) == 1)
    second = send(shop, "42", api, name=name)
    other = send(shop, "42", name=name)
    assert other.get(timeout=RESULT_SECONDS) == "done"
    assert second.id not in shop.runs()
    # It ended, and the slot is its own until then, whatever was acknowledged.
    gate.touch()
    assert second.get(timeout=RESULT_SECONDS) == "done"
    assert first.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_a_task_under_two_limits_holds_both_or_none(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    shop.worker(app=KINDS, pool="threads", concurrency=4)
    left, right = (RateLimitPolicy(key, concurrency=1) for key in ("left", "right"))
    gate = shop.gate_file()
    send(shop, "41", left, gate=str(gate))
    eventually(lambda: len(shop.ledger("start")) == 1)
    both = send(shop, "42", left, right)
    alone = send(shop, "43", right)
    assert alone.get(timeout=RESULT_SECONDS) == "done"
    assert both.id not in shop.runs()
    gate.touch()
    assert both.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_a_rate_is_never_exceeded_in_any_window_and_is_used(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    for _ in range(2):
        shop.worker(app=KINDS, pool="threads", concurrency=4)
    rate = RateLimitPolicy("api", rate="5/1s")
    sent_at = time.time()
    results = [send(shop, str(user % 3), rate) for user in range(16)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    # A body may begin long after its start was counted, and never before: five a second.
    assert all(at - sent_at > n // 5 - CLOCK_SECONDS for n, at in enumerate(starts(shop)))
    assert_nothing_left(memory)


def test_a_throttle_spaces_starts_evenly(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    for _ in range(2):
        shop.worker(app=KINDS, pool="threads", concurrency=4)
    throttle = RateLimitPolicy("api", throttle="5/1s")
    sent_at = time.time()
    results = [send(shop, str(user % 3), throttle) for user in range(8)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert all(at - sent_at > n * 0.18 - CLOCK_SECONDS for n, at in enumerate(starts(shop)))
    assert_nothing_left(memory)


def test_a_limit_of_0_pauses(make_fair_shop: Callable[..., Shop]) -> None:
    shop = make_fair_shop()
    shop.worker(app=KINDS, pool="threads", concurrency=2)
    paused = send(shop, "42", RateLimitPolicy("api", concurrency=0))
    assert send(shop, "42").get(timeout=RESULT_SECONDS) == "done"
    assert send(shop, "43", RateLimitPolicy("api")).get(timeout=RESULT_SECONDS) == "done"
    assert paused.id not in shop.runs()


def holding(shop: Shop, limit: RateLimitPolicy) -> tuple[AsyncResult[Any], Path]:
    """Start a task that holds a limit until its file is there."""
    gate = shop.gate_file()
    running = send(shop, "41", limit, gate=str(gate))
    eventually(lambda: len(shop.ledger("start")) == 1)
    return running, gate


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_the_result_of_a_dropped_task_says_so_and_its_errback_is_called(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop()
    worker = shop.worker(app=KINDS, pool=pool, concurrency=2)
    api = RateLimitPolicy("api.example.com", concurrency=1, on_limit="drop")
    running, gate = holding(shop, api)
    errback = shop.app.signature("kinds.note_failure")
    dropped = send(shop, "42", api, link_error=[errback])
    with pytest.raises(RateLimitDropped, match="declare the limit with on_limit='wait'") as raised:
        dropped.get(timeout=RESULT_SECONDS)
    error = raised.value
    assert (error.task, error.task_id, error.key) == ("kinds.late", dropped.id, "api.example.com")
    worker.wait_for_log(f"task kinds.late[{dropped.id}] of tenant '42' was dropped by the limit")
    eventually(lambda: [line["id"] for line in shop.ledger("errback")] == [dropped.id])
    gate.touch()
    assert running.get(timeout=RESULT_SECONDS) == "done"
    # Its result is known before its slot is free.
    eventually(lambda: memory.zcard(f"{PREFIX}leases:{api.key}") == 0)
    assert send(shop, "42", api).get(timeout=RESULT_SECONDS) == "done"
    assert dropped.id not in shop.runs()
    assert shop.fairness.stats.counters()["dropped"] == 1
    assert_nothing_left(memory)


def test_a_chord_fails_whose_part_is_dropped(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    shop.worker(app=KINDS, pool="threads", concurrency=3)
    api = RateLimitPolicy("api", concurrency=1, on_limit="drop")
    running, gate = holding(shop, api)
    signature = shop.app.signature
    header = {"fairness": {"v": 1, "tenant": "42", "limits": [api.to_ojs()]}}
    part = signature("kinds.late", kwargs={"gate": "/"}).set(headers=header)
    other = signature("kinds.plain", kwargs={"gate": "/"})
    after = chord([part, other], app=shop.app)(signature("kinds.plain"))
    with pytest.raises(ChordError, match="RateLimitDropped"):
        # Not that of the chord itself, which asks its parts first.
        shop.app.AsyncResult(after.id).get(timeout=RESULT_SECONDS)
    assert after.id not in shop.runs()
    gate.touch()
    assert running.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_a_rescheduled_task_runs_later_and_ends_once(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    shop.worker(app=KINDS, pool="threads", concurrency=3)
    api = RateLimitPolicy("api", concurrency=1, on_limit="reschedule")
    running, gate = holding(shop, api)
    results = [send(shop, user, api) for user in ("42", "43")]
    eventually(lambda: shop.fairness.stats.counters().get("rescheduled", 0) >= 2)
    assert memory.zcard(f"{PREFIX}scheduled:celery") == 2
    # They stop nobody.
    assert send(shop, "42").get(timeout=RESULT_SECONDS) == "done"
    assert not {result.id for result in results} & set(shop.runs())
    gate.touch()
    for result in (running, *results):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert [shop.runs()[result.id] for result in results] == [1, 1]
    assert_nothing_left(memory)


def test_a_rate_that_reschedules_is_kept_and_used(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    for _ in range(2):
        shop.worker(app=KINDS, pool="threads", concurrency=4)
    rate = RateLimitPolicy("api", rate="4/500ms", on_limit="reschedule")
    sent_at = time.time()
    results = [send(shop, str(user % 3), rate) for user in range(12)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert all(at - sent_at > n // 4 * 0.5 - CLOCK_SECONDS for n, at in enumerate(starts(shop)))
    assert_nothing_left(memory)


def test_a_dead_worker_s_share_of_a_limit_is_back_within_one_lease(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": 1})
    api = RateLimitPolicy("api", concurrency=1)
    gate = shop.gate_file()
    doomed = shop.worker(app=KINDS, pool="prefork", concurrency=1)
    first = send(shop, "41", api, gate=str(gate))
    eventually(lambda: len(shop.ledger("start")) == 1)
    second = send(shop, "42", api)
    shop.worker(app=KINDS, pool="threads", concurrency=2)
    doomed.kill()
    gate.touch()
    for result in (first, second):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {first.id: 2, second.id: 1}
    assert_nothing_left(memory)


def test_a_step_whose_key_has_no_value_runs_and_makes_no_failure_of_what_came_before(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    worker = shop.worker(app=KINDS, pool="threads", concurrency=2)

    def step(name: str) -> Any:
        return shop.app.signature(f"kinds.{name}", kwargs={"gate": "/"}, immutable=True)

    limits = [RateLimitPolicy("api", concurrency=5), RateLimitPolicy("of:{tenant}")]
    keyless = step("fair").set(limits=limits)
    after = chain(step("late"), keyless, app=shop.app).delay()
    assert after.get(timeout=RESULT_SECONDS) == "done"
    # Celery sends the next step before it stores what this one returned.
    assert after.parent.get(timeout=RESULT_SECONDS) == "done"
    body = chord([step("late"), step("plain")], app=shop.app)(keyless.clone())
    assert body.get(timeout=RESULT_SECONDS) == "done"
    worker.wait_for_log("task kinds.fair: key 'of:{tenant}': {tenant} has no value")
    assert_nothing_left(memory)


def test_a_header_with_one_wrong_field_waits_at_its_limit_all_the_same(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(fairness={"tiers": {"free": {"concurrency": 9}}})
    shop.worker(app=KINDS, pool="threads", concurrency=6)
    api = RateLimitPolicy("api", concurrency=1)
    running, gate = holding(shop, api)
    wrong: list[dict[str, Any]] = [{"v": 2}, {"cost": -1}, {"service": 7}]
    broken = [{"limits": [{"key": "api", "concurrency": -1}, api.to_ojs()]}]
    results = []
    for each in [*wrong, *broken]:
        header = {"v": 1, "tenant": "42", "limits": [api.to_ojs()], **each}
        options: dict[str, Any] = {"kwargs": {"gate": "/"}, "headers": {"fairness": header}}
        results.append(shop.app.send_task("kinds.late", **options))
    # Whoever waits at no limit is served in the meantime.
    assert send(shop, "43").get(timeout=RESULT_SECONDS) == "done"
    assert not {result.id for result in results} & set(shop.runs())
    gate.touch()
    for result in (running, *results):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once() <= 2
    assert_nothing_left(memory)


def test_limits_that_cannot_be_read_charge_a_tenant_of_their_own(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    gate = shop.gate_file()
    wrong: list[Any] = [
        5,
        "api",
        [5],
        [{"key": "api", "concurrency": -1}],
        [{"key": "api key"}],
        [{"key": "api:{tenant}"}],
        [{"key": "api", "rate": {"limit": 5, "period": "1 minute"}}],
        [{"key": "api", "private": "yes"}],
        [{"key": f"k{number}", "concurrency": 1} for number in range(17)],
    ]
    for limits in wrong:
        header = {"v": 1, "tenant": "42", "limits": limits}
        shop.app.send_task("kinds.late", kwargs={"gate": str(gate)}, headers={"fairness": header})
    waiting = memory.hgetall(f"{PREFIX}tenant_state:tenant:_invalid")
    assert waiting["q:celery"] == str(len(wrong))
    gate.touch()
    shop.worker(app=KINDS, pool="threads", concurrency=4)
    eventually(lambda: len(shop.ledger("end")) == len(wrong), RESULT_SECONDS)
    # Of the default tier, which may run one.
    assert shop.most_at_once() == 1
    assert_nothing_left(memory)
