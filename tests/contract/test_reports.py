"""A report of an API at a gate, which counts in the same windows as a claim."""

from __future__ import annotations

import json

from celery_fairness.config.limit_spec import Limit
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Reason, Rejected
from celery_fairness.scheduler import calls
from tests.contract.conftest import FrozenClock
from tests.contract.test_parked import ask, names, park, promote, take

API = Limit("api", concurrency=9)


def report(limiter: Limiter, clock: FrozenClock, left: int, seconds: int = 4) -> list[int]:
    args = calls.report_args("api", None, left, seconds * 1000, 15_000, str(clock.now_ms))
    answer = json.loads(limiter.connection.run(calls.REPORT, limiter.prefix, args))
    reported: list[int] = answer["reported"]
    return reported


def test_a_gate_lets_so_many_more_start_and_says_when_the_next_may(
    limiter: Limiter, clock: FrozenClock
) -> None:
    assert report(limiter, clock, 1)[0] == 1
    take(limiter, API)
    answer = limiter.acquire(ask("a", API))
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.retry_after_seconds) == (Reason.COOLING_DOWN, 4.0)
    clock.advance(4)
    take(limiter, API)


def test_parked_tasks_come_when_the_time_is_over(limiter: Limiter, clock: FrozenClock) -> None:
    report(limiter, clock, 0)
    for name in ("a", "b"):
        park(limiter, ask(name, API))
    assert promote(limiter) == []
    clock.advance(4)
    assert names(promote(limiter)) == ["a", "b"]
