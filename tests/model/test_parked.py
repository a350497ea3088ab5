"""Lanes that wait for limits, and what else happens to them: in the model and the scripts."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Verdict

ONE = Limit("api", 1)
TWO = Limit("api", 2)


def test_what_one_queue_leaves_to_another_is_asked_for_once_more_by_the_same_claim(pair):
    pair.put("a", TWO, times=2)
    assert pair.claim()[0] == [1, 2]
    pair.put("b", TWO, queue="other")
    assert pair.claim(queues=("other",))[0] == []
    pair.put("a", TWO)
    assert pair.claim()[0] == []
    pair.end_one(0)
    # From now on b is due before a.
    assert pair.claim()[0] == [4]
    pair.put("a", TWO)
    assert pair.claim()[0] == []
    pair.end()
    assert pair.claim(queues=("q", "other"))[0] == [3, 5]


def test_what_came_back_is_withdrawn_from_the_group_in_which_it_waits(pair):
    pair.put("z", ONE)
    assert pair.claim()[0] == [1]
    pair.end(Verdict.HEAD)
    pair.put("b", ONE)
    assert pair.claim(want=1)[0] == [2]
    assert pair.claim()[0] == []
    assert pair.model.parking.groups
    pair.end_late(0)
    assert not pair.model.parking.groups


@pytest.mark.parametrize("moves", [False, True])
def test_what_a_late_end_takes_out_expires_no_more(pair, moves):
    def put(old):
        how = ("", "", 0, 1.0, None, "x", "", None, 1_000)
        pair.both.run(("put", "s_default", old, "a", *how))

    put(None)
    assert pair.claim(queues=("s_default",))[0] == [1]
    pair.end()
    put(1)
    if moves:
        pair.both.run(("move", "s_default", ("s_priority",), (0,), ("",)))
    pair.end_late(0)
    assert not any(pair.model.expires.values())


def test_a_tenant_whose_last_ready_task_is_withdrawn_leaves_the_ring(pair):
    pair.put("b", ONE)
    assert pair.claim()[0] == [1]
    pair.put("a")
    assert pair.claim()[0] == [2]
    pair.put("a", ONE)
    assert pair.claim()[0] == []
    pair.end_one(1, Verdict.HEAD)
    assert list(pair.model.rings["q"].members) == ["tenant:a"]
    pair.end_late(1)
    assert list(pair.model.rings["q"].full) == ["tenant:a"]
    pair.end()
    assert pair.claim()[0] == [3]


def test_a_tenant_whose_ready_task_is_dropped_leaves_the_ring_whatever_is_passed_over(pair):
    drop = Limit("drop", 1, on_limit="drop")
    pair.put("b", ONE, drop)
    assert pair.claim()[0] == [1]
    pair.put("a", ONE)
    assert pair.claim()[0] == []
    pair.put("a", drop)
    assert pair.claim(never=("y",))[0] == []
    assert pair.dropped() == [("tag.3", "drop", "dropped")]
    assert list(pair.model.rings["q"].full) == ["tenant:a"]


def test_a_worker_that_enforces_nothing_goes_on_at_once_where_it_opened_all_it_may(pair):
    limits = [Limit(f"k{number}", 1) for number in range(16)]
    for tenant in "ba":
        for limit in limits:
            pair.put(tenant, limit)
    given = pair.claim(want=16)[0]
    assert len(given) == 16
    pair.claim()
    pair.both.run(("tenant", "a", "held", "0"))
    pair.both.run(("tenant", "b", "held", "0"))
    assert pair.claim(enforcement="off") == ([], 0)
    assert pair.claim(enforcement="off") == ([], 1_000)


def test_what_was_entered_again_after_a_lost_memory_opens_all_that_it_frees(pair):
    pair.put("b", Limit("tenant:a", 1))
    assert pair.claim()[0] == [1]
    pair.both.run(("renew", (0,), ""))
    pair.both.run(("lose",))
    pair.model = pair.both.model
    pair.at(100)
    pair.both.run(("renew", (0,), "now"))
    pair.both.run(("tenant", "a", "free", "1"))
    pair.put("a")
    assert pair.claim()[0] == []
    assert pair.model.accounts["tenant:a"].closed
    pair.end_one(0)
    assert not pair.model.accounts["tenant:a"].closed
    assert pair.claim()[0] == [2]
