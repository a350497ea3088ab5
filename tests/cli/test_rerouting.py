"""A change of a tenant's tier, or of a tier's class of queue, acts on what waits."""

from __future__ import annotations

import hashlib
import json

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.tenants import key_part
from celery_fairness.config.tiers import DEFAULT_TIERS, Tier
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Bounds, Settle, Settled, Verdict, Waiting

DEFAULT, PRIORITY, SCHEDULED = "pdf_default", "pdf_priority", "pdf_scheduled"
FAR_MS = 9_000_000_000_000


@pytest.fixture
def orders(shop, client):
    """Return the tasks of a queue in the order in which they start."""

    def claim_all(queue):
        found = []
        while tasks := shop.claim(queue=queue):
            for task in tasks:
                found.append(json.loads(task.message)["headers"]["id"])
                shop.settle(task)
        return found

    return claim_all


def send(shop, task_id, tenant="42", queue=DEFAULT, header=None, **fields):
    """Put a task as a producer does that routes it by its tier."""
    fairness = {"v": 1, "tenant": tenant, "tier": "free", "service": "pdf", "scheduled": False}
    fairness |= header or {}
    headers = {"id": task_id, "task": "shop.work", "fairness": fairness}
    fields = {"tier": "free", "kind": "shop.work", "task_id": str(task_id)} | fields
    tag = "tag-" + hashlib.sha1(str(task_id).encode(), usedforsecurity=False).hexdigest()[:8]
    message = json.dumps({"body": "", "headers": headers})
    waiting = Waiting(queue, tag, key_part(tenant), message=message, **fields)
    shop.run(calls.PUT, calls.put_args(waiting))


def test_what_waits_goes_to_the_queue_of_the_new_tier_in_its_order(shop, fairness, orders, check):
    for number in range(120):
        send(shop, number, rank=number % 2)
    send(shop, "of-another", "43")
    fairness.tenants.set_tier("42", "pro")
    assert not check().findings
    assert orders(PRIORITY) == [*range(1, 120, 2), *range(0, 120, 2)]
    assert orders(DEFAULT) == ["of-another"]


def test_there_and_back_is_as_before(shop, fairness, orders):
    fairness.tenants.set_tier("42", "pro")
    for number in range(5):
        send(shop, number, queue=PRIORITY)
    fairness.tenants.set_tier("42", "free")
    send(shop, 5)
    fairness.tenants.set_tier("42", "enterprise")
    send(shop, 6, queue=PRIORITY)
    fairness.tenants.set_tier("42", "free")
    assert (orders(PRIORITY), orders(DEFAULT)) == ([], list(range(7)))


def place_later(shop):
    send(shop, "first", eta_ms=FAR_MS)


def place_back(shop):
    send(shop, "first")
    (task,) = shop.claim(queue=DEFAULT)
    shop.settle(task, Verdict.HEAD)


def place_expiring(shop):
    send(shop, "first", expires_ms=FAR_MS)


def place_later_expiring(shop):
    send(shop, "first", eta_ms=FAR_MS, expires_ms=FAR_MS - 1)


def place_full(shop):
    send(shop, "runs", queue="celery")
    assert len(shop.claim()) == 1
    send(shop, "first")
    assert not shop.claim(queue=DEFAULT)


def place_parked(shop):
    send(shop, "first", limits=write_limits((Limit("api", concurrency=0),)))
    assert not shop.claim(queue=DEFAULT)


def place_parked_alone(shop):
    send(
        shop,
        "first",
        limits=write_limits(
            (Limit("own:42", concurrency=0, private=True), Limit("api", concurrency=1))
        ),
    )
    assert not shop.claim(queue=DEFAULT)


def place_parked_twice(shop):
    for number in range(3):
        send(
            shop,
            f"n{number}",
            limits=write_limits((Limit(f"api-{number}", concurrency=0),)),
            rank=number,
        )
    place_parked(shop)


PLACES = [
    *(place_later, place_back, place_expiring, place_later_expiring),
    *(place_full, place_parked, place_parked_alone, place_parked_twice),
]


@pytest.mark.parametrize("place", PLACES)
def test_a_task_moves_from_wherever_it_waits(shop, fairness, client, check, place):
    place(shop)
    waited = sum(shop.run(calls.SIZE, calls.size_args(DEFAULT)))
    before = client.zrange(shop.key(f"scheduled:{DEFAULT}"), 0, -1, withscores=True)
    fairness.tenants.set_tier("42", "pro")
    assert sum(shop.run(calls.SIZE, calls.size_args(DEFAULT))) == 0
    assert sum(shop.run(calls.SIZE, calls.size_args(PRIORITY))) == waited
    assert client.zrange(shop.key(f"scheduled:{PRIORITY}"), 0, -1, withscores=True) == before
    assert not check().findings
    left = {key.split(":")[1] for key in client.keys("*" + DEFAULT)}
    assert left <= {"debts", "wakeup", "wakeup_leftover"}, left


@pytest.mark.parametrize(
    ("queue", "header"),
    [
        ("celery", {}),
        ("html_default", {}),
        (SCHEDULED, {"scheduled": True}),
        (DEFAULT, {"scheduled": True}),
        (DEFAULT, {"service": None}),
        (DEFAULT, {"service": "html"}),
        (DEFAULT, {"v": 2}),
        ("_default", {"service": ""}),
    ],
)
def test_what_is_not_routed_by_its_tier_stays(shop, fairness, orders, queue, header):
    for number in range(3):
        send(shop, number, queue=queue, header=header)
    if queue == DEFAULT:
        send(shop, "routed", queue=queue)
    fairness.tenants.set_tier("42", "pro")
    assert orders(queue) == [0, 1, 2]


