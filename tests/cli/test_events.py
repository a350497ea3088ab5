"""Events: each row of the table by what causes it, pages, followers, and the command."""

from __future__ import annotations

import json
import threading
import time

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.tiers import Tier
from celery_fairness.control.health.event_types import TYPES
from celery_fairness.limiter.types import Job, Lease, Parking, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict, Waiting
from tests.cli.conftest import RULES
from tests.support.parts import parts_of
from tests.support.waiting import at_most, eventually

KEY = "api.stripe.com"
#: The field of a head that has the time since when its task waits.
PUT = 10


def message(job_id="4fd6", task="shop.pay"):
    headers = {"lang": "py", "task": task, "id": job_id, "stamps": {"id": "another"}}
    return json.dumps({"body": "W10=", "headers": headers, "properties": {}})


class Causes:
    """What makes each type of event happen, to a task of the id 4fd6 where it is about one."""

    def __init__(self, fairness, installation):
        self.fairness = fairness
        self.installation = installation

    def put(self, tenant="7", **fields):
        fields = {"task_id": "4fd6", "kind": "shop.pay"} | fields
        waiting = Waiting("celery", "tag", tenant, message=message(), **fields)
        self.installation.run(calls.PUT, calls.put_args(waiting))

    def run_one(self, *verdicts):
        (task,) = self.installation.claim()
        for verdict in verdicts:
            self.installation.settle(task, verdict)
        return task

    def let_its_lease_end(self, state):
        self.put()
        task = self.run_one(state)
        # A lease of the past: whoever claims next sees to it.
        key = self.installation.key("ends")
        self.installation.client.zadd(key, {task.lease: 1})
        self.installation.run(calls.NEXT_OUTCOME, calls.next_outcome_args("", RULES))

    def exceeded(self):
        limits = write_limits([Limit(KEY, concurrency=1)])
        waiting = Waiting("celery", "first", "8", message="{}", limits=limits)
        self.installation.run(calls.PUT, calls.put_args(waiting))
        (self.first,) = self.installation.claim()
        self.put(limits=limits)
        assert self.installation.claim() == []

    def released(self):
        self.exceeded()
        self.installation.settle(self.first)
        assert len(self.installation.claim()) == 1

    def dropped(self):
        limits = write_limits([Limit(KEY, concurrency=1, on_limit="drop")])
        waiting = Waiting("celery", "first", "8", message="{}", limits=limits)
        self.installation.run(calls.PUT, calls.put_args(waiting))
        assert len(self.installation.claim()) == 1
        self.put(limits=limits)
        assert self.installation.claim() == []

    def dynamic_adjusted(self):
        self.fairness.limits.cool_down(KEY, for_seconds=60, reason="ticket 7")

    def cool_down_cleared(self):
        self.fairness.limits.cool_down(KEY, for_seconds=60)
        self.fairness.limits.clear_cool_down(KEY)

    def paused(self):
        self.fairness.limits.pause(KEY)

    def resumed(self):
        self.fairness.limits.pause(KEY)
        self.fairness.limits.resume(KEY)

    def override_set(self):
        self.fairness.limits.override(KEY, concurrency=2, rate=None)

    def override_ended(self):
        self.override_set()
        self.fairness.limits.clear_override(KEY)

    def queue_limit_set(self):
        self.fairness.queues.set_limit("celery", global_limit=2, rate="5/PT1S", on_limit="drop")

    def queue_limit_cleared(self):
        self.queue_limit_set()
        self.fairness.queues.clear_limit("celery")

    def tier_set(self):
        self.fairness.tenants.set_tier("42", "pro", concurrency=7)
        self.fairness.tenants.set_tier("42", "pro", concurrency=7)

    def tier_cleared(self):
        self.tier_set()
        self.fairness.tenants.clear_tier("42")
        self.fairness.tenants.clear_tier("42")

    def tiers_published(self):
        for _ in range(2):
            self.fairness.tenants.publish_tiers([Tier("free", 1), Tier("pro", 2)])

    def duplicate(self):
        waiting = Waiting("celery", "first", "8", message="{}", unique="d|0|sync:7")
        self.installation.run(calls.PUT, calls.put_args(waiting))
        self.put(unique="d|0|sync:7")

    def replaced(self):
        self.put(unique="r|0|sync:7")
        waiting = Waiting("celery", "newer", "8", message="{}", unique="r|0|sync:7")
        self.installation.run(calls.PUT, calls.put_args(waiting))

    def expired(self):
        self.put(expires_ms=1)
        assert self.installation.claim() == []

    def cancelled(self):
        self.put()
        self.fairness.tasks.cancel("4fd6")

    def purged(self):
        self.put()
        self.installation.run(calls.PURGE, ["celery"])

    def lease_expired(self):
        self.let_its_lease_end(Verdict.BEGUN)

    def abandoned(self):
        self.let_its_lease_end(Verdict.ACKED)

    def dead_lettered(self):
        self.put()
        self.run_one(Verdict.BEGUN, Verdict.DIED)

    def requeued(self):
        self.dead_lettered()
        self.fairness.tasks.requeue("4fd6")

    def memory_lost(self):
        self.put()
        for _ in range(2):
            args = calls.announce_args(RULES, "", 0, 86_400_000)
            self.installation.run(calls.ANNOUNCE, args)

    def unpublished(self):
        limiter, words = parts_of(self.fairness).limiter, write_limits([Limit(KEY, concurrency=1)])
        first = SlotRequest(Lease("first.1", KEY), "", "", Copy("first"), "n1", words)
        limiter.acquire(first)
        job = Job("4fd6", "shop.pay", "celery")
        waits = SlotRequest(Lease("4fd6.1", KEY), "", "", Copy("4fd6"), "n2", words, job)
        limiter.acquire(waits)
        parked = json.dumps(json.loads(message()) | {"routing_key": "celery"})
        assert limiter.park(waits, parked) is Parking.PARKED
        limiter.release([first.lease])
        (task,) = limiter.promote(1).tasks
        client = self.installation.client
        seq, attempt, _, *rest = client.hget("{fairness}:tasks", "4fd6").split(" ")
        nine = " ".join((seq, attempt, "9", *rest))
        client.hset("{fairness}:tasks", "4fd6", nine)
        limiter.end_promotion(task, "rejected")

    def trace_started(self):
        self.fairness.events.trace(60)
        self.fairness.events.trace(60)

    def task_put(self):
        self.trace_started()
        self.put(tier="pro", cost=2.5, rank=3)

    def task_started(self):
        self.task_put()
        return self.run_one()

    def task_ended(self):
        self.installation.settle(self.task_started())


