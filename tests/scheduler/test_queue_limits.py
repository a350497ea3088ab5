"""Limits of queues, as a whole and of each partition.

Tests are named by the rows of the Open Job Spec that they hold, as in ``test_open_job_spec``.
"""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import OF_QUEUE, Limit
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.scheduler.types import Verdict
from tests.support.limits import changed

API = Limit("api", concurrency=1)
OTHER = queue_key("p q|1")
EVERY_END = [Verdict.DONE, Verdict.HEAD, Verdict.TAIL, Verdict.DIED, Verdict.UNREADABLE]


def part(name, queue="q"):
    return Limit(f"queue:{queue}:{name}", of=OF_QUEUE)


def held(shop, key="queue:q"):
    return shop.held(key)


def emitted(shop, what):
    return [fields for name, fields in shop.events() if name == what]


# -- as a whole -----------------------------------------------------------------------------------


def test_s30_rlr005_a_queue_s_limit_holds_for_all_its_tasks_and_no_others(shop):
    shop.limit_queue(concurrency=2)
    for tenant in ("a", "b", ""):
        shop.put(tenant, times=2)
    shop.put("c", queue="p q|1", times=3)
    assert len(shop.claim()[0]) == 2
    given, sleep_ms = shop.claim()
    assert (given, sleep_ms) == ([], 1_000)
    assert len(shop.claim(queues=("q", "p q|1"))[0]) == 3


def test_s30_one_claim_does_not_pass_the_limit_either(shop):
    shop.limit_queue(concurrency=3)
    shop.put("a", times=10)
    assert len(shop.claim(want=10)[0]) == 3
    assert held(shop) == 3


@pytest.mark.parametrize("verdict", EVERY_END)
def test_every_end_frees_one_slot_and_wakes_who_waits(shop, verdict):
    shop.limit_queue(concurrency=1)
    shop.put("a", times=2)
    shop.put("b")
    assert shop.claim()[0] == [1]
    assert shop.claim()[0] == []
    assert not shop.is_woken()
    shop.end(verdict)
    assert held(shop) == 0
    assert shop.is_woken()
    assert len(shop.claim()[0]) == 1


def test_a_lease_that_ends_by_itself_frees_the_slot_and_the_task_has_the_limit_once(shop):
    shop.limit_queue(concurrency=1)
    shop.put("a")
    for attempt in range(3):
        assert shop.claim()[0] == [1], attempt
        for _ in range(4):
            shop.now += 5_001
            shop.renew()
        shop.claim(queues=("p q|1",))
        assert held(shop) == 0


def test_a_late_end_frees_nothing_of_another_attempt(shop):
    shop.limit_queue(concurrency=1)
    shop.put("a")
    shop.claim()
    shop.end(Verdict.HEAD)
    shop.claim()
    shop.end_late(0)
    assert held(shop) == 1


def test_new_numbers_act_on_what_waits_at_the_next_claim(shop):
    shop.put("a", times=9)
    shop.limit_queue(concurrency=1)
    assert len(shop.claim()[0]) == 1
    shop.limit_queue(concurrency=4)
    assert len(shop.claim()[0]) == 3
    shop.limit_queue(concurrency=2)
    shop.end_one(0)
    assert shop.claim()[0] == []
    shop.limit_queue(how="clear")
    assert len(shop.claim()[0]) == 5


def test_what_people_set_stands_in_the_place_of_what_is_declared(shop):
    shop.limit_queue(how="declare", concurrency=1)
    shop.put("a", times=9)
    shop.limit_queue(concurrency=3)
    shop.limit_queue(how="declare", concurrency=2)
    assert len(shop.claim()[0]) == 3
    shop.end()
    shop.limit_queue(how="clear")
    assert len(shop.claim()[0]) == 2


def test_a_rate_and_a_throttle_of_a_queue_say_when_it_opens(shop):
    shop.limit_queue(rate=((2, 700),))
    shop.put("a", times=3)
    shop.at(0)
    assert len(shop.claim()[0]) == 2
    assert shop.claim() == ([], 701)
    shop.at(701)
    assert len(shop.claim()[0]) == 1
    shop.limit_queue(throttle=((10, 1_000),))
    shop.put("a", times=2)
    shop.at(5_000)
    assert len(shop.claim()[0]) == 1
    assert shop.claim()[0] == []
    shop.at(5_100)
    assert len(shop.claim()[0]) == 1


