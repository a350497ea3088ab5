"""The rate-limiting extension of the Open Job Spec, row by row: a limit beside the tier's.

Each test is named by the rows that it holds (S-04 is ``s04``, RL-R001 is ``rlr001``; D-11 is a
decision where the spec is silent). Rows of the gate path are in ``tests/contract``, and
most of those of queue limits in ``test_queue_limits``; those of metrics and HTTP come with what
they speak of.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from redis import Redis

from celery_fairness import PolicyInvalid, RateLimitPolicy
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Bounds, Full, Put, Rules, Settle, Verdict, Waiting
from tests.support.library import call

TWO = Limit("api", concurrency=2)
FIVE_A_SECOND = Limit("api", rate=((5, 1_000),))
SPACED = Limit("api", throttle=((5, 1_000),))
#: An override without any number.
NO_NUMBERS = {"concurrency": None, "rate": None, "throttle": None}
PAGE = Path(__file__).parents[2] / "docs/reference/limits.md"


def starts(shop, limit, milliseconds, step=10):
    """Let tasks of one key start as soon as they may; return when each did."""
    shop.put("a", limit, times=60)
    seen = []
    for now in range(0, milliseconds, step):
        shop.at(now)
        given, _ = shop.claim()
        seen += [now] * len(given)
        shop.end()
    return seen


# -- 4 and 5.1: concurrency -----------------------------------------------------------------------


def test_s01_s19_rl001_claimers_at_once_start_no_more_than_the_limit(redis_url):
    prefix, limits = "{s01}:", write_limits((Limit("api", concurrency=3),))
    rules, most, ran = Rules(), [], []
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        for number in range(200):
            waiting = Waiting("q", f"t{number}", f"u{number % 7}", limits=limits)
            call(client, calls.PUT, prefix, calls.put_args(waiting))

        def work(owner):
            with Redis.from_url(redis_url, protocol=2, decode_responses=True) as own:
                for number in range(1, 1_000):
                    args = calls.claim_args(owner, number, 5, ["q"], rules)
                    tasks = calls.read_claim(call(own, calls.CLAIM, prefix, args)).tasks
                    most.append(own.zcard(f"{prefix}leases:api"))
                    ends = [Settle(task.lease, Verdict.DONE) for task in tasks]
                    ran.extend(end.lease for end in ends)
                    call(own, calls.SETTLE, prefix, calls.settle_args(ends, rules))
                    if len(ran) == 200:
                        return

        workers = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert max(most) == 3
    assert len(ran) == len(set(ran)) == 200


def test_s02_rl002_all_limits_of_a_task_are_satisfied_before_it_starts(shop):
    other, rate = Limit("db", concurrency=3), Limit("mail", rate=((1, 1_000),))
    shop.put("a", TWO, other, rate, times=2)
    shop.put("b", other, times=3)
    assert shop.claim()[0] == [1, 3, 4]
    shop.end_one(0)
    assert shop.claim()[0] == [5]
    shop.end()
    shop.at(1_001)
    assert shop.claim()[0] == [2]


def test_s02_s22_rl002_a_rate_and_a_throttle_of_one_limit_are_both_satisfied(shop):
    both = Limit("api", rate=((2, 4_000),), throttle=((1, 1_000),))
    shop.put("a", both, times=3)
    started = {}
    for now in range(0, 6_000, 100):
        shop.at(now)
        for number in shop.claim()[0]:
            started[number] = now
        shop.end()
    # The rate has room for the second, which the throttle keeps for an interval less the tenth that
    # it makes up for; for the third the throttle is open, and the rate keeps it.
    assert started == {1: 0, 2: 900, 3: 4_100}


@pytest.mark.parametrize(
    ("of_queue", "limit", "binds"),
    [
        ({"concurrency": 1}, Limit("api", concurrency=2), "queue:q"),
        ({"rate": ((1, 60_000),)}, Limit("api", concurrency=2), "queue:q"),
        ({"throttle": ((1, 60_000),)}, Limit("api", rate=((2, 60_000),)), "queue:q"),
        ({"concurrency": 2}, Limit("api", concurrency=1), "api"),
        ({"rate": ((2, 60_000),)}, Limit("api", concurrency=1), "api"),
        ({"concurrency": 2}, Limit("api", rate=((1, 60_000),)), "api"),
        ({"rate": ((2, 60_000),)}, Limit("api", throttle=((1, 60_000),)), "api"),
    ],
)
def test_s02_s32_rlr005_of_a_queue_s_limit_and_a_task_s_the_stricter_binds(
    shop, of_queue, limit, binds
):
    shop.limit_queue(**of_queue)
    shop.put("a", limit, times=3)
    assert shop.claim()[0] == [1]
    assert shop.claim()[0] == []
    # Without the one that binds the other one still holds.
    if binds == "queue:q":
        shop.limit_queue(how="clear")
    else:
        shop.override("api", **NO_NUMBERS)
    assert shop.claim()[0] == [2]
    assert shop.claim()[0] == []


def test_s03_s24_s27_rl003_by_default_a_task_over_its_limit_is_held_and_runs_later(shop):
    assert RateLimitPolicy("api", concurrency=2).on_limit == "wait"
    shop.put("a", TWO, times=3)
    assert shop.claim()[0] == [1, 2]
    assert (shop.dropped(), shop.later()) == ([], [])
    shop.end()
    assert shop.claim()[0] == [3]


def test_s04_s05_s36_at_the_limit_nothing_is_assigned_and_the_task_stays_available(shop):
    shop.put("a", TWO, times=3)
    assert shop.claim()[0] == [1, 2]
    for _ in range(3):
        assert shop.claim()[0] == []
    assert shop.size() == (1, 0)
    assert 3 in shop.exists()


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.TAIL, Verdict.DIED, Verdict.UNREADABLE])
def test_s06_s07_it_is_assigned_when_one_ends_however_it_does(shop, verdict):
    shop.put("a", TWO, times=3)
    assert shop.claim()[0] == [1, 2]
    shop.end_one(0, verdict)
    assert shop.claim(want=1)[0] == ([1] if verdict is Verdict.DIED else [3])
    assert shop.held("api") == 2


def test_s06_s07_it_is_assigned_when_a_lease_ends_by_itself_and_a_late_end_frees_nothing(shop):
    shop.put("a", TWO, times=4)
    assert shop.claim(want=2)[0] == [1, 2]
    lease_ms = shop.rules.lease_ms
    given = []
    for third in range(1, 6):
        # The clock moves on by a third of a lease at most.
        shop.at(third * lease_ms // 3)
        given += shop.claim()[0]
    assert given == [1, 2]
    shop.end_late(0)
    assert shop.held("api") == 2
    assert shop.claim()[0] == []


# -- 5.2: rate ------------------------------------------------------------------------------------


def test_s08_s09_s11_s20_rlr001_no_window_has_more_starts_than_the_rate(shop):
    seen = starts(shop, FIVE_A_SECOND, 12_000)
    windows = [sum(at <= other < at + 1_000 for other in seen) for at in seen]
    assert max(windows) == 5
    assert len(seen) == 60
    # The first five find an empty window; of what fits from then on 95 % start at least.
    assert (len(seen) - 5) * 1_000 / (seen[-1] - seen[0]) >= 0.95 * 5


def test_s10_it_goes_on_when_the_window_moves_on_and_says_when(shop):
    shop.put("a", FIVE_A_SECOND, times=6)
    assert shop.claim()[0] == [1, 2, 3, 4, 5]
    shop.at(400)
    assert shop.claim() == ([], 601)
    shop.at(999)
    assert shop.claim() == ([], 2)
    shop.at(1_001)
    assert shop.claim()[0] == [6]


def test_s12_the_window_is_documented():
    assert "sliding window" in PAGE.read_text()


# -- 5.3: throttle --------------------------------------------------------------------------------


def test_s13_s14_s21_rlr002_starts_are_spaced_evenly(shop):
    seen = starts(shop, SPACED, 3_000)
    gaps = [after - before for before, after in itertools.pairwise(seen)]
    assert min(gaps) >= 0.9 * 200
    assert 15 <= len(seen) <= 16


# -- 6: the policy --------------------------------------------------------------------------------


def test_s15_d01_a_policy_is_read_as_the_spec_writes_it_and_written_again():
    emitted = {
        "key": "api",
        "concurrency": 2,
        "rate": {"limit": 5, "period": "PT1M"},
        "throttle": {"limit": 10, "period": "PT1H"},
        "on_limit": "drop",
    }
    policy = RateLimitPolicy.from_ojs(emitted)
    assert policy.to_ojs() == emitted
    assert policy.rate.window == (5, 60_000)


def test_s16_rl002_d03_tasks_of_one_key_share_its_counts_and_its_newest_numbers(shop):
    shop.put("a", Limit("api", concurrency=1), times=2)
    shop.put("b", Limit("api", concurrency=3), times=3)
    shop.put("c", Limit("other", concurrency=1))
    assert shop.claim()[0] == [1, 3, 6, 2]
    shop.put("d", Limit("api", concurrency=1))
    shop.end_one(0)
    assert shop.claim()[0] == []
    shop.end()
    assert shop.claim()[0] == [4]


@pytest.mark.parametrize("key", ["", "-a", ".a", "a b", "ü", "a/b", "a\n", 7, None])
def test_s16_s17_a_key_is_required_and_of_the_form_of_the_spec(key):
    with pytest.raises(PolicyInvalid, match="key: expected"):
        RateLimitPolicy.from_ojs({"key": key, "concurrency": 1})


def test_s18_no_concurrency_is_unlimited_and_0_pauses(shop):
    assert RateLimitPolicy.from_ojs({"key": "api", "concurrency": None}).concurrency is None
    shop.put("a", Limit("api"), times=2)
    shop.put("a", Limit("api", concurrency=0))
    assert shop.claim()[0] == [1, 2]
    shop.end()
    assert shop.claim()[0] == []
    with pytest.raises(PolicyInvalid, match="concurrency: expected"):
        RateLimitPolicy.from_ojs({"key": "api", "concurrency": -1})


@pytest.mark.parametrize("field", ["rate", "throttle"])
@pytest.mark.parametrize("given", [{"limit": 5}, {"period": "PT1S"}, {}])
def test_s23_a_rate_and_a_throttle_have_both_limit_and_period(field, given):
    with pytest.raises(PolicyInvalid, match=f"{field}"):
        RateLimitPolicy.from_ojs({"key": "api", field: given})


def test_s25_d19_what_is_rescheduled_waits_for_a_time(shop):
    shop.put("a", Limit("api", rate=((1, 2_000),), on_limit="reschedule"), times=2)
    assert shop.claim()[0] == [1]
    (at,) = shop.later()
    assert 2_000 <= at <= 3_001
    shop.end()
    shop.at(at)
    assert shop.claim()[0] == [2]


def test_s26_d11_d17_what_is_dropped_ends_at_the_claim_that_rejects_it_and_not_before(shop):
    shop.put("a", Limit("api", concurrency=1, on_limit="drop"), times=2)
    assert shop.size() == (2, 0)
    assert shop.claim()[0] == [1]
    assert shop.dropped() == [(2, "api")]
    assert shop.size() == (0, 0)


def test_s28_a_limit_without_a_key_names_the_place_of_queue_limits():
    with pytest.raises(PolicyInvalid, match="a limit without one belongs to its queue"):
        RateLimitPolicy.from_ojs({"concurrency": 1})


# -- 8: fetching ----------------------------------------------------------------------------------


def test_s33_s34_rl004_what_is_rejected_is_skipped_for_the_next_that_may_start(shop):
    shop.put("a", Limit("api", concurrency=0), times=100)
    shop.put("a")
    shop.put("b")
    assert sorted(shop.claim()[0]) == [101, 102]


def test_s35_rl004_where_nothing_may_start_the_answer_is_that_of_an_empty_queue(shop):
    _, empty = shop.claim()
    shop.put("a", Limit("api", concurrency=0))
    assert shop.claim()[0] == []
    assert shop.claim() == ([], empty)


@pytest.mark.parametrize("scope", ["tenant", "queue"])
def test_s37_d08_d21_what_waited_at_a_limit_goes_by_its_priority(shop, scope):
    shop.put("a", Limit("api", concurrency=1))
    assert shop.claim(scope=scope)[0] == [1]
    for rank in (0, 9, 4):
        shop.put("a", Limit("api", concurrency=1), rank=rank)
    order = []
    for _ in range(3):
        shop.end()
        order += shop.claim(scope=scope)[0]
    assert order == [3, 4, 2]


@pytest.mark.parametrize("scope", ["tenant", "queue"])
def test_s38_a_lower_priority_without_a_limit_is_assigned_in_its_place(shop, scope):
    shop.put("a", Limit("api", concurrency=0), rank=9)
    shop.put("a", rank=0)
    assert shop.claim(scope=scope)[0] == [2]


def test_s39_a_wait_at_a_limit_spends_no_attempt_and_no_lease(shop):
    shop.put("a", Limit("api", concurrency=1), times=2)
    assert shop.claim()[0] == [1]
    shop.put("b")
    shop.claim()
    shop.at(3_600_000)
    shop.renew(*shop.running())
    shop.end()
    assert shop.claim()[0] == [2]
    assert shop.granted[-1].attempt == 1


# -- 9: what others say ---------------------------------------------------------------------------


def test_s40_s41_s42_rlr003_a_key_that_was_too_much_for_somebody_starts_nothing_until_then(shop):
    shop.put("a", TWO, times=2)
    shop.put("b", Limit("other", concurrency=1))
    shop.stop("cool", "api", 5_000)
    assert shop.claim()[0] == [3]
    shop.at(4_999)
    assert shop.claim()[0] == []
    shop.at(5_000)
    assert shop.claim()[0] == [1, 2]


def test_s44_rlr004_d04_an_override_stands_in_the_place_of_single_numbers_until_its_end(shop):
    shop.put("a", Limit("api", concurrency=1, rate=((3, 60_000),)), times=4)
    shop.override("api", 5_000, concurrency=2)
    assert shop.claim()[0] == [1, 2]
    shop.end()
    assert shop.claim()[0] == [3], "the rate is not said, and is as it was"
    shop.override("api", 5_000, concurrency=None, rate=None)
    assert shop.claim()[0] == [4], "null is unlimited"
    shop.end()
    shop.put("a", Limit("api", concurrency=1), times=2)
    shop.at(5_000)
    assert shop.claim()[0] == [5], "its end has come"


# -- 11: events -----------------------------------------------------------------------------------


def emitted(shop):
    """Return the events since the last call by type; of a task its number alone."""
    found = defaultdict(list)
    for kind, fields in shop.events():
        found[kind.removeprefix("rate_limit.")].append(
            {
                name: int("".join(filter(str.isdigit, value))) if name == "job_id" else value
                for name, value in fields.items()
                if name not in ("job_type", "queue")
            }
        )
    return found


def test_s46_rl006_d12_a_job_that_is_blocked_is_reported_once_and_each_rejection_is_not(shop):
    shop.put("a", Limit("api", concurrency=1), times=2)
    for _ in range(3):
        shop.claim()
    numbers = {"key": "api", "strategy": "concurrency", "limit": "1", "current": "1"}
    assert emitted(shop)["exceeded"] == [{**numbers, "job_id": 2}]


def test_s47_rl006_d13_one_released_for_each_exceeded_with_the_same_job(shop):
    shop.put("a", Limit("api", concurrency=1), times=3)
    for _ in range(6):
        shop.claim()
        shop.end()
    events = emitted(shop)
    ids = [[fields["job_id"] for fields in events[what]] for what in ("exceeded", "released")]
    assert ids == [[2, 3]] * 2
    assert {fields["strategy"] for fields in events["released"]} == {"concurrency"}


def test_s48_a_job_that_is_dropped_is_reported(shop):
    shop.put("a", Limit("full", concurrency=1, on_limit="drop"), times=2)
    shop.claim()
    assert emitted(shop) == {"dropped": [{"key": "full", "job_id": 2}]}


def test_s49_a_key_that_cools_down_is_reported_with_its_time_and_reason(shop):
    shop.stop("cool", "api", 5_000)
    until = str(shop.now + 5_000)
    events = emitted(shop)
    assert events == {"dynamic_adjusted": [{"key": "api", "until": until, "reason": "a reason"}]}
    shop.stop("cool", "api", 1_000)
    assert not emitted(shop), "what is shorter changes nothing"


# -- 13: backpressure -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "key"), [(Bounds(of_tier=2), "tenant:a"), (Bounds(of_queue=2), "queue:q")]
)
def test_s54_over_a_bound_a_job_is_rejected_where_it_is_put(shop, bounds, key):
    assert shop.put("a", bounds=bounds, times=2) is Put.WAITS
    assert shop.put("a", bounds=bounds) == Full(key, 2, 2)
    assert shop.exists() == [1, 2]
    assert shop.claim()[0] == [1, 2]
