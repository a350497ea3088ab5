"""The verdict on an installation: its first sentence, its causes, and what it rules out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from celery_fairness.control.health.verdict import they_had, unresolved_text, verdict_of
from celery_fairness.control.installation.views import (
    OwnerStatus,
    UnannouncedWorker,
    WorkerReplies,
    WorkerStatus,
)
from celery_fairness.control.queue.queue_status import fairness_index, with_entitled
from celery_fairness.control.queue.views import BlockingLimit, KeySaving, QueueStatus, TenantShare
from celery_fairness.control.tenant.views import UnresolvedTenant

OWNER = "web:7:abc"


def share(
    key="tenant:a", held=1, limit=1, waiting=5, startable=0, state="tier", waits=1.0, weight=1
):
    return TenantShare(key, "free", weight, limit, held, 0.0, waiting, startable, state, waits)


def queue(*tenants, name="celery", waiting=5, dead=0, limits=(), **blocked):
    startable = sum(each.startable for each in tenants)
    return QueueStatus(
        name,
        waiting,
        0,
        1,
        dead,
        1,
        0,
        startable=startable,
        blocked_tasks=blocked,
        tenants=tenants,
        limits=limits,
        is_complete=True,
    )


def worker(*queues, places=4, enforcement="on", path="dispatch"):
    return WorkerStatus(
        name="celery@web",
        pid=7,
        path=path,
        enforcement=enforcement,
        owner=OWNER,
        places=places,
        queues=queues or ("celery",),
    )


WORKERS = (worker(),)


AT = datetime(2026, 11, 28, 12, 0, 3, tzinfo=UTC)
REPLIES = WorkerReplies(at=AT, answered=1)


def judged(*queues, workers=WORKERS, runs=1, index=None, claims=True, replies=REPLIES):
    owners = [OwnerStatus(OWNER, runs)]
    return verdict_of(queues, workers, owners, index, replies, at=AT, claims=claims)


def test_a_key_that_saves_is_named_once_with_what_its_task_needs():
    gpu = BlockingLimit("gpu:memory", "concurrency", 7, KeySaving(24, 80, 10, "tenant:7"))
    plain = BlockingLimit("api", "rate", 2)
    queues = [queue(share(), name=name, limits=(gpu, plain), limit=5) for name in ("a", "b")]
    found = judged(*queues, workers=(worker("a", "b"),))
    (line,) = [each for each in (found.line, *found.causes) if "gpu" in each]
    assert line == ("gpu:memory: a task of tenant:7 needs 24 of 80, 10 free; the key saves for it")
    assert found.level == "busy"


def test_nothing_waits():
    assert judged(queue(waiting=0)).line == "all tenants get their share"
    assert judged().line == "nothing waits or runs"


def test_a_gate_does_not_say_that_nothing_waits_in_the_broker():
    line = "no task is parked or holds a slot; tasks in the broker are not counted here"
    assert judged(claims=False).line == line
    assert judged(queue(waiting=0), claims=False).line == "all tenants get their share"


def test_tasks_at_their_tenants_limits_while_places_are_free():
    found = judged(queue(share(), waiting=3100, tier=2900, limit=100), runs=0)
    assert found.level == "busy"
    assert found.line == (
        "queue celery: 3,100 tasks wait, 2,900 of them at their tenants' limits; "
        "100 of them at other limits; 4 places are free"
    )
    assert "the announced worker enforces limits" in found.ruled_out
    assert "no waiting task is of a paused tenant" in found.ruled_out


def test_tasks_that_only_need_a_place():
    found = judged(queue(share(startable=5, state="ready")), runs=4)
    assert (found.level, found.line) == ("busy", "queue celery: 5 tasks wait, no place is free")


def test_a_queue_that_no_worker_takes_comes_before_all_that_waits():
    found = judged(queue(share(), tier=5), queue(name="other", waiting=1))
    assert (found.level, found.line) == ("trouble", "no worker takes queue other: 1 task waits")
    assert found.causes[0].startswith("queue celery: 5 tasks wait")
    assert "every queue with waiting tasks has a worker" not in found.ruled_out


def test_queues_that_no_worker_takes_are_one_sentence():
    queues = [queue(name=name) for name in "abcde"]
    line = "no worker takes queue a, queue b, queue c and 2 more: 25 tasks wait"
    assert judged(*queues, workers=()).line == line


def test_tasks_that_could_start_and_do_not():
    found = judged(queue(share(startable=2, state="ready", waits=90.0)), runs=0)
    assert found.level == "trouble"
    assert found.line == (
        "queue celery: 2 tasks could start and 4 places are free, but its workers run nothing, "
        "and one has waited 90 s"
    )
    # A worker that runs something may have a free place for a moment.
    assert judged(queue(share(startable=2, state="ready", waits=90.0))).level == "ok"
    # The next claim takes a task that came just now.
    assert judged(queue(share(startable=2, state="ready")), runs=0).level == "ok"


def test_workers_that_do_not_enforce_come_first():
    found = judged(queue(name="other"), workers=(worker(enforcement="observe"),))
    assert found.line == "1 of 1 worker does not enforce limits: celery@web"
    assert found.causes == ("no worker takes queue other: 5 tasks wait",)


def test_only_workers_that_answered_are_ruled_out_and_with_the_time():
    assert "the worker that answered at 12:00:03 UTC is announced" in judged().ruled_out
    many = judged(workers=(worker(), worker()), replies=WorkerReplies(at=AT, answered=3))
    assert "all 2 announced workers enforce limits" in many.ruled_out
    assert "all 3 workers that answered at 12:00:03 UTC are announced" in many.ruled_out
    assert many.unchecked == ()


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (WorkerReplies(at=AT), "no worker answered Celery's control bus at 12:00:03 UTC"),
        (WorkerReplies(at=AT, problem="it is down"), "it is down"),
    ],
)
def test_nothing_is_claimed_of_workers_that_nobody_saw(replies, why):
    found = judged(replies=replies)
    assert found.unchecked == (f"whether a worker that is not announced takes tasks: {why}",)
    assert not any("answered" in each for each in found.ruled_out)


def test_a_worker_that_is_not_announced_and_shares_a_queue_is_trouble():
    others = (
        UnannouncedWorker("celery@old", ("celery",), shares=True),
        UnannouncedWorker("celery@mute", None, shares=True),
        UnannouncedWorker("celery@mail", ("mail",), shares=False),
    )
    found = judged(replies=WorkerReplies(at=AT, answered=4, unannounced=others))
    assert found.level == "trouble"
    assert found.line == (
        "2 workers answer and are not announced: celery@old (takes queue celery), celery@mute (it "
        "did not send its queues); no limit of this installation holds for their tasks"
    )
    # One that takes no queue of the installation is no trouble, and not all are announced.
    found = judged(replies=WorkerReplies(at=AT, answered=2, unannounced=others[2:]))
    assert found.level == "ok"
    assert not any("answered" in each for each in found.ruled_out)


def test_parked_tasks_need_a_worker_with_gates():
    parked = queue(share(), name="", tier=5)
    assert judged(parked).line == "no worker takes the parked tasks: 5 tasks wait"
    found = judged(parked, workers=(worker(path="gate"),))
    assert found.line.startswith("the parked tasks: 5 tasks wait, 5 of them at their tenants")


def test_dead_letters_are_named_last():
    found = judged(queue(share(), tier=5, dead=2))
    assert found.causes == ("2 tasks ended as dead letters: doctor names their causes",)


def test_a_failed_resolver_is_told_as_a_moment_and_a_full_report_as_a_lower_bound():
    rows = [UnresolvedTenant(f"tenant:{each}", 1, AT, "OSError") for each in range(20)]
    assert unresolved_text(rows).startswith(
        "the tier resolver failed for at least 20 tenants in the last 15 minutes: 0, 1, 2 and 17"
    )
    assert unresolved_text(rows[:2]).startswith("the tier resolver failed for 2 tenants in")
    assert they_had(rows, "free") == "they had the default tier free at that time"
    assert they_had(rows[:1], "free") == "it had the default tier free at that time"


def entitled(*tenants):
    return [each.entitled for each in with_entitled(tenants)]


def test_slots_are_shared_by_weight():
    assert entitled(share("a", 4, None, 9), share("b", 0, None, 9, weight=3)) == [1.0, 3.0]


def test_slots_that_a_tenant_cannot_use_go_to_the_others():
    one_limit = share("a", 1, 1, 9), share("b", 5, None, 9)
    assert entitled(*one_limit) == [1.0, 5.0]
    few_tasks = share("a", 0, None, 1, 1, "ready"), share("b", 6, None, 9)
    assert entitled(*few_tasks) == [1.0, 5.0]
    assert entitled(share("a", 0, 0, 9, state="paused"), share("b", 2, None, 9)) == [0.0, 2.0]
    assert entitled() == []


@pytest.mark.parametrize(
    ("held", "index"), [((2, 2), 1.0), ((4, 0), 0.5), ((0, 0), None), ((3,), None)]
)
def test_jains_index_of_the_shares(held, index):
    tenants = tuple(with_entitled([share(f"t{n}", each, None, 9) for n, each in enumerate(held)]))
    assert fairness_index(tenants) == (index and pytest.approx(index))