def test_a_task_that_was_claimed_before_the_limit_gives_back_no_start_of_it(shop):
    shop.at(0)
    shop.put("a", times=3)
    assert shop.claim(1)[0] == [1]
    shop.limit_queue(rate=((1, 1_000),))
    assert shop.claim(1)[0] == [2]
    shop.end_one(0, Verdict.HEAD, begun=False)
    assert shop.claim(1) == ([], 1_000)


def test_s32_the_queue_s_limit_and_the_task_s_both_hold(shop):
    shop.limit_queue(concurrency=2)
    shop.put("a", API, times=3)
    shop.put("b", times=3)
    assert len(shop.claim()[0]) == 2
    assert held(shop, "api") == 1
    shop.limit_queue(concurrency=9)
    assert len(shop.claim()[0]) == 2
    assert held(shop, "api") == 1
    assert held(shop) == 4


def test_s32_a_policy_with_the_queue_s_key_and_its_limit_are_one(shop):
    shop.limit_queue(concurrency=5, rate=((4, 60_000),))
    shop.put("a", Limit("queue:q", concurrency=9), times=4)
    shop.put("b", times=4)
    given, _ = shop.claim()
    assert len(given) == 4
    assert held(shop) == 4
    shop.end()
    assert shop.claim()[0] == []


def test_all_that_waits_at_the_limit_of_a_whole_queue_starts_when_it_is_lifted(shop):
    shop.limit_queue(concurrency=0)
    for number in range(50):
        shop.put("abcd"[number % 4], times=2)
    assert shop.claim() == ([], 1_000)
    shop.limit_queue(concurrency=None)
    assert len(shop.claim(want=100)[0]) == 100


def test_a_queue_whose_limit_says_drop_ends_what_it_rejects(shop):
    shop.limit_queue(concurrency=1, on_limit="drop")
    shop.put("a", times=3)
    shop.put("b", times=2)
    assert len(shop.claim()[0]) == 1
    assert shop.counts()["dropped"] == 4
    assert {key for _, key in shop.dropped()} == {"queue:q"}


def test_a_queue_whose_limit_says_reschedule_tries_again_what_it_rejects(shop):
    shop.limit_queue(concurrency=1, on_limit="reschedule")
    shop.put("a", times=3)
    shop.at(0)
    assert len(shop.claim()[0]) == 1
    assert shop.counts()["rescheduled"] == 2
    first, second = shop.later()
    assert (1_000 <= first <= 1_250, 2_000 <= second <= 2_500) == (True, True)


def test_one_claim_ends_a_bounded_number(shop):
    shop.limit_queue(concurrency=1, on_limit="drop")
    shop.put("a", times=100)
    shop.claim(want=1)
    for dropped in (64, 99):
        _, sleep_ms = shop.claim(want=1)
        assert shop.counts()["dropped"] == dropped
        assert (sleep_ms == 0) == (dropped == 64)


def test_pause_cool_down_and_override_of_a_queue_hold_for_all_of_it(shop):
    shop.put("a", times=9)
    shop.limit_queue(how="know")
    shop.stop("pause", "queue:q")
    assert shop.claim()[0] == []
    shop.stop("resume", "queue:q")
    assert shop.is_woken()
    shop.override("queue:q", concurrency=2)
    assert len(shop.claim()[0]) == 2
    shop.override("queue:q")
    shop.stop("cool", "queue:q", 700)
    assert shop.claim() == ([], 700)


@pytest.mark.parametrize(
    "said",
    [
        lambda shop: shop.stop("pause", "queue:q"),
        lambda shop: shop.stop("pause", "queue:q", 60_000),
        lambda shop: shop.stop("cool", "queue:q", 60_000),
        lambda shop: shop.override("queue:q", concurrency=0),
    ],
    ids=["pause", "pause for a time", "cool-down", "override"],
)
def test_what_people_say_of_a_queue_outlives_the_limit_that_they_set_of_it(shop, said):
    shop.limit_queue(concurrency=2)
    said(shop)
    shop.limit_queue(how="clear")
    shop.put("a")
    assert shop.claim()[0] == []


