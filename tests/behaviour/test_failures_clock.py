"""Redis is slow, its clock jumps, and two versions of the library work side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis

from celery_fairness import RateLimitPolicy
from celery_fairness.store.library import build, library
from tests.behaviour.conftest import PATHS
from tests.behaviour.test_library import NEXT_VERSION
from tests.dispatch.conftest import PREFIX
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.redis

HOUR_MS = 3_600_000


@pytest.mark.parametrize("path", PATHS)
def test_a_clock_that_jumps_by_an_hour_ends_no_lease_and_stops_no_task(
    make_shop: Callable[..., Shop], memory: Redis, path: str
) -> None:
    shop = make_shop(path, fairness={"lease_seconds": 1, "tier_on_limit": "wait"})
    worker = shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    running = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    behind = shop.send("work", user="42")
    eventually(lambda: shop.state("42").waiting_count == 1)
    ((_, end),) = memory.zrange(f"{PREFIX}ends", 0, -1, withscores=True)
    for number, jump in enumerate((HOUR_MS, -HOUR_MS), 1):
        memory.hincrby(f"{PREFIX}clock", "seen", -jump)

        def renewed_since(leases: int = number) -> None:
            scores = [score for _, score in memory.zrange(f"{PREFIX}ends", 0, -1, withscores=True)]
            assert max(scores) >= end + 1_000 * leases

        # Its claim is the first call after the jump.
        assert shop.send("work", user="43").get(timeout=RESULT_SECONDS) == "done"
        # The worker has renewed through a whole lease since the jump.
        eventually(renewed_since)
        assert shop.held("42") == 1
        later = shop.send("work", user="43", options={"countdown": 0.1})
        assert later.get(timeout=RESULT_SECONDS) == "done"
        rated = RateLimitPolicy("api", rate="100/PT1S")
        limited = shop.send("work", user="44", options={"limits": [rated]})
        assert limited.get(timeout=RESULT_SECONDS) == "done"
        assert behind.id not in shop.runs()
    gate.touch()
    for result in (running, behind):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    assert "has ended while its task runs" not in worker.log_text()


@pytest.mark.parametrize("path", PATHS)
def test_limits_and_turns_hold_with_a_slow_redis(
    make_shop: Callable[..., Shop], redis_url: str, path: str
) -> None:
    """Workers reach Redis through a network of 100 ms there and back."""
    shop = make_shop(path, fairness={"tier_on_limit": "wait"})
    # Its tier lets it take every place.
    shop.fairness.tenants.set_tier("flood", "enterprise")
    port = urlsplit(redis_url).port or 0
    with Proxy(port, delay_seconds=0.05) as network:
        far = network.url(redis_url)
        name = "CELERY_BROKER_URL" if path == "fairredis" else "FAIRNESS_REDIS_URL"
        far = f"fair{far}" if path == "fairredis" else far
        # One tenant sent its tasks before all others.
        users = [*["flood"] * 12, *(f"u{n}" for n in range(4))]
        results = [shop.send("work", user=user, seconds=0.02) for user in users]
        # Above the limit, bodies of this length would overlap.
        results += [shop.send("work", user="42", seconds=0.5) for _ in range(3)]
        workers = [shop.worker(pool="threads", concurrency=2, env={name: far}) for _ in range(2)]
        for result in results:
            assert result.get(timeout=RESULT_SECONDS) == "done"
        doctor = shop.command("fairness", "doctor", env={name: far})
        for worker in workers:
            assert worker.terminate() == 0
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once("42") == 1
    if path == "fairredis":
        # A gate gives turns to those that wait at a limit alone.
        order = [entry["user"] for entry in shop.ledger("start")]
        assert "flood" in order[8:]
        assert max(order.index(f"u{n}") for n in range(4)) < 8
    assert "a message to Redis and back takes 1" in doctor.stdout


@pytest.mark.parametrize("path", PATHS)
def test_a_rolling_upgrade_keeps_limits_turns_and_every_task(
    make_shop: Callable[..., Shop], memory: Redis, tmp_path: Path, path: str
) -> None:
    """Old workers run, new ones join, and the old ones leave, while tasks run and wait."""
    (tmp_path / "sitecustomize.py").write_text(NEXT_VERSION)
    # A worker that fetches more than it has threads for would leave some in its pool unchecked.
    conf = {"worker_prefetch_multiplier": 1}
    fairness = {"lease_seconds": 3, "tier_on_limit": "wait"}
    shop = make_shop(path, conf=conf, fairness=fairness)
    old = shop.worker(pool="threads", concurrency=8)
    gate = shop.gate_file()
    first = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    behind = [shop.send("work", user="42") for _ in range(3)]
    eventually(lambda: shop.state("42").waiting_count == 3)
    new = shop.worker(pool="threads", concurrency=8, env={"PYTHONPATH": str(tmp_path)})
    # Each version sees the slots that the other's workers hold.
    both = [shop.send("work", user=f"u{n % 8}", gate=str(gate)) for n in range(24)]
    eventually(lambda: [shop.state(f"u{n}").waiting_count for n in range(8)] == [2] * 8)
    eventually(lambda: len(shop.ledger("start")) == 9)
    assert shop.held("42") == 1
    old.signal(15)
    old.wait_for_log("Warm shutdown")
    gate.touch()
    for result in (first, *behind, *both):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    eventually(lambda: not old.alive)
    assert {shop.most_at_once(user) for user in ("42", *(f"u{n}" for n in range(8)))} == {1}
    assert set(shop.runs().values()) == {1}
    names = {row[1] for row in memory.execute_command("FUNCTION LIST")}
    assert {library().name, build({"DUE_AT_MOST": 17}).name} <= names
    assert shop.fairness.check().findings == ()
    for worker in (old, new):
        assert "Traceback" not in worker.log_text()