@pytest.fixture
def shop(client):
    """The default namespace, in which nothing is yet."""
    from tests.cli.conftest import Installation

    return Installation(client)


@pytest.fixture
def causes(fairness, shop):
    return Causes(fairness, shop)


TASK = {"job_id": "4fd6", "job_type": "shop.pay", "queue": "celery"}
#: What is told beside times.
TOLD = {
    "rate_limit.exceeded": {
        **TASK,
        "key": KEY,
        "strategy": "concurrency",
        "limit": 1,
        "current": 1,
    },
    "rate_limit.released": {**TASK, "key": KEY, "strategy": "concurrency"},
    "rate_limit.dropped": {**TASK, "key": KEY},
    "rate_limit.dynamic_adjusted": {"key": KEY, "reason": "ticket 7"},
    "fairness.cool_down_cleared": {"key": KEY},
    "fairness.paused": {"key": KEY, "by": "ada"},
    "fairness.resumed": {"key": KEY, "by": "ada"},
    "fairness.override_set": {"key": KEY, "numbers": {"concurrency": 2, "rate": None}},
    "fairness.override_ended": {"key": KEY},
    "fairness.queue_limit_set": {
        "key": "queue:celery",
        "numbers": {
            "concurrency": 2,
            "rate": {"limit": 5, "period": "PT1S"},
            "on_limit": "drop",
        },
        "partition": {},
    },
    "fairness.queue_limit_cleared": {"key": "queue:celery"},
    "fairness.tier_set": {"key": "tenant:42", "tier": "pro", "numbers": {"concurrency": 7}},
    "fairness.tier_cleared": {"key": "tenant:42"},
    "fairness.tiers_published": {"source": "database"},
    "fairness.duplicate": {**TASK, "of": "first"},
    "fairness.replaced": {**TASK, "by": "newer"},
    "fairness.expired": TASK,
    "fairness.cancelled": TASK,
    "fairness.purged": {"queue": "celery", "tasks": 1},
    "fairness.lease_expired": {**TASK, "owner": "worker-1", "state": "begun"},
    "fairness.abandoned": {**TASK, "owner": "worker-1"},
    "fairness.dead_lettered": {**TASK, "reason": "dead", "deaths": 1},
    "fairness.requeued": TASK,
    "fairness.unpublished": TASK,
    "fairness.memory_lost": {"since": "1970-01-02T00:00:00.000Z"},
    "trace.started": {},
    "task.put": {**TASK, "key": "tenant:7", "tier": "pro", "cost": 2.5, "rank": 3},
    "task.started": {**TASK, "key": "tenant:7", "attempt": 1, "owner": "worker-1"},
    "task.ended": {
        **TASK,
        "key": "tenant:7",
        "attempt": 1,
        "owner": "worker-1",
        "outcome": "done",
    },
}
#: Times and durations.
PASSING = ("until", "eta", "waited_seconds", "ran_seconds")


