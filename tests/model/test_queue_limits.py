"""Limits of queues, as a whole and of each partition, on the model and the scripts at once.

Tests are named by the rows of the Open Job Spec that they hold, as in ``test_open_job_spec``.
"""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.scheduler.types import Passing, Verdict

API = Limit("api", 1)
OTHER = queue_key("p q|1")
EVERY_END = [Verdict.DONE, Verdict.HEAD, Verdict.TAIL, Verdict.DIED, Verdict.UNREADABLE]


def part(name, queue="q"):
    return Limit(f"queue:{queue}:{name}", of=OF_QUEUE)


def held(pair, key="queue:q"):
    return len(pair.model.leases.get(key, {}))


def told(pair, what):
    return [fields for name, fields in pair.model.happenings.told if name == what]


# -- as a whole -----------------------------------------------------------------------------------


def test_s30_rlr005_a_queue_s_limit_holds_for_all_its_tasks_and_no_others(pair):
    pair.limit_queue(concurrency=2)
    for tenant in ("a", "b", ""):
        pair.put(tenant, times=2)
    pair.put("c", queue="p q|1", times=3)
    assert len(pair.claim()[0]) == 2
    given, sleep_ms = pair.claim()
    assert (given, sleep_ms) == ([], 1_000)
    assert len(pair.claim(queues=("q", "p q|1"))[0]) == 3


def test_s30_one_claim_does_not_pass_the_limit_either(pair):
    pair.limit_queue(concurrency=3)
    pair.put("a", times=10)
    assert len(pair.claim(want=10)[0]) == 3
    assert held(pair) == 3


@pytest.mark.parametrize("verdict", EVERY_END)
def test_every_end_frees_one_slot_and_wakes_who_waits(pair, verdict):
    pair.limit_queue(concurrency=1)
    pair.put("a", times=2)
    pair.put("b")
    assert pair.claim()[0] == [1]
    assert pair.claim()[0] == []
    assert not pair.model.rings["q"].bell
    assert not pair.model.rings["q"].left
    pair.end(verdict)
    assert held(pair) == 0
    assert pair.model.rings["q"].bell
    assert len(pair.claim()[0]) == 1


def test_a_lease_that_ends_by_itself_frees_the_slot_and_the_task_has_the_limit_once(pair):
    pair.limit_queue(concurrency=1)
    pair.put("a")
    for attempt in range(3):
        assert pair.claim()[0] == [1], attempt
        for _ in range(4):
            pair.both.now += 5_001
            pair.both.run(("renew", (), ""))
        pair.claim(queues=("p q|1",))
        assert held(pair) == 0


def test_a_late_end_frees_nothing_of_another_attempt(pair):
    pair.limit_queue(concurrency=1)
    pair.put("a")
    pair.claim()
    pair.end(Verdict.HEAD)
    pair.claim()
    pair.end_late(0)
    assert held(pair) == 1


def test_new_numbers_act_on_what_waits_at_the_next_claim(pair):
    pair.put("a", times=9)
    pair.limit_queue(concurrency=1)
    assert len(pair.claim()[0]) == 1
    pair.limit_queue(concurrency=4)
    assert len(pair.claim()[0]) == 3
    pair.limit_queue(concurrency=2)
    pair.end_one(0)
    assert pair.claim()[0] == []
    pair.limit_queue(how="clear")
    assert len(pair.claim()[0]) == 5


def test_what_people_set_stands_in_the_place_of_what_is_declared(pair):
    pair.limit_queue(how="declare", concurrency=1)
    pair.put("a", times=9)
    pair.limit_queue(concurrency=3)
    pair.limit_queue(how="declare", concurrency=2)
    assert len(pair.claim()[0]) == 3
    pair.end()
    pair.limit_queue(how="clear")
    assert len(pair.claim()[0]) == 2


def test_a_rate_and_a_throttle_of_a_queue_say_when_it_opens(pair):
    pair.limit_queue(rates=((2, 700),))
    pair.put("a", times=3)
    pair.at(0)
    assert len(pair.claim()[0]) == 2
    assert pair.claim() == ([], 701)
    pair.at(701)
    assert len(pair.claim()[0]) == 1
    pair.limit_queue(throttle=(10, 1_000))
    pair.put("a", times=2)
    pair.at(5_000)
    assert len(pair.claim()[0]) == 1
    assert pair.claim()[0] == []
    pair.at(5_100)
    assert len(pair.claim()[0]) == 1


def test_s32_the_queue_s_limit_and_the_task_s_both_hold(pair):
    pair.limit_queue(concurrency=2)
    pair.put("a", API, times=3)
    pair.put("b", times=3)
    assert len(pair.claim()[0]) == 2
    assert held(pair, "api") == 1
    pair.limit_queue(concurrency=9)
    assert len(pair.claim()[0]) == 2
    assert held(pair, "api") == 1
    assert held(pair) == 4


