"""Tasks that take several slots of a key: when they start, and for whom a key saves its slots."""

from __future__ import annotations

import random

import pytest

from celery_fairness.config.limit_spec import Limit, keys_of_lease
from celery_fairness.config.numbers import read_numbers
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict
from tests.scheduler.test_units import GRACE_MS, commands_of
from tests.support.limits import changed
from tests.support.services import examples
from tests.support.tables import findings

#: Ten slots.
TEN = Limit("gpu", concurrency=10)


def taking(slots, limit=TEN):
    return changed(limit, slots=slots)


def slots_of(task, key="gpu"):
    """Return how many slots of a key the lease of a claimed task takes."""
    if key not in keys_of_lease(task.key):
        return 0
    word = next(each for each in task.key.split(",") if each.partition("*")[0] == key)
    return read_numbers(word.partition("*")[2]).get("slots", 1)


def held(shop, key="gpu"):
    return sum(slots_of(task, key) for task in shop.running())


def of_tenant(shop, tenant):
    """Return the running task of a tenant."""
    (task,) = (each for each in shop.running() if each.key.startswith(f"tenant:{tenant},"))
    return task


def stream(shop, start, step, times=1, queue="q"):
    """Put light tasks of a tenant that is new."""
    shop.at(start)
    shop.put(f"new{step}", TEN, times=times, queue=queue)


def test_a_task_that_takes_several_slots_counts_all_of_them_until_it_ends(shop):
    for slots in (4, 5, 2, 1):
        shop.put("a", taking(slots))
    assert shop.claim()[0] == [1, 2]
    shop.end_one(0)
    assert shop.claim()[0] == [3, 4]
    shop.end()
    assert shop.claim()[0] == []


def test_a_task_that_takes_more_than_the_limit_takes_all_of_it(shop):
    shop.put("a", TEN)
    shop.put("a", taking(25))
    shop.put("a", TEN)
    assert shop.claim()[0] == [1]
    shop.end()
    assert shop.claim()[0] == [2]
    assert slots_of(shop.answer.tasks[0]) == 10
    assert shop.claim()[0] == []
    shop.end()
    assert shop.claim()[0] == [3]


def test_a_task_starts_after_the_limit_has_fallen_below_what_it_takes(shop):
    shop.put("a", taking(8))
    shop.override("gpu", concurrency=3)
    shop.put("b", TEN)
    assert shop.claim()[0] == [1]
    assert held(shop) == 3
    shop.override("gpu")
    # It goes on to take what it took at its start.
    assert shop.claim()[0] == [2]
    shop.put("c", taking(6))
    shop.put("c", TEN)
    assert shop.claim()[0] == [3]
    shop.end()
    assert shop.claim()[0] == [4]


def test_tasks_that_differ_by_their_slots_are_one_lane(shop):
    for slots in range(2, 10):
        shop.put("a", taking(slots))
    shop.put("b", TEN)
    assert shop.claim(1)[0] == [1]
    assert [shop.cancel(number) for number in range(2, 9)] == [[True]] * 7
    assert shop.claim()[0] == [9]


@pytest.mark.parametrize("queue", ["q", "other"])
def test_light_tasks_that_come_later_leave_the_slots_that_the_key_saves(shop, queue):
    shop.put("light", TEN, times=9)
    shop.claim()
    shop.put("heavy", taking(8))
    assert shop.claim()[0] == []
    for step in range(1, 7):
        stream(shop, 100 * step, step, 2, queue)
        shop.end_one(0)
        assert shop.claim(queues=(queue,))[0] == []
    shop.end_one(0)
    assert 10 in shop.claim()[0]
    shop.claim(queues=(queue,))
    assert held(shop) == 10
    shop.check()


def test_a_key_saves_as_long_as_slots_gather(shop):
    """A body may run for hours. An end by time would let light tasks take the slots."""
    shop.put("light", TEN, times=9)
    shop.claim()
    shop.put("heavy", taking(10))
    assert shop.claim()[0] == []
    kept = shop.running()
    for _ in range(20):
        shop.now += shop.rules.lease_ms // 3
        shop.renew(*kept)
        shop.put("later", TEN)
        assert shop.claim()[0] == []
    shop.end()
    assert shop.claim()[0][0] == 10