@pytest.mark.parametrize("name", TYPES)
def test_each_event_is_told_by_what_causes_it_and_says_what_its_row_says(causes, fairness, name):
    getattr(causes, name.removeprefix("rate_limit.").removeprefix("fairness.").replace(".", "_"))()
    (event,) = fairness.events.read(types=[name]).events
    assert set(event.data) == set(TYPES[name].fields)
    data = {field: value for field, value in event.data.items() if field not in PASSING}
    assert data == TOLD[name]
    assert event.subject == TOLD[name].get("job_id", "")


def test_what_changes_nothing_tells_nothing(fairness, shop):
    fairness.queues.clear_limit("celery")
    for _ in range(2):
        fairness.limits.pause(KEY)
    fairness.limits.cool_down(KEY, for_seconds=60)
    fairness.limits.cool_down(KEY, for_seconds=5)
    for _ in range(2):
        fairness.limits.resume(KEY)
        fairness.limits.clear_cool_down(KEY)
    fairness.tenants.purge("nobody")
    assert [each.type for each in fairness.events.read().events] == [
        "fairness.paused",
        "rate_limit.dynamic_adjusted",
        "fairness.resumed",
        "fairness.cool_down_cleared",
    ]


def test_a_message_without_an_id_is_told_by_its_tag_and_kind(fairness, shop):
    shop.put("1", "t1", kind="shop.pay")
    fairness.tasks.cancel("t1")
    (event,) = fairness.events.read(types=["fairness.cancelled"]).events
    assert (event.data["job_id"], event.data["job_type"]) == ("t1", "shop.pay")


def test_a_task_that_celery_sent_is_told_by_its_id(fairness, shop):
    headers = {"stamped": {"id": "no", "task": "no"}, "fairness": {"v": 1, "tenant": "42"}}
    sent = parts_of(fairness).app.send_task("shop.work", (["[", {"id": "no"}],), headers=headers)
    fairness.tasks.cancel(sent.id)
    (event,) = fairness.events.read(types=["fairness.cancelled"]).events
    assert event.subject == sent.id
    assert event.data["job_type"] == "shop.work"


def stop_all(fairness, keys):
    for key in keys:
        fairness.limits.pause(key)
        fairness.limits.resume(key)


def test_pages_follow_each_other_and_miss_nothing(fairness, shop):
    keys = [f"k{number}" for number in range(5)]
    stop_all(fairness, keys)
    seen, cursor, pages = [], None, 0
    while True:
        page = fairness.events.read(after=cursor, types=["fairness.paused"], limit=2)
        seen += [event.data["key"] for event in page.events]
        cursor, pages = page.cursor, pages + 1
        if not page.has_more:
            break
    assert (seen, pages) == (keys, 3)
    # The cursor stands behind what was not asked for, too.
    empty = fairness.events.read(after=cursor)
    assert (empty.events, empty.cursor, empty.has_more) == ((), cursor, False)
    fairness.limits.pause("late")
    (late,) = fairness.events.read(after=cursor).events
    assert late.data["key"] == "late"


def test_before_anything_has_happened_there_is_no_cursor(fairness, shop):
    page = fairness.events.read()
    assert (page.events, page.cursor, page.has_more) == ((), None, False)


def test_a_page_is_read_in_pieces(fairness, shop, monkeypatch):
    monkeypatch.setattr("celery_fairness.control.health.event_streams.TOGETHER", 2)
    monkeypatch.setattr("celery_fairness.control.health.event_streams.LEAST", 2)
    keys = [f"k{number}" for number in range(4)]
    stop_all(fairness, keys)
    page = fairness.events.read(types=["fairness.resumed"])
    assert [event.data["key"] for event in page.events] == keys


def test_the_stream_keeps_the_last_ten_thousand_and_a_few_more(fairness, shop):
    fairness.limits.pause(KEY)
    with shop.client.pipeline() as pipe:
        for _ in range(10_500):
            pipe.xadd(shop.key("events"), {"type": "rate_limit.exceeded", "key": "filling"})
        pipe.execute()
    fairness.limits.resume(KEY)
    assert 10_000 <= shop.client.xlen(shop.key("events")) <= 10_200
    keys = [each.data["key"] for each in fairness.events.read(limit=2).events]
    assert keys == [KEY, "filling"]


