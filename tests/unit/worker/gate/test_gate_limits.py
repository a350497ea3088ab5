"""The gate and limits beside the tiers: how long a rejected task waits, and what is dropped."""

from __future__ import annotations

import logging
import random
from types import SimpleNamespace

import pytest
from celery import signals
from celery.app.trace import FAILURE
from celery.utils.threads import LocalStack

from celery_fairness.errors import RateLimitDropped
from celery_fairness.limiter.types import Job, Lease, Reason, Rejected, SlotRequest
from celery_fairness.message.headers import HEADER
from celery_fairness.scheduler import calls as calls
from celery_fairness.util.ids import new_lease_id
from celery_fairness.util.throttled_log import Notices
from tests.support.json_log import json_lines
from tests.unit.worker.gate.test_gate import World, a_task, is_ignored

ONE = {"key": "api", "concurrency": 1}
RARE = {"limit": 1, "period": "PT1H"}
HOURLY = {"key": "api", "rate": {"limit": 1, "period": "PT1H"}}


class Task(SimpleNamespace):
    """A task that can be the sender of a signal."""

    __hash__ = object.__hash__


@pytest.fixture
def make(clock, make_redis_limiter):
    """Gates whose limiter is real: what a limit answers is part of what is tested here."""
    return lambda longest=None: World(clock, longest, make_redis_limiter())


@pytest.fixture
def world(make):
    return make()


def deliver(world, *limits, tenant="42", **more):
    header = {"v": 1, "tenant": tenant, "limits": list(limits)}
    return world.deliver(**{HEADER: header, "headers": {HEADER: header}, **more})


def occupy(world, word):
    key = word.partition("|")[0]
    world.limiter.acquire(SlotRequest(Lease(f"of {key}", key), "", "", limits=word))


def held(world, *keys):
    return [world.limiter.leases_of(key).held for key in keys]


def countdowns(world):
    return [sent.countdown for sent in world.resender.sent]


def test_an_attempt_holds_every_slot_while_it_runs_and_none_after_it(world):
    seen = []
    world.tracer = lambda *_, **__: seen.extend(held(world, "tenant:42", "api", "db"))
    deliver(world, ONE, {"key": "db", "concurrency": 2})
    assert seen == [1, 1, 1]
    assert held(world, "tenant:42", "api", "db") == [0, 0, 0]
    (ended,) = world.ended
    assert ended.keys == ["tenant:42", "api", "db"]


def test_a_task_without_a_tenant_is_asked_about_its_limits(world):
    occupy(world, "api|C1|w")
    assert is_ignored(deliver(world, ONE, tenant=None))
    assert deliver(world, tenant=None) == "traced"


def test_what_cannot_be_charged_has_its_limits_all_the_same(world):
    occupy(world, "api|C1|w")
    assert is_ignored(deliver(world, ONE, tenant=1.5))
    assert world.limiter.counts() == {"limited": 1, "invalid": 1}


@pytest.mark.parametrize(
    ("rejected", "wait"),
    [
        # Its tier's: a lease may end at any time, and time alone opens a rate.
        (Rejected(Reason.AT_CONCURRENCY_LIMIT, None), 35.0),
        (Rejected(Reason.AT_RATE_LIMIT, 3.0), 8.0),
        (Rejected(Reason.AT_RATE_LIMIT, 3600.0), 3605.0),
        (Rejected(Reason.LIMITER_UNAVAILABLE), 35.0),
        (Rejected(Reason.PAUSED, None, key="api"), 35.0),
        (Rejected(Reason.AT_CONCURRENCY_LIMIT, None, key="api", action="reschedule"), 35.0),
        # A full limit: at least a second, at most a snooze.
        (Rejected(Reason.AT_CONCURRENCY_LIMIT, 0.2, key="api"), 6.0),
        (Rejected(Reason.AT_CONCURRENCY_LIMIT, 12.0, key="api"), 17.0),
        (Rejected(Reason.AT_CONCURRENCY_LIMIT, 90.0, key="api"), 35.0),
        (Rejected(Reason.COOLING_DOWN, 9_000.0, key="api"), 35.0),
        # Time alone opens these.
        (Rejected(Reason.AT_RATE_LIMIT, 3600.0, key="api"), 3605.0),
        (Rejected(Reason.AT_THROTTLE, 0.2, key="api"), 5.2),
        # Tried again: the answer has its jitter.
        (Rejected(Reason.AT_RATE_LIMIT, 2.0, key="api", action="reschedule"), 2.0),
        (Rejected(Reason.AT_RATE_LIMIT, 29.0, key="api", action="reschedule"), 29.0),
        (Rejected(Reason.AT_CONCURRENCY_LIMIT, 0.2, key="api", action="reschedule"), 1.0),
        # At the snooze, and beyond it, a crowd comes: it has the snooze's jitter.
        (Rejected(Reason.AT_CONCURRENCY_LIMIT, 30.0, key="api", action="reschedule"), 35.0),
        (Rejected(Reason.AT_RATE_LIMIT, 3600.0, key="api", action="reschedule"), 3605.0),
    ],
)
def test_how_long_a_rejected_task_waits(world, monkeypatch, rejected, wait):
    monkeypatch.setattr(random, "random", lambda: 0.5)
    assert world.gate.countdown_seconds(rejected) == wait


