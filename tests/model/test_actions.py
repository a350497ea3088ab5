"""Limits that drop what they refuse, or have it tried again later: in the model and the scripts.

Each scenario runs on both, and their tables are compared after every call.
"""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler.types import Verdict
from tests.model.both import START_MS
from tests.model.budget import Budget
from tests.model.pace import APART, JITTER_MS, jitter_ms

DROP = Limit("api", 1, on_limit="drop")
AGAIN = Limit("api", 1, on_limit="reschedule")
WAIT = Limit("wait", 1)
PAUSE = Limit("pause", 0, on_limit="drop")


def test_what_a_full_limit_drops_is_forgotten_and_told(pair):
    pair.put("a", DROP, times=3)
    assert pair.claim() == ([1], 0)
    assert pair.dropped() == [("tag.2", "api", "dropped"), ("tag.3", "api", "dropped")]
    assert (pair.counts(), pair.model.known) == ({"dropped": 2, "rescheduled": 0}, {"tag.1"})
    assert not pair.model.lanes
    told = [pair.model.outcomes[row] for row in pair.model.outcomes]
    assert told == [pair.model.clock.logical] * 2
    (first, _) = pair.model.outcomes
    assert (first.queue, first.task.attempt, first.task.message) == ("q", 0, "message 2\n 1")


def test_it_acts_at_the_claim_and_not_at_the_put(pair):
    pair.put("a", DROP)
    pair.claim()
    pair.put("a", DROP)
    assert pair.dropped() == []
    pair.end()
    assert pair.claim()[0] == [2]
    assert pair.dropped() == []


def test_a_put_that_is_sent_again_after_it_was_dropped_is_new(pair):
    pair.put("a", DROP, times=2)
    pair.claim()
    pair.both.run(("put", "q", 2, "a", "", "", 0, 1.0, None, "x", write_limits((DROP,))))
    assert "tag.2" in pair.model.known


def test_who_was_dropped_is_not_charged(pair):
    pair.put("a", DROP, times=4)
    pair.put("b", times=3)
    assert pair.claim(want=3)[0] == [1, 5, 6]
    assert pair.counts()["dropped"] == 3
    pair.put("a")
    # One start of a and two of b: the ring has come to what a owes.
    assert pair.model.rings["q"].members == {"tenant:a": 1.0, "tenant:b": 2.0}


@pytest.mark.parametrize("limit", [DROP, AGAIN])
def test_a_tenant_of_whom_only_parked_lanes_are_left_leaves_the_ring(pair, limit):
    pair.put("b", limit, WAIT)
    assert pair.claim()[0] == [1]
    pair.put("a", WAIT)
    pair.put("a", limit)
    assert pair.claim()[0] == []
    assert (sum(pair.counts().values()), len(pair.model.parking.groups)) == (1, 1)
    assert set(pair.model.rings["q"].full) == {"tenant:a"}


@pytest.mark.parametrize(
    ("limits", "action"),
    [
        ((WAIT, DROP), "drop"),
        ((DROP, WAIT), "drop"),
        ((AGAIN, WAIT), "reschedule"),
        ((WAIT, AGAIN), "reschedule"),
        ((AGAIN, WAIT, Limit("other", 1, on_limit="drop")), "drop"),
        ((Limit("other", 1, on_limit="drop"), AGAIN), "drop"),
        ((PAUSE, DROP), "drop"),
        ((PAUSE, AGAIN), "reschedule"),
        ((WAIT,), "wait"),
        ((PAUSE,), "wait"),
        ((Limit("pause", 0, on_limit="reschedule"), WAIT), "wait"),
        ((Limit("open", 5, on_limit="drop"), WAIT), "wait"),
        ((Limit("open", 5, on_limit="drop"), AGAIN), "reschedule"),
    ],
)
def test_of_several_that_refuse_the_hardest_acts_and_a_pause_only_waits(pair, limits, action):
    pair.put("a", *(each._replace(on_limit="wait") for each in limits if each.concurrency))
    assert len(pair.claim()[0]) == 1
    pair.put("b", *limits)
    assert pair.claim()[0] == []
    found = {
        "drop": pair.counts()["dropped"],
        "reschedule": pair.counts()["rescheduled"],
        "wait": len(pair.model.parking.groups),
    }
    assert found == {**dict.fromkeys(found, 0), action: 1}


