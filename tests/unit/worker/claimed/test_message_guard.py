"""What the guard of a worker takes for a message that cannot be read, and what it logs of it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.consumer import Consumer
from kombu.exceptions import DecodeError, OperationalError
from redis.exceptions import ConnectionError as ServerAway

from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Claimed
from celery_fairness.worker.claimed.message_guard import MessageGuard
from celery_fairness.worker.message_check import expect_valid, reason_of

SENT = {
    "task_id": "4fd6",
    "eta": datetime(2026, 1, 1, tzinfo=UTC),
    "expires": 60,
    "time_limit": 30.5,
    "soft_time_limit": 20,
    "shadow": "other",
    "stamped_headers": ["plan"],
    "plan": "pro",
}


@pytest.mark.parametrize("options", [SENT, {"task_id": "4fd6"}])
def test_what_celery_writes_is_valid(options):
    app = Celery("shop", broker="memory://", set_as_current=False)
    options = {"args": (), "kwargs": {}, **options}
    message = app.amqp.as_task_v2(options.pop("task_id"), "shop.work", **options)
    expect_valid(message.headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"id": 7, "timelimit": (None, None), "stamped_headers": None, "stamps": None},
        # As pickle brings them, and as other producers leave them out.
        {"id": "4fd6", "eta": datetime(2026, 1, 1, tzinfo=UTC), "stamped_headers": ("a",)},
        {},
    ],
)
def test_what_celery_reads_is_valid(headers):
    expect_valid(headers)


def test_a_reason_names_the_place_and_no_value():
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("a secret")
    assert reason_of(raised.value).startswith(
        "ValueError in tests.unit.worker.claimed.test_message_guard, line "
    )
    assert reason_of(KeyError("a secret")) == "KeyError"


class Reader:
    """A consumer behind the guard whose strategy raises."""

    def __init__(self, error, **state):
        app = Celery("shop", broker="memory://", set_as_current=False)
        app.task(name="shop.work", shared=False)(print)
        consumer = Consumer(
            lambda request: None, app=app, controller=SimpleNamespace(use_eventloop=False)
        )
        MessageGuard(consumer)
        table = LeaseTable()
        self.held = table.hold(Claimed("lease", "q", 1, "", 0, ""), 1)
        for name, value in state.items():
            setattr(self.held, name, value)

        def strategy(*_):
            raise error

        consumer.strategies = {"shop.work": strategy}
        self.handle = consumer.create_task_handler()
        self.reasons = []
        channel = SimpleNamespace(
            session=SimpleNamespace(lease_table=table),
            dead_letter=lambda message, held, reason: self.reasons.append(reason),
        )
        self.message = SimpleNamespace(
            channel=channel,
            delivery_tag="lease",
            headers={"task": "shop.work"},
            ack_log_error=None,
            reject_log_error=None,
        )


@pytest.mark.parametrize(
    "error", [TypeError(), KeyError(), OverflowError(), RecursionError(), DecodeError()]
)
def test_an_error_of_reading_is_the_message_s(error):
    reader = Reader(error)
    reader.handle(reader.message)
    assert reader.reasons[0].startswith(f"{type(error).__name__} in ")


@pytest.mark.parametrize(
    "error",
    [OSError(), RuntimeError(), ServerAway(), OperationalError(), MemoryError(), SystemExit()],
)
def test_an_outage_makes_no_dead_letter(error):
    reader = Reader(error)
    with pytest.raises(type(error)):
        reader.handle(reader.message)
    assert reader.reasons == []


@pytest.mark.parametrize("state", ["begun", "ended"])
def test_after_the_begin_or_the_end_an_error_is_not_the_message_s(state):
    reader = Reader(TypeError(), **{state: True})
    with pytest.raises(TypeError):
        reader.handle(reader.message)
    assert reader.reasons == []


def test_a_message_that_was_not_claimed_is_celery_s_matter():
    reader = Reader(TypeError())
    reader.message.delivery_tag = "of another transport"
    with pytest.raises(TypeError):
        reader.handle(reader.message)
