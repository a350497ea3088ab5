"""P2: kombu alone against its stock transport: publish to an exchange, consume with acks.

Beside it, how fast a publish would be whose function in Redis does nothing: no put is faster.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from unittest import mock

import kombu

from celery_fairness.scheduler import calls
from celery_fairness.store import connection as of_store
from celery_fairness.store.library import Library, load
from celery_fairness.transport import register
from tests.benchmarks.harness import Row, url_of
from tests.support.redis_server import RedisServer

PREFETCH = 8
ASKED = 3.0
#: One that waits for nothing and changes nothing.
IDLE = Library(
    "cf_idle",
    f"""#!lua name=cf_idle
redis.register_function("cf_idle_{calls.PUT}", function() return 1 end)
""",
)


def rates(server: RedisServer, messages: int, *, ours: bool) -> tuple[float, float]:
    """Return messages a second: published, consumed and acknowledged."""
    queue = _queue()
    seen = 0

    def receive(_body: object, message: kombu.Message) -> None:
        nonlocal seen
        seen += 1
        message.ack()

    with (
        _published(server, queue, messages, ours=ours) as (connection, published),
        connection.Consumer([queue], callbacks=[receive], prefetch_count=PREFETCH),
    ):
        begun = time.perf_counter()
        while seen <= messages:
            connection.drain_events(timeout=5)
        return published, messages / (time.perf_counter() - begun)


def idle_rate(server: RedisServer, messages: int) -> float:
    """Return how many messages a second our transport publishes to a function that does nothing."""
    with _published(server, _queue(), messages, ours=True, idle=True) as (_, published):
        return published


def _queue() -> kombu.Queue:
    return kombu.Queue("bench", kombu.Exchange("bench"), routing_key="bench")


@contextlib.contextmanager
def _published(
    server: RedisServer,
    queue: kombu.Queue,
    messages: int,
    *,
    ours: bool,
    idle: bool = False,
) -> Iterator[tuple[kombu.Connection, float]]:
    """Publish, and say how many a second, on a connection that is open in the block."""
    register()
    with server.client() as client:
        client.flushall()
        load(client.execute_command, IDLE)
    with kombu.Connection(url_of(server, ours=ours)) as connection:
        producer = connection.Producer()
        producer.publish({}, exchange=queue.exchange, routing_key="bench", declare=[queue])
        patched = mock.patch.object(of_store, "library", return_value=IDLE)
        with patched if idle else contextlib.nullcontext():
            begun = time.perf_counter()
            for number in range(messages):
                producer.publish({"number": number}, exchange=queue.exchange, routing_key="bench")
            taken = time.perf_counter() - begun
        yield connection, messages / taken


def rows(server: RedisServer, messages: int) -> Iterator[Row]:
    """Measure stock, ours, ours, stock, and so on: both sides meet the same disturbances."""
    stock, ours, idle = [], [], []
    for is_ours in (False, True, True, False) * 5:
        (ours if is_ours else stock).append(rates(server, messages, ours=is_ours))
        if is_ours:
            idle.append(idle_rate(server, messages))
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
    theirs, mine = statistics.median(pair[0] for pair in stock), statistics.median(idle)
    yield Row(
        "P2",
        "kombu publish to a function that does nothing, messages a second",
        "to compare: no put is faster",
        f"{mine:,.0f} against {theirs:,.0f}: {mine / theirs:.2f} x",
        mine >= theirs,
    )