def test_a_worker_that_has_died_keeps_slots_from_others_for_a_bounded_time(shop):
    shop.put("light", TEN, times=9)
    shop.claim()
    shop.put("heavy", taking(8), queue="dead")
    assert shop.claim(queues=("dead",))[0] == []
    shop.put("late", taking(3))
    shop.end()
    assert shop.is_woken("dead")
    assert shop.claim()[0] == []
    shop.now += GRACE_MS - 1
    assert shop.claim()[0] == []
    shop.now += 1
    assert shop.claim()[0] == [11]
    shop.check()


@pytest.mark.parametrize("event", ["change", "leave"])
def test_each_key_of_a_saving_is_looked_at_when_the_saving_ends(shop, event):
    """A look after a change takes a key out of `timers`, and so does the last task that waits."""
    other = Limit("other", concurrency=2)
    shop.put("light", TEN, times=9)
    shop.claim()
    shop.put("heavy", taking(8), taking(2, other), queue="dead")
    assert shop.claim(queues=("dead",))[0] == []
    shop.put("late", other)
    assert shop.claim()[0] == []
    shop.end()
    if event == "change":
        for limit in (changed(other, concurrency=1), changed(TEN, concurrency=9)):
            shop.put("new", limit)
        assert shop.claim()[0] == [13]
        late = 11
    else:
        shop.cancel(11)
        shop.put("late", other)
        assert shop.claim()[0] == []
        late = 12
    shop.hear()
    shop.now += GRACE_MS
    started, sleep_ms = shop.claim()
    assert started or sleep_ms == 0
    assert started + shop.claim()[0] == [late]
    shop.check()


def test_the_wake_up_comes_when_all_slots_are_there(shop):
    shop.put("light", TEN, times=10)
    shop.claim()
    shop.put("heavy", taking(3))
    assert shop.claim()[0] == []
    for _ in range(2):
        shop.hear()
        shop.end_one(0)
        assert not shop.is_woken()
    shop.end_one(0)
    assert shop.is_woken()
    assert shop.claim()[0] == [11]


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


def test_a_key_saves_nothing_for_a_task_whose_other_key_saves_for_another_task(shop):
    db = Limit("db", concurrency=10)
    shop.put("a", TEN, times=6)
    shop.put("b", db, times=9)
    assert len(shop.claim(15)[0]) == 15
    shop.put("first", taking(8, db))
    assert shop.claim()[0] == []
    shop.put("heavy", taking(8), taking(2, db))
    shop.put("light", TEN)
    assert shop.claim()[0] == [18]
    shop.check()


def test_the_keys_save_nothing_while_a_throttle_is_closed_too(shop):
    spaced, other = changed(TEN, throttle=((1, 1_000),)), Limit("other", concurrency=1)
    shop.put("a", taking(5, spaced))
    assert shop.claim()[0] == [1]
    shop.put("heavy", taking(8, spaced), other)
    shop.put("light", other)
    assert shop.claim()[0] == [3]
    shop.check()


@pytest.mark.parametrize("slots", [9, 1])
def test_the_keys_of_a_task_save_together(shop, slots):
    """A task with a large key would otherwise lose each of its keys in turn."""
    db = Limit("db", concurrency=10 if slots > 1 else 1)
    rng = random.Random(0)
    for step in range(1, 400):
        shop.at(50 * step)
        shop.put(f"x{step}", TEN)
        shop.put(f"y{step}", db, queue="r")
        if step == 20:
            shop.put("heavy", taking(9), changed(db, slots=slots if slots > 1 else None))
            heavy = shop.tags
        started = shop.claim()[0] + shop.claim(queues=("r",))[0]
        if step >= 20 and heavy in started:
            break
        running = shop.running()
        shop.settle(rng.sample(running, min(2, len(running))))
    assert step < 60
    shop.check()


def test_the_keys_save_nothing_while_one_of_them_is_paused(shop):
    other = Limit("other", concurrency=1)
    shop.put("a", TEN, times=6)
    assert len(shop.claim()[0]) == 6
    shop.put("heavy", taking(8), other)
    shop.put("light", other)
    assert shop.claim()[0] == []
    shop.stop("pause", "gpu")
    assert shop.claim()[0] == [8]
    shop.check()