def test_s32_a_policy_with_the_queue_s_key_and_its_limit_are_one(pair):
    pair.limit_queue(concurrency=5, rates=((4, 60_000),))
    pair.put("a", Limit("queue:q", 9), times=4)
    pair.put("b", times=4)
    given, _ = pair.claim()
    assert len(given) == 4
    assert held(pair) == 4
    assert pair.model.windows["queue:q"].count == 4
    pair.end()
    assert pair.claim()[0] == []


def test_nothing_is_parked_at_the_limit_of_a_whole_queue(pair):
    pair.limit_queue(concurrency=0)
    for number in range(50):
        pair.put("abcd"[number % 4], times=2)
    assert pair.claim() == ([], 1_000)
    assert not pair.model.parking.groups
    assert set(pair.model.rings["q"].members) == {f"tenant:{each}" for each in "abcd"}


def test_a_queue_whose_limit_says_drop_ends_what_it_refuses(pair):
    pair.limit_queue(concurrency=1, on_limit="drop")
    pair.put("a", times=3)
    pair.put("b", times=2)
    assert len(pair.claim()[0]) == 1
    assert pair.counts()["dropped"] == 4
    assert {owner for _, owner, _ in pair.dropped()} == {"queue:q"}


def test_a_queue_whose_limit_says_reschedule_tries_again_what_it_refuses(pair):
    pair.limit_queue(concurrency=1, on_limit="reschedule")
    pair.put("a", times=3)
    pair.at(0)
    assert len(pair.claim()[0]) == 1
    assert pair.counts()["rescheduled"] == 2
    first, second = pair.later()
    assert (1_000 <= first <= 1_250, 2_000 <= second <= 2_500) == (True, True)


def test_one_claim_ends_a_bounded_number(pair):
    pair.limit_queue(concurrency=1, on_limit="drop")
    pair.put("a", times=100)
    pair.claim(want=1)
    for dropped in (64, 99):
        _, sleep_ms = pair.claim(want=1)
        assert pair.counts()["dropped"] == dropped
        assert (sleep_ms == 0) == (dropped == 64)


def test_pause_cool_down_and_override_of_a_queue_hold_for_all_of_it(pair):
    pair.put("a", times=9)
    pair.limit_queue(how="know")
    pair.both.run(("stop", "pause", "queue:q", 0, "on"))
    assert pair.claim()[0] == []
    pair.both.run(("stop", "resume", "queue:q", 0, "on"))
    assert pair.model.rings["q"].bell
    pair.both.run(("override", "queue:q", (("concurrency", 2),), None, "on"))
    assert len(pair.claim()[0]) == 2
    pair.both.run(("override", "queue:q", None, None, "on"))
    pair.both.run(("stop", "cool", "queue:q", 700, "on"))
    assert pair.claim() == ([], 700)


@pytest.mark.parametrize(
    "said",
    [
        ("stop", "pause", "queue:q", 0, "on"),
        ("stop", "pause", "queue:q", 60_000, "on"),
        ("stop", "cool", "queue:q", 60_000, "on"),
        ("override", "queue:q", (("concurrency", 0),), None, "on"),
    ],
)
def test_what_people_say_of_a_queue_outlives_the_limit_that_they_set_of_it(pair, said):
    pair.limit_queue(concurrency=2)
    pair.both.run(said)
    pair.limit_queue(how="clear")
    pair.put("a")
    assert pair.claim()[0] == []


def test_a_pause_drops_nothing_whatever_the_limit_says(pair):
    pair.limit_queue(concurrency=3, on_limit="drop")
    pair.both.run(("stop", "pause", "queue:q", 0, "on"))
    pair.put("a", times=3)
    assert pair.claim()[0] == []
    assert pair.counts()["dropped"] == 0


def test_s46_s47_of_a_closed_queue_one_task_is_told_and_told_again_when_it_starts(pair):
    pair.limit_queue(concurrency=1)
    pair.put("a", times=3)
    for _ in range(3):
        pair.claim()
    (exceeded,) = told(pair, "rate_limit.exceeded")
    assert (exceeded["key"], exceeded["strategy"], exceeded["limit"]) == (
        "queue:q",
        "concurrency",
        "1",
    )
    pair.end()
    pair.claim()
    (released,) = told(pair, "rate_limit.released")
    assert (released["key"], released["job_id"]) == ("queue:q", exceeded["job_id"])


