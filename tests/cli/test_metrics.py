"""The metrics of an installation, computed from Redis: each number against a known scene."""

from __future__ import annotations

import math
import time
from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from celery_fairness import FairTask, RateLimitPolicy
from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.config.rates import Rate
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tiers import Tier
from celery_fairness.control.health import metric_table as table
from celery_fairness.control.health import metrics
from celery_fairness.control.health.metrics import POWERS, QUEUES
from celery_fairness.control.health.stats_api import MINUTE_MS
from celery_fairness.control.installation.views import WorkerStatus
from celery_fairness.control.queue.backlog import CALL_TENANTS, NOT_CHECKED, TENANTS, backlogs
from celery_fairness.limiter.types import Job, Lease, SlotRequest
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Verdict, Waiting
from tests.cli.conftest import RULES
from tests.cli.test_queues_api import declare
from tests.support.parts import parts_of

API = write_limits([Limit("api", concurrency=2)])
#: Fields of the totals; claims and gates count the others as those of one queue.
TOTAL_FIELDS_AT_MOST = 2000


def read(fairness, metric):
    """Return the samples of one metric by their labels."""
    (family,) = [each for each in fairness.stats.metrics() if each.metric is metric]
    return {sample.labels: sample.value for sample in family.samples}


def buckets(fairness, metric, *labels):
    (family,) = [each for each in fairness.stats.metrics() if each.metric is metric]
    (sample,) = [each for each in family.samples if each.labels == labels]
    return sample


def announce(shop, now_ms, *limits):
    shop.run(calls.ANNOUNCE, calls.announce_args(RULES, "", 0, None, str(now_ms), limits))


def claim_at(shop, now_ms, want=100, queue="celery", rules=RULES):
    shop.number += 1
    args = calls.claim_args("w", shop.number, want, [queue], rules, str(now_ms))
    return calls.read_claim(shop.run(calls.CLAIM, args)).tasks


def test_waiting_tasks_are_counted_by_the_reason_for_which_they_wait(shop, fairness):
    for number in range(3):
        shop.put("42", f"a{number}", tier="free")
        shop.put("43", f"b{number}", tier="free", limits=API)
        shop.put("44", f"c{number}", tier="pro", limits=API)
        shop.put("45", f"d{number}", tier="free")
    shop.put("46", "late", eta_ms=9_000_000_000_000, queue="other")
    fairness.tenants.pause("45")
    waiting = read(fairness, table.WAITING)
    assert waiting == {
        ("celery", "free", "ready"): 2,
        ("celery", "free", "tier"): 4,
        ("celery", "free", "paused"): 3,
        ("celery", "pro", "ready"): 1,
        ("celery", "pro", "limit"): 2,
        ("other", "", "scheduled"): 1,
    }
    assert read(fairness, table.STARTABLE)["celery",] == 3


def test_only_so_many_tasks_are_startable_as_a_shared_limit_has_room(shop, fairness):
    for tenant in ("42", "43", "44"):
        for number in range(5):
            shop.put(tenant, f"{tenant}-{number}", tier="enterprise", limits=API)
    waiting = read(fairness, table.WAITING)
    # No claim has looked at the limit yet.
    assert waiting == {
        ("celery", "enterprise", "ready"): 2,
        ("celery", "enterprise", "limit"): 13,
    }


def test_tasks_that_waited_at_a_limit_are_startable_once_it_is_open(shop, fairness):
    """Without workers nobody claims, and an autoscaler must see that somebody should."""
    for number in range(5):
        shop.put("42", f"t{number}", tier="enterprise", limits=API)
    rules = Rules(default_limit=None)
    running = shop.claim(5, rules=rules)
    shop.claim(5, rules=rules)
    assert len(running) == 2
    assert read(fairness, table.WAITING) == {("celery", "enterprise", "limit"): 3}
    for task in running:
        shop.run(calls.SETTLE, calls.settle_args([_end(task)], rules))
    assert read(fairness, table.WAITING) == {
        ("celery", "enterprise", "ready"): 2,
        ("celery", "enterprise", "limit"): 1,
    }