@pytest.mark.parametrize("end", ["cancel", "move", "purge", "pause", "replace"])
def test_the_saving_ends_if_its_task_leaves(shop, end):
    shop.put("a", TEN, times=6)
    assert len(shop.claim()[0]) == 6
    shop.put("heavy", taking(8), unique="r|0|key")
    assert shop.claim()[0] == []
    if end == "cancel":
        shop.cancel(7)
    elif end == "move":
        shop.move({7: ""}, "elsewhere")
    elif end == "purge":
        shop.purge()
    elif end == "replace":
        shop.put("heavy", unique="r|0|key")
        assert shop.claim()[0] == [8]
    else:
        shop.tenant("heavy", "free", 0)
    shop.put("light", TEN)
    started = shop.claim()[0]
    if end == "pause":
        assert started == []
        shop.end_one(0)
        shop.end_one(0)
        shop.end_one(0)
        shop.end_one(0)
        started = shop.claim()[0]
    assert started == [shop.tags]
    shop.check()


def test_the_first_tenant_of_a_place_may_change_while_its_key_saves(shop):
    """A group moves to another limit with all its tenants, also the one for which a key saves."""
    other = Limit("other", concurrency=1)
    shop.put("a", TEN, times=6)
    shop.put("a", TEN, times=1)
    assert len(shop.claim()[0]) == 7
    shop.put("heavy", taking(8), other)
    assert shop.claim()[0] == []
    shop.put("b", other)
    assert shop.claim()[0] == []
    shop.put("early", taking(9), other)
    shop.end_one(0)
    shop.claim()
    shop.end()
    for _ in range(4):
        shop.claim()
        shop.end()
    assert shop.exists() == []
    shop.check()


@pytest.mark.parametrize(("others", "small", "large"), [(5, 2, 8), (9, 1, 2)])
def test_a_saving_goes_on_when_a_smaller_task_of_its_place_starts(shop, others, small, large):
    """A task of the same lane comes back. So it is before the one for which the key saves."""
    shop.put("others", TEN, times=others)
    shop.put("a", taking(small))
    assert len(shop.claim()[0]) == others + 1
    shop.put("a", taking(large))
    assert shop.claim()[0] == []
    shop.settle([of_tenant(shop, "a")], Verdict.HEAD)
    assert shop.claim(1)[0] == []
    for _ in range(min(3, 10 - others)):
        shop.end_one(0)
    assert shop.claim(1)[0] == [others + 1]
    stream(shop, 100, 1, 9, "other")
    assert shop.claim(queues=("other",))[0] == []
    shop.end()
    assert shop.claim()[0] == [others + 2]
    shop.check()


def test_a_saving_that_ends_wakes_the_workers_of_what_waited(shop):
    shop.put("light", TEN, times=6)
    assert len(shop.claim()[0]) == 6
    shop.put("heavy", taking(8))
    assert shop.claim()[0] == []
    for queue in ("r", "s"):
        shop.put("late", TEN, queue=queue)
        assert shop.claim(queues=(queue,))[0] == []
        shop.hear(queue)
    shop.cancel(7)
    for queue, number in (("r", 8), ("s", 9)):
        # The worker that is woken first looks at the key, and wakes the next one.
        assert shop.is_woken(queue)
        assert shop.claim(queues=(queue,))[0] == [number]
    shop.check()


def test_a_saving_ends_when_its_task_starts(shop):
    shop.put("others", TEN, times=5)
    assert len(shop.claim()[0]) == 5
    for slots in (8, 1):
        shop.put("heavy", taking(slots))
    assert shop.claim()[0] == []
    shop.end()
    assert shop.claim(1)[0] == [6]
    stream(shop, 100, 1, 2, "other")
    assert shop.claim(queues=("other",))[0] == [8, 9]
    shop.check()


def test_a_saving_ends_when_its_group_moves_to_another_limit(shop):
    db = Limit("db", concurrency=9)
    shop.put("others", TEN, times=5)
    assert len(shop.claim()[0]) == 5
    shop.put("heavy", taking(8), db)
    assert shop.claim()[0] == []
    shop.override("db", concurrency=0)
    for _ in range(3):
        shop.end_one(0)
    assert shop.claim()[0] == []
    stream(shop, 100, 1, 9, "other")
    assert len(shop.claim(queues=("other",))[0]) == 8
    shop.check()


def test_of_two_queues_of_a_worker_the_task_that_is_due_before_has_the_saved_slots(shop):
    queues = ("q", "r")
    served = []
    for _ in range(24):
        shop.put("x", taking(6))
        shop.put("y", taking(6), queue="r")
        shop.claim(queues=queues)
        served += [task.queue for task in shop.answer.tasks]
        shop.end()
    assert len(served) == 24
    assert abs(served.count("q") - served.count("r")) <= 1