MIXED = (
    "types: expected some of task.ended, task.put, task.started, trace.started, or none of them, "
    "got: fairness.paused, task.put"
)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"limit": 0}, "limit: expected a whole number from 1 to 1000, got: 0"),
        ({"limit": 1001}, "limit: expected a whole number from 1 to 1000, got: 1001"),
        ({"limit": True}, "limit: expected a whole number from 1 to 1000, got: True"),
        ({"after": "5-0"}, "after: expected the id of an event, as 'evt_…', got: '5-0'"),
        ({"types": ["nothing"]}, "task.started, trace.started, got: 'nothing'"),
        ({"last": 0}, "last: expected a whole number from 1 to 1000, got: 0"),
        ({"last": 5, "after": "evt_"}, "expected after or last, got: both"),
        ({"types": ["task.put", "fairness.paused"]}, MIXED),
    ],
)
def test_wrong_arguments_name_what_is_expected(fairness, wrong, problem):
    with pytest.raises(ValueError, match="expected") as told:
        fairness.events.read(**wrong)
    assert problem in str(told.value)


def test_who_follows_sees_what_comes_and_can_go_on_after_it(fairness, make_fairness, shop):
    fairness.limits.pause("before")
    (before,) = fairness.events.read().events
    seen = []

    def follow():
        for event in make_fairness().events.follow(types=["fairness.paused"]):
            seen.append(event)
            if len(seen) == 2:
                return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    keys = iter(f"k{number}" for number in range(10_000))

    def told():
        # It may not have begun to listen at the first.
        fairness.limits.resume("other")
        fairness.limits.pause(next(keys))
        return not follower.is_alive()

    eventually(told, at_most(30))
    first, second = (event.data["key"] for event in seen)
    assert int(second[1:]) == int(first[1:]) + 1
    again = fairness.events.follow(after=before.id)
    assert next(again).data["key"] == "k0"


def test_who_follows_wrongly_hears_of_it_at_once(fairness):
    with pytest.raises(ValueError, match="after: expected"):
        fairness.events.follow(after="x")


# -- what becomes of each task --------------------------------------------------------------------

TASKS = ["task.put", "task.started", "task.ended"]


def test_what_becomes_of_tasks_is_apart_from_what_people_must_see(fairness, shop, causes):
    causes.task_ended()
    fairness.limits.pause(KEY)
    assert [each.type for each in fairness.events.read().events] == ["fairness.paused"]
    page = fairness.events.read(types=TASKS, limit=2)
    assert [each.type for each in page.events] == TASKS[:2]
    assert page.has_more
    (ended,) = fairness.events.read(after=page.cursor, types=TASKS).events
    assert ended.type == "task.ended"
    assert 0 <= ended.data["ran_seconds"] < 60


def test_a_wait_that_nobody_knows_is_none(fairness, shop, causes, client):
    causes.task_put()
    head = client.hget(shop.key("tasks"), "tag").split(" ")
    assert head[PUT].isdigit()
    head[PUT] = ""
    client.hset(shop.key("tasks"), "tag", " ".join(head))
    causes.run_one()
    (started,) = fairness.events.read(types=["task.started"]).events
    assert started.data["waited_seconds"] is None


def test_events_of_both_streams_have_ids_of_their_own(fairness, shop):
    for stream, name in (("events", "fairness.paused"), ("trace", "task.put")):
        shop.client.xadd(shop.key(stream), {"type": name}, id="5-0")
    (paused,) = fairness.events.read().events
    (put,) = fairness.events.read(types=TASKS).events
    assert paused.id != put.id
    assert paused.source == put.source
    assert fairness.events.read(after=put.id).events == ()


def test_who_follows_tasks_watches_them_for_as_long(fairness, shop, causes, monkeypatch):
    monkeypatch.setattr("celery_fairness.control.health.events_api.WATCH_AGAIN_SECONDS", 0.0)
    followed = fairness.events.follow(types=["trace.started", *TASKS])
    assert next(followed).type == "trace.started"

    def until_ms():
        return int(shop.client.hget(shop.key("clock"), "traced"))

    causes.put()
    assert next(followed).type == "task.put"
    first = until_ms()
    task = causes.run_one()
    assert next(followed).type == "task.started"
    shop.settle(task)
    assert next(followed).type == "task.ended"
    assert until_ms() > first