def test_no_wait_is_longer_than_the_broker_bears(make, monkeypatch):
    monkeypatch.setattr(random, "random", lambda: 0.5)
    world = make(1800.0)
    hourly = {**HOURLY, "on_limit": "reschedule"}
    assert deliver(world, hourly) == "traced"
    assert is_ignored(deliver(world, hourly))
    assert countdowns(world) == [1800.0]


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (ONE, "the limit 'api' has no free slot"),
        (HOURLY, "the limit 'api' has reached its rate"),
        ({"key": "api", "throttle": {"limit": 1, "period": "PT1H"}}, "'api' spaces its starts"),
        ({"key": "api", "concurrency": 0}, "the limit 'api' is paused"),
    ],
)
def test_why_a_task_waits_is_logged(world, caplog, limit, says):
    caplog.set_level(logging.INFO)
    occupy(world, "api|C9;R1/3600000;T1/3600000|w")
    assert is_ignored(deliver(world, limit))
    assert says in caplog.text


def test_a_key_that_cools_down_is_said_so(world, clock, caplog):
    caplog.set_level(logging.INFO)
    wait_ms, now_text = 5000, str(clock.ms())
    args = calls.stop_args("cool", "api", wait_ms, 15_000, "on", now_text)
    world.limiter.connection.run(calls.STOP, world.limiter.prefix, args)
    assert is_ignored(deliver(world, ONE))
    assert "the limit 'api' cools down" in caplog.text


PLACE = {"delivery_info": {"exchange": "", "routing_key": "emails"}}
#: A message that RabbitMQ itself delayed.
DELAYED = {"delivery_info": {"exchange": "", "routing_key": "0." * 27 + "1.emails"}}


@pytest.mark.parametrize(
    ("limit", "key", "place"),
    [
        ({**ONE, "on_limit": "reschedule"}, "api", PLACE),
        (ONE, "api", DELAYED),
        (None, "tenant:42", PLACE),
    ],
    ids=["goes back", "is parked", "is at its tier's limit"],
)
def test_a_flood_of_rejections_is_one_line_with_its_fields(world, limit, key, place):
    occupy(world, "api|C1|w")
    if limit is None:
        world.occupy()
    with json_lines() as log:
        for number in range(5):
            deliver(world, *([limit] if limit else []), id=f"t{number}", **place)
    fields = {"task_name": "shop.t", "task_id": "t0", "tenant": "42", "tier": "free"}
    assert log.fields == [{**fields, "queue": "emails", "key": key}]
    assert log.lines[0]["level"] == "INFO"


def test_another_limit_is_another_line(world):
    occupy(world, "api|C1|w")
    occupy(world, "db|C1|w")
    with json_lines() as log:
        deliver(world, ONE, **PLACE)
        deliver(world, {"key": "db", "concurrency": 1}, **PLACE)
    assert [each["key"] for each in log.fields] == ["api", "db"]