@pytest.mark.parametrize("enforcement", ["off", "observe"])
def test_who_enforces_nothing_refuses_nothing_and_counts(pair, enforcement):
    pair.limit_queue(concurrency=1)
    pair.put("a", times=3)
    assert len(pair.claim(enforcement=enforcement)[0]) == 3
    assert held(pair) == 3


# -- partitions -----------------------------------------------------------------------------------


def test_s30_each_partition_has_the_numbers_for_itself(pair):
    pair.limit_queue(how="declare", parts=True, concurrency=1)
    for customer in ("1", "2", "1", "2", "3"):
        pair.put("a", part(customer))
    assert pair.claim()[0] == [1, 2, 5]
    assert pair.claim()[0] == []
    pair.end_one(0)
    assert pair.claim()[0] == [3]


def test_new_numbers_act_on_parked_partitions_also_where_these_were_paused(pair):
    pair.limit_queue(how="declare", parts=True, concurrency=0)
    for number in range(40):
        pair.put("a", part(str(number)), times=2)
    for _ in range(3):
        assert pair.claim(want=64)[0] == []
    pair.limit_queue(concurrency=1)
    given = [number for _ in range(9) for number in pair.claim(want=64)[0]]
    assert len(given) == 40
    assert pair.claim()[0] == []
    pair.limit_queue(concurrency=2)
    given = [number for _ in range(9) for number in pair.claim(want=64)[0]]
    assert len(given) == 40


def test_a_partition_whose_queue_says_drop_ends_what_it_refuses(pair):
    pair.limit_queue(how="declare", parts=True, concurrency=1, on_limit="drop")
    for customer in ("1", "1", "2", "2", "2"):
        pair.put("a", part(customer))
    assert pair.claim()[0] == [1, 3]
    assert {owner for _, owner, _ in pair.dropped()} == {"queue:q:1", "queue:q:2"}


def test_a_pause_of_the_queue_holds_for_its_partitions_and_of_one_for_that(pair):
    pair.limit_queue(how="declare", parts=True, concurrency=5)
    pair.put("a", part("1"))
    pair.put("b", part("2"))
    pair.both.run(("stop", "pause", "queue:q", 0, "on"))
    assert pair.claim()[0] == []
    pair.both.run(("stop", "resume", "queue:q", 0, "on"))
    pair.both.run(("stop", "pause", "queue:q:1", 0, "on"))
    assert pair.claim()[0] == [2]


@pytest.mark.parametrize("limits", [(), (API._replace(concurrency=9),), (part("1", "p"),)])
def test_a_task_that_says_no_partition_is_in_that_of_all_such_tasks(pair, limits):
    pair.limit_queue(how="declare", parts=True, concurrency=1)
    pair.put("a", *limits, times=3)
    pair.put("b", part("7"))
    assert pair.claim()[0] == [1, 4]
    assert held(pair, "queue:q:") == 1


def test_a_policy_with_the_key_of_a_partition_is_no_partition(pair):
    pair.limit_queue(how="declare", parts=True, concurrency=1)
    pair.put("a", Limit("queue:q:1", 5), times=3)
    assert pair.claim()[0] == [1]
    assert (held(pair, "queue:q:1"), held(pair, "queue:q:")) == (1, 1)


@pytest.mark.parametrize(("said", "part_of"), [(f"{OTHER}:1", "1"), ("queue:q:1", ""), ("", "")])
@pytest.mark.parametrize("later", [None, 500])
def test_who_moves_to_a_partitioned_queue_has_one_partition_there(pair, said, part_of, later):
    for queue in ("q", "p q|1"):
        pair.limit_queue(queue, how="declare", parts=True, concurrency=9)
    words = write_limits((API._replace(concurrency=9), part("1")))
    pair.both.run(("put", "q", None, "a", "", "", 0, 1.0, later, "x", words))
    pair.both.run(("move", "q", ("p q|1",), (0,), (said,)))
    pair.at(later or 0)
    assert pair.claim(queues=("q", "p q|1"))[0] == [1]
    assert (held(pair, f"{OTHER}:{part_of}"), held(pair, "queue:q:1"), held(pair, "api")) == (
        1,
        0,
        1,
    )


def test_who_leaves_a_partitioned_queue_leaves_its_partition(pair):
    pair.limit_queue(how="declare", parts=True, concurrency=1)
    pair.put("a", part("1"), times=3)
    pair.both.run(("move", "q", ("p q|1",), (0, 1, 2), ("",)))
    assert pair.claim(queues=("p q|1",))[0] == [1, 2, 3]
    assert held(pair, "queue:q:1") == 0


