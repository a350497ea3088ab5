"""What parked tasks cost: nothing where there are none, and no more where there are many."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.types import (
    Admitted,
    Lease,
    Parking,
    Promotion,
    Reason,
    Rejected,
    SlotRequest,
)
from celery_fairness.message.headers import Copy
from celery_fairness.store.keys import Names

NAMES = Names("fairness")
WORD = "api|1|||w"
#: Commands of the dearest call for one task with a limit and a tenant, its own FCALL included.
MOST_COMMANDS = 60


def ask(name, word=WORD):
    lease = Lease(name, f"tenant:42,{word.partition('|')[0]}")
    return SlotRequest(lease, "42", "pro", Copy(name), f"n{name}", word)


def park(limiter, *names):
    for name in names:
        assert limiter.park(ask(name), "message") is Parking.PARKED


def gate_keys(client):
    return {key.removeprefix(NAMES.prefix) for key in client.scan_iter(f"{NAMES.prefix}gate_*")}


def test_who_parks_nothing_pays_a_word_of_the_clock_when_a_slot_frees(make_limiter, commands):
    limiter = make_limiter(frozen=True)
    lease = ask("l1").lease
    for _ in range(2):
        limiter.acquire(ask("l1"))
        with commands() as ran:
            limiter.release([lease])
    lease_ends = {"hget": 2, "hdel": 1, "zrem": 3}
    # Nothing waits in a lane for its keys. Its limit's key is known for a while.
    looks = {"hexists": 1, "exists": 2, "zadd": 1}
    assert ran == {"fcall": 1, "hmget": 1} | lease_ends | looks
    limiter.promote(16, "s")
    with commands() as ran:
        assert limiter.promote(16, "s").sleep_seconds is None
    assert ran == {"fcall": 1, "hmget": 1}


def test_commands_do_not_grow_with_what_is_parked(make_limiter, client, commands):
    limiter = make_limiter(frozen=True)

    def cost():
        held = ask("held").lease
        with commands() as promoted:
            (task,) = limiter.promote(1, "s").tasks
        request = ask(task.copy.message)
        again = SlotRequest(held, "42", "pro", task.copy, "again", request.limits)
        with commands() as came:
            limiter.acquire(again)
        with commands() as freed:
            limiter.release([held])
        with commands() as refused:
            limiter.acquire(ask("newcomer"))
        return promoted, came, freed, refused

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
    limiter.acquire(ask("held"))
    park(limiter, "a", "b")
    tables = {"gate_tasks", "gate_looks", "gate_bell", "gate_virtual", "gate_waiting"}
    tables |= {"gate_places:api", "gate_turns:api|#||", "gate_at:tenant:42 api|#||"}
    assert tables <= gate_keys(client)
    limiter.release([ask("held").lease])
    for name in "ab":
        # Not one more than is asked for: the key is to be looked at again.
        (task,) = limiter.promote(1, f"s{name}").tasks
        limiter.unpark([name])
        lease = ask(f"again{name}").lease
        limiter.acquire(SlotRequest(lease, "42", "pro", task.copy, "n", WORD))
        limiter.release([lease])
    assert gate_keys(client) == set()
    assert client.hget(NAMES.clock, "parked") is None


def test_no_expiry_is_left_of_a_task_whose_promoter_said_late_that_it_published_it(
    make_limiter, client, clock
):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    expires_ms = clock.now_ms + 60_000
    assert limiter.park(ask("a"), "message", expires_ms) is Parking.PARKED
    limiter.release([ask("held").lease])
    assert len(limiter.promote(16, "s").tasks) == 1
    wide = hold_wide(limiter)
    for _ in range(4):
        clock.advance(5)
        limiter.renew([wide.lease])
    assert limiter.promote(16, "s").tasks == ()
    assert "gate_expires" in gate_keys(client)
    limiter.unpark(["a"])
    assert "gate_expires" not in gate_keys(client)


@pytest.mark.parametrize("name", ["a b", "42\n7", "{x}", "é" * 90, "h_" + "0" * 32])
def test_a_tenant_of_any_letters_is_parked_and_comes_back(make_limiter, name):
    limiter = make_limiter(frozen=True, tier_on_limit="wait")
    key = NAMES.tenant(name).removeprefix(NAMES.prefix)

    def of(id_):
        return SlotRequest(Lease(id_, key), name, "free", Copy(id_), f"n{id_}")

    limiter.acquire(of("held"))
    assert limiter.park(of("a"), "message\nwith a line") is Parking.PARKED
    limiter.release([of("held").lease])
    (task,) = limiter.promote(16, "s").tasks
    assert task.message == "message\nwith a line"


def test_what_was_promised_to_a_task_that_never_came_is_given_to_the_next(make_limiter, client):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a", "b")
    limiter.release([ask("held").lease])
    (task,) = limiter.promote(16, "s").tasks
    assert task.copy.message == "a"
    limiter.unpark(["a"])
    assert limiter.promote(16, "s").tasks == ()
    limiter.release_reservation("a", ["tenant:42", "api"])
    assert {"gate_promoted", "gate_promised:api", "gate_promised:tenant:42"}.isdisjoint(
        gate_keys(client)
    )
    (task,) = limiter.promote(16, "s").tasks
    assert task.copy.message == "b"


def test_a_newcomer_behind_those_that_wait_is_refused_by_the_concurrency_of_their_limit(
    make_limiter, client
):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a")
    limiter.release([ask("held").lease])
    assert isinstance(limiter.acquire(ask("newcomer")), Rejected)
    assert client.hgetall(NAMES.exceeded) == {"concurrency api": "1"}


def test_who_cancels_rings_for_whoever_ends_it(make_limiter, client):
    limiter, bell = make_limiter(frozen=True), f"{NAMES.prefix}gate_bell"
    limiter.acquire(ask("held"))
    park(limiter, "a")
    client.delete(bell)
    limiter.unpark(["a"], "cancelled")
    assert client.llen(bell) == 1


@pytest.mark.parametrize(("want", "rings"), [(1, 1), (16, 0)])
def test_a_promoter_rings_for_the_next_one_where_it_leaves_what_may_start(
    make_limiter, client, want, rings
):
    limiter, bell = make_limiter(frozen=True), f"{NAMES.prefix}gate_bell"
    words = ("api|1|||w", "mail|1|||w")
    for word in words:
        limiter.acquire(ask(f"held{word}", word))
        assert limiter.park(ask(word, word), "message") is Parking.PARKED
    limiter.release([ask(f"held{word}", word).lease for word in words])
    client.delete(bell)
    assert len(limiter.promote(want, "s").tasks) == min(want, 2)
    assert client.llen(bell) == rings


def test_one_call_takes_a_bounded_number_from_promoters_that_died(make_limiter, client, clock):
    limiter, promoted = make_limiter(frozen=True), f"{NAMES.prefix}gate_promoted"
    limiter.acquire(ask("held"))
    park(limiter, *(f"a{number:02}" for number in range(20)))
    clock.advance(1)
    for _ in range(3):
        limiter.promote(64, "s", Enforcement.OFF)
    tags = client.zrange(promoted, 0, -1)
    assert len(tags) == 20
    # To the millisecond at which their leases end.
    for _ in range(3):
        clock.advance(5)
        limiter.renew([])
    # Who held the slot has died too, and so the first of them is given again.
    (first,) = limiter.promote(64, "s").tasks
    assert set(client.zrange(promoted, 0, -1)) == {first.copy.message, *tags[16:]}


def test_where_the_parked_are_deleted_nobody_asks_for_them_any_more(make_limiter, client):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a")
    client.delete(f"{NAMES.prefix}gate_tasks")
    assert limiter.promote(16, "s").sleep_seconds is None
    assert client.hget(NAMES.clock, "parked") is None


def test_a_tier_that_nobody_knows_parks_by_the_published_default_tier(make_limiter, client):
    limiter = make_limiter(frozen=True, tier_on_limit="wait")
    client.hset(NAMES.tiers, "free", '{"concurrency": 2}')

    def of(id_):
        return SlotRequest(Lease(id_, "tenant:42"), "42", "gold", Copy(id_), f"n{id_}")

    for name in ("a", "b"):
        assert limiter.park(of(name), "message") is Parking.ASK_AGAIN
        limiter.acquire(of(name))
    assert limiter.park(of("c"), "message") is Parking.PARKED
    limiter.release([of("a").lease])
    assert [task.copy.message for task in limiter.promote(16, "s").tasks] == ["c"]


def test_a_slot_that_frees_rings_where_somebody_waits_for_it(make_limiter, client):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    limiter.acquire(ask("other", "mail|9|||w"))
    park(limiter, "a")
    bell = f"{NAMES.prefix}gate_bell"
    client.delete(bell)
    limiter.release([ask("other", "mail|9|||w").lease])
    assert client.llen(bell) == 0
    limiter.release([ask("held").lease])
    assert client.llen(bell) == 1


def test_what_is_promised_is_not_given_to_a_newcomer_while_nothing_else_waits(make_limiter):
    limiter, word = make_limiter(frozen=True), "api|2|||w"
    for name in ("held", "other"):
        limiter.acquire(ask(name, word))
    for name in "ab":
        assert limiter.park(ask(name, word), "message") is Parking.PARKED
    limiter.release([ask("held").lease, ask("other").lease])
    first, _ = limiter.promote(16, "s").tasks
    limiter.unpark(["a", "b"])
    again = ask("again", word)
    limiter.acquire(SlotRequest(again.lease, "42", "pro", first.copy, "n", word))
    found = limiter.acquire(ask("newcomer", word))
    assert isinstance(found, Rejected)


def test_a_limit_that_opens_in_a_millisecond_is_not_open(make_limiter, clock):
    limiter, word = make_limiter(frozen=True), "api||1/100||w"
    limiter.acquire(ask("first", word))
    clock.advance(0.1)
    assert limiter.park(ask("a", word), "message") is Parking.PARKED
    clock.advance(0.001)
    (task,) = limiter.promote(16, "s").tasks
    assert task.copy.message == "a"


MESSAGE = json.dumps(
    {
        "body": '[[], {"headers": {"id": "no", "task": "no"}}]',
        "headers": {"task": "shop.pay", "id": "4fd6", "stamps": {"id": "no"}},
        "routing_key": "celery",
    }
)


def told(client):
    events = [fields for _, fields in client.xrange(NAMES.events)]
    return [each for each in events if each["type"].startswith("fairness.")]


def ended(limiter):
    """Return the tags of what is given to be ended."""
    return [each.copy.message for each in limiter.promote(16, "s").tasks if each.ended]


def park_messages(limiter, **messages):
    limiter.acquire(ask("held"))
    for name, message in messages.items():
        assert limiter.park(ask(name), message) is Parking.PARKED


def test_a_cancelled_task_is_told_once_by_its_id(make_limiter, client):
    limiter = make_limiter(frozen=True)
    park_messages(limiter, a=MESSAGE)
    for _ in range(2):
        assert limiter.unpark(["a"], "cancelled") == 1
    assert ended(limiter) == ["a"]
    task = {"job_id": "4fd6", "job_type": "shop.pay", "queue": "celery"}
    assert told(client) == [{"type": "fairness.cancelled", **task}]


def test_one_that_expires_while_it_is_parked_is_told_once(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    assert limiter.park(ask("a"), MESSAGE, expires_ms=clock.now_ms + 10) is Parking.PARKED
    assert ended(limiter) == []
    clock.now_ms += 10
    assert ended(limiter) == ["a"]
    # The worker that was to publish it has died.
    again = []
    for _ in range(4):
        clock.now_ms += 5_000
        again += ended(limiter)
    assert again == ["a"]
    assert [each["type"] for each in told(client)] == ["fairness.expired"]


@pytest.mark.parametrize(
    "message", ["no JSON", "5", "null", '{"headers": 5}', '{"headers": {"id": "\\ud800"}}', "{}"]
)
def test_a_message_that_nobody_can_read_is_told_by_its_tag(make_limiter, client, message):
    limiter = make_limiter(frozen=True)
    park_messages(limiter, a=message)
    limiter.unpark(["a"], "cancelled")
    assert ended(limiter) == ["a"]
    (event,) = told(client)
    assert (event["job_id"], event["job_type"], event["queue"]) == ("a", "", "")


@pytest.mark.parametrize(
    # The others as a copy that came to a gate with other limits or another tenant may leave it.
    ("table", "tag", "score"),
    [
        ("gate_expires", "gone", 1),
        ("gate_at:tenant:42 api|#||", "gone", 9),
        ("gate_turns:api|#||", "0000000000000000 tenant:43", 0),
    ],
)
def test_a_tag_without_a_record_keeps_nobody_waiting(make_limiter, client, table, tag, score):
    limiter = make_limiter(frozen=True)
    park_messages(limiter, a=MESSAGE)
    client.zadd(NAMES.prefix + table, {tag: score})
    limiter.release([ask("held").lease])
    assert [each.copy.message for each in limiter.promote(16, "s").tasks] == ["a"]
    assert not client.exists(NAMES.prefix + table)


def test_what_is_parked_is_of_one_broker_and_goes_back_there_alone(make_limiter, client):
    one, other = (make_limiter(frozen=True, broker=name) for name in ("one", "other"))
    one.acquire(ask("held"))
    park(one, "a", "b")
    # The other's task waits on its own broker, and stands behind nobody: as one that a claim takes.
    assert isinstance(other.acquire(ask("c")), Rejected)
    assert other.park(ask("c"), "message") is Parking.ELSEWHERE
    one.release([ask("held").lease])
    assert other.promote(16, "s") == Promotion((), None, elsewhere=True)
    assert one.acquire(ask("d")).reason is Reason.BEHIND_OTHERS
    assert isinstance(other.acquire(ask("d")), Admitted)
    other.release([ask("d").lease])
    (task,) = one.promote(1, "s").tasks
    one.unpark(["a"])
    one.acquire(SlotRequest(ask("a").lease, "42", "pro", task.copy, "again", WORD))
    assert other.park(ask("c"), "message") is Parking.ELSEWHERE
    one.release([ask("a").lease])
    (task,) = one.promote(1, "t").tasks
    one.unpark(["b"])
    one.acquire(SlotRequest(ask("b").lease, "42", "pro", task.copy, "again", WORD))
    # Nothing is parked any more: whoever comes next may.
    park(other, "c")
    assert one.promote(16, "u").elsewhere


@pytest.mark.parametrize("said", ["", "1"])
def test_what_nobody_said_the_broker_of_is_of_any(make_limiter, client, said):
    limiter = make_limiter(frozen=True, broker="" if said else "one")
    limiter.acquire(ask("held"))
    park(limiter, "a")
    limiter.release([ask("held").lease])
    anybody = make_limiter(frozen=True, broker="other" if said else "")
    assert client.hget(NAMES.clock, "parked") == (said or "one")
    assert [task.copy.message for task in anybody.promote(16, "s").tasks] == ["a"]


def test_whoever_comes_later_does_not_put_off_the_next_look_at_their_key(
    make_limiter, client, clock
):
    """Else a stream of newcomers would keep those that wait from ever being looked at."""
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    looks = NAMES.prefix + "gate_looks"
    park(limiter, "a")
    first = client.zscore(looks, "api")
    assert first == clock.now_ms + 1_000
    clock.advance(0.4)
    park(limiter, "b")
    assert client.zscore(looks, "api") == first


def test_a_copy_that_was_refused_is_parked_whatever_it_would_have_published(make_limiter):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    asked = ask("a")
    assert isinstance(limiter.acquire(asked), Rejected)
    # Its refusal named another successor; which copy asks is what counts.
    assert limiter.park(replace(asked, next_serial="other"), "message") is Parking.PARKED


def test_a_task_without_a_tenant_waits_for_no_tier(make_limiter):
    none = {"free": {"concurrency": 0}}
    limiter = make_limiter(frozen=True, tier_on_limit="wait", tiers=none)

    def system(name):
        return SlotRequest(Lease(name, "api"), "", "", Copy(name), f"n{name}", WORD)

    limiter.acquire(system("held"))
    assert limiter.park(system("a"), "message") is Parking.PARKED
    limiter.release([system("held").lease])
    assert [task.copy.message for task in limiter.promote(16, "s").tasks] == ["a"]


MAIL = "mail|4|||w"


def hold_wide(limiter):
    """Hold the slot that is promised: by a number that did not stay the newest."""
    wide = ask("wide", "api|9|||w")
    assert isinstance(limiter.acquire(wide), Admitted)
    assert isinstance(limiter.acquire(ask("low")), Rejected)
    return wide


def come_with_other_limits(limiter, clock):
    """A promoter died; its task waits again when the copy that it published comes with others."""
    limiter.acquire(ask("held"))
    park(limiter, "a")
    limiter.release([ask("held").lease])
    (task,) = limiter.promote(16, "s").tasks
    wide = hold_wide(limiter)
    for _ in range(4):
        clock.advance(5)
        limiter.renew([wide.lease])
    assert limiter.promote(16, "s").tasks == ()
    for number in range(4):
        limiter.acquire(ask(f"m{number}", MAIL))
    came = replace(ask("a", MAIL), copy=task.copy, lease=Lease("la", "tenant:42,mail"))
    assert isinstance(limiter.acquire(came), Rejected)
    return came


def test_nothing_is_left_where_a_task_waited_that_came_with_other_limits(
    make_limiter, client, clock
):
    limiter = make_limiter(frozen=True, tiers={"pro": {"concurrency": 50}})
    come_with_other_limits(limiter, clock)
    assert gate_keys(client) == set()


def test_a_task_that_came_with_other_limits_is_given_once(make_limiter, client, clock):
    limiter = make_limiter(frozen=True, tiers={"pro": {"concurrency": 50}})
    assert limiter.park(come_with_other_limits(limiter, clock), "message") is Parking.PARKED
    assert "gate_places:api" not in gate_keys(client)
    limiter.release([ask(f"m{number}", MAIL).lease for number in range(4)])
    limiter.release([ask("wide", "api|9|||w").lease])
    assert [task.copy.message for task in limiter.promote(16, "s").tasks] == ["a"]


def test_a_key_whose_tasks_somebody_deleted_is_forgotten(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("held"))
    park(limiter, "a")
    client.delete(NAMES.prefix + "gate_at:tenant:42 api|#||")
    clock.advance(1)
    assert limiter.promote(16, "s").tasks == ()
    assert gate_keys(client) == {"gate_tasks", "gate_bell"}


def turns_at(client, place):
    return client.zrange(f"{NAMES.prefix}gate_turns:{place}", 0, -1, withscores=True)


def test_a_tenant_stands_at_a_place_by_its_first_task_whichever_comes_there_later(
    make_limiter, client
):
    limiter = make_limiter(frozen=True)
    held = [ask("h1"), ask("h2", "db|1|||w")]
    for request in held:
        limiter.acquire(request)
    both = SlotRequest(
        Lease("a", "tenant:42,api,db"), "42", "pro", Copy("a"), "na", f"{WORD},db|1|||w"
    )
    assert limiter.park(both, "message") is Parking.PARKED
    assert limiter.park(ask("b", "db|1|||w"), "message") is Parking.PARKED
    assert turns_at(client, "db|#||") == [("0000000000000002 tenant:42", 0.0)]
    # The elder one comes there from the other limit.
    limiter.release([held[0].lease])
    assert limiter.promote(16, "s").tasks == ()
    assert turns_at(client, "db|#||") == [("0000000000000001 tenant:42", 0.0)]


def test_a_tenant_keeps_its_turn_when_its_first_task_is_cancelled(make_limiter, client):
    limiter = make_limiter(frozen=True)
    held = ask("held")
    limiter.acquire(held)
    park(limiter, "a", "b", "c")
    limiter.release([held.lease])
    assert [task.copy.message for task in limiter.promote(16, "s").tasks] == ["a"]
    assert turns_at(client, "api|#||") == [("0000000000000002 tenant:42", 1.0)]
    assert limiter.unpark(["b"], "cancelled") == 1
    assert [task.ended for task in limiter.promote(16, "t").tasks] == [True]
    assert turns_at(client, "api|#||") == [("0000000000000003 tenant:42", 1.0)]
