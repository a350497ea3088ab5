"""Commands and pages of an installation with several partitions, which are those of one."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from celery_fairness.app.publish_settings import publish_queues
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.queue_limits import texts_of_row
from celery_fairness.control.key.shared_changes import SharedChanges
from celery_fairness.errors import LimiterUnavailable, PolicyInvalid
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict
from tests.cli.clearing import bury, send
from tests.cli.conftest import PARTITIONS
from tests.support.parts import parts_of

COUNT = 4
SEVERAL = pytest.mark.parametrize("partitions", [COUNT], indirect=True)
TENANTS = [f"t{number}" for number in range(12)]


def fill(shop):
    """Two tasks of each tenant, of which one runs, and one of nobody in another queue."""
    for tenant in TENANTS:
        send(shop, tenant, f"{tenant}-1")
        send(shop, tenant, f"{tenant}-2")
    send(shop, "", "nobody", queue="other")
    assert len(shop.claim(30)) == 12


def waiting_in(fairness):
    """Return the waiting tasks of each queue that has some."""
    states = fairness.queues.list()
    return {each.queue: each.tasks.waiting for each in states if each.tasks.waiting}


def all_pages(ask):
    found, page = [], ask(None)
    while page.cursor is not None:
        found += page.items
        page = ask(page.cursor)
    return found + list(page.items)


@PARTITIONS
def test_a_status_has_the_sums_of_all_partitions(shop, fairness, run):
    fill(shop)
    status = fairness.stats.status()
    queue, other = (each for each in status.queues if each.waiting)
    assert (queue.queue, queue.waiting, queue.running) == ("celery", 12, 12)
    assert (other.queue, other.waiting) == ("other", 1)
    assert {each.key for each in queue.tenants} == {f"tenant:{each}" for each in TENANTS}
    assert queue.is_complete
    assert (status.running, status.queue_count) == (12, len(status.queues))
    assert [(each.owner, each.leases) for each in status.owners] == [("worker-1", 12)]
    assert status.fairness_index == 1.0
    assert run("top", "--once").exit_code == 0
    assert waiting_in(fairness) == {"celery": 12, "other": 1}


@PARTITIONS
def test_tasks_without_a_tenant_are_one_row(shop, fairness):
    for number in range(9):
        send(shop, "", f"id-{number}")
    (queue,) = (each for each in fairness.stats.status().queues if each.waiting)
    assert [(each.key, each.waiting) for each in queue.tenants] == [("_system", 9)]
    assert fairness.limits.inspect("_system").waiting_count == 9


@PARTITIONS
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_each_task_is_on_one_page(shop, fairness, limit):
    fill(shop)
    found = all_pages(lambda cursor: fairness.tasks.list(limit=limit, cursor=cursor))
    ids = [each.task_id for each in found]
    wanted = [f"{tenant}-{number}" for tenant in TENANTS for number in (1, 2)]
    assert sorted(ids) == sorted([*wanted, "nobody"])
    its = fairness.tasks.list(tenant="t3")
    assert [each.task_id for each in its.items] == ["t3-1", "t3-2"]
    assert its.cursor is None
    assert fairness.tasks.count(queue="celery") == 12


@PARTITIONS
def test_one_task_is_found_explained_cancelled_and_put_back(shop, fairness):
    fill(shop)
    for tenant in TENANTS:
        explained = fairness.tasks.explain(f"{tenant}-2")
        assert [each.key for each in explained.blocked_by] == [f"tenant:{tenant}"]
    assert fairness.tasks.cancel("t5-2").state == "cancelled"
    assert fairness.tasks.cancel("t5-1").state == "running"
    assert fairness.tenants.purge("t6").cancelled == 1
    assert fairness.tasks.cancel_all(queue="celery").cancelled == 10
    bury(shop, "dead", "buried")
    assert fairness.tasks.requeue("buried").queue == "celery"
    assert fairness.tasks.explain("buried").state == "waiting"


@PARTITIONS
@pytest.mark.parametrize("queue", [None, "celery"])
def test_each_dead_letter_is_on_one_page(shop, fairness, queue):
    for tenant in TENANTS:
        bury(shop, tenant, f"{tenant}-dead")
    bury(shop, "t1", "elsewhere", queue="other")
    wanted = {f"{tenant}-dead" for tenant in TENANTS} | (set() if queue else {"elsewhere"})
    pages = [fairness.tasks.dead_letters(queue, page, per_page=5) for page in (1, 2, 3)]
    ids = [each.task_id for page in pages for each in page.items]
    assert (len(ids), set(ids)) == (len(wanted), wanted)
    assert [page.pagination.total for page in pages] == [len(wanted)] * 3
    assert pages[0].by_queue == {"celery": 12, "other": 1}
    assert ids[-1] == "elsewhere" or queue


@PARTITIONS
def test_metrics_and_minutes_are_sums(shop, fairness):
    fill(shop)
    found = {
        each.metric.name: {sample.labels: sample.value for sample in each.samples}
        for each in fairness.stats.metrics()
    }
    assert sum(found["fairness_starts"].values()) == 12
    assert sum(found["fairness_tasks_running"].values()) == 12
    assert sum(found["fairness_tasks_waiting"].values()) == 13
    assert found["fairness_jain_index"] == {(): 1.0}
    assert found["fairness_scrape_checked_ratio"] == {(): 1.0}
    assert sum(each.started for each in fairness.stats.minutes()) == 12
    assert fairness.stats.rejections().tiers == {"free": 12}
    load = fairness.stats.load("celery")
    assert (load.startable, load.running) == (0, 12)


@PARTITIONS
def test_keys_and_tenants_are_listed_once(shop, fairness):
    fill(shop)
    fairness.limits.pause("api")
    listed = fairness.limits.list(per_page=100)
    assert [each.key for each in listed.items] == sorted(
        ["api", *(f"tenant:{tenant}" for tenant in TENANTS)]
    )
    pages = [fairness.tenants.list(page, 5) for page in (1, 2, 3)]
    names = [each.key for page in pages for each in page.items]
    assert names == sorted(f"tenant:{tenant}" for tenant in TENANTS)
    assert {each.concurrency.active for page in pages for each in page.items} == {1}


@PARTITIONS
def test_a_new_tier_moves_the_waiting_tasks_of_its_tenant(shop, fairness):
    for tenant in TENANTS:
        send(
            shop,
            tenant,
            tenant,
            queue="mail_default",
            headers={"fairness": {"v": 1, "tenant": tenant, "service": "mail"}},
        )
    fairness.tenants.set_tier("t4", "enterprise")
    assert waiting_in(fairness) == {"mail_default": 11, "mail_priority": 1}
    fairness.tenants.clear_tier("t4")
    assert waiting_in(fairness) == {"mail_default": 12}


@PARTITIONS
@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_events_are_in_order_and_each_is_read_once(shop, fairness, limit, monkeypatch):
    monkeypatch.setattr("celery_fairness.control.health.event_streams.TOGETHER", 4)
    monkeypatch.setattr("celery_fairness.control.health.event_streams.LEAST", 2)
    fill(shop)
    for tenant in TENANTS:
        fairness.tasks.cancel(f"{tenant}-2")
    fairness.limits.pause("api")
    fairness.tenants.pause("t1")
    fairness.tenants.set_tier("t2", "pro")

    events, after = [], None
    while True:
        page = fairness.events.read(after, limit=limit)
        events += page.events
        after = page.cursor
        if not page.has_more:
            break
    kinds = Counter(each.type for each in events)
    assert kinds["fairness.cancelled"] == kinds["rate_limit.exceeded"] == 12
    assert (kinds["fairness.paused"], kinds["fairness.tier_set"]) == (2, 1)
    assert all(one.at <= other.at and one.id < other.id for one, other in pairwise(events))
    # Any event is a place to go on from.
    for place in (0, 7, len(events) - 2):
        rest = fairness.events.read(events[place].id, limit=1000).events
        assert rest == tuple(events[place + 1 :])
    newest = fairness.events.read(last=limit).events
    assert newest == tuple(events[-limit:])


@SEVERAL
def test_an_event_that_comes_later_is_behind_those_that_were_read(shop, fairness):
    fill(shop)
    seen = [each.id for each in fairness.events.read(limit=1000).events]
    after = seen[-1]
    for tenant in TENANTS:
        fairness.tasks.cancel(f"{tenant}-2")
        page = fairness.events.read(after, limit=1000)
        seen += [each.id for each in page.events]
        after = page.cursor or after
    follower = fairness.events.follow(after, ["fairness.cancelled"])
    fairness.tenants.pause("t1")
    while len(seen) < 24:
        seen.append(next(follower).id)
    assert len(set(seen)) == len(seen) == 24


@SEVERAL
def test_a_check_finds_and_repairs_what_one_partition_has(shop, fairness, client):
    fill(shop)
    assert fairness.check().findings == ()
    prefix = shop.partitions.prefix(2)
    client.hincrby(f"{prefix}waiting", "celery", 5)
    (finding,) = fairness.check().findings
    assert (finding.check, finding.key) == ("queue_count", f"{prefix}waiting")
    (finding,) = fairness.check(repair=True).findings
    assert finding.repaired
    assert fairness.check().findings == ()


@SEVERAL
def test_a_pause_and_an_override_of_a_shared_key_are_in_each_partition(shop, fairness, client):
    fairness.limits.pause("api", for_seconds=60)
    fairness.limits.override("paid", concurrency=3, for_seconds=60)
    tables = [client.hgetall(f"{names.prefix}changes") for names in shop.partitions.names]
    assert [*tables[0]] == ["pause api", "override paid"]
    home = client.hgetall("{fairness}:changes")
    assert tables == [home] * COUNT
    assert fairness.limits.inspect("api").holds.paused
    fairness.limits.resume("api")
    assert fairness.limits.clear_override("paid")
    assert client.keys("*changes") == []


@SEVERAL
def test_what_reached_the_home_alone_is_mended(shop, fairness, client):
    changes = SharedChanges(parts_of(fairness).installation)
    fairness.limits.pause("api", for_seconds=60, by="ada")
    fairness.limits.override("paid", rate="5/m", reason="a b")
    home = client.hgetall("{fairness}:changes")
    assert changes.repair() == 0

    lost, kept = shop.partitions.prefix(1), shop.partitions.prefix(3)
    client.delete(f"{lost}changes", f"{lost}changes_end")
    client.hdel(f"{kept}changes", "override paid")
    assert changes.repair(again=True) == 3
    assert {client.hget(f"{each}changes", "pause api") for each in (lost, kept)} == {
        home["pause api"]
    }
    assert client.hgetall(f"{lost}changes") == home
    # A resume that reached the home alone.
    client.hdel("{fairness}:changes", "pause api")
    assert changes.repair() == COUNT
    assert client.hgetall(f"{lost}changes") == {"override paid": home["override paid"]}
    assert changes.repair(again=True) == 0


@SEVERAL
def test_tiers_that_reached_the_home_alone_are_mended(shop, fairness, client):
    fairness.tenants.publish_tiers(fairness.settings.tiers.values())
    changes = SharedChanges(parts_of(fairness).installation)
    assert changes.repair() == 0
    home = client.hgetall("{fairness}:tiers")
    there = f"{shop.partitions.prefix(2)}tiers"
    client.hset(there, "free", client.hget(there, "enterprise"))
    assert changes.repair(again=True) == 1
    assert client.hgetall(there) == home


@SEVERAL
def test_a_tenants_pause_is_in_its_partition_alone(shop, fairness, client):
    fairness.tenants.pause("t1")
    place = shop.partitions.of_tenant("t1")
    assert client.keys("*changes") == [f"{shop.partitions.prefix(place)}changes"]
    assert SharedChanges(parts_of(fairness).installation).repair(again=True) == 0
    assert fairness.tenants.inspect("t1").holds.paused


@SEVERAL
def test_the_service_of_a_tenant_is_steered_where_its_tasks_are(shop, make_fairness, client):
    fairness = make_fairness(fairness={"tier_scope": "service"})
    place = shop.partitions.of_tenant("t1")
    fairness.limits.pause("tenant:t1:web")
    assert client.keys("*changes") == [f"{shop.partitions.prefix(place)}changes"]


@SEVERAL
def test_an_uninstall_leaves_nothing_of_any_partition(shop, fairness, client, run):
    fill(shop)
    done = run("uninstall", "--yes", "--with-tasks", "--json")
    assert json.loads(done.stdout)["tasks"] == 25
    assert client.keys("*") == []


@SEVERAL
def test_the_first_steering_fixes_the_number_of_partitions(client, fairness):
    fairness.limits.pause("api")
    assert client.hget("{fairness}:clock", "partitions") == str(COUNT)


@PARTITIONS
def test_the_limit_of_a_queue_is_shown_once(shop, make_fairness, run):
    fairness = make_fairness(fairness={"queues": {"celery": {"by_args": ["user"]}}})
    publish_queues(parts_of(fairness).limiter, fairness.settings.queues)
    fill(shop)
    fairness.queues.set_limit("celery", global_limit=20, partition={"concurrency": 2})
    state = fairness.queues.inspect("celery")
    assert (state.limit.global_limit, state.limit.partition.concurrency) == (20, 2)
    assert (state.tasks.waiting, state.tasks.running) == (12, 12)
    shown = run("queue", "limit", "celery", "--global-limit", "7", "--json")
    assert json.loads(shown.stdout)["global_limit"] == 7
    assert fairness.limits.inspect("queue:celery").limit == 7
    assert fairness.check().findings == ()
    assert fairness.queues.clear_limit("celery")
    assert not fairness.queues.clear_limit("celery")
    assert fairness.queues.inspect("celery").limit.global_limit is None


@SEVERAL
def test_a_queue_whose_tasks_must_not_wait_is_an_error(fairness):
    problem = "on_limit: expected 'wait', because fairness.partitions is 4 .* got: 'drop'"
    with pytest.raises(PolicyInvalid, match=problem):
        fairness.queues.set_limit("celery", global_limit=2, on_limit="drop")


def rows_of(shop, client):
    """Return the rows of the queue ``celery`` in the home and in each partition."""
    prefixes = [shop.prefix, *(names.prefix for names in shop.partitions.names)]
    rows = [client.hget(f"{prefix}queue_limits", "queue celery") for prefix in prefixes]
    return [row and texts_of_row(row) for row in rows]


@SEVERAL
def test_the_limit_of_a_queue_that_reached_the_home_alone_is_mended(shop, fairness, client):
    changes = SharedChanges(parts_of(fairness).installation)
    fairness.queues.set_limit("celery", global_limit=3)
    assert changes.repair() == 0
    assert rows_of(shop, client) == [["", "", "C3|w", ""]] * (COUNT + 1)
    limiter = parts_of(fairness).limiter
    args = calls.queue_args("set", "celery", "queue:celery", "C5|w", "", limiter.lease_ms, "on")
    shop.run(calls.SET_QUEUE_LIMIT, args)
    client.delete(f"{shop.partitions.prefix(2)}queue_limits")
    assert changes.repair() == COUNT
    assert rows_of(shop, client) == [["", "", "C5|w", ""]] * (COUNT + 1)
    # No limit any more, in the home alone.
    args = calls.queue_args("clear", "celery", "queue:celery", "", "", limiter.lease_ms, "on")
    shop.run(calls.SET_QUEUE_LIMIT, args)
    assert changes.repair() == COUNT
    assert rows_of(shop, client) == [None] * (COUNT + 1)
    assert changes.repair(again=True) == 0


@SEVERAL
def test_the_key_of_a_queue_that_reached_the_home_alone_is_mended(shop, fairness, client):
    fairness.limits.pause("queue:celery")
    for names in shop.partitions.names:
        client.delete(f"{names.prefix}queue_limits", f"{names.prefix}changes")
    changes = SharedChanges(parts_of(fairness).installation)
    assert changes.repair() == 2 * COUNT
    assert rows_of(shop, client) == [["", "", "", ""]] * (COUNT + 1)
    assert changes.repair(again=True) == 0


@SEVERAL
def test_an_error_names_the_partition(shop, fairness, client):
    fill(shop)
    prefix = shop.partitions.prefix(shop.partitions.of_tenant("t1"))
    client.set(f"{prefix}changes", "no table")
    number = shop.partitions.of_tenant("t1")
    with pytest.raises(LimiterUnavailable, match=rf"\(partition {number} of {COUNT}\)"):
        fairness.tenants.pause("t1")
    client.delete(f"{prefix}changes")


@PARTITIONS
def test_observed_tasks_and_tiers_are_sums(shop, fairness):
    fill(shop)
    assert fairness.stats.observed().over_limit == 0


def start(shop, key, tenants, **numbers):
    """Send a task of each tenant with a shared key, and start those that may."""
    limits = write_limits((Limit(key, **numbers),))
    for tenant in tenants:
        send(shop, tenant, f"{key}-{tenant}", limits=limits)
    tasks = shop.claim()
    if shop.partitions.are_several:
        shop.borrow(key)
        tasks += shop.claim()
    return tasks


@PARTITIONS
def test_a_shared_limit_lets_tasks_start_that_no_permit_or_lot_waits_for(shop, fairness):
    numbers = {"concurrency": 5, "rate": ((9, 60_000), (20, 3_600_000))}
    assert len(start(shop, "api", TENANTS[:3], **numbers)) == 3
    found = fairness.limits.inspect("api")
    assert (found.held, found.rate.current_count, found.blocked_by) == (3, 3, "")
    found = fairness.tenants.inspect("t1")
    assert (found.concurrency.active, found.concurrency.limit) == (1, 1)
    fairness.tenants.set_tier("t9", "enterprise")
    found = fairness.tenants.inspect("t9")
    assert (found.concurrency.active, found.blocked_by) == (0, "")


@PARTITIONS
@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ({"concurrency": 3}, "concurrency"),
        ({"rate": ((3, 60_000),)}, "rate"),
        ({"rate": ((90, 1000), (3, 60_000))}, "rate"),
    ],
)
def test_a_shared_limit_that_is_used_up_by_all_is_shown_so(shop, fairness, numbers, why):
    assert len(start(shop, "api", TENANTS[:6], **numbers)) == 3
    found = fairness.limits.inspect("api")
    assert (found.held, found.blocked_by) == (3, why)
    if why == "rate":
        assert (found.rate.limit, found.rate.current_count) == (3, 3)
        assert 0 < found.opens_in_seconds <= 60.1


@PARTITIONS
def test_the_rate_of_a_queue_is_shown_with_the_starts_of_all_partitions(shop, fairness, run):
    fairness.queues.set_limit("celery", rate="5/h")
    for tenant in TENANTS:
        send(shop, tenant, tenant)
    assert fairness.stats.load("celery").startable >= 5
    tasks = shop.claim()
    # The starts that a partition has not used go to another one.
    for _ in range(3 if shop.partitions.are_several else 0):
        shop.borrow("queue:celery")
        tasks += shop.claim()
    assert len(tasks) == 5
    found = fairness.limits.inspect("queue:celery")
    assert (found.rate.limit, found.rate.current_count, found.blocked_by) == (5, 5, "rate")
    assert (found.held, found.waiting_count) == (5, 7)
    assert "rate 5/PT1H, 5 counted" in run("limit", "show", "queue:celery").stdout
    waits = fairness.tasks.explain(
        next(each for each in TENANTS if shop.find(each)[0][1] == "waiting")
    )
    assert [(each.key, each.reason) for each in waits.blocked_by] == [("queue:celery", "rate")]
    assert fairness.stats.load("celery").startable == 0


@PARTITIONS
@pytest.mark.parametrize("number", [{"concurrency": 3}, {"rate": ((3, 60_000),)}])
def test_a_scaler_starts_the_first_worker_for_tasks_of_a_shared_limit(shop, fairness, number):
    limits = write_limits((Limit("api", **number),))
    for tenant in TENANTS:
        send(shop, tenant, tenant, limits=limits)
    assert fairness.stats.load("celery").startable >= 3
    assert fairness.tasks.explain("t1").blocked_by == ()
    assert len(start(shop, "api", (), **number)) == 3
    assert fairness.stats.load("celery").startable == 0


@PARTITIONS
def test_a_limit_of_one_tenant_is_shown_with_its_leases(shop, fairness):
    limits = write_limits((Limit("api_t1", concurrency=1, private=True),))
    send(shop, "t1", "one", limits=limits)
    send(shop, "t1", "two", limits=limits, tier="enterprise")
    (task,) = shop.claim(1)
    found = fairness.limits.inspect("api_t1")
    assert (found.concurrency.limit, found.concurrency.active) == (1, 1)
    assert [each.id for each in found.leases] == [task.lease]
    shop.settle(task, Verdict.DONE)
