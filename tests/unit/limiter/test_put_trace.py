"""When a producer asks whether a trace is on, and what it reports of a task."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_fairness.config.settings import build_settings
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.put_trace import PutTrace
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.tier_cache import AWAY_SECONDS, LOOK_SECONDS, TierCache
from celery_fairness.message.headers import HEADER
from celery_fairness.store.partitions import Partitions

TASK = {"id": "t1", "eta": None, HEADER: {"v": 1, "tenant": "42", "tier": "pro", "cost": 2.5}}
ETA, ETA_MS = "2026-11-24T12:00:00+01:00", 1_795_518_000_000


class Recorded(Limiter):
    """A limiter whose Redis records the arguments of each call."""

    def __init__(self):
        self.partitions = Partitions("fairness")
        self.prefix, self.calls, self.watched, self.away = "p:", [], True, False

    @property
    def connection(self):
        return SimpleNamespace(run=self._run)

    def _run(self, verb, keys, args):
        self.calls.append([args[0].split(" ", 2), *args[1:]])
        if self.away:
            raise LimiterUnavailable("redis://nowhere", "no answer")
        return int(self.watched)


@pytest.fixture
def limiter():
    return Recorded()


@pytest.fixture
def make(notices, clock):
    def make_puts(limiter, **settings):
        settings = build_settings(settings)
        return PutTrace(settings, TierCache(settings, lambda: limiter, notices, clock), clock)

    return make_puts


def put(puts, headers=TASK, queue="q"):
    puts.emit("shop.pay", None, headers, (), {}, queue)


def test_while_a_trace_is_on_each_task_is_reported(make, limiter):
    puts = make(limiter)
    for _ in range(3):
        put(puts)
    row = [["t1", "shop.pay", "q"], "tenant:42", "pro", "2.5", 0, ""]
    assert limiter.calls == [row] * 3


def test_while_no_trace_is_on_there_is_one_call_a_second(make, limiter, clock):
    limiter.watched = False
    puts = make(limiter)
    for _ in range(3):
        put(puts)
    assert len(limiter.calls) == 1
    limiter.watched = True
    clock.advance(LOOK_SECONDS)
    for _ in range(3):
        put(puts)
    assert len(limiter.calls) == 4


def test_a_redis_that_does_not_answer_is_left_alone(make, limiter, clock):
    limiter.away = True
    puts = make(limiter)
    for _ in range(3):
        put(puts)
        clock.advance(LOOK_SECONDS)
    assert len(limiter.calls) == 1
    clock.advance(AWAY_SECONDS)
    put(puts)
    assert len(limiter.calls) == 2


@pytest.mark.parametrize(
    ("headers", "queue", "row"),
    [
        ({**TASK, "eta": ETA}, "q", (["t1", "shop.pay", "q"], "tenant:42", "pro", "2.5", ETA_MS)),
        ({**TASK, "eta": "soon"}, None, (["t1", "shop.pay", ""], "tenant:42", "pro", "2.5", 0)),
        ({HEADER: {"tenant": 42}}, "q", (["", "shop.pay", "q"], "tenant:_invalid", "", "1", 0)),
        ({HEADER: {"v": 1}}, "limited", (["", "shop.pay", "limited"], "", "", "1", 0)),
        ({}, "limited", (["", "shop.pay", "limited"], "", "", "1", 0)),
        ({HEADER: {"v": 1}}, "q", None),
        ({}, "q", None),
        ({}, None, None),
    ],
)
def test_a_task_is_reported_if_a_gate_checks_it(make, limiter, headers, queue, row):
    puts = make(limiter, queues={"limited": {"global_limit": 1}})
    put(puts, headers, queue)
    assert limiter.calls == ([[*row, ""]] if row else [])
