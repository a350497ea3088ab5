"""Tasks that take several units of a rate: when they start, and for whom a key saves its units."""

from __future__ import annotations

import random

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict
from tests.support.limits import changed
from tests.support.services import examples

#: Ten units in any second.
TEN = Limit("api", rate=((10, 1_000),))
#: A worker that has not come in this time has lost its turn.
GRACE_MS = 2_000


def taking(units, limit=TEN):
    return changed(limit, units=units)


def used(shop, task, units, key="api"):
    """Report the units of a running task."""
    args = calls.used_args(task.lease, key, units, shop.rules, str(shop.now))
    return int(shop.run(calls.USED, args))


def test_a_task_that_takes_several_units_counts_all_of_them(shop):
    for units in (4, 5, 2, 1):
        shop.put("a", taking(units))
    assert shop.claim()[0] == [1, 2]
    shop.at(1_001)
    assert shop.claim()[0] == [3, 4]


def test_a_task_that_takes_more_than_the_rate_takes_all_of_it(shop):
    shop.put("a", TEN)
    shop.put("a", taking(25))
    shop.put("a", TEN)
    assert shop.claim() == ([1], 0)
    assert shop.claim() == ([], 1_000)
    shop.at(1_001)
    assert shop.claim()[0] == [2]
    shop.at(2_001)
    assert shop.claim()[0] == []
    shop.at(2_002)
    assert shop.claim()[0] == [3]


def test_tasks_that_differ_by_their_units_are_one_lane(shop):
    """Otherwise each estimate would be a lane, and a limit would block them one by one."""
    for units in range(2, 12):
        shop.put("a", taking(units))
    shop.put("a", TEN)
    assert shop.claim(1)[0] == [1]
    assert [shop.cancel(number) for number in range(2, 11)] == [[True]] * 9
    assert shop.claim()[0] == [11]


@pytest.mark.parametrize("queue", ["q", "other"])
def test_light_tasks_that_come_later_leave_the_units_that_the_key_saves(shop, queue):
    shop.put("light", TEN, times=6)
    assert len(shop.claim()[0]) == 6
    shop.at(100)
    shop.put("heavy", taking(8))
    assert shop.claim()[0] == []
    started = []
    for step in range(200, 3_000, 50):
        shop.at(step)
        shop.put(f"new{step}", TEN, queue=queue)
        started += shop.claim(queues=(queue,))[0]
        started += shop.claim()[0]
        if started:
            break
    assert step == 1_050
    # What is left of the window beside the heavy task is free.
    assert sorted(started) == [7, 8, 9]
    shop.check()


def test_the_key_saves_nothing_for_a_task_whose_other_limit_is_closed(shop):
    """Two keys could save for two tasks, each of which waits for the other key."""
    other = Limit("other", concurrency=1)
    shop.put("b", other)
    shop.put("a", TEN, times=6)
    assert len(shop.claim()[0]) == 7
    shop.put("heavy", taking(8), other)
    shop.put("light", TEN)
    assert shop.claim()[0] == [9]
    shop.check()


def test_tasks_behind_one_that_waits_for_another_limit_too_start(shop):
    other = Limit("other", concurrency=1)
    shop.put("b", other)
    shop.put("a", TEN, times=6)
    assert len(shop.claim()[0]) == 7
    shop.at(500)
    shop.put("a", TEN, times=4)
    assert len(shop.claim()[0]) == 4
    shop.put("heavy", taking(8), other)
    shop.put("light", TEN)
    assert shop.claim()[0] == []
    shop.at(1_001)
    assert shop.claim()[0] == [13]
    shop.check()


def test_the_keys_of_a_task_save_together(shop):
    """A task that takes much of two keys would otherwise lose each of them in turn."""
    second = Limit("db", rate=((10, 1_700),))
    passed = 0
    for step in range(100, 12_000, 20):
        shop.at(step)
        shop.put(f"new{step}", TEN)
        shop.put(f"new{step}", second, queue="r")
        if step == 300:
            shop.put("heavy", taking(9), taking(9, second))
            heavy = shop.tags
        started = shop.claim()[0]
        if step >= 300 and heavy in started:
            break
        started += shop.claim(queues=("r",))[0]
        passed += sum(number > heavy for number in started) if step >= 300 else 0
        shop.end()
    else:
        pytest.fail("the heavy task never started")
    assert passed <= 20
    shop.check()


def test_of_two_queues_of_a_worker_the_task_that_is_due_before_has_the_saved_units(shop):
    queues = ("q", "r")
    shop.put("x", taking(6))
    shop.put("y", taking(6), queue="r")
    assert len(shop.claim(queues=queues)[0]) == 1
    served = []
    for step in range(1, 13):
        shop.at(step * 1_001)
        shop.put("x", taking(6))
        shop.put("y", taking(6), queue="r")
        shop.claim(queues=queues)
        served += [task.queue for task in shop.answer.tasks]
    assert abs(served.count("q") - served.count("r")) <= 1


