"""A rejected task comes back to its queue, whatever became of that queue on the broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from celery import chord
from celery.exceptions import ChordError
from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE

from celery_fairness import RateLimitPolicy
from celery_fairness.errors import NotFound, PublishFailed
from tests.integration.conftest import RABBITMQ, RESULT_SECONDS, Shop
from tests.support.waiting import at_most, eventually

KEY, OTHER = "api.example.com", "api.example.org"
#: A snooze that no test waits for, and a lease after which a failed publish is soon given up.
SETTINGS = {"snooze_seconds": 600, "snooze_jitter_seconds": 0, "lease_seconds": 1}
TIERS = {"tiers": {"free": {"concurrency": None}}}
#: The queue of the shop, behind an exchange of its own.
QUEUE = {"celery": {"exchange": "shop", "exchange_type": "topic", "routing_key": "celery"}}


def one(key: str = KEY, on_limit: str = "wait") -> RateLimitPolicy:
    return RateLimitPolicy(key, concurrency=1, on_limit=on_limit)


def held_and_parked(shop: Shop, key: str) -> tuple[int, int]:
    """Return how many slots of a key are held, and how many tasks are parked at it."""
    try:
        found = shop.fairness.limits.inspect(key)
    except NotFound:
        return 0, 0
    return found.held, found.waiting_count


def holder(shop: Shop, policy: RateLimitPolicy) -> Callable[[], None]:
    """Start a body that holds the key's only slot; returns what ends it."""
    gate = shop.gate_file()
    shop.send("work", user="holder", gate=str(gate), options={"limits": [policy]})

    def held() -> None:
        assert held_and_parked(shop, policy.key)[0] == 1

    eventually(held, RESULT_SECONDS)
    return gate.touch


def await_rejected(shop: Shop, count: int) -> None:
    """Wait until so many tasks were rejected for the first time."""

    def rejected() -> None:
        events = shop.fairness.events.read(types=["rate_limit.exceeded"]).events
        assert len({event.subject for event in events}) == count

    eventually(rejected, RESULT_SECONDS)


def await_parked(shop: Shop, count: int, key: str = KEY) -> None:
    def parked() -> None:
        assert held_and_parked(shop, key)[1] == count

    eventually(parked, RESULT_SECONDS)


def unbind(shop: Shop) -> None:
    """Take every way to the queue away: its messages and its consumer stay."""
    with shop.app.connection_for_write() as connection:
        channel = connection.default_channel
        channel.queue_unbind("celery", "shop", "celery")
        if shop.app.conf.task_default_queue_type == "quorum":
            channel.queue_unbind("celery", "shop", "#.celery")
            channel.exchange_unbind("shop", CELERY_DELAYED_DELIVERY_EXCHANGE, "#.celery")


@pytest.mark.parametrize("broker", RABBITMQ)
@pytest.mark.parametrize("on_limit", ["wait", "reschedule"])
def test_a_rejected_task_runs_though_its_queue_lost_its_bindings(
    make_shop: Callable[..., Shop], broker: str, on_limit: str
) -> None:
    shop = make_shop(broker, {"task_queues": QUEUE}, {**SETTINGS, **TIERS, "snooze_seconds": 2})
    shop.worker(pool="threads", concurrency=2)
    policy = one(on_limit=on_limit)
    end = holder(shop, policy)
    unbind(shop)
    # By the queue's name they reach it all the same.
    options = {"limits": [policy], "exchange": "", "routing_key": "celery"}
    results = [shop.send("work", user=f"u{n}", options=options) for n in range(3)]
    await_rejected(shop, 3)
    end()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}


@pytest.mark.parametrize("broker", RABBITMQ)
def test_a_parked_task_runs_though_its_queue_was_deleted(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={**SETTINGS, **TIERS})
    first = shop.worker(pool="threads", concurrency=2)
    holder(shop, one())
    results = [shop.send("work", user="42", options={"limits": [one()]}) for _ in range(3)]
    await_parked(shop, 3)
    # The slot is free when the lease of the dead worker has ended.
    first.process.kill()
    with shop.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("celery")
    # It promotes tasks of a queue that it does not consume, and nobody has declared that since.
    shop.worker(pool="threads", queues=["other"])
    await_parked(shop, 0)
    shop.worker(pool="threads")
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"


def by_own_exchange(shop: Shop) -> dict[str, str]:
    """Return the way of a message through an exchange that nobody but the test knows."""
    with shop.app.connection_for_write() as connection:
        channel = connection.default_channel
        channel.exchange_declare("own", "direct", durable=True, auto_delete=False)
        channel.queue_bind("celery", "own", "celery")
    return {"exchange": "own", "routing_key": "celery"}


def delete_own_exchange(shop: Shop) -> None:
    with shop.app.connection_for_write() as connection:
        connection.default_channel.exchange_delete("own")


@pytest.mark.parametrize("broker", RABBITMQ[:1])
def test_a_task_that_cannot_be_published_keeps_no_other_back_and_fails(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={**SETTINGS, **TIERS})
    worker = shop.worker(pool="threads", concurrency=4)
    ends = [holder(shop, one()), holder(shop, one(OTHER))]
    own = by_own_exchange(shop)
    work = shop.app.tasks["shop.work"]
    lost = work.si(user="42").set(limits=[one()], **own)
    whole = chord([lost])(shop.app.tasks["shop.plain"].si())
    await_parked(shop, 1)
    others = [shop.send("work", user="43", options={"limits": [one(OTHER)]}) for _ in range(4)]
    await_parked(shop, 4, OTHER)
    delete_own_exchange(shop)
    for end in ends:
        end()
    for result in others:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    with pytest.raises(PublishFailed):
        whole.get(timeout=at_most(60))

    def ended() -> str:
        assert isinstance(whole.result, ChordError)
        (event,) = shop.fairness.events.read(types=["fairness.unpublished"]).events
        return event.subject

    failed = eventually(ended, RESULT_SECONDS)
    error = shop.app.AsyncResult(failed).result
    assert isinstance(error, PublishFailed)
    assert (error.exchange, error.routing_key) == ("own", "celery")
    assert "the log" in error.problem
    assert "no exchange 'own'" in worker.log_text()
    assert failed not in shop.runs()
    # Its slot is free again.
    assert (
        shop.send("work", user="44", options={"limits": [one()]}).get(timeout=at_most(20)) == "done"
    )


@pytest.mark.parametrize("broker", RABBITMQ[:1])
def test_a_rescheduled_task_that_cannot_be_published_fails_and_gives_its_place_back(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={**SETTINGS, **TIERS})
    worker = shop.worker(pool="threads", concurrency=2)
    own = by_own_exchange(shop)
    policy = one(on_limit="reschedule")
    end = holder(shop, policy)
    gate = shop.gate_file()
    busy = shop.send("work", user="42", gate=str(gate))
    lost = shop.send("work", user="42", options={"limits": [policy], **own})
    worker.wait_for_log(lost.id)
    delete_own_exchange(shop)
    gate.touch()
    assert busy.get(timeout=RESULT_SECONDS) == "done"
    began = time.monotonic()
    with pytest.raises(PublishFailed, match="no exchange 'own'"):
        lost.get(timeout=at_most(60))
    assert time.monotonic() - began > 1
    # The holder has the other place.
    assert shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    end()
