"""A key that is paused or cools down lets nothing start, for any worker, tenant or queue."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.config.policy import RateLimitPolicy
from tests.dispatch.conftest import PREFIX, assert_nothing_left
from tests.dispatch.test_shared_limits import KINDS, POOLS, send, starts
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import at_most, eventually

API = RateLimitPolicy("api.example.com", concurrency=5)
#: As the task's body says.
COOL_SECONDS = 2.0
#: How long it takes at most from the end of a body until its keys cool down.
SAID_SECONDS = at_most(1.5)
#: What stands before the time in the reason of a cool-down, by how the body says it.
WHEN = {"429": ", retry after ", "429_until": " until ", "429_until_unix": " until "}
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def fairness(fair_shop: Shop) -> Fairness:
    """The installation, as an operator's process has it."""
    return Fairness.of(fair_shop.app)


def test_a_paused_key_waits_and_what_runs_runs_on(
    fair_shop: Shop, fairness: Fairness, memory: Redis
) -> None:
    worker = fair_shop.worker(app=KINDS, concurrency=3)
    gate = fair_shop.gate_file()
    first = send(fair_shop, "41", API, gate=str(gate))
    eventually(lambda: len(fair_shop.ledger("start")) == 1)
    assert fairness.limits.pause(API.key).paused
    waits = send(fair_shop, "42", API)
    assert send(fair_shop, "42").get(timeout=RESULT_SECONDS) == "done"
    gate.touch()
    assert first.get(timeout=RESULT_SECONDS) == "done"
    (waited,) = eventually(lambda: fairness.limits.inspect(API.key).waited)
    assert (waited.state, fairness.limits.inspect(API.key).holds.paused) == ("paused", True)
    assert not fairness.check().findings
    assert not fairness.limits.resume(API.key).paused
    assert waits.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)
    assert "Traceback" not in worker.log_text()


def test_a_cool_down_ends_by_itself_or_is_ended(fair_shop: Shop, fairness: Fairness) -> None:
    fair_shop.worker(app=KINDS, concurrency=3)
    asked_at = time.time()
    until = datetime.now(UTC) + timedelta(seconds=COOL_SECONDS)
    holds = fairness.limits.cool_down(API.key, until=until, reason="a test")
    assert holds.cool_down_seconds <= COOL_SECONDS
    assert send(fair_shop, "42", API).get(timeout=RESULT_SECONDS) == "done"
    (began,) = starts(fair_shop)
    assert COOL_SECONDS - 0.01 <= began - asked_at < at_most(COOL_SECONDS + 2)
    assert fairness.limits.cool_down(API.key, until=time.time() + 3_600).cool_down_seconds > 3_000
    waits = send(fair_shop, "42", API)
    assert send(fair_shop, "42").get(timeout=RESULT_SECONDS) == "done"
    assert fairness.limits.clear_cool_down(API.key).cool_down_seconds == 0
    assert waits.get(timeout=RESULT_SECONDS) == "done"


