"""The check finds each difference that is planted, and repairs it; it finds no other."""

from __future__ import annotations

import pytest

from celery_fairness.control.health import table_check
from celery_fairness.scheduler import calls
from celery_fairness.store.library import build
from tests.cli.conftest import RULES, Installation, named
from tests.support.tables import assert_sums_agree

#: The running task of the tenant 42.
LEASE = "t0.1.1"


def test_nothing_is_found_where_everything_agrees(installation, check):
    found = check()
    assert found.findings == ()
    assert found.keys == len(installation.client.keys("{fairness}:*"))


def test_nothing_is_found_in_an_empty_redis(client, check):
    assert check().findings == ()


def test_nothing_is_found_where_an_entry_was_moved_aside(installation, client, check):
    client.lpush("celery", "no message")
    assert installation.run(calls.QUARANTINE, ["celery", "celery", b"no message"]) == 1
    assert client.lrange(installation.key("quarantined:celery"), 0, -1) == ["no message"]
    assert check().findings == ()


def change(command, key, *args):
    return lambda it: it.client.execute_command(command, it.key(key), *args)


def plant_a_lost_lane(it):
    head = f"1 0 0 1 0 lost{' ' * 8}celery"
    it.client.hset(it.key("tasks"), "lost", head)
    it.client.hset(it.key("messages"), "lost", "{}")
    it.client.zadd(it.key("lane:tenant:lost 0  celery"), {"lost": 1})


