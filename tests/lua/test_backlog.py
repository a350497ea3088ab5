"""Why the tasks of a queue wait: the rows of its tenants, and the bounds of one call."""

from __future__ import annotations

import json

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules
from tests.lua.dispatching import NOW, PREFIX, RULES, Dispatch

#: The numbers of each tier, as a caller holds them.
TIERS = {"free": "C1;W1", "pro": "W2", "held": "C0;W1"}
#: A call looks at so many lanes of one tenant, and of all tenants.
LANES, LANES_OF_CALL = 20, 100
TENANTS_AT_MOST = 60


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client, Rules(default_tier="free", default_limit=1))


def ask(dispatch, *pairs, enforcement="on"):
    """Return the rows of queues. A pair is a queue, and how many of its tenants are judged."""
    queues = list(zip(pairs[::2], pairs[1::2], strict=True))
    args = calls.json_args(queues=queues, **judging(dispatch, enforcement))
    return json.loads(dispatch.run(calls.BACKLOG, args))["queues"]


def judging(dispatch, enforcement="on"):
    return {
        "lease_ms": RULES.lease_ms,
        "default_tier": "free",
        "tiers": TIERS,
        "enforcement": enforcement,
        "frozen_ms": str(dispatch.now),
    }


def row_of(dispatch, enforcement="on"):
    """Return the row of the only tenant."""
    ((_, _, _, active, blocked),) = ask(dispatch, "q", 10, enforcement=enforcement)
    (row,) = [*active, *blocked]
    return row


def reasons(dispatch, enforcement="on"):
    """Return the tasks of the only tenant by the reason for which they wait, and since when."""
    return {reason: (tasks, since) for reason, tasks, since in row_of(dispatch, enforcement)[9]}


def tasks_by_reason(dispatch, enforcement="on"):
    return {reason: tasks for reason, (tasks, _) in reasons(dispatch, enforcement).items()}


def pause(dispatch, key):
    dispatch.run(calls.STOP, calls.stop_args("pause", key, 0, RULES.lease_ms, "on", str(NOW)))


def limit(key, number=9):
    return write_limits([Limit(key, concurrency=number)])


def test_the_oldest_task_of_a_reason_may_be_in_any_lane(dispatch):
    for kind in ("mail", "pdf", "mail"):
        dispatch.put("a", kind=kind)
        dispatch.now += 1000
    found = reasons(dispatch)
    assert found == {"ready": (1, str(NOW)), "tier": (2, str(NOW + 1000))}


def test_the_oldest_task_of_a_reason_may_be_in_any_group(dispatch):
    for key in ("zeta", "alpha"):
        dispatch.put("a", tier="pro", limits=limit(key))
        pause(dispatch, key)
        dispatch.now += 1000
    assert dispatch.claim_all() == []
    assert reasons(dispatch) == {"paused": (2, str(NOW))}


def test_more_lanes_than_a_call_looks_at_count_as_the_last_one(dispatch):
    for number in (0, *range(LANES + 2)):
        dispatch.put("a", tier="pro", limits=limit(f"k{number}", 1))
        dispatch.now += 1000
    pause(dispatch, f"k{LANES}")
    # The call does not read the times of the tasks in the other lanes.
    second = str(NOW + 1000)
    assert reasons(dispatch) == {"ready": (LANES, str(NOW)), "limit": (3, second)}
    pause(dispatch, f"k{LANES - 1}")
    assert tasks_by_reason(dispatch) == {"ready": LANES - 1, "limit": 1, "paused": 3}


def test_tasks_without_a_tenant_have_no_limit_of_a_tier(dispatch):
    for _ in range(3):
        dispatch.put("")
    dispatch.claim(1)
    since = str(NOW)
    row = ["_system", "", 1, -1, 1, 2, 2, "ready", since, [["ready", 2, since]]]
    assert row_of(dispatch) == row


def test_a_tenant_has_the_weight_and_the_number_of_its_tier(dispatch):
    dispatch.put("a", tier="pro")
    assert row_of(dispatch)[:8] == ["tenant:a", "pro", 2, -1, 0, 1, 1, "ready"]


def test_the_record_of_a_tenant_replaces_the_tier_of_its_tasks(dispatch):
    dispatch.publish_tiers(free=1, pro=4)
    dispatch.put("a", tier="free")
    dispatch.publish_tenant("a", "pro")
    assert row_of(dispatch)[:4] == ["tenant:a", "pro", 1, 4]


