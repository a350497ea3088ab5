"""How long debts are kept of tenants that have nothing waiting, in the model and the scripts."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from tests.model.budget import Budget
from tests.model.operations import QUEUES


@pytest.fixture
def paused(pair):
    """One task waits for as long as a pause lasts."""
    pair.both.run(("stop", "pause", "tenant:paused", 0, "on"))
    pair.put("paused")
    assert pair.claim()[0] == []
    return pair


def ring_of(pair):
    return pair.model.rings["q"]


def test_debts_are_over_where_nobody_competes_while_something_waits(paused):
    for number in range(20):
        paused.put(f"t{number}")
        assert len(paused.claim(want=5)[0]) == 1
        assert ring_of(paused).out == {}
        assert ring_of(paused).virtual == number + 1


def test_the_ring_goes_on_to_the_greatest_debt_once_a_claim_wants_more(paused):
    paused.put("a", times=3)
    paused.put("b")
    assert len(paused.claim(want=4)[0]) == 4
    assert ring_of(paused).out == {"tenant:a": 3.0}
    assert ring_of(paused).virtual == 2.0
    assert paused.claim() == ([], 1_000)
    assert ring_of(paused).out == {}
    assert ring_of(paused).virtual == 3.0


def test_nobody_comes_back_with_less_than_the_others_after_that(paused):
    paused.put("a", times=3)
    assert len(paused.claim(want=4)[0]) == 3
    paused.both.run(("stop", "resume", "tenant:paused", 0, "on"))
    assert paused.claim(queues=("other",))[0] == []
    paused.put("a")
    paused.put("b")
    assert ring_of(paused).members == {"tenant:a": 3.0, "tenant:b": 3.0, "tenant:paused": 3.0}


def test_who_may_start_keeps_the_debts_of_the_others(paused):
    paused.put("a")
    paused.put("b", times=2)
    assert len(paused.claim(want=2)[0]) == 2
    assert ring_of(paused).out == {"tenant:a": 1.0}
    paused.put("a")
    assert [task.key for task in paused.both.granted] == ["tenant:a", "tenant:b"]
    assert ring_of(paused).members == {"tenant:a": 1.0, "tenant:b": 1.0}


def test_a_claim_that_passes_somebody_over_keeps_the_debts(paused):
    paused.put("a")
    paused.put("b", kind="y")
    assert len(paused.claim(never=("y",))[0]) == 1
    assert ring_of(paused).out == {"tenant:a": 1.0}


def test_a_queue_that_is_shut_keeps_its_debts(pair):
    pair.both.run(("stop", "pause", "tenant:paused", 0, "on"))
    pair.limit_queue(QUEUES[0], concurrency=1)
    for tenant in ("paused", "a"):
        pair.put(tenant, queue=QUEUES[0])
    assert len(pair.claim(queues=QUEUES[:1])[0]) == 1
    assert pair.claim(queues=QUEUES[:1])[0] == []
    assert pair.model.rings[QUEUES[0]].out == {"tenant:a": 1.0}
    pair.end()
    assert pair.claim(queues=QUEUES[:1])[0] == []
    assert pair.model.rings[QUEUES[0]].out == {}


def test_what_waits_for_a_limit_does_not_keep_debts_and_an_open_one_does(pair):
    api = Limit("api", 1)
    pair.put("a", api, times=2)
    assert pair.claim()[0] == [1]
    pair.put("b")
    assert pair.claim(want=1)[0] == [3]
    assert ring_of(pair).out == {"tenant:b": 1.0}
    pair.end_one(0)
    pair.put("c")
    assert pair.claim(want=1)[0] == [4]
    assert pair.model.parking.candidate("q")
    assert ring_of(pair).out == {"tenant:b": 1.0, "tenant:c": 1.0}


def test_who_leaves_without_a_start_leaves_no_debt(pair):
    pair.put("b")
    pair.put("a")
    tasks = [task.key for task in pair.both.tasks_of("q")]
    pair.both.run(("cancel", "q", (tasks.index("tenant:a"),)))
    assert ring_of(pair).out == {}
    assert ring_of(pair).members == {"tenant:b": 0.0}


class TestOfALimit:
    """Somebody waits at a limit, in a queue whose workers are gone."""

    API = Limit("api", 1)

    @pytest.fixture
    def waited(self, make_pair):
        pair = make_pair(budget=Budget(tags=3))
        pair.put("first", self.API)
        assert pair.claim()[0] == [1]
        pair.put("gone", self.API, queue="other")
        assert pair.claim(queues=("other",))[0] == []
        pair.end()
        return pair

    def run(self, pair, tenant, cost=1.0):
        word = write_limits((self.API,))
        pair.both.run(("put", "q", None, tenant, "", "", 0, cost, None, "x", word))
        assert len(pair.claim(want=1)[0]) == 1
        pair.end()

    def test_a_bounded_number_of_debts_is_kept(self, waited):
        for number in range(20):
            self.run(waited, f"t{number}")
            assert len(waited.model.parking.times["api"].tags) <= 3

    def test_the_least_debt_goes_first_and_the_others_stay(self, waited):
        time = waited.model.parking.times["api"]
        for tenant, cost in (("a", 3.0), ("b", 2.0), ("c", 2.0)):
            self.run(waited, tenant, cost)
        assert (time.virtual, time.tags) == (
            0.0,
            {"tenant:a": 3.0, "tenant:b": 2.0, "tenant:c": 2.0},
        )
        self.run(waited, "d", 1.0)
        assert (time.virtual, set(time.tags)) == (1.0, {"tenant:a", "tenant:b", "tenant:c"})
        self.run(waited, "e", 5.0)
        assert (time.virtual, set(time.tags)) == (2.0, {"tenant:a", "tenant:c", "tenant:e"})
        self.run(waited, "f", 1.0)
        assert (time.virtual, set(time.tags)) == (2.0, {"tenant:a", "tenant:e", "tenant:f"})

    def test_who_waits_for_longer_is_still_the_first(self, waited):
        for number in range(8):
            self.run(waited, f"t{number}")
        assert waited.model.parking.times["api"].virtual > 0
        waited.put("last", self.API, times=2)
        assert waited.claim(want=1)[0] == [11]
        assert waited.claim(want=1)[0] == []
        waited.end()
        assert waited.claim(queues=("q", "other"))[0] == [2]
