"""The check of tasks that wait at limits beside the tiers': one command breaks each table."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import shape_of
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Verdict
from tests.cli.conftest import named
from tests.lua.dispatching import PREFIX, Dispatch
from tests.support.tables import assert_sums_agree, leases_of
from tests.support.waiting import at_most, eventually


def test_nothing_is_found_while_tasks_come_and_go(client, coming_and_going, check):
    words = (
        "api|C2|w",
        "own:{0}|C1|wp,api|C2|w",
        "rate|R3/50|w",
        "api|C1|w,rate|R9/50|w",
        "tenant:c7|C1|w",
        "",
    )

    def put(installation, turn):
        tenant = f"c{turn % 40}"
        limits = words[turn % len(words)].format(tenant)
        installation.put(tenant, f"{turn}", kind="k", limits=limits)

    found, groups = [], 0

    def many_and_with_groups():
        nonlocal groups
        found.append(check())
        groups += client.exists(f"{PREFIX}groups:celery")
        return len(found) >= 8 and groups

    with coming_and_going(put):
        eventually(many_and_with_groups, at_most(20), 0)
    assert [each.findings for each in found] == [()] * len(found)


API, OWN, RATE, OFF = "api|C1|w", "own:d|C2|wp", "rate|R2/60000|w", "off|C0|w"
#: A class blocked in the group of its shared limit, though it has a private one.
GROUP = shape_of(API)
BOTH = f"0,own:b|C1|wp,{API}"
LANE_B = f"{BOTH} k"
D_CLASS, D_GROUP = f"0,{OWN}", f"tenant:d 0,{shape_of(OWN)}"


@pytest.fixture
def waiting(client):
    """Tasks that wait at a shared limit, a private one, a rate and a pause; one that came back."""
    it = Dispatch(client, Rules(default_limit=9))
    it.put("a", limits=API)
    it.put("a", limits=API)
    assert len(it.claim(1).tasks) == 1
    for tenant in "bc":
        it.put(tenant, kind="k", limits=f"own:{tenant}|C1|wp,{API}")
        it.put(tenant, rank=5, limits=API)
    for _ in range(4):
        it.put("d", kind="k", limits=OWN)
        it.put("r", limits=RATE)
    it.put("e", limits=OFF)
    it.put("e")
    tasks = it.claim_all()
    of_d = [task for task in tasks if task.key == "tenant:d,own:d"]
    assert (len(tasks), len(of_d)) == (5, 2)
    it.settle(of_d[:1], Verdict.HEAD)
    it.put("n")
    return it


def test_nothing_is_found_where_everything_agrees(waiting, client, check):
    assert client.hlen(f"{PREFIX}groups:q") == 4
    assert check().findings == ()
    assert_sums_agree(client, PREFIX)


def change(command, key, *args):
    return lambda client: client.execute_command(command, PREFIX + key, *args)


def move(member, place, other):
    script = "redis.call('ZREM', KEYS[1], ARGV[1]); redis.call('ZADD', KEYS[2], 0, ARGV[1])"
    return lambda client: client.eval(script, 2, PREFIX + place, PREFIX + other, member)


SHELF_B = f"blocked_lanes:tenant:b {GROUP} q"
LOST = {("blocked_lane_lost", f"blocked_lanes:tenant:{tenant} {GROUP} q", "") for tenant in "abc"}
PLANTED = {
    "a blocked lane that no group names": (
        change("ZREM", f"group:{GROUP} q", "tenant:b"),
        {("blocked_lane_lost", SHELF_B, "")},
    ),
    "a tenant of a group without a blocked lane": (
        change("ZADD", f"group:{GROUP} q", 1, "tenant:idle"),
        {("wait_without_task", f"group:{GROUP} q", "tenant:idle")},
    ),
    "a lane on a shelf that is not blocked": (
        change("ZREM", "blocked_classes:tenant:b q", BOTH),
        {
            ("blocked_lane_lost", SHELF_B, ""),
            ("lane_lost", f"lane:tenant:b {LANE_B} q", ""),
        },
    ),
    "a lane that is blocked elsewhere": (
        change("ZADD", "blocked_classes:tenant:b q", 1, BOTH),
        {
            ("blocked_lane_lost", SHELF_B, ""),
            ("lane_lost", f"lane:tenant:b {LANE_B} q", ""),
        },
    ),
    "a blocked lane on no shelf": (
        change("ZREM", SHELF_B, LANE_B),
        {
            ("lane_lost", f"lane:tenant:b {LANE_B} q", ""),
            ("tenant_count", "tenant_state:tenant:b", "q"),
        },
    ),
    "a shelf that was deleted": (
        change("DEL", SHELF_B),
        {
            ("lane_lost", f"lane:tenant:b {LANE_B} q", ""),
            ("lane_lost", f"lane:tenant:b 5,{API}  q", ""),
            ("tenant_count", "tenant_state:tenant:b", "q"),
            ("wait_without_task", f"group:{GROUP} q", "tenant:b"),
        },
    ),
    "a tenant in the ring of whom nothing is ready": (
        move("tenant:b", "blocked:q", "active:q"),
        {("task_without_turn", "tenant_state:tenant:b", "q")},
    ),
    "a tenant that has something ready, is full and not closed": (
        move("tenant:n", "active:q", "blocked:q"),
        {("task_without_turn", "tenant_state:tenant:n", "q")},
    ),
    "a wrong count of a tenant whose lanes are blocked": (
        change("HINCRBY", "tenant_state:tenant:b", "q:q", 1),
        {("tenant_count", "tenant_state:tenant:b", "q"), ("queue_count", "waiting", "q")},
    ),
    "a name of a class that is not noted": (
        change("DEL", f"names:tenant:d {D_CLASS} q"),
        {("lane_lost", f"lane:tenant:d {D_CLASS} k q", "")},
    ),
    "a group that waits nowhere": (
        change("HDEL", "groups:q", GROUP),
        {*LOST, ("wait_without_task", "groups_at:api|C# q", GROUP)},
    ),
    "the groups of a queue that were deleted": (
        change("DEL", "groups:q"),
        {
            *LOST,
            ("wait_without_task", "groups_at:api|C# q", GROUP),
            ("blocked_lane_lost", f"blocked_lanes:tenant:d {D_GROUP} q", ""),
            ("wait_without_task", "groups_at:own:d|C# q", D_GROUP),
            ("blocked_lane_lost", f"blocked_lanes:tenant:r {shape_of(RATE)} q", ""),
            ("wait_without_task", "groups_at:rate|R# q", shape_of(RATE)),
            ("blocked_lane_lost", f"blocked_lanes:tenant:e {shape_of(OFF)} q", ""),
            ("wait_without_task", "groups_at:off|C0 q", shape_of(OFF)),
        },
    ),
    "a group without a tenant": (
        change("DEL", f"group:{D_GROUP} q"),
        {
            ("blocked_lane_lost", f"blocked_lanes:tenant:d {D_GROUP} q", ""),
            ("wait_without_task", "groups_at:own:d|C# q", D_GROUP),
        },
    ),
    "a group that waits at two limits": (
        change("ZADD", "groups_at:off|C0 q", 0, GROUP),
        {("wait_without_task", "groups_at:off|C0 q", GROUP)},
    ),
    "a group that its limit does not name": (
        change("DEL", "groups_at:api|C# q"),
        {*LOST, ("wait_without_task", "available:q", "api|C#")},
    ),
    "a group at a limit that is no candidate": (
        change("ZREM", "available:q", "api|C#"),
        LOST,
    ),
    "a candidate at which nothing waits": (
        change("ZADD", "available:q", 5, "api|R#"),
        {("wait_without_task", "available:q", "api|R#")},
    ),
    "a limit with room that is closed for ever": (
        change("ZREM", "leases:api", "t1.1.w1"),
        {
            ("limit_left_exhausted", "available:q", "api|C#"),
            ("task_not_counted", "leases:api", "t1.1.w1"),
        },
    ),
    "a limit of which another look was lost": (
        change("ZADD", "available:q", -1, "own:d|C#"),
        {("limit_left_exhausted", "available:q", "own:d|C#")},
    ),
    "a rate that no time opens": (
        change("ZREM", "timers", "rate"),
        {("limit_left_exhausted", "available:q", "rate|R#")},
    ),
    "a limit that no look comes to": (
        change("DEL", "waiters:api"),
        LOST,
    ),
    "claims that do not look at limits": (
        change("HDEL", "clock", "limited"),
        {("flag_missing", "clock", "limited")},
    ),
    "a key that saves for nobody": (
        change("HSET", "virtual_times", "saving api", "0 5 9 api api|R# tenant:a q"),
        {
            ("saving_without_task", "virtual_times", "saving api"),
            ("flag_missing", "clock", "several"),
        },
    ),
    "a key that saves for a tenant that waits elsewhere": (
        change("HSET", "virtual_times", "saving api", "3 0 0 api api|C# tenant:x q"),
        {
            ("saving_without_task", "virtual_times", "saving api"),
            ("flag_missing", "clock", "several"),
            ("flag_missing", "clock", "slots"),
        },
    ),
    "slots of leases that a key does not have": (
        change("HSET", "virtual_times", "beside gone", "3"),
        {("slots_not_counted", "leases:gone", ""), ("flag_missing", "clock", "slots")},
    ),
    "a rate without starts": (
        change("HDEL", "window:rate", "60000"),
        {("starts_lost", "window:rate", "")},
    ),
    "starts without the time of the last one": (
        change("HDEL", "window:rate", "ideal"),
        {("starts_lost", "window:rate", "")},
    ),
    "starts that nobody can read": (
        change("HSET", "window:rate", "60000", "many"),
        {("starts_lost", "window:rate", "")},
    ),
    "a sum without its starts": (
        change("HSET", "window:rate", "60000", "2 5 1|"),
        {("starts_lost", "window:rate", "")},
    ),
    "a lease of a limit's key that nothing runs for": (
        change("ZADD", "leases:api", "inf", "gone.1"),
        {("slot_without_task", "leases:api", "gone.1")},
    ),
    "a lease of a limit's key that its task does not have": (
        change("ZADD", "leases:rate", "inf", "t1.1.w1"),
        {("slot_without_task", "leases:rate", "t1.1.w1")},
    ),
}


def everything(client):
    return {key: client.dump(key) for key in client.scan_iter(PREFIX + "*")}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found_and_repaired(waiting, client, check, name):
    plant, expected = PLANTED[name]
    before = everything(client)
    plant(client)
    assert everything(client) != before
    assert named(check()) == expected
    repaired = check(repair=True)
    assert named(repaired) <= expected
    assert all(each.repaired for each in repaired.findings)
    assert check().findings == ()
    assert_sums_agree(client, PREFIX)


def test_a_repair_that_fails_is_left_to_a_person(waiting, client, check):
    client.hdel(f"{PREFIX}window:rate", "60000")
    client.delete(f"{PREFIX}key_expiry")
    client.set(f"{PREFIX}key_expiry", "of another")
    (found,) = check(repair=True).findings
    assert (found.check, found.repaired, found.advice) == ("starts_lost", "", "look at it by hand")
    assert "WRONGTYPE" in found.problem


def test_whatever_key_is_gone_a_repaired_installation_works(waiting, client, check):
    whole = everything(client)
    assert len(whole) > 40
    seconds, _ = client.time()
    for gone in whole:
        client.flushdb()
        for key, value in whole.items():
            client.restore(key, 0, value)
        client.delete(gone)
        check(repair=True)
        left = named(check())
        # Whether such a task has run, only a person can say.
        assert {name for name, _, _ in left} <= kept_of(gone.removeprefix(PREFIX)), gone
        waiting.now = seconds * 1000
        run_all(waiting, client)
        assert named(check()) <= left, gone
        # Only a person opens the limit of 0.
        lanes = {
            key.removeprefix(f"{PREFIX}lane:tenant:") for key in client.keys(f"{PREFIX}lane:*")
        }
        assert lanes <= {f"e 0,{OFF}  q"}, gone


def kept_of(gone):
    """Return the findings that the loss of a key leaves to a person."""
    if gone.startswith("lane:") or gone == "running":
        return {"task_without_place"}
    return {"tasks": {"message_without_task"}, "messages": {"message_lost"}}.get(gone, set())


def run_all(it, client):
    """Claim and settle for two minutes."""
    for _ in range(30):
        ends = [Settle(each, Verdict.DONE) for each in leases_of(client, PREFIX)]
        it.run(calls.SETTLE, calls.settle_args(ends, it.rules, str(it.now)))
        it.claim_all()
        it.now += it.rules.lease_ms // 3
