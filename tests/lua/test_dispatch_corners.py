"""Corners of the dispatch scripts that neither random operations nor a worker's life reach."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Put, Rules, Settle, Settled, Verdict, Waiting
from tests.lua.dispatching import NOW, PREFIX, RULES, Dispatch
from tests.support.library import tag_of
from tests.support.lifetimes import run_and_look, slack_ms
from tests.support.tables import assert_sums_agree, findings

#: More than Redis keeps in a hash as a list, in the order of their coming.
MANY_QUEUES = 600
DAY_MS = 86_400_000


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def lifetime_after(client, verb, args, key):
    """Return how long a key lives after a call."""
    key = PREFIX + key
    return run_and_look(client, verb, PREFIX, args, [key])[1][key]


def test_a_paused_tenant_is_looked_at_when_the_record_of_its_tier_is_forgotten(dispatch, client):
    dispatch.publish_tiers(free=1, held=0)
    dispatch.publish_tenant("a", "held", keep_ms=600_000)
    dispatch.put("a")
    args = calls.claim_args("w1", 1, 1, ["q"], RULES, str(NOW))
    kept_ms = lifetime_after(client, calls.CLAIM, args, "tenant:a")
    ((what, at),) = client.zrange(PREFIX + "ends", 0, -1, withscores=True)
    assert what == " tenant:a"
    assert abs(at - NOW - kept_ms) <= slack_ms(client)


def test_a_tenant_that_waits_in_very_many_queues_is_back_in_all_rings(dispatch, client):
    dispatch.publish_tiers(free=0)
    queues = [f"q{number}" for number in range(MANY_QUEUES)]
    for queue in queues:
        dispatch.put("a", queue=queue)
        assert dispatch.claim(queues=[queue]).tasks == ()
    dispatch.publish_tiers(free=1)
    dispatch.claim(want=1, queues=["nobody's"])
    assert not client.keys(PREFIX + "blocked:*")
    assert {client.zcard(PREFIX + "active:" + queue) for queue in queues} == {1}


def test_a_start_clears_away_four_debts_that_the_ring_has_passed(dispatch, client):
    dispatch.rules = Rules(default_limit=None)
    for tenant in "abcdefz":
        dispatch.put(tenant)
    for _ in range(2):
        dispatch.put("z")
    left = []
    for want in (7, 1, 1):
        assert len(dispatch.claim(want).tasks) == want
        left.append(client.zcard(PREFIX + "debts:q"))
    assert left == [6, 2, 0]


@pytest.mark.parametrize(
    ("bound", "answer", "is_known"),
    [
        (["one"], Put.BINDINGS_CHANGED, 0),
        (["one", "three"], Put.BINDINGS_CHANGED, 0),
        (["three", "two"], Put.BINDINGS_CHANGED, 0),
        (["one", "three", "two"], Put.BINDINGS_CHANGED, 0),
        (["two", "one"], Put.WAITS, 1),
    ],
)
def test_a_put_that_knows_other_bindings_leaves_nothing(dispatch, client, bound, answer, is_known):
    client.sadd("bindings", "one", "two")
    args = calls.put_args(Waiting("q", "t1", "a"), str(NOW), "bindings", bound)
    assert calls.read_put(dispatch.run(calls.PUT, args)) is answer
    assert client.exists(PREFIX + "tasks") == is_known


def test_a_message_leaves_its_plain_list_also_where_its_task_is_known(dispatch, client):
    client.rpush("plain", "message", "another", "message", "message")
    args = calls.put_args(Waiting("q", "t1", "a"), str(NOW), plain="plain", entry="message")
    answers = [calls.read_put(dispatch.run(calls.PUT, args)) for _ in range(4)]
    assert answers == [Put.WAITS, Put.KNOWN, Put.KNOWN, Put.GONE]
    assert client.lrange("plain", 0, -1) == ["another"]


def test_the_oldest_of_equal_messages_leaves_its_plain_list(dispatch, client):
    client.rpush("plain", "message", "another", "message")
    args = calls.put_args(Waiting("q", "t1", "a"), str(NOW), plain="plain", entry="message")
    assert calls.read_put(dispatch.run(calls.PUT, args)) is Put.WAITS
    assert client.lrange("plain", 0, -1) == ["message", "another"]


def test_a_message_that_cannot_be_put_stays_in_its_plain_list(dispatch, client):
    client.rpush("plain", "message")
    args = calls.put_args(Waiting("q", "t 1", "a"), str(NOW), plain="plain", entry="message")
    with pytest.raises(ResponseError, match="expected words without a space"):
        dispatch.run(calls.PUT, args)
    assert client.lrange("plain", 0, -1) == ["message"]


def test_an_entry_is_moved_aside_once(dispatch, client):
    client.rpush("plain", "odd", "another", "odd")
    args = ["q", "plain", b"odd"]
    assert [dispatch.run(calls.QUARANTINE, args) for _ in range(3)] == [1, 1, 0]
    assert client.lrange(PREFIX + "quarantined:q", 0, -1) == ["odd", "odd"]
    assert client.lrange("plain", 0, -1) == ["another"]
    assert client.hget(PREFIX + "counters", "quarantined") == "2"


def test_the_answer_to_a_claim_is_kept_for_two_leases(dispatch, client):
    dispatch.put("a")
    args = calls.claim_args("w1", 1, 1, ["q"], RULES, str(NOW))
    assert lifetime_after(client, calls.CLAIM, args, "last_answer:w1") == 2 * RULES.lease_ms


def test_a_purge_of_what_waits_for_its_time_leaves_no_bell(dispatch, client):
    dispatch.put("a", eta_ms=NOW + 5_000)
    assert client.exists(PREFIX + "wakeup:q")
    assert dispatch.run(calls.PURGE, ["q"]) == 1
    assert not client.exists(PREFIX + "wakeup:q")


@pytest.mark.parametrize("max_deliveries", [0, 5])
def test_a_message_that_cannot_be_read_is_a_dead_letter_at_once(dispatch, client, max_deliveries):
    dispatch.rules = Rules(max_deliveries=max_deliveries)
    dispatch.put("a")
    (task,) = dispatch.claim().tasks
    dispatch.put("a")
    assert dispatch.settle([task], Verdict.UNREADABLE) == [Settled.SETTLED]
    assert dispatch.letters() == ["of t1"]
    assert client.hget(PREFIX + "counters", "dead_lettered") == "1"
    found = dispatch.next_outcome()
    assert (found.state, found.queue, found.deaths) == ("unreadable", "q", 0)
    assert dispatch.next_outcome(found.name) is None
    assert dispatch.tags_of(dispatch.claim()) == ["t2"], "its slot is free"


def test_where_the_memory_was_lost_nothing_is_leased_before_what_is_held_counts(dispatch, client):
    dispatch.put("a")
    first = dispatch.claim()
    client.flushall()
    dispatch.now += 1000
    dispatch.put("a")
    rejected = dispatch.claim(epoch=first.epoch)
    assert (rejected.tasks, rejected.epoch, rejected.sleep_ms) == ((), dispatch.now, 10)
    assert dispatch.renew(first.tasks, first.epoch) == (rejected.epoch, [1])
    assert dispatch.claim(epoch=rejected.epoch).tasks == (), "its slot is taken"
    dispatch.settle(first.tasks)
    assert len(dispatch.claim(epoch=rejected.epoch).tasks) == 1


def test_who_is_found_at_the_limit_counts_as_rejected_once_until_it_opens(dispatch, client):
    dispatch.publish_tiers(free=1, pro=2)
    for _ in range(3):
        dispatch.put("a", tier="pro")
    running = dispatch.claim_all()
    dispatch.claim_all()
    assert client.hget(PREFIX + "counters", "rejected:pro") == "1"
    dispatch.settle(running[:1])
    dispatch.put("a", tier="pro")
    assert len(dispatch.claim_all()) == 1
    assert client.hget(PREFIX + "counters", "rejected:pro") == "2"


@pytest.mark.parametrize(
    ("enforcement", "counted"), [("observe", {"rejected:free": "2"}), ("off", {})]
)
def test_a_start_that_would_be_rejected_is_counted_where_a_worker_observes(
    redis_url, client, enforcement, counted
):
    dispatch = Dispatch(client, Rules(enforcement=enforcement, default_limit=1))
    for _ in range(3):
        dispatch.put("a", tier="unknown")
    assert len(dispatch.claim_all()) == 3
    assert client.hgetall(PREFIX + "counters") == counted


@pytest.mark.parametrize("key", ["lane:tenant:a 0  q", "ready:tenant:a q"])
def test_a_tenant_whose_keys_somebody_deleted_keeps_no_other_from_its_turn(dispatch, client, key):
    for tenant in "ab":
        dispatch.put(tenant)
        dispatch.put(tenant)
    assert client.delete(PREFIX + key) == 1
    tasks = dispatch.claim_all()
    assert [task.key for task in tasks] == ["tenant:b"]
    dispatch.settle(tasks)
    assert [task.key for task in dispatch.claim_all()] == ["tenant:b"]


def stands_in_its_ring(dispatch):
    dispatch.put("a", kind="x", expires_ms=NOW + DAY_MS)


def is_at_its_tier(dispatch):
    dispatch.publish_tiers(free=1, pro=None)
    dispatch.put("a", tier="free")
    dispatch.claim()
    dispatch.put("a", kind="x", expires_ms=NOW + DAY_MS)


def is_dropped(dispatch):
    limits = write_limits((Limit("api", concurrency=1, on_limit="drop"),))
    dispatch.put("z", limits=limits)
    dispatch.claim()
    dispatch.put("a", kind="x", limits=limits, expires_ms=NOW + DAY_MS)


@pytest.mark.parametrize("scope", ["tenant", "queue"])
@pytest.mark.parametrize("on_limit", ["drop", "reschedule"])
def test_a_rejected_lane_that_somebody_deleted_keeps_no_other_from_its_turn(
    dispatch, client, on_limit, scope
):
    dispatch.rules = Rules(default_limit=None, priority_scope=scope)
    limits = write_limits((Limit("api", concurrency=1, on_limit=on_limit),))
    dispatch.put("z", limits=limits)
    assert len(dispatch.claim_all()) == 1
    dispatch.put("a", limits=limits)
    dispatch.put("b")
    assert client.delete(*client.keys(PREFIX + "lane:tenant:a *")) == 1
    assert [task.key for task in dispatch.claim_all()] == ["tenant:b"]
    assert not client.exists(PREFIX + "active:q")


@pytest.mark.parametrize("wait", [stands_in_its_ring, is_at_its_tier, is_dropped])
@pytest.mark.parametrize("table", ["tasks", "lane:tenant:a *"])
def test_a_table_of_what_waits_that_is_gone_stops_nobody(dispatch, client, wait, table):
    wait(dispatch)
    assert client.delete(*client.keys(PREFIX + table)) == 1
    dispatch.put("b", tier="pro")
    assert [task.key for task in dispatch.claim_all()] == ["tenant:b"]
    dispatch.put("c", tier="pro")
    assert [task.key for task in dispatch.claim_all()] == ["tenant:c"]


def test_a_task_whose_message_somebody_deleted_keeps_no_other_from_its_turn(dispatch, client):
    dispatch.put("a")
    assert client.delete(PREFIX + "messages") == 1
    dispatch.put("b")
    tasks = dispatch.claim_all()
    assert [task.message for task in tasks] == ["", "of t2"]
    # A worker cannot read it.
    assert dispatch.settle(tasks[:1], Verdict.UNREADABLE) == [Settled.SETTLED]
    assert dispatch.letters() == [""]


@pytest.mark.parametrize("keys", ["tenant:a", "tenant:b"])
def test_a_late_end_withdraws_its_task_whatever_keys_it_names(dispatch, client, keys):
    for _ in range(2):
        dispatch.put("a", rank=5)
    (task,) = dispatch.claim().tasks
    dispatch.settle([task], Verdict.HEAD)
    args = calls.settle_args([Settle(task.lease, Verdict.DONE)], RULES, str(NOW))
    assert calls.read_settle(dispatch.run(calls.SETTLE, args)) == [Settled.WITHDRAWN]
    assert dispatch.tags_of(dispatch.claim()) == ["t2"]
    assert client.hkeys(PREFIX + "tasks") == ["t2"]


def test_the_first_numbers_after_the_newest_were_forgotten_open_the_limit(dispatch, client):
    """Redis forgets the newest numbers of a key an hour after its last new task."""
    for tag in "ac":
        dispatch.put(tag, tag=tag, limits="k|C1|w")
    assert dispatch.tags_of(dispatch.claim()) == ["a"]
    client.delete(f"{PREFIX}declared:k")
    dispatch.put("b", tag="b", limits="k|C3|w")
    assert sorted(dispatch.tags_of(dispatch.claim())) == ["b", "c"]


def test_a_purge_that_leaves_only_blocked_lanes_leaves_their_tenant_in_no_ring(dispatch, client):
    """A purge is made in parts; claims come between them."""
    closed = "api|C0|w"
    for _ in range(102):
        dispatch.put("42", limits=closed)
    assert dispatch.claim_all() == []
    dispatch.put("42")
    assert client.zrange("{fairness}:active:q", 0, -1) == ["tenant:42"]
    assert dispatch.run(calls.PURGE, ["q"]) == 100
    assert client.zrange("{fairness}:active:q", 0, -1) == []
    assert client.zrange("{fairness}:blocked:q", 0, -1) == ["tenant:42"]
    assert dispatch.run(calls.PURGE, ["q"]) == 3


def test_a_pause_without_an_end_is_answered_without_its_length(dispatch):
    args = calls.stop_args("pause", "api", 0, RULES.lease_ms, "on", str(NOW))
    answer = calls.read_stop(dispatch.run(calls.STOP, args))
    assert (answer.cool_ms, answer.pause_ms) == (0, None)


def test_a_record_that_is_published_again_with_an_end_is_news_when_it_ends(dispatch, client):
    dispatch.publish_tiers(free=2, held=1)
    dispatch.publish_tenant("a", "held")
    for _ in range(2):
        dispatch.put("a", tier="free")
    assert len(dispatch.claim().tasks) == 1
    assert dispatch.claim().tasks == ()
    dispatch.publish_tenant("a", "held", keep_ms=4_000)
    # A claim judges the tenant by the record that is there, and notes when that ends.
    dispatch.claim()
    assert client.delete(PREFIX + "tenant:a")
    dispatch.now += 4_001
    assert len(dispatch.claim().tasks) == 1


def move_to_list(dispatch, **which):
    args = calls.move_to_list_args(
        dispatch.rules, "q-list", "message", now_text=str(dispatch.now), **which
    )
    return dispatch.run(calls.MOVE_TO_LIST, args)


def test_a_claimed_task_leaves_for_another_broker_and_gives_its_start_back(dispatch, client):
    limits = write_limits((Limit("mail", rate=((1, 60_000),)),))
    dispatch.put("a", limits=limits)
    (task,) = dispatch.claim().tasks
    assert move_to_list(dispatch, lease=task.lease) == 1
    assert move_to_list(dispatch, lease=task.lease) == 0
    assert client.lrange("q-list", 0, -1) == ["message"]
    assert dispatch.find("t1") is None
    dispatch.put("a", limits=limits)
    assert dispatch.tags_of(dispatch.claim()) == ["t2"]
    assert findings(client, PREFIX, dispatch.rules, dispatch.now) == []


@pytest.mark.parametrize("scope", ["tenant", "queue"])
def test_a_task_that_leaves_for_another_broker_may_be_in_its_lane_by_then(dispatch, client, scope):
    dispatch.rules = Rules(priority_scope=scope)
    dispatch.put("a", eta_ms=NOW + 1000)
    dispatch.put("a")
    assert dispatch.run(calls.SCHEDULED, ["q", "10"]) == ["t1", "of t1"]
    dispatch.now += 1000
    assert dispatch.tags_of(dispatch.claim(1)) == ["t2"]
    assert dispatch.find("t1")[0] == "waiting"
    assert move_to_list(dispatch, tag="t1") == 1
    assert dispatch.find("t1") is None
    assert client.lrange("q-list", 0, -1) == ["message"]
    assert_sums_agree(client, PREFIX)
    assert findings(client, PREFIX, dispatch.rules, dispatch.now) == []


def test_a_task_that_runs_does_not_leave_for_another_broker(dispatch, client):
    dispatch.put("a", eta_ms=NOW + 1000)
    dispatch.now += 1000
    tasks = dispatch.claim().tasks
    assert move_to_list(dispatch, tag="t1") == 0
    assert dispatch.find("t1")[0] == "running"
    assert not client.exists("q-list")
    assert dispatch.settle(tasks, Verdict.HEAD) == [Settled.SETTLED]
    assert dispatch.tags_of(dispatch.claim()) == ["t1"]


def test_a_task_that_leaves_for_another_broker_frees_its_slot(dispatch, client):
    limits = write_limits([Limit("api", concurrency=1)])
    for _ in range(2):
        dispatch.put("a", limits=limits)
    (task,) = dispatch.claim().tasks
    assert dispatch.claim().tasks == ()
    assert move_to_list(dispatch, lease=task.lease) == 1
    assert dispatch.tags_of(dispatch.claim()) == ["t2"]


def test_a_task_stays_if_the_key_of_the_plain_list_is_no_list(dispatch, client):
    dispatch.put("a")
    (task,) = dispatch.claim().tasks
    client.set("q-list", "text")
    with pytest.raises(ResponseError, match="WRONGTYPE the key of the plain list q-list"):
        move_to_list(dispatch, lease=task.lease)
    assert dispatch.find("t1")[0] == "running"
    client.delete("q-list")
    client.rpush("q-list", "other")
    assert move_to_list(dispatch, lease=task.lease) == 1
    assert client.lrange("q-list", 0, -1) == ["message", "other"]


@pytest.mark.parametrize("order", ["ABCA", "BACA"])
def test_a_task_that_comes_back_goes_before_a_later_one_of_another_name(dispatch, order):
    dispatch.rules = Rules(default_limit=None)
    for name in order:
        dispatch.put("a", kind=name)
    others = [f"t{number}" for number in (1, 2, 3) if order[number - 1] != "A"]
    claimed = dispatch.claim(3).tasks
    (first,) = (each for each in claimed if tag_of(each.lease) not in others)
    dispatch.settle([first], Verdict.HEAD)
    # Its lane is the only one now, so this claim does not look at the next task of the lane.
    assert dispatch.tags_of(dispatch.claim(1)) == [tag_of(first.lease)]
    dispatch.settle([each for each in claimed if each is not first], Verdict.HEAD)
    assert dispatch.tags_of(dispatch.claim()) == [*others, "t4"]


def test_a_lane_that_is_ready_again_goes_before_a_later_task_of_another_lane(dispatch):
    dispatch.publish_tiers(free=3)
    api = write_limits([Limit("api", concurrency=1)])
    for limits in (api, "", api, "", ""):
        dispatch.put("a", limits=limits)
    first, second, _ = dispatch.claim().tasks
    dispatch.settle([second], Verdict.HEAD)
    assert dispatch.tags_of(dispatch.claim()) == ["t2"]
    # The limit opens, and the tenant is at its own now.
    dispatch.publish_tiers(free=2)
    dispatch.settle([first])
    assert dispatch.claim().tasks == ()
    dispatch.publish_tiers(free=5)
    assert dispatch.tags_of(dispatch.claim()) == ["t3", "t5"]
