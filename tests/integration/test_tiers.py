"""Tiers, routing and steering with real workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness.config.tiers import DEFAULT_TIERS, Tier
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import LONG, key_taken
from tests.integration.test_parked import ONE, assert_nothing_parked, await_parked
from tests.support.waiting import eventually


def test_a_task_goes_to_the_queue_of_its_tenants_tier(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(fairness={"tier_resolver": "tests.support.resolver:tier_of"})
    # Without -Q the worker takes the queues of the declared services too.
    shop.worker(pool="threads", concurrency=4)
    queues = {
        "pro-1": "analysis_priority",
        "pro_plus-1": "analysis_priority",
        "enterprise-1": "analysis_priority",
        "free-1": "analysis_default",
        "stranger": "analysis_default",
        "broken": "analysis_default",
    }
    results = {user: shop.send("routed", user=user) for user in queues}
    came = {user: result.get(timeout=RESULT_SECONDS) for user, result in results.items()}
    assert came == queues
    explicit = shop.send("routed", user="pro-1", options={"queue": "celery"})
    assert explicit.get(timeout=RESULT_SECONDS) == "celery"


def test_an_upgraded_tenants_parked_task_moves_queue(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(fairness=LONG)
    shop.worker(pool="threads", concurrency=2)
    with key_taken(shop):
        parked = shop.send("routed", user="42", options={"limits": [ONE]})
        await_parked(shop, 1)
        shop.fairness.tenants.set_tier("42", "pro")
        # The worker hears of it.
        assert shop.send("routed", user="43").get(timeout=RESULT_SECONDS) == "analysis_default"
    assert parked.get(timeout=RESULT_SECONDS) == "analysis_priority"
    eventually(lambda: assert_nothing_parked(shop))


def test_an_upgraded_tenant_moves_queue_on_retry_and_on_snooze(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(fairness={"tiers": {"pro": {"concurrency": 1}}})
    shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    blocker = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    snoozed = shop.send("routed", user="42")
    retried = shop.send("routed", "retry", user="7", seconds=1.2)
    eventually(lambda: shop.fairness.stats.rejections().tiers.get("free", 0) >= 1)
    shop.fairness.tenants.set_tier("42", "pro")
    shop.fairness.tenants.set_tier("7", "pro")
    eventually(lambda: shop.fairness.stats.rejections().tiers.get("pro", 0) >= 2)
    gate.touch()
    assert snoozed.get(timeout=RESULT_SECONDS) == "analysis_priority"
    assert retried.get(timeout=RESULT_SECONDS) == "analysis_priority"
    assert blocker.get(timeout=RESULT_SECONDS) == "done"


def test_a_retry_that_somebody_put_elsewhere_stays_there(shop: Shop) -> None:
    shop.worker(pool="threads", concurrency=2)
    shop.fairness.tenants.set_tier("42", "pro")
    result = shop.send("routed", "retry", user="42", options={"queue": "celery"})
    assert result.get(timeout=RESULT_SECONDS) == "celery"


def test_new_numbers_act_on_running_workers_at_once(shop: Shop) -> None:
    for _ in range(2):
        shop.worker(pool="threads", concurrency=4)
    results = [shop.send("work", user="42", seconds=0.1) for _ in range(12)]
    eventually(lambda: shop.fairness.stats.rejections().tiers.get("free", 0) >= 5)
    assert shop.most_at_once("42") == 1
    shop.fairness.tenants.publish_tiers([*DEFAULT_TIERS.values(), Tier("free", 4)][1:])
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert 2 <= shop.most_at_once("42") <= 4


def test_a_downgrade_while_running_kills_nothing_and_starts_nothing_above(shop: Shop) -> None:
    shop.worker(pool="threads", concurrency=8)
    shop.fairness.tenants.set_tier("42", "enterprise")
    gates = [shop.gate_file() for _ in range(5)]
    running = [shop.send("work", user="42", gate=str(gate)) for gate in gates]
    shop.await_held("42", 5)
    shop.fairness.tenants.set_tier("42", "free")
    waiting = shop.send("work", user="42")
    for left, gate in zip(range(4, 0, -1), gates[:4], strict=True):
        gate.touch()
        shop.await_held("42", left)
        assert not waiting.ready()
    before = shop.fairness.stats.rejections().tiers["free"]
    eventually(lambda: shop.fairness.stats.rejections().tiers["free"] > before)
    assert not waiting.ready()
    gates[4].touch()
    for result in (*running, waiting):
        assert result.get(timeout=RESULT_SECONDS) == "done"


def test_off_and_on_again_with_tasks_waiting(make_shop: Callable[..., Shop]) -> None:
    on = make_shop(fairness={"lease_seconds": 60})
    worker = on.worker(pool="threads", concurrency=4)
    gate = on.gate_file()
    blocker = on.send("work", user="42", gate=str(gate))
    on.await_held("42", 1)
    waiting = [on.send("work", user="42", gate=str(gate)) for _ in range(3)]
    eventually(lambda: on.fairness.stats.rejections().tiers.get("free", 0) >= 3)
    off = on.worker(pool="threads", concurrency=4, env={"FAIRNESS_ENABLED": "false"})
    off.wait_for_log("enabled is false")
    worker.kill()
    # Snoozed tasks of the dead worker are its broker's; new ones are rejected by nobody.
    more = [on.send("work", user="42", gate=str(gate)) for _ in range(3)]
    eventually(lambda: on.held("42") >= 4)
    gate.touch()
    for result in more:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    off.kill()
    on.worker(pool="threads", concurrency=2)
    last = [on.send("work", user="43", seconds=0.05) for _ in range(4)]
    for result in last:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert on.most_at_once("43") == 1
    assert blocker.id
    assert waiting


def test_observe_counts_and_rejects_nothing(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(variables={"FAIRNESS_ENABLED": "observe"})
    worker = shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    results = [shop.send("work", user="42", gate=str(gate)) for _ in range(3)]
    shop.await_held("42", 3)
    gate.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.fairness.stats.rejections().tiers == {"free": 2}
    assert "enabled is 'observe'" in worker.log_text()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"FAIRNESS_FREE_LIMIT": "-1"}, "FAIRNESS_FREE_LIMIT: expected a whole number from 0"),
        ({"FAIRNESS_REDIS_URL": "localhost"}, "FAIRNESS_REDIS_URL: expected redis://"),
    ],
)
def test_a_worker_does_not_start_with_a_wrong_setting(
    make_shop: Callable[..., Shop], variables: dict[str, str], message: str
) -> None:
    shop = make_shop()
    worker = shop.worker(env=variables, wait=False)
    eventually(lambda: not worker.alive, RESULT_SECONDS)
    assert worker.exit_code == 2
    assert f"celery_fairness: {message}" in worker.log_text()
    assert "Traceback" not in worker.log_text()


def test_what_is_odd_is_said_when_a_worker_starts(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(
        conf={"worker_eta_task_limit": 7, "broker_transport_options": {"visibility_timeout": 0.5}},
        variables={"FAIRNESS_FRE_LIMIT": "3"},
    )
    shop.fairness.tenants.publish_tiers([Tier("free", 9)], "database")
    worker = shop.worker(pool="threads", concurrency=1)
    worker.wait_for_log("the database holds")
    log = worker.log_text()
    assert "FAIRNESS_FRE_LIMIT is not known: it has no effect; write FAIRNESS_FREE_LIMIT" in log
    assert "worker_eta_task_limit is 7" in log
    assert "is 0.5 s, and the broker delivers a waiting message again after 0.5 s" in log
    assert "countdowns are cut to 0.45 s" in log


def test_what_beat_sends_is_scheduled(shop: Shop) -> None:
    shop.worker(pool="threads", concurrency=2)
    shop.app.conf.beat_schedule = {
        "again": {"task": "shop.routed", "schedule": 3600.0, "kwargs": {"user": None}}
    }
    beat = shop.app.Beat().app
    from celery.beat import Scheduler

    scheduler = Scheduler(beat)
    scheduler.setup_schedule()
    result = scheduler.apply_async(scheduler.schedule["again"])
    assert result.get(timeout=RESULT_SECONDS) == "analysis_scheduled"
    scheduler.close()


def test_system_tasks_are_never_limited(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(fairness={"tiers": {"free": {"concurrency": 0}}})
    shop.worker(pool="threads", concurrency=2)
    assert shop.send("plain").get(timeout=RESULT_SECONDS) == "plain"
    assert shop.send("work").get(timeout=RESULT_SECONDS) == "done"
    assert shop.send("work", user="").get(timeout=RESULT_SECONDS) == "done"


def test_shared_makes_one_tenant_of_all_tasks_without_one(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(fairness={"no_tenant": "shared"})
    shop.worker(pool="threads", concurrency=4)
    results = [shop.send("work", seconds=0.05) for _ in range(4)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    spans = sorted((e["at"], e["event"]) for e in shop.ledger())
    assert [event for _, event in spans] == ["start", "end"] * 4
