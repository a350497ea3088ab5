"""How many may wait, as the settings say it, and what a message is told of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_fairness import FairTask
from celery_fairness.app.task import follows
from celery_fairness.config.numbers import MAX_WAITING
from celery_fairness.config.queue_policy import QueuePolicy
from celery_fairness.config.settings import build_settings
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import SettingsError
from celery_fairness.scheduler.types import Bounds
from celery_fairness.transport.envelope import waiting_of
from celery_fairness.transport.options import bounds_of
from tests.support.numbers import listed

NAME = "expected text in valid UTF-8 that is not empty and does not begin with @parked:"
SETTINGS = build_settings(
    {"tiers": {"free": {"max_waiting": 7}}, "queues": {"jobs": {"max_waiting": 9}}}
)


@pytest.mark.parametrize("most", [1, MAX_WAITING, None])
def test_a_bound_that_can_be_meant_is_kept(most):
    settings = build_settings(
        {"tiers": {"free": {"max_waiting": most}}, "queues": {"jobs": {"max_waiting": most}}}
    )
    assert settings.tiers["free"].max_waiting == most
    assert settings.queues == {"jobs": QueuePolicy(max_waiting=most)}
    assert (
        build_settings({"queues": {"jobs": QueuePolicy(max_waiting=most)}}).queues
        == settings.queues
    )


@pytest.mark.parametrize("most", [0, -1, MAX_WAITING + 1, True, 2.0, "5"])
def test_another_one_is_an_error_that_names_it(most):
    expected = "max_waiting: expected a whole number from 1 to 1000000000, or None"
    with pytest.raises(SettingsError, match=f"fairness.tiers: free: {expected}"):
        build_settings({"tiers": {"free": {"max_waiting": most}}})
    with pytest.raises(SettingsError, match=f"fairness.queues: jobs: {expected}"):
        build_settings({"queues": {"jobs": {"max_waiting": most}}})
    with pytest.raises(ValueError, match=expected):
        Tier("free", 1, max_waiting=most)


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        ([], "expected a mapping of queue names to their fields, got: []"),
        ({"jobs": 5}, "jobs: expected a mapping of fields, got: 5"),
        (
            {"jobs": {"max": 5}},
            (
                f"jobs: expected one of {listed('queue')}, partition, on_limit, "
                "by_args, by_kind, missing, max_waiting, got: 'max'"
            ),
        ),
        ({"": {}}, f"queue name: {NAME}, got: ''"),
        ({3: {}}, f"queue name: {NAME}, got: 3"),
        ({"@parked:jobs": {}}, f"queue name: {NAME}, got: '@parked:jobs'"),
        ({"\ud800": {}}, f"queue name: {NAME}, got: '\\ud800'"),
    ],
)
def test_what_is_said_of_a_queue_is_understood_or_rejected(queues, problem):
    with pytest.raises(SettingsError) as caught:
        build_settings({"queues": queues})
    assert str(caught.value) == f"fairness.queues: {problem}"


@pytest.mark.parametrize(
    ("queue", "tier", "bounds"),
    [
        ("jobs", "free", Bounds("free", 7, 9)),
        ("other", "pro", Bounds("free", None, None)),
        ("other", "gold", Bounds("free", 7, None)),
        ("other", "", Bounds("free", 7, None)),
    ],
)
def test_a_tier_that_is_not_known_has_the_bound_of_the_default_tier(queue, tier, bounds):
    assert bounds_of(SETTINGS, queue, tier) == bounds


@pytest.mark.parametrize("enabled", [False, "observe"])
def test_where_nothing_is_enforced_nothing_is_bounded(enabled):
    settings = build_settings({"enabled": enabled, "queues": {"jobs": {"max_waiting": 9}}})
    assert bounds_of(settings, "jobs", "free") is None


@pytest.mark.parametrize(
    ("headers", "bounds"),
    [
        ({"task": "shop.t", "retries": 0}, Bounds("free", 7, 9)),
        (None, Bounds("free", 7, 9)),
        ({"task": "shop.t", "retries": 1}, None),
        ({"task": "shop.t", "replaced_task_nesting": 1}, None),
        ({"task": "shop.t", "fairness_accepted": True}, None),
        ({"task": "celery.chord_unlock"}, None),
    ],
)
def test_what_was_accepted_before_is_bounded_by_nothing(headers, bounds):
    properties = {"delivery_tag": "t1", "delivery_info": {"exchange": ""}}
    message = {"headers": headers, "properties": properties}
    assert waiting_of("jobs", message, SETTINGS).bounds == bounds


RUNNING = SimpleNamespace(id="id1", errbacks=[{"task": "shop.errback"}, "odd"])


@pytest.mark.parametrize(
    ("running", "name", "headers", "body", "expected"),
    [
        (None, "shop.t", {"id": "id2"}, (), False),
        (None, "shop.t", {"id": "id2", "parent_id": "id1"}, (), True),
        (None, "shop.t", {}, {"retries": 1}, True),
        (RUNNING, "shop.t", {"id": "id2", "parent_id": "id1"}, (), False),
        (RUNNING, "shop.t", {"id": "id1"}, (), True),
        (RUNNING, "shop.errback", {"id": "id2", "parent_id": "id1"}, (), True),
    ],
)
def test_what_follows_a_task_is_told_from_what_its_body_sends(
    running, name, headers, body, expected
):
    parent = None if running is None else SimpleNamespace(name="shop.t", request=running)
    app = SimpleNamespace(current_worker_task=parent)
    assert follows(app, name, headers, body) is expected


def test_s54_on_the_gate_nothing_is_rejected_for_the_broker_does_not_count(make_shop):
    shop = make_shop({"tiers": {"free": {"max_waiting": 1}}, "default_tier": "free"})

    @shop.task(base=FairTask, tenant="user", name="shop.fair")
    def fair(user=None):
        return user

    for _ in range(3):
        fair.delay(user="42")
    assert len(shop.published()) == 3
