"""What means something else on stock ``redis://``: priorities, and the visibility timeout."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from threading import Thread
from typing import Any

import kombu
import pytest
from celery import Celery
from redis import Redis

from celery_fairness.transport import register
from celery_fairness.transport.migration import to_stock
from tests.integration.conftest import (
    RESULT_SECONDS,
    Shop,
)
from tests.support.nodes import WorkerNode
from tests.support.waiting import at_most, eventually

QUEUE = kombu.Queue("moves", kombu.Exchange(""), routing_key="moves")


def lines(worker: WorkerNode, text: str) -> list[str]:
    return [line for line in worker.log_text().splitlines() if text in line]


@pytest.mark.parametrize("chosen", [False, True])
def test_a_worker_says_once_what_it_does_otherwise_than_stock(
    make_shop: Callable[..., Shop],
    chosen: bool,
) -> None:
    fairness = {"priority_order": "high_first"} if chosen else {}
    options = {} if chosen else {"visibility_timeout": 60}
    shop = make_shop("fairredis", fairness=fairness, conf={"broker_transport_options": options})
    worker = shop.worker(concurrency=1)
    for priority in (0, 5, 9):
        sent = shop.send("work", user="42", options={"priority": priority})
        assert sent.get(timeout=RESULT_SECONDS) == "done"
    times = 0 if chosen else 1
    order = lines(worker, "this worker starts the highest priority first, and the stock Redis")
    assert len(order) == times
    assert all("a task has the priority 5" in line for line in order)
    assert len(lines(worker, "visibility_timeout of broker_transport_options is set")) == times


@pytest.mark.parametrize(
    ("order", "first"), [("high_first", [9, 5, 3, 0]), ("low_first", [0, 3, 5, 9])]
)
def test_a_message_keeps_its_meaning_on_the_way_back(
    redis_url: str, order: str, first: list[int]
) -> None:
    options = {"fairness": {"priority_order": order}}
    register()
    received: list[int] = []

    def receive(body: Any, message: Any) -> None:
        received.append(body)
        message.ack()

    with (
        kombu.Connection(redis_url) as stock,
        kombu.Connection(f"fair{redis_url}", transport_options=options) as fair,
    ):
        producer = fair.Producer()
        for priority in (3, 0, 9, 5):
            producer.publish(priority, routing_key="moves", priority=priority)
        assert to_stock(fair.default_channel, "moves").moved == 4
        with stock.Consumer([QUEUE], callbacks=[receive], prefetch_count=1):
            while len(received) < 4:
                stock.drain_events(timeout=at_most(5))
    assert received == first


@pytest.mark.parametrize("to", ["fairredis", "redis"])
def test_a_queue_moves_while_workers_of_both_brokers_run(
    make_shop: Callable[..., Shop],
    redis_url: str,
    to: str,
) -> None:
    """Producers go on too: no task is lost or runs twice. ``make moves`` moves 10,000."""
    tasks = int(os.environ.get("MOVED_TASKS", "400"))
    conf = {"task_ignore_result": True}
    stock = make_shop("redis", conf=conf, fairness={"enabled": False})
    fair = make_shop(
        "fairredis",
        conf=conf,
        fairness={"enabled": False},
        variables={"SHOP_LEDGER": stock.env["SHOP_LEDGER"]},
    )
    if to == "fairredis":
        # The worker on fairredis takes nothing over before the command.
        assert move(fair, "redis")["moved"] == 0
    sent = [send(stock if to == "fairredis" else fair) for _ in range(tasks)]
    for each in (stock, fair):
        each.worker(concurrency=1)
    moved: list[dict[str, Any]] = []
    moving = Thread(target=lambda: moved.append(move(fair, to)))
    moving.start()
    while moving.is_alive():
        sent += map(send, (stock, fair))
    moving.join()
    assert moved[0]["moved"] > 0
    eventually(lambda: len(stock.runs()) == len(sent), 60 + tasks / 20)
    left = ("celery", "unacked", "{fairness}:tasks")
    with Redis.from_url(redis_url) as client:
        eventually(lambda: not any(map(client.exists, left)))
    assert stock.runs() == dict.fromkeys(sent, 1)


def test_the_resolver_of_the_worker_decides_and_no_header_of_a_stock_producer(
    make_shop: Callable[..., Shop], redis_url: str
) -> None:
    shop = make_shop("fairredis", fairness={"tier_resolver": "tests.support.resolver:tier_of"})
    gate = shop.gate_file()
    kwargs = {"gate": str(gate)}
    with Celery("stock", broker=redis_url, set_as_current=False) as stock:
        for user, claimed_tier in (("free-1", "enterprise"), ("pro-1", "free")):
            header = {"v": 1, "tenant": user, "tier": claimed_tier}
            for _ in range(2):
                arguments = {**kwargs, "user": user}
                stock.send_task("shop.work", kwargs=arguments, headers={"fairness": header})
    shop.worker(pool="threads", concurrency=4)
    eventually(lambda: [each["user"] for each in shop.ledger("start")].count("pro-1") == 2)
    shop.await_held("free-1", 1)
    gate.touch()
    eventually(lambda: len(shop.ledger("end")) == 4)
    assert (shop.most_at_once("free-1"), shop.most_at_once("pro-1")) == (1, 2)


def move(shop: Shop, to: str) -> dict[str, Any]:
    done = shop.command("fairness", "queue", "migrate", "celery", "--to", to, "--json")
    moved = dict(json.loads(done.stdout))
    assert done.returncode == bool(moved["waiting"])
    return moved


def send(shop: Shop) -> str:
    return str(shop.send("work", user="42", seconds=0.01).id)
