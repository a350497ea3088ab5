"""The gate: who is let through, who is sent back and for how long, and what is never asked."""

from __future__ import annotations

import logging
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from celery.app.task import Context
from celery.app.trace import FAILURE, IGNORED, REJECTED
from celery.exceptions import Ignore, Reject

from celery_fairness.config.settings import Enforcement, build_settings
from celery_fairness.config.tenants import tier_key
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.limiter.types import Job, Lease, Reason, Rejected, SlotRequest
from celery_fairness.message.attribution import Attribution
from celery_fairness.message.headers import COPY_HEADER, HEADER, Copy
from celery_fairness.message.task_options import TenantSource
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.attempt import current_attempt
from celery_fairness.worker.captured_message import CapturedMessage
from celery_fairness.worker.gate.gate import ATTEMPT_KEY, Gate, new_lease_id
from celery_fairness.worker.gate.resender import Resender
from tests.support.answering_limiter import AnsweringLimiter


class FakeResender(Resender):
    """Keeps what is sent back; says what it is told to."""

    def __init__(self):
        self.sent = []
        #: Messages that were to be parked.
        self.taken = []
        self.fails_with = None
        self.stopping = False
        self._driver = "redis"

    def take(self, request, copy):
        if self.fails_with is not None:
            raise self.fails_with
        self.taken.append(SimpleNamespace(request=request, copy=copy))
        headers = {"id": request.id, "expires": request.expires}
        return CapturedMessage(b"", None, None, headers, {"priority": 2}, "", "celery")

    def send(self, task, request, rejected, serial, countdown_seconds):
        if self.fails_with is not None:
            raise self.fails_with
        if self.stopping:
            return False
        self.sent.append(
            SimpleNamespace(
                task=task,
                id=request.id,
                args=request.args,
                kwargs=request.kwargs,
                headers=request.headers,
                rejected=rejected,
                serial=serial,
                countdown=countdown_seconds,
            )
        )
        return True


#: What a limiter answers if the tenant's tier has no free slot.
FULL = Rejected(Reason.AT_CONCURRENCY_LIMIT, None, "free", 1, 1)


class World:
    """A gate, what is around it, and a tracer that says what it saw."""

    def __init__(self, clock, longest=None, limiter=None, **settings):
        self.settings = build_settings(settings)
        self.limiter = AnsweringLimiter() if limiter is None else limiter
        self.notices = Notices(logging.getLogger("celery_fairness"), clock)
        self.tier_cache = TierCache(self.settings, lambda: self.limiter, self.notices, clock)
        self.resender = FakeResender()
        self.ended = []
        self.gate = Gate(
            self.settings,
            self.limiter,
            self.tier_cache,
            self.resender,
            self.notices,
            self.ended.append,
            longest,
        )
        self.ran = []
        self.raises = None

    def tracer(self, uuid, args, kwargs, request=None):
        held = list(getattr(self.limiter, "leases", ()))
        self.ran.append(
            SimpleNamespace(
                id=uuid, held=held, request=dict(request), attempt=current_attempt.get()
            )
        )
        if self.raises is not None:
            raise self.raises
        return "traced"

    def deliver(self, tenant="42", tier=None, copy=None, task=None, known=None, **request):
        header = {"v": 1, "tenant": tenant} | ({"tier": tier} if tier else {})
        request = {"id": "t1", "headers": {HEADER: header}, HEADER: header, **request}
        if copy is not None:
            request[COPY_HEADER] = {"message": copy.message, "serial": copy.serial}
        if known is not None:
            request[ATTEMPT_KEY] = known
        trace = self.gate.wrap(task or a_task(), self.tracer)
        return trace("t1", ("a",), {"k": 1}, request)

    def occupy(self, tenant="42", tier="free"):
        lease = Lease(new_lease_id(), tier_key(tenant))
        self.limiter.acquire(SlotRequest(lease, tenant, tier))
        return lease


def a_task(name="shop.t", acks_late=False, **more):
    return SimpleNamespace(name=name, acks_late=acks_late, service=None, **more)


@pytest.fixture
def make(clock):
    return lambda longest=None, **settings: World(clock, longest, **settings)


@pytest.fixture
def world(make):
    return make()


def is_ignored(answer):
    info = getattr(answer, "info", None)
    return info is not None and info.state == IGNORED and isinstance(info.retval, Ignore)


def test_an_attempt_that_is_let_through_holds_a_slot_and_frees_it(world):
    assert world.deliver() == "traced"
    (ran,) = world.ran
    (lease,) = world.ended
    assert (ran.held, lease.key) == ([lease.id], "tenant:42")
    assert world.limiter.leases == {}
    assert world.resender.sent == []


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_the_slot_is_freed_whatever_the_trace_does(world, error):
    world.raises = error
    with pytest.raises(type(error)):
        world.deliver()
    assert world.limiter.leases == {}
    assert len(world.ended) == 1
    assert current_attempt.get() is None


