"""What ``explain`` and ``cancel`` can say of tasks behind the gate."""

from __future__ import annotations

import json

import pytest

from celery_fairness.errors import NotFound
from celery_fairness.limiter.types import Admitted, Job, Lease, Parking, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.util.ids import new_lease_id
from tests.support.parts import parts_of

WORD = "api|C1|w"


@pytest.fixture
def fairness(client, redis_url, make_fairness):
    client.flushdb()
    return make_fairness(url=redis_url)


def ask(name: str, serial: str = "", word: str = WORD) -> SlotRequest:
    lease = Lease(new_lease_id(name), "api")
    return SlotRequest(lease, "", "", Copy(name, serial), "n", word, Job(name, "shop.pay", "q"))


@pytest.mark.parametrize("command", ["explain", "cancel"])
def test_a_task_that_is_not_parked_may_be_on_its_broker_or_run(run, fairness, command):
    done = run("task", command, "snoozed", of=fairness)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "celery fairness: task 'snoozed' is not parked in Redis: it may be on its broker, in its "
        "queue or until its snooze ends, or it runs, or has ended; to find out: celery -A "
        "APP inspect query_task ID, and the workers' logs; to cancel it where it is: celery "
        "-A APP control revoke ID\n"
    )


def test_who_holds_a_limit_is_named_where_redis_knows_it(run, fairness):
    limiter = parts_of(fairness).limiter
    first = ask("first")
    assert isinstance(limiter.acquire(first), Admitted)
    assert isinstance(limiter.acquire(ask("second")), Rejected)
    limiter.release([first.lease])
    assert isinstance(limiter.acquire(ask("second", "n")), Admitted)
    message = json.dumps({"headers": {"id": "third", "task": "shop.pay"}, "routing_key": "q"})
    third = ask("third")
    assert isinstance(limiter.acquire(third), Rejected)
    assert limiter.park(third, message) is Parking.PARKED
    ((holder,),) = [each.holders for each in fairness.tasks.explain("third").blocked_by]
    assert (holder.task_id, holder.task, holder.queue) == ("second", "shop.pay", "q")
    assert "second" in run("task", "explain", "third", of=fairness).output
    (lease,) = fairness.limits.inspect("api").leases
    assert (lease.task_id, lease.task) == ("second", "shop.pay")


@pytest.mark.parametrize("act", ["explain", "cancel"])
def test_an_id_is_found_by_as_many_commands_however_many_tasks_are_parked(fairness, client, act):
    limiter, used = parts_of(fairness).limiter, []
    assert isinstance(limiter.acquire(ask("holder")), Admitted)

    def park(name):
        message = {"headers": {"id": name, "task": "shop.pay"}, "routing_key": "q"}
        assert isinstance(limiter.acquire(ask(name)), Rejected)
        assert limiter.park(ask(name), json.dumps(message)) is Parking.PARKED

    def commands():
        return sum(each["calls"] for each in client.info("commandstats").values())

    park("first")
    getattr(fairness.tasks, act)("first")
    for more in (3, 100):
        for number in range(more):
            park(f"other{more}.{number}")
        park(f"ours{more}")
        # The clock is due, however fast this machine is.
        client.hincrby("{fairness}:clock", "seen", -50)
        before = commands()
        getattr(fairness.tasks, act)(f"ours{more}")
        used.append(commands() - before)
    assert used[0] == used[1]


@pytest.fixture
def promoted(fairness):
    """A task that was parked, and that a promoter has taken."""
    limiter = parts_of(fairness).limiter
    holder, parked = ask("holder"), ask("parked")
    assert isinstance(limiter.acquire(holder), Admitted)
    assert isinstance(limiter.acquire(parked), Rejected)
    message = {"headers": {"id": "parked", "task": "shop.pay"}, "routing_key": "q"}
    assert limiter.park(parked, json.dumps(message)) is Parking.PARKED
    limiter.release([holder.lease])
    (task,) = limiter.promote(1).tasks
    return task


def test_the_index_of_ids_forgets_a_task_that_is_on_its_broker_again(fairness, client, promoted):
    assert client.hgetall("{fairness}:ids") == {"parked": "parked"}
    parts_of(fairness).limiter.end_promotion(promoted, "sent")
    assert client.exists("{fairness}:ids") == 0


def test_a_promoted_task_is_parked_until_its_broker_has_it(run, fairness, promoted):
    found = fairness.tasks.explain("parked")
    assert (found.state, found.queue, found.owner, found.limits) == ("parked", "q", "", ())
    assert run("task", "explain", "parked", of=fairness).output.splitlines() == [
        "task shop.pay[parked] of _system, queue q",
        "no worker takes queue q: start one with -Q q",
        "no limit blocks it: a worker brings it back to its queue in its turn",
    ]
    # It is being published, so it cannot be cancelled here.
    with pytest.raises(NotFound):
        fairness.tasks.cancel("parked")
    (lease,) = fairness.limits.inspect("api").leases
    assert (lease.state, lease.queue, lease.task_id) == ("promoted", "q", "parked")
    parts_of(fairness).limiter.end_promotion(promoted, "sent")
    with pytest.raises(NotFound):
        fairness.tasks.explain("parked")
    (lease,) = fairness.limits.inspect("api").leases
    assert (lease.state, lease.queue, lease.task, lease.task_id) == (
        "sent",
        "",
        "shop.pay",
        "parked",
    )


def test_a_task_that_could_not_be_published_waits_for_its_next_try(run, fairness, promoted):
    parts_of(fairness).limiter.end_promotion(promoted, "unsent")
    found = fairness.tasks.explain("parked")
    assert (found.state, found.put_back_by) == ("parked", "")
    assert 0 < found.due_in_seconds <= fairness.settings.lease_seconds / 16
    assert "waits for its next try, " in run("task", "explain", "parked", of=fairness).output
    cancelled = fairness.tasks.cancel("parked")
    assert (cancelled.state, cancelled.queue) == ("cancelled", "q")
    assert fairness.check().findings == ()
