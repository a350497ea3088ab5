"""Real workers of an installation with several partitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_fairness import FairTask, PolicyInvalid, RateLimitPolicy, TaskDeclarationError
from celery_fairness.store.partitions import Partitions
from tests.dispatch.conftest import left_in, run_again_after_a_death
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import at_most, eventually

COUNT = 8
KINDS = "tests.dispatch.kinds"
PLACES = Partitions("fairness", count=COUNT)
#: Of this, every number is seen as it is.
SEVERAL: dict[str, Any] = {"partitions": COUNT, "tier_cache_seconds": 0}
USERS = [f"user{number}" for number in range(12)]


@pytest.fixture
def shop(make_fair_shop: Callable[..., Shop]) -> Shop:
    """A shop whose tenants are in eight partitions."""
    return make_fair_shop(fairness=SEVERAL)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_limits_hold_and_every_task_runs_once(shop: Shop, memory: Redis, pool: str) -> None:
    for _ in range(2):
        shop.worker(pool=pool, concurrency=1 if pool == "solo" else 3)
    results = [shop.send("work", user=user, seconds=0.01) for _ in range(5) for user in USERS]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert {shop.most_at_once(user) for user in USERS} == {1}
    eventually(lambda: left_in(memory, PLACES) == [])


def test_the_tasks_of_a_killed_worker_run_on_another(shop: Shop, memory: Redis) -> None:
    run_again_after_a_death(shop, USERS)
    eventually(lambda: left_in(memory, PLACES) == [])


def test_leases_are_registered_again_after_lost_memory(shop: Shop, memory: Redis) -> None:
    worker = shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    results = [shop.send("work", user=user, gate=str(gate)) for user in USERS[:3]]
    eventually(lambda: len(shop.ledger("start")) == 3, RESULT_SECONDS)
    memory.flushall()
    worker.wait_for_log("registered again", at_most(20.0))
    more = [shop.send("work", user=user) for user in USERS[:3]]
    shop.send("work", user="other").get(timeout=RESULT_SECONDS)
    assert len(shop.ledger("start")) == 4
    gate.touch()
    for result in (*results, *more):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert {shop.most_at_once(user) for user in USERS[:3]} == {1}


def test_a_tier_is_in_force_in_the_partition_of_its_tenant(shop: Shop) -> None:
    shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    results = [shop.send("work", user="42", gate=str(gate)) for _ in range(4)]
    eventually(lambda: len(shop.ledger("start")) == 1, RESULT_SECONDS)
    shop.fairness.tenants.set_tier("42", "pro")
    eventually(lambda: len(shop.ledger("start")) == 3, at_most(3.0))
    gate.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"


def test_a_limit_of_several_tenants_is_an_error(shop: Shop) -> None:
    shared = RateLimitPolicy("api:stripe", rate="1/s", on_limit="drop")
    with pytest.raises(PolicyInvalid, match=r"expected one with {tenant}.* got: 'api:stripe'"):
        shop.send("work", user="42", options={"limits": [shared]})
    inside = RateLimitPolicy("api{tenant}", rate="1/s", on_limit="drop")
    with pytest.raises(PolicyInvalid, match=r"{tenant} as a word of its own,.* got: 'api42'"):
        shop.send("work", user="42", options={"limits": [inside]})
    own = RateLimitPolicy("api_{tenant}", concurrency=1)
    shop.worker(pool="threads", concurrency=2)
    result = shop.send("work", user="42", options={"limits": [own]})
    assert result.get(timeout=RESULT_SECONDS) == "done"


@pytest.mark.parametrize(
    "options",
    [
        {"limits": [RateLimitPolicy("api:stripe", rate="1/s", on_limit="reschedule")]},
        {"limits": [RateLimitPolicy("api:stripe", concurrency=1, on_limit="drop")]},
        {"limits": [RateLimitPolicy("queue:api", concurrency=1)]},
        {"limits": [RateLimitPolicy("tenant:acme", concurrency=1)]},
        {"unique": "api:one"},
    ],
)
def test_a_task_that_declares_a_key_of_several_tenants_is_an_error(
    shop: Shop, options: dict[str, Any]
) -> None:

    @shop.app.task(name="shared", base=FairTask, tenant="user", **options)
    def task(user: str) -> None:
        """Do nothing."""

    # The name of the tenant stands in the key by chance.
    with pytest.raises(TaskDeclarationError, match=r"with {tenant}.* got: '(api|queue|tenant):"):
        task.delay(user="api")


def test_a_worker_with_another_number_ends_and_names_both(
    make_fair_shop: Callable[..., Shop], shop: Shop
) -> None:
    shop.send("work", user="42")
    other = json.dumps({**json.loads(shop.env["SHOP_FAIRNESS"]), "partitions": 4})
    done = shop.command("worker", "--pool", "solo", env={"SHOP_FAIRNESS": other})
    assert done.returncode == 2
    assert "fairness.partitions: expected 8" in done.stderr
    assert "got: 4" in done.stderr


def test_a_command_that_partitions_do_not_have_names_the_page(shop: Shop) -> None:
    done = shop.command("fairness", "queue", "migrate", "work", "--to", "redis")
    assert done.returncode != 0
    assert "docs/how-to/partitions.md" in done.stderr


def test_a_status_has_the_tasks_of_all_partitions(shop: Shop) -> None:
    shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    results = [shop.send("work", user=user, gate=str(gate)) for user in USERS]
    eventually(lambda: len(shop.ledger("start")) == 4, RESULT_SECONDS)
    status = shop.fairness.stats.status()
    assert (status.running, len(status.workers)) == (4, 1)
    assert sum(each.waiting for each in status.queues) == len(USERS) - 4
    gate.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    minutes = shop.fairness.stats.minutes()
    assert sum(each.started for each in minutes) == len(USERS)
    assert shop.fairness.check().findings == ()


def test_a_partition_that_lost_its_memory_is_paused_again(shop: Shop, memory: Redis) -> None:
    shop.fairness.limits.pause("api_42")
    shop.worker(pool="threads", concurrency=1)
    prefix = PLACES.prefix(0)
    memory.delete(prefix + "changes")
    shop.fairness.limits.pause("api_43")
    # From now on the worker compares the partitions only if the home changes.
    eventually(lambda: memory.hlen(prefix + "changes") == 2, at_most(5.0))
    before = memory.hgetall(prefix + "changes")
    memory.delete(*memory.scan_iter(prefix.replace("*", "") + "*"))
    eventually(lambda: memory.hgetall(prefix + "changes") == before != {}, at_most(20.0))


def test_a_worker_mends_a_pause_that_reached_the_home_alone(shop: Shop, memory: Redis) -> None:
    shop.worker(pool="threads", concurrency=4)
    shop.fairness.limits.pause("api_42")
    for names in PLACES.names:
        memory.delete(names.prefix + "changes")
    # The next change of the home lets workers compare all partitions.
    shop.fairness.limits.pause("api_43")

    def all_have_both() -> None:
        tables = [memory.hkeys(names.prefix + "changes") for names in PLACES.names]
        assert {frozenset(each) for each in tables} == {frozenset(("pause api_42", "pause api_43"))}

    eventually(all_have_both, at_most(5.0))
    own = RateLimitPolicy("api_{tenant}", concurrency=1)
    held = shop.send("work", user="42", options={"limits": [own]})
    shop.send("work", user="other").get(timeout=RESULT_SECONDS)
    assert not held.ready()
    shop.fairness.limits.resume("api_42")
    assert held.get(timeout=RESULT_SECONDS) == "done"


@pytest.mark.parametrize(
    ("other", "words"),
    [(1, ("status",)), (1, ("tenant", "pause", "42")), (4, ("tenant", "pause", "42"))],
)
def test_a_command_with_another_number_changes_nothing(
    shop: Shop, memory: Redis, other: int, words: tuple[str, ...]
) -> None:
    shop.send("work", user="42")
    before = set(memory.scan_iter())
    settings = json.dumps({**json.loads(shop.env["SHOP_FAIRNESS"]), "partitions": other})
    done = shop.command("fairness", *words, env={"SHOP_FAIRNESS": settings})
    assert done.returncode == 2, done.stdout
    assert "fairness.partitions: expected 8" in done.stderr
    assert f"got: {other}" in done.stderr
    assert "Traceback" not in done.stderr
    assert set(memory.scan_iter()) == before
