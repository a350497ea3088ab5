"""The gate's contract on every broker: rejected tasks go back whole, and limits hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import chain, chord, group

from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.types import Admitted, Lease, SlotRequest
from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.support.parts import parts_of
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.parametrize("broker", BROKERS)


@contextmanager
def slot_taken(shop: Shop, user: str) -> Iterator[None]:
    """Hold the tenant's only slot from outside, so that every task of the tenant is rejected."""
    lease = Lease(f"held-for-{user}", tier_key(user))
    answer = parts_of(shop.fairness).limiter.acquire(SlotRequest(lease, user, "free"))
    assert isinstance(answer, Admitted)
    yield
    parts_of(shop.fairness).limiter.release([lease])


def await_rejections(shop: Shop, count: int) -> None:
    def rejected() -> None:
        assert shop.fairness.stats.rejections().tiers.get("free", 0) >= count

    eventually(rejected, RESULT_SECONDS)


def test_a_rejected_task_comes_back_as_it_was(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker, fairness={"lease_seconds": 60})
    shop.worker(pool="threads", concurrency=2)
    options: dict[str, Any] = {
        "headers": {"x_trace": "abc"},
        "expires": 600,
        "time_limit": 100,
        "soft_time_limit": 50,
        "link": shop.app.tasks["shop.plain"].si(),
        "priority": 3,
    }
    free = shop.send("echo", 1, user="other", k="v", options=options).get(timeout=RESULT_SECONDS)
    with slot_taken(shop, "42"):
        rejected = shop.send("echo", 1, user="42", k="v", options=options)
        await_rejections(shop, 2)
    came = rejected.get(timeout=RESULT_SECONDS)
    for facts in (free, came):
        assert facts.pop("id") == facts.pop("root_id")
        assert facts.pop("expires")
    assert came == free
    assert came["retries"] == 0
    assert came["timelimit"] == [100, 50]
    children = [child.get(timeout=RESULT_SECONDS) for child in rejected.children or []]
    assert children == ["plain"]


def test_a_client_never_sees_a_rejected_task_started(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, {"task_track_started": True}, {"lease_seconds": 60})
    shop.worker(pool="threads", concurrency=2)
    seen = set()
    with slot_taken(shop, "42"):
        result = shop.send("work", user="42")

        def rejected_often() -> None:
            seen.add(result.state)
            assert shop.fairness.stats.rejections().tiers.get("free", 0) >= 3

        eventually(rejected_often, RESULT_SECONDS, poll_seconds=0.002)
    assert seen == {"PENDING"}
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1}


def test_rejections_spend_none_of_the_users_retries(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={"lease_seconds": 60})
    shop.worker(pool="threads", concurrency=2)
    with slot_taken(shop, "42"):
        result = shop.send("work", "retry", user="42")
        await_rejections(shop, 5)
    assert result.get(timeout=RESULT_SECONDS) == "after 2 retries"
    assert [entry["retries"] for entry in shop.ledger("start")] == [0, 1, 2]


def test_two_workers_share_one_limit(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker, fairness={"tiers": {"free": {"concurrency": 3}}})
    for _ in range(2):
        shop.worker(pool="threads", concurrency=4)
    results = [shop.send("work", user="42", seconds=0.05) for _ in range(30)]
    results += [shop.send("work", user=f"u{n}", seconds=0.05) for n in range(10)]
    for result in results:
        assert result.get(timeout=at_most(60)) == "done"
    assert shop.most_at_once("42") == 3
    assert set(shop.runs().values()) == {1}
    assert len({entry["pid"] for entry in shop.ledger("start")}) == 2


def test_canvas_works_through_rejections(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker, fairness={"lease_seconds": 60})
    shop.worker(pool="threads", concurrency=3)
    add, total = shop.app.tasks["shop.add"], shop.app.tasks["shop.total"]
    with slot_taken(shop, "42"):
        steps = chain(add.s(1, 2, user="42"), add.s(3, user="42"), add.s(4, user="42"))()
        many = group(add.s(n, n, user="42") for n in range(4))()
        summed = chord([add.s(n, 1, user="42") for n in range(4)], total.s(user="42"))()
        by_name = shop.app.send_task("shop.add", (5, 6), {"user": "42"})
        linked = add.apply_async((1, 1), {"user": "42"}, link=add.s(10, user="42"))
        await_rejections(shop, 11)
    assert steps.get(timeout=RESULT_SECONDS) == 10
    assert many.get(timeout=RESULT_SECONDS) == [0, 2, 4, 6]
    assert summed.get(timeout=RESULT_SECONDS) == 10
    assert by_name.get(timeout=RESULT_SECONDS) == 11
    assert linked.get(timeout=RESULT_SECONDS) == 2
    (child,) = linked.children or ()
    assert child.get(timeout=RESULT_SECONDS) == 12


def test_a_failing_member_fails_its_chord(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker)
    shop.worker(pool="threads", concurrency=3)
    work, total = shop.app.tasks["shop.work"], shop.app.tasks["shop.total"]
    header = [work.s(how, user="42") for how in ("ok", "error", "ok")]
    result = chord(header, total.s(user="42"))()
    with pytest.raises(Exception, match="as asked"):
        result.get(timeout=RESULT_SECONDS)


def test_a_chain_of_a_tenant_with_one_slot_does_not_wait_for_itself(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker)
    for _ in range(2):
        shop.worker(pool="threads", concurrency=2)
    add = shop.app.tasks["shop.add"]
    result = chain(add.s(0, 1, user="42"), *(add.s(1, user="42") for _ in range(19)))()
    assert result.get(timeout=RESULT_SECONDS) == 20
    # A slot's end and the next step's start come over two connections, and a busy Redis may once
    # read the start first. A slot that ended after the next step was sent would reject most of 19.
    assert shop.fairness.stats.rejections().tiers.get("free", 0) <= 1


def test_a_child_task_is_charged_to_its_parents_tenant(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker)
    shop.worker(pool="threads", concurrency=2)
    parent = shop.send("spawn", user="42")
    child = shop.app.AsyncResult(parent.get(timeout=RESULT_SECONDS))
    header = child.get(timeout=RESULT_SECONDS)
    assert (header["tenant"], header["tier"]) == ("42", "free")


def test_malformed_arguments_fail_as_they_would_without_us(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={"lease_seconds": 60})
    shop.worker(pool="threads", concurrency=2)
    with slot_taken(shop, "42"):
        wrong = shop.app.send_task("shop.work", (), {"user": "42", "colour": "blue"})
        await_rejections(shop, 2)
    with pytest.raises(TypeError, match="colour"):
        wrong.get(timeout=RESULT_SECONDS)
    invalid = shop.app.send_task("shop.work", (), {"user": 1.5})
    assert invalid.get(timeout=RESULT_SECONDS) == "done"
    assert shop.fairness.stats.counters() == {"invalid": 1}