def test_a_slow_follower_goes_on_watching_and_hears_where_it_missed_some(
    fairness, shop, causes, monkeypatch
):
    monkeypatch.setattr("celery_fairness.control.health.events_api.WATCH_AGAIN_SECONDS", 0.0)
    followed = fairness.events.follow(types=["task.put"])
    # Others of its batch are still to come.
    for number in range(2):
        causes.put(tenant=str(number), cost=1.0 + number)
        shop.run_all()
    assert [next(followed).type for _ in range(2)] == ["trace.started", "task.put"]
    shop.client.hset(shop.key("clock"), "traced", 1)
    assert next(followed).type == "task.put"
    assert next(followed).type == "trace.started"


def test_who_follows_the_rest_watches_no_tasks(fairness, shop):
    followed = fairness.events.follow(types=["fairness.paused"])
    fairness.limits.pause(KEY)
    assert next(followed).type == "fairness.paused"
    assert not shop.client.hexists(shop.key("clock"), "traced")


@pytest.mark.parametrize("wrong", [0, -1, True, "60", None, 86_401])
def test_a_watch_lasts_some_seconds(fairness, wrong):
    with pytest.raises(ValueError, match=r"for_seconds: expected "):
        fairness.events.trace(wrong)


def test_a_trace_and_a_boost_last_until_a_time(fairness, shop):
    until = time.time() + 100
    fairness.events.trace(until=until)
    ends_ms = int(shop.client.hget(shop.key("clock"), "traced"))
    assert ends_ms / 1000 == pytest.approx(until, abs=1)
    boosted = fairness.tenants.boost("42", until=until, by="eve").override
    assert (boosted.by, boosted.expires_at.timestamp()) == ("eve", pytest.approx(until, abs=1))


def test_a_gate_tells_starts_and_ends_of_its_tasks(redis_url, make_fairness):
    gate = make_fairness(url=redis_url)
    gate.events.trace(60)
    request = SlotRequest(
        *(Lease("w1@t1", "tenant:42"), "42", "free"), job=Job("t1", "shop.pay", "celery")
    )
    parts_of(gate).limiter.release_soon(parts_of(gate).limiter.acquire(request).lease)

    def both_are_told():
        events = gate.events.read(types=TASKS).events
        assert [each.type for each in events] == ["task.started", "task.ended"]
        started, ended = events
        assert started.subject == ended.subject == "t1"
        # Nobody knows there how often it was tried, nor since when it waits.
        assert started.data["attempt"] is started.data["waited_seconds"] is None
        assert ended.data["outcome"] == "done"
        assert 0 <= ended.data["ran_seconds"] < 60

    eventually(both_are_told)


# -- the command ----------------------------------------------------------------------------------


def test_the_command_shows_what_happened_and_how_to_go_on(run, fairness, shop):
    assert run("events").output == "no events\n"
    fairness.limits.pause("before")
    before = fairness.events.read().cursor
    stop_all(fairness, [KEY])
    done = run("events", "--after", before, "--limit", "1")
    line, _, note = done.output.splitlines()
    assert line.endswith(f"  fairness.paused  key={KEY} by=ada")
    cursor = fairness.events.read(after=before, limit=1).cursor
    assert note == f"note: there are more: --after {cursor}"
    assert run("events", "--after", cursor).output.endswith(
        f"  fairness.resumed  key={KEY} by=ada\n"
    )


def test_programs_get_the_answer_to_a_poll(run, fairness, shop):
    stop_all(fairness, [KEY, "other"])
    done = run("events", "--json", "--types", "fairness.resumed,rate_limit.dropped")
    page = fairness.events.read(types=["fairness.resumed"])
    assert json.loads(done.stdout) == page.model_dump(mode="json")


def test_followers_get_a_line_for_each(run, fairness, shop, monkeypatch):
    stop_all(fairness, [KEY])
    events = fairness.events.read().events

    def until_control_c(*_):
        yield from events
        raise KeyboardInterrupt

    monkeypatch.setattr(type(fairness.events), "follow", until_control_c)
    done = run("events", "--follow")
    assert done.exit_code == 0
    assert [line.split()[2] for line in done.output.splitlines()] == [e.type for e in events]
    lines = run("events", "--follow", "--json").output.splitlines()
    assert list(map(json.loads, lines)) == [event.model_dump(mode="json") for event in events]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--types", "nothing"), "task.started, trace.started, got: 'nothing'"),
        (("--after", "x"), "after: expected the id of an event"),
        (("--after", "x", "--follow"), "after: expected the id of an event"),
        (("--after", "x", "--limit", "0"), "0 is not in the range 1<=x<=1000"),
    ],
)
def test_wrong_usage_names_what_is_expected(run, args, problem):
    done = run("events", *args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


def test_text_in_an_event_does_not_steer_the_terminal(run, fairness, shop):
    fairness.limits.cool_down(KEY, for_seconds=60, reason="\x1b[2J")
    assert "\x1b" not in run("events").output
