"""What one call has read or gathered stays true until its end: in the model and the scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import WHOLE, Limit
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Settle, Verdict

pytestmark = pytest.mark.redis


def test_what_a_tenant_starts_itself_counts_for_others_with_its_key(pair):
    pair.put("a", Limit("tenant:b", 2), times=3)
    pair.put("b", times=3)
    assert pair.claim(6)[0] == [1, 4, 5, 6]
    assert pair.model.held("tenant:b", pair.both.now) == 4


def test_a_lease_that_was_entered_again_and_is_over_counts_when_it_begins_once_more(pair):
    both, two = pair.both, Limit("api", 2)
    for tenant in "abc":
        pair.put(tenant, two)
    both.run(("renew", (), ""))
    both.run(("save",))
    assert pair.claim(1)[0] == [1]
    both.run(("renew", (0,), "now"))
    both.run(("restore", True))
    pair.model, both.epoch = both.model, 1
    both.run(("renew", (900,), "now"))
    for step in (5_001, 10_002, 15_003, 20_004):
        pair.at(step)
        both.run(("renew", (), ""))
    assert len(pair.claim(3)[0]) == 2
    assert pair.model.held("api", both.now) == 2


def test_a_closed_tenant_that_a_group_finds_open_is_charged_in_the_ring(pair):
    both = pair.both
    both.run(("tiers", (1, 1.0, None), (1, 1.0, None)))

    def put(tenant, limits=""):
        both.run(("put", "q", None, tenant, "", "free", 0, 1.0, None, "x", limits))

    put("a", "x|1|||w")
    assert pair.claim()[0] == [1]
    put("b", "x|1|||w")
    pair.claim()
    put("b")
    put("b")
    both.run(("gate", "b", "", "g1"))
    pair.claim()
    assert both.model.closed
    # Released without a word: the claim that meets it in the group is the first to see it.
    both.run(("ungate", "b", "", "g1"))
    pair.end()
    assert pair.claim(1)[0] == [2]
    assert both.model.rings["q"].members == {"tenant:b": 1.0}
    assert both.model.rings["q"].full == {}


def test_limits_of_two_queues_whose_names_read_alike_together_are_two(pair):
    pair.both.scene = replace(pair.both.scene, queues=("q", "qq"))
    for name, queue in (("qx", "q"), ("x", "qq")):
        for tenant in "ab":
            pair.put(tenant, Limit(name, 1), queue=queue, times=3)
    pair.claim(10, ("q", "qq"))
    pair.at(7)
    pair.end()
    pair.at(20)
    assert len(pair.claim(2, ("q", "qq"))[0]) == 2
    looked = [at for each in pair.model.parking.candidates.values() for at in each.values()]
    assert len(looked) == 2
    assert looked[0] == looked[1] > 0


def test_a_key_that_a_task_has_twice_is_judged_by_its_numbers_once(pair):
    numbers = (("rates", ((9, 3_000),)), ("throttle", (2, 1_000)))
    pair.both.run(("override", "x", numbers, None, "on"))
    pair.put("a", Limit("x", 1), Limit("x", 3))
    assert pair.claim()[0] == [1]


def test_more_keys_end_at_once_than_one_command_may_name(pair):
    tasks, keys = 50, 170
    for task in range(tasks):
        words = ",".join(f"k{task}.{key}||||w" for key in range(keys))
        pair.both.run(("put", "q", None, "a", "", "", 0, 1.0, None, "x", words))
    while pair.claim(tasks)[0]:
        pass
    both = pair.both
    ends = [Settle(each.lease, Verdict.DONE, each.lane) for each in both.granted]
    assert len(ends) == tasks
    args = calls.settle_args(ends, both.rules("on"), str(both.now))
    theirs = calls.read_settle(both.scripts.run(calls.SETTLE, args))
    assert theirs == both.model.settle(ends, both.rules("on"))
    both.check()


def test_what_was_said_of_one_task_is_not_said_of_the_next(pair):
    api, mail = Limit("api", 1), Limit("mail", 1, on_limit="reschedule")
    pair.put("a", api, mail)
    assert pair.claim()[0] == [1]
    pair.put("b", api, mail)
    pair.put("c", api)
    assert pair.claim(5)[0] == []
    assert len(pair.later()) == 1
    assert [name for name, _ in pair.model.parking.waited["api"]] == ["api|#||"]


def test_limits_with_one_key_are_counted_together_and_asked_apart(pair):
    of_queue = Limit("x", rates=((2, 500),), of=WHOLE)
    pair.put("a", Limit("x", rates=((3, 1_000),)), of_queue, times=3)
    assert pair.claim(5)[0] == [1, 2]
    assert pair.model.windows["x"].most == 3
