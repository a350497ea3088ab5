"""Tasks that people cancel and requeue while workers run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError
from redis import Redis

from celery_fairness import DeliveriesExhausted, Fairness, NotFound
from celery_fairness.config.tiers import Tier
from tests.dispatch.conftest import PREFIX, assert_nothing_left, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

KINDS = "tests.dispatch.kinds"


@pytest.fixture
def fairness(fair_shop: Shop) -> Fairness:
    fair_shop.fairness.tenants.publish_tiers([Tier("free", 1)])
    return fair_shop.fairness


def test_a_task_behind_its_tenants_limit_is_cancelled_and_the_next_one_runs(
    fair_shop: Shop, fairness: Fairness, memory: Redis
) -> None:
    worker = fair_shop.worker(app=KINDS, concurrency=2)
    gate = fair_shop.gate_file()
    runs, waits, after = (send(fair_shop, "kinds.plain", "42", gate=str(gate)) for _ in range(3))
    eventually(lambda: len(fair_shop.ledger("start")) == 1)
    why = fairness.tasks.explain(waits.id)
    assert (why.task, why.state, why.ahead_in_lane) == ("kinds.plain", "waiting", 0)
    (blocker,) = why.blocked_by
    assert (blocker.key, blocker.reason, blocker.held) == ("tenant:42", "concurrency", 1)
    (holder,) = blocker.holders
    assert (holder.task, holder.owner) == ("kinds.plain", fairness.tasks.explain(runs.id).owner)
    assert fairness.tasks.cancel(waits.id).state == "cancelled"
    with pytest.raises(TaskRevokedError):
        waits.get(timeout=RESULT_SECONDS)
    assert waits.state == "REVOKED"
    worker.wait_for_log(f"task kinds.plain[{waits.id}] of tenant '42' was cancelled")
    found = fairness.tasks.cancel(runs.id)
    assert (found.state, found.queue) == ("running", "celery")
    gate.touch()
    for result in (runs, after):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert waits.id not in fair_shop.runs()
    assert fairness.stats.counters()["cancelled"] == 1
    assert_nothing_left(memory)
    with pytest.raises(NotFound, match="neither waits nor runs"):
        fairness.tasks.cancel(runs.id)


def test_a_chord_fails_whose_part_was_cancelled_in_its_countdown(
    fair_shop: Shop, fairness: Fairness
) -> None:
    fair_shop.worker(app=KINDS, concurrency=1)
    signature = fair_shop.app.signature
    part = signature("kinds.plain").set(countdown=3_600)
    after = chord([part, signature("kinds.plain")], app=fair_shop.app)(signature("kinds.plain"))
    (late,) = [each.id for each in after.parent.results[:1]]
    assert fairness.tasks.cancel(late).state == "cancelled"
    with pytest.raises(ChordError, match="TaskRevokedError"):
        # Not that of the chord itself, which asks its parts first.
        fair_shop.app.AsyncResult(after.id).get(timeout=RESULT_SECONDS)
    assert after.id not in fair_shop.runs()


def test_the_flood_of_one_tenant_is_purged(
    fair_shop: Shop, fairness: Fairness, memory: Redis
) -> None:
    gate = fair_shop.gate_file()
    flood = [send(fair_shop, "kinds.plain", "42", gate=str(gate)) for _ in range(130)]
    quiet = send(fair_shop, "kinds.plain", "43", gate=str(gate))
    fair_shop.worker(app=KINDS, concurrency=2)
    eventually(lambda: len(fair_shop.ledger("start")) == 2)
    assert fairness.tenants.purge("42").cancelled == 129
    gate.touch()
    assert quiet.get(timeout=RESULT_SECONDS) == "done"
    assert flood[0].get(timeout=RESULT_SECONDS) == "done"
    eventually(lambda: {each.state for each in flood[1:]} == {"REVOKED"}, RESULT_SECONDS)
    assert len(fair_shop.runs()) == 2
    assert_nothing_left(memory)


def test_a_dead_letter_runs_again_when_its_cause_is_gone(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    conf = {"task_reject_on_worker_lost": True}
    shop = make_fair_shop(conf=conf, fairness={"max_deliveries": 1})
    worker = shop.worker(app=KINDS, pool="prefork", concurrency=1)
    gate = shop.gate_file()
    task = send(shop, "kinds.late", "42", gate=str(gate))
    eventually(lambda: len(shop.ledger("start")) == 1)
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    with pytest.raises(DeliveriesExhausted):
        task.get(timeout=RESULT_SECONDS)
    (letter,) = shop.fairness.tasks.dead_letters("celery").items
    assert (letter.task_id, letter.task, letter.tenant) == (task.id, "kinds.late", "42")
    stored = memory.hvals(f"{PREFIX}messages")
    assert len(stored) == 1
    assert shop.fairness.tasks.requeue(task.id).queue == "celery"
    # It is the same message, whether it waits or runs.
    assert memory.hvals(f"{PREFIX}messages") == stored
    gate.touch()
    # A result that was read remembers its failure.
    anew = shop.app.AsyncResult
    eventually(lambda: anew(task.id).state == "SUCCESS", RESULT_SECONDS)
    assert not shop.fairness.tasks.dead_letters().items
    with pytest.raises(NotFound, match="is no dead letter"):
        shop.fairness.tasks.requeue(task.id)
    assert_nothing_left(memory)
