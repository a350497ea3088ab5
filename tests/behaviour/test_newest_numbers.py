"""The newest numbers of a key hold for all tasks of the key, on both paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from celery import chain
from celery.result import AsyncResult

from celery_fairness import RateLimitPolicy
from tests.behaviour.conftest import PATHS
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

KEY = "api.example.com"

pytestmark = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def at_work(make_shop: Callable[..., Shop], path: str) -> Shop:
    """A worker with eight places, no limit but those of calls."""
    shop = make_shop(path, fairness={"tiers": {"free": {"concurrency": 100}}})
    shop.worker(pool="threads", concurrency=8)
    return shop


def said(number: int | None = None, rate: str | None = None, **options: str) -> RateLimitPolicy:
    return RateLimitPolicy(KEY, concurrency=number, rate=rate, **options)


def send(shop: Shop, user: str, *limits: RateLimitPolicy, gate: Path | None = None) -> AsyncResult:
    options = {"limits": list(limits)}
    return shop.send("work", user=user, gate=str(gate) if gate else "", options=options)


def await_started(shop: Shop, *results: AsyncResult) -> None:
    ids = {result.id for result in results}
    eventually(
        lambda: ids <= {entry["id"] for entry in shop.ledger("start")},
        RESULT_SECONDS,
    )


def await_waiting(shop: Shop, count: int) -> None:
    def waits() -> None:
        assert shop.fairness.limits.inspect(KEY).waiting_count == count

    eventually(waits, RESULT_SECONDS)


def started(shop: Shop) -> list[str]:
    return [entry["id"] for entry in sorted(shop.ledger("start"), key=lambda each: each["at"])]


def test_who_waits_since_before_a_raised_number_starts_before_newcomers(at_work: Shop) -> None:
    gates = [at_work.gate_file() for _ in range(2)]
    first = send(at_work, "first", said(1), gate=gates[0])
    await_started(at_work, first)
    old = [send(at_work, f"old{n}", said(1), gate=gates[1]) for n in range(2)]
    await_waiting(at_work, 2)
    # Three places at once: those that wait take the two that the new number opens.
    new = [send(at_work, f"new{n}", said(3), gate=gates[1]) for n in range(4)]
    await_started(at_work, *old)
    await_waiting(at_work, 4)
    assert {result.id for result in (first, *old)} == set(started(at_work))
    for gate in gates:
        gate.touch()
    for result in (first, *old, *new):
        assert result.get(timeout=RESULT_SECONDS) == "done"


def test_a_lowered_number_holds_at_once_for_those_that_wait(at_work: Shop) -> None:
    gate = at_work.gate_file()
    running = [send(at_work, f"r{n}", said(3), gate=gate) for n in range(3)]
    await_started(at_work, *running)
    gates = [at_work.gate_file() for _ in range(5)]
    old = [send(at_work, f"old{n}", said(3), gate=gates[n]) for n in range(4)]
    # A gate declares numbers when a worker is about to start a task, so the others come first.
    await_waiting(at_work, 4)
    new = send(at_work, "new", said(1), gate=gates[4])
    gate_of = dict(zip((each.id for each in (*old, new)), gates, strict=True))
    await_waiting(at_work, 5)
    gate.touch()

    def one_runs() -> None:
        assert len({*started(at_work)} & {*gate_of}) == 1

    for left in range(4, -1, -1):
        # Each body runs until it is seen to run alone; it starts a moment after it waited last.
        await_waiting(at_work, left)
        eventually(one_runs, RESULT_SECONDS)
        (runs,) = {*started(at_work)} & {*gate_of}
        gate_of.pop(runs).touch()
    for result in (*running, *old, new):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    ended = max(
        entry["at"]
        for entry in at_work.ledger("end")
        if entry["id"] in {result.id for result in running}
    )
    events = sorted(
        (entry["at"], 1 if entry["event"] == "start" else -1)
        for entry in at_work.ledger()
        if entry["id"] in {result.id for result in (*old, new)}
    )
    assert events[0][0] >= ended - 1
    held = most = 0
    for _, step in events:
        held += step
        most = max(most, held)
    assert most == 1


def test_a_call_with_a_number_of_0_stops_itself_and_nobody_else(at_work: Shop) -> None:
    gate = at_work.gate_file()
    held = send(at_work, "held", said(2), gate=gate)
    await_started(at_work, held)
    never = send(at_work, "never", said(0))
    await_waiting(at_work, 1)
    others = [send(at_work, f"u{n}", said(2)) for n in range(6)]
    for result in others:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    await_waiting(at_work, 1)
    gate.touch()
    assert held.get(timeout=RESULT_SECONDS) == "done"
    at_work.fairness.limits.override(KEY, concurrency=1)
    assert never.get(timeout=RESULT_SECONDS) == "done"


def test_a_task_without_a_rate_is_checked_by_none_that_others_say(at_work: Shop) -> None:
    rated = send(at_work, "rated", said(rate="1/PT1H"))
    assert rated.get(timeout=RESULT_SECONDS) == "done"
    late = send(at_work, "late", said(rate="1/PT1H"))
    await_waiting(at_work, 1)
    free = [send(at_work, f"free{n}", said(2)) for n in range(4)]
    for result in free:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert late.id not in started(at_work)


def test_people_see_the_newest_number_and_not_that_of_who_waits_longest(at_work: Shop) -> None:
    gate = at_work.gate_file()
    running = send(at_work, "a", said(1), gate=gate)
    await_started(at_work, running)
    waits = send(at_work, "b", said(1), gate=gate)
    await_waiting(at_work, 1)
    last = send(at_work, "c", said(2), gate=gate)
    await_started(at_work, waits)
    await_waiting(at_work, 1)
    state = at_work.fairness.limits.inspect(KEY).concurrency
    assert (state.limit, state.active) == (2, 2)
    gate.touch()
    for result in (running, waits, last):
        assert result.get(timeout=RESULT_SECONDS) == "done"


def test_what_follows_a_task_declares_none_of_its_old_numbers(at_work: Shop) -> None:
    gates = [at_work.gate_file() for _ in range(2)]
    work = at_work.app.tasks["shop.work"]
    steps = [
        work.si(user="old", gate=str(gate)).set(limits=[said(1)], task_id=f"step-{gate.name}")
        for gate in gates
    ]
    last = chain(*steps).apply_async()
    await_started(at_work, last.parent)
    # A deploy raises the number while the chain runs.
    new = send(at_work, "new", said(4))
    assert new.get(timeout=RESULT_SECONDS) == "done"
    gates[0].touch()
    await_started(at_work, last)
    assert at_work.fairness.limits.inspect(KEY).concurrency.limit == 4
    gates[1].touch()
    assert last.get(timeout=RESULT_SECONDS) == "done"
