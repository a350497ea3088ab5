"""What one call of a dispatch script does at most, to the last, and by whose rules it judges."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules
from tests.lua.dispatching import PREFIX, Dispatch

#: Moves, tenants passed over, and leases that end, of one call.
MOVES, PASSED, DUE = 64, 16, 16
#: Lanes of a tenant that one look sees.
LANES = 1024


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def fill_ring(dispatch, tenants, queue):
    """So many tenants in a ring that are at their limit, and that no claim has met there."""
    names = [f"full{number:03}" for number in range(tenants)]
    for name in names:
        dispatch.put(name, queue="elsewhere")
    assert len(dispatch.claim_all(want=64, queues=["elsewhere"])) == tenants
    for name in names:
        dispatch.put(name, queue=queue)


def test_a_look_goes_past_all_that_one_call_may_move_and_pass_over(dispatch):
    for number in range(PASSED):
        dispatch.put(f"other{number}", kind="x")
    # Whoever was served once at a high cost stands behind the others.
    dispatch.rules = replace(dispatch.rules, fairness_by="cost")
    dispatch.put("last", cost=1000.0, kind="y")
    dispatch.settle(dispatch.claim(never=("x",)).tasks)
    dispatch.put("last", kind="y")
    fill_ring(dispatch, MOVES, "q")
    (task,) = dispatch.claim(want=1, never=("x",)).tasks
    assert task.key == "tenant:last"


def test_a_queue_whose_moves_are_used_up_takes_no_turn_of_another(dispatch):
    fill_ring(dispatch, MOVES + 1, "p")
    for number in range(6):
        dispatch.put(f"free{number}")
    assert len(dispatch.claim(want=6, queues=["p", "q"]).tasks) == 6


@pytest.mark.parametrize(("others", "taken"), [(LANES - 1, 1), (LANES, 0)])
def test_a_look_sees_a_bounded_number_of_lanes(redis_url, client, others, taken):
    dispatch = Dispatch(client, Rules(default_limit=None))
    names = [f"name{number:04}" for number in range(others)]
    for name in [*names, "y"]:
        dispatch.put("a", kind=name)
    assert len(dispatch.claim(never=tuple(names)).tasks) == taken


@pytest.mark.parametrize(
    ("rate", "enforcement", "entries"),
    [(2_000, "on", 102), (100, "on", 100), (10, "off", 202)],
)
def test_a_window_has_a_bounded_number_of_entries(dispatch, client, rate, enforcement, entries):
    limits = write_limits((Limit("api", rate=((rate, 60_000),)),))
    dispatch.rules = replace(dispatch.rules, default_limit=None, enforcement=enforcement)
    for _ in range(1_500):
        dispatch.put("a", limits=limits)
    for _ in range(300):
        dispatch.now += 130
        dispatch.settle(dispatch.claim(want=5).tasks)
        sum_, text = client.hget(PREFIX + "window:api", "60000").split(" ", 1)
        units = [int(each) for each in re.findall(r"(\d+)[|,]", text)]
        assert sum(units) == int(sum_)
        assert len(units) <= entries
    assert int(sum_) == (1_500 if enforcement == "off" else min(rate, 1_500))


def test_a_start_clears_a_bounded_number_of_times_at_a_key_that_are_over(dispatch, client):
    limits = write_limits((Limit("api", concurrency=1),))
    # The last one waits on: where nobody does all are forgotten.
    for tenant in "abc":
        dispatch.put(tenant, limits=limits)
    running = dispatch.claim_all()
    assert [task.key for task in running] == ["tenant:a,api"]
    client.zadd(PREFIX + "finish_tags:api", {f"tenant:gone{number}": 0 for number in range(9)})
    dispatch.settle(running)
    assert len(dispatch.claim(want=1).tasks) == 1
    left = client.zrange(PREFIX + "finish_tags:api", 0, -1)
    assert sum(name.startswith("tenant:gone") for name in left) == 9 - 4


def test_a_call_for_an_outcome_ends_a_bounded_number_of_leases(dispatch, client):
    for number in range(DUE + 4):
        dispatch.put(f"tenant{number}")
    assert len(dispatch.claim_all(want=64)) == DUE + 4
    ends = PREFIX + "ends"
    client.zadd(ends, dict.fromkeys(client.zrange(ends, 0, -1), 0))
    dispatch.next_outcome()
    assert client.hlen(PREFIX + "running") == 4


def test_entries_are_moved_aside_in_their_order(dispatch, client):
    client.rpush("plain", "odd", "another", "odd", "even")
    for entry in (b"odd", b"even"):
        assert dispatch.run(calls.QUARANTINE, ["q", "plain", entry]) == 1
    assert client.lrange(PREFIX + "quarantined:q", 0, -1) == ["odd", "even"]
    # The one that is moved is the oldest: stock producers push at the other end.
    assert client.lrange("plain", 0, -1) == ["odd", "another"]


def test_a_task_that_comes_back_does_not_bring_an_old_tier(dispatch, client):
    dispatch.publish_tiers(free=1, pro=2)
    dispatch.put("a", tier="pro")
    assert len(dispatch.claim().tasks) == 1
    dispatch.put("a", tier="free")
    dispatch.let_a_lease_pass()
    dispatch.claim(queues=["other"])
    assert client.hget(PREFIX + "tenant_state:tenant:a", "tier") == "free"


class TestByWhoseRules:
    """A tenant with two that run and one that waits, found at its limit; then one of the two ends.

    Whether it is open then is judged by the rules that the ending call brings.
    """

    @pytest.fixture(params=["settle", "next_outcome"])
    def end_one(self, request, dispatch):
        def end(rules: Rules) -> None:
            first, second = self.running
            dispatch.rules = rules
            if request.param == "settle":
                dispatch.settle([first])
            else:
                dispatch.let_a_lease_pass(kept=[second])
                dispatch.next_outcome()

        return end

    def closed(self, dispatch, client, tier=""):
        for _ in range(3):
            dispatch.put("a", tier=tier)
        unlimited = Rules(default_limit=None, enforcement="off")
        self.running = dispatch.claim(want=2, rules=unlimited).tasks
        assert dispatch.claim(rules=Rules(default_limit=1)).tasks == ()
        assert client.zscore(PREFIX + "at_limit", "tenant:a") is not None

    def is_open(self, client):
        return client.zscore(PREFIX + "active:q", "tenant:a") is not None

    @pytest.mark.parametrize("enforcement", ["off", "observe"])
    def test_who_enforces_nothing_opens_it(self, dispatch, client, end_one, enforcement):
        self.closed(dispatch, client)
        end_one(Rules(default_limit=1, enforcement=enforcement))
        assert self.is_open(client)

    def test_who_enforces_a_limit_of_one_does_not(self, dispatch, client, end_one):
        self.closed(dispatch, client)
        end_one(Rules(default_limit=1))
        assert not self.is_open(client)

    def test_the_default_tier_is_that_of_the_caller(self, dispatch, client, end_one):
        dispatch.publish_tiers(free=1, gold=2)
        self.closed(dispatch, client, tier="unknown")
        end_one(Rules(default_limit=1, default_tier="gold"))
        assert self.is_open(client)

    @pytest.mark.parametrize("published", [False, True])
    def test_it_is_checked_by_the_news_of_now(self, dispatch, client, end_one, published):
        self.closed(dispatch, client)
        if published:
            dispatch.publish_tiers(free=1)
        end_one(Rules(default_limit=1))
        assert client.zscore(PREFIX + "at_limit", "tenant:a") == (2 if published else 1)
