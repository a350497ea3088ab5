"""A reader that cannot know a tenant's tier shows ``unknown`` and why, never the default tier."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_fairness import Fairness
from celery_fairness.control.task.views import Explanation
from celery_fairness.errors import NotFound
from tests.behaviour.conftest import Command
from tests.integration.conftest import Shop
from tests.support.parts import parts_of
from tests.support.shop import make_app
from tests.support.waiting import eventually

pytestmark = pytest.mark.redis

WHY = "the tier resolver failed: RuntimeError('the billing database is away')"


@pytest.fixture(params=["fairredis", "redis"])
def fairness(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Fairness]:
    """A shop on the dispatch path, then at the gate; its resolver fails for ``broken``."""
    url = f"fair{redis_url}" if request.param == "fairredis" else redis_url
    shop = {
        "tier_resolver": "tests.support.resolver:tier_of",
        "tiers": {"enterprise": {"weight": 4}},
    }
    made = Fairness.of(make_app({"CELERY_BROKER_URL": url, "SHOP_FAIRNESS": json.dumps(shop)}))
    yield made
    made.close()
    parts_of(made).app.close()


def test_a_tier_that_the_resolver_will_replace_is_set_with_its_end(
    fairness: Fairness, command: Command
) -> None:
    done = command("tenant", "tier", "fred", "pro")
    assert done.exit_code == 0
    assert "tier pro of the tenant fred holds until " in done.stderr
    assert "to make it last, change what the resolver returns" in done.stderr
    until = fairness.tenants.set_tier("fred", "pro").until
    assert until is not None
    cached = fairness.settings.tier_cache_seconds
    assert cached < (until - datetime.now(UTC)).total_seconds() <= 2 * cached


def test_a_tier_with_a_number_of_its_own_lasts(fairness: Fairness, command: Command) -> None:
    done = command("tenant", "tier", "fred", "pro", "--concurrency", "7")
    assert (done.exit_code, done.stderr) == (0, "")
    assert fairness.tenants.set_tier("fred", "pro", concurrency=None).until is None
    fairness.tenants.clear_tier("fred")
    assert command("tenant", "tier", "fred").exit_code == 0


def test_inspect_says_why_the_tier_is_unknown_and_exits_with_1(
    fairness: Fairness, command: Command
) -> None:
    found = fairness.limits.inspect("tenant:broken")
    assert (found.unknown, found.tier, found.limit, found.weight) == (WHY, "", None, None)
    done = command("limit", "show", "tenant:broken")
    assert done.exit_code == 1
    first, why, *_ = done.stdout.splitlines()
    assert first == "tenant:broken: tier unknown, limit unknown, held 0"
    assert why == f"limit unknown: tier unknown: {WHY}"
    assert done.stderr == ""
    plain = json.loads(command("limit", "show", "tenant:broken", "--json").stdout)
    assert plain["unknown"] == WHY
    assert plain["tier"] == ""
    assert plain["limit"] is plain["concurrency"]["available"] is plain["weight"] is None


def test_tier_says_why_the_tier_is_unknown_and_exits_with_1(command: Command) -> None:
    done = command("tenant", "tier", "broken")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "tenant:broken: tier unknown, limit unknown, held 0",
        f"limit unknown: tier unknown: {WHY}",
    ]
    assert "resolver failed" not in done.stderr


def test_list_asks_the_resolver_for_every_tenant(fairness: Fairness, command: Command) -> None:
    for tenant in ("enterprise-1", "broken", "stranger"):
        fairness.limits.override(f"tenant:{tenant}", concurrency=7)
    done = command("limit", "list")
    assert done.exit_code == 1
    rows = {row.split()[0]: row.split()[1:3] for row in done.stdout.splitlines()[1:4]}
    assert rows == {
        "tenant:broken": ["unknown", "7"],
        "tenant:enterprise-1": ["enterprise", "7"],
        "tenant:stranger": ["free", "7"],
    }
    assert f"tier unknown: {WHY}" in done.stdout
    items = {
        each["key"]: each for each in json.loads(command("limit", "list", "--json").stdout)["items"]
    }
    assert items["tenant:broken"]["unknown"] == WHY
    assert items["tenant:enterprise-1"]["unknown"] == ""
    fairness.limits.clear_override("tenant:broken")
    assert command("limit", "list").exit_code == 0


def test_a_number_that_an_operator_set_is_known_whatever_the_tier(
    fairness: Fairness, command: Command
) -> None:
    fairness.limits.override("tenant:broken", concurrency=7)
    done = command("limit", "show", "tenant:broken")
    assert "tier unknown, limit 7, held 0" in done.stdout
    assert f"otherwise unknown: tier unknown: {WHY}" in done.stdout
    assert done.exit_code == 1
    fairness.limits.pause("tenant:broken")
    assert "tier unknown, limit 0, held 0" in command("limit", "show", "tenant:broken").stdout


def test_a_published_tier_is_known_although_the_resolver_fails(
    fairness: Fairness, command: Command
) -> None:
    fairness.tenants.set_tier("broken", "enterprise")
    done = command("limit", "show", "tenant:broken")
    assert done.exit_code == 0
    assert (
        done.stdout.splitlines()[0] == "tenant:broken: tier enterprise, limit 5, held 0, weight 4"
    )


def test_a_name_that_redis_knows_by_its_hash_alone_has_an_unknown_tier(
    fairness: Fairness, command: Command
) -> None:
    """The resolver knows the name; whoever has only the hash cannot ask it."""
    fairness.limits.override("tenant:enterprise-me@example.org", concurrency=7)
    assert fairness.limits.inspect("tenant:enterprise-me@example.org").tier == "enterprise"
    done = command("limit", "list")
    assert done.exit_code == 1
    assert "unknown" in done.stdout.splitlines()[1]
    assert "use the name itself" in done.stdout
    fairness.tenants.set_tier("enterprise-me@example.org", "enterprise")
    assert command("limit", "list").exit_code == 0


def test_tasks_go_on_with_the_default_tier_and_a_log_line(fairness: Fairness, caplog: Any) -> None:
    with parts_of(fairness).app.pool.acquire() as connection:
        parts_of(fairness).app.tasks["shop.work"].apply_async(
            (), {"user": "broken"}, connection=connection
        )
    assert "the tier resolver failed, the default tier is used" in caplog.text


def test_explain_judges_a_parked_task_by_the_tier_that_its_gate_knew(
    make_shop: Callable[..., Shop],
) -> None:
    """A tenant of a tier of 3 has three running, and a fourth parked."""
    resolver = "tests.support.resolver:tier_of"
    shop = make_shop("redis", fairness={"tier_on_limit": "wait", "tier_resolver": resolver})
    shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    ids = [shop.send("work", user="pro-1", gate=str(gate)).id for _ in range(4)]
    eventually(lambda: len(shop.ledger("start")) == 3)
    (waits,) = set(ids) - set(shop.runs())

    def explained() -> Explanation:
        try:
            return shop.fairness.tasks.explain(waits)
        except NotFound as error:
            raise AssertionError(error) from error

    found = eventually(explained)
    assert found.state == "parked"
    assert [(each.key, each.limit) for each in found.blocked_by] == [("tenant:pro-1", 3)]
    gate.touch()
    eventually(lambda: len(shop.ledger("end")) == 4)
