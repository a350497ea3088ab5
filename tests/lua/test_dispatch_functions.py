"""The scripts of the dispatch path on a real server: what they cost, what they survive, and corners
that random operations seldom reach."""

from __future__ import annotations

import os

import pytest

from celery_fairness.config.tenants import key_part
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import (
    Put,
    Rules,
    Settled,
    Verdict,
    Waiting,
)
from celery_fairness.store.library import library, load
from tests.lua.dispatching import MINUTE, NOW, PREFIX, RULES, Dispatch

#: Tenants at their limit in front of a free one; DISPATCH_CROWD=100000 asks for what is promised.
CROWD = int(os.environ.get("DISPATCH_CROWD", "5000"))
#: What no call takes, though other processes have the processor meanwhile.
LONGEST_CALL_US = 200_000
SHORT_OF_MEMORY = "command not allowed when used memory"


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def unlimited(**fields):
    return Rules(default_limit=None, **fields)


# -- what it costs --------------------------------------------------------------------------------


def crowd(dispatch, tenants):
    """So many tenants of limit 1, each with a task that runs and one that waits, closed."""
    put = library().function(calls.PUT)
    load(dispatch.client.execute_command)
    pipe = dispatch.client.pipeline(transaction=False)
    for number in range(tenants):
        for turn in ("a", "b"):
            waiting = Waiting("q", f"{turn}{number}", f"c{number}", message="m")
            pipe.fcall(put, 1, PREFIX, *calls.put_args(waiting))
        if number % 1000 == 999:
            pipe.execute()
    pipe.execute()
    assert len(dispatch.claim_all(want=64)) == tenants


def assert_no_call_was_long(client):
    assert [entry for entry in client.slowlog_get() if b"FCALL" in entry["command"].upper()] == []


def test_full_tenants_cost_a_claim_and_a_settle_nothing(dispatch, client, commands):
    ran = {}
    client.config_set("slowlog-log-slower-than", LONGEST_CALL_US)
    for size in (100, CROWD):
        client.flushall()
        dispatch.now = NOW
        crowd(dispatch, size)
        client.slowlog_reset()
        assert client.zcard(PREFIX + "blocked:q") == size
        # A first and a second one: what the clock notes is noted.
        for turn in range(2):
            dispatch.put("free")
            dispatch.put("free")
            with commands() as of_claim:
                answer = dispatch.claim(want=1)
            assert [task.key for task in answer.tasks] == ["tenant:free"]
            with commands() as of_settle:
                dispatch.settle(answer.tasks)
            ran[size, turn] = of_claim, of_settle
            dispatch.settle(dispatch.claim(want=1).tasks)
        assert_no_call_was_long(client)
    for turn in range(2):
        assert ran[100, turn] == ran[CROWD, turn]


@pytest.mark.parametrize("tasks", [2, 0])
def test_queues_in_which_nothing_waits_cost_a_claim_one_command_before_it_sleeps(
    dispatch, commands, tasks
):
    def cost(*idle):
        for _ in range(tasks):
            dispatch.put("a")
        with commands() as ran:
            answer = dispatch.claim(want=1, queues=["q", *idle])
        assert len(answer.tasks) == min(tasks, 1)
        dispatch.settle(answer.tasks)
        dispatch.settle(dispatch.claim().tasks)
        return ran

    cost()
    alone, among = cost(), cost(*(f"idle{n}" for n in range(50)))
    assert sum(among.values()) == sum(alone.values())
    assert among.get("del", 0) == alone.get("del", 0) == (tasks == 0), "the bells of all of them"


