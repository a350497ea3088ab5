"""What parked tasks cost: nothing where there are none, and no more where there are many."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.types import (
    Admitted,
    Job,
    Lease,
    Parking,
    Reason,
    Rejected,
    SlotRequest,
)
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.store.keys import Names
from tests.support.tables import exceeded_in

NAMES = Names("fairness")
WORD = "api|C1|w"
#: Commands of the dearest call for one task with a limit and a tenant, its own FCALL included.
MOST_COMMANDS = 70
BELL = NAMES.of("wakeup", PARKED_QUEUES)


def ask(name, word=WORD):
    lease = Lease(name, f"tenant:42,{word.partition('|')[0]}")
    return SlotRequest(lease, "42", "pro", Copy(name), f"n{name}", word)


@pytest.fixture
def make_limiter(make_limiter):
    """A factory of limiters; all workers have published the tiers."""

    def make(**options):
        limiter = make_limiter(**options)
        limiter.publish_tiers([Tier("free", 1), Tier("pro", 9)], "settings")
        return limiter

    return make


def park(limiter, *names):
    for name in names:
        assert limiter.park(ask(name), "message") is Parking.PARKED


def promote(limiter, want=16):
    return limiter.promote(want).tasks


def came(limiter, task, lease, word=WORD):
    """The copy of a promoted task comes to a gate."""
    limiter.end_promotion(task, "sent")
    return limiter.acquire(replace(ask("again", word), lease=lease, copy=task.copy))


def cancel(limiter, clock, *tags):
    args = calls.cancel_args(tags, 15_000, str(clock.now_ms))
    return limiter.connection.run(calls.CANCEL, NAMES.prefix, args)


def test_commands_do_not_grow_with_what_is_parked(make_limiter, client, commands):
    limiter = make_limiter(frozen=True)

    def cost():
        held = ask("held").lease
        with commands() as promoted:
            (task,) = promote(limiter, 1)
        with commands() as arrived:
            came(limiter, task, held)
        with commands() as freed:
            limiter.release([held])
        with commands() as rejected:
            limiter.acquire(ask("newcomer"))
        return promoted, arrived, freed, rejected

    limiter.acquire(ask("held"))
    park(limiter, *(f"a{n:05}" for n in range(6)))
    limiter.release([ask("held").lease])
    for _ in range(2):
        few = cost()
    limiter.acquire(ask("held"))
    park(limiter, *(f"b{n:05}" for n in range(2_000)))
    limiter.release([ask("held").lease])
    many = cost()
    assert many == few
    assert max(sum(ran.values()) for ran in few) <= MOST_COMMANDS, few


def test_nothing_is_left_of_tasks_that_came_to_a_gate(make_limiter, client):
    limiter = make_limiter(frozen=True)

    def keys():
        # What stays for a while: the memory of copies and of rates, and the last answer.
        kept = ("copy:", "window:", "last_answer:", "stats:")
        names = (key.removeprefix(NAMES.prefix) for key in client.scan_iter(f"{NAMES.prefix}*"))
        return {name for name in names if not name.startswith(kept)}

    limiter.acquire(ask("held"))
    limiter.release([ask("held").lease])
    promote(limiter)
    before = keys()
    limiter.acquire(ask("held"))
    park(limiter, "a", "b")
    limiter.release([ask("held").lease])
    for name in "ab":
        (task,) = promote(limiter)
        lease = ask(f"again{name}").lease
        assert isinstance(came(limiter, task, lease), Admitted)
        limiter.release([lease])
    promote(limiter)
    assert keys() - {BELL.removeprefix(NAMES.prefix)} == before


@pytest.mark.parametrize("name", ["a b", "42\n7", "{x}", "é" * 90, "h_" + "0" * 32])
def test_a_tenant_of_any_letters_is_parked_and_comes_back(make_limiter, name):
    limiter = make_limiter(frozen=True, tier_on_limit="wait")
    key = NAMES.tenant(name).removeprefix(NAMES.prefix)

    def of(id_):
        return SlotRequest(Lease(id_, key), name, "free", Copy(id_), f"n{id_}")

    limiter.acquire(of("held"))
    assert limiter.park(of("a"), "message\nwith a line") is Parking.PARKED
    limiter.release([of("held").lease])
    (task,) = promote(limiter)
    assert task.message == "message\nwith a line"


def test_a_newcomer_behind_those_that_wait_is_rejected_by_the_concurrency_of_their_limit(
    make_limiter, client
):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a")
    limiter.release([ask("held").lease])
    assert isinstance(limiter.acquire(ask("newcomer")), Rejected)
    assert exceeded_in(client.hgetall(NAMES.counters)) == {"concurrency api": "1"}


def test_a_slot_that_frees_rings_where_somebody_waits_for_it(make_limiter, client):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    limiter.acquire(ask("other", "mail|C9|w"))
    park(limiter, "a")
    client.delete(BELL)
    limiter.release([ask("other", "mail|C9|w").lease])
    assert client.llen(BELL) == 0
    limiter.release([ask("held").lease])
    assert client.llen(BELL) == 1


def test_a_parked_task_wakes_nobody_and_takes_no_wake_up_of_another_away(make_limiter, client):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a")
    assert client.llen(BELL) == 0
    client.rpush(BELL, "1")
    park(limiter, "b")
    assert client.llen(BELL) == 1


def test_a_renewal_that_ends_a_lost_lease_wakes_where_somebody_waits(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a")
    client.delete(BELL)
    # The logical clock advances by at most a third of a lease in a call.
    for _ in range(3):
        clock.advance(limiter.lease_ms / 3_000)
        assert client.llen(BELL) == 0
        limiter.renew([])
    assert client.llen(BELL) == 1


def test_a_limit_that_opens_in_a_millisecond_is_not_open(make_limiter, clock):
    limiter, word = make_limiter(frozen=True), "api|R1/100|w"
    limiter.acquire(ask("first", word))
    clock.advance(0.1)
    assert limiter.park(ask("a", word), "message") is Parking.PARKED
    clock.advance(0.001)
    (task,) = promote(limiter)
    assert task.copy.message == "a"


MESSAGE = json.dumps({"headers": {"stamps": {"id": "no"}}, "routing_key": "celery"})
JOB = Job("4fd6", "shop.pay", "celery")


def emitted(client):
    events = [fields for _, fields in client.xrange(NAMES.events)]
    return [each for each in events if "job_id" in each and "fairness." in each["type"]]


@pytest.mark.parametrize("queue", ["celery", "two words", "@parked:one", ""])
def test_a_cancelled_task_is_reported_once_with_the_queue_it_came_from(
    make_limiter, client, clock, queue
):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    job = JOB._replace(queue=queue)
    assert limiter.park(replace(ask("a"), job=job), MESSAGE) is Parking.PARKED
    for _ in range(2):
        assert cancel(limiter, clock, "a") == [1]
    task = {"job_id": "4fd6", "job_type": "shop.pay", "queue": queue}
    assert emitted(client) == [{"type": "fairness.cancelled", **task}]


def test_one_that_expires_while_it_is_parked_is_reported_once(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    assert limiter.park(ask("a"), MESSAGE, expires_ms=clock.now_ms + 10) is Parking.PARKED
    assert (promote(limiter), emitted(client)) == ((), [])
    for _ in range(4):
        clock.now_ms += 5_000
        promote(limiter)
    assert [each["type"] for each in emitted(client)] == ["fairness.expired"]


def test_what_is_parked_is_of_one_broker_and_goes_back_there_alone(make_limiter, client):
    one, other = (make_limiter(frozen=True, broker=name) for name in ("one", "other"))
    one.acquire(ask("held"))
    park(one, "a")
    park(other, "b")
    one.release([ask("held").lease])
    assert one.acquire(ask("c")).reason is Reason.BEHIND_OTHERS
    (task,) = promote(one)
    assert task.copy.message == "a"
    assert promote(other) == ()
    assert isinstance(came(one, task, ask("a").lease), Admitted)
    one.release([ask("a").lease])
    (task,) = promote(other)
    assert task.copy.message == "b"


def test_a_copy_that_was_rejected_is_parked_whatever_it_would_have_published(make_limiter):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    asked = ask("a")
    assert isinstance(limiter.acquire(asked), Rejected)
    # Its rejection named another successor; which copy asks is what counts.
    assert limiter.park(replace(asked, next_serial="other"), "message") is Parking.PARKED


def test_a_task_without_a_tenant_waits_for_no_tier(make_limiter):
    none = {"free": {"concurrency": 0}}
    limiter = make_limiter(frozen=True, tier_on_limit="wait", tiers=none)

    def system(name):
        return SlotRequest(Lease(name, "api"), "", "", Copy(name), f"n{name}", WORD)

    limiter.acquire(system("held"))
    assert limiter.park(system("a"), "message") is Parking.PARKED
    limiter.release([system("held").lease])
    assert [task.copy.message for task in promote(limiter)] == ["a"]


def test_a_task_that_comes_with_other_limits_waits_at_those_alone(make_limiter, client):
    """Somebody changed the limits in the code while the task waited."""
    limiter, mail = make_limiter(frozen=True), "mail|C1|w"
    limiter.acquire(ask("held"))
    park(limiter, "a")
    limiter.release([ask("held").lease])
    (task,) = promote(limiter)
    limiter.end_promotion(task, "sent")
    limiter.acquire(ask("mail", mail))
    asked = replace(ask("a", mail), copy=task.copy, lease=Lease("la", "tenant:42,mail"))
    assert isinstance(limiter.acquire(asked), Rejected)
    assert limiter.park(asked, "message") is Parking.PARKED
    assert isinstance(limiter.acquire(ask("free")), Admitted)
    assert promote(limiter) == ()
    limiter.release([ask("mail", mail).lease])
    assert [each.copy.message for each in promote(limiter)] == ["a"]


def test_a_promotion_whose_answer_is_lost_is_given_again(make_limiter, monkeypatch):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a")
    limiter.release([ask("held").lease])
    run = limiter.connection.run

    def lost(name, *args):
        run(name, *args)
        raise ConnectionError

    monkeypatch.setattr(limiter.connection, "run", lost)
    with pytest.raises(ConnectionError):
        promote(limiter)
    monkeypatch.undo()
    assert [each.copy.message for each in promote(limiter)] == ["a"]


def test_a_parked_task_that_is_known_is_not_stored_twice(make_limiter, client):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a")
    # Redis answered, and the answer was lost.
    assert limiter.park(replace(ask("a"), copy=Copy("a", "na")), "message") is Parking.PARKED
    assert client.hlen(NAMES.tasks) == 1
