"""Connections of kombu through the transport, and what is in Redis meanwhile.

Invariant: every connection that a test opened is closed after it, and every home that the test
made is forgotten, so the next test begins with an empty book.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection, Producer, Queue
from redis import Redis

from celery_fairness.config.settings import build_settings
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport import register
from celery_fairness.transport.options import SettingsOption
from celery_fairness.transport.session import _sessions, sessions
from tests.support.redis_server import RedisServer
from tests.support.waiting import at_most, eventually

Connect = Callable[..., Connection]


@pytest.fixture
def client(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    """A plain client of the broker's Redis."""
    with redis_server.client(decode_responses=True) as made:
        yield made


@pytest.fixture(autouse=True)
def empty_sessions() -> Iterator[None]:
    register()
    _sessions.clear()
    yield
    for session in sessions():
        session.close()
        eventually(lambda session=session: not session.renewals.runs)
    _sessions.clear()


@pytest.fixture
def connect(redis_url: str, empty_sessions: None) -> Iterator[Connect]:
    """A factory: ``connect(url, prefix=…, fairness=…, **options of Connection)``."""
    opened: list[Connection] = []

    def make(
        url: str = "",
        prefix: str = "",
        fairness: dict[str, Any] | SettingsOption | None = None,
        **given: Any,
    ) -> Connection:
        # A message without a tenant is a system task: no limit is in the way.
        options = {"fairness": fairness or {}, **given.pop("transport_options", {})}
        if prefix:
            options["global_keyprefix"] = prefix
        connection = Connection(url or f"fair{redis_url}", transport_options=options, **given)
        opened.append(connection)
        return connection

    yield make
    for connection in opened:
        connection.release()


#: For tests of batches of publishes.
BATCHES = pytest.mark.skipif(
    not hasattr(Producer, "batch"), reason="kombu before 5.7 has no batches of publishes"
)


def quick_leases() -> SettingsOption:
    """Leases that are renewed after 0.1 s: a setting allows no shorter one than a second."""
    settings = build_settings({}).model_copy(update={"lease_seconds": 0.3})
    return SettingsOption(lambda: settings)


class Inbox:
    """What a consumer of queues received; it acknowledges nothing by itself."""

    def __init__(self, connection: Connection, *queues: Queue | str, **options: Any) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        self.channel = connection.channel()
        prefetch = options.pop("prefetch_count", 0)
        bound = [
            queue if isinstance(queue, Queue) else Queue(queue, exchange="", routing_key=queue)
            for queue in queues
        ]
        self.consumer = connection.Consumer(
            bound, channel=self.channel, on_message=self.messages.append, **options
        )
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    @property
    def bodies(self) -> list[Any]:
        return [message.payload for message in self.messages]

    def await_count(self, count: int, timeout_seconds: float = at_most(5.0)) -> list[Any]:
        """Turn the loop until ``count`` messages are here, and return their bodies."""

        def are_here() -> None:
            self.turn()
            assert len(self.messages) >= count, self.bodies

        eventually(are_here, timeout_seconds, poll_seconds=0)
        assert len(self.messages) == count, self.bodies
        return self.bodies

    def turn(self, seconds: float = 0.05) -> None:
        """Turn the loop once."""
        try:
            self.connection.drain_events(timeout=seconds)
        except TimeoutError:
            pass

    def nothing_comes(self) -> None:
        """Turn the loop until a claim has answered that nothing is there."""
        before = len(self.messages)
        for _ in range(4):
            self.turn()
        assert len(self.messages) == before, self.bodies


def publish(connection: Connection, queue: str, *bodies: Any, **options: Any) -> None:
    """Put messages into ``queue``, one for each body."""
    producer = connection.Producer(serializer=options.pop("serializer", "json"))
    for body in bodies:
        producer.publish(body, exchange="", routing_key=queue, **options)


def charged(tenant: Any, **fields: Any) -> dict[str, Any]:
    """Return the headers of a message that is charged to ``tenant``."""
    return {"fairness": {"v": 1, "tenant": tenant, **fields}}


def tenants_of(places: Partitions, partition: int, count: int) -> list[str]:
    """Return names of tenants that are in one partition."""
    names = (f"t{number}" for number in range(100_000))
    there = (name for name in names if places.of_tenant(name) == partition)
    return [next(there) for _ in range(count)]


def drain(inbox: Inbox, count: int) -> list[str]:
    """Acknowledge each message as it comes, and return the tenants in the order of delivery."""
    served: list[str] = []

    def take() -> None:
        inbox.turn()
        while len(served) < len(inbox.messages):
            message = inbox.messages[len(served)]
            served.append(message.headers["fairness"]["tenant"])
            message.ack()
        assert len(served) >= count, len(served)

    eventually(take, poll_seconds=0)
    return served


def spread_of(served: list[str], tenants: list[str]) -> int:
    """Return by how many tasks one tenant was ahead of another at any time, while all had some."""
    starts, worst, least = Counter(dict.fromkeys(tenants, 0)), 0, len(served) // len(tenants)
    for tenant in served:
        starts[tenant] += 1
        if max(starts.values()) > least:
            break
        worst = max(worst, max(starts.values()) - min(starts.values()))
    return worst


def take(inbox: Inbox, count: int) -> list[str]:
    """Acknowledge the next messages, and return their tenants."""
    served = drain(inbox, count)
    inbox.messages.clear()
    return served


def median_wait(connection: Connection) -> float:
    """Return the median time, in seconds, until a task comes to a consumer that sleeps."""
    inbox = Inbox(connection, "jobs")
    waits = []
    for number in range(12):
        inbox.turn(0.01)
        began = time.monotonic()
        publish(connection, "jobs", number, headers=charged(f"tenant {number}"))
        inbox.await_count(number + 1)
        waits.append(time.monotonic() - began)
        inbox.messages[-1].ack()
    return statistics.median(waits)


def leases(client: Redis, prefix: str = "") -> int:
    """Return how many leases live in Redis."""
    return client.zcard(f"{prefix}{{fairness}}:ends")


def running_leases(client: Redis) -> set[str]:
    """Return the leases of the tasks that run."""
    rows = client.hgetall("{fairness}:running").items()
    return {f"{tag}.{row.partition(' ')[0]}" for tag, row in rows}


def settled(client: Redis, prefix: str = "") -> None:
    """Wait until nothing waits, runs or is known any more."""

    def is_empty() -> None:
        left = [
            key
            for key in client.scan_iter(f"{prefix}{{fairness}}:*")
            if not key.endswith((":clock", ":counters", ":totals", ":events", "_events", ":trace"))
            and ":stats:" not in key
            and ":last_answer:" not in key
            and ":wakeup:" not in key
        ]
        assert not left, left

    eventually(is_empty)