def test_news_for_a_crowd_and_its_purge_are_spread_over_many_calls(dispatch, client):
    crowd(dispatch, 2_000)
    client.config_set("slowlog-log-slower-than", LONGEST_CALL_US)
    client.slowlog_reset()
    dispatch.publish_tiers(free=2)
    before = dispatch.number
    assert len(dispatch.claim_all(want=16)) == 2_000
    assert dispatch.number - before >= 2_000 // 16
    dispatch.let_a_lease_pass()
    before = dispatch.number
    assert dispatch.claim_all(queues=["nobody's"]) == []
    # Two renewals ended 64 leases each.
    assert dispatch.number - before >= (4_000 - 2 * 64) // 16
    gone = [dispatch.run(calls.PURGE, ["q"]) for _ in range(4_000 // 50)]
    assert gone[-1] == 0
    assert sum(gone) == 4_000
    assert_no_call_was_long(client)


def test_at_the_memory_limit_puts_are_rejected_and_work_goes_on(dispatch, client):
    dispatch.rules = unlimited()
    for _ in range(4):
        dispatch.put("a")
    first = dispatch.claim(want=2).tasks
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Exception, match=SHORT_OF_MEMORY):
            dispatch.put("a")
        assert dispatch.renew(first)[1] == []
        dispatch.now += 1000
        assert dispatch.settle(first[:1], Verdict.BEGUN) == [Settled.SETTLED]
        assert dispatch.settle(first[:1], Verdict.HEAD) == [Settled.SETTLED]
        assert dispatch.settle(first[1:]) == [Settled.SETTLED]
        again = dispatch.claim()
        assert dispatch.tags_of(again) == ["t1", "t3", "t4"]
        dispatch.settle(again.tasks[:1], Verdict.ACKED)
        dispatch.let_a_lease_pass(kept=again.tasks[1:])
        assert dispatch.next_outcome().message == "of t1"
        assert dispatch.run(calls.PURGE, ["q"]) == 0
    finally:
        client.config_set("maxmemory", 0)
    # The rejected put left nothing, so it can be sent again.
    assert dispatch.put("a", tag="t5") is Put.WAITS


# -- order ----------------------------------------------------------------------------------------


def test_many_leases_of_one_lane_that_end_come_back_in_their_order(dispatch):
    dispatch.rules = unlimited()
    for _ in range(120):
        dispatch.put("a")
    taken = dispatch.claim(want=100).tasks
    # Renewed in another order, so that they end in another order.
    for start in (60, 0, 30):
        dispatch.now += 60
        dispatch.renew(taken[start : start + 40])
    dispatch.let_a_lease_pass()
    dispatch.claim_all(queues=["other"])
    again = dispatch.claim_all(want=7)
    assert [task.lease for task in again] == [
        f"t{n}.{2 if n <= 100 else 1}.w1" for n in range(1, 121)
    ]


def test_tasks_that_wait_for_their_time_come_in_its_order_and_behind_what_waits(dispatch):
    dispatch.rules = unlimited()
    for number, eta in enumerate([3000, 1000, 2000] + [1500] * 11):
        assert dispatch.put("a", tag=f"e{number}", eta_ms=NOW + eta) is Put.WAITS_FOR_ITS_TIME
    assert dispatch.put("a", tag="past", eta_ms=NOW) is Put.WAITS
    assert dispatch.run(calls.SIZE, calls.size_args("q")) == [1, 14]
    assert dispatch.tags_of(dispatch.claim()) == ["past"]
    assert dispatch.claim().sleep_ms == 1000
    dispatch.now += 700
    assert dispatch.claim().sleep_ms == 300
    dispatch.put("a", tag="before")
    dispatch.now += 2300
    order = ["before", "e1", *(f"e{n}" for n in range(3, 14)), "e2", "e0"]
    assert dispatch.tags_of(dispatch.claim(want=20)) == order


def test_a_time_that_comes_sooner_wakes_who_sleeps(dispatch, client):
    bell = PREFIX + "wakeup:q"
    dispatch.put(eta_ms=NOW + 9000)
    assert client.lpop(bell)
    dispatch.put(eta_ms=NOW + 9500)
    assert not client.exists(bell)
    dispatch.put(eta_ms=NOW + 500)
    assert client.lpop(bell)


def test_a_rank_goes_before_another_and_what_came_back_before_the_rest_of_it(dispatch):
    dispatch.rules = unlimited()
    for rank in (0, 5, 0, 9, 5):
        dispatch.put("a", rank=rank)
    taken = dispatch.claim(want=2).tasks
    assert [task.lease for task in taken] == ["t4.1.w1", "t2.1.w1"]
    assert dispatch.settle(taken, Verdict.HEAD) == [Settled.SETTLED] * 2
    assert dispatch.tags_of(dispatch.claim()) == ["t4", "t2", "t5", "t1", "t3"]


# -- leases ---------------------------------------------------------------------------------------


def test_an_end_that_comes_late_withdraws_a_task_that_waits_and_no_other(dispatch, client):
    dispatch.put("a")
    (task,) = dispatch.claim().tasks
    dispatch.let_a_lease_pass()
    dispatch.claim(want=1, queues=["other"])
    assert dispatch.settle([task], Verdict.BEGUN) == [Settled.LATE]
    assert dispatch.settle([task]) == [Settled.WITHDRAWN]
    assert dispatch.settle([task]) == [Settled.LATE]
    assert dispatch.claim().tasks == ()
    assert not client.exists(PREFIX + "tasks", PREFIX + "ids", PREFIX + "running")
    dispatch.put("a", tag="second")
    (task,) = dispatch.claim().tasks
    dispatch.let_a_lease_pass()
    (again,) = dispatch.claim().tasks
    assert dispatch.settle([task]) == [Settled.LATE]
    assert dispatch.settle([again]) == [Settled.SETTLED]


@pytest.mark.parametrize(("lease_ms", "sleep_ms"), [(1_000, 333), (15_000, 1_000)])
def test_who_sleeps_as_it_is_told_sees_the_end_of_a_lease_in_time(dispatch, lease_ms, sleep_ms):
    dispatch.rules = Rules(lease_ms=lease_ms)
    dispatch.put("a")
    dispatch.claim()
    slept = []
    while not (again := dispatch.claim()).tasks:
        slept.append(again.sleep_ms)
        dispatch.now += again.sleep_ms
    assert set(slept) == {sleep_ms}
    assert dispatch.now - NOW < lease_ms + sleep_ms


def test_a_task_that_kills_its_process_becomes_a_dead_letter(dispatch, client):
    dispatch.rules = Rules(max_deliveries=3)
    dispatch.put("a", tag="poison")
    # A lease that ended before the body began is no death.
    dispatch.claim()
    dispatch.let_a_lease_pass()
    for verdict in (Verdict.DIED, None, Verdict.DIED):
        assert not client.exists(PREFIX + "dead:q")
        (task,) = dispatch.claim().tasks
        assert dispatch.settle([task], Verdict.BEGUN) == [Settled.SETTLED]
        if verdict:
            dispatch.settle([task], verdict)
        else:
            dispatch.let_a_lease_pass()
    assert dispatch.claim().tasks == ()
    assert dispatch.letters() == ["of poison"]
    assert client.hget(PREFIX + "counters", "dead_lettered") == "1"
    # It is kept, so it is known.
    assert dispatch.put("a", tag="poison") is Put.KNOWN


def test_an_acknowledged_task_is_never_delivered_again(dispatch, client):
    dispatch.put("a")
    (task,) = dispatch.claim().tasks
    assert dispatch.settle([task], Verdict.ACKED) == [Settled.SETTLED]
    assert dispatch.settle([task], Verdict.BEGUN) == [Settled.SETTLED]
    dispatch.put("a")
    assert dispatch.claim().tasks == (), "it keeps its slot"
    dispatch.let_a_lease_pass()
    assert dispatch.tags_of(dispatch.claim()) == ["t2"]
    assert client.hget(PREFIX + "counters", "abandoned") == "1"


def lose(dispatch, *verdicts, **fields):
    """Let a task's worker die, after it had told Redis what `verdicts` say of the task."""
    dispatch.put("a", **fields)
    (task,) = dispatch.claim(queues=[fields.get("queue", "q")]).tasks
    for verdict in verdicts:
        dispatch.settle([task], verdict)
    dispatch.let_a_lease_pass()
    return task


def test_a_task_that_was_lost_with_its_worker_leaves_an_outcome(dispatch, client):
    lose(dispatch, Verdict.BEGUN, Verdict.ACKED, queue="größe q\n 1")
    # A worker that claims nothing sees the end of a lease too.
    found = dispatch.next_outcome()
    assert (found.owner, found.state, found.queue) == ("w1", "acked", "größe q\n 1")
    assert (found.tenant, found.deaths, found.message) == ("a", 0, "of t1")
    assert client.hget(PREFIX + "counters", "abandoned") == "1"
    assert dispatch.next_outcome(found.name) is None
    assert not client.exists(*(PREFIX + each for each in ("outcomes", "tasks", "running")))


@pytest.mark.parametrize("reported", [True, False])
def test_a_dead_letter_leaves_an_outcome_and_is_kept(dispatch, client, reported):
    dispatch.rules = Rules(max_deliveries=2)
    lose(dispatch, Verdict.BEGUN)
    assert dispatch.next_outcome() is None, "it waits again"
    (task,) = dispatch.claim().tasks
    dispatch.settle([task], Verdict.BEGUN)
    if reported:
        dispatch.settle([task], Verdict.DIED)
    else:
        dispatch.let_a_lease_pass()
    found = dispatch.next_outcome()
    assert (found.state, found.queue, found.deaths) == ("dead", "q", 2)
    assert dispatch.next_outcome(found.name) is None
    assert dispatch.letters() == ["of t1"]


@pytest.mark.parametrize("verdicts", [(), (Verdict.BEGUN,), (Verdict.ACKED, Verdict.DONE)])
def test_a_task_that_waits_again_or_was_told_leaves_none(dispatch, verdicts):
    lose(dispatch, *verdicts)
    assert dispatch.next_outcome() is None


def test_an_outcome_whose_record_was_deleted_is_forgotten(dispatch, client):
    lose(dispatch, Verdict.ACKED)
    client.hdel(PREFIX + "tasks", "t1")
    assert dispatch.next_outcome() is None
    assert not client.exists(PREFIX + "outcomes")


def test_an_outcome_that_nobody_wrote_is_handed_out_again_after_a_lease(dispatch):
    lose(dispatch, Verdict.ACKED)
    found = dispatch.next_outcome()
    assert dispatch.next_outcome() is None
    dispatch.let_a_lease_pass()
    assert dispatch.next_outcome() == found
    assert dispatch.next_outcome(found.name) is None
    dispatch.let_a_lease_pass()
    assert dispatch.next_outcome() is None


def test_a_result_that_is_written_late_deletes_no_later_outcome(dispatch):
    dispatch.rules = Rules(max_deliveries=1)
    lose(dispatch, Verdict.BEGUN)
    first = dispatch.next_outcome()
    assert first.state == "dead"
    # While a worker writes its result, a person requeues the dead letter, and cancels it.
    assert dispatch.run(calls.REQUEUE, ["t1"]) == 1
    args = calls.cancel_args(["t1"], dispatch.rules.lease_ms, str(dispatch.now))
    assert dispatch.run(calls.CANCEL, args) == [1]
    second = dispatch.next_outcome(first.name)
    assert second.state == "cancelled"
    assert dispatch.next_outcome(second.name) is None
    assert dispatch.find("t1") is None


def test_a_requeued_dead_letter_is_reported_as_a_new_task(dispatch, client):
    dispatch.rules = Rules(max_deliveries=1)
    lose(dispatch, Verdict.BEGUN)
    assert dispatch.next_outcome().state == "dead"
    assert dispatch.run(calls.REQUEUE, ["t1"]) == 1
    assert len(dispatch.claim().tasks) == 1
    told = [fields["type"] for _, fields in client.xrange(PREFIX + "events")]
    assert told[-1] == "fairness.requeued", "its death is no rejection that ends with a start"


def test_outcomes_are_handed_out_one_at_a_time_and_the_oldest_first(dispatch):
    for number in (3, 1, 2):
        lose(dispatch, Verdict.ACKED, tag=f"t{number}")
        dispatch.claim(queues=["other"])
    found, written = [], ""
    while outcome := dispatch.next_outcome(written):
        found.append(outcome.message)
        written = outcome.name
    assert found == ["of t3", "of t1", "of t2"]


def test_a_claim_whose_answer_was_lost_is_answered_again(dispatch):
    dispatch.rules = unlimited()
    for _ in range(4):
        dispatch.put("a")
    first = dispatch.claim(want=2, number=7)
    assert dispatch.claim(want=4, number=7) == first
    dispatch.settle(first.tasks[:1])
    assert dispatch.claim(want=2, number=7).tasks == first.tasks[1:]
    assert dispatch.tags_of(dispatch.claim(want=2, number=8)) == ["t3", "t4"]


def test_leases_of_a_lost_memory_are_counted_until_they_are_settled(dispatch, client):
    dispatch.put("a")
    (task,) = dispatch.claim().tasks
    epoch, _ = dispatch.renew([task])
    client.flushall()
    dispatch.now += 100
    dispatch.put("a")
    new_epoch, gone = dispatch.renew([task], epoch)
    assert (new_epoch != epoch, gone) == (True, [1])
    assert dispatch.claim().tasks == ()
    dispatch.let_a_lease_pass(kept=[task])
    assert dispatch.claim().tasks == (), "it is renewed"
    assert dispatch.settle([task]) == [Settled.SETTLED]
    assert dispatch.tags_of(dispatch.claim()) == ["t2"]


def test_leases_have_no_lifetime_that_could_forget_who_must_wait_again(dispatch, client):
    dispatch.put("a")
    (task,) = dispatch.claim().tasks
    dispatch.renew([task])
    for key in ("leases:tenant:a", "ends", "running", "tasks", "messages", "ids"):
        assert client.ttl(PREFIX + key) == -1


def test_a_tenant_that_opened_unseen_is_back_in_all_rings_at_its_next_start(dispatch, client):
    gate = PREFIX + "leases:tenant:a"
    client.zadd(gate, {"gate": NOW + 60_000})
    dispatch.put("a", queue="p")
    assert dispatch.claim(queues=["p"]).tasks == ()
    client.zrem(gate, "gate")
    dispatch.put("a", queue="q", tag="other")
    assert dispatch.tags_of(dispatch.claim(queues=["q"])) == ["other"]
    assert client.zrange(PREFIX + "active:p", 0, -1) == ["tenant:a"]
    assert client.exists(PREFIX + "wakeup:p")


def test_the_end_of_a_lease_whose_task_is_not_here_is_seen_at_once(dispatch):
    for number in range(40):
        dispatch.hold(f"gate{number}", f"tenant:a{number:02}")
        dispatch.put(f"a{number:02}")
    assert dispatch.claim_all() == []
    assert dispatch.end("gate39") is Settled.SETTLED
    assert dispatch.tags_of(dispatch.claim(want=9)) == ["t40"]


# -- tenants --------------------------------------------------------------------------------------


def test_each_service_of_a_tenant_counts_apart(dispatch):
    for service in ("analysis", "specview"):
        for _ in range(2):
            dispatch.put("a", service=service, queue=f"{service} default")
    queues = ["analysis default", "specview default"]
    taken = dispatch.claim(queues=queues).tasks
    assert [task.key for task in taken] == ["tenant:a:analysis", "tenant:a:specview"]
    dispatch.settle(taken[1:])
    assert dispatch.tags_of(dispatch.claim(queues=queues)) == ["t4"]
    dispatch.publish_tenant("a", "none")
    dispatch.publish_tiers(free=0, none=2)
    assert dispatch.tags_of(dispatch.claim(queues=queues)) == ["t2"]


def test_one_limit_holds_over_all_queues_and_a_free_slot_is_offered_to_each(dispatch, client):
    for queue in ("p", "q", "nobody's"):
        dispatch.put("a", queue=queue)
        dispatch.put("a", queue=queue)
    (task,) = dispatch.claim(queues=["p", "q", "nobody's"]).tasks
    dispatch.settle([task])
    (task,) = dispatch.claim(queues=["q"]).tasks
    assert (task.queue, client.exists(PREFIX + "wakeup:nobody's")) == ("q", 1)


HOSTILE = [" ", "a b", "a|b", "a\nb", "q 0 q", "größe", "😀", "a\0b", "{x}", "%d %s", "*", "\t"]
HOSTILE.append("x" * 300)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_queue_or_tenant_may_have_any_name(dispatch, client, name):
    tenant = key_part(name)
    for eta in (0, 0, NOW + 500):
        dispatch.put(tenant, queue=name, eta_ms=eta)
    dispatch.put(queue=name)
    taken = dispatch.claim(queues=[name]).tasks
    assert sorted(dispatch.tags_of(dispatch.claim(queues=[name], number=1))) == ["t1", "t4"]
    assert {task.queue for task in taken} == {name}
    dispatch.settle(taken, Verdict.BEGUN)
    assert dispatch.settle(taken, Verdict.HEAD) == [Settled.SETTLED] * 2
    dispatch.now += 500
    seen = []
    for _ in range(4):
        answer = dispatch.claim(queues=[name])
        seen += dispatch.tags_of(answer)
        dispatch.settle(answer.tasks)
    assert sorted(seen) == ["t1", "t2", "t3", "t4"]
    left = {key.removeprefix(PREFIX) for key in client.keys(PREFIX + "*")}
    kept = {"clock", "counters", "events", "last_answer:w1", MINUTE}
    assert left == kept


@pytest.mark.parametrize("field", ["tag", "tenant", "service", "tier"])
@pytest.mark.parametrize("word", ["a b", "a\n"])
def test_a_put_that_nobody_could_read_is_rejected_whole(dispatch, client, field, word):
    with pytest.raises(Exception, match="expected words without a space"):
        dispatch.put(**{"tenant": "a", field: word})
    assert client.keys("*") == []


@pytest.mark.parametrize("position", [5, 6, 7])
def test_a_put_whose_numbers_are_none_is_rejected_whole(dispatch, client, position):
    queue, text, *rest = calls.put_args(Waiting("q", "t1", "a", "s", "gold", 5))
    words = text.split(" ")
    words[position] = "many"
    args = [queue, " ".join(words), *rest]
    with pytest.raises(Exception, match="and numbers, got: t1 a s gold 5"):
        dispatch.run(calls.PUT, args)
    assert client.keys("*") == []


def test_an_owner_that_nobody_could_read_is_rejected(dispatch, client):
    with pytest.raises(Exception, match="expected an owner without a space"):
        dispatch.run(calls.CLAIM, calls.claim_args("a b", 1, 1, ["q"], RULES))
    assert client.keys("*") == []


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, 0.0, 1e300, 1e-300])
def test_no_cost_stops_a_queue_or_lets_a_tenant_run_for_ever(dispatch, cost):
    dispatch.rules = unlimited(fairness_by="cost")
    for _ in range(3):
        dispatch.put("a", cost=cost)
    for _ in range(3):
        dispatch.put("b")
    order = [task.key[-1] for task in dispatch.claim().tasks]
    assert sorted(order) == ["a"] * 3 + ["b"] * 3
    assert order[:2] == ["a", "b"] or cost <= 1e-300


