"""The verdict sees what it is there to see: hand-made ledgers, one thing wrong in each."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_fairness.config.rates import Rate
from tests.chaos import ledger
from tests.chaos.audit import leftovers, lenders_of, prefixes_of
from tests.chaos.plan import (
    CAPS,
    DEATHS,
    FULL,
    OF_CLUSTER,
    OF_REDIS,
    PACES,
    QUEUE_SETTINGS,
    QUICK,
    SLIM,
    SLOTS,
    TIER_OF,
    TIER_PACES,
    WIDE,
    Cap,
    Pace,
    faults,
    next_job,
    on_cluster,
    scaled,
)
from tests.chaos.story import Story
from tests.chaos.verdict import (
    FROZEN,
    OUTAGE,
    PROCESS_DIED,
    REDELIVERED,
    SENT_TWICE,
    UNEXPLAINED,
    Verdict,
    judge,
)
from tests.chaos.waits import AWAKE_SECONDS, SLACK_SECONDS, lent_seconds

LEASE = 3.0
LIMITS = {"one": 1, "two": 2, "system": None}

_runs = itertools.count()


def sent(at: float, task_id: str, *, tenant: str = "one", late: bool = True) -> ledger.Event:
    return {
        "event": "submit",
        "at": at,
        "due": at,
        "id": task_id,
        "tenant": tenant,
        "late": late,
    }


def ran(
    begun: float,
    over: float | None,
    task_id: str,
    *,
    tenant: str = "one",
    late: bool = True,
    worker: str = "w.1",
    pid: int = 1,
    retries: int = 0,
    outcome: str = "ok",
    redelivered: bool = False,
) -> list[ledger.Event]:
    facts = {
        "id": task_id,
        "run": f"run-{next(_runs)}",
        "retries": retries,
        "worker": worker,
        "pid": pid,
    }
    about = {"tenant": tenant, "late": late, "redelivered": redelivered}
    found: list[ledger.Event] = [
        {"event": "accepted", "at": begun, "redelivered": redelivered, **facts},
        {"event": "start", "at": begun, **about, **facts},
    ]
    if over is not None:
        found.append({"event": "end", "at": over, "outcome": outcome, **facts})
    return found


def received(at: float, task_id: str, worker: str = "w.1") -> ledger.Event:
    return {"event": "received", "at": at, "id": task_id, "retries": 0, "worker": worker}


def killed(at: float, what: str = "worker", worker: str = "w.1", pid: int = 1) -> ledger.Event:
    return {"event": "kill", "at": at, "what": what, "worker": worker, "pid": pid}


def frozen(begun: float, over: float, worker: str = "w.1") -> ledger.Event:
    return {"event": "freeze", "at": begun, "over": over, "worker": worker}


def outage(begun: float, over: float, kind: str = "pause") -> ledger.Event:
    return {"event": "outage", "at": begun, "over": over, "kind": kind}


def flat(parts: Any) -> list[ledger.Event]:
    """Return the lines of a ledger, of lists of lists of them."""
    if not isinstance(parts, (list, tuple)):
        return [parts]
    return [line for part in parts for line in flat(part)]


def verdict_on(
    *parts: Any, left: Mapping[str, str] | None = None, max_deliveries: int | None = None
) -> Verdict:
    return judge(Story(flat(parts), LEASE), LIMITS, left, max_deliveries=max_deliveries)


@pytest.mark.parametrize("promoted", [True, False])
def test_a_run_at_a_gate_that_parked_nothing_does_not_hold(promoted: bool) -> None:
    first = ran(1, 2, "a")
    first[1]["promoted"] = promoted
    verdict = judge(Story([sent(0, "a"), *first], LEASE), LIMITS, parks=True)
    assert (verdict.parked, verdict.holds) == (int(promoted), promoted)


def test_a_run_without_faults_holds() -> None:
    verdict = verdict_on(sent(0, "a"), sent(0, "b"), ran(1, 2, "a"), ran(2, 3, "b"))
    assert verdict.holds
    assert (verdict.submitted, verdict.done) == (2, 2)


# -- lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
def test_a_task_that_never_began_is_lost(late: bool) -> None:
    verdict = verdict_on(sent(0, "a", late=late))
    assert verdict.lost == ["a"]
    assert not verdict.holds


def test_a_late_task_whose_process_died_and_that_did_not_run_again_is_lost() -> None:
    assert verdict_on(sent(0, "a"), ran(1, None, "a"), killed(2)).lost == ["a"]


def test_a_late_task_whose_process_died_and_that_ran_again_is_done() -> None:
    again = ran(3, 4, "a", worker="w.2")
    verdict = verdict_on(sent(0, "a"), ran(1, None, "a"), killed(2), again)
    assert verdict.holds
    assert (verdict.done, verdict.duplicates) == (1, {})


def test_an_early_task_whose_process_died_is_counted_apart() -> None:
    begun = ran(1, None, "a", late=False)
    verdict = verdict_on(sent(0, "a", late=False), begun, killed(2, "child"))
    assert (verdict.lost, verdict.gone) == ([], ["a"])
    assert verdict.holds


def test_an_early_task_that_a_pool_took_and_whose_worker_died_is_counted_apart() -> None:
    taken = ran(1, None, "a", late=False)[:1]
    assert verdict_on(sent(0, "a", late=False), taken, killed(2)).gone == ["a"]


@pytest.mark.parametrize(
    ("end", "is_gone"),
    [
        (killed(1.4), True),
        (killed(1.6), False),
        (killed(1.4, "child"), False),
        (killed(1.4, worker="w.2"), False),
        ({"event": "gone", "at": 1.4, "worker": "w.1", "ours": False, "status": 0}, False),
    ],
)
def test_a_worker_that_is_killed_with_a_begin_on_its_way_takes_an_early_task_with_it(
    end: ledger.Event, is_gone: bool
) -> None:
    has = received(1, "a")
    assert verdict_on(sent(0, "a", late=False), has, end).gone == (["a"] if is_gone else [])
    assert verdict_on(sent(0, "a"), has, end).lost == ["a"]


def test_an_early_task_that_a_worker_left_when_it_ended_in_order_is_lost() -> None:
    begun = [sent(0, "a", late=False), *ran(1, None, "a", late=False)]
    gone = {"event": "gone", "at": 2, "worker": "w.1", "ours": False}
    assert verdict_on(begun, {**gone, "status": 0}).lost == ["a"]
    assert verdict_on(begun, {**gone, "status": 1}).gone == ["a"]
    assert verdict_on(begun, killed(1.5, "child"), {**gone, "status": 0}).gone == ["a"]


def test_an_early_task_whose_process_lives_is_lost() -> None:
    begun = ran(1, None, "a", late=False)
    assert verdict_on(sent(0, "a", late=False), begun, killed(2, worker="w.9")).lost == ["a"]


@pytest.mark.parametrize(("died_at", "is_lost"), [(1.5, False), (2.5, True)])
def test_an_early_task_that_a_gate_has_sent_back_is_not_its_workers_any_more(
    died_at: float, is_lost: bool
) -> None:
    begun = ran(1, None, "a", late=False)[:1]
    back: ledger.Event = {"event": "sent back", "at": 2, "id": "a", "worker": "w.1"}
    verdict = verdict_on(sent(0, "a", late=False), begun, back, killed(died_at))
    assert verdict.lost == (["a"] if is_lost else [])


def test_a_retry_that_never_came_is_lost_though_the_process_of_the_first_try_died() -> None:
    first = ran(1, 2, "a", late=False, outcome="retry")
    assert verdict_on(sent(0, "a", late=False), first, killed(9)).lost == ["a"]


def test_a_task_that_failed_is_lost() -> None:
    assert verdict_on(sent(0, "a"), ran(1, 2, "a", outcome="error")).lost == ["a"]


# -- limits ---------------------------------------------------------------------------------------


def test_two_at_once_of_a_tenant_that_may_run_one_are_seen() -> None:
    verdict = verdict_on(ran(1, 3, "a"), ran(2, 4, "b", worker="w.2"))
    (excess,) = verdict.excesses
    assert (excess.key, excess.begun, excess.over, excess.ids) == ("one", 2, 3, ("a", "b"))
    assert not verdict.holds


def test_three_at_once_of_a_tenant_that_may_run_two_are_seen_and_two_are_not() -> None:
    two = [*ran(1, 3, "a", tenant="two"), *ran(1, 3, "b", tenant="two")]
    assert verdict_on(two).holds
    assert len(verdict_on(two, ran(2, 2.5, "c", tenant="two")).excesses) == 1


def test_one_after_the_other_and_tasks_without_a_tenant_are_no_excess() -> None:
    free = [*ran(1, 3, "x", tenant="system"), *ran(1, 3, "y", tenant="system")]
    assert verdict_on(ran(1, 2, "a"), ran(2, 3, "b"), free).holds


def test_a_killed_body_ended_when_its_process_died() -> None:
    again = ran(3, 4, "a", worker="w.2")
    assert verdict_on(ran(1, None, "a"), killed(2), again).excesses == []
    after = verdict_on(ran(1, None, "a"), killed(3.5), again)
    assert [(each.begun, each.over) for each in after.excesses] == [(3, 3.5)]


def test_the_death_of_another_child_ends_no_body() -> None:
    other = killed(2, "child", pid=7)
    assert verdict_on(ran(1, None, "a", pid=8), other, ran(3, 4, "b")).excesses


def test_attempts_of_a_worker_frozen_past_its_lease_are_counted_apart() -> None:
    parts = [ran(1, 9, "a"), ran(5, 6, "a", worker="w.2")]
    verdict = verdict_on(*parts, frozen(1.5, 8))
    assert (verdict.excesses, verdict.excesses_of_freezes) == ([], 1)
    assert verdict_on(*parts, frozen(1.5, 2)).excesses
    assert verdict_on(*parts, frozen(1.5, 8, "w.9")).excesses


def test_a_clock_that_is_set_in_a_freeze_or_just_before_it_ends_its_lease_sooner() -> None:
    parts = [ran(1, 9, "a"), ran(2.5, 2.9, "a", worker="w.2"), frozen(1.5, 8)]
    assert verdict_on(*parts).excesses
    verdict = verdict_on(*parts, outage(2, 2, "clock"))
    assert (verdict.excesses, verdict.excesses_of_outages) == ([], [])
    verdict = verdict_on(*parts, outage(1.2, 1.2, "clock"))
    assert (verdict.excesses, verdict.excesses_of_outages) == ([], [])
    assert verdict_on(*parts, outage(2, 2, "cut")).excesses_of_outages
    # The lease began after the clock was set.
    assert verdict_on(*parts, outage(1, 1, "clock")).excesses_of_outages
    # The worker renewed after it.
    earlier = [ran(-1, 9, "a"), *parts[1:]]
    assert verdict_on(*earlier, outage(-0.5, -0.5, "clock")).excesses_of_outages
    # The worker has claimed the task before the freeze, and begins its body right after it.
    short = [frozen(1.5, 2.8), ran(2.6, 3.5, "b", worker="w.2"), ran(2.9, 4, "a")]
    assert verdict_on(*short, outage(2, 2, "clock")).excesses_of_outages == []


def test_an_outage_just_before_a_freeze_may_have_prevented_a_renewal() -> None:
    parts = [ran(0.2, 9, "a"), ran(2.5, 2.9, "a", worker="w.2"), frozen(1.5, 8)]
    verdict = verdict_on(*parts, outage(0.4, 1.4, "restart"))
    assert (verdict.excesses, verdict.excesses_of_outages) == ([], [])
    assert verdict.excesses_of_freezes == 1
    assert not verdict_on(*parts, outage(-2, -1, "restart")).holds


def test_an_attempt_that_begins_right_after_a_long_freeze_is_forgotten_when_it_ends() -> None:
    first, later = ran(8.5, 9, "a"), ran(10, 11, "b", worker="w.2")
    assert verdict_on(frozen(1.5, 8), first, later, ran(12, 13, "c")).holds


def test_an_excess_soon_after_an_outage_is_the_outages() -> None:
    parts = [ran(1, 9, "a"), ran(5, 6, "b", worker="w.2")]
    verdict = verdict_on(*parts, outage(2, 4))
    assert (len(verdict.excesses), len(verdict.excesses_of_outages)) == (0, 1)
    assert not verdict.holds


def test_an_excess_by_a_claim_that_no_replica_had_is_its_primarys() -> None:
    parts = [ran(3, 9, "a"), ran(6.5, 7, "b", worker="w.2")]
    verdict = verdict_on(*parts, outage(2, 5, "kill primary"))
    assert (verdict.holds, verdict.excesses_of_lost_writes) == (True, 1)
    # Such a primary dies in no other outage.
    assert not verdict_on(*parts, outage(2, 5, "failover")).holds
    # A replica had the claim.
    assert not verdict_on(ran(0, 9, "a"), *parts[1:], outage(2, 5, "kill primary")).holds
    # The worker has registered its lease again.
    late = ran(17, 18, "b", worker="w.2")
    assert not verdict_on(ran(3, 20, "a"), late, outage(2, 5, "kill primary")).holds


# -- slots and outages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "next_at", "holds"),
    [
        ("child", 3.9, True),
        ("child", 4.1, False),
        ("worker", 5.9, True),
        ("worker", 6.1, False),
    ],
)
def test_the_slot_of_a_killed_body_must_be_back_in_time(
    what: str, next_at: float, holds: bool
) -> None:
    after = ran(next_at, next_at + 0.1, "b", worker="w.2")
    again = ran(next_at + 1, next_at + 2, "a", worker="w.2")
    verdict = verdict_on(
        sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2, what), after, again
    )
    (wait,) = verdict.after_child if what == "child" else verdict.after_worker
    assert wait.seconds == pytest.approx(next_at - 2)
    assert verdict.holds is holds


@pytest.mark.parametrize(("next_task", "judged"), [("a", 0), ("b", 1)])
def test_a_slot_whose_next_task_has_died_is_not_checked(next_task: str, judged: int) -> None:
    # A task that has died waits in its worker for the one before it.
    again = ran(2 + LEASE + SLACK_SECONDS + 0.5, 9, next_task, worker="w.2")
    verdict = verdict_on(sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2), again)
    assert (len(verdict.after_worker), verdict.not_checked) == (judged, 1 - judged)


def test_a_slot_that_never_comes_back_is_late() -> None:
    verdict = verdict_on(sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2, "child"))
    assert [wait.holds for wait in verdict.after_child] == [False]


def test_without_waiting_work_a_slot_is_not_looked_at() -> None:
    early = [sent(0, "a", late=False), *ran(1, None, "a", late=False)]
    later = [sent(9, "b"), *ran(9.1, 9.2, "b")]
    assert verdict_on(early, killed(2, "child"), later).after_child == []


def test_an_outage_gives_a_slot_more_time_and_a_freeze_takes_its_sample_away() -> None:
    parts = [sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2, "child")]
    parts += [ran(6, 7, "b"), ran(7, 8, "a")]
    assert not verdict_on(*parts).holds
    assert verdict_on(*parts, outage(2.5, 4)).holds
    verdict = verdict_on(*parts, frozen(2.5, 4, "w.2"))
    assert (verdict.after_child, verdict.not_checked) == ([], 1)


@pytest.mark.parametrize("stopped_at", [0.9, 9.0])
def test_a_worker_that_was_asked_to_end_has_no_free_place(stopped_at: float) -> None:
    ready = [
        {"event": "ready", "at": 0, "worker": worker, "pid": 1, "places": places}
        for worker, places in (("w.1", 1), ("w.2", 5))
    ]
    stop: ledger.Event = {"event": "stop", "at": stopped_at, "worker": "w.2"}
    first, second, other = sent(0, "a"), sent(0, "b"), sent(0, "c", tenant="two")
    # The only place left has another task, from the kill on.
    begun = [*ran(0.5, None, "a"), *ran(1.1, 8, "c", tenant="two", pid=2), *ran(8, 9, "b", pid=2)]
    begun += ran(9, 10, "a", pid=2)
    verdict = verdict_on(ready, stop, first, second, other, begun, killed(1, "child"))
    assert (verdict.not_checked == 1) is (stopped_at < 1)
    assert verdict.holds is (stopped_at < 1)


@pytest.mark.parametrize(("places", "not_checked"), [(1, 1), (2, 0)])
def test_a_slot_that_is_back_where_no_place_is_free_is_not_checked(
    places: int, not_checked: int
) -> None:
    ready: ledger.Event = {"event": "ready", "at": 0, "worker": "w.1", "pid": 1, "places": places}
    parts = [sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2, "child")]
    other = [sent(0, "z"), ran(2.1, 6, "z", tenant="free", pid=2)]
    verdict = verdict_on(ready, *parts, *other, ran(6.1, 7, "b"), ran(7, 8, "a"))
    assert (verdict.not_checked, verdict.holds) == (not_checked, not_checked == 1)


@pytest.mark.parametrize(("ready_at", "not_checked"), [(3.1, 1), (2.9, 0)])
def test_a_worker_that_just_began_may_not_have_found_the_task(
    ready_at: float, not_checked: int
) -> None:
    ready = {"event": "ready", "at": ready_at, "worker": "w.2", "pid": 2, "places": 2}
    parts = [sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2, "child")]
    again = [ran(6.1, 7, "b", worker="w.2"), ran(7, 8, "a", worker="w.2")]
    assert verdict_on(ready, *parts, *again).not_checked == not_checked


@pytest.mark.parametrize(
    ("deaths", "died_at", "not_checked"),
    [(2, 4.0 - LEASE, 1), (1, 4.0 - LEASE, 0), (2, 3.9, 0), (3, 4.0 - LEASE, 0)],
)
def test_a_task_with_one_delivery_left_may_keep_a_whole_worker(
    deaths: int, died_at: float, not_checked: int
) -> None:
    def die(at: float, task_id: str) -> list[ledger.Event]:
        again = ran(at - 0.1, None, task_id, tenant="two", worker=f"w.{at}")
        return [*again, killed(at, worker=f"w.{at}")]

    ready = {"event": "ready", "at": 0, "worker": "w.2", "pid": 2, "places": 2}
    parts = [sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2, "child")]
    last = [sent(0, "c", tenant="two")]
    last += flat([die(died_at - number / 4, "c") for number in range(deaths)])
    again = [ran(6.1, 7, "b", worker="w.2"), ran(7, 8, "a", worker="w.2")]
    verdict = verdict_on(ready, *parts, *last, *again, max_deliveries=3)
    assert verdict.not_checked == not_checked


def test_an_outage_that_follows_before_a_slot_could_be_back_gives_it_more_time_too() -> None:
    # The first gives it until 11, the second until 17; without the first it should be back at 4.
    parts = [sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2, "child"), outage(1, 4)]
    for begins, second, holds in ((12.5, (9, 10), True), (12.5, (11.5, 12), False)):
        verdict = verdict_on(*parts, outage(*second), ran(begins, 17.5, "b"), ran(18, 19, "a"))
        assert verdict.after_child[0].holds is holds
    verdict = verdict_on(*parts, outage(9, 10), ran(17.5, 18, "b"), ran(18, 19, "a"))
    assert not verdict.after_child[0].holds


def test_what_a_worker_asked_before_it_died_in_an_outage_may_keep_a_slot_for_a_lease() -> None:
    parts = [sent(0, "a"), sent(0, "b"), ran(1, None, "a"), killed(2, "worker"), outage(4, 5)]
    late = [ran(14.5, 15, "b", worker="w.3"), ran(15, 16, "a", worker="w.3")]
    assert not verdict_on(*parts, *late).after_worker[0].holds
    for at, holds in ((3.5, False), (4.5, True), (5.5, False)):
        other = killed(at, "worker", worker="w.2")
        assert verdict_on(*parts, *late, other).after_worker[0].holds is holds, at


@pytest.mark.parametrize(
    ("begins", "holds", "holds_twice"),
    [(8.9, True, True), (9.1, False, True), (13.9, False, True), (14.1, False, False)],
)
def test_work_must_resume_in_time_after_an_outage(
    begins: float, holds: bool, holds_twice: bool
) -> None:
    verdict = verdict_on(sent(0, "a"), outage(1, 4), ran(begins, begins + 1, "a"))
    assert verdict.resumes[0].seconds == pytest.approx(begins - 4)
    assert verdict.holds is holds
    assert verdict.holds_within(2) is holds_twice


# -- in a cluster ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "held", "is_lost"),
    [
        ("kill primary", False, False),
        ("kill primary", True, True),
        ("failover", False, True),
        ("pause", False, True),
    ],
)
def test_only_a_task_that_no_replica_had_is_gone_with_its_primary(
    kind: str, held: bool, is_lost: bool
) -> None:
    note = [{"event": "held", "at": 1.1, "ids": ["a"]}] if held else []
    verdict = verdict_on(sent(1, "a"), note, outage(1.5, 4, kind), sent(4, "b"), ran(5, 6, "b"))
    assert (verdict.lost == ["a"], verdict.unheld == ["a"]) == (is_lost, not is_lost)
    assert verdict.holds is not is_lost
    # It was sent so long before that its sender has asked.
    assert verdict_on(sent(0, "a"), note, outage(1.5, 4, kind), ran(5, 6, "b")).lost == ["a"]


@pytest.mark.parametrize(("at", "is_lost"), [(4.9, False), (5.1, True)])
def test_a_node_that_was_cut_off_takes_tasks_for_a_moment(at: float, is_lost: bool) -> None:
    cut = outage(1.5, 4, "partition")
    verdict = verdict_on(cut, sent(at, "a"), sent(6, "b"), ran(7, 8, "b"))
    assert (verdict.lost == ["a"]) is is_lost


@pytest.mark.parametrize(("kind", "holds"), [("kill primary", True), ("move", False)])
def test_no_planned_change_may_fail_a_call(kind: str, holds: bool) -> None:
    failed = {"event": "submit_failed", "at": 2, "failed": 2.5, "id": "a", "error": "away"}
    parts = [sent(4, "b"), *ran(5, 6, "b")]
    assert verdict_on(failed, outage(1, 3, kind), parts).holds is holds
    assert not verdict_on(failed, outage(12.6, 13, kind), sent(14, "b"), ran(15, 16, "b")).holds


@pytest.mark.parametrize(("begins", "holds"), [(13.9, True), (14.1, False)])
def test_in_a_cluster_each_worker_works_again_in_time(begins: float, holds: bool) -> None:
    ready: list[ledger.Event] = [
        {"event": "ready", "at": 0, "worker": worker, "places": 1} for worker in ("w.1", "w.2")
    ]
    parts = [sent(0, "a"), sent(0, "b"), sent(15, "c"), outage(1, 4, "partition")]
    parts += [*ready, ran(4.1, 4.2, "a", worker="w.2"), ran(16, 17, "c", worker="w.2")]
    late = ran(begins, begins + 1, "b")
    assert verdict_on(*parts, late).holds is holds
    # So does a body that has died before: the worker kept its place for it.
    suspect = [ran(0.5, None, "b", worker="w.3"), ran(begins, begins + 1, "b", redelivered=True)]
    assert all(wait.holds for wait in verdict_on(*parts, *suspect).workers_back)
    # While such a body runs, its worker may keep the other places.
    places = [{**event, "places": 2} if event["event"] == "ready" else event for event in ready]
    for died, is_late in ((True, False), (False, not holds)):
        beside = ran(3, 20, "d", redelivered=died)
        verdict = verdict_on(*parts, *places, beside, late)
        assert any(not wait.holds for wait in verdict.workers_back) is is_late
    # What happens to the worker, or to the cluster, explains it, and so does a long body.
    for reason in (frozen(5, 6), killed(8), outage(9, 10, "move"), ran(3, 14.05, "d")):
        verdict = verdict_on(*parts, late, reason)
        assert all(wait.holds for wait in verdict.workers_back), reason


# -- the end --------------------------------------------------------------------------------------


def test_an_end_that_is_reached_twice_is_counted_by_what_explains_it() -> None:
    twice = [sent(0, "a"), *ran(1, 2, "a"), *ran(3, 4, "a", worker="w.2", redelivered=True)]
    assert verdict_on(twice).duplicates == {"a": UNEXPLAINED}
    assert not verdict_on(twice).holds
    for fault, why in (
        (killed(2.5), PROCESS_DIED),
        (frozen(1.5, 6), FROZEN),
        (outage(2.5, 2.6, "cut"), OUTAGE),
    ):
        assert verdict_on(twice, fault).duplicates == {"a": why}
        assert verdict_on(twice, fault).holds
    slower = [*ran(1, 5, "a"), *ran(3, 4, "a", worker="w.2", redelivered=True)]
    assert verdict_on(slower, frozen(1.1, 5)).duplicates == {"a": FROZEN}
    stale = [*ran(3, 4, "a", redelivered=True), *ran(5.1, 5.2, "a", worker="w.2")]
    assert verdict_on(stale, frozen(1.1, 5, "w.2")).duplicates == {"a": FROZEN}
    of_two_messages = ran(3, 4, "a", worker="w.2")
    assert verdict_on(ran(1, 2, "a"), of_two_messages).duplicates == {"a": SENT_TWICE}


@pytest.mark.parametrize(("redelivered", "why"), [(True, REDELIVERED), (False, UNEXPLAINED)])
def test_a_gate_runs_a_copy_twice_only_if_its_broker_delivers_it_again(
    redelivered: bool, why: str
) -> None:
    first, again = ran(1, 2, "a"), ran(3, 4, "a", worker="w.2", redelivered=redelivered)
    first[1]["message"] = again[1]["message"] = "m"
    verdict = verdict_on(sent(0, "a"), first, again)
    assert (verdict.duplicates, verdict.holds) == ({"a": why}, redelivered)


@pytest.mark.parametrize(("at", "why"), [(2.5, REDELIVERED), (0.5, UNEXPLAINED)])
def test_a_message_that_came_again_may_be_parked_before_it_runs_again(at: float, why: str) -> None:
    first, again = ran(1, 2, "a"), ran(3, 4, "a", worker="w.2")
    first[1]["message"] = again[1]["message"] = "m"
    came, _ = ran(at, None, "a", worker="w.2", redelivered=True)
    assert verdict_on(sent(0, "a"), first, [came], again).duplicates == {"a": why}


@pytest.mark.parametrize(("second", "why"), [("m", PROCESS_DIED), ("n", SENT_TWICE)])
def test_the_copies_that_a_gate_made_of_one_message_are_of_one_sending(
    second: str, why: str
) -> None:
    first, again = ran(1, 2, "a"), ran(3, 4, "a", worker="w.2")
    first[1]["message"], again[1]["message"] = "m", second
    assert verdict_on(first, again, killed(2.5)).duplicates == {"a": why}


def test_a_retry_is_no_second_end() -> None:
    parts = [*ran(1, 2, "a", outcome="retry"), *ran(3, 4, "a", retries=1)]
    assert verdict_on(sent(0, "a"), parts).duplicates == {}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (outage(1.5, 1.6), OUTAGE),
        (frozen(1.1, 1.9 + LEASE), FROZEN),
        (outage(6.5, 6.6), UNEXPLAINED),
    ],
    ids=["an outage at the begin", "a long freeze", "an outage later"],
)
def test_an_early_task_begins_again_only_if_a_fault_may_have_lost_its_note(
    fault: ledger.Event, why: str
) -> None:
    parts = [*ran(1, None, "a", late=False), killed(5), *ran(6, 7, "a", late=False, worker="w.2")]
    verdict = verdict_on(sent(0, "a", late=False), parts, fault, max_deliveries=3)
    assert verdict.early_again == {"a": why}
    assert verdict.holds is (why != UNEXPLAINED)


@pytest.mark.parametrize(("late", "most"), [(False, 1), (True, 3)])
def test_a_poison_that_begins_too_often_fails(late: bool, most: int) -> None:
    poison = {**sent(0, "p", late=late), "poison": True}
    begun: list[Any] = []
    for number in range(most + 1):
        at, worker = number * 5 + 1, f"w.{number}"
        again = ran(at, None, "p", late=late, worker=worker, redelivered=number > 0)
        begun += [*again, killed(at + 0.1, worker=worker)]
    end = {"event": "dead letter", "at": 90, "id": "p", "deaths": most}
    enough = [each for each in begun if each["at"] < most * 5]
    assert verdict_on(poison, enough, end, max_deliveries=3).too_often == []
    assert verdict_on(poison, begun, end, max_deliveries=3).too_often == ["p"]
    lost = outage(most * 5 + 1, most * 5 + 1.5)
    assert verdict_on(poison, begun, end, lost, max_deliveries=3).too_often == []
    # It was sent twice.
    twice = [{**each, "redelivered": False} if each["at"] == 6 else each for each in begun]
    assert verdict_on(poison, twice, end, max_deliveries=3).too_often == []


@pytest.mark.parametrize(("deaths", "holds"), [(2, False), (3, True)])
def test_a_dead_letter_has_begun_as_often_as_it_must(deaths: int, holds: bool) -> None:
    begun: list[Any] = []
    for number in range(deaths):
        at, worker = number * 5 + 1, f"w.{number}"
        begun += [*ran(at, None, "a", worker=worker), killed(at + 0.1, worker=worker)]
    end = {"event": "dead letter", "at": 90, "id": "a", "deaths": 3}
    verdict = verdict_on(sent(0, "a"), begun, end, max_deliveries=3)
    assert (verdict.innocents == [], verdict.lost, verdict.holds) == (holds, [], holds)


@pytest.mark.parametrize(("killed_at", "holds"), [(11.01, True), (12, False)])
def test_a_process_may_die_between_a_begin_and_the_first_line(
    killed_at: float, holds: bool
) -> None:
    parts = [ran(1, None, "a"), killed(1.1), ran(6, None, "a", worker="w.2")]
    parts += [killed(6.1, worker="w.2"), killed(killed_at, worker="w.3")]
    accepted, _ = ran(11, None, "a", worker="w.3")
    end = {"event": "dead letter", "at": 90, "id": "a", "deaths": 3}
    verdict = verdict_on(sent(0, "a"), *parts, accepted, end, max_deliveries=3)
    assert (verdict.innocents == [], verdict.holds) == (holds, holds)


@pytest.mark.parametrize(("amount", "vanished"), [(1, 1), (2, 0)])
def test_each_message_that_nobody_can_read_is_a_dead_letter_or_in_quarantine(
    amount: int, vanished: int
) -> None:
    unreadable = [{"event": "unreadable", "at": 1, "number": number} for number in range(3)]
    end = {"event": "dead letter", "at": 2, "id": "of nobody", "deaths": 0}
    aside = {"event": "quarantined", "at": 3, "amount": amount}
    verdict = verdict_on(unreadable, end, aside, max_deliveries=3)
    assert (verdict.not_set_aside, verdict.holds) == (vanished, vanished == 0)


def test_a_worker_that_ends_by_an_error_of_the_package_fails() -> None:
    gone = {"event": "gone", "at": 2, "worker": "w.1"}
    assert verdict_on({**gone, "status": 0, "ours": False}).holds
    verdict = verdict_on({**gone, "status": 1, "ours": True})
    assert verdict.crashed == ["w.1"]
    assert not verdict.holds
    verdict = verdict_on({**gone, "status": 1, "ours": False})
    assert (verdict.crashed, verdict.crashed_by_celery) == ([], 1)
    assert verdict.holds


def test_what_is_left_in_redis_fails() -> None:
    assert not verdict_on(left={"running": "hash"}).holds


def test_the_audit_finds_what_speaks_of_tasks_and_nothing_else(redis_url: str) -> None:
    client = Redis.from_url(redis_url, decode_responses=True)
    wrong = {"running", "ends", "leases:tenant:a", "tasks", "messages", "ids", "active:q"}
    wrong |= {"lane:a 0  q", "outcomes", "reserved:k"}
    for name in (*wrong, "last_answer:7", "tiers"):
        client.hset("{fairness}:" + name, "field", "1")
    client.hset("unacked", "tag", "1")
    assert leftovers(client).keys() == wrong
    assert leftovers(client, stock=True).keys() == {"unacked"}
    client.close()


# -- starts in a window ---------------------------------------------------------------------------

PACE = {"one": Pace(("one",), 3, 5.0)}


def begun(*times: float, worker: str = "w.1") -> list[ledger.Event]:
    found: list[ledger.Event] = []
    for at in times:
        found += [sent(0, f"t{at}"), *ran(at, at + 0.01, f"t{at}", worker=worker)]
    return found


def judged(*parts: Any) -> Verdict:
    return judge(Story(flat(parts), LEASE), LIMITS, None, PACE)


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ((100, 101, 102, 103.9), 1),
        ((100, 101, 102, 104.1), 0),
        ((100, 100.1, 100.2, 105, 105.1, 105.2), 0),
        ((100, 101, 102, 103, 103.5), 2),
        ((100, 100.1, 100.2, 103.9, 104, 104.1), 3),
        ((), 0),
    ],
)
def test_more_starts_in_a_window_than_it_allows_are_seen(
    times: tuple[float, ...], found: int
) -> None:
    verdict = judged(begun(*times))
    assert len(verdict.rushes) == found
    assert verdict.holds == (found == 0)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (frozen(98, 100.5), 0),
        (frozen(90, 94), 1),
        (frozen(98, 100.5, worker="w.2"), 1),
        (outage(97, 99.9), 0),
        (killed(100.5, "child", pid=9), 0),
        (killed(100.5, "child", worker="w.2", pid=9), 1),
    ],
)
def test_a_start_that_a_fault_may_have_delayed_is_left_out(fault: Any, found: int) -> None:
    assert len(judged(begun(101, 101.5, 102, 103), fault).rushes) == found


@pytest.mark.parametrize(("died", "found"), [("t102", 0), ("another", 1)])
def test_a_start_of_a_task_that_has_died_is_left_out(died: str, found: int) -> None:
    # It waits in its worker for the one before it, so it begins long after its claim.
    before = [ran(50, None, died, worker="w.3"), killed(51, worker="w.3")]
    assert len(judged(begun(101, 101.5, 102, 103), *before).rushes) == found


def test_what_a_run_looks_for_is_what_its_limits_say() -> None:
    numbers = {
        "tier paced": TIER_PACES["paced"][1],
        "queue": QUEUE_SETTINGS["rate"],
        "partition": QUEUE_SETTINGS["partition"]["rate"],
    }
    for key, pace in PACES.items():
        rate: Any = Rate.parse(numbers[key]) if key in numbers else None
        if pace.policy is not None:
            rate = pace.policy.rate or pace.policy.throttle
            assert (pace.policy.key, pace.policy.units is not None) == (key, pace.counts == "units")
        assert pace.most == rate.limit
        assert pace.seconds == pytest.approx(rate.period_seconds, abs=0.05)
    assert CAPS[SLOTS].policy is not None
    assert CAPS[SLOTS].most == CAPS[SLOTS].policy.concurrency
    assert CAPS["partition"].most == QUEUE_SETTINGS["partition"]["concurrency"]
    assert {TIER_OF[tenant] for tenant in PACES["tier paced"].tenants} == TIER_PACES.keys()


# -- units ----------------------------------------------------------------------------------------

UNITS = {"tokens": Pace(("one", "two"), 10, 5.0, counts="units")}


def took(
    begun: float, units: int, *used: tuple[float, float | None, int], counted: bool = True
) -> list[ledger.Event]:
    task_id = f"t{begun}"
    events = [sent(0, task_id), *ran(begun, begun + 0.01, task_id)]
    facts = {"run": events[2]["run"]}
    events[2] |= {"units": units}
    for at, answered, number in used:
        events.append({"event": "using", "at": at, "units": number, **facts})
        if answered is not None:
            about = {"units": number, "counted": counted}
            events.append({"event": "used", "at": answered, **about, **facts})
    return events


@pytest.mark.parametrize(
    ("parts", "counted"),
    [
        ((took(100, 6), took(101, 4)), None),
        ((took(100, 6), took(101, 5)), 11),
        ((took(100, 6), took(104.1, 5)), None),
        # What was not used is free from the report on, at the latest when it was answered.
        ((took(100, 6, (101, 101.1, 5)), took(103, 5)), None),
        ((took(100, 6, (103.5, 103.6, 5)), took(103, 5)), 11),
        # A claim came up to a second before, and may have seen a larger number.
        ((took(100, 6, (100.1, 100.2, 7)), took(101, 4)), None),
        ((took(100, 6, (100.1, 100.2, 7)), took(101.3, 4)), 11),
        # Nobody knows whether a report without an answer counts.
        ((took(100, 6, (100.1, None, 5)), took(103, 5)), None),
        ((took(100, 6, (100.1, None, 7)), took(103, 4)), None),
        ((took(100, 6, (100.1, 100.2, 7), counted=False), took(103, 4)), None),
    ],
)
def test_units_above_a_rate_are_seen(parts: Any, counted: int | None) -> None:
    verdict = judge(Story(flat(parts), LEASE), LIMITS, None, UNITS)
    assert [each.counted for each in verdict.rushes] == ([] if counted is None else [counted])
    assert verdict.holds is (counted is None)


@pytest.mark.parametrize(("parts", "found"), [("ab", 0), ("aa", 1)])
def test_partitions_have_limits_of_their_own(parts: str, found: int) -> None:
    first, second = ran(1, 3, "a", tenant="two"), ran(2, 4, "b", tenant="two")
    for part, events in zip(parts, (first, second), strict=True):
        events[1]["part"] = part
    tasks = [sent(0, "a", tenant="two"), sent(0, "b", tenant="two")]
    story = Story([*tasks, *first, *second], LEASE)
    caps = {"queue": Cap(("two",), 2), "partition": Cap(("two",), 1, by_part=True)}
    verdict = judge(story, LIMITS, caps=caps)
    assert [each.key for each in verdict.excesses] == ["partition a"] * found
    paces = {"partition": Pace(("two",), 1, 5.0, by_part=True)}
    assert len(judge(story, LIMITS, None, paces).rushes) == found
    caps = {"queue": Cap(("one", "two"), 1)}
    assert [each.key for each in judge(story, LIMITS, caps=caps).excesses] == ["queue"]


@pytest.mark.parametrize(("slots", "found"), [(4, 0), (5, 1)])
def test_slots_above_a_concurrency_are_seen(slots: int, found: int) -> None:
    first, second = ran(1, 3, "a", tenant="two"), ran(2, 4, "b", tenant="two")
    first[1]["slots"], second[1]["slots"] = 4, slots
    tasks = [sent(0, "a", tenant="two"), sent(0, "b", tenant="two")]
    caps = {"memory": Cap(("one", "two"), 8, counts="slots")}
    verdict = judge(Story([*tasks, *first, *second], LEASE), LIMITS, caps=caps)
    assert [(each.key, each.begun, each.over) for each in verdict.excesses] == (
        [("memory", 2, 3)] * found
    )


# -- nobody starves -------------------------------------------------------------------------------


def waited(*parts: Any) -> bool:
    story = Story(flat(parts), LEASE)
    verdict = judge(story, LIMITS, starvable={"something": (("two",), 5.0)})
    return all(wait.holds for wait in verdict.starvable["something"])


@pytest.mark.parametrize(
    ("fault", "latest"),
    [
        ([], 5),
        (outage(1, 3), 5 + 2 + AWAKE_SECONDS),
        # Two faults at one time count once, and a time before the task was due does not count.
        ([outage(1, 3), outage(-9, 2)], 5 + 3 + AWAKE_SECONDS),
        (killed(3), 5 + LEASE + SLACK_SECONDS),
        (frozen(3, 4), 5 + 1 + LEASE + SLACK_SECONDS),
        # A task of the same tenants died, and its slot is gone for a lease.
        ([ran(2, None, "b", tenant="two"), killed(3, "child")], 5 + 2 * (LEASE + SLACK_SECONDS)),
        ([ran(2, None, "b", tenant="one"), killed(3, "child")], 5 + LEASE + SLACK_SECONDS),
        # It goes first, and it begins again much later.
        (
            [
                [ran(2, None, "b", tenant="two"), killed(3, "child")],
                ran(60, 60.1, "b", tenant="two"),
            ],
            5 + 57 + LEASE + SLACK_SECONDS,
        ),
        # A worker has another task of them, which begins there, or dies with its worker.
        ([sent(0, "b", tenant="two"), received(1, "b"), ran(4, 4.1, "b", tenant="two")], 5 + 3),
        (
            [
                [sent(0, "b", tenant="two"), received(1, "b"), ran(9, 9.1, "b", tenant="two")],
                [killed(6, "worker", worker="w.9"), killed(1.5)],
            ],
            5 + 0.5 + 2 * (LEASE + SLACK_SECONDS),
        ),
    ],
)
def test_what_waits_for_something_slow_begins_in_its_time(fault: Any, latest: float) -> None:
    for begins, holds in ((latest - 0.1, True), (latest + 0.1, False)):
        begun = ran(begins, begins + 1, "a", tenant="two", worker="w.2")
        more = fault if isinstance(fault, list) else [fault]
        assert waited(sent(0, "a", tenant="two"), begun, *more) is holds


@pytest.mark.parametrize(("hit", "more"), [("here", lent_seconds(LEASE)), ("there", 0.0)])
def test_a_lent_slot_is_gone_until_the_home_forgets_the_server_that_had_it(
    hit: str, more: float
) -> None:
    latest = 5 + 2 + AWAKE_SECONDS + more
    for begins, holds in ((latest - 0.1, True), (latest + 0.1, False)):
        parts = [sent(0, "a", tenant="two"), {**outage(1, 3, "failover"), "hit": [hit]}]
        parts += ran(begins, begins + 1, "a", tenant="two", worker="w.2")
        story = Story(flat(parts), LEASE)
        lenders = {"it": {"here", "elsewhere"}}
        verdict = judge(story, LIMITS, starvable={"it": (("two",), 5.0)}, lenders=lenders)
        assert verdict.starvable["it"][0].holds is holds


@pytest.mark.parametrize("lost", [ran(2, None, "b"), [sent(0, "b"), received(2, "b")]])
def test_a_task_of_another_tenant_takes_slots_of_the_same_key(lost: Any) -> None:
    kept = LEASE + SLACK_SECONDS
    # In both cases a worker had the task that waits, until it died.
    latest = 5 + kept + (kept if lost[0]["event"] == "accepted" else 1 + kept)
    for begins, holds in ((latest - 0.1, True), (latest + 0.1, False)):
        parts = [sent(0, "a", tenant="two"), lost, killed(3)]
        parts += ran(begins, begins + 1, "a", tenant="two", worker="w.2")
        for key, judged in ((("one", "two"), holds), (("two",), False)):
            verdict = judge(
                Story(flat(parts), LEASE),
                LIMITS,
                caps={"it": Cap(key, 8)},
                starvable={"it": (("two",), 5.0)},
            )
            assert verdict.starvable["it"][0].holds is judged


def test_the_home_and_the_partitions_of_the_tenants_lend() -> None:
    assert not lenders_of(1, SLOTS, (*SLIM, WIDE))
    lenders = lenders_of(16, SLOTS, (*SLIM, WIDE))
    assert len(lenders) == 4
    assert lenders < set(prefixes_of(16))


@pytest.mark.parametrize(
    ("begins", "holds"), [(7.9, (True, True)), (8.1, (False, True)), (13.1, (False, False))]
)
def test_a_quick_run_has_patience_with_waits_and_not_with_their_outages(
    begins: float, holds: tuple[bool, bool]
) -> None:
    parts = [sent(0, "a", tenant="two"), outage(1, 3), ran(begins, 14, "a", tenant="two")]
    # Work goes on meanwhile.
    parts += [sent(0, "b"), ran(3.1, 3.2, "b")]
    verdict = judge(Story(flat(parts), LEASE), LIMITS, starvable={"it": (("two",), 5.0)})
    assert (verdict.holds, verdict.holds_within(2)) == holds


def test_a_task_that_never_begins_has_starved_unless_it_has_ended() -> None:
    assert not waited(sent(0, "a", tenant="two"))
    assert waited(sent(0, "a", tenant="two"), duplicate(1, "a"))
    gone = {"event": "accepted", "at": 1, "id": "a", "retries": 0, "pid": 1, "worker": "w.1"}
    assert waited(sent(0, "a", tenant="two", late=False), gone, killed(2))


# -- unique tasks ---------------------------------------------------------------------------------


def call(
    at: float, task_id: str, key: str = "drop:x", *, taken: float | None = None, late: bool = True
) -> ledger.Event:
    about = {"unique": key, "taken": at + 0.1 if taken is None else taken}
    return {**sent(at, task_id, tenant="system", late=late), **about}


def duplicate(at: float, task_id: str, how: str = "dropped") -> ledger.Event:
    return {"event": "duplicate", "at": at, "id": task_id, "how": how, "of": "?"}


def existing(at: float, of: str, key: str = "existing:x") -> ledger.Event:
    about = {"unique": key, "taken": at + 0.1}
    return {"event": "existing", "at": at, "id": f"no-{of}", "of": of, **about}


def runs(begun: float, over: float | None, task_id: str, **more: Any) -> list[ledger.Event]:
    return ran(begun, over, task_id, tenant="system", **more)


FIRST = [call(0, "a"), *runs(1, 3, "a")]
OLD = [call(0, "a", "replace:x"), call(1, "b", "replace:x"), *runs(2.5, 3, "b")]
DEBOUNCED = call(5, "b", "debounce:x")


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        # At most one of a key.
        ([FIRST, call(2, "b"), duplicate(3, "b")], None),
        ([FIRST, call(2, "b"), runs(3.1, 4, "b")], "began while another task had its key"),
        ([FIRST, call(2, "b", "drop:y"), runs(2.1, 4, "b")], None),
        ([FIRST, call(2, "b", taken=3.1), runs(3.2, 4, "b")], None),
        ([FIRST, call(-0.1, "b", taken=0.2), runs(3.2, 4, "b")], None),
        # A retry has not ended.
        (
            [
                [call(0, "a"), runs(1, 2, "a", outcome="retry"), runs(6, 7, "a", retries=1)],
                [call(4, "b"), runs(5, 6, "b")],
            ],
            "began while another task had its key",
        ),
        # A frozen worker goes on with a task that another one has taken over, and nothing is known.
        ([call(0, "a"), runs(1, 9, "a"), frozen(2, 8), call(7, "b"), runs(7.2, 8, "b")], None),
        # The key is back when the task has ended, and soon after it.
        ([FIRST, call(4, "b"), duplicate(5, "b")], None),
        ([FIRST, call(8, "b"), duplicate(9, "b")], "dropped while no task had its key"),
        ([FIRST, call(8, "b"), duplicate(9, "b"), outage(4, 6)], None),
        ([call(8, "b"), duplicate(9, "b")], "dropped while no task had its key"),
        ([FIRST, call(8, "b"), duplicate(9, "b"), call(7, "c"), runs(10, 11, "c")], None),
        # One that was dropped itself had no key.
        (
            [FIRST, call(7.9, "c"), duplicate(8, "c"), call(8, "b"), duplicate(9, "b")],
            "dropped while no task had its key",
        ),
        # A call that failed may have put its task.
        (
            [
                {**call(7, "c"), "event": "submit_failed", "failed": 7.5, "error": "away"},
                [outage(7, 7.5), call(8, "b"), duplicate(9, "b")],
            ],
            None,
        ),
        # The existing task.
        ([call(0, "a", "existing:x"), runs(1, 3, "a"), existing(2, "a")], None),
        (
            [call(0, "a", "existing:x"), runs(1, 3, "a"), existing(8, "a")],
            "got an existing task that had ended",
        ),
        (
            [existing(8, "z"), call(0, "a", "existing:x"), runs(1, 3, "a")],
            "got an existing task that had ended",
        ),
        # Replaced.
        ([OLD, duplicate(1.5, "a", "replaced")], None),
        ([OLD, runs(2.4, 2.5, "a")], "began though a newer task had replaced it"),
        ([OLD, runs(1.9, 2.5, "a")], None),
        ([OLD, runs(2.4, 2.5, "a"), killed(2, worker="w.9")], None),
        ([OLD, runs(2.4, 2.5, "a"), frozen(0.5, 1, "w.9")], None),
        ([OLD, runs(0.5, 0.6, "a", outcome="retry"), runs(2.4, 3, "a", retries=1)], None),
        ([call(0, "a", "replace:x"), duplicate(1, "a", "replaced")], "replaced by no newer task"),
        ([OLD, runs(0.9, 1.5, "a"), duplicate(9, "b", "replaced")], "replaced by no newer task"),
        # Debounced.
        ([DEBOUNCED, runs(6, 7, "b")], None),
        ([DEBOUNCED, runs(5.8, 7, "b")], "began before its debounce was over"),
        ([DEBOUNCED, runs(5.8, 7, "b"), outage(5.5, 5.5, "clock")], None),
        (
            [
                [call(2.7, "a", "debounce:x"), duplicate(6, "a", "replaced")],
                [DEBOUNCED, runs(5.8, 7, "b")],
            ],
            None,
        ),
        (
            [
                [call(2.7, "a", "debounce:x"), runs(3.7, 5.5, "a")],
                [DEBOUNCED, runs(5.8, 7, "b")],
            ],
            "began before its debounce was over",
        ),
        (
            # All workers were busy, so the second was late, and was replaced too.
            [
                [call(1, "a", "debounce:x"), duplicate(2, "a", "replaced")],
                [call(2, "c", "debounce:x"), duplicate(5.2, "c", "replaced")],
                [DEBOUNCED, runs(5.2, 7, "b")],
            ],
            None,
        ),
    ],
)
def test_a_broken_promise_of_a_unique_task_is_seen(parts: Any, what: str | None) -> None:
    verdict = verdict_on(*parts)
    assert {each.what for each in verdict.broken} == ({what} if what else set())
    if what:
        assert not verdict.holds


def test_a_duplicate_is_not_lost_and_a_run_without_any_does_not_hold() -> None:
    parts = [*flat(FIRST), call(2, "b"), duplicate(3, "b")]
    assert verdict_on(parts).holds
    assert verdict_on(parts[:-1]).lost == ["b"]
    assert not judge(Story(parts, LEASE), LIMITS, has_uniques=True).holds
    parts += [call(1, "d", "replace:x"), *runs(2.5, 3, "d"), call(0.5, "c", "replace:x")]
    parts += [duplicate(1.5, "c", "replaced")]
    parts += [call(9, "e", "existing:x"), *runs(9.2, 9.6, "e"), existing(9.3, "e")]
    verdict = judge(Story(parts, LEASE), LIMITS, has_uniques=True)
    assert verdict.uniques == (3, 1, 1, 1)
    assert verdict.holds


# -- what is done ---------------------------------------------------------------------------------


def test_the_seed_decides_faults_and_load() -> None:
    assert faults(QUICK, 1) == faults(QUICK, 1)
    assert faults(QUICK, 1) != faults(QUICK, 2)
    jobs = [next_job(QUICK, random.Random(seed)) for seed in (1, 1, 2)]
    assert jobs[0] == jobs[1] != jobs[2]


def test_every_plan_has_its_amounts() -> None:
    for plan, kills, others in ((FULL, 300, 20), (QUICK, 15, 3)):
        kinds = [fault.kind for fault in faults(plan, 1)]
        for kind in plan.amounts:
            assert kinds.count(kind) >= (kills if kind.startswith("kill") else others)
    assert all(amount >= 1 for amount in scaled(QUICK, 0.01).amounts.values())


def test_on_a_cluster_its_faults_replace_those_of_one_redis() -> None:
    for plan in (FULL, QUICK):
        amounts = on_cluster(plan).amounts
        assert amounts.keys() == plan.amounts.keys() - set(OF_REDIS) | set(OF_CLUSTER)
        assert all(amount >= 1 for amount in amounts.values())
    assert on_cluster(DEATHS) == DEATHS


def test_workers_die_without_an_outage_at_the_start_of_a_run() -> None:
    for plan in (FULL, QUICK):
        first = min(fault.at for fault in faults(plan, 1) if fault.kind in OF_REDIS)
        assert first > plan.lease_seconds + SLACK_SECONDS
        kills = [fault for fault in faults(plan, 1) if fault.kind == "kill worker"]
        assert any(fault.at + plan.lease_seconds + SLACK_SECONDS < first for fault in kills)


def test_some_pauses_and_freezes_are_longer_than_a_lease() -> None:
    for kind in ("pause", "freeze"):
        seconds = [fault.seconds for fault in faults(QUICK, 1) if fault.kind == kind]
        assert min(seconds) <= QUICK.lease_seconds < max(seconds)


def test_a_ledger_is_read_line_by_line_while_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setenv(ledger.VARIABLE, os.fspath(path))
    tail = ledger.Tail(path)
    assert tail.read() == []
    ledger.write("start", id="a")
    with path.open("ab") as file:
        file.write(b'{"event": "e')
    assert [event["id"] for event in tail.read()] == ["a"]
    with path.open("ab") as file:
        file.write(b'nd", "id": "b"}\n')
    assert [(event["event"], event["id"]) for event in tail.read()] == [("end", "b")]
