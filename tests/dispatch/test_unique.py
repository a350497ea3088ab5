"""Unique tasks: what a second call gets, and when the key is free again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chord, group
from celery.result import AsyncResult
from redis import Redis

from celery_fairness import DuplicateTask
from tests.dispatch.conftest import PREFIX, assert_nothing_left, waiting_in
from tests.dispatch.unique_kinds import add_unique_tasks
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

KINDS = "tests.dispatch.unique_kinds"


@pytest.fixture
def shop(make_fair_shop: Callable[..., Shop]) -> Shop:
    """A shop whose tenants run two tasks at once, with unique tasks."""
    made = make_fair_shop(fairness={"tiers": {"free": {"concurrency": 2}}})
    add_unique_tasks(made.app)
    return made


def task(shop: Shop, on_duplicate: str) -> Any:
    return shop.app.tasks[f"unique.{on_duplicate}"]


def assert_no_key_left(memory: Redis) -> None:
    """Wait until nothing waits or runs, and find no key."""
    assert_nothing_left(memory)
    assert not memory.exists(f"{PREFIX}unique")


def duplicate_of(result: AsyncResult[Any], how: str) -> str:
    """Return the id of the task because of which another one has not run."""
    with pytest.raises(DuplicateTask) as caught:
        result.get(timeout=RESULT_SECONDS)
    assert caught.value.how == how
    assert caught.value.task_id == result.id
    return caught.value.of


def test_a_dropped_call_fails_and_the_key_is_free_when_the_task_has_ended(
    shop: Shop, memory: Redis
) -> None:
    shop.worker(app=KINDS, concurrency=2)
    gate = shop.gate_file()
    first = task(shop, "drop").delay("a1", gate=str(gate), user="42")
    eventually(lambda: len(shop.ledger("start")) == 1)
    again = task(shop, "drop").delay("a1", user="42")
    # Another tenant, and another account, have keys of their own.
    others = [task(shop, "drop").delay("a1", user="43"), task(shop, "drop").delay("a2", user="42")]
    assert duplicate_of(again, "dropped") == first.id
    assert [each.get(timeout=RESULT_SECONDS) for each in others] == ["done", "done"]
    gate.touch()
    assert first.get(timeout=RESULT_SECONDS) == "done"
    assert_no_key_left(memory)
    assert task(shop, "drop").delay("a1", user="42").get(timeout=RESULT_SECONDS) == "done"
    assert len(shop.ledger("start")) == 4


def test_a_dropped_member_ends_its_group_and_its_chord(shop: Shop) -> None:
    shop.worker(app=KINDS, concurrency=2)
    gate = shop.gate_file()
    first = task(shop, "drop").delay("a1", gate=str(gate), user="42")
    members = [task(shop, "drop").s("a1", user="42"), shop.app.tasks["shop.add"].s(1, 2, user="42")]
    many = group(members)()
    summed = chord(members, shop.app.tasks["shop.total"].s(user="42"))()
    assert duplicate_of(many.results[0], "dropped") == first.id
    assert many.results[1].get(timeout=RESULT_SECONDS) == 3
    with pytest.raises(Exception, match="DuplicateTask"):
        AsyncResult(summed.id, app=shop.app).get(timeout=RESULT_SECONDS)
    gate.touch()


def test_a_call_gets_the_existing_task(shop: Shop, memory: Redis) -> None:
    first = task(shop, "existing").delay("a1", user="42")
    again = task(shop, "existing").apply_async(("a1",), {"user": "42"})
    assert again.id == first.id
    assert waiting_in(memory) == [first.id]
    shop.worker(app=KINDS, concurrency=2)
    assert again.get(timeout=RESULT_SECONDS) == "done"
    assert_no_key_left(memory)
    assert len(shop.ledger("start")) == 1


def test_the_last_call_replaces_what_waits_and_runs_beside_what_runs(
    shop: Shop, memory: Redis
) -> None:
    gate = shop.gate_file()
    replaced = task(shop, "replace").delay("a1", user="42")
    running = task(shop, "replace").delay("a1", gate=str(gate), user="42")
    shop.worker(app=KINDS, concurrency=2)
    assert duplicate_of(replaced, "replaced") == running.id
    eventually(lambda: len(shop.ledger("start")) == 1)
    beside = task(shop, "replace").delay("a1", user="42")
    assert beside.get(timeout=RESULT_SECONDS) == "done"
    gate.touch()
    assert running.get(timeout=RESULT_SECONDS) == "done"
    assert_no_key_left(memory)
    assert len(shop.ledger("start")) == 2


def test_a_retry_keeps_the_key(shop: Shop, memory: Redis) -> None:
    shop.worker(app=KINDS, concurrency=2)
    gate = shop.gate_file()
    first = task(shop, "drop").delay("a1", gate=str(gate), how="retry", user="42")
    eventually(lambda: len(shop.ledger("start")) == 1)
    gate.touch()
    assert first.get(timeout=RESULT_SECONDS) == "done"
    assert len(shop.ledger("start")) == 2
    assert_no_key_left(memory)


def test_a_task_keeps_its_key_while_its_worker_is_dead(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    late = {"task_acks_late": True, "task_reject_on_worker_lost": True}
    shop = make_fair_shop(conf=late, fairness={"lease_seconds": 2})
    add_unique_tasks(shop.app)
    worker = shop.worker(app=KINDS, concurrency=2)
    gate = shop.gate_file()
    first = task(shop, "drop").delay("a1", gate=str(gate), user="42")
    eventually(lambda: len(shop.ledger("start")) == 1)
    worker.kill()
    again = task(shop, "drop").delay("a1", user="42")
    shop.worker(app=KINDS, concurrency=2)
    assert duplicate_of(again, "dropped") == first.id
    gate.touch()
    assert first.get(timeout=RESULT_SECONDS) == "done"
    assert_no_key_left(memory)


def test_calls_that_come_together_run_once_when_they_pause(shop: Shop, memory: Redis) -> None:
    calls = [task(shop, "debounced").delay("a1", user="42") for _ in range(5)]
    shop.worker(app=KINDS, concurrency=2)
    assert [duplicate_of(each, "replaced") for each in calls[:-1]] == [x.id for x in calls[1:]]
    assert calls[-1].get(timeout=RESULT_SECONDS) == "done"
    assert_no_key_left(memory)
    assert len(shop.ledger("start")) == 1
