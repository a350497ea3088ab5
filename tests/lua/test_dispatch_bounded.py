"""No call is slow because much waits: what one call does at most is the same for more of it."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules
from tests.lua.dispatching import PREFIX, Dispatch

UNLIMITED = Rules(default_limit=None)
#: Waiting limits that one call looks at, and a claim as many again; ends of pauses of one claim.
LOOKS, DUE = 64, 16


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client, UNLIMITED)


def stop(dispatch, how, key, wait_ms=0):
    args = calls.stop_args(
        how, key, wait_ms, dispatch.rules.lease_ms, "on", str(dispatch.now), "a reason"
    )
    dispatch.run(calls.STOP, args)


def block_all(dispatch, queues=("q",)):
    """Let claims meet all that is to be blocked."""
    assert dispatch.claim_all(want=1, queues=queues) == []


class TestLooksOfEnds:
    """Many tasks end at once whose key many limits wait for."""

    def held(self, dispatch, waiting):
        """As many tasks of one key as it may have; others of it wait in so many queues."""
        for number in range(LOOKS):
            dispatch.put(f"h{number}", limits=write_limits((Limit("api", concurrency=LOOKS),)))
        held = dispatch.claim(want=LOOKS).tasks
        for number in range(waiting):
            dispatch.put(
                f"w{number}", f"q{number}", limits=write_limits((Limit("api", concurrency=LOOKS),))
            )
        self.queues = ["q", *(f"q{number}" for number in range(waiting))]
        block_all(dispatch, self.queues)
        return held

    def test_they_share_what_one_call_looks_at(self, redis_url, client, commands):
        totals = []
        for waiting in (LOOKS, 2 * LOOKS, 4 * LOOKS):
            client.flushall()
            dispatch = Dispatch(client, UNLIMITED)
            held = self.held(dispatch, waiting)
            with commands() as ran:
                dispatch.settle(held)
            assert ran["lmove"] == LOOKS
            totals.append(sum(ran.values()))
        assert totals[1] == totals[2]
        # Of the first nothing is left, which else is noted, and a bell is rung.
        assert 0 < max(totals) - min(totals) <= 5

    def test_a_claim_looks_at_as_many_again(self, dispatch, commands):
        held = self.held(dispatch, 4 * LOOKS)
        dispatch.settle(held)
        with commands() as ran:
            dispatch.claim(want=1)
        assert ran["lmove"] == LOOKS

    def test_what_is_left_is_looked_at_by_the_next(self, dispatch, client):
        held = self.held(dispatch, 2 * LOOKS)
        for kind in ("wakeup", "wakeup_leftover"):
            client.delete(*(f"{PREFIX}{kind}:{queue}" for queue in self.queues))
        dispatch.settle(held)
        assert client.exists(*(f"{PREFIX}wakeup:{queue}" for queue in self.queues)) == LOOKS + 1
        assert client.zrange(PREFIX + "timers", 0, -1) == [f"{LOOKS} api"]
        dispatch.claim(want=1, queues=["other"])
        assert not client.exists(PREFIX + "timers")
        for queue in self.queues:
            assert client.zcount(f"{PREFIX}available:{queue}", "-inf", "(0") == 0


class TestLooksOfWhatPeopleSaid:
    """Pauses end at once of keys that many queues wait for."""

    def paused(self, dispatch, queues):
        keys = [f"api{number}" for number in range(DUE)]
        for key in keys:
            stop(dispatch, "pause", key, wait_ms=1_000)
            for queue in queues:
                dispatch.put(key, queue, limits=write_limits((Limit(key, concurrency=1),)))
        block_all(dispatch, queues)

    @pytest.mark.parametrize("queues", [8, 24])
    def test_they_share_what_one_call_looks_at(self, dispatch, commands, client, queues):
        names = [f"q{number}" for number in range(queues)]
        self.paused(dispatch, names)
        dispatch.now += 1_001
        dispatch.renew(())
        with commands() as ran:
            dispatch.claim(want=1, queues=["other"])
        # Those that ended, and those whose time came.
        assert ran["lmove"] <= 2 * LOOKS
        assert len(dispatch.claim_all(want=DUE, queues=names)) == DUE
        assert not client.exists(PREFIX + "timers")


class TestWeight:
    """A claim does less of what is much."""

    #: Full units of a message, and so many moves more.
    UNIT, MOVES = 16_384, 64
    #: What one claim takes: a task weighs one, one for each limit, one for each full unit.
    TAKEN = 256

    def with_names(self, dispatch, tenants, names):
        """Tenants with a class of many names each, that a claim will reject."""
        stop(dispatch, "pause", "api")
        for tenant in range(tenants):
            for name in range(names):
                dispatch.put(
                    f"a{tenant}",
                    kind=f"k{name}",
                    limits=write_limits((Limit("api", concurrency=1),)),
                )

    @pytest.mark.parametrize(("tenants", "names"), [(8, 30), (16, 30), (3, 90), (6, 90)])
    def test_a_claim_blocks_fewer_classes_of_many_names(
        self, dispatch, client, commands, tenants, names
    ):
        self.with_names(dispatch, tenants, names)
        with commands() as ran:
            assert dispatch.claim(want=1).sleep_ms == 0
        # The last class may have more names than moves were left.
        blocked = -(-self.MOVES // names)
        assert len(client.keys(PREFIX + "blocked_classes:*")) == blocked
        # A lane that changes its order is taken out, looked at, and put in.
        assert sum(ran.values()) <= blocked * (3 * names + 40) + 60
        block_all(dispatch)
        assert len(client.keys(PREFIX + "blocked_classes:*")) == tenants
        stop(dispatch, "resume", "api")
        assert len(dispatch.claim(want=1).tasks) == 1

    def test_what_is_made_ready_again_is_weighed_too(self, dispatch, client):
        self.with_names(dispatch, 4, 40)
        block_all(dispatch)
        for tenant in range(4):
            stop(dispatch, "pause", f"tenant:a{tenant}")
        stop(dispatch, "resume", "api")
        # Whoever is stopped all the same is not to be looked at again for the limit's sake.
        dispatch.claim(want=1)
        assert len(client.keys(PREFIX + "ready:*")) == 2
        block_all(dispatch)
        assert len(client.keys(PREFIX + "ready:*")) == 4

    def test_a_claim_reads_no_message_of_what_it_rejects(self, redis_url, client, commands):
        dispatch = Dispatch(client, Rules(default_limit=0))
        self.put_long(dispatch, 24, 31)
        with commands() as ran:
            assert dispatch.claim(want=1).sleep_ms == 1000
        assert client.zcard(PREFIX + "at_limit") == 24
        assert ran["hget"] == 24, "the head of each"

    def put_long(self, dispatch, tenants, units):
        for number in range(tenants):
            dispatch.put(f"t{number}", message="x" * (units * self.UNIT))

    def test_a_claim_takes_a_bounded_part_of_long_messages(self, dispatch):
        self.put_long(dispatch, 40, 9)
        taken = len(dispatch.claim(want=40).tasks)
        assert taken == -(-self.TAKEN // 10)
        assert taken + len(dispatch.claim_all(want=40)) == 40

    @pytest.mark.parametrize("limits", [3, 16])
    def test_a_claim_takes_fewer_tasks_of_many_limits(self, dispatch, commands, limits):
        words = write_limits(
            tuple(Limit(f"k{number:02}", rate=((500, 60_000),)) for number in range(limits))
        )
        for number in range(70):
            dispatch.put(f"t{number}", limits=words)
        with commands() as ran:
            taken = len(dispatch.claim(want=70).tasks)
        assert taken == -(-self.TAKEN // (limits + 1))
        assert sum(ran.values()) <= 15 * self.TAKEN + 100
        assert taken + len(dispatch.claim_all(want=70)) == 70


@pytest.mark.parametrize("place", [0, 3, 6, 69])
def test_a_cancel_costs_the_same_wherever_its_task_stands(dispatch, client, commands, place):
    for _ in range(70):
        dispatch.put("a")

    def cancel(tag):
        args = calls.cancel_args([tag], dispatch.rules.lease_ms, str(dispatch.now))
        with commands() as ran:
            answer = calls.read_done(dispatch.run(calls.CANCEL, args))
        return answer, ran

    cancel("t36")
    assert cancel(f"t{place + 1}") == cancel("t35")
    # Its outcome shows that it was cancelled before.
    assert cancel(f"t{place + 1}")[0] == [True]
    assert client.hget(PREFIX + "waiting", "q") == "67"


def test_what_is_known_in_a_minute_is_counted_with_two_commands_however_much(dispatch, commands):
    queues = ("p", "q", "r")

    def counted():
        for queue in queues:
            dispatch.put("a", queue)
        with commands() as ran:
            dispatch.settle(dispatch.claim(queues=queues).tasks)
        # Each task has one of each for itself; and a settle keeps how long they took.
        return ran["hset"] - len(queues) - 1, ran["hincrby"] - len(queues)

    # The claim counts a start of each queue, and the settle counts all ends as one.
    _, one_by_one = counted()
    assert one_by_one == len(queues) + 1
    assert counted() == (2, 0)
