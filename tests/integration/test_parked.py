"""Tasks behind the gate whose limits say ``wait``: parked in Redis, promoted when a slot frees."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from celery import chain
from celery.result import AsyncResult

from celery_fairness import RateLimitPolicy
from celery_fairness.errors import NotFound
from celery_fairness.limiter.types import Promoted
from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import (
    KEY,
    LONG,
    assert_all_free,
    key_taken,
    send,
    starts,
)
from tests.support.parts import parts_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize("broker", BROKERS)

ONE = RateLimitPolicy(KEY, concurrency=1)

#: The keys that stay when nothing waits, runs or has ended without its result.
LASTING = {
    *("clock", "copy", "counters", "declared", "events", "totals"),
    "saturated",
    *("key_expiry", "stats", "kept_events", "last_answer", "sequence", "tenant"),
    *("tiers", "window", "workers"),
}


def await_parked(shop: Shop, count: int, key: str = KEY) -> None:
    def parked() -> None:
        assert shop.fairness.limits.inspect(key).waiting_count == count

    eventually(parked, RESULT_SECONDS)
    assert shop.fairness.check().findings == ()


def assert_nothing_parked(shop: Shop) -> None:
    def nothing() -> None:
        limiter = parts_of(shop.fairness).limiter
        keys = limiter.connection.read("KEYS", f"{limiter.prefix}*")
        kinds = {key.removeprefix(limiter.prefix).partition(":")[0] for key in keys}
        assert kinds <= LASTING

    eventually(nothing, RESULT_SECONDS)
    assert shop.fairness.check().findings == ()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_parked_task_starts_when_the_slot_is_free_and_not_a_snooze_later(
    make_shop: Callable[..., Shop], broker: str, pool: str
) -> None:
    shop = make_shop(broker, fairness=LONG)
    shop.worker(pool=pool, concurrency=1 if pool == "solo" else 2)
    with key_taken(shop):
        results = []
        for n in range(3):
            results.append(send(shop, f"u{n}", ONE))
            await_parked(shop, n + 1)
        assert {result.state for result in results} == {"PENDING"}
        assert shop.ledger("start") == []
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["user"] for entry in shop.ledger("start")] == ["u0", "u1", "u2"]
    assert set(shop.runs().values()) == {1}
    assert {entry["retries"] for entry in shop.ledger("start")} == {0}
    assert_all_free(shop, KEY, "tenant:u0")
    assert_nothing_parked(shop)


def test_a_parked_task_comes_back_as_it_was(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker, fairness=LONG)
    shop.worker(pool="threads", concurrency=2)
    options = {
        "limits": [ONE],
        "headers": {"x_trace": "é\n"},
        "expires": 300,
        "time_limit": 60,
        "soft_time_limit": 50,
        "root_id": "the-root",
        "parent_id": "the-parent",
    }
    with key_taken(shop):
        result = shop.send("echo", 1, "two", deep={"a": [None]}, user="42", options=options)
        await_parked(shop, 1)
    came = result.get(timeout=RESULT_SECONDS)
    assert came["id"] == result.id
    assert (came["args"], came["kwargs"]) == ([1, "two"], {"deep": {"a": [None]}})
    assert (came["retries"], came["timelimit"]) == (0, [60, 50])
    assert (came["root_id"], came["parent_id"]) == ("the-root", "the-parent")
    assert came["own_headers"] == {"x_trace": "é\n"}
    assert came["expires"]


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_worker_that_stops_or_dies_leaves_parked_tasks_to_others(
    make_shop: Callable[..., Shop], broker: str, acks_late: bool
) -> None:
    shop = make_shop(broker, {"task_acks_late": acks_late}, LONG)
    stops, dies = (shop.worker(pool="threads", concurrency=2) for _ in range(2))
    with key_taken(shop):
        results = [send(shop, f"u{n}", ONE) for n in range(4)]
        await_parked(shop, 4)
        stops.terminate()
        dies.process.kill()
    shop.worker(pool="threads", concurrency=2)
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    assert_nothing_parked(shop)


def _promoted(shop: Shop) -> Promoted:
    """Be a promoter: wait until there is one task to promote."""
    tasks: list[Promoted] = []

    def given() -> None:
        parts_of(shop.fairness).limiter.renew([])
        tasks.extend(parts_of(shop.fairness).limiter.promote(1).tasks)
        assert tasks

    eventually(given, RESULT_SECONDS)
    return tasks[0]


def test_what_a_dead_promoter_had_in_its_hands_comes_after_a_lease_and_runs_once(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={**LONG, "lease_seconds": 2})
    worker = shop.worker(pool="threads", concurrency=2)
    with key_taken(shop):
        result = send(shop, "42", ONE)
        await_parked(shop, 1)
        worker.process.kill()
    # A promoter that publishes nothing, and one that says nothing of what it published.
    _promoted(shop)
    parts_of(shop.fairness).promoter.publish(_promoted(shop))
    shop.worker(pool="threads", concurrency=2)
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_parked(shop)
    assert set(shop.runs().values()) == {1}


def test_an_expired_and_a_revoked_task_end_and_do_not_run(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=LONG)
    worker = shop.worker(pool="threads", concurrency=2)
    with key_taken(shop):
        expired = send(shop, "42", ONE, expires=1.5)
        revoked = send(shop, "43", ONE)
        last = send(shop, "44", ONE)
        await_parked(shop, 3)
        eventually(lambda: _is_revoked(expired), RESULT_SECONDS)
        # No gate has seen it since: a worker stores the result.
        assert worker.log_text().count(f"[{expired.id}] received") == 1
        shop.revoke(revoked.id)
    eventually(lambda: _is_revoked(revoked), RESULT_SECONDS)
    assert last.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["user"] for entry in shop.ledger("start")] == ["44"]
    assert_nothing_parked(shop)


def _is_revoked(result: AsyncResult) -> None:
    assert result.state == "REVOKED"


def test_the_order_of_a_tenants_parked_tasks_is_that_of_its_broker(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=LONG)
    shop.worker(pool="threads", concurrency=2)
    results = []
    with key_taken(shop):
        for n, priority in enumerate((0, 9, 4)):
            results.append(send(shop, "42", ONE, priority=priority))
            await_parked(shop, n + 1)
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    sent = [result.id for result in results]
    order = [sent.index(entry["id"]) for entry in shop.ledger("start")]
    assert order == ([0, 2, 1] if broker == "redis" else [1, 2, 0])


def test_a_rate_opens_for_parked_tasks_without_anything_that_ends(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=LONG)
    shop.worker(pool="threads", concurrency=2)
    rate = RateLimitPolicy(KEY, rate="1/PT1S")
    sent_at = time.time()
    for result in [send(shop, f"u{n}", rate) for n in range(4)]:
        # By polling it would come after a snooze.
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert all(at - sent_at > n for n, at in enumerate(starts(shop)))


def test_a_tier_may_wait_and_a_worker_that_is_off_lets_everything_go(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={**LONG, "tier_on_limit": "wait"})
    worker = shop.worker(pool="threads", concurrency=3)
    gate = shop.gate_file()
    blocker = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    waits = [shop.send("work", user="42") for _ in range(2)]
    await_parked(shop, 2, "tenant:42")
    assert shop.send("work", user="43").get(timeout=RESULT_SECONDS) == "done"
    gate.touch()
    for result in (blocker, *waits):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once("42") == 1
    shop.await_held("42", 0)
    with key_taken(shop):
        parked = send(shop, "42", ONE)
        await_parked(shop, 1)
        worker.terminate()
        shop.worker(pool="threads", env={"FAIRNESS_ENABLED": "false"})
        assert parked.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_parked(shop)


def test_people_see_and_cancel_what_is_parked(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker, fairness=LONG)
    worker = shop.worker(pool="threads", concurrency=2)
    fairness = shop.fairness
    with key_taken(shop):
        first = send(shop, "41", ONE)
        await_parked(shop, 1)
        others = []
        for n in range(3):
            others.append(send(shop, "42", ONE))
            await_parked(shop, n + 2)
        found = fairness.limits.inspect(KEY)
        assert (found.held, found.waiting_count) == (1, 4)
        told = fairness.tasks.explain(others[0].id)
        assert (told.state, told.key) == ("parked", "tenant:42")
        assert (told.ahead_in_lane, told.tenants_ahead) == (0, None)
        assert fairness.tasks.explain(others[2].id).ahead_in_lane == 2
        assert told.queue == "celery"
        (blocker,) = told.blocked_by
        assert (blocker.key, blocker.reason, blocker.held, blocker.limit) == (
            KEY,
            "concurrency",
            1,
            1,
        )
        assert fairness.tasks.cancel(others[0].id).state == "cancelled"
        assert fairness.tenants.purge("42").cancelled >= 2
        for result in others:
            eventually(lambda result=result: _is_revoked(result), RESULT_SECONDS)
            assert worker.log_text().count(f"[{result.id}] received") == 1
        with pytest.raises(NotFound):
            fairness.tasks.cancel(others[0].id)
        with pytest.raises(NotFound):
            fairness.tasks.explain("nobody")
    assert first.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["user"] for entry in shop.ledger("start")] == ["41"]
    assert_nothing_parked(shop)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_parent_that_holds_what_its_child_waits_for_is_told(
    make_shop: Callable[..., Shop], broker: str, pool: str
) -> None:
    shop = make_shop(broker, fairness={**LONG, "tiers": {"free": {"concurrency": None}}})
    worker = shop.worker(pool=pool, concurrency=2)
    limit = {"key": KEY, "concurrency": 1}
    parent = shop.send("asks", limit, user="42", options={"limits": [limit]})
    says = f"waits for the limit {KEY}, and its parent {parent.id} holds a slot of it"
    worker.wait_for_log(says)
    assert parent.get(timeout=RESULT_SECONDS) == "waited for itself"
    # A step of a chain whose parent has ended says nothing.
    eventually(lambda: assert_all_free(shop, KEY), RESULT_SECONDS)
    add = shop.app.tasks["shop.add"]
    steps = [add.s(n, user="42").set(limits=[limit]) for n in range(3)]
    assert chain(add.s(1, 1, user="42"), *steps)().get(timeout=RESULT_SECONDS) == 5
    assert worker.log_text().count("and its parent") == 1
