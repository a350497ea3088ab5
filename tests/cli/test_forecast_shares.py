"""When a task is expected to start where tenants share places and limits unlike each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from tests.cli.test_forecast import RULES, agree, load

__all__ = ["load"]


@pytest.mark.parametrize(("tenants", "places"), [(9, 2), (20, 4), (3, 10)])
@pytest.mark.parametrize("place", [0, 2])
def test_behind_its_tenants_limit_where_places_are_short(load, fairness, tenants, places, place):
    made = load(places, {"work": 2_000})
    for number in range(20):
        for tenant in range(tenants):
            made.put(f"t{tenant}", f"t{tenant}-{number}", tier="one")
    made.play(13_000)
    runs = [task.lease.rpartition(".")[0].rpartition(".")[0] for _, task in made.runs]
    tenant, _, number = runs[0].partition("-")
    found = agree(fairness, made, f"{tenant}-{int(number) + 1 + place}")
    assert [each.key for each in found.blocked_by] == [f"tenant:{tenant}"]


def test_who_is_at_a_small_limit_takes_no_more_than_that(load, fairness):
    made = load(20, {"work": 2_000})
    for number in range(300):
        made.put("large", f"large-{number}")
    for tenant in range(10):
        for number in range(60):
            made.put(f"t{tenant}", f"t{tenant}-{number}", tier="one")
    made.play(9_000)
    agree(fairness, made, "large-150")


@pytest.mark.parametrize(("tier", "number"), [("free", 1), ("one", None)])
def test_an_override_replaces_the_number_of_a_tenants_tier(load, fairness, tier, number):
    made = load(20, {"work": 2_000})
    for tenant in range(10):
        fairness.limits.override(f"tenant:t{tenant}", concurrency=number)
        for task in range(60):
            made.put(f"t{tenant}", f"t{tenant}-{task}", tier=tier)
    for task in range(300):
        made.put("large", f"large-{task}")
    made.play(9_000)
    agree(fairness, made, f"large-{len(made.started) + 50 if number else 50}")


def test_who_is_paused_goes_before_nobody(load, fairness):
    made = load(2, {"work": 2_000})
    for tenant in "abcdefgh":
        for number in range(20):
            made.put(tenant, f"{tenant}-{number}")
    for tenant in "cdefgh":
        fairness.limits.pause(f"tenant:{tenant}")
    made.play(9_000)
    agree(fairness, made, "a-12")


@pytest.mark.parametrize("task_id", ["cheap-30", "dear-5"])
def test_who_has_dear_tasks_goes_behind_cheap_ones(load, make_fairness, task_id):
    made = load(4, {"work": 2_000}, rules=replace(RULES, fairness_by="cost"))
    for number in range(200):
        made.put("cheap", f"cheap-{number}", cost=1.0)
        made.put("dear", f"dear-{number}", cost=10.0)
    made.play(5_000)
    agree(make_fairness(fairness={"fairness_by": "cost"}), made, task_id)


@pytest.mark.parametrize("task_id", ["cheap-20", "dear-4"])
def test_dear_tasks_at_a_limit_that_tenants_share(load, make_fairness, task_id):
    made = load(10, {"pay": 2_000}, rules=replace(RULES, fairness_by="cost"))
    api = write_limits((Limit("api", concurrency=2),))
    for number in range(60):
        made.put("cheap", f"cheap-{number}", kind="pay", cost=1.0, limits=api)
        made.put("dear", f"dear-{number}", kind="pay", cost=10.0, limits=api)
    made.play(5_000)
    agree(make_fairness(fairness={"fairness_by": "cost"}), made, task_id)


@pytest.mark.parametrize(("kind", "place"), [("short", 3), ("short", 30), ("long", 3), ("long", 8)])
def test_short_tasks_beside_long_ones(load, make_fairness, kind, place):
    made = load(4, {"short": 500, "long": 5_000}, rules=replace(RULES, fairness_by="runtime"))
    for number in range(200):
        made.put("short", f"short-{number}", kind="short")
        made.put("long", f"long-{number}", kind="long")
    made.play(16_000)
    started = sum(each.startswith(kind) for each in made.started)
    agree(make_fairness(fairness={"fairness_by": "runtime"}), made, f"{kind}-{started + place}")


def test_an_open_limit_lets_no_more_start_than_it_says(load, fairness):
    made = load(10, {"pay": 2_000})
    api = write_limits((Limit("api", concurrency=3),))
    for number in range(80):
        made.put("small", f"small-{number}", kind="pay", tier="one", limits=api)
        if number < 3:
            for other in range(6):
                made.put(f"o{other}", f"o{other}-{number}", kind="pay", limits=api)
    made.play(5_000)
    while any(task.key.startswith("tenant:small") for _, task in made.runs):
        made.step()
    found = agree(fairness, made, "small-40")
    assert [each.key for each in found.blocked_by] == ["api"]


@pytest.mark.parametrize(
    "limit", [Limit("mail", rate=((5, 10_000),)), Limit("mail", throttle=((5, 10_000),))]
)
def test_an_open_rate_lets_no_more_start_than_it_says(load, fairness, limit):
    made = load(1, {"work": 500})
    for number in range(4):
        made.put("b", f"b{number}")
    made.play(1_300)
    for number in range(20):
        made.put("a", f"t{number}", limits=write_limits((limit,)))
    assert len(made.runs) == 1
    assert agree(fairness, made, "t18").blocked_by == ()