@pytest.mark.parametrize(("enforcement", "startable"), [("on", 1), ("observe", 2), ("off", 2)])
def test_a_limit_of_a_tier_counts_where_it_is_enforced(dispatch, enforcement, startable):
    for _ in range(2):
        dispatch.put("a", tier="free")
    row = row_of(dispatch, enforcement)
    assert row[6:8] == [startable, "tier" if startable < 2 else "ready"]


@pytest.mark.parametrize("enforcement", ["on", "observe", "off"])
def test_a_tenant_that_may_run_nothing_is_paused_for_every_worker(dispatch, enforcement):
    dispatch.put("a", tier="held")
    row = row_of(dispatch, enforcement)
    assert (row[3], row[6:8], row[9]) == (0, [0, "paused"], [["paused", 1, str(NOW)]])


def test_a_tenant_above_its_number_starts_nothing(dispatch):
    dispatch.publish_tiers(free=3)
    for _ in range(5):
        dispatch.put("a", tier="free")
    assert len(dispatch.claim().tasks) == 3
    dispatch.publish_tiers(free=1)
    row = row_of(dispatch)
    assert (row[4], row[6:8]) == (3, [0, "tier"])


def test_tasks_at_a_full_tier_and_a_full_limit_wait_for_the_tier(dispatch):
    for _ in range(2):
        dispatch.put("a", tier="free", limits=limit("api", 1))
    assert tasks_by_reason(dispatch) == {"ready": 1, "tier": 1}


@pytest.mark.parametrize(("enforcement", "ready"), [("on", 2), ("observe", 3)])
def test_a_limit_has_room_beside_the_tasks_that_run(dispatch, enforcement, ready):
    dispatch.publish_tiers(free=5)
    for _ in range(4):
        dispatch.put("a", tier="free", limits=limit("api", 3))
    assert len(dispatch.claim(1).tasks) == 1
    assert row_of(dispatch, enforcement)[6] == ready


def test_a_free_slot_counts_for_one_task_of_a_call(dispatch):
    for queue in ("q", "p"):
        dispatch.put("a", queue=queue)
    rows = ask(dispatch, "q", 10, "p", 10)
    assert [row[3][0][6] for row in rows] == [1, 0]


def test_a_start_counts_for_each_limit_of_its_key(dispatch):
    """One lane has the concurrency of a key, and another one its rate."""
    for limits in (limit("api", 4), write_limits([Limit("api", rate=((2, 60_000),))])):
        for _ in range(5):
            dispatch.put("a", tier="pro", limits=limits)
    assert tasks_by_reason(dispatch) == {"ready": 4, "limit": 6}
    assert row_of(dispatch)[6:8] == [4, "limit"]


def test_a_start_that_has_left_the_window_of_a_rate_counts_no_more(dispatch):
    rated = write_limits([Limit("api", rate=((3, 10_000),))])
    for _ in range(4):
        dispatch.put("a", tier="pro", limits=rated)
    tasks = dispatch.claim(1).tasks
    assert tasks_by_reason(dispatch) == {"ready": 2, "limit": 1}
    for _ in range(3):
        dispatch.now += 4_000
        dispatch.renew([])
    dispatch.settle(tasks)
    assert tasks_by_reason(dispatch) == {"ready": 3}


def test_a_start_that_is_reserved_for_a_parked_task_is_no_free_one(dispatch, client):
    rated = write_limits([Limit("api", rate=((3, 60_000),))])
    for _ in range(3):
        dispatch.put("a", tier="pro", limits=rated)
    client.hset(f"{PREFIX}clock", "parked", 1)
    client.zadd(f"{PREFIX}reserved:api", {"lease": 2 * NOW, "over": 0})
    assert tasks_by_reason(dispatch) == {"ready": 2, "limit": 1}


@pytest.mark.parametrize(("lanes", "queues"), [(LANES - 1, ["q", "p"]), (LANES, ["q"])])
def test_a_call_begins_no_queue_after_so_many_lanes(dispatch, lanes, queues):
    tenants = LANES_OF_CALL // LANES
    for tenant in range(tenants):
        for number in range(LANES if tenant else lanes):
            dispatch.put(f"t{tenant}", kind=f"k{number}")
    dispatch.put("a", queue="p")
    assert [row[0] for row in ask(dispatch, "q", 50, "p", 50)] == queues


