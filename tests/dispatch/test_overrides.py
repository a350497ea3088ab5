"""Numbers that an operator puts in the place of a key's own act on what waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.config.policy import RateLimitPolicy
from tests.dispatch.conftest import assert_nothing_left
from tests.dispatch.test_shared_limits import KINDS, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

API = RateLimitPolicy("api.example.com", concurrency=1)
#: A module that Python imports first. Its worker claims when something wakes it, not once a second.
SLEEPS_LONG = """
from celery_fairness.store import library as module
library = module.build({"SLEEP_MS": 600_000})
module.library = lambda: library
from celery_fairness.transport import schemes
schemes.LONGEST_WAIT_SECONDS = schemes.Transport.brpop_timeout = 600.0
"""


@pytest.fixture
def fairness(fair_shop: Shop) -> Fairness:
    """The installation, as an operator's process has it."""
    return Fairness.of(fair_shop.app)


@pytest.fixture
def keeps() -> Iterator[RedisServer]:
    """A Redis that keeps what it knows, and may be killed."""
    with RedisServer(args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        yield server


def test_a_raised_number_starts_what_waits(
    fair_shop: Shop, fairness: Fairness, memory: Redis
) -> None:
    fair_shop.worker(app=KINDS, concurrency=3)
    gate = fair_shop.gate_file()
    sent = [send(fair_shop, f"4{n}", API, gate=str(gate)) for n in range(3)]
    eventually(lambda: fairness.limits.inspect(API.key).waited and fair_shop.ledger("start"))
    assert fairness.limits.inspect(API.key).held == 1
    fairness.limits.override(API.key, concurrency=3, reason="a test")
    eventually(lambda: len(fair_shop.ledger("start")) == 3)
    assert not fairness.check().findings
    assert fairness.limits.clear_override(API.key)
    gate.touch()
    assert [each.get(timeout=RESULT_SECONDS) for each in sent] == ["done"] * 3
    assert_nothing_left(memory)


def test_a_pattern_starts_what_waits_at_each_key_and_ends_by_itself(
    make_fair_shop: Callable[..., Shop], memory: Redis, tmp_path: Path
) -> None:
    """The worker looks at nothing once a second, so only a wake-up starts a waiting task."""
    (tmp_path / "sitecustomize.py").write_text(SLEEPS_LONG)
    # A claim sleeps for at most a third of a lease.
    shop = make_fair_shop(fairness={"lease_seconds": 3_600})
    worker = shop.worker(app=KINDS, concurrency=6, env={"PYTHONPATH": str(tmp_path)})
    limits, gate = shop.fairness.limits, shop.gate_file()
    keys = [RateLimitPolicy(f"api.{name}", concurrency=1) for name in ("one", "two")]
    sent = [send(shop, f"4{n}", keys[n % 2], gate=str(gate)) for n in range(6)]
    eventually(lambda: len(shop.ledger("start")) == 2)
    eventually(lambda: [limits.inspect(key.key).waiting_count for key in keys] == [2, 2])

    assert limits.override("api.*", concurrency=2, for_seconds=3_600).override
    eventually(lambda: len(shop.ledger("start")) == 4)
    assert [limits.inspect(key.key).held for key in keys] == [2, 2]

    assert limits.override("api.*", concurrency=0, for_seconds=1)
    gate.touch()
    # It replaces the first one, so its end leaves the numbers of the tasks.
    assert [each.get(timeout=RESULT_SECONDS) for each in sent] == ["done"] * 6
    assert [limits.inspect(key.key).override for key in keys] == [None, None]
    assert_nothing_left(memory)
    # Its channel would wait for the server before it closes.
    worker.kill()


def test_a_paused_tenant_waits_until_its_time(fair_shop: Shop, fairness: Fairness) -> None:
    fair_shop.worker(app=KINDS, concurrency=2)
    fairness.tenants.pause("42")
    waits, other = send(fair_shop, "42"), send(fair_shop, "43")
    assert other.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["user"] for entry in fair_shop.ledger("start")] == ["43"]
    # Another pause stands in the place of the one before, and this one ends by itself.
    assert fairness.tenants.pause("42", for_seconds=0.5).pause_seconds
    assert waits.get(timeout=RESULT_SECONDS) == "done"
    assert not fairness.limits.inspect("tenant:42").holds.paused


def test_s44_rlr004_overrides_and_pauses_survive_a_restart_of_redis_and_of_the_worker(
    keeps: RedisServer, make_shop: Callable[..., Shop]
) -> None:
    # Results are in another Redis, which goes on.
    shop = make_shop(variables={"CELERY_BROKER_URL": f"fair{keeps.url}"})
    fairness = shop.fairness
    worker = shop.worker(app=KINDS, concurrency=4)
    mail, paused = (RateLimitPolicy(key, concurrency=5) for key in ("mail", "paused"))
    fairness.limits.override(API.key, concurrency=2, rate="9/PT1H", reason="a test", by="me")
    fairness.limits.override(mail.key, concurrency=0, for_seconds=3_600)
    fairness.tenants.pause("43")
    fairness.limits.pause(paused.key)
    said = [fairness.limits.inspect(key).override for key in (API.key, mail.key)]
    held = [send(shop, "41", mail), send(shop, "43"), send(shop, "42", paused)]

    def nothing_else_starts() -> None:
        """Whoever is not stopped is served, so whoever was put before has been looked at."""
        before = len(shop.ledger("start"))
        assert send(shop, "44").get(timeout=RESULT_SECONDS) == "done"
        assert [entry["user"] for entry in shop.ledger("start")[before:]] == ["44"]
        assert [fairness.limits.inspect(key).override for key in (API.key, mail.key)] == said
        assert fairness.limits.inspect("tenant:43").holds.paused
        assert fairness.limits.inspect(paused.key).holds.paused

    nothing_else_starts()
    keeps.kill()
    keeps.restart()
    nothing_else_starts()
    worker.terminate()
    shop.worker(app=KINDS, concurrency=4)
    nothing_else_starts()
    gate = shop.gate_file()
    raised: list[AsyncResult[Any]] = [send(shop, f"5{n}", API, gate=str(gate)) for n in range(3)]
    eventually(lambda: len(shop.ledger("start")) == 5)
    assert fairness.limits.inspect(API.key).held == 2
    nothing_else_starts()
    assert fairness.limits.inspect(API.key).rate.current_count == 2
    gate.touch()
    assert fairness.limits.clear_override(mail.key)
    fairness.tenants.resume("43")
    fairness.limits.resume(paused.key)
    assert [each.get(timeout=RESULT_SECONDS) for each in (*held, *raised)] == ["done"] * 6
    assert set(shop.runs().values()) == {1}