@pytest.mark.parametrize("end", ["cancel", "move", "purge"])
def test_the_saving_ends_if_its_task_leaves(shop, end):
    shop.put("a", TEN, times=6)
    assert len(shop.claim()[0]) == 6
    shop.put("heavy", taking(8))
    assert shop.claim()[0] == []
    if end == "cancel":
        shop.cancel(7)
    elif end == "move":
        shop.move({7: ""}, "elsewhere")
    else:
        shop.purge()
    shop.put("light", TEN)
    assert shop.claim()[0] == [8]
    shop.check()


def test_the_saving_ends_if_a_look_finds_that_its_tenant_is_paused(shop):
    shop.put("a", TEN, times=6)
    assert len(shop.claim()[0]) == 6
    shop.put("heavy", taking(8))
    assert shop.claim()[0] == []
    shop.stop("pause", "tenant:heavy")
    shop.put("light", TEN, times=10)
    assert shop.claim()[0] == []
    shop.at(1_001)
    assert len(shop.claim()[0]) == 10
    shop.check()


def test_a_worker_that_has_died_keeps_units_from_others_for_a_bounded_time(shop):
    shop.put("a", TEN, times=6)
    assert len(shop.claim()[0]) == 6
    shop.put("heavy", taking(8), queue="dead")
    assert shop.claim(queues=("dead",))[0] == []
    shop.put("light", taking(3))
    assert shop.claim()[0] == []
    shop.at(1_001 + GRACE_MS - 1)
    assert shop.claim()[0] == []
    shop.at(1_001 + GRACE_MS)
    assert shop.claim()[0] == [8]
    shop.check()


def test_more_units_than_estimated_keep_later_tasks_back(shop):
    shop.put("a", taking(2))
    shop.put("a", TEN)
    shop.claim(1)
    assert used(shop, shop.answer.tasks[0], 10) == 1
    assert shop.claim()[0] == []
    shop.at(1_001)
    assert shop.claim()[0] == [2]


def test_fewer_units_than_estimated_are_free_at_once_and_wake_a_worker(shop):
    shop.put("a", taking(10))
    shop.put("b", TEN, times=4)
    task = shop.claim() and shop.answer.tasks[0]
    assert shop.claim()[0] == []
    shop.hear()
    assert used(shop, task, 7) == 1
    assert shop.is_woken()
    assert len(shop.claim()[0]) == 3


def test_a_report_counts_once_and_the_last_one_holds(shop):
    shop.put("a", taking(4))
    shop.put("b", TEN, times=9)
    task = shop.claim(1) and shop.answer.tasks[0]
    assert [used(shop, task, units) for units in (9, 9, 3, 3, 6, 6)] == [1] * 6
    assert len(shop.claim()[0]) == 4


def test_a_report_of_a_task_without_units_replaces_the_one_that_it_counted(shop):
    shop.put("a", TEN)
    shop.put("b", TEN, times=10)
    task = shop.claim(1) and shop.answer.tasks[0]
    assert used(shop, task, 5) == 1
    assert len(shop.claim()[0]) == 5


def test_a_report_names_a_key_of_the_task_as_it_is_written(shop):
    shop.put("a", taking(4, Limit("a_b", rate=((10, 1_000),))))
    task = shop.claim(1) and shop.answer.tasks[0]
    keys = ("a_b", "tenant:a", "a.b", "a", "b", "a_b,")
    assert [used(shop, task, 2, key=key) for key in keys] == [1, 1, -1, -1, -1, -1]


def test_a_second_report_of_a_number_writes_nothing(shop):
    shop.put("a", taking(4))
    task = shop.claim(1) and shop.answer.tasks[0]
    for units in (4, 6):
        used(shop, task, units)
        again = commands_of(shop, lambda units=units: used(shop, task, units))
        other = commands_of(shop, lambda units=units: used(shop, task, units + 1))
        assert again < other - 1
        used(shop, task, units)


def test_a_report_acts_only_on_the_own_start_of_a_task(shop):
    shop.put("a", taking(3), times=2)
    first, second = shop.claim() and shop.answer.tasks
    shop.put("b", TEN, times=9)
    assert used(shop, first, 0) == 1
    assert len(shop.claim()[0]) == 7
    assert used(shop, second, 0) == 1
    assert len(shop.claim()[0]) == 2