class TestDropped:
    """A task that a limit drops has its error as its result, and its body does not run."""

    @pytest.fixture
    def written(self):
        return []

    @pytest.fixture
    def task(self, written):
        backend = SimpleNamespace(mark_as_failure=lambda *a, **more: written.append((*a, more)))
        return Task(
            name="shop.t",
            acks_late=False,
            service=None,
            backend=backend,
            request_stack=LocalStack(),
            ignore_result=False,
            store_errors_even_if_ignored=False,
        )

    def drop(self, world, task, **more):
        occupy(world, "api|C1|w")
        return deliver(world, {**ONE, "on_limit": "drop"}, task=task, **more)

    def test_its_result_is_the_error_and_nothing_is_sent_back(self, world, task, written, caplog):
        caplog.set_level(logging.INFO)
        answer = self.drop(world, task)
        assert answer.info.state == FAILURE
        assert isinstance(answer.retval.exception.exc, RateLimitDropped)
        ((task_id, error, more),) = written
        assert (task_id, error.task, error.key) == ("t1", "shop.t", "api")
        assert more["store_result"]
        assert (world.ran, world.resender.sent) == ([], [])
        assert held(world, "tenant:42", "api") == [0, 1]
        assert "task shop.t[t1] of tenant '42' was dropped by the limit api" in caplog.text

    def test_its_line_has_fields(self, world, task):
        with json_lines() as log:
            self.drop(world, task, **PLACE)
        fields = {"task_name": "shop.t", "task_id": "t1", "tenant": "42", "tier": "free"}
        assert log.fields == [{**fields, "queue": "emails", "key": "api"}]

    @pytest.mark.parametrize(("even_if", "stored"), [(False, False), (True, True)])
    def test_a_result_that_is_ignored_is_not_stored(self, world, task, written, even_if, stored):
        task.store_errors_even_if_ignored = even_if
        self.drop(world, task, ignore_result=True)
        assert written[0][-1]["store_result"] == stored

    def test_the_signal_says_which_task_it_was(self, world, task):
        told = []

        def hear(sender, task_id, exception, args, kwargs, **_):
            told.append((sender, task_id, exception.key, args, kwargs))

        signals.task_failure.connect(hear)
        try:
            self.drop(world, task)
        finally:
            signals.task_failure.disconnect(hear)
        assert told == [(task, "t1", "api", ("a",), {"k": 1})]
        assert task.request_stack.top is None


class TestParents:
    """A task that waits for what its own parent holds, which may wait for it."""

    SAYS = "waits for the limit {}, and its parent p1 holds a slot of it"

    @pytest.fixture
    def parent(self, world):
        """Let a task be the parent: ``parent("api")`` holds a slot of each key."""

        def hold(*keys, name="p1"):
            words = ",".join(f"{key}||w" for key in keys if not key.startswith("tenant:"))
            tenant = "42" if "tenant:42" in keys else ""
            lease, job = Lease(new_lease_id(), ",".join(keys)), Job(name, "shop.parent", "")
            world.limiter.acquire(SlotRequest(lease, tenant, "free", limits=words, job=job))

        return hold

    def test_what_rejects_it_is_said(self, world, parent, caplog):
        parent("api")
        assert is_ignored(deliver(world, ONE, parent_id="p1"))
        assert self.SAYS.format("api") in caplog.text

    @pytest.mark.parametrize("name", ["the parent", "p\ud800"])
    def test_a_parent_may_have_an_unusual_id(self, world, parent, monkeypatch, name):
        parent("api", name=name)
        logged = []
        monkeypatch.setattr(Notices, "error", lambda _, *args, **__: logged.append(args))
        assert is_ignored(deliver(world, ONE, parent_id=name))
        # A thread of another app may log a Redis that does not answer.
        assert [args[-1] for args in logged if args[0].startswith("parent:")] == [name]

    def test_its_tier_is_said_where_that_rejects_it(self, world, parent, caplog):
        parent("tenant:42")
        assert is_ignored(deliver(world, parent_id="p1"))
        assert self.SAYS.format("tenant:42") in caplog.text

    @pytest.mark.parametrize("first", [ONE, HOURLY])
    def test_what_keeps_it_next_is_said_too(self, world, parent, caplog, first):
        occupy(world, "api|C1;R1/3600000|w")
        parent("mine")
        limits = (first, {"key": "mine", "concurrency": 1})
        assert is_ignored(deliver(world, *limits, parent_id="p1"))
        assert self.SAYS.format("mine") in caplog.text

    def test_its_tier_is_said_where_another_limit_rejects_it_too(self, world, parent, caplog):
        occupy(world, "api|C1|w")
        parent("tenant:42")
        assert is_ignored(deliver(world, ONE, parent_id="p1"))
        assert self.SAYS.format("tenant:42") in caplog.text

    def test_a_flood_of_rejections_is_checked_once_a_second(self, world, parent, monkeypatch):
        parent("api")
        asked, real = [], world.limiter.leases_of
        monkeypatch.setattr(world.limiter, "leases_of", lambda key: asked.append(key) or real(key))
        checks = []
        for moment in (100.0, 100.9, 101.0):
            monkeypatch.setattr(world.gate._deadlock_warning, "_clock", lambda now=moment: now)
            assert is_ignored(deliver(world, ONE, id=f"t{moment}", parent_id="p1"))
            checks.append(len(asked))
        assert checks == [1, 1, 2]

    def test_a_retry_does_not_wait_for_its_own_first_try(self, world, parent, caplog):
        parent("api", name="t1")
        assert is_ignored(deliver(world, ONE, parent_id="t1"))
        assert "its parent" not in caplog.text

    def test_nothing_is_said_of_what_has_room_or_others_hold(self, world, parent, caplog):
        occupy(world, "api|C1|w")
        parent("mine", "counted")
        limits = (ONE, {"key": "mine", "concurrency": 2}, {"key": "counted", "throttle": RARE})
        assert is_ignored(deliver(world, *limits, parent_id="p1"))
        assert is_ignored(deliver(world, *limits))
        assert "its parent" not in caplog.text


