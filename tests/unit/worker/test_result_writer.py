"""What is written for a task that ended while nobody was there, and the thread that asks for it."""

from __future__ import annotations

import base64
import json
import logging
import threading
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery import Celery, signals
from celery.exceptions import TaskRevokedError, WorkerLostError

from celery_fairness.errors import (
    DeliveriesExhausted,
    MessageUnreadable,
    PublishFailed,
    RateLimitDropped,
)
from celery_fairness.scheduler.types import Outcome
from celery_fairness.worker import looking_thread, outcome_collector
from celery_fairness.worker.outcome_collector import OutcomeCollector
from celery_fairness.worker.result_writer import write
from tests.support.json_log import json_lines
from tests.support.waiting import at_most, eventually

ID = "id1"
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class Events:
    """An event dispatcher that remembers."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, name: str, **fields: Any) -> None:
        self.sent.append((name, fields))


def work() -> None:
    """The task that was lost."""


@pytest.fixture
def app():
    made = Celery("lost", backend="cache+memory://", broker="memory://", set_as_current=False)
    made.task(work, name="shop.work", shared=False)
    yield made
    # The memory of this backend is the process's.
    made.backend.client.cache.clear()
    made.close()


@pytest.fixture
def consumer(app):
    return SimpleNamespace(app=app, hostname="w@h", hub=None, event_dispatcher=Events())


def outcome_of(state="acked", tenant="42", embed=None, body=None, **headers):
    """An outcome as Redis hands it out, of a task that was sent with `headers`."""
    body = json.dumps([[], {}, {**EMBED, **(embed or {})}] if body is None else body)
    message = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": ID, "task": "shop.work", **headers},
        "properties": {"body_encoding": "base64", "delivery_tag": "tag", "delivery_info": {}},
    }
    return Outcome(1, "tag", "1-a", state, "q", tenant, 5, json.dumps(message))


def parked_of(state, exchange=""):
    """The same of a task that a gate had parked."""
    found = json.loads(outcome_of().message)
    message = {
        "body": found["body"],
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": found["headers"],
        "properties": {"correlation_id": ID},
        "exchange": exchange,
        "routing_key": "emails",
    }
    return Outcome(1, "tag", "-", state, "@parked:b", "42", 10, json.dumps(message))


def state_and_error(app):
    result = app.AsyncResult(ID)
    return result.state, result.result


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "celery_fairness")
    return lambda: [(r.levelname, r.getMessage()) for r in caplog.records]


# A later version may know states that this one does not.
@pytest.mark.parametrize("state", ["acked", "another"])
def test_a_task_that_was_lost_with_its_worker_failed(app, consumer, said, state):
    write(outcome_of(state), consumer)
    state, error = state_and_error(app)
    assert (state, type(error)) == ("FAILURE", WorkerLostError)
    ((level, text),) = said()
    assert level == "ERROR"
    assert text.startswith("task shop.work[id1] of tenant '42' was lost with its worker 1-a:")
    ((name, fields),) = consumer.event_dispatcher.sent
    assert (name, fields["uuid"]) == ("task-failed", ID)
    assert "WorkerLostError" in fields["exception"]


def test_a_dead_letter_failed_and_its_error_is_whole_for_the_client(app, consumer, said):
    write(outcome_of("dead"), consumer)
    state, error = state_and_error(app)
    assert state == "FAILURE"
    assert isinstance(error, DeliveriesExhausted)
    assert (error.task, error.task_id, error.deliveries, error.queue) == ("shop.work", ID, 5, "q")
    text = (
        "task shop.work[id1] of tenant '42' is a dead letter of queue q: its process died 5 times"
    )
    assert said() == [("ERROR", text)]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"properties": {"body_encoding": "rot13", "delivery_tag": "tag", "delivery_info": {}}},
        {"body": "a"},
        {"x": {"__type__": "of its producer alone", "__value__": "1"}},
    ],
)
def test_a_message_that_a_worker_could_not_read_failed(app, consumer, said, broken):
    outcome = outcome_of("unreadable")
    message = json.dumps({**json.loads(outcome.message), **broken})
    write(outcome._replace(message=message), consumer)
    state, error = state_and_error(app)
    assert state == "FAILURE"
    assert isinstance(error, MessageUnreadable)
    assert (error.task, error.task_id, error.queue) == ("shop.work", ID, "q")
    text = (
        "task shop.work[id1] of tenant '42' is a dead letter of queue q: worker 1-a could not read "
    )
    assert said()[-1] == ("ERROR", f"{text}its message")


def test_a_task_that_was_cancelled_is_revoked_also_at_a_second_try(app, consumer, said):
    signalled = []
    signals.task_revoked.connect(lambda **told: signalled.append(told), weak=False)
    for _ in range(2):
        write(outcome_of("cancelled")._replace(owner="-"), consumer)
        state, error = state_and_error(app)
        assert (state, type(error), str(error)) == ("REVOKED", TaskRevokedError, "cancelled")
    signals.task_revoked.receivers.clear()
    text = "task shop.work[id1] of tenant '42' was cancelled: it has not run"
    assert said() == [("INFO", text)] * 2
    (name, fields), _ = consumer.event_dispatcher.sent
    assert (name, fields["uuid"], fields["terminated"]) == ("task-revoked", ID, False)
    assert [told["request"].id for told in signalled] == [ID, ID]


def test_a_task_that_expired_while_it_waited_is_revoked_and_said_to_have_expired(
    app, consumer, said
):
    write(outcome_of("expired")._replace(owner="-"), consumer)
    state, error = state_and_error(app)
    assert (state, type(error), str(error)) == ("REVOKED", TaskRevokedError, "expired")
    text = "task shop.work[id1] of tenant '42' expired in queue q: it has not run"
    assert said() == [("INFO", text)]
    ((name, fields),) = consumer.event_dispatcher.sent
    assert (name, fields["uuid"], fields["expired"]) == ("task-revoked", ID, True)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("cancelled", "was cancelled: it has not run"),
        ("expired", "expired in queue emails: it has not run"),
    ],
)
def test_a_parked_task_that_ended_is_revoked_and_the_log_names_its_own_queue(
    app, consumer, said, state, says
):
    write(parked_of(state), consumer)
    found, error = state_and_error(app)
    assert (found, type(error), str(error)) == ("REVOKED", TaskRevokedError, state)
    assert said() == [("INFO", f"task shop.work[id1] of tenant '42' {says}")]
    ((name, fields),) = consumer.event_dispatcher.sent
    assert (name, fields["expired"]) == ("task-revoked", state == "expired")


def test_a_parked_task_that_its_broker_rejected_failed_and_names_where(app, consumer, said):
    write(parked_of("unpublished", "topics"), consumer)
    state, error = state_and_error(app)
    assert (state, type(error)) == ("FAILURE", PublishFailed)
    place = error.task, error.task_id, error.exchange, error.routing_key
    assert place == ("shop.work", ID, "topics", "emails")
    ((level, text),) = said()
    assert level == "ERROR"
    assert text.startswith("task shop.work[id1] of tenant '42' has not run: a limit rejected it")
    assert text.endswith("to queue emails")


def test_the_callers_of_a_parked_task_hear_that_it_ended(app, consumer):
    after = app.signature("shop.work").set(task_id="id2")
    outcome = parked_of("unpublished")
    message = json.loads(outcome.message)
    body = json.dumps([[], {}, {**EMBED, "chain": [after]}])
    message.update(body=base64.b64encode(body.encode()).decode())
    write(outcome._replace(message=json.dumps(message)), consumer)
    assert app.AsyncResult("id2").state == "FAILURE"


def test_a_task_that_ended_while_its_copy_was_cancelled_keeps_its_result(app, consumer, said):
    app.backend.store_result(ID, "done", "SUCCESS")
    write(outcome_of("cancelled"), consumer)
    assert state_and_error(app) == ("SUCCESS", "done")


def test_a_task_that_a_limit_dropped_failed_and_names_the_limit(app, consumer, said):
    write(outcome_of("dropped")._replace(owner="api.example.com"), consumer)
    state, error = state_and_error(app)
    assert state == "FAILURE"
    assert isinstance(error, RateLimitDropped)
    assert (error.task, error.task_id, error.key) == ("shop.work", ID, "api.example.com")
    # It was asked for: no error of the installation.
    text = "task shop.work[id1] of tenant '42' was dropped by the limit api.example.com: "
    assert said() == [("INFO", f"{text}it has not run")]
    ((name, fields),) = consumer.event_dispatcher.sent
    assert (name, "RateLimitDropped" in fields["exception"]) == ("task-failed", True)


@pytest.mark.parametrize(
    ("state", "level", "more"),
    [
        ("acked", "ERROR", {}),
        ("dead", "ERROR", {}),
        ("unreadable", "ERROR", {}),
        ("cancelled", "INFO", {}),
        ("expired", "INFO", {}),
        ("dropped", "INFO", {"key": "1-a"}),
    ],
)
def test_the_line_of_an_end_has_fields(consumer, state, level, more):
    header = {"v": 1, "tenant": "user@example.org"}
    with json_lines() as log:
        write(outcome_of(state, tenant="h_0", fairness=header), consumer)
    assert [each["level"] for each in log.lines] == [level]
    fields = {"task_name": "shop.work", "task_id": ID, "tenant": "user@example.org"}
    assert log.fields == [{**fields, "queue": "q", **more}]


def test_the_line_of_a_parked_task_has_its_own_queue_and_of_none_no_tenant(consumer):
    with json_lines() as log:
        write(parked_of("cancelled"), consumer)
        write(outcome_of(tenant=""), consumer)
    assert [each.get("queue") for each in log.fields] == ["emails", "q"]
    assert "tenant" not in log.fields[1]


@pytest.mark.parametrize("queue", ["q", "@parked:b"])
@pytest.mark.parametrize("message", ["", "[]", "{}", '{"properties": 1}', "[" * 100_000])
def test_of_what_is_no_message_it_is_only_said_that_it_was_lost(consumer, said, message, queue):
    write(outcome_of("unreadable")._replace(message=message, queue=queue), consumer)
    ((level, text),) = said()
    assert level == "ERROR"
    assert text.startswith(
        f"a lost task of queue {queue} has no result, its message cannot be read: "
    )


def test_a_task_whose_id_no_backend_takes_is_said_to_be_lost_and_not_tried_again(consumer, said):
    write(outcome_of("unreadable", id=["a secret"]), consumer)
    ((_, text),) = said()
    assert "a lost task of queue q has no result, its message cannot be read: " in text
    assert "secret" not in text


def test_the_log_names_the_tenant_as_the_producer_did(consumer, said):
    header = {"v": 1, "tenant": "user@example.org"}
    write(outcome_of(tenant="h_0", fairness=header), consumer)
    write(outcome_of(tenant="_invalid", fairness="no object"), consumer)
    write(outcome_of(tenant=""), consumer)
    who = [text.partition(" of ")[2].partition(" was lost")[0] for _, text in said()]
    assert who == ["tenant 'user@example.org'", "tenant '_invalid'", "no tenant"]


@pytest.mark.parametrize(
    ("stored", "stays"),
    [
        (None, False),
        (("done", "SUCCESS"), True),
        ((ValueError("its own"), "FAILURE"), True),
        ((ValueError("again"), "RETRY"), False),
        # A worker of ours died before the chord knew.
        ((WorkerLostError("before"), "FAILURE"), False),
        ((DeliveriesExhausted("t", ID, 1, "q"), "FAILURE"), False),
        ((MessageUnreadable("t", ID, "q"), "FAILURE"), False),
        ((RateLimitDropped("t", ID, "api"), "FAILURE"), False),
    ],
)
def test_an_end_that_the_task_had_stored_stays(app, consumer, said, stored, stays):
    if stored:
        app.backend.store_result(ID, *stored)
    before = state_and_error(app)
    write(outcome_of(), consumer)
    if stays:
        assert repr(state_and_error(app)) == repr(before)
        assert said()[0] == (
            "INFO",
            f"task shop.work[id1] had ended before its worker was lost: {before[0]}",
        )
        assert consumer.event_dispatcher.sent == []
    else:
        assert "the lease of 1-a" in str(state_and_error(app)[1])


@pytest.mark.skipif(
    celery.VERSION < (5, 6), reason="Celery 5.5 stores the errors of a call that ignores its result"
)
def test_nothing_is_stored_where_the_result_is_ignored(app, consumer, said):
    write(outcome_of(ignore_result=True), consumer)
    assert state_and_error(app)[0] == "PENDING"
    assert len(said()) == len(consumer.event_dispatcher.sent) == 1


def test_an_app_without_a_backend_logs_and_sends_the_event(consumer, said):
    with Celery("none", broker="memory://", set_as_current=False) as app:
        consumer.app = app
        write(outcome_of(), consumer)
    assert len(said()) == len(consumer.event_dispatcher.sent) == 1


def test_a_kind_that_the_worker_does_not_know_is_told_with_the_app_s_settings(app, consumer):
    write(outcome_of(task="other.unknown"), consumer)
    assert state_and_error(app)[0] == "FAILURE"
    app.conf.task_ignore_result = True
    app.backend.forget(ID)
    write(outcome_of(task="other.unknown"), consumer)
    assert state_and_error(app)[0] == "PENDING"
    assert "other.unknown" not in app.tasks


def test_the_chord_and_the_chain_of_the_task_hear_of_it(app, consumer, monkeypatch):
    told = []
    monkeypatch.setattr(
        type(app.backend),
        "on_chord_part_return",
        lambda self, request, state, result, **_: told.append((request.id, request.group, state)),
    )
    after = app.signature("shop.work").set(task_id="id2")
    embed = {"chord": dict(app.signature("shop.work")), "chain": [after]}
    write(outcome_of(embed=embed, group="g1"), consumer)
    assert told == [(ID, "g1", "FAILURE")]
    assert app.AsyncResult("id2").state == "FAILURE"


def test_the_signal_says_which_task_with_its_arguments(app, consumer):
    heard = []

    def failed(sender, task_id, exception, args, kwargs, einfo, **_):
        heard.append((sender.name, task_id, type(exception), args, kwargs, sender.request.id))

    signals.task_failure.connect(failed)
    try:
        write(outcome_of(body=[[1], {"a": 2}, EMBED]), consumer)
    finally:
        signals.task_failure.disconnect(failed)
    assert heard == [("shop.work", ID, WorkerLostError, [1], {"a": 2}, ID)]


def test_a_message_of_the_first_protocol_is_read(app, consumer):
    body = {"id": ID, "task": "shop.work", "args": [], "kwargs": {}}
    write(outcome_of(body=body), consumer)
    assert state_and_error(app)[0] == "FAILURE"


def test_a_body_that_this_worker_cannot_read_leaves_the_result(app, consumer, said):
    found = outcome_of()
    strange = found.message.replace("application/json", "application/x-other")
    write(found._replace(message=strange), consumer)
    assert state_and_error(app)[0] == "FAILURE"
    assert said()[0][1].startswith("task shop.work[id1]: errbacks and chord are not called")


@pytest.mark.parametrize("message", ["", "{", "[]", '{"properties": {"delivery_tag": "t"}}'])
def test_a_message_that_nobody_can_read_is_logged_and_not_tried_again(consumer, said, message):
    write(outcome_of()._replace(message=message), consumer)
    assert said()[0][1].startswith("a lost task of queue q has no result")


def test_events_are_sent_from_the_loop_where_there_is_one(consumer):
    later = []
    consumer.hub = SimpleNamespace(call_soon=later.append)
    write(outcome_of(), consumer)
    assert consumer.event_dispatcher.sent == []
    (send,) = later
    send()
    assert len(consumer.event_dispatcher.sent) == 1


@pytest.mark.parametrize("off", ["none", "disabled"])
def test_no_event_is_sent_where_there_are_none(app, consumer, off):
    events = consumer.event_dispatcher
    if off == "none":
        consumer.event_dispatcher = None
    else:
        events.enabled = False
    write(outcome_of(), consumer)
    assert events.sent == []
    assert state_and_error(app)[0] == "FAILURE"


class Redis:
    """What an outcome collector asks, with the outcomes that lie there."""

    def __init__(self, *tags: str) -> None:
        self.left = list(tags)
        self.written: list[str] = []
        self.away = 0
        self.asked = 0

    def next_outcome(self, written: str) -> Outcome | None:
        self.asked += 1
        if self.away:
            self.away -= 1
            raise ConnectionError("away")
        if written:
            self.written.append(written)
        return outcome_of()._replace(tag=self.left.pop(0)) if self.left else None


@pytest.fixture
def make_reporter(monkeypatch, consumer):
    monkeypatch.setattr(looking_thread, "EVERY_SECONDS", 0.01)
    made = []

    def make(redis):
        made.append(OutcomeCollector(consumer, redis.next_outcome))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_each_outcome_is_written_and_then_forgotten(make_reporter, said):
    redis = Redis("a", "b", "c")
    make_reporter(redis)
    eventually(lambda: redis.written == ["1 a", "1 b", "1 c"])
    assert len(said()) == 3


def test_what_could_not_be_written_is_not_forgotten(make_reporter, monkeypatch, said):
    wrote = []

    def fails_once(outcome, _consumer):
        wrote.append(outcome.tag)
        if len(wrote) == 1:
            raise OSError("no backend")

    monkeypatch.setattr(outcome_collector, "write", fails_once)
    redis = Redis("a", "b")
    make_reporter(redis)
    eventually(lambda: redis.written == ["1 b"])
    assert wrote == ["a", "b"]
    assert said() == [
        ("ERROR", "the result of a lost task could not be written, it is tried again: no backend")
    ]


def test_what_was_written_while_redis_went_away_is_told_when_it_is_back(
    make_reporter, monkeypatch, said
):
    redis = Redis("a")

    def leave(_outcome, _consumer):
        redis.away = 3

    monkeypatch.setattr(outcome_collector, "write", leave)
    make_reporter(redis)
    eventually(lambda: redis.written == ["1 a"])
    assert said() == [("ERROR", "outcomes could not be read: away")]


def test_a_reporter_that_is_stopped_finishes_what_it_writes_and_asks_no_more(
    make_reporter, monkeypatch
):
    begun, stops = threading.Event(), threading.Event()

    def slow(_outcome, _consumer):
        begun.set()
        assert stops.wait(at_most(10))

    monkeypatch.setattr(outcome_collector, "write", slow)
    redis = Redis("a", "b", "c")
    found = make_reporter(redis)
    assert begun.wait(at_most(10))
    monkeypatch.setattr(found, "_stopped", stops)
    found.stop()
    assert redis.written == ["1 a"]
    assert redis.left == ["c"]
    assert not found._thread.is_alive()
