"""Workers on brokers that do not claim fairly tell what their gates do: by minute, and by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate import await_rejections, slot_taken
from tests.support.waiting import eventually

QUICK = {"snooze_seconds": 0.2, "snooze_jitter_seconds": 0.2, "lease_seconds": 60}


def counted(shop: Shop, what: str) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for minute in shop.fairness.stats.minutes():
        for each in minute.counts:
            found[each.queue, each.tier] += getattr(each, what)
    return +found


@pytest.mark.parametrize("broker", BROKERS)
def test_starts_and_rejections_of_workers_are_counted_by_tier_and_queue(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=QUICK)
    shop.worker(pool="prefork", concurrency=2)
    with slot_taken(shop, "42"):
        rejected = shop.send("work", "ok", user="42")
        await_rejections(shop, 1)
    others = [shop.send("work", "ok", user=f"u{n}") for n in range(3)]
    # A task of nobody that has no limits is not asked about.
    others += [shop.send("plain")]
    for result in (rejected, *others):
        result.get(timeout=RESULT_SECONDS)
    assert shop.runs()[rejected.id] == 1
    # The slot that was taken from outside was of no task.
    assert counted(shop, "started") == {("celery", "free"): 4}
    assert counted(shop, "rejected") == {
        ("celery", "free"): shop.fairness.stats.rejections().tiers["free"]
    }


@pytest.mark.parametrize("broker", BROKERS)
def test_starts_and_ends_of_workers_are_told_while_somebody_watches(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=QUICK)
    shop.worker(pool="prefork", concurrency=2)
    shop.fairness.events.trace(600)
    done = shop.send("work", "ok", user="u1")
    done.get(timeout=RESULT_SECONDS)
    gate = shop.gate_file()
    killed = shop.send("work", "kill_child", user="u2", gate=str(gate))
    shop.await_held("u2", 1)
    gate.touch()
    shop.await_held("u2", 0)
    later = shop.send("work", "ok", user="u2")
    later.get(timeout=RESULT_SECONDS)
    types = ["task.put", "task.started", "task.ended"]

    def all_are_told() -> None:
        events = shop.fairness.events.read(types=types).events
        told = [(each.type, each.subject, each.data.get("outcome")) for each in events]
        assert told == [
            (what, result.id, outcome if what == "task.ended" else None)
            for result, outcome in ((done, "done"), (killed, "died"), (later, "done"))
            for what in types
        ]
        assert {each.data["key"] for each in events} == {"tenant:u1", "tenant:u2"}
        assert len({each.data["owner"] for each in events if "owner" in each.data} - {""}) == 1
        assert {each.data["tier"] for each in events if "tier" in each.data} == {"free"}

    eventually(all_are_told, RESULT_SECONDS)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_rejected_task_is_put_once(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker, fairness=QUICK)
    shop.fairness.events.trace(600)
    shop.worker(pool="prefork", concurrency=2)
    with slot_taken(shop, "42"):
        rejected = shop.send("work", "ok", user="42")
        await_rejections(shop, 2)
    rejected.get(timeout=RESULT_SECONDS)
    shop.send("plain").get(timeout=RESULT_SECONDS)
    (put,) = shop.fairness.events.read(types=["task.put"]).events
    assert (put.subject, put.data["key"], put.data["rank"]) == (rejected.id, "tenant:42", None)
