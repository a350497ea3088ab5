"""What an app's settings say reaches its own puts and claims, and no other app's."""

from __future__ import annotations

import json
import pickle
import time

import pytest

from celery_fairness import BacklogFull, Fairness, RateLimitPolicy
from tests.support.parts import parts_of
from tests.support.shop import make_app


@pytest.fixture
def make_fairness(redis_url):
    """A factory: ``make_fairness(snooze_seconds=7)``."""
    made = []

    def make(**settings):
        environ = {
            "CELERY_BROKER_URL": f"fair{redis_url}",
            "SHOP_FAIRNESS": json.dumps({"tiers": {"free": {"concurrency": None}}} | settings),
        }
        made.append(Fairness.of(make_app(environ)))
        return made[-1]

    yield make
    for each in made:
        each.close()
        parts_of(each).app.close()


def send(fairness, tenant, cost=1, **options):
    headers = {"fairness": {"v": 1, "tenant": tenant, "cost": cost}}
    return parts_of(fairness).app.send_task("shop.plain", headers=headers, **options)


@pytest.fixture
def claim():
    """Claim tasks as a consumer without a worker, and return their tenants."""
    connections = []

    def tenants(fairness, want):
        connections.append(parts_of(fairness).app.connection_for_read())
        channel = connections[-1].default_channel
        claimed = [channel.basic_get("celery") for _ in range(want)]
        return "".join(each.headers["fairness"]["tenant"] for each in claimed if each)

    yield tenants
    for each in connections:
        each.close()


@pytest.mark.parametrize(("by", "order"), [("tasks", "abab"), ("cost", "abba")])
def test_a_claim_charges_what_the_settings_say(make_fairness, claim, by, order):
    fairness = make_fairness(fairness_by=by)
    for tenant, cost in (("a", 10), ("a", 1), ("b", 1), ("b", 1)):
        send(fairness, tenant, cost)
    assert claim(fairness, 4) == order


def test_more_may_not_wait_in_a_queue_than_the_settings_say(make_fairness):
    fairness = make_fairness(queues={"celery": {"max_waiting": 1}})
    send(fairness, "a")
    with pytest.raises(BacklogFull) as told:
        send(fairness, "b")
    assert (told.value.key, told.value.limit) == ("queue:celery", 1)
    send(fairness, "b", queue="other")


@pytest.mark.parametrize(("snooze", "longest"), [(2, 2), (30, 7)])
def test_tasks_that_are_tried_again_wait_a_snooze_of_the_settings_at_most(
    make_fairness, claim, snooze, longest
):
    fairness = make_fairness(snooze_seconds=snooze)
    limit = RateLimitPolicy("api", concurrency=1, on_limit="reschedule").to_ojs()
    headers = {"fairness": {"v": 1, "tenant": "a", "limits": [limit]}}
    sent = [parts_of(fairness).app.send_task("shop.plain", headers=headers) for _ in range(8)]
    claims_at = time.monotonic()
    assert claim(fairness, 2) == "a"
    # One after the other, a second apart, as nobody knows yet how long a task takes.
    due = max(fairness.tasks.explain(each.id).due_in_seconds or 0 for each in sent[1:])
    passed = time.monotonic() - claims_at
    assert longest - 1 - passed < due < longest + 1


def test_two_apps_of_one_process_and_address_publish_by_their_own_settings(make_fairness, claim):
    one, other = make_fairness(namespace="one"), make_fairness(namespace="other")
    send(one, "a")
    send(other, "b")
    assert claim(one, 2) == "a"
    assert claim(other, 2) == "b"


def test_apps_share_a_pool_where_their_settings_are_the_same(make_fairness):
    one, same, other = make_fairness(), make_fairness(), make_fairness(snooze_seconds=7)
    assert parts_of(one).app.pool is parts_of(same).app.pool
    assert parts_of(one).app.pool is not parts_of(other).app.pool


def test_a_copy_of_an_apps_configuration_has_its_settings(make_fairness):
    fairness = make_fairness(snooze_seconds=7)
    option = parts_of(fairness).app.conf.broker_transport_options["fairness"]
    copied = pickle.loads(pickle.dumps(option))
    assert copied.read() == fairness.settings
    assert repr(copied) == repr(option)


def test_what_tells_settings_apart_shows_none_of_them(make_fairness):
    fairness = make_fairness(namespace="secret")
    option = parts_of(fairness).app.conf.broker_transport_options["fairness"]
    assert repr(option).startswith("<settings of celery_fairness, ")
    assert "secret" not in repr(option)
    wrong = make_fairness(snooze_seconds=-1)
    assert repr(parts_of(wrong).app.conf.broker_transport_options["fairness"])
