"""A worker that lost its broker tries often at first, and then as Celery does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import WorkerShutdown
from celery.worker import state
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.transport.memory import Transport

from celery_fairness.worker.claimed import reconnect


class Broker(Transport):
    """Rejects the first connections."""

    connection_errors = (ConnectionRefusedError,)
    rejects = 0

    def establish_connection(self) -> Any:
        if Broker.rejects:
            Broker.rejects -= 1
            raise ConnectionRefusedError("no master yet")
        return super().establish_connection()


class Consumer:
    """Celery's consumer, as far as it connects; it notes when it tries as Celery does."""

    def __init__(self, **conf: Any) -> None:
        self.app = Celery(set_as_current=False)
        self.app.conf.update(conf)
        self.left_to_celery: list[bool] = []
        self.blueprint = SimpleNamespace(start=lambda _consumer: None)

    def ensure_connected(self, connection: Connection) -> Connection:
        self.left_to_celery.append(not connection.connected)
        return connection


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(reconnect, "QUICK_SECONDS", 30.0)
    monkeypatch.setattr(Broker, "rejects", 5)


def connect(consumer: Consumer, had_connection: bool = True) -> Connection:
    reconnect.reconnect_quickly(consumer, lambda: had_connection)
    connection = Connection(transport=Broker)
    assert consumer.ensure_connected(connection) is connection
    return connection


def test_a_lost_broker_is_tried_until_it_is_back() -> None:
    consumer = Consumer()
    assert connect(consumer).connected
    assert Broker.rejects == 0
    assert consumer.left_to_celery == [False]


def test_after_some_seconds_celery_tries_with_its_log_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "QUICK_SECONDS", 0.01)
    monkeypatch.setattr(Broker, "rejects", 10**6)
    consumer = Consumer()
    connect(consumer)
    assert consumer.left_to_celery == [True]


@pytest.mark.parametrize(
    ("had_connection", "conf"),
    [(False, {}), (True, {"broker_connection_retry": False})],
    ids=["at its start", "without retries"],
)
def test_celery_alone_tries(had_connection: bool, conf: dict[str, Any]) -> None:
    consumer = Consumer(**conf)
    connect(consumer, had_connection)
    assert Broker.rejects == 5
    assert consumer.left_to_celery == [True]


def test_a_signal_ends_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", 0)
    # kombu looks for a signal before each whole second of a pause.
    monkeypatch.setattr(reconnect, "PAUSE_SECONDS", 1.0)
    with pytest.raises(WorkerShutdown):
        connect(Consumer())


def test_a_connection_that_is_lost_while_the_consumer_starts_is_one_that_celery_knows() -> None:
    def mingle(_consumer: Any) -> None:
        raise OperationalError("Connection closed by server.")

    consumer = Consumer()
    consumer.blueprint.start = mingle
    connect(consumer)
    with pytest.raises(ConnectionError, match="closed by server"):
        consumer.blueprint.start(consumer)


def test_a_consumer_whose_tries_are_used_up_ends_its_worker() -> None:
    class Tired(Consumer):
        def ensure_connected(self, connection: Connection) -> Connection:
            raise OperationalError("no master yet")

    consumer = Tired()
    consumer.blueprint.start = lambda of: of.ensure_connected(Connection(transport=Broker))
    reconnect.reconnect_quickly(consumer, lambda: False)
    with pytest.raises(OperationalError):
        consumer.blueprint.start(consumer)
