"""Producers that are told that too many wait, and tasks that must not be told."""

from __future__ import annotations

import pytest
from celery import group
from redis import Redis

from celery_fairness import BacklogFull, Tier
from tests.dispatch.conftest import assert_nothing_left, send, waiting_in
from tests.integration.conftest import RESULT_SECONDS
from tests.support.waiting import eventually

KINDS = "tests.dispatch.kinds"
FREE = {"tiers": {"free": {"concurrency": 1, "max_waiting": 1}}}


@pytest.mark.parametrize("how", ["retry", "429"])
def test_what_was_accepted_comes_back_and_goes_on_though_its_tenant_is_full(
    make_fair_shop, memory: Redis, how: str
) -> None:
    shop = make_fair_shop(fairness=FREE)
    worker = shop.worker(app=KINDS, concurrency=1)
    gate = shop.gate_file()
    link = shop.app.signature("kinds.plain", headers={"fairness": {"v": 1, "tenant": "42"}})
    options = {"link": link.set(immutable=True)}
    first = send(shop, "kinds.fair", "42", gate=str(gate), how=how)
    eventually(lambda: len(shop.ledger("start")) == 1)
    second = send(shop, "kinds.plain", "42", gate=str(gate), options=options)
    with pytest.raises(BacklogFull, match="1 tasks of 'tenant:42' wait, and max_waiting is 1"):
        send(shop, "kinds.plain", "42")
    with pytest.raises(BacklogFull):
        shop.app.tasks["shop.add"].delay(1, 2, user="42")
    assert waiting_in(memory) == [second.id]
    # Of another tenant there is room.
    other = shop.app.tasks["shop.add"].delay(1, 2, user="43")
    gate.touch()
    for result in (first, second):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert other.get(timeout=RESULT_SECONDS) == 3
    # The two, the first once more, and the link of the second, which ends while that waits.
    eventually(lambda: len(shop.ledger("end")) == 4, RESULT_SECONDS)
    assert_nothing_left(memory)
    assert "BacklogFull" not in worker.log_text()


def bounded(shop, most):
    """Publish a ``max_waiting`` for the tier of everybody."""
    others = [tier for name, tier in shop.fairness.settings.tiers.items() if name != "free"]
    shop.fairness.tenants.publish_tiers([Tier("free", 1, max_waiting=most), *others])


def test_a_body_that_sends_too_much_is_told_as_any_producer(fair_shop) -> None:
    bounded(fair_shop, 2)
    spawns = fair_shop.send("spawn", user="42")
    after = send(fair_shop, "kinds.plain", "42")
    bounded(fair_shop, 1)
    fair_shop.worker(app=KINDS, concurrency=1)
    with pytest.raises(BacklogFull, match="'tenant:42' wait, and max_waiting is 1"):
        spawns.get(timeout=RESULT_SECONDS)
    assert after.get(timeout=RESULT_SECONDS) == "done"


def test_new_numbers_act_on_the_next_call_and_a_full_group_is_accepted_in_part(
    make_fair_shop, memory: Redis
) -> None:
    shop = make_fair_shop(fairness=FREE)
    bounded(shop, 1)
    send(shop, "kinds.plain", "42")
    with pytest.raises(BacklogFull):
        send(shop, "kinds.plain", "42")
    bounded(shop, 3)
    part = shop.app.signature("kinds.plain", headers={"fairness": {"v": 1, "tenant": "42"}})
    with pytest.raises(BacklogFull) as caught:
        group([part] * 4, app=shop.app).apply_async()
    assert (caught.value.limit, len(waiting_in(memory))) == (3, 3)