def test_a_pause_drops_nothing_whatever_the_limit_says(shop):
    shop.limit_queue(concurrency=3, on_limit="drop")
    shop.stop("pause", "queue:q")
    shop.put("a", times=3)
    assert shop.claim()[0] == []
    assert shop.counts()["dropped"] == 0


def test_s46_s47_of_a_closed_queue_one_task_is_reported_and_again_when_it_starts(shop):
    shop.limit_queue(concurrency=1)
    shop.put("a", times=3)
    for _ in range(3):
        shop.claim()
    (exceeded,) = emitted(shop, "rate_limit.exceeded")
    assert (exceeded["key"], exceeded["strategy"], exceeded["limit"]) == (
        "queue:q",
        "concurrency",
        "1",
    )
    shop.end()
    shop.claim()
    (released,) = emitted(shop, "rate_limit.released")
    assert (released["key"], released["job_id"]) == ("queue:q", exceeded["job_id"])


# -- partitions -----------------------------------------------------------------------------------


def test_s30_each_partition_has_the_numbers_for_itself(shop):
    shop.limit_queue(how="declare", part={"concurrency": 1})
    for customer in ("1", "2", "1", "2", "3"):
        shop.put("a", part(customer))
    assert shop.claim()[0] == [1, 2, 5]
    assert shop.claim()[0] == []
    shop.end_one(0)
    assert shop.claim()[0] == [3]


def test_new_numbers_act_on_blocked_partitions_also_where_these_were_paused(shop):
    shop.limit_queue(how="declare", part={"concurrency": 0})
    for number in range(40):
        shop.put("a", part(str(number)), times=2)
    for _ in range(3):
        assert shop.claim(want=64)[0] == []
    shop.limit_queue(part={"concurrency": 1})
    given = [number for _ in range(9) for number in shop.claim(want=64)[0]]
    assert len(given) == 40
    assert shop.claim()[0] == []
    shop.limit_queue(part={"concurrency": 2})
    given = [number for _ in range(9) for number in shop.claim(want=64)[0]]
    assert len(given) == 40


def test_a_partition_whose_queue_says_drop_ends_what_it_rejects(shop):
    shop.limit_queue(how="declare", part={"concurrency": 1, "on_limit": "drop"})
    for customer in ("1", "1", "2", "2", "2"):
        shop.put("a", part(customer))
    assert shop.claim()[0] == [1, 3]
    assert {key for _, key in shop.dropped()} == {"queue:q:1", "queue:q:2"}


def test_a_pause_of_the_queue_holds_for_its_partitions_and_of_one_for_that(shop):
    shop.limit_queue(how="declare", part={"concurrency": 5})
    shop.put("a", part("1"))
    shop.put("b", part("2"))
    shop.stop("pause", "queue:q")
    assert shop.claim()[0] == []
    shop.stop("resume", "queue:q")
    shop.stop("pause", "queue:q:1")
    assert shop.claim()[0] == [2]


@pytest.mark.parametrize("limits", [(), (changed(API, concurrency=9),), (part("1", "p"),)])
def test_a_task_that_says_no_partition_is_in_that_of_all_such_tasks(shop, limits):
    shop.limit_queue(how="declare", part={"concurrency": 1})
    shop.put("a", *limits, times=3)
    shop.put("b", part("7"))
    assert shop.claim()[0] == [1, 4]
    assert held(shop, "queue:q:") == 1


def test_a_policy_with_the_key_of_a_partition_is_no_partition(shop):
    shop.limit_queue(how="declare", part={"concurrency": 1})
    shop.put("a", Limit("queue:q:1", concurrency=5), times=3)
    assert shop.claim()[0] == [1]
    assert (held(shop, "queue:q:1"), held(shop, "queue:q:")) == (1, 1)