def test_a_later_put_with_a_higher_tier_opens_its_tenant(dispatch, client):
    dispatch.publish_tiers(free=1, pro=2)
    for _ in range(3):
        dispatch.put("a", tier="free")
    assert len(dispatch.claim().tasks) == 1
    assert dispatch.claim().sleep_ms == 1000
    client.delete(PREFIX + "wakeup:q")
    dispatch.put("a", tier="pro")
    assert client.exists(PREFIX + "wakeup:q")
    assert dispatch.tags_of(dispatch.claim()) == ["t2"]
    # A task of before that comes back knows no better, nor does a producer that knows no tier.
    dispatch.put("a", tier="")
    assert client.hget(PREFIX + "tenant_state:tenant:a", "tier") == "pro"


def test_a_tier_that_is_forgotten_is_no_longer_in_force(dispatch, client):
    dispatch.publish_tiers(free=1, held=0)
    dispatch.publish_tenant("a", "held", keep_ms=600_000)
    dispatch.put("a", tier="free")
    assert dispatch.claim().tasks == ()
    client.delete(PREFIX + "tenant:a")
    for _ in range(200):
        dispatch.now += 4_000
        dispatch.renew([])
    assert dispatch.tags_of(dispatch.claim()) == ["t1"]


def test_whoever_enforces_nothing_starts_what_is_full_and_nothing_that_is_paused(dispatch):
    for tenant in ("a", "b"):
        dispatch.put(tenant, tier=tenant)
        dispatch.put(tenant, tier=tenant)
    dispatch.publish_tiers(free=1, a=1, b=0)
    assert dispatch.tags_of(dispatch.claim()) == ["t1"]
    assert dispatch.claim().sleep_ms == 1000
    off = Rules(enforcement="off")
    assert dispatch.tags_of(dispatch.claim(rules=off)) == ["t2"]
    assert dispatch.claim(rules=off).sleep_ms == 1000
    dispatch.publish_tiers(free=1, a=1, b=1)
    assert dispatch.tags_of(dispatch.claim()) == ["t3"]
