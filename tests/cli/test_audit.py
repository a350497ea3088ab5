"""The audit finds every difference that is planted, and none where there is none."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_fairness.control import audit as audit_module
from celery_fairness.control import scan as reading
from celery_fairness.control import sums
from celery_fairness.scheduler import calls
from tests.cli.conftest import Installation

#: The running task of the tenant 42.
LEASE = "t0.1.1"


def test_nothing_is_found_where_everything_agrees(installation, audit):
    found = audit()
    assert found.findings == ()
    assert found.notes == ()
    assert dict(found.compared) == {
        "running": 1,
        "leases": 1,
        "places": 3,
        "queues": 2,
        "waiting": 5,
        "dead": 1,
        "keys": len(installation.client.keys("{fairness}:*")),
    }


def test_nothing_is_found_in_an_empty_redis(client, audit):
    assert audit().findings == ()


def test_nothing_is_found_where_an_entry_was_moved_aside(installation, client, audit):
    client.lpush("celery", "no message")
    assert (
        installation.run(calls.QUARANTINE, calls.aside_args("celery", "celery", b"no message")) == 1
    )
    assert client.lrange(installation.key("aside:celery"), 0, -1) == ["no message"]
    assert audit().findings == ()


def change(command, key, *args):
    return lambda it: it.client.execute_command(command, it.key(key), *args)


PLANTED = {
    "a lease that is counted and does not run": (
        change("ZADD", "leases:tenant:42", "inf", "gone.1"),
        [("counted is running", "gone.1")],
    ),
    "a charge of what does not run": (
        change("HSET", "charged", "gone.1", "1 1 0 0 celery"),
        [("a charge is of a running", "gone.1")],
    ),
    "a lease that began and is not counted": (
        change("ZADD", "began:api", 5, "gone.1"),
        [("what began is counted", "gone.1")],
    ),
    "a running task that is not counted": (
        change("ZREM", "leases:tenant:42", LEASE),
        [("running is counted", LEASE)],
    ),
    "a running task whose count ends by itself": (
        change("ZADD", "leases:tenant:42", 5, LEASE),
        [("running is counted", LEASE)],
    ),
    "a running task that never ends": (
        change("ZREM", "ends", LEASE),
        [("running has an end", LEASE)],
    ),
    "an end of nothing": (
        change("ZADD", "ends", 9e15, "gone.1"),
        [("an end is of a running", "gone.1")],
    ),
    "a running task that nobody remembers": (
        change("HDEL", "running", LEASE),
        [
            ("counted is running", LEASE),
            ("an end is of a running", LEASE),
            ("known is somewhere", "t0"),
        ],
    ),
    "a row of running that nobody can read": (
        change("HSET", "running", LEASE, "nonsense"),
        [("a record can be read", LEASE)],
    ),
    "a running task that is not known": (
        change("SREM", "known", "t0"),
        [("running is known", LEASE)],
    ),
    "a waiting task that is not known": (
        change("SREM", "known", "t1"),
        [("waiting is known", "t1")],
    ),
    "a task that came back and is not known": (
        change("SREM", "known", "b1"),
        [("waiting is known", "b1")],
    ),
    "a task that waits for its time and is not known": (
        change("SREM", "known", "l1"),
        [("waiting is known", "l1")],
    ),
    "a known task that is nowhere": (
        change("SADD", "known", "stray"),
        [("known is somewhere", "stray"), ("number of tasks", "known")],
    ),
    "a dead letter that is not known": (
        change("SREM", "known", "d1"),
        [("waiting is known", "d1"), ("number of tasks", "known")],
    ),
    "a dead letter that was taken by hand": (
        change("DEL", "dead:celery"),
        [("known is somewhere", "d1"), ("number of tasks", "known")],
    ),
    "a wrong count of a queue": (
        change("HINCRBY", "waiting", "celery", 1),
        [("waiting of a queue", "celery")],
    ),
    "a count of a queue that is no more": (
        change("HDEL", "waiting", "celery"),
        [("a key has an owner", "ring:celery"), ("a key has an owner", "full:celery")],
    ),
    "a wrong count of a tenant": (
        change("HINCRBY", "account:tenant:42", "q:celery", -1),
        [("waiting of a tenant", "tenant:42 celery"), ("waiting of a queue", "celery")],
    ),
    "a lane that lost a task": (
        change("LPOP", "lane:tenant:42 5 celery"),
        [("waiting of a tenant", "tenant:42 celery"), ("known is somewhere", "t1")],
    ),
    "a lane that lost its account": (
        change("DEL", "account:tenant:42"),
        [("waiting of a tenant", "tenant:42 celery"), ("closed agrees", "tenant:42")],
    ),
    "a lane of nobody": (
        change("RPUSH", "lane:tenant:nobody 0 celery", "1 x 0 0 1 0 nobody      \n{}"),
        [("lanes of a tenant", "tenant:nobody celery"), ("waiting is known", "x")],
    ),
    "a record in a lane that nobody can read": (
        change("RPUSH", "lane:tenant:42 5 celery", "nonsense"),
        [("a record can be read", "lane:tenant:42 5 celery")],
    ),
    "a first record in a lane that nobody can read": (
        change("LPUSH", "lane:tenant:42 5 celery", "nonsense"),
        [("a record can be read", "lane:tenant:42 5 celery")],
    ),
    "a tenant with something waiting in no ring": (
        change("ZREM", "full:celery", "tenant:42"),
        [("place of a tenant", "tenant:42 celery")],
    ),
    "a tenant in ring and full": (
        change("ZADD", "ring:celery", 1, "tenant:42"),
        [("place of a tenant", "tenant:42 celery")],
    ),
    "a tenant with nothing waiting in a ring": (
        change("ZADD", "ring:celery", 1, "tenant:idle"),
        [("place of a tenant", "tenant:idle celery")],
    ),
    "a full tenant that is not closed": (
        change("HDEL", "account:tenant:42", "closed"),
        [("full is closed", "tenant:42 celery"), ("closed agrees", "tenant:42")],
    ),
    "a full tenant that no news will reach": (
        change("ZREM", "closed", "tenant:42"),
        [("full is closed", "tenant:42 celery"), ("closed agrees", "tenant:42")],
    ),
    "a closed tenant of which nothing waits": (
        change("ZADD", "closed", 1, "tenant:idle"),
        [("closed agrees", "tenant:idle")],
    ),
    "a lane that claims do not see": (
        change("DEL", "ready:tenant:42 celery"),
        [("lanes of a tenant", "tenant:42 celery")],
    ),
    "a lane that is not there": (
        change("ZADD", "ready:tenant:42 celery", 0, "9"),
        [("lanes of a tenant", "tenant:42 celery")],
    ),
    "a ready of nobody": (
        change("ZADD", "ready:tenant:idle celery", 0, "9"),
        [("lanes of a tenant", "tenant:idle celery")],
    ),
    "a lane of what came back that stands in the wrong place": (
        change("ZADD", "ready:tenant:back celery", 5e15, "0b shop.work"),
        [("order of lanes", "tenant:back 0b shop.work celery")],
    ),
    "a lane of what came back that is not there": (
        change("ZADD", "ready:tenant:back celery", 5, "0b nothing"),
        [("lanes of a tenant", "tenant:back celery")],
    ),
    "a task that came back without its record": (
        change("HDEL", "returned", "b1"),
        [("what came back is kept", "b1")],
    ),
    "a record of a task that came back, and no task": (
        change("HSET", "returned", "gone", "1 gone 1 0 1 0 42   \n{}"),
        [("what came back is kept", "gone")],
    ),
    "an account of which nothing waits": (
        change("HSET", "account:tenant:idle", "tier", "free"),
        [("a key has an owner", "account:tenant:idle")],
    ),
    "debts of a queue in which nothing waits": (
        change("ZADD", "out:empty", 1, "tenant:42"),
        [("a key has an owner", "out:empty")],
    ),
    "a virtual time of a queue in which nothing waits": (
        change("HSET", "virtual", "empty", 1),
        [("a key has an owner", "virtual:empty")],
    ),
    "a key of another": (change("SET", "odd", 1), [("a key has an owner", "odd")]),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(installation, audit, name):
    plant, expected = PLANTED[name]
    plant(installation)
    told = {(each.check, each.name) for each in audit().findings}
    assert set(expected) <= told


def test_findings_say_both_sides(installation, audit):
    installation.client.hincrby(installation.key("account:tenant:42"), "q:celery", 1)
    (first, *_) = (each for each in audit().findings if each.check == "waiting of a tenant")
    assert (first.expected, first.found) == ("2 (its lanes)", "3 (its account)")


def test_what_agrees_at_the_second_look_is_not_told(installation, audit, monkeypatch):
    count = installation.key("waiting")
    installation.client.hincrby(count, "celery", 1)
    tags = audit_module.Auditor._tags

    def put_right_then_tags(self, before):
        installation.client.hincrby(count, "celery", -1)
        tags(self, before)

    monkeypatch.setattr(audit_module.Auditor, "_tags", put_right_then_tags)
    assert audit().findings == ()


def test_a_task_in_two_places_is_one_too_many(client, audit):
    installation = Installation(client)
    installation.put("42", "t1")
    installation.put("42", "t1", queue="other")
    assert audit().findings == ()
    client.rename("{fairness}:known", "kept")
    installation.put("42", "t1", queue="other")
    (found,) = audit().findings
    assert (found.check, found.expected, found.found) == (
        "number of tasks",
        "2 waiting + 0 later + 0 running + 0 dead",
        "1",
    )


def test_leases_of_the_gate_need_no_row(installation, audit):
    installation.client.zadd(installation.key("leases:tenant:42"), {"of-the-gate": 5.0})
    assert audit().findings == ()


def test_differences_without_end_are_told_up_to_a_bound(client, audit, monkeypatch):
    monkeypatch.setattr(audit_module, "DOUBTS_AT_MOST", 5)
    client.sadd("{fairness}:known", *(f"t{number}" for number in range(20)))
    found = audit()
    assert len(found.findings) == 5
    assert found.notes == ("only the first 5 differences were looked at twice and told",)


def test_more_tags_than_fit_are_only_counted(installation, audit, monkeypatch):
    monkeypatch.setattr(audit_module, "NAMES_AT_MOST", 3)
    assert audit().findings == ()
    installation.client.sadd(installation.key("known"), "stray1", "stray2")
    found = audit()
    assert [each.check for each in found.findings] == ["number of tasks"]
    assert "their number was compared" in found.notes[0]


def many(client: Redis, tenants: int) -> Installation:
    made = Installation(client)
    for number in range(tenants):
        for turn in range(3):
            made.put(f"c{number}", f"{number}-{turn}", rank=turn)
    return made


@pytest.mark.parametrize("at_once", [2000, 10])
def test_many_tenants_are_read_in_pieces(client, audit, monkeypatch, at_once):
    monkeypatch.setattr(sums, "AT_ONCE", at_once)
    monkeypatch.setattr(sums, "BATCH", 7)
    monkeypatch.setattr(reading, "WALK_COUNT", 3)
    installation = many(client, 150)
    installation.claim(20)
    assert audit().findings == ()
    client.hincrby("{fairness}:waiting", "celery", 1)
    assert ("waiting of a queue", "celery") in {(f.check, f.name) for f in audit().findings}


def test_long_lanes_are_read_whole(client, audit):
    installation = Installation(client)
    for number in range(350):
        installation.put("42", f"t{number}")
    assert audit().compared["waiting"] == 350
    assert audit().findings == ()


def test_nothing_is_found_while_tasks_come_and_go(client, coming_and_going, audit):
    installation = many(client, 60)

    def put(worker: Installation, turn: int) -> None:
        worker.put(f"c{turn % 90}", f"new-{turn}", rank=turn % 10)

    with coming_and_going(put):
        found = [audit() for _ in range(8)]
    assert [each.findings for each in found] == [()] * 8
    assert all(each.compared["waiting"] for each in found)
    assert installation.client.exists("{fairness}:known")


def test_an_audit_writes_nothing_and_walks_no_whole_database(installation, audit, client):
    client.config_resetstat()
    audit()
    ran = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    allowed = {
        *("scan", "hscan", "sscan", "zscan", "hget", "hkeys", "hvals", "hlen", "hexists", "hmget"),
        *("zscore", "zcard", "zrange", "scard", "sismember", "smismember", "llen", "lpos"),
        *("lrange", "exists", "get", "multi", "exec", "hello", "select", "info"),
        *("hgetall", "zcount"),
        *("config|resetstat", "client|setinfo", "client|setname"),
    }
    assert ran <= allowed


def test_a_prefix_and_a_namespace_are_kept_apart(client, make_fairness):
    before = "shop*[1]:"
    fairness = make_fairness(
        conf={"broker_transport_options": {"global_keyprefix": before}},
        fairness={"namespace": "second"},
    )
    mine = Installation(client, before + "{second}:")
    mine.fill()
    other = Installation(client)
    other.fill()
    client.sadd(other.key("known"), "stray")
    found = fairness.check()
    assert found.findings == ()
    assert found.compared["waiting"] == 5
    client.sadd(mine.key("known"), "stray")
    assert ("known is somewhere", "stray") in {(f.check, f.name) for f in fairness.check().findings}
