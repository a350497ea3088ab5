"""Tasks that expire while they wait in Redis, behind what runs."""

from __future__ import annotations

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError
from redis import Redis

from celery_fairness.config.tiers import Tier
from tests.dispatch.conftest import assert_nothing_left, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

KINDS = "tests.dispatch.kinds"
KEY = "api.example.com"
LIMITED = {"limits": [{"key": KEY, "rate": {"limit": 2, "period": "PT1H"}}]}
#: As their producer says.
EXPIRES = {"expires": 0.5}


def test_a_task_that_waits_for_its_tenants_slot_expires_there(
    fair_shop: Shop, memory: Redis
) -> None:
    fair_shop.fairness.tenants.publish_tiers([Tier("free", 1)])
    worker = fair_shop.worker(app=KINDS, concurrency=2)
    gate = fair_shop.gate_file()
    runs = send(fair_shop, "kinds.plain", "42", gate=str(gate))
    eventually(lambda: len(fair_shop.ledger("start")) == 1)
    waits = send(fair_shop, "kinds.plain", "42", options=EXPIRES)
    later = send(fair_shop, "kinds.plain", "43", options={**EXPIRES, "countdown": 3_600})
    for result in (waits, later):
        with pytest.raises(TaskRevokedError, match="expired"):
            result.get(timeout=RESULT_SECONDS)
        assert result.state == "REVOKED"
    # Its slot is still taken: nobody has claimed it.
    assert not fair_shop.ledger("end")
    worker.wait_for_log(f"task kinds.plain[{waits.id}] of tenant '42' expired in queue celery")
    assert fair_shop.fairness.stats.counters()["expired_waiting"] == 2
    assert not fair_shop.fairness.check().findings
    gate.touch()
    assert runs.get(timeout=RESULT_SECONDS) == "done"
    assert list(fair_shop.runs()) == [runs.id]
    assert_nothing_left(memory)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_whose_clock_is_ahead_runs_a_fresh_task(
    fair_shop: Shop, memory: Redis, pool: str
) -> None:
    results = [send(fair_shop, "kinds.late", "42", options={"expires": 600}) for _ in range(2)]
    expired = send(fair_shop, "kinds.late", "43", options={"expires": -600})
    fair_shop.worker(app="tests.dispatch.fast_clock", pool=pool, concurrency=1)
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 2
    with pytest.raises(TaskRevokedError, match="expired"):
        expired.get(timeout=RESULT_SECONDS)
    assert_nothing_left(memory)


def test_a_task_that_waits_at_a_limit_expires_without_a_start_and_its_chord_fails(
    fair_shop: Shop, memory: Redis
) -> None:
    fair_shop.worker(app=KINDS, concurrency=1)
    for _ in range(2):
        send(fair_shop, "kinds.plain", "41", options=LIMITED).get(timeout=RESULT_SECONDS)
    signature = fair_shop.app.signature
    part = signature("kinds.plain").set(**LIMITED, **EXPIRES)
    after = chord([part, signature("kinds.plain")], app=fair_shop.app)(signature("kinds.plain"))
    with pytest.raises(ChordError, match="TaskRevokedError"):
        fair_shop.app.AsyncResult(after.id).get(timeout=RESULT_SECONDS)
    rate = fair_shop.fairness.limits.inspect(KEY).rate
    assert rate is not None
    assert rate.current_count == 2
    assert after.id not in fair_shop.runs()
    assert_nothing_left(memory)