ACCOUNT = "tenant_state:tenant:42"
LANE = "lane:tenant:42 5 shop.export celery"
PLANTED = {
    "a lease that is counted and does not run": (
        change("ZADD", "leases:tenant:42", "inf", "gone.1"),
        {("slot_without_task", "leases:tenant:42", "gone.1")},
    ),
    "a running task that is not counted": (
        change("ZREM", "leases:tenant:42", LEASE),
        {
            ("task_not_counted", "leases:tenant:42", LEASE),
            ("tenant_left_at_limit", "at_limit", "tenant:42"),
        },
    ),
    "a running task that never ends": (
        change("ZREM", "ends", LEASE),
        {("task_without_end", "running", "t0")},
    ),
    "a running task that nobody remembers": (
        change("HDEL", "running", "t0"),
        {
            ("slot_without_task", "leases:tenant:42", LEASE),
            ("task_without_place", "tasks", "t0"),
        },
    ),
    "a wrong count of a queue": (
        change("HINCRBY", "waiting", "celery", 1),
        {("queue_count", "waiting", "celery")},
    ),
    "a lost count of a queue": (
        change("HDEL", "waiting", "celery"),
        {("queue_count", "waiting", "celery")},
    ),
    "the lost counts of all queues": (
        change("DEL", "waiting"),
        {("queue_count", "waiting", "celery"), ("queue_count", "waiting", "other")},
    ),
    "a count of a queue in which nothing waits": (
        change("HSET", "waiting", "empty", 3),
        {("queue_count", "waiting", "empty")},
    ),
    "a wrong count of a tenant": (
        change("HINCRBY", ACCOUNT, "q:celery", -1),
        {("tenant_count", ACCOUNT, "celery"), ("queue_count", "waiting", "celery")},
    ),
    "a lane that lost a task": (
        change("ZPOPMIN", LANE),
        {("tenant_count", ACCOUNT, "celery"), ("task_without_place", "tasks", "t1")},
    ),
    "a lane that was deleted": (
        change("DEL", LANE),
        {
            ("tenant_count", ACCOUNT, "celery"),
            ("task_without_place", "tasks", "t1"),
            ("task_without_place", "tasks", "t2"),
        },
    ),
    "an account that was deleted": (
        change("DEL", ACCOUNT),
        {
            ("tenant_count", ACCOUNT, "celery"),
            ("tenant_marks", ACCOUNT, "at_limit"),
            ("queue_count", "waiting", "celery"),
        },
    ),
    "a lane that nothing leads to": (
        plant_a_lost_lane,
        {("lane_lost", "lane:tenant:lost 0  celery", "")},
    ),
    "a tenant with something waiting that has no turn": (
        change("ZREM", "blocked:celery", "tenant:42"),
        {("task_without_turn", ACCOUNT, "celery"), ("queue_count", "waiting", "celery")},
    ),
    "the lost turns of a queue": (
        change("DEL", "active:celery"),
        {
            ("task_without_turn", "tenant_state:tenant:back", "celery"),
            ("queue_count", "waiting", "celery"),
        },
    ),
    "a tenant with two turns": (
        change("ZADD", "active:celery", 1, "tenant:42"),
        {("task_without_turn", ACCOUNT, "celery"), ("queue_count", "waiting", "celery")},
    ),
    "a tenant with nothing waiting that has a turn": (
        change("ZADD", "active:celery", 1, "tenant:idle"),
        {("turn_without_task", "tenant_state:tenant:idle", "celery")},
    ),
    "a full tenant that is not closed": (
        change("HDEL", ACCOUNT, "at_limit"),
        {("task_without_turn", ACCOUNT, "celery"), ("tenant_marks", ACCOUNT, "at_limit")},
    ),
    "a full tenant that no news will reach": (
        change("ZREM", "at_limit", "tenant:42"),
        {("tenant_marks", ACCOUNT, "at_limit")},
    ),
    "a closed tenant of which nothing waits": (
        change("ZADD", "at_limit", 1, "tenant:idle"),
        {("tenant_marks", "tenant_state:tenant:idle", "at_limit")},
    ),
    "an order that was deleted": (
        change("DEL", "ready:tenant:42 celery"),
        {("lane_lost", LANE, ""), ("tenant_count", ACCOUNT, "celery")},
    ),
    "an order of what came back that was deleted": (
        change("DEL", "ready:tenant:back celery"),
        {
            ("lane_lost", "lane:tenant:back 0 shop.work celery", ""),
            ("tenant_count", "tenant_state:tenant:back", "celery"),
        },
    ),
    "a waiting task without its head": (
        change("HDEL", "tasks", "b1"),
        {
            ("task_without_message", "lane:tenant:back 0 shop.work celery", "b1"),
            ("message_without_task", "messages", "b1"),
        },
    ),
    "a waiting task without its message": (
        change("HDEL", "messages", "b1"),
        {("task_without_message", "lane:tenant:back 0 shop.work celery", "b1")},
    ),
    "a running task without its message": (
        change("HDEL", "messages", "t0"),
        {("message_lost", "tasks", "t0")},
    ),
    "a task that no id leads to": (
        change("HDEL", "ids", "id-b1"),
        {("task_without_id", "tasks", "b1")},
    ),
    "a task whose id leads to another": (
        change("HSET", "ids", "id-b1", "b0 b11"),
        {("task_without_id", "tasks", "b1")},
    ),
    "a scheduled task that its tenant does not list": (
        change("DEL", "scheduled_of:tenant:late"),
        {("scheduled_task_lost", "tasks", "l1")},
    ),
    "a tenant that lists a task that is not scheduled": (
        change("ZADD", "scheduled_of:tenant:back", 1, "b1"),
        {("scheduled_task_gone", "scheduled_of:tenant:back", "b1")},
    ),
    "a message that no task has": (
        change("HSET", "messages", "gone", "{}"),
        {("message_without_task", "messages", "gone")},
    ),
    "a queue's limit that its key does not know": (
        change("HSET", "queue_limits", "queue mails", "queue:mails 1 C2|w   "),
        {
            ("queue_limit_lost", "queue_limits", "queue mails"),
            ("flag_missing", "clock", "limited"),
        },
    ),
    "a pause without its flag": (
        change("HSET", "changes", "pause api", " 1 ada"),
        {("flag_missing", "clock", "has_overrides")},
    ),
    "a note of a pattern that has changed, without its flag": (
        change("HSET", "queue_limits", "look mails", 3),
        {("flag_missing", "clock", "limited"), ("flag_missing", "clock", "looks_again")},
    ),
    "an override of a pattern without its flag": (
        change("HSET", "changes", "override api.*", " C1 {}"),
        {("flag_missing", "clock", "has_overrides"), ("flag_missing", "clock", "has_patterns")},
    ),
    "a tenant's tier without its flag": (
        change("HSET", "tenant:7", "tier", "free", "concurrency", ""),
        {("flag_missing", "clock", "tenant_published")},
    ),
    "an expiry without its flag": (
        change("ZADD", "expires:celery", 9e15, "t1"),
        {("flag_missing", "clock", "expiring")},
    ),
}


#: Findings that a repair would have to guess, with a part of the advice.
FOR_A_PERSON = {
    "task_without_place": "HGET",
    "message_without_task": "HGET",
    "message_lost": "once it waits in its lane",
}


def left_to_a_person(found):
    """Return those findings of a check that no repair mends."""
    return {row for row in named(found) if row[0] in FOR_A_PERSON}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found_and_repaired(installation, check, name):
    plant, expected = PLANTED[name]
    plant(installation)
    assert named(check()) == expected
    repaired = check(repair=True)
    assert named(repaired) <= expected
    for each in repaired.findings:
        assert bool(each.repaired) == (each.check not in FOR_A_PERSON)
        assert FOR_A_PERSON.get(each.check, "") in each.advice
    left = check()
    assert named(left) == left_to_a_person(left)
    installation.run_all()
    assert_nothing_waits(installation)