@pytest.mark.parametrize("pool", POOLS)
def test_a_body_that_met_a_429_cools_its_keys_down_and_runs_again_without_a_retry(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop()
    worker = shop.worker(app=KINDS, pool=pool, concurrency=1 if pool == "solo" else 2)
    met = send(shop, "41", API, name="fair", how="429")
    # The body has ended before its worker says so.
    eventually(lambda: memory.exists(f"{PREFIX}cool_downs") == 1)
    others = [send(shop, "42", API), send(shop, "43", API)]
    for result in (met, *others):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    first, *later = starts(shop)
    assert len(later) == 3
    assert later[0] - first >= COOL_SECONDS - 0.01
    assert [entry["retries"] for entry in shop.ledger("start") if entry["id"] == met.id] == [0, 0]
    assert "api.example.com cools down for" in worker.log_text()
    eventually(lambda: not memory.exists(f"{PREFIX}cool_downs"))
    assert_nothing_left(memory)


@pytest.mark.parametrize("how", ["429", "429_until", "429_until_unix"])
def test_s41_s49_d05_one_event_says_which_key_cools_down_until_when_and_why(
    fair_shop: Shop, fairness: Fairness, memory: Redis, how: str
) -> None:
    fair_shop.worker(app=KINDS, concurrency=1)
    met = send(fair_shop, "41", API, name="fair", how=how)
    assert met.get(timeout=RESULT_SECONDS) == "done"
    (event,) = fairness.events.read(types=["rate_limit.dynamic_adjusted"]).events
    assert event.data.keys() == {"key", "until", "reason"}
    assert event.data["key"] == API.key
    assert RFC_3339.fullmatch(event.data["until"])
    until = datetime.fromisoformat(event.data["until"]).timestamp()
    first, second = starts(fair_shop)
    ended = min(entry["at"] for entry in fair_shop.ledger("end"))
    # Events know milliseconds, and the worker needs a moment to say it.
    assert first + COOL_SECONDS - 0.001 <= until <= ended + COOL_SECONDS + SAID_SECONDS
    assert second >= until - 0.001
    why, _, when = event.data["reason"].partition(WHEN[how])
    assert why == "task kinds.fair: the limits of this task: too many requests"
    if how == "429":
        assert when == "2"
    else:
        asked = float(when) if how == "429_until_unix" else datetime.fromisoformat(when).timestamp()
        assert 0 <= until - asked + 0.001 <= SAID_SECONDS
    assert_nothing_left(memory)


@pytest.mark.parametrize("name", ["called", "retried"])
def test_a_429_is_heard_whatever_the_class_and_the_options_of_its_task_are(
    fair_shop: Shop, fairness: Fairness, memory: Redis, name: str
) -> None:
    worker = fair_shop.worker(app=KINDS, concurrency=2)
    # Of a policy, though a tenant's begins so.
    policy = RateLimitPolicy("tenant:acme-corp:reports", concurrency=5)
    met = fair_shop.send(name, "too_many", user="41", options={"limits": [policy]})
    worker.wait_for_log(f"{policy.key} cools down")
    waits = fair_shop.send(name, user="42", options={"limits": [policy]})
    assert fairness.limits.clear_cool_down(policy.key).cool_down_seconds == 0
    for result in (waits, met):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert {entry["retries"] for entry in fair_shop.ledger("start")} == {0}
    assert_nothing_left(memory)


def test_a_429_of_a_task_without_limits_is_its_own_matter(fair_shop: Shop, memory: Redis) -> None:
    fair_shop.worker(app=KINDS, concurrency=2)
    met = send(fair_shop, "41", name="fair", how="429")
    eventually(lambda: len(fair_shop.ledger("end")) == 1)
    assert send(fair_shop, "41", API).get(timeout=RESULT_SECONDS) == "done"
    assert len(fair_shop.ledger("start")) == 2
    assert not memory.exists(f"{PREFIX}cool_downs")
    assert met.get(timeout=RESULT_SECONDS) == "done"


def test_a_tenant_does_not_cool_down(fairness: Fairness) -> None:
    for change in (
        lambda: fairness.limits.cool_down("tenant:42", until=time.time() + 9),
        lambda: fairness.limits.clear_cool_down("tenant:42"),
    ):
        with pytest.raises(ValueError, match="a tenant is paused: fairness tenant pause TENANT"):
            change()


@pytest.mark.parametrize("key", ["_system", "", "a b", "a\nb", "x" * 256])
def test_what_is_no_limit_s_key_is_rejected(fairness: Fairness, key: str) -> None:
    for change in (
        lambda: fairness.limits.pause(key),
        lambda: fairness.limits.resume(key),
        lambda: fairness.limits.cool_down(key, until=time.time() + 9),
        lambda: fairness.limits.clear_cool_down(key),
    ):
        with pytest.raises(ValueError, match="key: expected the key of a limit"):
            change()