@pytest.mark.parametrize(
    ("active", "blocked", "most", "of_active", "of_blocked"),
    [
        (30, 20, 100, 30, 20),
        (30, 20, 20, 10, 10),
        (30, 20, 21, 11, 10),
        (30, 20, 45, 25, 20),
        (5, 20, 20, 5, 15),
        (30, 5, 20, 15, 5),
        (30, 20, 0, 0, 0),
        (50, 20, 100, 40, 20),
        (TENANTS_AT_MOST + 1, 0, 100, TENANTS_AT_MOST, 0),
    ],
)
def test_some_tenants_of_each_kind_are_judged(
    dispatch, active, blocked, most, of_active, of_blocked
):
    for number in range(blocked):
        for _ in range(2):
            dispatch.put(f"b{number}")
    assert len(dispatch.claim_all()) == blocked
    for number in range(active):
        dispatch.put(f"a{number}")
    ((_, *counts, first, second),) = ask(dispatch, "q", most)
    assert counts == [active, blocked]
    assert {row[0][:8] for row in first} <= {"tenant:a"}
    assert {row[0][:8] for row in second} <= {"tenant:b"}
    found = [len({row[0] for row in rows}) for rows in (first, second)]
    assert found == [of_active, of_blocked]
    assert [len(first), len(second)] == found


def inspect_queue(dispatch, page=(0, 0), taken=None):
    active, blocked = page
    args = calls.json_args(
        queue="q", active=active, blocked=blocked, taken=taken or {}, **judging(dispatch)
    )
    return json.loads(dispatch.run(calls.INSPECT_QUEUE, args))


def test_one_call_has_a_bound_for_tenants_with_many_names(dispatch, commands):
    for tenant in range(60):
        for number in range(20):
            dispatch.put(f"t{tenant}", kind=f"k{number}")
    with commands() as ran:
        assert len(inspect_queue(dispatch)["tenants"]) == LANES_OF_CALL // LANES
        ((*_, active, _),) = ask(dispatch, "q", 60)
    assert len(active) == LANES_OF_CALL // LANES
    # The lanes of all tenants take more than 5,000 commands.
    assert sum(ran.values()) < 1500


def test_tenants_of_both_kinds_are_judged_whatever_their_lanes(dispatch):
    for tenant in ("b0", "b1", "a0", "a1", "a2", "a3", "a4"):
        for number in range(LANES):
            dispatch.put(tenant, kind=f"k{number}")
        if tenant == "b1":
            assert len(dispatch.claim_all()) == 2
    ((_, *counts, first, second),) = ask(dispatch, "q", 60)
    assert counts == [5, 2]
    assert (len(first), len(second)) == (5, 1)


def test_the_pages_of_a_queue_share_the_free_slots(dispatch):
    for number in range(40):
        dispatch.put(f"t{number:02}", tier="pro", limits=limit("api", 35))
    page = inspect_queue(dispatch)
    first, rest = page["tenants"], inspect_queue(dispatch, page["next"], page["taken"])
    assert (len(first), len(rest["tenants"])) == (30, 10)
    assert sum(row[6] for row in first + rest["tenants"]) == 35
    assert not {row[0] for row in first} & {row[0] for row in rest["tenants"]}


def slots(number, slots_of_task=None, key="gpu"):
    return write_limits([Limit(key, concurrency=number, slots=slots_of_task)])


def test_tasks_that_take_several_slots_use_up_so_many(dispatch):
    for _ in range(5):
        dispatch.put("a", tier="pro", limits=slots(10, 3))
    for _ in range(5):
        dispatch.put("b", tier="pro", limits=slots(10))
    ((_, _, _, active, _),) = ask(dispatch, "q", 10)
    assert [row[6] for row in active] == [3, 1]
    dispatch.claim(1)
    ((_, _, _, active, _),) = ask(dispatch, "q", 10)
    # One of a runs, so b has its turn before.
    assert [row[6] for row in active] == [5, 0]


def test_what_a_key_saves_is_startable_for_its_task_alone(dispatch):
    for number in range(9):
        dispatch.put(f"a{number}", limits=slots(10))
    running = dispatch.claim(9).tasks
    assert len(running) == 9
    dispatch.put("heavy", tier="pro", limits=slots(10, 8))
    dispatch.put("b", tier="pro", limits=slots(10), queue="other")
    assert dispatch.claim(1).tasks == ()
    dispatch.settle(running)
    for _ in range(3):
        dispatch.put("b", tier="pro", limits=slots(10), queue="other")
    for queue, startable in (("q", 1), ("other", 2)):
        ((_, _, _, active, blocked),) = ask(dispatch, queue, 9)
        assert [row[6] for row in (*active, *blocked)] == [startable]