def test_a_queue_limit_a_pause_and_a_cool_down_have_their_own_reasons(shop, make_fairness):
    fairness = make_fairness(fairness={"queues": {"celery": {"global_limit": 1}}})
    parts_of(fairness).limiter.limit_queue(
        "set", "celery", parts_of(fairness).settings.queues["celery"].limit
    )
    for number in range(3):
        shop.put("42", f"t{number}", tier="enterprise")
        shop.put("42", f"c{number}", tier="enterprise", queue="cooled", limits=API)
        shop.put("42", f"p{number}", tier="enterprise", queue="paused", limits=_limit("slow"))
    fairness.limits.cool_down("api", for_seconds=60)
    fairness.limits.pause("slow")
    assert read(fairness, table.WAITING) == {
        ("celery", "enterprise", "ready"): 1,
        ("celery", "enterprise", "queue"): 2,
        ("cooled", "enterprise", "cool_down"): 3,
        ("paused", "enterprise", "paused"): 3,
    }


def test_a_rate_and_a_throttle_hold_back_what_they_do(shop, fairness):
    rated = write_limits([Limit("rated", rate=((3, 60_000),))])
    spaced = write_limits([Limit("spaced", throttle=((3, 60_000),))])
    for number in range(5):
        shop.put("42", f"r{number}", tier="enterprise", queue="rated", limits=rated)
        shop.put("42", f"s{number}", tier="enterprise", queue="spaced", limits=spaced)
    assert len(shop.claim(1, queue="rated", rules=Rules(default_limit=None))) == 1
    waiting = read(fairness, table.WAITING)
    assert waiting["rated", "enterprise", "ready"] == 2
    assert waiting["rated", "enterprise", "limit"] == 2
    assert waiting["spaced", "enterprise", "ready"] == 1


def soft(_shop, fairness):
    fairness.tenants.publish_tiers([Tier("free", 1, burst=2)])


def slow(_shop, fairness):
    fairness.tenants.publish_tiers([Tier("free", 9, rate=Rate(2, 3_600))])


def parted(_shop, fairness):
    declare(fairness, celery={"by_kind": True, "partition": {"concurrency": 2}})


def overridden(_shop, fairness):
    policy = RateLimitPolicy("api.stripe", concurrency=9)

    @parts_of(fairness).app.task(name="pay", base=FairTask, limits=[policy], shared=False)
    def pay() -> None:
        """Call the API."""

    fairness.limits.override("api.*", concurrency=2)


def reported(_shop, fairness):
    headers = {"RateLimit-Remaining": "2", "RateLimit-Reset": "600"}
    fairness.limits.report("memory", headers)