def test_the_obituary_names_the_limit_that_dropped_it(pair):
    refusing = {"w": "wait", "x": "reschedule", "y": "drop", "z": "drop"}
    pair.put("a", *(Limit(key, 1) for key in refusing))
    pair.claim()
    pair.put("b", *(Limit(key, 1, on_limit=action) for key, action in refusing.items()))
    pair.claim()
    assert pair.dropped() == [("tag.2", "y", "dropped")]
    pair.both.run(("next_outcome", "on", True))
    pair.both.run(("next_outcome", "on", True))
    assert pair.dropped() == []


def park(pair, on_limit, times=2):
    """Let tasks of b wait at one limit until it opens; the next start closes another of theirs."""
    pair.put("a", WAIT)
    assert pair.claim()[0] == [1]
    both = (WAIT, Limit("z", rates=((1, 5_000),), on_limit=on_limit))
    pair.put("b", *both, times=times)
    assert pair.claim()[0] == []
    assert pair.model.parking.groups
    pair.end()
    return both


class TestMovesOfOneClaim:
    """Each end of a task is a move, and a claim makes a bounded number of them."""

    @pytest.mark.parametrize("limit", [DROP, AGAIN])
    def test_a_claim_ends_a_bounded_number_and_says_that_there_are_more(self, make_pair, limit):
        pair = make_pair(budget=Budget(moves=3))
        pair.put("a", limit)
        pair.claim()
        pair.put("a", limit, times=7)
        told = []
        for _ in range(3):
            assert pair.claim()[0] == []
            told.append((sum(pair.counts().values()), pair.answer.sleep_ms == 0))
        assert told == [(3, True), (6, True), (7, False)]

    def test_one_that_dropped_all_there_was_sleeps(self, make_pair):
        pair = make_pair(budget=Budget(moves=3))
        pair.put("a", DROP)
        pair.claim()
        pair.put("a", DROP, times=3)
        assert pair.claim() == ([], 1000)
        assert pair.counts()["dropped"] == 3

    def test_of_a_group_too(self, make_pair):
        pair = make_pair(budget=Budget(moves=3))
        park(pair, "drop", times=6)
        assert pair.claim(want=1)[0] == [2]
        pair.end()
        assert [pair.claim() for _ in range(2)] == [([], 0), ([], 1000)]
        assert pair.counts()["dropped"] == 5


class TestParked:
    """A lane that waited at one limit is met by another, which drops it or has it tried again."""

    @pytest.mark.parametrize("on_limit", ["drop", "reschedule"])
    def test_its_head_goes_and_the_group_with_its_last(self, pair, on_limit):
        park(pair, on_limit)
        assert pair.claim(want=1)[0] == [2]
        pair.end()
        assert pair.model.parking.groups
        assert pair.claim()[0] == []
        assert sum(pair.counts().values()) == 1
        left = (pair.model.parking.groups, pair.model.parking.candidates, pair.model.lanes)
        assert not any(left)

    def test_others_of_the_group_go_on(self, pair):
        both = park(pair, "drop", times=3)
        pair.put("c", *both, times=2)
        assert pair.claim(want=1)[0] == [2]
        pair.end()
        pair.at(1_000)
        pair.put("d")
        assert pair.claim()[0] == [7]
        assert sorted(tag for tag, _, _ in pair.dropped()) == [f"tag.{n}" for n in (3, 4, 5, 6)]

    def test_what_this_process_does_not_take_another_drops(self, pair):
        park(pair, "drop")
        assert pair.claim(want=1)[0] == [2]
        pair.end()
        assert pair.claim(never=["x"])[0] == []
        assert pair.counts()["dropped"] == 0
        pair.claim()
        assert pair.counts()["dropped"] == 1

    def test_a_tenant_at_its_tiers_limit_is_not_dropped(self, pair):
        park(pair, "drop")
        assert pair.claim(want=1)[0] == [2]
        pair.put("b", queue="p")
        assert pair.claim(queues=["p"])[0] == [4]
        pair.both.run(("tenant", "b", "free", "1"))
        # Of the two that run the one that holds the limits ends.
        pair.both.run(("settle", ((0, Verdict.DONE),), "on"))
        assert list(pair.model.running) == ["tag.4.1.w"]
        pair.claim()
        assert pair.counts()["dropped"] == 0
        pair.end()
        pair.claim()
        assert pair.counts()["dropped"] == 1

    def test_a_task_of_a_higher_rank_goes_first(self, pair):
        park(pair, "drop")
        assert pair.claim(want=1)[0] == [2]
        pair.end()
        pair.put("b", rank=9)
        assert pair.claim(want=1)[0] == [4]
        assert pair.counts()["dropped"] == 0


