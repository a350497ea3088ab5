"""The rings of the simulation answer as the function library does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claim, Rules, Settle, Verdict, Waiting
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport.merged_claims import ring_args
from celery_fairness.transport.ring_merge import Look, RingMerge
from celery_fairness.transport.task_filter import TaskFilter
from tests.simulation.ring import Ring
from tests.simulation.worker import QUEUE
from tests.support.library import call

RULES, NOW = Rules(default_limit=None), "1000000"
PARTITIONS = Partitions("fairness", count=4)
TENANTS, WORKERS, STEPS = 9, 3, 400


class Library:
    """The partitions on a real server."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._number = 0

    def put(self, tenant: int, tag: int) -> bool:
        """Put a task; return whether the producer rings the bell."""
        waiting = Waiting(QUEUE, f"t{tag}", str(tenant), message="{}")
        partition = tenant % PARTITIONS.count
        args = calls.put_args(waiting, NOW)
        return int(call(self._client, calls.PUT, PARTITIONS.prefix(partition), args)) < 0

    def claim(self, look: Look, floors: dict[str, float]) -> Claim:
        """Claim, and settle what the claim has brought."""
        self._number += 1
        options: Any = {"is_first": True, "ring": ring_args(look, floors)}
        args = calls.claim_args("w1", self._number, look.want, [QUEUE], RULES, NOW, **options)
        prefix = PARTITIONS.prefix(look.partition)
        claim = calls.read_claim(call(self._client, calls.CLAIM, prefix, args), in_partition=True)
        ends = [Settle(task.lease, Verdict.DONE) for task in claim.tasks]
        if ends:
            call(self._client, calls.SETTLE, prefix, calls.settle_args(ends, RULES, NOW))
        return claim


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.mark.redis
@pytest.mark.one_redis("the partitions of this test are on one server")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_ring_answers_as_the_library_does(client: Redis, seed: int) -> None:
    """Random puts, and the requests of three workers whose firsts are old."""
    chance, library = random.Random(seed), Library(client)
    rings = [Ring() for _ in range(PARTITIONS.count)]
    workers = [RingMerge(PARTITIONS.count, TaskFilter()) for _ in range(WORKERS)]
    for step in range(STEPS):
        if chance.random() < 0.6:
            tenant = chance.randrange(TENANTS)
            rung = rings[tenant % PARTITIONS.count].put(tenant, 0.0)
            assert rung == library.put(tenant, step)
            continue
        merge = chance.choice(workers)
        if chance.random() < 0.3:
            merge.look_again(chance.randrange(PARTITIONS.count))
        for look in merge.plan([QUEUE], chance.randrange(1, 4), step / 10, False, False):
            floors = merge.floors([QUEUE])
            till = look.tills[QUEUE].start if look.tills else None
            ring, seen = rings[look.partition], library.claim(look, floors)
            made = ring.claim(look.want, floors.get(QUEUE), till, is_woken=look.is_woken)
            assert [f"tenant:{task.tenant}" for task in made.tasks] == [
                task.key for task in seen.tasks
            ]
            state = seen.ring["rings"][QUEUE]
            first = float(state["first"][0]) if "first" in state else None
            assert (made.at, made.first) == (float(state["at"]), first)
            assert made.debt == float(state.get("debt", 0.0)) * (made.first is None)
            assert made.is_left == (QUEUE in seen.ring.get("left", ()))
            merge.read(look, seen, step / 10)
