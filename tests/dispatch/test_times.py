"""Tasks that wait for their time, and tasks that follow others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import chain, chord, group
from redis import Redis

from tests.dispatch.conftest import assert_nothing_left, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

KINDS = "tests.dispatch.kinds"


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_task_with_a_time_starts_not_before_it_and_holds_no_slot_until_then(
    fair_shop: Shop, memory: Redis, pool: str
) -> None:
    far = send(fair_shop, "kinds.late", "42", options={"countdown": 3600})
    due = [time.time() + after for after in (0.6, 0.9, 1.3)]
    results = [
        send(fair_shop, "kinds.late", "42", options={"eta": datetime.fromtimestamp(when, UTC)})
        for when in due
    ]
    fair_shop.worker(app=KINDS, pool=pool, concurrency=2)
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    started = {entry["id"]: entry for entry in fair_shop.ledger("start")}
    for result, when in zip(results, due, strict=True):
        entry = started[result.id]
        # The server's clock has whole milliseconds.
        assert entry["at"] > when - 0.001
        assert entry["eta"] is None
        assert datetime.fromisoformat(entry["waited_for"]).timestamp() == pytest.approx(when)
    # The tenant may have one slot. The task that still waits for its time does not hold it.
    fair_shop.await_held("42", 0)
    assert far.state == "PENDING"
    assert fair_shop.app.control.purge() == 1
    assert_nothing_left(memory)


def test_a_nearer_time_is_not_kept_waiting_by_a_later_one(fair_shop: Shop, memory: Redis) -> None:
    fair_shop.worker(app=KINDS, pool="threads", concurrency=2)
    far = send(fair_shop, "kinds.late", "42", options={"countdown": 3600})
    near = send(fair_shop, "kinds.late", "42", options={"countdown": 0.3})
    assert near.get(timeout=RESULT_SECONDS) == "done"
    assert fair_shop.app.control.purge() == 1
    assert far.state == "PENDING"
    assert_nothing_left(memory)


def test_a_retry_waits_its_countdown_without_a_slot(fair_shop: Shop, memory: Redis) -> None:
    fair_shop.worker(concurrency=2)
    result = fair_shop.send("work", "retry", user="42")
    assert result.get(timeout=RESULT_SECONDS) == "after 2 retries"
    starts = fair_shop.ledger("start")
    assert [each["retries"] for each in starts] == [0, 1, 2]
    for before, after in itertools.pairwise(starts):
        # The countdown of 0.1 s.
        assert after["at"] - before["at"] > 0.1
    assert_nothing_left(memory)


def test_a_task_that_expires_or_is_revoked_while_it_waits_never_runs(
    fair_shop: Shop, memory: Redis
) -> None:
    fair_shop.worker(app=KINDS, concurrency=2)
    gate = fair_shop.gate_file()
    first = send(fair_shop, "kinds.late", "42", gate=str(gate))
    fair_shop.await_held("42", 1)
    expires_at = datetime.now(UTC) + timedelta(seconds=0.3)
    expired = send(fair_shop, "kinds.late", "42", options={"expires": expires_at})
    revoked = send(fair_shop, "kinds.late", "42")
    fair_shop.revoke(revoked.id)
    eventually(lambda: datetime.now(UTC) > expires_at)
    gate.touch()
    for result in (expired, revoked):
        eventually(lambda result=result: result.state == "REVOKED", RESULT_SECONDS)
    assert first.get(timeout=RESULT_SECONDS) == "done"
    assert set(fair_shop.runs()) == {first.id}
    assert_nothing_left(memory)


@pytest.mark.parametrize("late", [False, True], ids=["early_ack", "late_ack"])
def test_canvas_of_one_tenant_with_one_slot_comes_to_its_end(
    make_fair_shop: Callable[..., Shop], memory: Redis, late: bool
) -> None:
    shop = make_fair_shop(conf={"task_acks_late": late})
    shop.worker(pool="threads", concurrency=4)
    tasks = shop.app.tasks
    add, total, child = tasks["shop.add"], tasks["shop.total"], tasks["shop.child"]
    chained = chain(add.s(1, 2, user="42"), add.s(3, user="42"), add.s(4, user="42")).delay()
    grouped = group(add.s(i, i, user="42") for i in range(5)).delay()
    corded = chord([add.s(i, i, user="42") for i in range(5)], total.s(user="42")).delay()
    linked = add.apply_async((1, 2), {"user": "42"}, link=child.si().set(task_id="linked"))
    failing = tasks["shop.work"].apply_async(
        ("error",), {"user": "42"}, link_error=child.si().set(task_id="after_error")
    )
    mapped = add.starmap([(1, 2), (3, 4)]).delay()
    chunked = add.chunks([(1, 2), (3, 4), (5, 6)], 2).delay()
    assert chained.get(timeout=RESULT_SECONDS) == 10
    assert grouped.get(timeout=RESULT_SECONDS) == [0, 2, 4, 6, 8]
    assert corded.get(timeout=RESULT_SECONDS) == 20
    assert linked.get(timeout=RESULT_SECONDS) == 3
    with pytest.raises(ValueError, match="as asked"):
        failing.get(timeout=RESULT_SECONDS)
    assert mapped.get(timeout=RESULT_SECONDS) == [3, 7]
    assert chunked.get(timeout=RESULT_SECONDS) == [[3, 7], [11]]
    for task_id in ("linked", "after_error"):
        header: Any = shop.app.AsyncResult(task_id).get(timeout=RESULT_SECONDS)
        assert header is None or header["tenant"] == "42"
    assert_nothing_left(memory)


def test_a_chord_that_polls_ends_though_its_tenant_is_at_the_limit(
    make_fair_shop: Callable[..., Shop], memory: Redis, tmp_path: Any
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    shop = make_fair_shop(
        variables={"CELERY_RESULT_BACKEND": f"file://{results}"},
        conf={"result_chord_retry_interval": 0.1},
    )
    shop.worker(pool="threads", concurrency=2)
    tasks = shop.app.tasks
    header = [tasks["shop.add"].s(i, i, user="42") for i in range(4)]
    corded = chord(header, tasks["shop.total"].s(user="42")).delay()
    assert corded.get(timeout=RESULT_SECONDS) == 12
    assert_nothing_left(memory)
