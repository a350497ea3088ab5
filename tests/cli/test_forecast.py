"""When a task is expected to start, against when it does, on steady loads and a frozen clock.

Whoever explains reads the server's time, so that is made the time of the play before; then it is
played on.
"""

from __future__ import annotations

import json
import time

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.tiers import Tier
from celery_fairness.control.key.snapshot import KeyState
from celery_fairness.control.task.forecast import Before, wait_for_slot
from celery_fairness.limiter.types import HeldLease
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Verdict, Waiting
from tests.cli.conftest import Installation
from tests.support.library import call, tag_of

STEP_MS = 100
RULES = Rules(default_limit=None, lease_ms=15_000)
#: Steps after which a test gives up.
STEPS_AT_MOST = 20_000


class Load:
    """Workers with so many places, on the scripts; `takes` says how long a task of a kind does.

    `alone`: ends are told by themselves, as where places are free and no claim waits for one.
    """

    def __init__(self, client, places, takes, rules=RULES, queues=("celery",), *, alone=False):
        self.client, self.places, self.takes, self.alone = client, places, takes, alone
        self.rules, self.queues = rules, queues
        self.now = 1_760_000_000_000
        self.number = 0
        self.runs = []
        self.started = {}
        client.flushdb()

    def run(self, verb, args):
        return call(self.client, verb, "{fairness}:", args)

    def put(self, tenant, task_id, kind="work", queue="celery", message=None, **fields):
        message = json.dumps({"headers": message or {"id": task_id, "task": kind}})
        waiting = Waiting(
            queue, task_id, tenant, message=message, kind=kind, task_id=task_id, **fields
        )
        self.run(calls.PUT, calls.put_args(waiting, str(self.now)))

    def step(self):
        """A worker claims, and tells with it what has ended."""
        self.now += STEP_MS
        ended = [each for each in self.runs if each[0] <= self.now]
        self.runs = [each for each in self.runs if each[0] > self.now]
        ends = [Settle(task.lease, Verdict.DONE) for _, task in ended]
        if self.alone and ends:
            self.run(calls.SETTLE, calls.settle_args(ends, self.rules, str(self.now)))
            ends = []
        while True:
            self.number += 1
            want = self.places - len(self.runs)
            args = calls.claim_args(
                *("w", self.number, want, self.queues, self.rules, str(self.now)), ends=ends
            )
            ends = []
            answer = calls.read_claim(self.run(calls.CLAIM, args))
            for task in answer.tasks:
                kind = json.loads(task.message)["headers"]["task"]
                self.runs.append((self.now + self.takes[kind], task))
                self.started[tag_of(task.lease)] = self.now
            if answer.sleep_ms or len(self.runs) == self.places:
                break
        held = [(task.lease, task.key) for _, task in self.runs]
        self.run(calls.RENEW, calls.renew_args(held, self.rules, None, str(self.now)))

    def play(self, ms, come=lambda: None):
        """Play so long, and then be at this moment."""
        for _ in range(ms // STEP_MS):
            come()
            self.step()
        self.be_now()

    def be_now(self):
        """This moment is that of the server: the logical clock stands where it was."""
        now = int(time.time() * 1000)
        self.runs = [(end + now - self.now, task) for end, task in self.runs]
        self.now = now
        self.client.hset("{fairness}:clock", "seen", now)

    def start_of(self, task_id):
        """Play on until it starts; return how long that took."""
        begun = self.now
        for _ in range(STEPS_AT_MOST):
            if task_id in self.started:
                return (self.started[task_id] - begun) / 1000
            self.step()
        raise AssertionError("it does not start")


@pytest.fixture
def load(client, fairness):
    def make(*args, **named):
        made = Load(client, *args, **named)
        tiers = {"free": None, "pro": 3, "one": 1}
        fairness.tenants.publish_tiers(Tier(name, limit) for name, limit in tiers.items())
        return made

    return make


def agree(fairness, load, task_id, by=2):
    load.be_now()
    found = fairness.tasks.explain(task_id)
    expected, true = found.starts_in_seconds, load.start_of(task_id)
    assert expected is not None
    assert true / by <= expected <= true * by, f"expected {expected}, it was {true}"
    return found


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("place", [3, 10, 39])
def test_behind_its_tenants_limit(load, fairness, place, alone):
    made = load(10, {"work": 4_000}, alone=alone)
    for number in range(60):
        made.put("42", f"t{number}", tier="pro")
    made.play(13_000)
    found = agree(fairness, made, f"t{len(made.started) + place}")
    assert [each.key for each in found.blocked_by] == ["tenant:42"]
    assert [round(each.usual_seconds) for each in found.blocked_by[0].holders] == [4, 4, 4]


@pytest.mark.parametrize("tenant", ["quiet", "noisy"])
def test_where_all_places_are_taken(load, fairness, tenant):
    made = load(4, {"work": 2_000})
    for number in range(80):
        made.put("noisy", f"noisy-{number}")
    made.play(9_000)
    for other in range(5):
        for number in range(3):
            made.put(f"other-{other}", f"other-{other}-{number}")
    made.put("quiet", "quiet-0")
    made.put("quiet", "quiet-60")
    agree(fairness, made, f"{tenant}-60")


def test_at_a_limit_that_tenants_share(load, fairness):
    made = load(10, {"pay": 3_000, "work": 500})
    api = write_limits((Limit("api", concurrency=2),))
    for number in range(40):
        made.put("a", f"a{number}", kind="pay", limits=api)
    made.play(10_000, lambda: made.put("other", f"o{made.now}"))
    for tenant in "bcd":
        for number in range(4):
            made.put(tenant, f"{tenant}{number}", kind="pay", limits=api)
    made.step()
    found = agree(fairness, made, "c3")
    assert [(each.key, each.reason) for each in found.blocked_by] == [("api", "concurrency")]


@pytest.mark.parametrize(
    "limit", [Limit("mail", rate=((5, 10_000),)), Limit("mail", throttle=((5, 10_000),))]
)
def test_at_a_rate(load, fairness, limit):
    made = load(10, {"mail": 200})
    for number in range(40):
        made.put("a", f"t{number}", kind="mail", limits=write_limits((limit,)))
    made.play(13_000)
    agree(fairness, made, f"t{len(made.started) + 12}")


@pytest.mark.parametrize(
    "limit", [Limit("mail", rate=((1, 60_000),)), Limit("mail", throttle=((1, 60_000),))]
)
def test_after_a_minute_without_a_worker_a_start_is_expected_when_its_rate_allows_it(
    client, load, fairness, limit
):
    made = load(10, {"mail": 200})
    for number in range(2):
        made.put("a", f"t{number}", kind="mail", limits=write_limits((limit,)))
    made.play(1_000)
    client.hincrby("{fairness}:clock", "seen", -60_000)
    found = fairness.tasks.explain("t1")
    assert found.blocked_by[0].opens_in_seconds > 40
    assert found.starts_in_seconds == pytest.approx(found.blocked_by[0].opens_in_seconds, abs=1)


def test_where_nothing_is_known_nothing_is_said(load, fairness, run):
    made = load(10, {"work": 4_000})
    for number in range(3):
        made.put("42", f"t{number}", tier="one")
    made.play(1_000)
    found = fairness.tasks.explain("t2")
    assert found.starts_in_seconds is None
    ((blocker,),) = (found.blocked_by,)
    assert blocker.holders[0].usual_seconds is None
    assert 0.5 < blocker.holders[0].held_seconds < 60
    assert "expected" not in run("task", "explain", "t2").output


def test_a_key_that_is_paused_says_no_time(load, fairness):
    made = load(1, {"work": 500})
    for number in range(9):
        made.put("42", f"t{number}")
    made.play(2_000)
    assert fairness.tasks.explain("t8").starts_in_seconds is not None
    fairness.tenants.pause("42")
    assert fairness.tasks.explain("t8").starts_in_seconds is None


def test_people_are_told(load, fairness, run, client):
    made = load(4, {"work": 4_000})
    for number in range(9):
        made.put("42", f"t{number}", tier="one")
    made.play(9_000)
    Installation(client).announce("celery")
    output = run("task", "explain", "t8").output
    assert "expected to start in about " in output
    assert "held for" in output
    assert "held for" in run("limit", "show", "tenant:42").output


def test_a_caller_that_holds_the_slot_is_named(load, fairness, run):
    made = load(4, {"work": 4_000})
    one = write_limits((Limit("api", concurrency=1),))
    ids = ["grandparent", "parent", "child", "stranger"]
    for number, each in enumerate(ids[:3]):
        headers = {"id": each, "task": "work"}
        if number:
            headers |= {"parent_id": ids[number - 1], "root_id": ids[0]}
        made.put("42", each, limits="" if number == 1 else one, message=headers)
    made.put("42", "stranger", limits=one)
    made.play(1_000)
    (blocker,) = fairness.tasks.explain("child").blocked_by
    assert blocker.callers == ("grandparent",)
    assert [each.task_id for each in blocker.holders] == ["grandparent"]
    line = "grandparent, which called it, holds a slot of api: if that waits for its result, "
    assert line + "neither ends" in run("task", "explain", "child").output
    assert fairness.tasks.explain("stranger").blocked_by[0].callers == ()


@pytest.mark.parametrize("others", [0, 11])
def test_a_limit_with_many_holders_is_expected_alike_beside_other_limits(load, fairness, others):
    """The holders of the limit run longer than the other tasks, and began one after the other."""
    made = load(60, {"work": 20_000, "short": 1_000})
    more = (Limit(f"other{number}", concurrency=1_000) for number in range(others))
    limits = write_limits((Limit("api", concurrency=40), *more))
    steps = iter(range(1_000))

    def come():
        step = next(steps)
        if step % 5 == 0:
            made.put(f"u{step % 7}", f"work{step}", limits=limits)
        for number in range(2):
            made.put("s", f"short{step}.{number}", kind="short")

    made.play(61_000, come)
    for number in range(25):
        made.put("z", f"before{number}", limits=limits)
    made.put("z", "last", limits=limits)
    agree(fairness, made, "last", by=1.2)


def test_a_sample_of_the_holders_is_expected_as_all_of_them():
    """Of 60 slots 40 are held, by tasks of 20 s that began one after the other."""
    holders = [HeldLease("", 0.0, held_seconds=age / 2, usual_seconds=20.0) for age in range(40)]

    def expected(leases):
        state = KeyState(
            "api", Limit("api", concurrency=60), None, 40, tuple(leases), "", None, None, None
        )
        return wait_for_slot(state, 60, Before(50, 20.0))

    assert expected(holders[::4]) == pytest.approx(expected(holders), rel=0.1)


def test_who_has_more_weight_goes_before(load, fairness):
    made = load(2, {"work": 1_000})
    fairness.tenants.publish_tiers([Tier("free", None), Tier("pro", None, weight=5.0)])
    made.put("heavy", "h", tier="pro")
    for number in range(60):
        made.put("heavy", f"h{number}", tier="pro")
        made.put("light", f"l{number}", tier="free")
    made.play(4_000)
    agree(fairness, made, "l6", by=1.5)