@pytest.mark.parametrize(("said", "part_of"), [(f"{OTHER}:1", "1"), ("queue:q:1", ""), ("", "")])
@pytest.mark.parametrize("later", [None, 500])
def test_who_moves_to_a_partitioned_queue_has_one_partition_there(shop, said, part_of, later):
    for queue in ("q", "p q|1"):
        shop.limit_queue(queue, how="declare", part={"concurrency": 9})
    shop.put("a", changed(API, concurrency=9), part("1"), later=later)
    shop.move({1: said}, "p q|1")
    shop.at(later or 0)
    assert shop.claim(queues=("q", "p q|1"))[0] == [1]
    assert (held(shop, f"{OTHER}:{part_of}"), held(shop, "queue:q:1"), held(shop, "api")) == (
        1,
        0,
        1,
    )


def test_who_leaves_a_partitioned_queue_leaves_its_partition(shop):
    shop.limit_queue(how="declare", part={"concurrency": 1})
    shop.put("a", part("1"), times=3)
    shop.move(dict.fromkeys((1, 2, 3), ""), "p q|1")
    assert shop.claim(queues=("p q|1",))[0] == [1, 2, 3]
    assert held(shop, "queue:q:1") == 0


def test_a_new_partition_acts_on_what_is_put_after_it(shop):
    shop.limit_queue(how="declare", concurrency=1)
    shop.put("a", times=3)
    shop.limit_queue(how="declare", part={"concurrency": 1})
    shop.put("b", part("1"), times=2)
    assert len(shop.claim()[0]) == 4


def test_the_whole_queue_and_each_partition_have_numbers_of_their_own(shop):
    shop.limit_queue(how="declare", concurrency=3, part={"concurrency": 2})
    for customer in ("1", "1", "1", "2", "2"):
        shop.put("a", part(customer))
    assert shop.claim()[0] == [1, 2, 4]
    assert [held(shop, key) for key in ("queue:q", "queue:q:1", "queue:q:2")] == [3, 2, 1]
    shop.end_one(0)
    # A partition and the queue have room, so only the partition that is full waits on.
    shop.end_one(1)
    assert shop.claim()[0] == [3, 5]


def test_rates_of_the_whole_queue_and_of_each_partition_count_apart(shop):
    shop.limit_queue(how="declare", rate=((3, 3_000),), part={"rate": ((2, 1_000),)})
    for customer in ("1", "1", "1", "2", "2"):
        shop.put("a", part(customer))
    shop.at(0)
    assert shop.claim()[0] == [1, 2, 4]
    assert shop.claim()[0] == []
    shop.at(1_001)
    assert shop.claim()[0] == []
    shop.at(3_001)
    assert sorted(shop.claim()[0]) == [3, 5]


def test_people_set_the_whole_queue_or_each_partition_and_the_other_is_as_declared(shop):
    shop.limit_queue(how="declare", concurrency=4, part={"concurrency": 1})
    for customer in "1234512345":
        shop.put("a", part(customer))
    shop.limit_queue(concurrency=2)
    assert shop.claim()[0] == [1, 2]
    shop.limit_queue(part={"concurrency": 2})
    assert shop.claim()[0] == [3, 4]
    shop.limit_queue(how="clear")
    shop.end()
    assert shop.claim()[0] == [5, 6, 7, 8]


@pytest.mark.parametrize("whose", ["queue:q", "queue:q:1"])
def test_a_queue_with_partitions_is_overridden_as_a_whole_or_by_partition(shop, whose):
    shop.limit_queue(how="declare", concurrency=3, part={"concurrency": 2})
    for customer in ("1", "1", "2", "2"):
        shop.put("a", part(customer))
    shop.override(whose, concurrency=1)
    assert shop.claim()[0] == ([1] if whose == "queue:q" else [1, 3, 4])


def test_a_partition_of_a_queue_that_has_none_any_more_is_not_limited(shop):
    shop.limit_queue(how="declare", part={"concurrency": 1})
    shop.put("a", part("1"), times=3)
    shop.limit_queue(how="declare", concurrency=2)
    assert len(shop.claim()[0]) == 2


def test_a_partition_whose_queue_has_no_numbers_is_not_limited(shop):
    shop.put("a", part("1"), times=3)
    assert len(shop.claim()[0]) == 3


# -- of one process -------------------------------------------------------------------------------