def test_the_main_processs_lease_is_taken_and_its_note_is_not_seen_by_the_task(world):
    world.deliver(known={"lease": "from-main"})
    assert [lease.id for lease in world.ended] == ["from-main"]
    assert ATTEMPT_KEY not in world.ran[0].request


def test_the_main_process_has_read_the_tenant_of_the_message(world):
    """A function that reads the tenant from the arguments runs once for each message."""
    world.deliver(tenant="42", known={"attribution": Attribution("7", "tenant:7")})
    assert [lease.key for lease in world.ended] == ["tenant:7"]


def test_without_a_main_process_the_lease_is_made_here(world):
    world.deliver()
    world.deliver()
    first, second = world.ended
    assert first.id != second.id


def test_a_rejected_attempt_begins_nothing_and_goes_back_whole(world):
    world.limiter.reject(FULL)
    answer = world.deliver(known={"lease": None})
    assert is_ignored(answer)
    assert world.ran == world.ended == []
    (sent,) = world.resender.sent
    assert (sent.id, sent.args, sent.kwargs) == ("t1", ("a",), {"k": 1})
    assert sent.headers == {HEADER: {"v": 1, "tenant": "42"}}


def test_a_system_task_is_never_asked(world):
    world.limiter.away = True
    request = {"id": "t1", HEADER: {"v": 1}}
    assert world.gate.wrap(a_task(), world.tracer)("t1", (), {}, request) == "traced"
    assert world.ran[0].attempt is None


@pytest.mark.parametrize("name", ["celery.chord_unlock", "celery.backend_cleanup", "celery.chunks"])
def test_celerys_own_tasks_are_exempt(world, name):
    task = a_task(name)
    assert world.gate.wrap(task, world.tracer) == world.tracer


def test_a_request_may_be_missing(world):
    source = TenantSource("shop.t", "user", lambda user=None: None)
    trace = world.gate.wrap(a_task(tenant_source=source), world.tracer)
    assert trace("t1", ("42",), {}) == "traced"
    assert [request.tenant for request in world.limiter.requests] == ["42"]


@pytest.mark.parametrize(("args", "kwargs"), [(None, None), ("text", {}), ((), []), (3, 4)])
def test_arguments_that_celery_will_report_on_do_not_stop_the_gate(world, args, kwargs):
    source = TenantSource("shop.t", "user", lambda user=None: None)
    trace = world.gate.wrap(a_task(tenant_source=source), world.tracer)
    assert trace("t1", args, kwargs, {"id": "t1"}) == "traced"


class TestSnooze:
    """A rejected task waits snooze + uniform [0, jitter), never longer than the broker bears."""

    def countdowns(self, world, count=500):
        world.limiter.reject(FULL)
        for _ in range(count):
            world.deliver()
        return [sent.countdown for sent in world.resender.sent]

    def test_it_is_thirty_to_forty_seconds(self, world):
        random.seed(2)
        waits = self.countdowns(world)
        assert 30 <= min(waits) < 30.5
        assert 39.5 < max(waits) < 40
        # Evenly spread: no tenth of the range is empty or has more than twice its part.
        tenths = Counter(int(wait - 30) for wait in waits)
        assert set(tenths) == set(range(10))
        assert max(tenths.values()) < 100

    @pytest.mark.parametrize(("drawn", "wait"), [(0.0, 30.0), (0.5, 35.0), (0.999, 39.99)])
    def test_it_is_the_snooze_and_a_part_of_the_jitter(self, world, monkeypatch, drawn, wait):
        monkeypatch.setattr(random, "random", lambda: drawn)
        assert self.countdowns(world, 1) == [wait]

    def test_jitter_zero_is_the_snooze_alone(self, make):
        world = make(snooze_seconds=5, snooze_jitter_seconds=0)
        assert self.countdowns(world, 20) == [5.0] * 20

    @pytest.mark.parametrize(("longest", "wait"), [(20.0, 20.0), (30.0, 30.0), (33.0, 33.0)])
    def test_it_is_kept_below_the_visibility_timeout(self, make, monkeypatch, longest, wait):
        monkeypatch.setattr(random, "random", lambda: 0.9)
        assert self.countdowns(make(longest), 1) == [wait]

    def test_a_paused_tenant_waits_as_long(self, make):
        world = make(snooze_jitter_seconds=0)
        world.limiter.reject(replace(FULL, reason=Reason.PAUSED, retry_after_seconds=None))
        world.deliver()
        assert [sent.countdown for sent in world.resender.sent] == [30.0]