def test_units_above_the_estimate_count_from_the_report_on_if_the_start_has_left_the_window(shop):
    shop.put("a", taking(2))
    shop.put("b", TEN, times=10)
    task = shop.claim(1) and shop.answer.tasks[0]
    shop.at(1_500)
    assert used(shop, task, 9) == 1
    assert len(shop.claim()[0]) == 3
    shop.at(2_500)
    assert len(shop.claim()[0]) == 0
    shop.at(2_501)
    assert len(shop.claim()[0]) == 7


def test_a_report_of_a_task_that_has_ended_or_of_another_key_changes_nothing(shop):
    shop.put("a", taking(10))
    shop.put("b", TEN)
    task = shop.claim() and shop.answer.tasks[0]
    assert used(shop, task, 1, key="other") == -1
    shop.end()
    assert used(shop, task, 1) == 0
    assert shop.claim()[0] == []


def test_a_task_that_did_not_begin_gives_all_of_its_units_back(shop):
    shop.put("a", taking(9))
    shop.put("b", TEN, times=10)
    shop.claim(1)
    shop.end_one(0, begun=False)
    assert len(shop.claim()[0]) == 10


@pytest.mark.parametrize(
    ("most", "period_ms"), [(10, 1_000), (100, 1_000), (5_000, 2_000), (100_000, 60_000)]
)
@pytest.mark.parametrize("seed", range(examples(10)))
def test_no_window_has_more_units_than_its_rate_and_each_task_starts(shop, most, period_ms, seed):
    """Tasks take from 1 unit to twice the rate. Timers alone let them start."""
    chance = random.Random(seed)
    limit = Limit("api", rate=((most, period_ms),))
    left, log = {}, []
    for number in range(1, 41):
        units = chance.choice((1, 1, 1, most // 10 or 1, most // 3, most, most * 2))
        shop.put(f"t{chance.randint(1, 3)}", taking(units, limit))
        left[number] = min(units, most)
    start, idle = shop.now, 0
    while left:
        numbers, sleep_ms = shop.claim(chance.choice((1, 3)))
        log += [(shop.now, left.pop(number)) for number in numbers]
        inside = sum(units for at, units in log if at + period_ms + 1 > shop.now)
        assert inside <= most
        shop.settle(shop.answer.tasks, Verdict.DONE)
        idle = 0 if numbers else idle + 1
        # A worker sleeps at most a second.
        assert idle < 2 * period_ms / 1_000 + 20
        shop.now += 0 if numbers else sleep_ms
    least_ms = sum(units for _, units in log) / most * period_ms
    # A task that takes nearly all of a rate waits until the window is nearly empty.
    assert shop.now - start <= 2 * least_ms + period_ms
    shop.check()


@pytest.mark.parametrize("seed", range(examples(10)))
def test_few_tasks_that_come_later_pass_a_task_that_takes_several_units(shop, seed):
    """Streams of light tasks of ever new tenants, in one queue or in two with their own workers."""
    chance = random.Random(seed)
    queues = ("q", "r")[: chance.choice((1, 2))]
    passed = 0
    for step in range(100, 10_000, 20):
        shop.at(step)
        for queue in queues:
            shop.put(f"new{step}", TEN, queue=queue)
        if step == 300:
            shop.put("heavy", taking(9))
            heavy = shop.tags
        for queue in chance.sample(queues, len(queues)):
            numbers, _ = shop.claim(chance.choice((1, 10)), queues=(queue,))
            if step >= 300 and heavy in numbers:
                # Beside nine units fits one in each window.
                assert passed <= 10
                return
            passed += sum(number > heavy for number in numbers) if step >= 300 else 0
        shop.end()
    pytest.fail("the heavy task never started")


def commands_of(shop, call):
    """Return how many commands a call sends to Redis inside of its function."""
    own = ("fcall", "info", "config", "ping", "select", "client", "hello", "flush")

    def count():
        stats = shop.client.info("commandstats").items()
        names = [(name.removeprefix("cmdstat_"), row["calls"]) for name, row in stats]
        return sum(calls for name, calls in names if not name.startswith(own))

    before = count()
    call()
    return count() - before


def test_units_cost_two_commands_of_a_claim_and_nothing_else(shop):
    """The claim reads the first task of the lane. A task without units costs what it did."""
    costs = {}
    # The first calls of a server and of a key cost more.
    for units in (None, 3, None, 3):
        limit = changed(TEN, key=f"api{units}", units=units, rate=((1_000, 60_000),))
        shop.put("a", limit, times=3)
        shop.claim(1)
        shop.end()
        costs[units] = (
            commands_of(shop, lambda limit=limit: shop.put("a", limit)),
            commands_of(shop, lambda: shop.claim(1)),
            commands_of(shop, lambda: shop.settle(shop.answer.tasks)),
        )
        shop.claim()
        shop.end()
    assert [b - a for a, b in zip(costs[None], costs[3], strict=True)] == [0, 2, 0]