#: What two tasks that run and one that waits have of a number: what makes it, the limit of each
#: task, the tenants, the reason of the wait, the strategy and the key of the rejection, and the
#: slots that the key holds and has, if it is a label.
SCENES = {
    "burst": (soft, None, "aaa", "tier", ("_other", "concurrency"), None),
    "rate of a tier": (slow, None, "aaa", "tier", ("_other", "rate"), None),
    "partition": (
        *(parted, Limit("queue:celery:7", of=OF_QUEUE), "abc"),
        *("queue", ("_other", "concurrency"), None),
    ),
    "pattern": (
        *(overridden, Limit("api.stripe", concurrency=9), "abc"),
        *("limit", ("api.stripe", "concurrency"), (2, 2)),
    ),
    "slots": (
        *(None, Limit("memory", concurrency=5, slots=2), "abc"),
        *("limit", ("memory", "concurrency"), (4, 5)),
    ),
    "units": (
        *(None, Limit("tokens", rate=((100, 3_600_000),), units=40), "abc"),
        *("limit", ("tokens", "rate"), (2, math.inf)),
    ),
    "report": (
        *(reported, Limit("memory", concurrency=9), "abc"),
        *("cool_down", ("memory", "cool-down"), (2, 9)),
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_each_number_is_in_the_metrics(shop, fairness, name):
    prepare, limit, tenants, reason, rejection, slots = SCENES[name]
    if prepare is not None:
        prepare(shop, fairness)
    limits = "" if limit is None else write_limits([limit])
    for number, tenant in enumerate(tenants):
        shop.put(tenant, f"t{number}", tier="free", limits=limits)
    assert len(shop.claim()) == 2
    assert shop.claim() == []
    assert read(fairness, table.WAITING) == {("celery", "free", reason): 1}
    assert read(fairness, table.STARTABLE)["celery",] == 0
    assert sum(read(fairness, table.RUNNING).values()) == 2
    assert read(fairness, table.OJS_EXCEEDED) == {rejection: 1}
    assert read(fairness, table.REJECTIONS) == {(rejection[1],): 1}
    if slots is not None:
        key = rejection[:1]
        facts = (table.LIMIT_HELD, table.LIMIT_MAXIMUM, table.LIMIT_SATURATED, table.OJS_ACTIVE)
        assert [read(fairness, each)[key] for each in facts] == [*slots, 1, slots[0]]
        assert read(fairness, table.OJS_WAITING)[key] == 1


def test_tasks_that_end_because_of_their_unique_key_are_counted(shop, fairness):
    shop.put("a", "t1", unique="d|0|sync")
    for number, action in enumerate("drr"):
        with suppress(ResponseError):
            shop.put("a", f"n{number}", unique=f"{action}|0|sync")
    assert read(fairness, table.DUPLICATES) == {("dropped",): 1, ("replaced",): 2}


def test_the_oldest_wait_is_that_of_the_reason(shop, fairness):
    now = int(time.time() * 1000)
    for number, age in enumerate((90_000, 60_000, 30_000)):
        fields = _waiting("42", f"t{number}", "free")
        shop.run(calls.PUT, calls.put_args(fields, str(now - age)))
    oldest = read(fairness, table.OLDEST)
    assert oldest["celery", "ready"] == pytest.approx(90, abs=20)
    assert oldest["celery", "tier"] == pytest.approx(60, abs=20)
    assert oldest["celery", "ready"] - oldest["celery", "tier"] == pytest.approx(30, abs=5)


def test_running_tasks_have_the_tier_of_their_tenant_now(shop, fairness):
    shop.put("42", "t1", tier="free")
    shop.put("43", "t2", tier="free")
    shop.put("", "system")
    shop.put("44", "t4", tier="unheard-of")
    assert len(shop.claim()) == 4
    fairness.tenants.set_tier("43", "pro")
    assert read(fairness, table.RUNNING) == {
        ("celery", "free"): 2,
        ("celery", "pro"): 1,
        ("celery", ""): 1,
    }


def test_running_tasks_have_the_default_tier_once_the_tier_of_their_tenant_has_ended(
    shop, fairness
):
    limiter, now = parts_of(fairness).limiter, int(time.time() * 1000)
    for tenant, ends_ms in (("42", now - 1), ("43", now + 3_600_000)):
        limiter.publish_tenant(tenant, "pro", ends_ms=ends_ms)
        shop.put(tenant, tenant, tier="pro")
    assert len(shop.claim()) == 2
    assert read(fairness, table.RUNNING) == {("celery", "free"): 1, ("celery", "pro"): 1}


def test_the_load_is_of_startable_and_running_tasks_only(shop, fairness):
    for number in range(4):
        shop.put("42", f"t{number}", tier="free")
    shop.put("43", "u1", tier="free")
    shop.claim(1)
    worker = _worker("a@1", places=4, queues=("celery", "other"))
    shop.run(calls.ANNOUNCE, calls.announce_args(RULES, worker, 15_000, None))
    # One of 42 runs, and its others are at the limit; that of 43 could start.
    assert read(fairness, table.LOAD)["celery",] == 0.5
    assert read(fairness, table.PLACES) == {("celery",): 4, ("other",): 4}
    load = fairness.stats.load("celery")
    assert (load.startable, load.running, load.places, load.load) == (1, 1, 4, 0.5)
    assert load.tasks == 2
    assert not load.is_estimated
    assert {"celery", "other"} <= {each.queue for each in fairness.stats.loads()}


def test_the_load_of_parked_tasks_is_the_same_alone_and_in_the_list(shop, make_fairness, redis_url):
    fairness = make_fairness(redis_url)
    nothing = fairness.stats.load("_parked")
    assert (nothing.tasks, nothing.places) == (0, 0)
    for number in range(3):
        shop.put(f"4{number}", f"t{number}", tier="free", queue="@parked:redis://stock")
    load = fairness.stats.load("_parked")
    assert load.startable == 3
    assert load in fairness.stats.loads()


def test_without_a_place_the_load_is_the_number_of_tasks(shop, fairness):
    shop.put("42", "t1", tier="free")
    shop.put("43", "t2", tier="free")
    assert fairness.stats.load("celery").load == 2
    assert fairness.stats.load("never-heard-of").load == 0


def test_s50_s51_slots_and_waiting_tasks_of_declared_keys(shop, make_fairness):
    fairness = make_fairness(fairness={"queues": {"celery": {"global_limit": 7}}})
    parts_of(fairness).limiter.limit_queue(
        "set", "celery", parts_of(fairness).settings.queues["celery"].limit
    )
    for number in range(4):
        shop.put(f"4{number}", f"t{number}", tier="free")
    shop.claim(3)
    # Tasks of the app declare the keys `memory`, `narrow` and `tokens`.
    assert read(fairness, table.OJS_ACTIVE) == {
        ("queue:celery",): 3,
        ("memory",): 0,
        ("narrow",): 0,
        ("tokens",): 0,
        ("_other",): 3,
    }
    assert read(fairness, table.OJS_WAITING) == {
        ("queue:celery",): 1,
        ("memory",): 0,
        ("narrow",): 0,
        ("tokens",): 0,
        ("_other",): 1,
    }
    for change, maximum, is_saturated in ((False, 7, 0), (3, 3, 1), (None, math.inf, 0)):
        if change is not False:
            fairness.limits.override("queue:celery", concurrency=change)
        assert read(fairness, table.LIMIT_HELD)["queue:celery",] == 3
        assert read(fairness, table.LIMIT_MAXIMUM)["queue:celery",] == maximum
        assert read(fairness, table.LIMIT_SATURATED)["queue:celery",] == is_saturated


def test_s52_rejections_by_key_and_strategy(shop, make_fairness):
    fairness = make_fairness(fairness={"queues": {"celery": {"global_limit": 1}}})
    parts_of(fairness).limiter.limit_queue(
        "set", "celery", parts_of(fairness).settings.queues["celery"].limit
    )
    for tenant in ("42", "43"):
        for number in range(2):
            shop.put(tenant, f"{tenant}-{number}", tier="free", limits=_limit("customer:7"))
    shop.claim(4)
    counts = fairness.stats.rejections()
    keys = {"queue:celery": "queue:celery"}
    expected: dict[tuple[str, str], int] = {}
    for each in counts.keys:
        label = (keys.get(each.key, "_other"), each.strategy)
        expected[label] = expected.get(label, 0) + each.total
    assert expected
    assert read(fairness, table.OJS_EXCEEDED) == expected
    assert read(fairness, table.REJECTIONS) == {("concurrency",): sum(expected.values())}


def test_s53_waits_of_tasks_that_a_limit_had_rejected_by_key(shop, make_fairness):
    fairness = make_fairness(fairness={"queues": {"celery": {"global_limit": 9}}})
    # A reader counts no minute that has not begun.
    now, rules = int(time.time() * 1000) - MINUTE_MS, Rules(default_limit=None)
    for number in range(3):
        shop.run(calls.PUT, calls.put_args(_waiting("42", f"t{number}", "", API), str(now)))
    first = claim_at(shop, now, rules=rules)
    assert len(first) == 2
    assert claim_at(shop, now, rules=rules) == ()
    ends = [_end(task) for task in first]
    shop.run(calls.SETTLE, calls.settle_args(ends, rules, str(now + 2000)))
    assert len(claim_at(shop, now + 3000, rules=rules)) == 1
    # The key is declared by no task of this app.
    sample = buckets(fairness, table.OJS_WAITS, "_other")
    assert dict(sample.buckets)[2.048] == 0
    assert dict(sample.buckets)[4.096] == 1
    assert sample.buckets[-1] == (math.inf, 1)


def test_no_count_of_starts_goes_down_if_queues_are_more_than_labels(shop, fairness, monkeypatch):
    monkeypatch.setattr(metrics, "QUEUES", 1)
    for queue in ("a", "b"):
        shop.put("42", f"{queue}1", tier="free", queue=queue)
        (task,) = shop.claim(queue=queue)
        shop.settle(task)
    before: dict[tuple[str, ...], float] = {}
    # The longest queue is another one each time.
    for number, queue in enumerate("abba"):
        shop.put("42", f"w{number}", tier="free", queue=queue)
        now = read(fairness, table.STARTS)
        assert all(now.get(labels, 0) >= count for labels, count in before.items())
        before = now
    assert before == {("a", "free"): 1, ("b", "free"): 1}


def test_waits_are_apart_by_what_a_task_waited_behind(shop, fairness):
    now = int(time.time() * 1000) - MINUTE_MS
    for number in range(2):
        fields = _waiting("42", f"t{number}", "free")
        shop.run(calls.PUT, calls.put_args(fields, str(now)))
    claim_at(shop, now + 600, rules=Rules(default_limit=None))
    for behind in ("none", "own"):
        sample = buckets(fairness, table.WAITS, behind, "free")
        assert [tasks for bound, tasks in sample.buckets if bound < 0.6] == [0] * 5
        assert [tasks for bound, tasks in sample.buckets if bound > 0.6] == [1] * 12
        assert sample.value == pytest.approx(0.768)
    assert len(sample.buckets) == len(POWERS) + 1
    assert read(fairness, table.STARTS) == {("celery", "free"): 2}


def test_counters_are_the_same_before_and_after_a_minute_is_added(shop, fairness, client):
    now = int(time.time() * 1000)
    begun = now - 3 * MINUTE_MS
    announce(shop, begun)
    for minute in range(3):
        shop.put(f"4{minute}", f"t{minute}", tier="free")
        assert len(claim_at(shop, begun + minute * MINUTE_MS)) == 1
    assert read(fairness, table.STARTS) == {("celery", "free"): 3}
    for _ in range(5):
        announce(shop, now)
        assert read(fairness, table.STARTS) == {("celery", "free"): 3}
    assert int(client.hget("{fairness}:clock", "last_total")) == now // MINUTE_MS - 1
    for key in client.keys("{fairness}:stats:*"):
        client.delete(key)
    assert read(fairness, table.STARTS) == {("celery", "free"): 3}
    assert buckets(fairness, table.WAITS, "none", "free").buckets[-1][1] == 3


def test_a_minute_that_is_not_over_is_not_added(shop, client):
    now = int(time.time() * 1000) // MINUTE_MS * MINUTE_MS
    announce(shop, now)
    shop.put("42", "t1", tier="free")
    claim_at(shop, now + MINUTE_MS - 1)
    announce(shop, now + MINUTE_MS - 1)
    assert not client.exists("{fairness}:totals")
    announce(shop, now + MINUTE_MS)
    assert client.exists("{fairness}:totals")


def test_totals_have_a_bound(shop, client):
    minute = int(time.time()) // 60 - 5
    announce(shop, minute * MINUTE_MS)
    for step in range(3):
        key = f"{{fairness}}:stats:{minute + step}"
        fields = {f"rejected t{number} q{step}-{number}": 1 for number in range(900)}
        client.hset(key, mapping=fields)
    for _ in range(6):
        announce(shop, (minute + 5) * MINUTE_MS)
    names = client.hkeys("{fairness}:totals")
    assert sum(not name.endswith("_other") for name in names) <= TOTAL_FIELDS_AT_MOST
    assert sum(int(value) for value in client.hvals("{fairness}:totals")) == 2700


def test_keys_of_limits_leave_room_for_queues_in_the_totals(shop, fairness, client):
    """A key with the tenant's name in it is another one for each tenant."""
    minute = int(time.time()) // 60 - 9
    announce(shop, minute * MINUTE_MS)
    for step in range(5):
        fields = {f"limited:10  api-{step}-{number}": 1 for number in range(500)}
        client.hset(f"{{fairness}}:stats:{minute + step}", mapping=fields)
    queues = {f"started free q{number}": 1 for number in range(900)}
    client.hset(f"{{fairness}}:stats:{minute + 5}", mapping=queues)
    for _ in range(8):
        announce(shop, (minute + 8) * MINUTE_MS)
    names = client.hkeys("{fairness}:totals")
    assert sum(name.startswith("started free q") for name in names) == 900
    assert buckets(fairness, table.OJS_WAITS, "_other").buckets[-1] == (math.inf, 2500)


def test_minutes_with_few_starts_are_added_together(shop, client):
    """With a lease of an hour a worker announces every twenty minutes."""
    current = int(time.time()) // 60
    announce(shop, (current - 50) * MINUTE_MS)
    for minute in range(current - 50, current):
        client.hset(f"{{fairness}}:stats:{minute}", "started free celery", 1)
    announce(shop, current * MINUTE_MS)
    assert int(client.hget("{fairness}:clock", "last_total")) == current - 1
    assert client.hget("{fairness}:totals", "started free celery") == "50"


def test_totals_go_on_after_an_announcement_under_a_clock_that_ran_ahead(shop, client, fairness):
    current = int(time.time()) // 60
    announce(shop, (current + 1000) * MINUTE_MS)
    for minute in (current, current + 1):
        client.hset(f"{{fairness}}:stats:{minute}", "started free celery", 1)
    assert read(fairness, table.STARTS)["celery", "free"] == 1
    for minute in (current, current + 2):
        announce(shop, minute * MINUTE_MS)
    assert client.hget("{fairness}:totals", "started free celery") == "2"


def test_a_minute_with_many_fields_is_the_last_that_a_call_adds(shop, client):
    minute = int(time.time()) // 60 - 9
    announce(shop, minute * MINUTE_MS)
    for step in range(3):
        fields = {f"rejected free q{step}-{number}": 1 for number in range(250)}
        client.hset(f"{{fairness}}:stats:{minute + step}", mapping=fields)
    announce(shop, (minute + 5) * MINUTE_MS)
    assert int(client.hget("{fairness}:clock", "last_total")) == minute + 1


def test_a_reader_adds_the_oldest_minutes_and_no_more_than_a_bound(shop, fairness, client):
    """Nobody has announced for six hours in which tasks of many queues started."""
    current = int(time.time()) // 60
    client.hset("{fairness}:clock", "last_total", current - 300)
    for minute in range(current - 299, current):
        fields = {f"started free q{number}": 1 for number in range(200)}
        client.hset(f"{{fairness}}:stats:{minute}", mapping=fields)
    before = sum(read(fairness, table.STARTS).values())
    assert before == 1000
    announce(shop, current * MINUTE_MS)
    # The counter does not go back when minutes move to the totals.
    assert sum(read(fairness, table.STARTS).values()) > before


def test_the_time_in_which_a_limit_was_used_up_is_counted_by_announcements(shop, fairness):
    """The app declares the key `narrow` with a concurrency of 1."""
    word, now = Limit("narrow", concurrency=1).text, int(time.time() * 1000) - 120_000
    rules = Rules(default_limit=None)

    def saturated():
        return read(fairness, table.LIMIT_SATURATED_SECONDS)["narrow",]

    assert saturated() == 0
    announce(shop, now, word)
    fields = _waiting("42", "t1", "", write_limits([Limit("narrow", concurrency=1)]))
    shop.run(calls.PUT, calls.put_args(fields, str(now)))
    announce(shop, now + 2000, word)
    assert saturated() == 0
    (task,) = claim_at(shop, now + 3000, rules=rules)
    announce(shop, now + 5000, word)
    assert saturated() == 3
    # Another worker looks soon after.
    announce(shop, now + 5999, word)
    assert saturated() == 3
    announce(shop, now + 6000, word)
    assert saturated() == 4
    # An announcement of an app without the key does not look.
    announce(shop, now + 7500, Limit("other", concurrency=1).text)
    announce(shop, now + 8000, word)
    assert saturated() == 6
    # Nobody has looked for longer than a lease.
    announce(shop, now + 60_000, word)
    assert saturated() == 21
    shop.run(calls.SETTLE, calls.settle_args([_end(task)], rules, str(now + 61_000)))
    announce(shop, now + 65_000, word)
    assert saturated() == 21


def test_a_paused_limit_counts_as_used_up_and_one_that_is_not_enforced_does_not(shop, fairness):
    word, now = Limit("narrow", concurrency=1).text, int(time.time() * 1000)
    fairness.limits.pause("narrow")
    for step in range(2):
        announce(shop, now + step * 2000, word)
    assert read(fairness, table.LIMIT_SATURATED_SECONDS)["narrow",] == 2
    fairness.limits.resume("narrow")
    shop.put("42", "t1", limits=write_limits([Limit("narrow", concurrency=1)]))
    assert len(shop.claim(rules=Rules(default_limit=None))) == 1
    observing = Rules(enforcement="observe")
    for step in (3, 5):
        args = calls.announce_args(observing, "", 0, None, str(now + step * 1000), [word])
        shop.run(calls.ANNOUNCE, args)
    assert read(fairness, table.LIMIT_SATURATED_SECONDS)["narrow",] == 2


def test_the_time_of_a_limit_goes_on_after_the_servers_clock_went_back(shop, fairness):
    word, now = Limit("narrow", concurrency=1).text, int(time.time() * 1000)
    fairness.limits.pause("narrow")
    for at in (0, -10_000, -7_000):
        announce(shop, now + at, word)
    assert read(fairness, table.LIMIT_SATURATED_SECONDS)["narrow",] == 3


def test_the_keys_whose_time_is_counted_have_a_bound(shop, client):
    now = int(time.time() * 1000)
    for group in range(11):
        announce(
            shop, now, *(Limit(f"k{group}-{number}", concurrency=1).text for number in range(101))
        )
    names = client.hkeys("{fairness}:saturated")
    assert len(names) == 1000
    assert "k0-99" in names
    assert "k0-100" not in names


def test_a_queue_with_many_tenants_is_estimated_and_adds_up(shop, fairness):
    tenants = 3 * CALL_TENANTS
    for number in range(tenants):
        for place in "ab":
            shop.put(f"t{number}", f"{number}{place}", tier="free")
    waiting = read(fairness, table.WAITING)
    assert sum(waiting.values()) == 2 * tenants
    assert waiting["celery", "free", "ready"] == pytest.approx(tenants, abs=1)
    judged = read(fairness, table.CHECKED)[()]
    assert judged == pytest.approx(CALL_TENANTS / tenants, abs=0.01)
    assert fairness.stats.load("celery").is_estimated


def test_a_status_reads_three_pages_of_the_tenants_of_a_queue(shop, fairness):
    for number in range(90):
        shop.put(f"t{number}", f"{number}", tier="free")
    queue = fairness.queues.inspect("celery").tasks
    assert (len(queue.tenants), queue.startable, queue.is_complete) == (90, 90, True)
    shop.put("more", "more", tier="free")
    queue = fairness.queues.inspect("celery").tasks
    assert (len(queue.tenants), queue.is_complete) == (90, False)


def test_every_queue_has_a_judged_tenant_as_far_as_there_are_enough(shop, fairness):
    queues = TENANTS + 20
    for number in range(queues):
        shop.put("42", f"t{number}", tier="free", queue=f"q{number:03}")
    for number in range(3):
        shop.put(f"more{number}", f"m{number}", tier="free", queue="q000")
    found = backlogs(
        parts_of(fairness).installation,
        {f"q{number:03}": 1 for number in range(1, queues)} | {"q000": 4},
    )
    assert sum(each.is_checked for each in found.values()) == TENANTS
    waiting = read(fairness, table.WAITING)
    assert sum(tasks for (_, _, why), tasks in waiting.items() if why == NOT_CHECKED) == 20
    assert len(read(fairness, table.LOAD)) >= TENANTS
    assert sum(waiting.values()) == queues + 3


def test_hostile_names_are_bounded_labels(shop, fairness):
    hostile = ('a"b', "a\nb", "x" * 10_000, "x" * 9_999 + "y", "a\\b", "ünïcode")
    for number, queue in enumerate(hostile):
        shop.put("42", f"t{number}", tier="free", queue=queue)
    labels = {queue for queue, _, _ in read(fairness, table.WAITING)}
    assert len(labels) == len(hostile)
    assert max(map(len, labels)) == 120
    for number in range(QUEUES + 50):
        shop.put("42", f"u{number}", queue=f"q{number}", tier="free")
    assert len({queue for queue, _, _ in read(fairness, table.WAITING)}) <= QUEUES + 1


def test_no_tenant_is_a_label_unless_the_setting_asks_for_it(shop, fairness, make_fairness):
    for tenant, tasks in (("big", 5), ("middle", 3), ("small", 1)):
        for number in range(tasks):
            shop.put(tenant, f"{tenant}{number}", tier="free")
    shop.claim(1)
    for family in fairness.stats.metrics():
        for sample in family.samples:
            assert not {"big", "middle", "small"}.intersection(sample.labels)
    some = make_fairness(fairness={"metric_tenants": 2})
    waiting = read(some, table.TENANT_WAITING)
    assert sum(waiting.values()) == 8
    assert list(waiting) == [("big",), ("middle",), ("_other",)]
    assert sum(read(some, table.TENANT_HELD).values()) == 1


def test_shares_and_the_index_compare_held_and_entitled_slots(shop, fairness):
    for number in range(3):
        shop.put("42", f"a{number}", tier="pro")
        shop.put("43", f"b{number}", tier="pro")
    assert len(shop.claim(2, rules=Rules(default_limit=None))) == 2
    assert read(fairness, table.SHARE_RECEIVED) == {("pro",): 1}
    assert read(fairness, table.SHARE_ENTITLED) == {("pro",): 1}
    assert read(fairness, table.JAIN)[()] == pytest.approx(1)


def test_dead_letters_and_expired_leases_are_counted(shop, fairness):
    shop.put("42", "d1", tier="free")
    (task,) = shop.claim()
    shop.settle(task, Verdict.BEGUN)
    shop.settle(task, Verdict.DIED)
    assert read(fairness, table.DEAD_LETTERS) == {("celery",): 1}
    assert read(fairness, table.DEAD_LETTERED) == {(): 1}
    assert read(fairness, table.EXPIRED) == {(): 0}
    assert read(fairness, table.LIBRARY_CALLS)[()] > 0


def test_workers_are_counted_by_path_and_enforcement(shop, fairness):
    for number, (path, enforcement) in enumerate(
        (("dispatch", "on"), ("dispatch", "on"), ("gate", "on"), ("gate", "observe"))
    ):
        worker = _worker(f"a@{number}", 4, ("celery",), path=path, enforcement=enforcement)
        shop.run(calls.ANNOUNCE, calls.announce_args(RULES, worker, 15_000, None))
    assert read(fairness, table.WORKERS) == {
        ("dispatch", "on"): 2,
        ("gate", "on"): 1,
        ("gate", "observe"): 1,
    }


@pytest.mark.parametrize(("maximum", "expected"), [(0, math.inf), (1 << 30, 1 << 30)])
def test_the_used_and_the_greatest_memory_of_redis(shop, fairness, client, maximum, expected):
    before = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", maximum)
    try:
        assert read(fairness, table.MEMORY_MAXIMUM) == {(): expected}
        used = read(fairness, table.MEMORY_USED)[()]
    finally:
        client.config_set("maxmemory", before)
    assert used == pytest.approx(client.info("memory")["used_memory"], rel=0.5)


def test_a_gate_has_running_tasks_starts_and_rejections(client, make_fairness, redis_url):
    client.flushdb()
    fairness = make_fairness(url="memory://", fairness={"redis_url": redis_url})
    limiter = parts_of(fairness).limiter
    for number in range(2):
        name = f"t{number}"
        request = SlotRequest(
            Lease(name, "tenant:42"), "42", "free", None, "s2", "", Job(name, "shop.pay", "mail")
        )
        limiter.acquire(request, Enforcement.ON)
    assert read(fairness, table.RUNNING) == {("mail", ""): 1}
    assert read(fairness, table.STARTS) == {("mail", "free"): 1}
    assert read(fairness, table.REJECTIONS) == {("concurrency",): 1}
    assert read(fairness, table.WAITING) == {}


def test_the_table_has_each_metric_once_in_prometheus_form():
    names = [each.name for each in table.METRICS]
    assert len(names) == len(set(names))
    for each in table.METRICS:
        assert each.name.startswith(("fairness_", "ojs_rate_limit_"))
        assert not each.name.endswith("_total")
        assert each.help.endswith(".")
        assert "tenant" not in each.labels or each.name.startswith("fairness_tenant_")


def _limit(key):
    return write_limits([Limit(key, concurrency=2)])


def _waiting(tenant, tag, tier, limits=""):
    return Waiting("celery", tag, tenant, message="{}", tier=tier, limits=limits)


def _end(task):
    return Settle(task.lease, Verdict.DONE)


def _worker(name, places, queues, path="dispatch", enforcement="on"):
    return WorkerStatus(
        name=name,
        pid=1,
        path=path,
        enforcement=enforcement,
        owner=name,
        places=places,
        queues=queues,
    ).model_dump_json()
