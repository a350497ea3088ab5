"""Limits that drop what they reject, or have it tried again later."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Put, Verdict
from tests.reference.budget import Budget
from tests.scheduler.shop import message_of, number_of
from tests.support.limits import changed

DROP = Limit("api", concurrency=1, on_limit="drop")
AGAIN = Limit("api", concurrency=1, on_limit="reschedule")
WAIT = Limit("wait", concurrency=1)
PAUSE = Limit("pause", concurrency=0, on_limit="drop")

#: Tasks that a rate puts back come so much further apart than it starts them.
APART = 1.03
JITTER_MS = 1_000


def test_what_a_full_limit_drops_is_forgotten_and_reported(shop):
    shop.put("a", DROP, times=3)
    assert shop.claim() == ([1], 0)
    assert shop.dropped() == [(2, "api"), (3, "api")]
    assert (shop.counts(), shop.exists()) == ({"dropped": 2, "rescheduled": 0}, [1])
    assert shop.size() == (0, 0)
    outcome = shop.next_outcome()
    assert (outcome.queue, outcome.owner, outcome.state) == ("q", "api", "dropped")
    assert outcome.message == message_of(2)


def test_it_acts_at_the_claim_and_not_at_the_put(shop):
    shop.put("a", DROP)
    shop.claim()
    shop.put("a", DROP)
    assert shop.dropped() == []
    shop.end()
    assert shop.claim()[0] == [2]
    assert shop.dropped() == []


def test_a_put_that_is_sent_again_after_it_was_dropped_is_known_until_its_result_is_written(shop):
    shop.put("a", DROP, times=2)
    shop.claim()
    assert shop.put("a", DROP, number=2) is Put.KNOWN
    outcome = shop.next_outcome()
    shop.next_outcome(outcome.name)
    assert shop.put("a", DROP, number=2) is Put.WAITS
    assert shop.exists() == [1, 2]


def test_who_was_dropped_is_not_charged(shop):
    shop.put("a", DROP, times=4)
    shop.put("b", times=3)
    assert shop.claim(want=3)[0] == [1, 5, 6]
    assert shop.counts()["dropped"] == 3
    shop.put("a", times=2)
    shop.put("b")
    # One start of a and two of b: a has one turn more.
    assert shop.claim(want=2)[0] == [8, 9]


@pytest.mark.parametrize(
    ("limits", "action"),
    [
        ((WAIT, DROP), "drop"),
        ((DROP, WAIT), "drop"),
        ((AGAIN, WAIT), "reschedule"),
        ((WAIT, AGAIN), "reschedule"),
        ((AGAIN, WAIT, Limit("other", concurrency=1, on_limit="drop")), "drop"),
        ((Limit("other", concurrency=1, on_limit="drop"), AGAIN), "drop"),
        ((PAUSE, DROP), "drop"),
        ((PAUSE, AGAIN), "reschedule"),
        ((WAIT,), "wait"),
        ((PAUSE,), "wait"),
        ((Limit("pause", concurrency=0, on_limit="reschedule"), WAIT), "wait"),
        ((Limit("open", concurrency=5, on_limit="drop"), WAIT), "wait"),
        ((Limit("open", concurrency=5, on_limit="drop"), AGAIN), "reschedule"),
    ],
)
def test_of_several_that_reject_the_hardest_acts_and_a_pause_only_waits(shop, limits, action):
    shop.put("a", *(changed(each, on_limit="wait") for each in limits if each["concurrency"]))
    assert len(shop.claim()[0]) == 1
    shop.put("b", *limits)
    assert shop.claim()[0] == []
    found = {
        "drop": shop.counts()["dropped"],
        "reschedule": shop.counts()["rescheduled"],
        "wait": shop.size()[0],
    }
    assert found == {**dict.fromkeys(found, 0), action: 1}


def test_the_obituary_names_the_limit_that_dropped_it(shop):
    rejecting = {"w": "wait", "x": "reschedule", "y": "drop", "z": "drop"}
    shop.put("a", *(Limit(key, concurrency=1) for key in rejecting))
    shop.claim()
    shop.put(
        "b", *(Limit(key, concurrency=1, on_limit=action) for key, action in rejecting.items())
    )
    shop.claim()
    assert shop.dropped() == [(2, "y")]
    outcome = shop.next_outcome()
    assert outcome.owner == "y"
    assert shop.next_outcome(outcome.name) is None
    assert shop.dropped() == []


def block(shop, on_limit, times=2):
    """Let tasks of b wait at one limit until it opens; the next start closes another of theirs."""
    shop.put("a", WAIT)
    assert shop.claim()[0] == [1]
    both = (WAIT, Limit("z", rate=((1, 5_000),), on_limit=on_limit))
    shop.put("b", *both, times=times)
    assert shop.claim()[0] == []
    shop.end()
    return both


class TestMovesOfOneClaim:
    """Each end of a task is a move, and a claim makes a bounded number of them."""

    @pytest.mark.parametrize("limit", [DROP, AGAIN])
    def test_a_claim_ends_a_bounded_number_and_says_that_there_are_more(self, make_shop, limit):
        shop = make_shop(budget=Budget(moves=3))
        shop.put("a", limit)
        shop.claim()
        shop.put("a", limit, times=7)
        emitted = []
        for _ in range(3):
            assert shop.claim()[0] == []
            emitted.append((sum(shop.counts().values()), shop.answer.sleep_ms == 0))
        assert emitted == [(3, True), (6, True), (7, False)]

    def test_one_that_dropped_all_there_was_sleeps(self, make_shop):
        shop = make_shop(budget=Budget(moves=3))
        shop.put("a", DROP)
        shop.claim()
        shop.put("a", DROP, times=3)
        assert shop.claim() == ([], 1000)
        assert shop.counts()["dropped"] == 3

    def test_of_a_group_too(self, make_shop):
        shop = make_shop(budget=Budget(moves=3))
        block(shop, "drop", times=6)
        assert shop.claim(want=1)[0] == [2]
        shop.end()
        assert [shop.claim() for _ in range(2)] == [([], 0), ([], 1000)]
        assert shop.counts()["dropped"] == 5


class TestBlocked:
    """A lane that waited at one limit is met by another, which drops it or has it tried again."""

    @pytest.mark.parametrize("on_limit", ["drop", "reschedule"])
    def test_its_head_goes_and_the_group_with_its_last(self, shop, on_limit):
        block(shop, on_limit)
        assert shop.claim(want=1)[0] == [2]
        shop.end()
        assert shop.size() == (1, 0)
        assert shop.claim()[0] == []
        assert sum(shop.counts().values()) == 1
        assert shop.size()[0] == 0

    def test_others_of_the_group_go_on(self, shop):
        both = block(shop, "drop", times=3)
        shop.put("c", *both, times=2)
        assert shop.claim(want=1)[0] == [2]
        shop.end()
        shop.at(1_000)
        shop.put("d")
        assert shop.claim()[0] == [7]
        assert [number for number, _ in shop.dropped()] == [3, 4, 5, 6]

    def test_what_this_process_does_not_take_another_drops(self, shop):
        block(shop, "drop")
        assert shop.claim(want=1)[0] == [2]
        shop.end()
        assert shop.claim(never=["x"])[0] == []
        assert shop.counts()["dropped"] == 0
        shop.claim()
        assert shop.counts()["dropped"] == 1

    def test_a_tenant_at_its_tiers_limit_is_not_dropped(self, shop):
        block(shop, "drop")
        assert shop.claim(want=1)[0] == [2]
        shop.put("b", queue="p")
        assert shop.claim(queues=["p"])[0] == [4]
        shop.tenant("b", "free", 1)
        # Of the two that run the one that holds the limits ends.
        shop.end_one(0)
        assert list(map(number_of, shop.running())) == [4]
        shop.claim()
        assert shop.counts()["dropped"] == 0
        shop.end()
        shop.claim()
        assert shop.counts()["dropped"] == 1

    def test_a_task_of_a_higher_rank_goes_first(self, shop):
        block(shop, "drop")
        assert shop.claim(want=1)[0] == [2]
        shop.end()
        shop.put("b", rank=9)
        assert shop.claim(want=1)[0] == [4]
        assert shop.counts()["dropped"] == 0


def test_of_a_kind_that_is_not_taken_nothing_is_dropped(shop):
    shop.put("a", DROP)
    shop.claim()
    shop.put("a", DROP, kind="y")
    shop.put("a", DROP)
    shop.claim(never=["y"])
    assert shop.dropped() == [(3, "api")]
    shop.claim()
    assert shop.counts()["dropped"] == 2


@pytest.mark.parametrize("enforcement", ["observe", "off"])
def test_who_enforces_nothing_drops_nothing(shop, enforcement):
    shop.put("a", DROP, times=3)
    shop.put("b", AGAIN)
    shop.put("c", PAUSE, DROP)
    assert shop.claim(enforcement=enforcement)[0] == [1, 4, 2, 3]
    assert shop.counts() == {"dropped": 0, "rescheduled": 0}
    assert shop.size() == (1, 0)


class TestTriedAgain:
    """A rescheduled task waits for its time, and is judged anew."""

    def test_it_comes_again_behind_others_and_ends_once(self, shop):
        shop.put("a", AGAIN, times=2)
        assert shop.claim()[0] == [1]
        (eta,) = shop.later()
        assert 1_000 <= eta <= 1_250
        assert shop.claim() == ([], min(eta, 1_000))
        shop.put("a")
        shop.at(eta - 1)
        assert shop.claim() == ([3], 0)
        shop.end()
        shop.at(eta)
        assert shop.claim()[0] == [2]
        assert shop.granted[-1].attempt == 1
        shop.end()
        assert shop.exists() == []

    def test_it_is_checked_anew_and_waits_another_time(self, shop):
        shop.put("a", AGAIN, times=2)
        shop.claim()
        first = shop.later()
        shop.at(1_300)
        assert shop.claim()[0] == []
        (second,) = shop.later()
        # A second is known for the mean, and what runs has run for longer.
        assert 2_600 <= second <= 2_925
        assert second - 2_600 != first[0] - 1_000, "another jitter"
        assert shop.counts()["rescheduled"] == 2

    def test_a_claim_sleeps_until_it_comes(self, shop):
        shop.put("a", Limit("z", rate=((1, 99),), on_limit="reschedule"), times=2)
        assert shop.claim(want=1)[0] == [1]
        shop.end()
        _, sleep_ms = shop.claim()
        assert shop.later() == [sleep_ms]
        assert 100 <= sleep_ms <= 125

    @pytest.mark.parametrize(
        ("limits", "least", "interval"),
        [
            ((AGAIN,), 1_000, 1_000),
            ((Limit("api", concurrency=4, on_limit="reschedule"),), 1_000, 250),
            ((Limit("z", rate=((1, 299),), on_limit="reschedule"),), 300, 299 * APART),
            ((Limit("z", rate=((1, 299), (5, 2_000)), on_limit="reschedule"),), 300, 400 * APART),
            ((Limit("z", throttle=((2, 600),), on_limit="reschedule"),), 270, 300 * APART),
            ((Limit("z", throttle=((3, 1_000),), on_limit="reschedule"),), 300, APART * 1_000 / 3),
            ((Limit("z", concurrency=1, rate=((1, 299),), on_limit="reschedule"),), 1_000, 1_000),
            (
                (Limit("z", concurrency=1, rate=((1, 8_000),), on_limit="reschedule"),),
                8_001,
                8_000 * APART,
            ),
            ((AGAIN, Limit("z", rate=((1, 8_000),))), 8_001, 1_000),
            (
                (Limit("y", rate=((1, 1_999),)), AGAIN, Limit("z", rate=((1, 99),))),
                *(2_000, 1_000),
            ),
            ((PAUSE, Limit("z", rate=((1, 99),), on_limit="reschedule")), 1_000, 99 * APART),
        ],
    )
    def test_s25_d10_the_first_comes_at_the_largest_wait_and_others_after_it(
        self, shop, limits, least, interval
    ):
        own = [changed(each, on_limit="wait") for each in limits if each["concurrency"] != 0]
        shop.put("a", *own, times=limits[0]["concurrency"] or 1)
        assert shop.claim()[0]
        shop.put("b", *limits, times=20)
        shop.claim()
        waits = [min(least + n * interval, 30_000) for n in range(20)]
        etas = shop.later()
        assert len(etas) == 20
        for wait, eta in zip(waits, etas, strict=True):
            most = 7_500 if wait == 30_000 else JITTER_MS
            assert int(wait) <= eta <= wait + 1 + min(wait // 4, most)

    def test_a_limit_that_opens_in_a_millisecond_rejects(self, shop):
        shop.put("a", Limit("z", rate=((1, 99),), on_limit="reschedule"))
        shop.claim()
        shop.end()
        shop.at(99)
        shop.put("a", Limit("z", rate=((1, 99),), on_limit="reschedule"))
        assert shop.claim() == ([], 1)
        shop.at(100)
        assert shop.claim()[0] == [2]

    def test_it_is_purged_with_its_queue(self, shop):
        shop.put("a", AGAIN, times=2)
        shop.claim()
        shop.purge()
        assert shop.exists() == [1]


def test_what_came_back_is_dropped(shop):
    shop.put("b", DROP)
    shop.claim()
    shop.end(Verdict.HEAD)
    shop.put("a", Limit("api", concurrency=1))
    shop.put("a")
    assert shop.claim()[0] == [2, 3]
    assert shop.dropped() == [(1, "api")]


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.TAIL])
def test_a_limit_with_the_key_of_another_tenant_s_tier_opens_it_when_it_is_free(shop, verdict):
    shop.tenant("a", "free", 1)
    shop.put("b", Limit("tenant:a", concurrency=5))
    assert shop.claim()[0] == [1]
    shop.put("a")
    # What b runs takes a's only slot.
    assert shop.claim()[0] == []
    shop.end(verdict)
    assert 2 in shop.claim()[0]


def test_what_stands_behind_a_hundred_lanes_of_a_kind_that_is_not_taken_is_served(shop):
    for number in range(100):
        shop.put("a", Limit(f"customer:{number}", concurrency=1), kind="x")
    shop.put("a", kind="y")
    # As many heads are set aside as one claim may; then it goes on.
    given = [number for _ in range(10) for number in shop.claim(never=["x"])[0]]
    assert given == [101]