@pytest.mark.parametrize(
    ("throttle", "slept", "outcome"),
    [
        ({"limit": 100, "period": "PT1S"}, [0.009], "traced"),
        ({"limit": 50, "period": "PT1S"}, [0.018], "traced"),
        # Longer than the way through the broker: it is parked.
        ({"limit": 40, "period": "PT1S"}, [], "parked"),
    ],
)
def test_what_a_throttle_lets_start_in_a_moment_waits_in_the_worker(
    world, clock, monkeypatch, throttle, slept, outcome
):
    waited = []

    def let_pass(seconds):
        waited.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr("celery_fairness.worker.gate.gate.time.sleep", let_pass)
    spaced = {"key": "api", "throttle": throttle}
    assert deliver(world, spaced) == "traced"
    answer = deliver(world, spaced, id="t2")
    assert ("traced" if answer == "traced" else "parked") == outcome
    assert waited == slept
    assert world.limiter.look("api")["waiting_count"] == (outcome == "parked")


def test_who_finds_a_moments_throttle_taken_again_and_again_is_parked_and_not_sent_back(
    world, monkeypatch
):
    monkeypatch.setattr("celery_fairness.worker.gate.gate.time.sleep", lambda _: None)
    spaced = {"key": "api", "throttle": {"limit": 100, "period": "PT1S"}}
    assert deliver(world, spaced) == "traced"
    assert deliver(world, spaced, id="t2") != "traced"
    assert (world.limiter.look("api")["waiting_count"], countdowns(world)) == (1, [])


def test_a_task_without_the_value_that_its_queue_asks_for_is_charged_to_a_tenant_of_its_own(
    clock,
):
    queues = {"emails": {"global_limit": 1, "by_args": ["customer"], "missing": "error"}}
    world = World(clock, queues=queues)

    def body(customer=None):
        """What the task does."""

    task = a_task(run=body)
    request = {"id": "t1", "delivery_info": {"routing_key": "emails"}}
    header = {HEADER: {"v": 1, "tenant": "42"}}
    charged = world.gate.attribution(task, {**request, **header}, (), {"customer": 7})
    assert charged.keys == "tenant:42,queue:emails:7,queue:emails"
    for wrong in ({**request, **header}, request):
        charged = world.gate.attribution(task, wrong, (), {})
        assert charged.keys == "tenant:_invalid,queue:emails:,queue:emails"
        assert "{args.customer} has no value" in charged.problem
