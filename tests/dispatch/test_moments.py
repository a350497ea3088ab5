"""A worker that is killed at each moment of a task: the table of ADR 18, with real processes.

Early acknowledgement: a body begins at most once. Late acknowledgement: after ``max_deliveries``
deaths the task is a dead letter. A task that had not begun goes back, and no death is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from redis import Redis

from celery_fairness import DeliveriesExhausted
from tests.dispatch.conftest import PREFIX, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.nodes import WorkerNode
from tests.support.waiting import eventually

POOLS = ["prefork", "threads", "gevent", "solo"]
KINDS = "tests.dispatch.kinds"
LEASE_SECONDS = 1.0


def run_workers(shop: Shop, pool: str, deaths: int, **options: Any) -> WorkerNode:
    """Start a worker as often as one dies, and once more; return the last one."""
    for _ in range(deaths):
        doomed = shop.worker(app=KINDS, pool=pool, wait=False, **options)
        eventually(lambda doomed=doomed: not doomed.alive, RESULT_SECONDS)
    return shop.worker(app=KINDS, pool=pool, **options)


def dead(memory: Redis) -> int:
    """Return the number of dead letters."""
    return int(memory.zcard(f"{PREFIX}dead:celery"))


@pytest.mark.parametrize("pool", POOLS)
def test_a_body_that_kills_its_worker_begins_a_bounded_number_of_times(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    # One claim takes all of them: those behind the first one die in a buffer of the worker.
    shop = make_fair_shop(
        conf={"worker_prefetch_multiplier": 6},
        fairness={"lease_seconds": LEASE_SECONDS, "max_deliveries": 2},
    )
    early = send(shop, "kinds.early", "42", how="kill_worker")
    after = send(shop, "kinds.early", "43", how="kill_worker_after")
    late = send(shop, "kinds.late", "44", how="kill_worker")
    innocent = [send(shop, f"kinds.{name}", name) for name in ("early", "late")]
    last = run_workers(shop, pool, deaths=4, concurrency=1)
    assert [each.get(timeout=RESULT_SECONDS) for each in innocent] == ["done", "done"]
    with pytest.raises(DeliveriesExhausted):
        late.get(timeout=RESULT_SECONDS)
    with pytest.raises(WorkerLostError):
        early.get(timeout=RESULT_SECONDS)
    # Its result was stored before the death, and stays.
    assert after.get(timeout=RESULT_SECONDS) == "done"
    expected = dict.fromkeys((early.id, after.id, *(each.id for each in innocent)), 1)
    assert shop.runs() == {**expected, late.id: 2}
    assert dead(memory) == 1
    assert shop.fairness.stats.counters()["abandoned"] == 2
    assert last.alive
