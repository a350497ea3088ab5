"""P2: kombu alone against its stock transport: publish to an exchange, consume with acks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import kombu

from celery_fairness.testing.server import RedisServer
from celery_fairness.transport import register
from tests.benchmarks.harness import Row, url_of

PREFETCH = 8
ASKED = 3.0


def rates(server: RedisServer, messages: int, *, ours: bool) -> tuple[float, float]:
    """Return messages a second: published, consumed and acknowledged."""
    register()
    with server.client() as client:
        client.flushall()
    queue = kombu.Queue("bench", kombu.Exchange("bench"), routing_key="bench")
    seen = 0

    def receive(_body: object, message: kombu.Message) -> None:
        nonlocal seen
        seen += 1
        message.ack()

    with kombu.Connection(url_of(server, ours=ours)) as connection:
        producer = connection.Producer()
        producer.publish({}, exchange=queue.exchange, routing_key="bench", declare=[queue])
        begun = time.perf_counter()
        for number in range(messages):
            producer.publish({"number": number}, exchange=queue.exchange, routing_key="bench")
        published = messages / (time.perf_counter() - begun)
        with connection.Consumer([queue], callbacks=[receive], prefetch_count=PREFETCH):
            begun = time.perf_counter()
            while seen <= messages:
                connection.drain_events(timeout=5)
            consumed = messages / (time.perf_counter() - begun)
    return published, consumed


def rows(server: RedisServer, messages: int) -> Iterator[Row]:
    """Measure stock, ours, ours, stock, and so on: both sides meet the same disturbances."""
    stock, ours = [], []
    for is_ours in (False, True, True, False) * 5:
        (ours if is_ours else stock).append(rates(server, messages, ours=is_ours))
    for what, side in (("kombu publish", 0), ("kombu consume and ack", 1)):
        theirs = statistics.median(pair[side] for pair in stock)
        mine = statistics.median(pair[side] for pair in ours)
        yield Row(
            "P2",
            f"{what}, messages a second",
            f">= {ASKED:g} x stock",
            f"{mine:,.0f} against {theirs:,.0f}: {mine / theirs:.2f} x",
            mine / theirs >= ASKED,
        )