def test_a_new_partition_acts_on_what_is_put_after_it(pair):
    pair.limit_queue(how="declare", concurrency=1)
    pair.put("a", times=3)
    pair.limit_queue(how="declare", parts=True, concurrency=1)
    pair.put("b", part("1"), times=2)
    assert len(pair.claim()[0]) == 4


def test_a_partition_whose_queue_has_no_numbers_is_not_limited(pair):
    pair.put("a", part("1"), times=3)
    assert len(pair.claim()[0]) == 3


# -- of one process -------------------------------------------------------------------------------


def test_a_process_takes_no_more_of_a_queue_than_it_may_and_others_take_the_rest(pair):
    pair.limit_queue(concurrency=5, local=2)
    pair.put("a", times=9)
    pair.put("b", queue="p q|1", times=2)
    given, _ = pair.claim(queues=("q", "p q|1"))
    assert len(given) == 4
    assert pair.claim(held={"queue:q": 2})[0] == []
    assert pair.answer.passed == {"q": 0}
    assert pair.model.rings["q"].left
    assert len(pair.claim(held={"queue:q": 1})[0]) == 1
    assert len(pair.claim()[0]) == 2
    assert pair.claim()[0] == []


def test_a_task_that_names_its_queue_s_key_itself_is_one_of_it(pair):
    pair.limit_queue(how="declare", local=2)
    pair.put("a", Limit("queue:q", 9), times=5)
    assert len(pair.claim()[0]) == 2


def test_the_smaller_of_both_limits_holds(pair):
    pair.limit_queue(concurrency=1, local=3)
    pair.put("a", times=9)
    assert len(pair.claim()[0]) == 1


def test_an_end_in_a_queue_wakes_a_process_that_was_full_of_it(pair):
    pair.limit_queue(local=1)
    pair.put("a", times=3)
    pair.claim()
    pair.claim(held={"queue:q": 1})
    pair.model.rings["q"].bell = False
    pair.both.scripts.client.delete(f"{pair.both.scripts.prefix}bell:q")
    pair.end_one(0)
    assert pair.model.rings["q"].bell


def test_a_process_passes_by_what_it_is_full_of_and_takes_what_stands_behind(pair):
    pair.limit_queue(how="declare", parts=True, local=1)
    for customer in ("1", "1", "1", "2"):
        pair.put("a", part(customer))
    pair.put("b", part("1"))
    pair.put("c")
    assert pair.claim()[0] == [1, 6, 4]
    assert pair.claim(held={"queue:q:1": 1, "queue:q:2": 1})[0] == []
    assert pair.claim(held={"queue:q:2": 1})[0] == [5]


def test_a_claim_passes_by_a_bounded_number_of_tenants_and_the_next_goes_on(pair):
    pair.limit_queue(how="declare", parts=True, local=1)
    for number in range(17):
        pair.put(f"u{number}", part("1"))
    pair.put("v", part("2"))
    assert pair.claim(held={"queue:q:1": 1}) == ([], 0)
    assert pair.answer.passed == {"q": 16}
    places = pair.answer.passed
    passing = Passing(places=places, held={"queue:q:1": 1})
    pair.both.run(("claim", "w", False, 9, ("q",), "on", False, passing, False, "", ()))
    assert [row.task.tenant for row in pair.model.running.values()] == ["v"]


def test_of_a_process_nothing_is_asked_where_nothing_is_enforced(pair):
    pair.limit_queue(local=1)
    pair.put("a", times=3)
    assert len(pair.claim(enforcement="off", held={"queue:q": 5})[0]) == 3


def test_who_has_many_lanes_of_which_this_process_is_full_hides_nobody(pair):
    pair.limit_queue(how="declare", parts=True, local=1)
    for number in range(40):
        pair.put("a", part(str(number)))
    pair.put("b", part("0"))
    pair.put("c")
    held = {f"queue:q:{number}": 1 for number in range(39)}
    # Of all that wait only these may start here, and one claim finds them.
    pair.claim(held=held)
    assert sorted(row.task.tenant for row in pair.model.running.values()) == ["a", "c"]


def test_who_has_more_lanes_than_a_claim_looks_at_is_passed_by(pair):
    pair.limit_queue(how="declare", parts=True, local=1)
    for number in range(130):
        pair.put("a", part(str(number)))
    pair.put("b")
    # One of its lanes is open here, behind all that a claim looks at.
    held = {f"queue:q:{number}": 1 for number in range(129)}
    assert pair.claim(held=held) == ([], 0)
    assert pair.answer.passed == {"q": 1}
    passing = Passing(places=pair.answer.passed, held=held)
    pair.both.run(("claim", "w", False, 9, ("q",), "on", False, passing, False, "", ()))
    assert [row.task.tenant for row in pair.model.running.values()] == ["b"]