class TestCopies:
    """Of the copies that a broker may hold of one rejected message, one runs."""

    OLD = Copy("m1")

    @pytest.fixture
    def world(self, make, make_redis_limiter):
        return make(limiter=make_redis_limiter())

    def rejected(self, world, copy):
        blocker = world.occupy()
        assert is_ignored(world.deliver(copy=copy))
        world.limiter.release([blocker])
        sent = world.resender.sent[-1]
        assert sent.rejected == copy
        return Copy(copy.message, sent.serial)

    @pytest.mark.parametrize(
        "order", [("old", "new"), ("new", "old"), ("new", "new"), ("old", "old")]
    )
    def test_of_the_rejected_and_the_one_that_was_sent_the_first_to_ask_runs(self, world, order):
        copies = {"old": self.OLD, "new": self.rejected(world, self.OLD)}
        first, second = (copies[each] for each in order)
        assert world.deliver(copy=first) == "traced"
        # The same again is a redelivery: its worker may have died.
        again = world.deliver(copy=second)
        assert (again == "traced") == (first == second)
        assert is_ignored(again) == (first != second)
        assert world.limiter.counts().get("superseded", 0) == (first != second)
        # What was dropped was not sent back.
        assert len(world.resender.sent) == 1

    def test_a_copy_that_was_followed_twice_is_dropped(self, world):
        second = self.rejected(world, self.OLD)
        third = self.rejected(world, second)
        assert len({self.OLD.serial, second.serial, third.serial}) == 3
        assert is_ignored(world.deliver(copy=self.OLD))
        assert world.ran == []
        assert world.deliver(copy=third) == "traced"

    def test_a_message_without_a_copy_is_named_where_it_is_rejected_first(self, world):
        world.occupy()
        for _ in range(2):
            assert is_ignored(world.deliver())
        first, second = world.resender.sent
        assert (first.rejected.serial, second.rejected.serial) == ("", "")
        assert first.rejected.message != second.rejected.message
        # It is known by that name: of what was rejected and what is sent one starts.
        assert is_ignored(world.deliver(copy=Copy(first.rejected.message, "another")))
        assert world.limiter.counts()["superseded"] == 1

    @pytest.mark.parametrize(
        ("delivery", "queue"),
        [
            ({"routing_key": "q"}, "q"),
            # A message that RabbitMQ itself delayed.
            ({"routing_key": "0." * 27 + "1.q"}, "q"),
            ({"routing_key": 7}, ""),
            (None, ""),
        ],
    )
    def test_the_limiter_is_told_whom_events_name(self, make, delivery, queue):
        world = make()
        world.deliver(delivery_info=delivery)
        assert [request.job for request in world.limiter.requests] == [Job("t1", "shop.t", queue)]


@pytest.mark.parametrize(("user", "tenant"), [("42", "42"), (4.2, None)])
def test_a_task_whose_producer_sent_no_header_runs_with_one_for_the_tasks_that_it_sends(
    world, user, tenant
):
    """If its arguments are invalid, the next delivery reads them again."""
    task = a_task(tenant_source=TenantSource("shop.t", "user", lambda user=None: None))
    world.gate.wrap(task, world.tracer)("t1", (user,), {}, {"id": "t1", "x_trace": "abc"})
    (run,) = world.ran
    made = Context(run.request).headers
    assert made["x_trace"] == "abc"
    assert made.get(HEADER, {}).get("tenant") == tenant
    assert (HEADER in made) == (tenant is not None)


@pytest.mark.parametrize(
    ("enabled", "enforcement"), [("observe", Enforcement.OBSERVE), (False, Enforcement.OFF)]
)
def test_observe_and_off_let_a_task_run_that_is_over_its_limit(make, enabled, enforcement):
    world = make(enabled=enabled)
    world.limiter.reject(FULL)
    assert world.deliver() == "traced"
    assert len(world.ran[0].held) == 1
    assert [asked for _, asked in world.limiter.called("acquire")] == [enforcement]


class TestTiers:
    """An attempt is judged by the best that is known of its tenant."""

    def asked(self, world):
        return [request.tier for request in world.limiter.requests]

    @pytest.mark.parametrize("tier", ["free", "pro", "enterprise"])
    def test_by_the_header_while_nothing_better_is_known(self, world, tier):
        world.deliver(tier=tier)
        assert self.asked(world) == [tier]

    def test_by_the_resolver_over_the_header(self, make):
        world = make(tier_resolver=lambda tenant: "pro")
        world.deliver(tier="free")
        assert self.asked(world) == ["pro"]

    def test_news_come_with_every_answer(self, world):
        world.limiter.publish_tenant("42", "pro")
        world.deliver(tier="free")
        world.deliver(tier="free")
        assert self.asked(world) == ["free", "pro"]