def test_a_lease_that_expires_gives_all_its_slots_back(shop):
    shop.put("a", taking(9), kind="died")
    shop.put("b", TEN, times=3)
    assert shop.claim()[0] == [1, 2]
    shop.lapse(shop.answer.tasks[1])
    assert sorted(shop.claim(never=("died",))[0]) == [3, 4]
    shop.end()
    assert shop.claim()[0] == [1]
    shop.check()


def test_a_lease_that_a_lost_memory_gets_again_takes_all_its_slots(shop):
    shop.put("a", taking(8))
    shop.claim()
    shop.renew()
    lease, epoch = shop.answer.tasks[0], shop.epoch
    shop.lose()
    shop.now += 1
    shop.renew(lease, epoch=epoch)
    shop.put("b", TEN, times=4)
    assert len(shop.claim()[0]) == 2
    shop.settle([lease])
    assert len(shop.claim()[0]) == 2
    shop.end()
    shop.check()


def test_a_key_that_a_worker_names_twice_counts_once(shop):
    shop.claim()
    shop.renew(epoch=1)
    held = [("other@1", "tenant:a,gpu*S4,gpu")]
    shop.run(calls.RENEW, calls.renew_args(held, shop.rules, 1, str(shop.now)))
    shop.put("b", TEN, times=20)
    assert len(shop.claim(20)[0]) == 6
    shop.lapse(*shop.running())
    assert len(shop.claim(20)[0]) == 4
    shop.check()


@pytest.mark.parametrize(("first", "second"), [(8, None), (8, 3), (None, 8), (3, 8)])
def test_a_worker_may_claim_what_it_has_registered_again(shop, first, second):
    """An older memory gives a worker its own task, which may take other amounts now."""
    extra, twenty = Limit("extra", concurrency=9, slots=5), changed(TEN, concurrency=20)
    shop.put("a", taking(first, twenty), extra)
    shop.claim()
    lease = shop.answer.tasks[0]
    shop.lose()
    shop.renew(lease, epoch=1)
    shop.numbers.clear()
    shop.put_task("a", number=1, limits=taking(second, twenty).text)
    assert shop.claim()[0] == [1]
    assert shop.answer.tasks[0].lease == lease.lease
    shop.check()
    shop.put("b", twenty, times=30)
    assert len(shop.claim(30)[0]) == 20 - (second or 1)
    shop.put("c", changed(extra, slots=None), times=9)
    assert len(shop.claim(30)[0]) == 4
    shop.end()
    shop.check()
    assert len(shop.claim(30)[0]) == 15 + (second or 1)


def test_several_slots_of_the_key_of_a_tier_leave_nothing_behind(shop):
    shop.tiers(Tier("free", 4))
    own = Limit("tenant:a", concurrency=9, slots=3)
    shop.put("a", own)
    shop.put("a", times=3)
    assert len(shop.claim()[0]) == 2
    shop.end()
    assert len(shop.claim()[0]) == 2
    shop.end()
    kept = shop.client.hkeys(f"{shop.prefix}virtual_times")
    assert [field for field in kept if field.startswith("beside")] == []


def test_a_check_finds_and_mends_a_wrong_count_of_slots(shop):
    shop.put("a", taking(4), times=2)
    shop.claim()
    times = f"{shop.prefix}virtual_times"
    for wrong in ("1", "9", None):
        if wrong is None:
            shop.client.hdel(times, "beside gpu")
        else:
            shop.client.hset(times, "beside gpu", wrong)
        found = findings(shop.client, shop.prefix, shop.rules, shop.now)
        assert [each[0] for each in found] == ["slots_not_counted"]
        findings(shop.client, shop.prefix, shop.rules, shop.now, repair=True)
        shop.check()
    shop.client.hset(times, "beside gone", 3)
    assert findings(shop.client, shop.prefix, shop.rules, shop.now) != []
    findings(shop.client, shop.prefix, shop.rules, shop.now, repair=True)
    shop.check()


