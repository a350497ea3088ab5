"""Numbers that an operator puts in the place of a key's own act on what waits."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.policy import RateLimitPolicy
from tests.dispatch.conftest import assert_nothing_left
from tests.dispatch.test_shared_limits import KINDS, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

API = RateLimitPolicy("api.example.com", concurrency=1)


@pytest.fixture
def fairness(fair_shop: Shop) -> Fairness:
    """The installation, as an operator's process has it."""
    return Fairness.of(fair_shop.app)


def test_a_raised_number_starts_what_waits(
    fair_shop: Shop, fairness: Fairness, memory: Redis
) -> None:
    fair_shop.worker(app=KINDS, concurrency=3)
    gate = fair_shop.gate_file()
    sent = [send(fair_shop, f"4{n}", API, gate=str(gate)) for n in range(3)]
    eventually(lambda: fairness.inspect(API.key).waited and fair_shop.ledger("start"))
    assert fairness.inspect(API.key).held == 1
    fairness.override(API.key, concurrency=3, reason="a test")
    eventually(lambda: len(fair_shop.ledger("start")) == 3)
    assert not fairness.audit().findings
    assert fairness.clear_override(API.key)
    gate.touch()
    assert [each.get(timeout=RESULT_SECONDS) for each in sent] == ["done"] * 3
    assert_nothing_left(memory)


def test_a_paused_tenant_waits_until_its_time(fair_shop: Shop, fairness: Fairness) -> None:
    fair_shop.worker(app=KINDS, concurrency=2)
    fairness.pause("42")
    waits, other = send(fair_shop, "42"), send(fair_shop, "43")
    assert other.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["user"] for entry in fair_shop.ledger("start")] == ["43"]
    # Another pause stands in the place of the one before, and this one ends by itself.
    assert fairness.pause("42", expires_in=0.5).pause_seconds
    assert waits.get(timeout=RESULT_SECONDS) == "done"
    assert not fairness.inspect("tenant:42").stops.paused
