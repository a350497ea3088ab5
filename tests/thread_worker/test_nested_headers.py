"""A header named ``headers``, as tracing SDKs send it, changes nothing for a task.

Celery returns that header as ``request.headers``. So a reader of ``request.headers`` would find
neither the tenant, nor the limits, nor the copy of the message.
"""

from __future__ import annotations

import pytest

from celery_fairness import RateLimitPolicy
from tests.support.waiting import eventually

#: Headers that a message has beside those of this package.
SHAPES = {
    "none": {},
    "flat": {"x_trace": "1"},
    "nested": {"headers": {"sentry-trace": "1", "baggage": "b"}},
    "both": {"x_trace": "1", "headers": {"x_trace": "1", "baggage": "b"}},
    "of_another": {"headers": {"fairness": {"v": 1, "tenant": "wrong"}, "celery_beat_task": 1}},
}

pytestmark = pytest.mark.parametrize("yard", ["redis", "fairredis"], indirect=True)


def seen(yard, how):
    return sorted((call for call in yard.calls if call[1] == how), key=str)


@pytest.mark.parametrize("name", ["carried", "plainly"])
def test_a_retry_and_a_child_have_the_tenant_the_limits_and_the_schedule(yard, name):
    task, limits = getattr(yard, name), [{"key": "k", "concurrency": 50}]
    for index, headers in enumerate(SHAPES.values()):
        header = {"v": 1, "tenant": str(index), "scheduled": True, "limits": limits}
        task.apply_async(("retry",), headers={"fairness": header, **headers})
        task.apply_async(("child",), headers={"fairness": header, **headers})
    tenants = [str(index) for index in range(len(SHAPES))]
    same = [(*("yard." + name, "retry"), n, t, ["k"], True, t) for n in (0, 1) for t in tenants]
    eventually(lambda: len(seen(yard, "retry")) == len(same))
    assert seen(yard, "retry") == same
    eventually(lambda: len(seen(yard, "ok")) == len(SHAPES))
    assert [(call[3], call[-1]) for call in seen(yard, "ok")] == [(t, t) for t in tenants]


def test_a_429_cools_its_key_and_comes_back_as_it_was(yard):
    for shape, headers in SHAPES.items():
        limits = [RateLimitPolicy(f"k.{shape}", concurrency=1)]
        header = {"fairness": {"v": 1, "tenant": shape}, **headers}
        yard.carried.apply_async((f"429 {shape}",), headers=header, limits=limits)
    keys = {f"k.{shape}" for shape in SHAPES}

    def cooled():
        events = yard.fairness.events.read(types=["rate_limit.dynamic_adjusted"]).events
        assert {event.data["key"] for event in events} == keys

    eventually(cooled)
    for shape in SHAPES:
        runs = eventually(lambda s=shape: len(r := seen(yard, f"429 {s}")) == 2 and r)
        assert [run[2:4] for run in runs] == [(0, shape)] * 2
        assert [run[4] for run in runs] == [[f"k.{shape}"]] * 2


@pytest.mark.parametrize("on_limit", ["wait", "reschedule"])
def test_a_limit_holds_while_its_tasks_come_back(yard, on_limit):
    for shape, headers in SHAPES.items():
        # Its tier alone would let all three run at once.
        yard.fairness.tenants.set_tier(shape, "enterprise")
        limit = RateLimitPolicy(f"k.{shape}", concurrency=1, on_limit=on_limit)
        for _ in range(3):
            yard.work.apply_async((shape, True), headers=dict(headers), limits=[limit])
    eventually(lambda: sorted(yard.meter.running) == sorted(SHAPES))
    for _ in SHAPES:
        # One task of each shape ends, and the next ones start or come back.
        yard.permits.release(3)
    eventually(lambda: len(yard.meter.ended) == 3 * len(SHAPES))
    assert yard.meter.most == dict.fromkeys(SHAPES, 1)
