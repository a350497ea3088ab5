"""What a rejected attempt spends of Celery's own limits: nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
from celery import Celery

from celery_fairness import Fairness, FairTask
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.services import and_in_ci, only_in_ci
from tests.support.waiting import at_most, eventually

#: A snooze that no test waits for.
LONG = {"snooze_seconds": 600, "snooze_jitter_seconds": 0}
BROKERS = ("redis", pytest.param("rabbitmq_classic", marks=pytest.mark.rabbitmq))


def await_rejected(shop: Shop, count: int) -> None:
    def rejected() -> None:
        assert sum(shop.fairness.stats.rejections().tiers.values()) >= count

    eventually(rejected, RESULT_SECONDS)


@pytest.mark.parametrize(
    ("broker", "pool"),
    [
        ("redis", "prefork"),
        *(pytest.param("redis", pool, marks=only_in_ci) for pool in ("threads", "solo")),
        pytest.param("rabbitmq_classic", "prefork", marks=pytest.mark.rabbitmq),
    ],
)
def test_rejected_attempts_take_no_token_of_the_rate_limit(
    make_shop: Callable[..., Shop], broker: str, pool: str
) -> None:
    limits = {"task_annotations": {"shop.work": {"rate_limit": "60/m"}}}
    shop = make_shop(broker, limits, LONG)
    shop.worker(pool=pool, concurrency=1 if pool == "solo" else 2)
    shop.fairness.limits.pause("tenant:paused")
    for _ in range(30):
        shop.send("work", user="paused")
    began = time.time()
    results = [shop.send("work", user=f"u{n}") for n in range(3)]
    for result in results:
        assert result.get(timeout=at_most(60)) == "done"
    # One a second. With a token for each rejected attempt the first would wait for 30 seconds.
    assert time.time() - began < 20
    starts = sorted(entry["at"] for entry in shop.ledger("start"))
    assert all(at - began > n - 1 for n, at in enumerate(starts))
    await_rejected(shop, 30)


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("most", and_in_ci([2], 1))
def test_rejected_attempts_use_up_no_process_of_the_pool(
    make_shop: Callable[..., Shop], broker: str, most: int
) -> None:
    shop = make_shop(broker, fairness=LONG)
    shop.worker(pool="prefork", concurrency=1, args=["--max-tasks-per-child", str(most)])
    first = shop.send("work", user="42").get(timeout=RESULT_SECONDS)
    assert first == "done"
    shop.fairness.limits.pause("tenant:paused")
    for _ in range(5):
        shop.send("work", user="paused")
    await_rejected(shop, 5)
    for _ in range(2 * most):
        assert shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    pids = [entry["pid"] for entry in shop.ledger("start")]
    # As many bodies as it says, and then another process.
    assert [len(list(bodies)) for _, bodies in itertools.groupby(pids)] == (
        [1, 1, 1] if most == 1 else [2, 2, 1]
    )


def test_task_annotations_hold_for_a_fair_task() -> None:
    app = Celery("annotated", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.task_annotations = {"fair": {"rate_limit": "30/m"}}
    fairness = Fairness(app, {})

    @app.task(base=FairTask, name="fair", shared=False)
    def fair() -> None:
        """Do nothing."""

    @app.task(base=FairTask, name="other", shared=False)
    def other() -> None:
        """Do nothing."""

    app.finalize()
    assert app.tasks["fair"].rate_limit == "30/m"
    # Each has requests of its own.
    assert app.tasks["fair"].request_stack is not app.tasks["other"].request_stack
    fairness.close()
    app.close()
