"""What happens to limits is sent to Celery's event bus too, by one of the workers."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest

from celery_fairness.config.settings import build_settings
from celery_fairness.control.health.events_api import EventsApi
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.limiter.redis import Limiter
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.worker.event_forwarder import (
    BATCH_SIZE,
    RETRIES,
    SENT_MS,
    EventForwarder,
    bus_type,
)
from tests.dispatch.conftest import PREFIX
from tests.integration.test_bus import assert_a_pause_is_heard
from tests.support.waiting import eventually

SOURCE = "ojs://shop/dispatch/localhost"


class Dispatcher:
    """Celery's event dispatcher, as far as it is used."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **fields: Any) -> None:
        assert {name: fields.pop(name) for name in RETRIES} == RETRIES
        self.sent.append((kind, fields))


class Workers:
    """Forwarders of several workers beside one Redis, each with its dispatcher."""

    def __init__(self, reader: Reader, memory: Any) -> None:
        self.reader, self.memory = reader, memory

    def start(self, **options: Any) -> tuple[EventForwarder, Dispatcher]:
        dispatcher = Dispatcher(**options)

        def sends() -> bool:
            return dispatcher.enabled

        forwarder = EventForwarder(sends, lambda: nullcontext(dispatcher), self.reader, SOURCE)
        return forwarder, dispatcher

    def happen(self, *keys: str) -> None:
        for key in keys:
            self.memory.xadd(PREFIX + "events", {"type": "fairness.paused", "key": key})


@pytest.fixture
def workers(redis_url, memory):
    connection = Connection(address_from_url(redis_url))
    yield Workers(Reader(Limiter(connection, build_settings({}))), memory)
    connection.close()


def keys_of(dispatcher):
    return [fields["data"]["key"] for _, fields in dispatcher.sent]


def test_events_are_sent_as_the_open_job_spec_has_them(workers):
    workers.happen("before")
    forwarder, dispatcher = workers.start()
    assert forwarder.look() == 0
    workers.happen("a")
    assert forwarder.look() == 1
    (event,) = EventsApi(workers.reader, SOURCE).read(limit=2).events[1:]
    ((kind, fields),) = dispatcher.sent
    assert kind == "fairness-paused"
    assert fields == {
        name: each for name, each in event.model_dump(mode="json").items() if name != "type"
    }
    assert forwarder.look() == 0


def test_a_type_of_the_open_job_spec_keeps_its_name():
    assert bus_type("rate_limit.exceeded") == "fairness-rate_limit.exceeded"


def test_each_event_is_sent_by_one_worker(workers):
    first, one = workers.start()
    second, two = workers.start()
    first.look()
    workers.happen("a", "b")
    assert (second.look(), first.look()) == (2, 0)
    workers.happen("c")
    assert (first.look(), second.look()) == (1, 0)
    assert (keys_of(one), keys_of(two)) == (["c"], ["a", "b"])


def test_workers_that_send_at_once_share_the_events(workers):
    started = [workers.start() for _ in range(4)]
    started[0][0].look()
    names = [str(number) for number in range(20 * BATCH_SIZE)]
    workers.happen(*names)
    threads = [threading.Thread(target=forwarder.look) for forwarder, _ in started]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = [key for _, dispatcher in started for key in keys_of(dispatcher)]
    assert sorted(sent) == sorted(names)


def test_a_worker_that_sends_no_events_takes_none(workers):
    silent, nothing = workers.start(enabled=False)
    forwarder, dispatcher = workers.start()
    silent.look()
    forwarder.look()
    workers.happen("a")
    assert (silent.look(), forwarder.look()) == (0, 1)
    nothing.enabled = True
    workers.happen("b")
    assert (silent.look(), forwarder.look()) == (1, 0)
    assert (keys_of(nothing), keys_of(dispatcher)) == (["b"], ["a"])


def test_the_first_event_of_an_installation_is_sent(workers):
    forwarder, dispatcher = workers.start()
    forwarder.look()
    workers.happen("a")
    forwarder.look()
    assert keys_of(dispatcher) == ["a"]


def test_more_than_one_page_is_sent_in_order(workers):
    forwarder, dispatcher = workers.start()
    forwarder.look()
    names = [str(number) for number in range(250)]
    workers.happen(*names)
    assert forwarder.look() == 250
    assert keys_of(dispatcher) == names


def test_what_a_dispatcher_could_not_send_is_sent_by_the_next_look(workers):
    forwarder, dispatcher = workers.start()
    forwarder.look()
    workers.happen("a")
    dispatcher.send = None
    with pytest.raises(TypeError):
        forwarder.look()
    del dispatcher.send
    assert forwarder.look() == 1


def test_what_one_sent_before_it_failed_is_not_sent_again(workers):
    first, dispatcher = workers.start()
    second, other = workers.start()
    first.look()
    names = [str(number) for number in range(BATCH_SIZE + 2)]
    workers.happen(*names)
    send = dispatcher.send

    def send_some(kind: str, **fields: Any) -> None:
        if len(dispatcher.sent) == 3:
            raise ConnectionError
        send(kind, **fields)

    dispatcher.send = send_some
    with pytest.raises(ConnectionError):
        first.look()
    assert second.look() == 2
    dispatcher.send = send
    assert first.look() == BATCH_SIZE - 3
    assert (keys_of(dispatcher), keys_of(other)) == (names[:BATCH_SIZE], names[BATCH_SIZE:])


def test_events_go_on_after_redis_lost_its_memory(workers):
    forwarder, dispatcher = workers.start()
    forwarder.look()
    workers.memory.flushall()
    workers.happen("unseen")
    assert forwarder.look() == 0
    workers.happen("a")
    assert forwarder.look() == 1
    assert keys_of(dispatcher) == ["a"]


def test_events_that_no_worker_sent_for_long_are_not_sent(workers):
    forwarder, dispatcher = workers.start()
    forwarder.look()
    now = server_now(workers.reader)
    for key, age_ms in (("old", SENT_MS + 60_000), ("young", SENT_MS - 60_000)):
        fields = {"type": "fairness.paused", "key": key}
        workers.memory.xadd(PREFIX + "events", fields, id=f"{now - age_ms}-0")
    assert forwarder.look() == 1
    assert keys_of(dispatcher) == ["young"]


def test_it_ends_with_its_worker(workers):
    forwarder, _ = workers.start()
    forwarder.start()
    forwarder.stop()

    def it_has_ended() -> None:
        assert "forwarder" not in [thread.name for thread in threading.enumerate()]

    eventually(it_has_ended)


def test_a_listener_of_celery_hears_them(fair_shop):
    assert_a_pause_is_heard(fair_shop)