def test_a_process_takes_no_more_of_a_queue_than_it_may_and_others_take_the_rest(shop):
    shop.limit_queue(concurrency=5, local_limit=2)
    shop.put("a", times=9)
    shop.put("b", queue="p q|1", times=2)
    given, _ = shop.claim(queues=("q", "p q|1"))
    assert len(given) == 4
    assert shop.claim(held={"queue:q": 2})[0] == []
    assert shop.answer.passed == {"q": 0}
    assert shop.is_woken()
    assert len(shop.claim(held={"queue:q": 1})[0]) == 1
    assert len(shop.claim()[0]) == 2
    assert shop.claim()[0] == []


def test_a_task_that_names_its_queue_s_key_itself_is_one_of_it(shop):
    shop.limit_queue(how="declare", local_limit=2)
    shop.put("a", Limit("queue:q", concurrency=9), times=5)
    assert len(shop.claim()[0]) == 2


def test_the_smaller_of_both_limits_holds(shop):
    shop.limit_queue(concurrency=1, local_limit=3)
    shop.put("a", times=9)
    assert len(shop.claim()[0]) == 1


def test_an_end_in_a_queue_wakes_a_process_that_was_full_of_it(shop):
    shop.limit_queue(local_limit=1)
    shop.put("a", times=3)
    shop.claim()
    shop.claim(held={"queue:q": 1})
    shop.hear()
    assert not shop.is_woken()
    shop.end_one(0)
    assert shop.is_woken()


def test_a_process_passes_by_what_it_is_full_of_and_takes_what_stands_behind(shop):
    shop.limit_queue(how="declare", part={"local_limit": 1})
    for customer in ("1", "1", "1", "2"):
        shop.put("a", part(customer))
    shop.put("b", part("1"))
    shop.put("c")
    assert shop.claim()[0] == [1, 6, 4]
    assert shop.claim(held={"queue:q:1": 1, "queue:q:2": 1})[0] == []
    assert shop.claim(held={"queue:q:2": 1})[0] == [5]


def test_a_process_keeps_the_local_limits_of_the_queue_and_of_each_partition(shop):
    shop.limit_queue(how="declare", local_limit=3, part={"local_limit": 2})
    for customer in ("1", "1", "1", "2", "2"):
        shop.put("a", part(customer))
    assert shop.claim()[0] == [1, 2, 4]
    assert shop.claim(held={"queue:q": 3, "queue:q:1": 1})[0] == []


def test_a_claim_passes_by_a_bounded_number_of_tenants_and_the_next_goes_on(shop):
    shop.limit_queue(how="declare", part={"local_limit": 1})
    for number in range(17):
        shop.put(f"u{number}", part("1"))
    shop.put("v", part("2"))
    assert shop.claim(held={"queue:q:1": 1}) == ([], 0)
    assert shop.answer.passed == {"q": 16}
    places = shop.answer.passed
    assert shop.claim(9, places=places, held={"queue:q:1": 1})[0] == [18]


def test_of_a_process_nothing_is_asked_where_nothing_is_enforced(shop):
    shop.limit_queue(local_limit=1)
    shop.put("a", times=3)
    assert len(shop.claim(enforcement="off", held={"queue:q": 5})[0]) == 3


def test_who_has_many_lanes_of_which_this_process_is_full_hides_nobody(shop):
    shop.limit_queue(how="declare", part={"local_limit": 1})
    for number in range(40):
        shop.put("a", part(str(number)))
    shop.put("b", part("0"))
    shop.put("c")
    held = {f"queue:q:{number}": 1 for number in range(39)}
    # Of all that wait only these may start here, and one claim finds them.
    assert sorted(shop.claim(held=held)[0]) == [40, 42]


def test_who_has_more_lanes_than_a_claim_looks_at_is_passed_by(shop):
    shop.limit_queue(how="declare", part={"local_limit": 1})
    for number in range(130):
        shop.put("a", part(str(number)))
    shop.put("b")
    # One of its lanes is open here, behind all that a claim looks at.
    held = {f"queue:q:{number}": 1 for number in range(129)}
    assert shop.claim(held=held) == ([], 0)
    assert shop.answer.passed == {"q": 1}
    assert shop.claim(9, places=shop.answer.passed, held=held)[0] == [131]