def test_of_a_kind_that_is_not_taken_nothing_is_dropped(pair):
    pair.put("a", DROP)
    pair.claim()
    pair.put("a", DROP, kind="y")
    pair.put("a", DROP)
    pair.claim(never=["y"])
    assert pair.dropped() == [("tag.3", "api", "dropped")]
    pair.claim()
    assert pair.counts()["dropped"] == 2


@pytest.mark.parametrize("enforcement", ["observe", "off"])
def test_who_enforces_nothing_drops_nothing(pair, enforcement):
    pair.put("a", DROP, times=3)
    pair.put("b", AGAIN)
    pair.put("c", PAUSE, DROP)
    assert pair.claim(enforcement=enforcement)[0] == [1, 4, 2, 3]
    assert pair.counts() == {"dropped": 0, "rescheduled": 0}
    assert pair.model.parking.groups


def by_place(pair):
    """When tasks are tried again, with their places."""
    return [(seq, eta - START_MS) for eta, seq, _ in pair.model.later["q"]]


class TestTriedAgain:
    """A rescheduled task waits for its time, and is judged anew."""

    def test_it_comes_again_behind_others_and_ends_once(self, pair):
        pair.put("a", AGAIN, times=2)
        assert pair.claim()[0] == [1]
        (eta,) = pair.later()
        assert 1_000 <= eta <= 1_250
        assert pair.claim() == ([], min(eta, 1_000))
        pair.put("a")
        pair.at(eta - 1)
        assert pair.claim() == ([3], 0)
        pair.end()
        pair.at(eta)
        assert pair.claim()[0] == [2]
        assert pair.both.granted[-1].attempt == 1
        assert pair.model.running["tag.2.1.w"].task.seq == 4
        pair.end()
        assert not pair.model.known

    def test_it_is_judged_anew_and_waits_another_time(self, pair):
        pair.put("a", AGAIN, times=2)
        pair.claim()
        first = pair.later()
        pair.at(1_300)
        assert pair.claim()[0] == []
        (second,) = pair.later()
        # A second is known for the mean, and what runs has run for longer.
        assert 2_600 <= second <= 2_925
        assert second - 2_600 != first[0] - 1_000, "another jitter"
        assert pair.counts()["rescheduled"] == 2

    def test_a_claim_sleeps_until_it_comes(self, pair):
        pair.put("a", Limit("z", rates=((1, 99),), on_limit="reschedule"), times=2)
        assert pair.claim(want=1)[0] == [1]
        pair.end()
        _, sleep_ms = pair.claim()
        assert pair.later() == [sleep_ms]
        assert 100 <= sleep_ms <= 125

    @pytest.mark.parametrize(
        ("limits", "least", "interval"),
        [
            ((AGAIN,), 1_000, 1_000),
            ((Limit("api", 4, on_limit="reschedule"),), 1_000, 250),
            ((Limit("z", rates=((1, 299),), on_limit="reschedule"),), 300, 299 * APART),
            ((Limit("z", rates=((1, 299), (5, 2_000)), on_limit="reschedule"),), 300, 400 * APART),
            ((Limit("z", throttle=(2, 600), on_limit="reschedule"),), 270, 300 * APART),
            ((Limit("z", throttle=(3, 1_000), on_limit="reschedule"),), 300, APART * 1_000 / 3),
            ((Limit("z", 1, rates=((1, 299),), on_limit="reschedule"),), 1_000, 1_000),
            ((Limit("z", 1, rates=((1, 8_000),), on_limit="reschedule"),), 8_001, 8_000 * APART),
            ((AGAIN, Limit("z", rates=((1, 8_000),))), 8_001, 1_000),
            (
                (Limit("y", rates=((1, 1_999),)), AGAIN, Limit("z", rates=((1, 99),))),
                *(2_000, 1_000),
            ),
            ((PAUSE, Limit("z", rates=((1, 99),), on_limit="reschedule")), 1_000, 99 * APART),
        ],
    )
    def test_s25_d10_the_first_comes_at_the_largest_wait_and_others_after_it(
        self, pair, limits, least, interval
    ):
        own = [each._replace(on_limit="wait") for each in limits if each.concurrency != 0]
        pair.put("a", *own, times=limits[0].concurrency or 1)
        assert pair.claim()[0]
        pair.put("b", *limits, times=20)
        pair.claim()
        waits = [min(least + n * interval, 30_000) for n in range(20)]
        etas = [task_eta for _, task_eta in sorted(by_place(pair))]
        assert len(etas) == 20
        for wait, eta in zip(waits, etas, strict=True):
            most = 7_500 if wait == 30_000 else JITTER_MS
            assert int(wait) <= eta <= wait + 1 + min(wait // 4, most)

    def test_the_jitter_has_all_its_range_and_no_more(self):
        for wait_ms, longest, most in (
            *((3, JITTER_MS, 0), (4, JITTER_MS, 1), (100, JITTER_MS, 25)),
            *((4_000, JITTER_MS, 1_000), (90_000, JITTER_MS, 1_000), (30_000, 7_500, 7_500)),
        ):
            found = {jitter_ms(str(name), wait_ms, longest) for name in range(3_000)}
            assert (min(found) <= most * 0.01, max(found) >= most * 0.99) == (True, True)
            assert max(found) <= most

    def test_a_limit_that_opens_in_a_millisecond_refuses(self, pair):
        pair.put("a", Limit("z", rates=((1, 99),), on_limit="reschedule"))
        pair.claim()
        pair.end()
        pair.at(99)
        pair.put("a", Limit("z", rates=((1, 99),), on_limit="reschedule"))
        assert pair.claim() == ([], 1)
        pair.at(100)
        assert pair.claim()[0] == [2]

    def test_it_is_purged_with_its_queue(self, pair):
        pair.put("a", AGAIN, times=2)
        pair.claim()
        pair.both.run(("purge", "q"))
        assert pair.model.known == {"tag.1"}


def test_what_came_back_is_dropped_with_its_attempts(pair):
    pair.put("b", DROP)
    pair.claim()
    pair.end(Verdict.HEAD)
    pair.put("a", Limit("api", 1))
    pair.put("a")
    # It came back, so that it stands in a list of its kind.
    assert [part.kind for part in pair.model.lanes["q", "tenant:b"].lists] == ["x"]
    assert pair.claim()[0] == [2, 3]
    (outcome,) = pair.model.outcomes
    assert (outcome.task.tag, outcome.task.attempt) == ("tag.1", 1)


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.TAIL])
def test_a_limit_with_the_key_of_another_tenant_s_tier_opens_it_when_it_is_free(pair, verdict):
    pair.both.run(("tenant", "a", "free", "1"))
    pair.put("b", Limit("tenant:a", 5))
    assert pair.claim()[0] == [1]
    pair.put("a")
    # What b runs takes a's only slot.
    assert pair.claim()[0] == []
    assert pair.model.accounts["tenant:a"].closed
    pair.end(verdict)
    assert 2 in pair.claim()[0]


def test_what_stands_behind_a_hundred_lanes_of_a_kind_that_is_not_taken_is_served(pair):
    for number in range(100):
        pair.put("a", Limit(f"customer:{number}", 1), kind="x")
    pair.put("a", kind="y")
    # As many heads are set aside as one claim may; then it goes on.
    given = [number for _ in range(10) for number in pair.claim(never=["x"])[0]]
    assert given == [101]
