"""The load: seeded, fair to describe, and the same for both runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from examples.code_analysis.catalogue import Package
from examples.code_analysis.load import WINDOW_SECONDS, NothingToAnalyze, Order, plan_load
from examples.code_analysis.users import USERS, the_flood, tier_of

PACKAGES = [Package(f"package{n}", Path("/nowhere"), 100_000) for n in range(10)]


def test_one_seed_is_one_load() -> None:
    assert plan_load(PACKAGES, 50, seed=3) == plan_load(PACKAGES, 50, seed=3)
    assert plan_load(PACKAGES, 50, seed=3) != plan_load(PACKAGES, 50, seed=4)


def test_the_flood_sends_everything_first_and_the_others_a_little_later() -> None:
    orders = plan_load(PACKAGES, 200, seed=1)
    flood = orders[:200]

    assert {order.user for order in flood} == {the_flood().name}
    assert {order.at_seconds for order in flood} == {0.0}
    assert sum(order.jobs for order in flood) == 200
    others = Counter(order.user for order in orders[200:])
    assert set(others) == {user.name for user in USERS if not user.floods}
    assert max(others.values()) < 20
    assert all(0.0 < order.at_seconds <= WINDOW_SECONDS for order in orders[200:])
    assert [order.at_seconds for order in orders] == sorted(order.at_seconds for order in orders)


def test_every_tier_is_there_and_only_one_user_floods() -> None:
    assert {user.tier for user in USERS} == {"free", "pro", "pro_plus", "enterprise"}
    assert sum(user.tier == "free" and not user.floods for user in USERS) > 1
    assert the_flood().tier == "free"
    assert tier_of("emma") == "enterprise"
    assert tier_of("a stranger") is None


def test_an_order_survives_the_way_to_the_sender() -> None:
    order = Order(1.5, "paul", "json", True)

    assert Order(**order.as_json()) == order
    assert order.jobs == 2


def test_a_machine_without_packages_is_an_error_that_says_so() -> None:
    with pytest.raises(NothingToAnalyze, match="got: none that fits"):
        plan_load([], 1, seed=1)