class TestInvalid:
    """A header that cannot be read is charged to a tenant of its own, and said."""

    def test_it_is_charged_counted_and_logged(self, world, caplog):
        request = {"id": "t1", HEADER: "nonsense"}
        trace = world.gate.wrap(a_task(), lambda *args: "traced")
        assert trace("t1", (), {}, dict(request)) == "traced"
        assert [lease.key for lease in world.ended] == ["tenant:_invalid"]
        assert world.limiter.counts() == {"invalid": 1}
        assert caplog.messages == [
            (
                "task shop.t is attributed to the tenant _invalid: "
                "header 'fairness': expected an object, got: str"
            )
        ]

    def test_it_is_limited_as_one_tenant(self, world):
        world.limiter.reject(FULL)
        trace = world.gate.wrap(a_task(), world.tracer)
        assert is_ignored(trace("t1", (), {}, {"id": "t1", HEADER: {"v": 9}}))
        (request,) = world.limiter.requests
        assert (request.tenant, request.lease.key) == ("_invalid", "tenant:_invalid")


class TestLimiterAway:
    """While Redis is away a task is deferred, let through, or failed, as the settings say."""

    @pytest.fixture
    def away(self, make):
        def make_away(**settings):
            world = make(**settings)
            world.limiter.away = True
            return world

        return make_away

    def test_defer_sends_the_same_copy_back(self, away, caplog):
        world = away()
        assert is_ignored(world.deliver(copy=Copy("m1", "s1")))
        (sent,) = world.resender.sent
        assert 30 <= sent.countdown < 40
        # The limiter knows of no other.
        assert (sent.rejected, sent.serial) == (Copy("m1", "s1"), "s1")
        assert "(redis_lost is 'defer')" in caplog.text
        world.limiter.away = False
        assert world.deliver(copy=Copy("m1", "s1")) == "traced"

    def test_open_runs_it_without_a_slot_and_counts_it_later(self, away, caplog):
        world = away(redis_lost="open")
        for _ in range(3):
            assert world.deliver() == "traced"
        assert [ran.held for ran in world.ran] == [[], [], []]
        world.limiter.away = False
        world.deliver()
        world.deliver()
        assert world.limiter.counts() == {"opened": 3}
        assert len(caplog.messages) == 1

    def test_closed_hands_the_error_to_the_body(self, away):
        world = away(redis_lost="closed")
        assert world.deliver() == "traced"
        error = world.ran[0].attempt.error
        assert isinstance(error, LimiterUnavailable)
        assert world.resender.sent == []


class TestBrokerAway:
    """A rejected task that cannot be sent back stays where it is, or is said whole."""

    @pytest.fixture
    def stuck(self, world):
        world.limiter.reject(FULL)
        world.resender.fails_with = TypeError("cannot be serialised")
        return world

    def test_a_late_acked_message_is_put_back(self, stuck):
        answer = stuck.deliver(task=a_task(acks_late=True))
        assert answer.info.state == REJECTED
        assert isinstance(answer.info.retval, Reject)
        assert answer.info.retval.requeue is True

    def test_an_early_acked_one_fails_and_is_logged_whole(self, stuck, caplog, monkeypatch):
        """Without a result a chord would wait for it for ever."""
        stored = []
        monkeypatch.setattr(
            "celery_fairness.worker.gate.gate.write_failure",
            lambda _task, context, error, *, store: stored.append((context.id, error, store)),
        )
        task = a_task(ignore_result=False, store_errors_even_if_ignored=False)
        assert stuck.deliver(task=task, retries=2).info.state == FAILURE
        assert stored == [("t1", stuck.resender.fails_with, True)]
        (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
        text = record.getMessage()
        assert "it is lost unless it is sent again" in text
        for part in ('"task": "shop.t"', '"id": "t1"', '"args": ["a"]', '"retries": 2', '"42"'):
            assert part in text

    @pytest.mark.parametrize(("acks_late", "state"), [(True, REJECTED), (False, IGNORED)])
    def test_a_stopping_worker_that_gave_up_says_the_same(self, world, acks_late, state):
        world.limiter.reject(FULL)
        world.resender.stopping = True
        assert world.deliver(task=a_task(acks_late=acks_late)).info.state == state


def test_lease_ids_are_of_one_attempt():
    assert len({new_lease_id() for _ in range(1000)}) == 1000
