"""When tasks come again that a limit put back."""

from __future__ import annotations

from math import ceil

import pytest
from redis import Redis

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules
from tests.lua.dispatching import PREFIX, Dispatch

SECOND = 1_000
SNOOZE = 30 * SECOND
ONE = Limit("api", concurrency=1, on_limit="reschedule")
TWO = Limit("api", concurrency=2, on_limit="reschedule")
CROWD = 1_000
#: Tasks that a limit put back, and that a change of its key brings forward at most.
FORWARD_AT_MOST = 100


@pytest.fixture
def dispatch(redis_url):
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        client.flushdb()
        yield Dispatch(client, Rules(default_limit=None))


class Worker:
    """A worker with free places that claims whenever it wakes.

    Its tasks run for ``run_ms``; None: they never end.
    """

    def __init__(self, dispatch, run_ms=None):
        self.dispatch, self.run_ms = dispatch, run_ms
        self.running = []
        self.renewed = dispatch.now
        self.claims = self.starts = 0

    def run(self, seconds):
        """Return how many claims it made in these seconds, and how many tasks it started."""
        dispatch, claims, starts = self.dispatch, self.claims, self.starts
        ends = dispatch.now + seconds * SECOND
        while dispatch.now < ends:
            soonest = min([until for until, _ in self.running if until > dispatch.now] + [ends])
            # A call takes its time too.
            dispatch.now = min(dispatch.now + max(1, self.turn()), soonest)
        return self.claims - claims, self.starts - starts

    def turn(self):
        """Tell what ended and claim; return how long to sleep."""
        dispatch = self.dispatch
        dispatch.settle([task for until, task in self.running if until <= dispatch.now])
        self.running = [each for each in self.running if each[0] > dispatch.now]
        if dispatch.now - self.renewed >= dispatch.rules.lease_ms // 3:
            dispatch.renew([task for _, task in self.running])
            self.renewed = dispatch.now
        answer = dispatch.claim()
        self.claims, self.starts = self.claims + 1, self.starts + len(answer.tasks)
        lasts = 10**9 if self.run_ms is None else self.run_ms
        self.running += [(dispatch.now + lasts, task) for task in answer.tasks]
        return answer.sleep_ms


def rescheduled(dispatch):
    return int(dispatch.client.hget(PREFIX + "counters", "rescheduled") or 0)


def test_d10_a_crowd_at_a_full_limit_comes_once_in_a_snooze(dispatch):
    for _ in range(CROWD + 1):
        dispatch.put("a", limits=write_limits((ONE,)))
    worker = Worker(dispatch)
    worker.run(1)
    assert rescheduled(dispatch) == CROWD
    claims, starts = worker.run(60)
    # Each comes at most once in thirty seconds, and those of the first seconds once more.
    assert CROWD <= rescheduled(dispatch) - CROWD <= 2 * CROWD + 60
    assert (starts, claims < 60 * 2 * CROWD / 30 + 120) == (0, True), claims


def test_d10_a_crowd_at_a_limit_whose_tasks_end_has_as_many_tries_as_ends_beside_that(dispatch):
    limit = Limit("api", concurrency=5, on_limit="reschedule")
    for _ in range(300):
        dispatch.put("a", limits=write_limits((limit,)))
    worker = Worker(dispatch, run_ms=500)
    worker.run(2)
    before = rescheduled(dispatch)
    _, starts = worker.run(20)
    # A lease counts for a second until one has ended: one task came each fifth of it.
    assert 80 <= starts <= 200
    assert rescheduled(dispatch) - before < 300 * 20 / 30 + 200


@pytest.mark.parametrize(("starts", "seconds"), [(1, 20), (20, 10), (100, 4)])
@pytest.mark.parametrize("kind", ["rates", "throttle"])
def test_p10_what_a_rate_puts_back_comes_when_it_is_open(dispatch, kind, starts, seconds):
    window = (starts, SECOND)
    numbers = {"rate": (window,)} if kind == "rates" else {"throttle": (window,)}
    limit = Limit("api", **numbers, on_limit="reschedule")
    for _ in range((seconds + 4) * starts):
        dispatch.put("a", limits=write_limits((limit,)))
    worker = Worker(dispatch, run_ms=1)
    worker.run(2)
    _, started = worker.run(seconds)
    assert 0.95 * seconds * starts <= started <= seconds * starts + 1


def etas(shop):
    return shop.later()


def run_once(shop, limit, at, for_ms):
    shop.at(at)
    shop.put("a", limit)
    assert len(shop.claim()[0]) == 1
    # The logical clock goes a third of a lease in a call.
    for step in range(at, at + for_ms, 4 * SECOND):
        shop.at(step)
        shop.renew(*shop.running())
    shop.at(at + for_ms)
    shop.end()


class TestMean:
    """A lease is expected to live as long as those before it did."""

    def test_d10_the_first_comes_when_the_first_lease_is_expected_to_end(self, shop):
        run_once(shop, TWO, 0, 8 * SECOND)
        shop.at(10 * SECOND)
        shop.put("a", TWO)
        shop.claim()
        shop.at(12 * SECOND)
        shop.put("a", TWO, times=3)
        assert len(shop.claim()[0]) == 1
        # The first began at 10 s and lives for 8; two slots are free every 4 s.
        first, second = etas(shop)
        assert 18 * SECOND <= first <= 19 * SECOND
        assert 22 * SECOND <= second <= 23 * SECOND

    def test_the_mean_follows_what_ran_last(self, shop):
        run_once(shop, ONE, 0, 800)
        run_once(shop, ONE, 1_000, 1_600)
        shop.at(5_000)
        shop.put("a", ONE, times=2)
        shop.claim()
        (first,) = etas(shop)
        assert 5_000 + 1_000 <= first <= 5_000 + 1_250

    def test_what_runs_for_longer_than_the_mean_is_expected_to_go_on(self, shop):
        shop.put("a", ONE)
        shop.claim()
        shop.at(4 * SECOND)
        shop.put("a", ONE, times=2)
        shop.claim()
        first, second = etas(shop)
        assert 8 * SECOND <= first <= 9 * SECOND
        assert 12 * SECOND <= second <= 13 * SECOND

    def test_d10_nobody_waits_longer_than_the_snooze_and_its_jitter(self, shop):
        shop.put("a", ONE)
        shop.claim()
        shop.put("a", ONE, times=60)
        shop.claim()
        assert max(etas(shop)) <= SNOOZE + SNOOZE / 4
        last = [eta for eta in etas(shop) if eta >= SNOOZE]
        # Those at the end do not come at once.
        assert max(last) - min(last) > SNOOZE / 8