def assert_nothing_waits(installation):
    left = {
        key.removeprefix(installation.prefix) for key in installation.client.keys("{fairness}:*")
    }
    kinds = {key.partition(":")[0] for key in left}
    assert not kinds & {"lane", "names", "ready", "active", "blocked", "waiting", "at_limit"}


UNREADABLE = {
    "a row of running": (change("HSET", "running", "t0", "nonsense"), ("running", "t0")),
    "the head of a task": (change("HSET", "tasks", "b1", "nonsense"), ("tasks", "b1")),
    "the head of a task in its lane": (
        change("HSET", "tasks", "t1", "nonsense"),
        (LANE, "t1"),
    ),
    "a key of another type": (change("SET", "active:odd", 1), ("active:odd", "")),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("repair", [False, True])
def test_what_cannot_be_read_is_left_to_a_person(installation, check, name, repair):
    plant, (key, row) = UNREADABLE[name]
    plant(installation)
    found = check(repair=repair)
    assert ("unreadable", key, row) in named(found)
    (told,) = {each for each in found.findings if (each.check, each.key) == ("unreadable", key)}
    assert "look at it" in told.advice
    assert not told.repaired


def test_a_task_without_a_place_is_left_to_a_person(installation, check):
    installation.client.delete(installation.key("lane:tenant:back 0 shop.work celery"))
    expected = ("task_without_place", "tasks", "b1")
    assert expected in named(check())
    repaired = check(repair=True)
    (left,) = (each for each in repaired.findings if not each.repaired)
    assert (left.check, left.row) == ("task_without_place", "b1")
    assert "HGET" in left.advice
    assert named(check()) == {expected}


def test_each_place_of_a_task_is_one(installation, client, check):
    """A lane, a time, a lease, a dead letter and an outcome: none of them is missed."""
    tags = set(client.hkeys(installation.key("tasks")))
    assert {"b1", "l1", "t0", "d1"} <= tags
    installation.put("ended", "e1", task_id="of-e1")
    assert installation.run(calls.CANCEL, calls.cancel_args(["e1"], RULES.lease_ms)) == [1]
    assert client.hexists(installation.key("tasks"), "e1")
    assert check().findings == ()
    for place in ("scheduled:celery", "dead:celery", "outcomes"):
        client.delete(installation.key(place))
    lost = {("task_without_place", "tasks", tag) for tag in ("l1", "d1", "e1")}
    assert named(check()) == lost | {("scheduled_task_gone", "scheduled_of:tenant:late", "l1")}


def test_a_tenant_with_more_lanes_than_are_added_up_is_repaired_whole(client, check):
    """A lane of its own for each name of a task."""
    installation = Installation(client)
    tags = [f"b{number}" for number in range(1100)]
    for tag in tags:
        installation.put("42", tag, kind=tag)
    client.hincrby(installation.key("tenant_state:tenant:42"), "q:celery", 5)
    client.hincrby(installation.key("waiting"), "celery", 5)
    assert check().findings == ()
    client.zrem(installation.key("ready:tenant:42 celery"), "0 b7")
    assert named(check()) == {("lane_lost", "lane:tenant:42 0 b7 celery", "")}
    check(repair=True)
    assert client.hget(installation.key("tenant_state:tenant:42"), "q:celery") == "1100"
    assert check().findings == ()
    assert_sums_agree(client, installation.prefix)


@pytest.mark.parametrize(
    ("bound", "command", "key", "row", "expected"),
    [
        ("TENANTS", "HDEL", "waiting", "celery", "queue_count"),
        ("LANES", "ZREM", "ready:tenant:42 celery", "0 a", "lane_lost"),
        ("LANES", "HDEL", "messages", "t0", "task_without_message"),
    ],
)
def test_a_repair_leaves_what_is_too_large_as_it_is(
    client, check, monkeypatch, bound, command, key, row, expected
):
    installation = Installation(client)
    for number, tenant in enumerate(("42", "42", "43")):
        installation.put(tenant, f"t{number}", kind="ab"[number % 2])
    client.execute_command(command, installation.key(key), row)
    (name,) = {each for each in named(check()) if each[0] == expected}
    small = build({f"REPAIRED_{bound}": 1}, checks=True)
    monkeypatch.setattr(table_check, "check_library", lambda: small)
    found = {(each.check, each.key, each.row): each for each in check(repair=True).findings}
    assert "too many for a repair" in found[name].problem
    assert not found[name].repaired
    monkeypatch.undo()
    assert name in named(check())
    check(repair=True)
    assert check().findings == ()
