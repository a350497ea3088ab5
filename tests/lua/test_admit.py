"""What the gate takes of limits beside the tiers: shared with claims, bounded, gone by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.types import Admitted, Job, Lease, Rejected, SlotRequest
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Verdict, Waiting
from celery_fairness.store.keys import Names
from tests.contract.conftest import stop_key
from tests.lua.test_functions import fill_leases
from tests.support.jitter import Jittered
from tests.support.library import call
from tests.support.tables import exceeded_in

NAMES = Names("fairness")
RULES = Rules()
LATER = NAMES.prefix + "scheduled:q"
#: Commands of the dearest call of a task with three limits, its own FCALL included.
MOST_COMMANDS = 60

ONE = Limit("api", concurrency=1)
AGAIN = Limit("api", concurrency=1, on_limit="reschedule")
RATED = Limit("mail", rate=((2, 60_000),), throttle=((1_000, 1_000),))


def ask(lease, *limits, tenant="", tier="pro"):
    keys = [f"tenant:{tenant}"] if tenant else []
    keys += [limit.key for limit in limits]
    return SlotRequest(
        Lease(lease, ",".join(keys)), tenant, tier, limits=write_limits(tuple(limits))
    )


class Claims:
    """A worker on the dispatch path, beside the gate on one Redis."""

    def __init__(self, client):
        self.client = client
        self.number = 0

    def run(self, verb, args):
        return call(self.client, verb, NAMES.prefix, args)

    def put(self, tag, *limits, tenant="u"):
        waiting = Waiting("q", tag, tenant, limits=write_limits(tuple(limits)))
        self.run(calls.PUT, calls.put_args(waiting))

    def claim(self, now=""):
        self.number += 1
        args = calls.claim_args("w", self.number, 5, ["q"], RULES, now_text=now)
        return calls.read_claim(self.run(calls.CLAIM, args)).tasks

    def end(self, task, now=""):
        ends = [Settle(task.lease, Verdict.DONE)]
        self.run(calls.SETTLE, calls.settle_args(ends, RULES, now))


@pytest.fixture
def claims(client):
    return Claims(client)


def test_what_is_claimed_keeps_the_gate_out_and_the_other_way_round(make_limiter, claims):
    limiter = make_limiter()
    claims.put("t1", ONE)
    (task,) = claims.claim()
    rejected = limiter.acquire(ask("l1", ONE, tenant="42"))
    # Nobody knows when a claimed task ends.
    assert (rejected.key, rejected.retry_after_seconds) == ("api", None)
    claims.end(task)
    assert isinstance(limiter.acquire(ask("l1", ONE, tenant="42")), Admitted)
    claims.put("t2", ONE)
    assert claims.claim() == ()
    limiter.release([ask("l1", ONE, tenant="42").lease])


def test_claims_and_the_gate_know_one_pace_of_a_key(make_limiter, claims, client, clock):
    limiter = make_limiter(frozen=True)
    asked = ask("l1", AGAIN)
    assert isinstance(limiter.acquire(asked), Admitted)
    clock.advance(4)
    limiter.release([asked.lease])
    claims.put("t1", AGAIN)
    (task,) = claims.claim(str(clock.now_ms))
    # How long the gate's lease lived says when the claimed one is expected to end.
    assert Jittered(limiter.acquire(asked).retry_after_seconds) == 4.0
    claims.put("t2", AGAIN, tenant="v")
    assert claims.claim(str(clock.now_ms)) == ()
    # It comes after the gate's.
    (wait_ms,) = [at - clock.now_ms for _, at in client.zrange(LATER, 0, -1, withscores=True)]
    assert 8_000 <= wait_ms <= 9_000
    claims.end(task, str(clock.now_ms))
    assert client.hget(f"{NAMES.prefix}backoff:api", "mean") == "3500"


def test_a_lease_has_a_row_and_an_end_and_counts_at_its_keys_until_it_ends(
    make_limiter, client, clock
):
    limiter = make_limiter(frozen=True)
    tables = {key: f"{NAMES.prefix}leases:{key}" for key in ("tenant:42", "_system", "api")}
    running, began = f"{NAMES.prefix}running", float(clock.now_ms)
    first = replace(ask("w1@a", ONE, tenant="42"), job=Job("t1", "shop.pay", "q"))
    limiter.acquire(first)
    other = limiter.acquire(ask("b", Limit("api", concurrency=2))).lease
    assert client.hgetall(running) == {
        "w1@a": f"0.0 w1 held@{began:.0f} tenant:42,api api|C1|w shop.pay t1 q",
        "b": f"0.0 - held@{began:.0f} _system,api api|C2|w   ",
    }
    assert dict(client.zrange(f"{NAMES.prefix}ends", 0, -1, withscores=True)) == {
        "w1@a": began + 15_000,
        "b": began + 15_000,
    }
    held = {key: client.zrange(name, 0, -1, withscores=True) for key, name in tables.items()}
    both = [("b", began), ("w1@a", began)]
    assert held == {"tenant:42": both[1:], "_system": both[:1], "api": both}
    limiter.release([first.lease, other])
    assert client.exists(running, f"{NAMES.prefix}ends", *tables.values()) == 0
    # The worker enters its lease again, by the keys that it has.
    limiter.renew([other], limiter.renew([]).epoch - 1)
    assert client.hgetall(running) == {"b": f"0.0 - held@{began:.0f} _system,api    "}
    limiter.release([other])
    assert client.exists(running, f"{NAMES.prefix}ends", *tables.values()) == 0


def test_a_lease_whose_worker_has_a_space_in_its_name_leaves_nothing(make_limiter, client, clock):
    limiter = make_limiter(frozen=True)
    for end in (lambda lease: limiter.release([lease]), lambda _: clock.advance(15)):
        limiter.acquire(ask("my worker@a", AGAIN, tenant="42"))
        end(Lease("my worker@a", "tenant:42,api"))
        for _ in range(3):
            clock.advance(5)
            limiter.renew([])
        assert client.keys(f"{NAMES.prefix}leases:*") == []
        assert client.exists(f"{NAMES.prefix}running") == 0


def test_only_a_limit_that_reschedules_has_the_pace_of_its_leases_noted(
    make_limiter, client, clock
):
    limiter, pace = make_limiter(frozen=True), f"{NAMES.prefix}backoff:api"

    def run(limit, lives):
        lease = limiter.acquire(ask("l1", limit)).lease
        clock.advance(lives)
        limiter.release([lease])
        return client.hget(pace, "mean")

    assert run(ONE, 4) is None
    assert not client.exists(pace)
    assert not client.hexists(NAMES.clock, "has_backoff")
    assert run(AGAIN, 2) == "2000"
    # All leases of such a key count.
    assert run(ONE, 1) == "1875"


class Admits:
    """The script itself, for a system task under one limit."""

    def __init__(self, client):
        self.client = client

    def ask(self, lease, message="", serial="", next_serial=""):
        rules, known = (15_000, "on", "free", "C1", 5), ("", "tenant:_", "pro", "C3")
        copies = (message, serial, next_serial, 60_000)
        args = (lease, *rules, *known, write_limits((ONE,)), *copies, "", 30_000, "", "1", "")
        numbers, words = calls.read_acquire(call(self.client, calls.ACQUIRE, NAMES.prefix, args))
        return [*numbers, *words]


def test_an_attempt_that_asks_twice_has_the_same_answer(client):
    admits = Admits(client)
    assert admits.ask("l1") == admits.ask("l1") == [1, 0, -1, -1, 0, "", "", "w"]


def test_a_rejection_remembers_which_copy_was_rejected_and_which_follows(client):
    admits = Admits(client)
    admits.ask("l1")
    assert admits.ask("l2", "message", "first", "second")[0] == 0
    kept = client.hgetall(NAMES.of("copy", "message"))
    assert kept == {"current": "first", "next": "second", "reported": ""}
    # Neither may run but these two.
    assert admits.ask("l3", "message", "other", "next")[0] == -2


def test_a_claim_starts_when_the_gate_has_released_the_slot(make_limiter, claims, clock):
    limiter = make_limiter(frozen=True)
    lease = ask("l1", ONE).lease
    limiter.acquire(ask("l1", ONE))
    claims.put("t1", ONE)
    assert claims.claim(str(clock.now_ms)) == ()
    limiter.release([lease])
    clock.advance(1)
    (task,) = claims.claim(str(clock.now_ms))
    assert task.message == ""


def test_starts_of_both_fill_one_window(make_limiter, claims):
    limiter = make_limiter()
    claims.put("t1", RATED)
    assert len(claims.claim()) == 1
    answers = [limiter.acquire(ask(f"l{n}", RATED)) for n in range(2)]
    # The throttle may hold the first for a millisecond.
    assert sum(isinstance(each, Admitted) for each in answers) <= 1
    assert isinstance(answers[-1], Rejected)


def test_no_call_takes_more_commands_because_more_is_waiting(make_limiter, client, commands):
    # Time that passes is noted now and then.
    limiter = make_limiter(frozen=True)
    limits = (
        Limit("api", concurrency=200_000),
        Limit("db", concurrency=1, on_limit="reschedule"),
        RATED,
    )
    seconds, _ = client.time()

    def cost(name):
        limiter.acquire(ask(f"{name}-known", *limits[:2], tenant="42"))
        with commands() as rejected:
            assert isinstance(limiter.acquire(ask(f"{name}-r", *limits, tenant="42")), Rejected)
        limiter.release([ask(f"{name}-known", *limits[:2], tenant="42").lease])
        client.unlink(f"{NAMES.prefix}window:mail")
        with commands() as admitted:
            assert isinstance(limiter.acquire(ask(f"{name}-a", *limits, tenant="42")), Admitted)
        with commands() as released:
            limiter.release([ask(f"{name}-a", *limits, tenant="42").lease])
        return rejected, admitted, released

    cost("warm")
    few = cost("few")
    fill_leases(client, "api", 10_000, (seconds + 3600) * 1000)
    assert cost("many") == few
    assert max(sum(ran.values()) for ran in few) <= MOST_COMMANDS, few


def test_what_a_key_remembers_of_starts_is_forgotten_though_nobody_asks_again(
    make_limiter, client, clock
):
    limiter = make_limiter(frozen=True)
    limiter.acquire(ask("l1", RATED))
    limiter.release([ask("l1", RATED).lease])
    kept = {"key_expiry", "window:mail"}
    client.delete(f"{NAMES.prefix}declared:mail")  # it goes by itself
    assert {key.removeprefix(NAMES.prefix) for key in client.scan_iter("*")} == {"clock", *kept}
    for _ in range(12):
        clock.advance(5)
        limiter.renew([])
    assert {key.removeprefix(NAMES.prefix) for key in client.scan_iter("*")} == {"clock"}


def test_a_claim_forgets_the_starts_that_a_gate_has_counted_for_a_tenant(
    make_limiter, client, claims, clock
):
    limiter = make_limiter(frozen=True, tiers={"free": {"rate": "2/10s"}})
    limiter.acquire(ask("l1", tenant="42", tier="free"))
    limiter.release([ask("l1", tenant="42").lease])
    assert client.exists(f"{NAMES.prefix}window:tenant:42")
    for _ in range(13):
        clock.advance(5)
        claims.claim(str(clock.now_ms))
    assert not client.exists(f"{NAMES.prefix}window:tenant:42")


def test_a_cool_down_that_is_over_is_forgotten_though_nobody_asks_again(
    make_limiter, client, claims, clock
):
    limiter = make_limiter(frozen=True)
    args = calls.stop_args("cool", "api", 4_000, RULES.lease_ms, "on", str(clock.now_ms))
    claims.run(calls.STOP, args)
    limiter.renew([])
    assert client.exists(f"{NAMES.prefix}cool_downs") == 1
    clock.advance(4)
    limiter.renew([])
    assert client.exists(f"{NAMES.prefix}cool_downs") == 0


def test_nobody_knows_when_a_task_of_a_tenant_ends(make_limiter, claims):
    limiter = make_limiter(tiers={"pro": {"concurrency": 1}})
    claims.put("t1", tenant="42")
    (task,) = claims.claim()
    assert limiter.acquire(ask("l1", tenant="42")).retry_after_seconds is None
    claims.end(task)
    assert isinstance(limiter.acquire(ask("l1", tenant="42")), Admitted)
    assert limiter.acquire(ask("l2", tenant="42")).retry_after_seconds is None


def test_a_renewal_forgets_a_bounded_number_of_cool_downs(make_limiter, client):
    limiter = make_limiter()
    client.zadd(f"{NAMES.prefix}cool_downs", {f"k{n}": 1 for n in range(100)})
    limiter.renew([])
    assert client.zcard(f"{NAMES.prefix}cool_downs") == 100 - 64


@pytest.mark.parametrize(
    ("limit", "how", "strategy"),
    [
        (ONE, "", "concurrency"),
        (Limit("api", rate=((1, 60_000),)), "", "rate"),
        (Limit("api", throttle=((1, 60_000),)), "", "throttle"),
        (Limit("api", concurrency=9), "pause", "paused"),
        (Limit("api", concurrency=9), "cool", "cool-down"),
    ],
)
def test_a_rejection_is_counted_by_what_rejected_and_why(
    make_limiter, client, clock, limit, how, strategy
):
    limiter = make_limiter(frozen=True)
    assert isinstance(limiter.acquire(ask("l1", limit)), Admitted)
    if how:
        stop_key(limiter, clock, how, "api", 60.0)
    for lease in ("l2", "l3"):
        assert isinstance(limiter.acquire(ask(lease, limit)), Rejected)
    assert exceeded_in(client.hgetall(NAMES.counters)) == {f"{strategy} api": "2"}


@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.parametrize(
    ("limit", "limits", "enforcement", "counted"),
    [
        (1, (), "on", {"concurrency tenant:42": "2"}),
        (0, (), "on", {"paused tenant:42": "3"}),
        (1, (RATED,), "on", {"concurrency tenant:42": "2"}),
        (0, (RATED,), "on", {"paused tenant:42": "3"}),
        (1, (ONE,), "on", {"concurrency tenant:42": "2", "concurrency api": "2"}),
        (1, (), "observe", {"concurrency tenant:42": "2"}),
        (1, (), "off", {}),
        (1, (ONE,), "off", {}),
    ],
)
def test_a_rejection_by_the_tier_is_counted_by_the_tenants_key(
    make_limiter, client, clock, steered, limit, limits, enforcement, counted
):
    limiter = make_limiter(frozen=True, tiers={"pro": {"concurrency": limit}})
    if steered:
        # The script that knows all keys is asked of tenants too.
        stop_key(limiter, clock, "pause", "other")
    for number in range(3):
        clock.advance(1)
        limiter.acquire(ask(f"l{number}", *limits, tenant="42"), Enforcement(enforcement))
    assert exceeded_in(client.hgetall(NAMES.counters)) == counted


@pytest.mark.parametrize("limits", [(), (RATED,)])
def test_a_tenant_that_a_person_paused_rejects_by_that(make_limiter, client, clock, limits):
    limiter = make_limiter(frozen=True)
    stop_key(limiter, clock, "pause", "tenant:42")
    assert isinstance(limiter.acquire(ask("l1", *limits, tenant="42")), Rejected)
    assert exceeded_in(client.hgetall(NAMES.counters)) == {"paused tenant:42": "1"}


@pytest.mark.parametrize("limits", [(), (RATED,)])
def test_a_tenant_that_runs_something_and_may_no_more_is_paused(make_limiter, client, limits):
    limiter = make_limiter(frozen=True)
    assert isinstance(limiter.acquire(ask("l1", tenant="42")), Admitted)
    limiter.publish_tenant("42", "pro", {"concurrency": 0})
    assert isinstance(limiter.acquire(ask("l2", *limits, tenant="42")), Rejected)
    assert exceeded_in(client.hgetall(NAMES.counters)) == {"paused tenant:42": "1"}


def test_a_rejection_by_the_tier_costs_one_command_more_than_its_count(make_limiter, commands):
    limiter = make_limiter(frozen=True, tiers={"pro": {"concurrency": 1}})
    for lease in ("l1", "l2"):
        limiter.acquire(ask(lease, tenant="42"))
    with commands() as ran:
        assert isinstance(limiter.acquire(ask("l3", tenant="42")), Rejected)
    assert (ran["hincrby"], "hlen" in ran) == (2, False)


def test_a_key_shows_the_number_of_what_runs_though_its_newest_is_forgotten(make_limiter, client):
    limiter = make_limiter()
    limiter.acquire(ask("l1", Limit("api", concurrency=5)))
    client.delete(f"{NAMES.prefix}declared:api")
    assert limiter.look("api")["numbers"] == "C5"