@pytest.mark.parametrize("seed", range(examples(20)))
def test_the_slots_of_what_runs_are_never_more_than_the_limit_and_each_task_starts(shop, seed):
    """Three keys, weights, two queues, other numbers, deaths, and bodies of any length.

    After the walk only wake-ups and ends of bodies let tasks start.
    """
    chance = random.Random(seed)
    keys = ("gpu", "db", "api")[: chance.randint(1, 3)]
    queues = ("q", "r")[: chance.choice((1, 2))]
    most = {key: chance.randint(2, 6) for key in keys}
    shop.tiers(*(Tier(f"w{n}", None, n) for n in (1, 2, 3)))
    waiting = {}

    def put():
        takes = {k: chance.choice((1, 1, 1, 2, 3, 5)) for k in keys if chance.random() < 0.8}
        limits = [
            Limit(k, concurrency=most[k], slots=n if n > 1 else None) for k, n in takes.items()
        ]
        name = chance.randint(1, 3)
        shop.put(f"t{name}", *limits, queue=chance.choice(queues), tier=f"w{name}")
        waiting[shop.tags] = takes

    def claim(of, want):
        before = {task.lease for task in shop.running()}
        numbers, _ = shop.claim(want, queues=of)
        for number in numbers:
            waiting.pop(number)
        if {task.lease for task in shop.running()} - before:
            for key in keys:
                assert held(shop, key) <= most[key]
        return numbers

    for _ in range(80):
        kind = chance.random()
        shop.now += chance.choice((0, 1, 7, 50))
        if kind < 0.4:
            put()
        elif kind < 0.65:
            claim(chance.sample(queues, chance.randint(1, len(queues))), chance.choice((1, 3)))
        elif kind < 0.85 and shop.running():
            shop.end_one(0, Verdict.DONE)
        elif kind < 0.92 and waiting:
            number = chance.choice(sorted(waiting))
            shop.cancel(number)
            del waiting[number]
        elif kind < 0.97:
            key = chance.choice(keys)
            # A number may fall below what runs, so no task starts until enough have ended.
            most[key] = max(chance.randint(1, 6), held(shop, key))
            shop.override(key, concurrency=most[key])
        else:
            shop.now += 1_500
    idle = 0
    while waiting and idle < 12:
        woken = [queue for queue in queues if shop.is_woken(queue)]
        for queue in woken:
            shop.hear(queue)
        if woken:
            idle = 0 if claim(woken, 2) else idle + 1
        elif shop.running():
            shop.end_one(chance.randrange(len(shop.running())))
        else:
            # The sleep of a worker, or of another one whose call lets time pass.
            shop.now += 1_000
            idle = 0 if claim(queues, 2) else idle + 1
    assert not waiting
    shop.end()
    shop.check()


@pytest.mark.parametrize("seed", range(examples(10)))
def test_few_tasks_that_come_later_pass_a_task_that_takes_several_slots(shop, seed):
    """Streams of light tasks of ever new tenants, in one queue or in two with their own workers."""
    chance = random.Random(seed)
    queues = ("q", "r")[: chance.choice((1, 2))]
    passed = 0
    for step in range(400):
        for queue in queues:
            stream(shop, 20 * step, step, queue=queue)
        if step == 15:
            shop.put("heavy", taking(9))
            heavy = shop.tags
        for queue in chance.sample(queues, len(queues)):
            numbers, _ = shop.claim(chance.choice((1, 10)), queues=(queue,))
            if step >= 15 and heavy in numbers:
                # What was free before its first look, and one beside it.
                assert passed <= 12
                return
            passed += sum(number > heavy for number in numbers) if step >= 15 else 0
        running = shop.running()
        shop.settle(chance.sample(running, min(2, len(running))))
    pytest.fail("the heavy task never started")


def test_slots_cost_few_commands_and_nothing_without_them(shop):
    """Units alone read no table of slots. Slots cost the count, and the first task of the lane."""
    one_rate = {"rate": ((1_000, 60_000),)}
    kinds = {"none": {}, "rate": one_rate, "units": {**one_rate, "units": 3}, "slots": {"slots": 3}}
    costs = {}
    # The first calls of a server and of a key cost more.
    for name in ("none", "rate", "units", "none", "rate", "units", "slots", "slots", "none"):
        limit = changed(TEN, key=f"key-{name}", **kinds[name])
        shop.put("a", limit, times=2)
        shop.claim(1)
        shop.end()
        costs.setdefault(name, []).append(
            (
                commands_of(shop, lambda limit=limit: shop.put("a", limit)),
                commands_of(shop, lambda: shop.claim(1)),
                commands_of(shop, lambda: shop.settle(shop.answer.tasks)),
            )
        )
        shop.claim()
        shop.end()

    def more(name, than, at=-1):
        pairs = zip(costs[than][1], costs[name][at], strict=True)
        return [b - a for a, b in pairs]

    assert more("units", "rate") == [0, 2, 0]
    assert more("slots", "none") == [0, 4, 2]
    # Other keys of an installation with slots: one count is read.
    assert more("none", "none") == [0, 1, 0]