def crowd(shop, *limits, times=4, queue="q"):
    shop.put("a", *limits, queue=queue, times=times)
    given, sleep_ms = shop.claim(queues=[queue])
    while not sleep_ms:
        _, sleep_ms = shop.claim(queues=[queue])
    assert len(given) == 1
    assert len(shop.later(queue)) == times - 1


RAISE = {"concurrency": 5}


def put_back(dispatch, others_at):
    """Put twenty tasks for a time, then one back that a full limit rejects. Return its time."""
    dispatch.client.flushdb()
    for _ in range(20):
        dispatch.put("b", eta_ms=others_at)
    for tag in ("runs", "waits"):
        dispatch.put("a", tag=tag, limits=write_limits((ONE,)))
    assert [task.tag for task in dispatch.claim_all()] == ["runs"]
    return int(dispatch.client.zscore(f"{PREFIX}scheduled:q", member_of(dispatch, "waits")))


def member_of(dispatch, tag):
    (member,) = (
        each
        for each in dispatch.client.zrange(f"{PREFIX}scheduled:q", 0, -1)
        if each.endswith(f" {tag}")
    )
    return member


def test_a_task_comes_forward_from_among_many_that_wait_for_the_same_time(dispatch):
    due_ms = put_back(dispatch, dispatch.now + 60 * SECOND)
    assert put_back(dispatch, due_ms) == due_ms
    numbers = "C5"
    dispatch.run(
        calls.OVERRIDE,
        calls.override_args(
            *("api", numbers, 0, None, "{}"),
            *(dispatch.rules.lease_ms, dispatch.rules.enforcement, str(dispatch.now)),
        ),
    )
    assert [task.tag for task in dispatch.claim_all()] == ["waits"]


class TestForward:
    """When people say something else of a key, what it has put back is judged anew."""

    def test_rl_r_an_override_that_raises_acts_at_the_next_claim(self, shop):
        crowd(shop, ONE)
        shop.at(10)
        assert shop.claim()[0] == []
        shop.override("api", **RAISE)
        assert shop.is_woken()
        assert sorted(shop.claim()[0]) == [2, 3, 4]

    def test_one_that_ends_acts_too(self, shop):
        shop.override("api", 2_000, concurrency=1)
        crowd(shop, Limit("api", concurrency=5, on_limit="reschedule"))
        shop.at(2_000)
        given = [number for _ in range(3) for number in shop.claim()[0]]
        assert sorted(given) == [2, 3, 4]

    def test_a_resume_acts_at_once(self, shop):
        crowd(shop, ONE)
        shop.stop("pause", "api")
        shop.override("api", **RAISE)
        assert [shop.claim()[0] for _ in range(2)] == [[], []]
        shop.stop("resume", "api")
        assert sorted(shop.claim()[0]) == [2, 3, 4]

    def test_new_numbers_of_a_queue_act_on_it_and_on_its_partitions(self, shop):
        part = Limit("queue:q:1", of=OF_QUEUE)
        shop.limit_queue(how="declare", part={"concurrency": 1, "on_limit": "reschedule"})
        crowd(shop, part)
        shop.limit_queue(part={"concurrency": 5, "on_limit": "reschedule"})
        given = [number for _ in range(2) for number in shop.claim()[0]]
        assert sorted(given) == [2, 3, 4]

    def test_another_key_acts_on_nothing(self, shop):
        crowd(shop, ONE)
        before = etas(shop)
        shop.override("other", **RAISE)
        assert etas(shop) == before

    def test_what_is_rejected_again_has_a_time_of_the_new_numbers(self, shop):
        crowd(shop, ONE, times=30)
        assert max(etas(shop)) >= 29 * SECOND
        shop.override("api", concurrency=10)
        for _ in range(3):
            shop.claim()
        assert len(etas(shop)) == 20
        assert max(etas(shop)) <= 4 * SECOND

    def test_what_has_come_or_is_cancelled_meanwhile_is_left_where_it_is(self, shop):
        crowd(shop, ONE)
        shop.cancel(2)
        first = min(etas(shop))
        shop.at(first)
        shop.claim()
        shop.override("api", **RAISE)
        given = [number for _ in range(2) for number in shop.claim()[0]]
        assert len(given) == 2

    def test_of_a_crowd_a_hundred_come_at_once_and_the_others_at_their_time(self, shop):
        crowd(shop, ONE, times=FORWARD_AT_MOST + 11)
        shop.override("api", concurrency=None)
        given = sum(len(shop.claim(want=50)[0]) for _ in range(ceil(FORWARD_AT_MOST / 16) + 1))
        assert (given, len(shop.later())) == (FORWARD_AT_MOST, 10)
        # They come with the old times.
        shop.at(SNOOZE + SNOOZE // 4)
        assert len(shop.claim(want=50)[0]) == 10