def test_many_that_stay_hide_none_that_move(shop, fairness, orders):
    for number in range(130):
        send(shop, number, header={"service": "html"} if number % 40 else {})
    fairness.tenants.set_tier("42", "pro")
    assert orders(PRIORITY) == [0, 40, 80, 120]
    assert orders(DEFAULT) == [number for number in range(130) if number % 40]


def test_what_nobody_can_read_stays(shop, fairness):
    for number, message in enumerate(["no JSON", "{}", '{"headers": 3}', "[" * 5000]):
        waiting = Waiting(DEFAULT, f"t{number}", "42", tier="free", message=message)
        shop.run(calls.PUT, calls.put_args(waiting))
    fairness.tenants.set_tier("42", "pro")
    assert shop.run(calls.SIZE, calls.size_args(DEFAULT)) == [4, 0]


@pytest.mark.parametrize("tenant", ["Ünïcode", "a b", "*", "h_0", "_none", "x" * 150, "42:pdf"])
def test_a_hostile_tenant_moves_alone(shop, fairness, orders, tenant):
    send(shop, "its", tenant)
    send(shop, "of-another", "42")
    fairness.tenants.set_tier(tenant, "pro")
    assert orders(PRIORITY) == ([] if tenant == "_none" else ["its"])
    assert "of-another" in orders(DEFAULT)


def test_each_service_has_its_own_queues(shop, make_fairness, orders):
    fairness = make_fairness(fairness={"tier_scope": "service"})
    for service in ("pdf", "html"):
        queue = f"{service}_default"
        send(shop, service, queue=queue, service=service, header={"service": service})
    fairness.tenants.set_tier("42", "pro")
    assert (orders("pdf_priority"), orders("html_priority")) == (["pdf"], ["html"])


def test_a_tier_of_another_class_takes_its_tenants_along(shop, fairness, orders, check):
    for number, (tenant, tier) in enumerate([("42", "pro"), ("43", "enterprise"), ("44", "pro")]):
        send(shop, number, tenant, PRIORITY, tier=tier)
    send(shop, "later", "42", PRIORITY, tier="pro", eta_ms=FAR_MS)
    fairness.tenants.set_tier("44", "enterprise")
    tiers = {**DEFAULT_TIERS, "pro": Tier("pro", 3)}
    fairness.tenants.publish_tiers(tiers.values())
    assert not check().findings
    assert shop.run(calls.SIZE, calls.size_args(DEFAULT)) == [1, 1]
    assert (orders(DEFAULT), orders(PRIORITY)) == ([0], [1, 2])


def test_a_tier_that_is_gone_is_the_default_one(shop, fairness, orders):
    send(shop, 1, "42", PRIORITY, tier="pro")
    fairness.tenants.publish_tiers(tier for name, tier in DEFAULT_TIERS.items() if name != "pro")
    assert orders(DEFAULT) == [1]


def test_a_caller_who_gave_the_queue_is_left_alone_by_other_news(shop, fairness, orders):
    send(shop, 1, queue=PRIORITY)
    fairness.tenants.publish_tiers(DEFAULT_TIERS.values())
    fairness.tenants.set_tier("43", "pro")
    fairness.tenants.publish_tiers([*DEFAULT_TIERS.values(), Tier("gold", 7, 2.0, "priority")])
    assert orders(PRIORITY) == [1]


def test_an_end_that_comes_late_finds_its_task_where_it_went(shop, fairness, client):
    send(shop, "first")
    (task,) = shop.claim(queue=DEFAULT)
    shop.settle(task, Verdict.HEAD)
    fairness.tenants.set_tier("42", "pro")
    args = calls.settle_args([Settle(task.lease, Verdict.DONE)], calls.Rules())
    assert calls.read_settle(shop.run(calls.SETTLE, args)) == [Settled.WITHDRAWN]
    assert shop.find("first") == []
    assert client.keys(shop.key("lane:*")) == []


def test_what_moves_is_rejected_by_no_bound(shop, fairness):
    for number in range(3):
        send(shop, number, bounds=Bounds(of_queue=5))
        send(shop, f"p{number}", "43", PRIORITY, bounds=Bounds(of_queue=3))
    fairness.tenants.set_tier("42", "pro")
    assert shop.run(calls.SIZE, calls.size_args(PRIORITY)) == [6, 0]


def test_elsewhere_nothing_moves(make_fairness, redis_url):
    fairness = make_fairness(url=redis_url)
    fairness.tenants.set_tier("42", "pro")
    assert fairness.tenants.reroute(["42"]) == 0


def test_a_task_does_not_move_where_it_is(shop, client):
    send(shop, "first")
    tags = client.hkeys(shop.key("tasks"))
    before = client.hgetall(shop.key("tasks"))
    args = calls.reroute_args(DEFAULT, [(tag, "") for tag in tags])
    assert calls.read_done(shop.run(calls.REROUTE, args)) == [False]
    assert client.hgetall(shop.key("tasks")) == before
