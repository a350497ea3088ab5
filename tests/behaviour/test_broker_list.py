"""A list of brokers: limits, commands and tasks follow the one that answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from celery_fairness import Fairness
from celery_fairness.errors import LimiterUnavailable
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.fork_server import ForkServer
from tests.support.redis_server import RedisServer, ReservedPort
from tests.support.shop import make_app

pytestmark = pytest.mark.redis
on_both_paths = pytest.mark.parametrize("scheme", ["redis", "fairredis"])


@pytest.fixture
def dead_url() -> Iterator[str]:
    """Where nobody listens."""
    port = ReservedPort()
    yield f"redis://127.0.0.1:{port.number}/0"
    port.release()


def listed(scheme: str, *urls: str) -> str:
    return ";".join(url.replace("redis", scheme, 1) for url in urls)


@on_both_paths
def test_tasks_run_while_the_first_broker_is_down(
    make_shop: Callable[..., Shop],
    redis_url: str,
    dead_url: str,
    scheme: str,
) -> None:
    shop = make_shop(variables={"CELERY_BROKER_URL": listed(scheme, dead_url, redis_url)})
    shop.worker(pool="threads", concurrency=2)
    results = [shop.send("work", user=user) for user in "1123"]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once("1") == 1


@on_both_paths
def test_a_command_asks_the_broker_that_answers(
    fork_server: Callable[[str], ForkServer], redis_url: str, dead_url: str, scheme: str
) -> None:
    command = [sys.executable, "-m", "celery", "-A", "tests.support.shop", "fairness", "status"]
    env = {**os.environ, "CELERY_BROKER_URL": listed(scheme, dead_url, redis_url)}
    done = fork_server("prefork").run(command, env)
    assert (done.returncode, done.stderr) == (0, "")


@on_both_paths
def test_limits_follow_from_broker_to_broker_and_back(scheme: str) -> None:
    with RedisServer() as first, RedisServer() as second:
        app = make_app({"CELERY_BROKER_URL": listed(scheme, first.url, second.url)})
        fairness = Fairness.of(app)
        try:
            fairness.tenants.pause("first")
            first.kill()
            fairness.tenants.pause("second")
            assert not fairness.limits.inspect("tenant:first").holds.paused
            assert fairness.limits.inspect("tenant:second").holds.paused
            second.kill()
            with pytest.raises(LimiterUnavailable, match=f"{first.port}.*{second.port}"):
                fairness.tenants.pause("nobody")
            first.restart()
            fairness.tenants.pause("first again")
            second.restart()
            assert fairness.limits.inspect("tenant:first again").holds.paused
        finally:
            fairness.close()
            app.close()
