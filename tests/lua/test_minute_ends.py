"""A minute counts attempts that end: done ones of all queues, failed and retried by queue."""

from __future__ import annotations

import pytest

from celery_fairness.limiter.types import Job, Lease, SlotRequest
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Settle, Verdict
from celery_fairness.store.keys import Names
from tests.lua.dispatching import MINUTE, PREFIX, Dispatch

NAMES = Names("fairness")
ENDS = ("done", "failed", "retried")
DONE, FAILED, RETRIED = {"done  ": "1"}, {"failed  q": "1"}, {"retried  q": "1"}


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def ends_of(client, key=PREFIX + MINUTE) -> dict[str, str]:
    return {name: n for name, n in client.hgetall(key).items() if name.split(" ")[0] in ENDS}


@pytest.mark.parametrize(
    ("verdict", "counted"),
    [
        (Verdict.DONE, DONE),
        (Verdict.FAILED, FAILED),
        (Verdict.RETRIED, RETRIED),
        (Verdict.TAIL, RETRIED),
        (Verdict.DIED, FAILED),
        (Verdict.HEAD, {}),
        (Verdict.BEGUN, {}),
        (Verdict.ACKED, {}),
    ],
)
@pytest.mark.parametrize("by", ["settle", "claim"])
def test_an_end_is_counted_once_with_its_outcome(dispatch, client, verdict, counted, by):
    dispatch.put("a")
    tasks = dispatch.claim().tasks
    for _ in range(2):
        if by == "settle":
            dispatch.settle(tasks, verdict)
        else:
            ends = [Settle(task.lease, verdict) for task in tasks]
            number = dispatch.number = dispatch.number + 1
            args = calls.claim_args(
                *("w1", number, 0, ("q",), dispatch.rules, str(dispatch.now)), ends=ends
            )
            dispatch.run(calls.CLAIM, args)
    assert ends_of(client) == counted


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.FAILED, Verdict.RETRIED])
def test_however_it_ended_its_record_and_its_slot_are_gone(dispatch, client, verdict):
    for _ in range(2):
        dispatch.put("a")
    dispatch.settle(dispatch.claim().tasks, verdict)
    assert dispatch.find("t1") is None
    assert dispatch.tags_of(dispatch.claim()) == ["t2"]


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.FAILED])
def test_an_attempt_whose_body_has_not_begun_is_no_end(dispatch, client, verdict):
    dispatch.put("a")
    ends = [Settle(task.lease, verdict, begun=False) for task in dispatch.claim().tasks]
    dispatch.run(calls.SETTLE, calls.settle_args(ends, dispatch.rules, str(dispatch.now)))
    assert ends_of(client) == {}


@pytest.mark.parametrize(
    ("verdict", "counted"),
    [(Verdict.BEGUN, "failed"), (Verdict.ACKED, "failed"), (None, "")],
)
def test_a_lease_that_ends_while_its_body_runs_is_a_failure(dispatch, client, verdict, counted):
    dispatch.put("a")
    tasks = dispatch.claim().tasks
    if verdict is not None:
        dispatch.settle(tasks, verdict)
    dispatch.let_a_lease_pass()
    minute = f"{PREFIX}stats:{dispatch.now // 60_000}"
    assert ends_of(client, minute) == ({f"{counted}  q": "1"} if counted else {})


@pytest.mark.parametrize(
    ("verdict", "counted"),
    [(Verdict.DONE, DONE), (Verdict.FAILED, FAILED), (Verdict.RETRIED, RETRIED)],
)
def test_a_gate_counts_how_a_body_ended(make_limiter, client, clock, verdict, counted):
    limiter = make_limiter(frozen=True)
    lease = Lease("one", "tenant:42")
    request = SlotRequest(lease, "42", "free", None, "s2", "", Job("one", "shop.pay", "q"))
    for _ in range(2):
        limiter.acquire(request)
        limiter.release_soon(lease, verdict)
    limiter.counts()
    minute = NAMES.of("stats", str(clock.now_ms // 60_000))
    assert ends_of(client, minute) == dict.fromkeys(counted, "2")


def test_ends_of_many_queues_are_bounded(dispatch, client):
    for number in range(1100):
        dispatch.put("a", queue=f"q{number}")
    queues = [f"q{number}" for number in range(1100)]
    for queue in queues:
        tasks = dispatch.claim(1, (queue,)).tasks
        dispatch.settle(tasks, Verdict.FAILED)
    fields = client.hgetall(PREFIX + MINUTE)
    assert len(fields) <= 1003
    assert sum(int(n) for name, n in fields.items() if name.startswith("failed ")) == 1100
