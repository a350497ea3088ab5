"""Overrides of many keys on the gate path, and what they do for parked tasks."""

from __future__ import annotations

from collections.abc import Callable

from celery_fairness.config.limit_spec import OF_QUEUE, Limit
from celery_fairness.config.queue_limits import DECLARED
from celery_fairness.limiter.redis import Limiter
from tests.contract.conftest import FrozenClock
from tests.contract.test_open_job_spec_gate import admitted, rejected
from tests.contract.test_parked import ask, names, park, promote, take

STRIPE = Limit("api.stripe", concurrency=1)
Override = Callable[..., None]


def test_a_gate_reads_the_override_of_the_key_and_then_of_the_longest_pattern(
    limiter: Limiter, override: Override
) -> None:
    override("api.*", None, concurrency=2)
    for name in ("a", "b"):
        admitted(limiter.acquire(ask(name, STRIPE)))
    assert rejected(limiter.acquire(ask("c", STRIPE))).key == "api.stripe"
    override("api.stripe", None, concurrency=3)
    admitted(limiter.acquire(ask("d", STRIPE)))
    assert rejected(limiter.acquire(ask("e", STRIPE))).key == "api.stripe"


def test_an_override_of_a_key_that_has_ended_hides_no_pattern(
    limiter: Limiter, override: Override, clock: FrozenClock
) -> None:
    override("api.*", None, concurrency=1)
    override("api.stripe", 1_000, concurrency=9)
    clock.advance(1.0)
    admitted(limiter.acquire(ask("a", STRIPE)))
    assert rejected(limiter.acquire(ask("b", STRIPE))).key == "api.stripe"


def test_a_pattern_lets_parked_tasks_go(limiter: Limiter, override: Override) -> None:
    take(limiter, STRIPE)
    for name in ("a", "b"):
        park(limiter, ask(name, STRIPE))
    assert promote(limiter) == []
    override("api.*", None, concurrency=3)
    assert names(promote(limiter)) == ["a", "b"]


def test_the_end_of_a_pattern_lets_parked_tasks_go(
    limiter: Limiter, override: Override, clock: FrozenClock
) -> None:
    override("api.*", 5_000, concurrency=0)
    park(limiter, ask("a", STRIPE))
    assert promote(limiter) == []
    clock.advance(5.0)
    assert names(promote(limiter)) == ["a"]


def test_a_pattern_of_partitions_holds_at_a_gate(limiter: Limiter, override: Override) -> None:
    limiter.limit_queue(DECLARED, "emails", None, Limit("", concurrency=1))
    limits = Limit("queue:emails:1", of=OF_QUEUE), Limit("queue:emails", of=OF_QUEUE)
    override("queue:emails:*", None, concurrency=2)
    for name in ("a", "b"):
        admitted(limiter.acquire(ask(name, *limits)))
    assert rejected(limiter.acquire(ask("c", *limits))).key == "queue:emails:1"
