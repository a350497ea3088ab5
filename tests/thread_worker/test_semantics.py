"""What a tenant's tasks look like to those who send them, with one worker and a real Redis."""

from __future__ import annotations

import pytest
from celery import chain, chord, group
from celery.result import GroupResult

from tests.support.waiting import at_most, eventually


def get(result):
    """Ask for the result until it is there: nobody is subscribed."""
    eventually(result.ready, timeout_seconds=at_most(15.0))
    if isinstance(result, GroupResult):
        return [get(each) for each in result]
    assert result.successful(), result.traceback
    return result.result


def test_a_task_over_the_limit_waits_and_runs(yard):
    first = yard.work.delay("a", wait=True)
    eventually(lambda: yard.meter.now("a") == 1)
    second = yard.work.delay("a")
    eventually(lambda: yard.rejected() >= 2)
    assert yard.meter.now("a") == 1
    assert second.state == "PENDING"
    yard.permits.release()
    assert (get(first), get(second)) == (0, 0)
    assert yard.meter.most == {"a": 1}
    assert yard.fairness.stats.rejections().tiers.keys() == {"free"}
    eventually(lambda: yard.held("a") == 0)


def test_other_tenants_and_system_tasks_do_not_wait(yard):
    first = yard.work.delay("a", wait=True)
    eventually(lambda: yard.meter.now("a") == 1)
    assert get(yard.work.delay("b")) == 0
    assert get(yard.work.delay()) == 0
    assert yard.meter.now("a") == 1
    yard.permits.release()
    get(first)


def test_waiting_costs_none_of_the_users_retries(yard):
    first = yard.work.delay("a", wait=True)
    eventually(lambda: yard.meter.now("a") == 1)
    second = yard.work.delay("a", fail_times=2)
    eventually(lambda: yard.rejected() >= 5)
    yard.permits.release()
    get(first)
    # max_retries is 2, and both were left.
    assert get(second) == 2


def test_a_retry_frees_the_slot_and_takes_one_again(yard):
    assert get(yard.work.delay("a", fail_times=2)) == 2
    assert yard.meter.ended == ["a"] * 3
    assert yard.meter.most == {"a": 1}


@pytest.mark.parametrize("user", ["a", None])
def test_a_chain_of_one_tenant_does_not_stand_in_its_own_way(yard, user):
    steps = chain(yard.work.si(user) for _ in range(5))
    get(steps.apply_async())
    assert yard.meter.ended == [user] * 5
    # The slot of a step is free before the next is sent.
    assert yard.rejected() == 0


def test_a_group_of_one_tenant_runs_one_at_a_time(yard):
    result = group(yard.work.si("a") for _ in range(6)).apply_async()
    assert get(result) == [0] * 6
    assert yard.meter.most == {"a": 1}


def test_a_chord_of_one_tenant_ends_in_its_callback_once(yard):
    result = chord([yard.work.si("a") for _ in range(4)], yard.total.s()).apply_async()
    assert get(result) == 0
    assert yard.calls == [[0] * 4]


def test_a_link_runs_once_after_a_task_that_waited(yard):
    first = yard.work.delay("a", wait=True)
    eventually(lambda: yard.meter.now("a") == 1)
    second = yard.work.apply_async(("a",), link=yard.plain.s())
    eventually(lambda: yard.rejected() >= 2)
    yard.permits.release()
    get(first)
    get(second)
    eventually(lambda: yard.calls == [0])


def test_a_client_never_sees_a_waiting_task_started(yard):
    yard.app.conf.task_track_started = True
    states = set()
    first = yard.work.delay("a", wait=True)
    eventually(lambda: yard.meter.now("a") == 1)
    second = yard.work.delay("a")

    def look():
        states.add(second.state)
        return yard.rejected() >= 4

    eventually(look)
    assert states == {"PENDING"}
    yard.permits.release()
    get(first)
    get(second)


def test_a_task_that_expires_while_it_waits_does_not_run(yard):
    first = yard.work.delay("a", wait=True)
    eventually(lambda: yard.meter.now("a") == 1)
    second = yard.work.apply_async(("a",), expires=0.3)
    eventually(lambda: second.state == "REVOKED")
    yard.permits.release()
    get(first)
    assert yard.meter.ended == ["a"]


def test_a_message_of_another_language_is_charged_by_its_header(yard):
    first = yard.work.delay("a", wait=True)
    eventually(lambda: yard.meter.now("a") == 1)
    header = {"v": 1, "tenant": "a", "tier": "free", "unknown": [1]}
    # By its arguments it would be b's.
    second = yard.app.send_task("yard.work", ("b",), headers={"fairness": header})
    eventually(lambda: yard.rejected() >= 2)
    yard.permits.release()
    get(first)
    get(second)
    assert yard.meter.ended == ["a", "b"]


def test_a_header_that_cannot_be_read_runs_and_is_counted(yard):
    result = yard.app.send_task("yard.work", ("b",), headers={"fairness": {"v": 99}})
    assert get(result) == 0
    assert yard.fairness.stats.counters() == {"invalid": 1}


def test_a_body_that_sends_a_task_of_its_tenant_does_not_wait_for_itself(yard):
    child = get(yard.parent.delay("a"))
    assert get(yard.app.AsyncResult(child)) == 0


class TestChanges:
    """A change of a tier acts on what waits, and kills nothing that runs."""

    def test_an_upgrade_lets_waiting_tasks_run(self, yard):
        results = [yard.work.delay("a", wait=True) for _ in range(3)]
        eventually(lambda: yard.rejected() >= 2)
        assert yard.meter.now("a") == 1
        yard.fairness.tenants.set_tier("a", "pro")
        eventually(lambda: yard.meter.now("a") == 3)
        yard.permits.release(3)
        assert [get(result) for result in results] == [0, 0, 0]

    def test_a_downgrade_while_five_run_kills_none_and_starts_none(self, yard):
        yard.fairness.tenants.set_tier("a", "enterprise")
        results = [yard.work.delay("a", wait=True) for _ in range(5)]
        eventually(lambda: yard.meter.now("a") == 5)
        yard.fairness.tenants.set_tier("a", "free")
        results += [yard.work.delay("a", wait=True) for _ in range(2)]
        before = yard.rejected()
        eventually(lambda: yard.rejected() >= before + 2)
        for left in (4, 3, 2, 1):
            yard.permits.release()
            eventually(lambda left=left: yard.held("a") == left)
            seen = yard.rejected()
            # Those that wait asked again, and were told no.
            eventually(lambda seen=seen: yard.rejected() >= seen + 2)
            assert yard.meter.now("a") == left
        for _ in range(3):
            yard.permits.release()
        assert [get(result) for result in results] == [0] * 7
        assert yard.meter.most == {"a": 5}

    def test_a_pause_and_its_end(self, yard):
        yard.fairness.tenants.set_tier("a", "free", concurrency=0)
        result = yard.work.delay("a")
        eventually(lambda: yard.rejected() >= 2)
        assert yard.meter.ended == []
        yard.fairness.tenants.set_tier("a", "free")
        assert get(result) == 0
