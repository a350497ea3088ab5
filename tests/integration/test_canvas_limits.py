"""Chains, groups, chords, links and replaced tasks whose parts have limits, on both paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group
from celery.result import AsyncResult

from celery_fairness import RateLimitDropped
from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import KEY, key_taken
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.parametrize("broker", [*BROKERS, "fairredis"])


def limit(on_limit: str) -> dict[str, Any]:
    return {"key": KEY, "concurrency": 1, "on_limit": on_limit}


@pytest.mark.parametrize("on_limit", ["wait", "reschedule"])
def test_every_canvas_comes_through_a_limit_that_holds_its_parts(
    make_shop: Callable[..., Shop], broker: str, on_limit: str
) -> None:
    shop = make_shop(broker, fairness={"tiers": {"free": {"concurrency": None}}})
    shop.worker(pool="threads", concurrency=3)
    add, total = shop.app.tasks["shop.add"], shop.app.tasks["shop.total"]

    def part(*numbers: int) -> Any:
        return add.s(*numbers, user="42").set(limits=[limit(on_limit)])

    with key_taken(shop):
        steps = chain(part(1, 2), part(3), part(4))()
        many = group(part(n, n) for n in range(4))()
        summed = chord([part(n, 1) for n in range(4)], total.s(user="42"))()
        linked = part(1, 1).apply_async(link=part(10))
        replaced = shop.app.tasks["shop.replaced"].delay(limit(on_limit), user="42")
        # Whoever has no limit passes them all, and none of them has begun.
        assert shop.send("plain").get(timeout=RESULT_SECONDS) == "plain"
        assert shop.ledger("start", "shop.add") == []
    assert steps.get(timeout=at_most(60)) == 10
    assert many.get(timeout=at_most(60)) == [0, 2, 4, 6]
    assert summed.get(timeout=at_most(60)) == 10
    assert linked.get(timeout=at_most(60)) == 2
    (child,) = linked.children or ()
    assert child.get(timeout=at_most(60)) == 12
    assert replaced.get(timeout=at_most(60)) == 15
    assert len(shop.ledger("start", "shop.add")) == 3 + 4 + 4 + 2 + 1


def test_what_a_limit_drops_of_a_canvas_is_told_to_whoever_waits(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={"tiers": {"free": {"concurrency": None}}})
    shop.worker(pool="threads", concurrency=3)
    add, total = shop.app.tasks["shop.add"], shop.app.tasks["shop.total"]
    drops = add.s(1, 2, user="42").set(limits=[limit("drop")])
    free = add.s(3, 4, user="42")
    with key_taken(shop):
        steps = chain(drops, add.s(3, user="42"))()
        many = group(free, drops)()
        summed = chord([free, drops], total.s(user="42"))()
        replaced = shop.app.tasks["shop.replaced"].delay(limit("drop"), user="42")
        for result in (steps.parent, many.results[1], replaced):
            with pytest.raises(RateLimitDropped):
                result.get(timeout=RESULT_SECONDS)
        with pytest.raises(Exception, match="RateLimitDropped"):
            # Not that of the chord itself, which asks its parts first.
            AsyncResult(summed.id, app=shop.app).get(timeout=RESULT_SECONDS)
    assert many.results[0].get(timeout=RESULT_SECONDS) == 7
    # Whoever waits for the end of a chain hears it too.
    eventually(lambda: steps.state == "FAILURE", RESULT_SECONDS)
