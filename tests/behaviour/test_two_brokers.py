"""Two brokers in one installation: what is read decides, and what is sent elsewhere arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kombu
import pytest

from tests.integration.conftest import RESULT_SECONDS, Shop

SCHEMES = ("redis", "fairredis")


def of(redis_url: str, scheme: str, database: int) -> str:
    """Return the address of a broker."""
    return f"{scheme}{redis_url.removeprefix('redis').removesuffix('/0')}/{database}"


def at(make_shop: Callable[..., Shop], broker: str, settings: dict[str, Any]) -> Shop:
    """Make an installation with one broker."""
    return make_shop(variables={"CELERY_BROKER_URL": broker}, fairness=settings)


@pytest.mark.parametrize(("read", "write"), [("redis", "fairredis"), ("fairredis", "redis")])
def test_limits_hold_at_the_broker_that_is_read_and_sent_tasks_arrive(
    make_shop: Callable[..., Shop], redis_url: str, read: str, write: str
) -> None:
    """The first worker reads an old broker and writes to the new one, where the second one is."""
    old, new = of(redis_url, read, 4), of(redis_url, write, 5)
    settings = {
        "namespace": "of-two",
        "tiers": {"free": {"concurrency": 1}},
        "tier_on_limit": "wait",
        "redis_url": of(redis_url, "redis", 6),
    }
    both = make_shop(conf={"broker_read_url": old, "broker_write_url": new}, fairness=settings)
    last = at(make_shop, new, settings)
    both.worker(concurrency=2)
    last.worker(concurrency=2)
    with both.app.connection_for_write(old) as connection:
        waiting = [
            both.send("work", user="42", options={"connection": connection}) for _ in range(3)
        ]
    sent = [both.send("work", user="43") for _ in range(3)]
    for each in (*waiting, *sent):
        assert each.get(timeout=RESULT_SECONDS) == "done"
    assert set((both.runs() | last.runs()).values()) == {1}
    assert {each["id"] for each in last.ledger("start")} >= {each.id for each in sent}
    for shop, user in ((both, "42"), (last, "42"), (last, "43")):
        assert shop.most_at_once(user) <= 1


@pytest.mark.parametrize(("app", "worker"), [("redis", "fairredis"), ("fairredis", "redis")])
def test_a_task_is_sent_over_a_connection_of_another_broker(
    make_shop: Callable[..., Shop], redis_url: str, app: str, worker: str
) -> None:
    settings = {"redis_url": of(redis_url, "redis", 6)}
    sender = at(make_shop, of(redis_url, app, 4), settings)
    there = of(redis_url, worker, 5)
    at(make_shop, there, settings).worker(concurrency=1)
    with kombu.Connection(there) as connection:
        sent = sender.send("work", user="42", options={"connection": connection})
        assert sent.get(timeout=RESULT_SECONDS) == "done"


@pytest.mark.parametrize("source", SCHEMES)
def test_celery_migrate_moves_a_queue_to_another_broker(
    make_shop: Callable[..., Shop], redis_url: str, source: str
) -> None:
    target = "redis" if source == "fairredis" else "fairredis"
    old, new = of(redis_url, source, 4), of(redis_url, target, 5)
    settings = {"redis_url": of(redis_url, "redis", 6)}
    before = at(make_shop, old, settings)
    sent = [before.send("work", user="42") for _ in range(3)]
    moved = before.command("migrate", old, new, "-a", "-n", "3", "-t", "5", "-Q", "celery")
    assert moved.returncode == 0, moved.stderr
    at(make_shop, new, settings).worker(concurrency=1)
    for each in sent:
        assert each.get(timeout=RESULT_SECONDS) == "done"
