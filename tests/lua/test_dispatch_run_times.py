"""The row of `running`: since when a task holds its place, and the mean time of its name."""

from __future__ import annotations

import re

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Settled, Verdict
from tests.lua.dispatching import NOW, PREFIX, Dispatch

ROW = re.compile(r"(\S+) w1 ([a-z]+)(\S*) tenant:\S+ .*")


@pytest.fixture
def dispatch(client):
    return Dispatch(client, Rules(default_limit=None))


def rows(client):
    """Return the state of each lease, and the text behind the state."""
    found = {}
    for tag, text in client.hgetall(PREFIX + "running").items():
        attempt, state, since = ROW.fullmatch(text).groups()
        found[f"{tag}.{attempt}"] = (state, since)
    return found


def claim_and_tell(dispatch, *tasks, verdict=Verdict.DONE):
    dispatch.number += 1
    ends = [Settle(task.lease, verdict) for task in tasks]
    text = str(dispatch.now)
    args = calls.claim_args("w1", dispatch.number, 10, ["q"], dispatch.rules, text, ends=ends)
    return calls.read_claim(dispatch.run(calls.CLAIM, args)).tasks


def test_a_row_says_since_when_until_it_ends(dispatch, client):
    dispatch.put("a", kind="x")
    (task,) = dispatch.claim().tasks
    assert rows(client) == {"t1.1.w1": ("claimed", f"@{NOW}")}
    dispatch.now += 1_000
    for verdict in (Verdict.BEGUN, Verdict.ACKED):
        assert dispatch.settle([task], verdict) == [Settled.SETTLED]
        assert rows(client) == {"t1.1.w1": (verdict.value, f"@{NOW}")}
    dispatch.settle([task])
    assert rows(client) == {}


def test_a_start_carries_what_tasks_of_its_name_took(dispatch, client):
    for kind in ("x", "x", "y"):
        dispatch.put("a", kind=kind)
    first = dispatch.claim(want=2).tasks
    dispatch.now += 800
    dispatch.put("b", kind="x")
    # Of y it has heard nothing.
    claim_and_tell(dispatch, first[0])
    told = {lease: told for lease, (_, told) in rows(client).items()}
    now = NOW + 800
    assert told == {"t2.1.w1": f"@{NOW}", "t3.1.w1": f"@{now}", "t4.1.w1": f"@{now}~800"}


def test_the_mean_goes_on_and_moves_by_an_eighth(dispatch, client):
    dispatch.put("a", kind="x")
    tasks = dispatch.claim().tasks
    for took, mean in ((800, 800), (1_600, 900), (100, 800)):
        dispatch.now += took
        dispatch.put("a", kind="x")
        tasks = claim_and_tell(dispatch, *tasks)
        ((_, told),) = rows(client).values()
        assert told == f"@{dispatch.now}~{mean}"


def test_of_several_ends_in_one_call_each_moves_it(dispatch, client):
    for _ in range(2):
        dispatch.put("a", kind="x")
    tasks = dispatch.claim().tasks
    dispatch.now += 800
    dispatch.settle(tasks[:1])
    dispatch.put("a", kind="x")
    other = dispatch.claim().tasks
    dispatch.now += 800
    dispatch.put("a", kind="x")
    claim_and_tell(dispatch, tasks[1], other[0])
    # The mean of 1600 and 800; what ended before was told with no claim.
    ((_, told),) = rows(client).values()
    assert told == f"@{dispatch.now}~1500"


@pytest.mark.parametrize("verdict", [Verdict.HEAD, Verdict.TAIL, Verdict.DIED])
def test_what_did_not_end_well_says_nothing_of_it(dispatch, client, verdict):
    dispatch.put("a", kind="x")
    tasks = dispatch.claim().tasks
    dispatch.now += 800
    claim_and_tell(dispatch, *tasks, verdict=verdict)
    ((_, told),) = rows(client).values()
    assert told == f"@{dispatch.now}"


def test_of_two_means_that_one_call_hears_the_first_goes_on(dispatch, client):
    for _ in range(2):
        dispatch.put("a", kind="x")
    tasks = list(dispatch.claim().tasks)
    dispatch.now += 800
    for _ in range(2):
        dispatch.put("a", kind="x")
    started = claim_and_tell(dispatch, *tasks)
    dispatch.now += 1_600
    dispatch.put("a", kind="x")
    claim_and_tell(dispatch, *started)
    # 800 moved by an eighth to 900, and again.
    ((_, told),) = rows(client).values()
    assert told == f"@{dispatch.now}~988"


def test_where_the_clock_went_back_a_little_it_took_no_time(dispatch, client):
    assert dispatch.claim().tasks == ()
    for tenant in "ab":
        dispatch.put(tenant, kind="x")
    dispatch.now += 46
    (task,) = dispatch.claim(want=1).tasks
    dispatch.now -= 3
    claim_and_tell(dispatch, task)
    assert list(rows(client).values()) == [("claimed", f"@{NOW + 43}~0")]
