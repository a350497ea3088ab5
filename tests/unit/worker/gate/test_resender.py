"""Sending a rejected task back: the same message, another copy, and nothing given up."""

from __future__ import annotations

import base64
import datetime
import json
import logging
import pickle
import zlib

import pytest
from celery import signals
from celery.app.task import Context
from celery.worker.strategy import hybrid_to_proto2, proto1_to_proto2
from kombu import serialization
from kombu.exceptions import OperationalError
from kombu.message import Message
from kombu.transport import memory

from celery_fairness import FairTask
from celery_fairness.limiter.types import Lease, Promoted
from celery_fairness.message.headers import Copy, parse_copy
from celery_fairness.worker.captured_message import CapturedMessage, Received
from celery_fairness.worker.gate import resender as resend_module
from celery_fairness.worker.gate.resender import (
    IDLE_CONNECTIONS,
    LONGEST_PAUSE_SECONDS,
    Resender,
    whole_message,
)
from tests.support.parts import parts_of
from tests.support.received import received

OLD = Copy("m1")
LEASE = Lease("l1", "tenant:42")
EXPIRES = "2030-01-01T00:00:00+00:00"
HEADER = {
    "v": 1,
    "tenant": "42",
    "tier": "free",
    "service": "analysis",
    "scheduled": False,
    "cost": 1,
    "colour": "red",
}


@pytest.fixture
def work(shop):
    @shop.task(
        base=FairTask, tenant="user", service="analysis", bind=True, name="shop.work", max_retries=3
    )
    def body(self, user=None):
        pass

    shop.app.finalize()
    return body._get_current_object()


@pytest.fixture
def resender(shop):
    return Resender(shop.app, shop.limiter, lambda: False, parts_of(shop.fairness).router.again)


EMBEDDED = {
    name: [{"task": f"shop.{name}", "args": [], "kwargs": {}, "options": {}}]
    for name in ("callbacks", "errbacks", "chain")
} | {"chord": {"task": "shop.chord", "args": [], "kwargs": {}, "options": {}}}
BODY = [["r"], {"user": "42"}, EMBEDDED]
HEADERS = {
    "lang": "py",
    "task": "shop.work",
    "id": "t1",
    "retries": 2,
    "root_id": "root",
    "parent_id": "parent",
    "group": "group",
    "group_index": 4,
    "eta": "2020-01-01T00:00:00+00:00",
    "expires": EXPIRES,
    "timelimit": [60, 30],
    "argsrepr": "(***)",
    "kwargsrepr": "{***}",
    "fairness": HEADER,
    "trace": "abc",
    "headers": {"trace": "abc"},
}
PROPERTIES = {
    "correlation_id": "c1",
    "reply_to": "reply",
    "delivery_mode": 1,
    "priority": 7,
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 1700000000,
    "type": "t",
    "user_id": "guest",
    "app_id": "mine",
}


def request(body=BODY, place=None, content_type="application/json", properties=(), **headers):
    place = place or {"routing_key": "analysis_default", "exchange": ""}
    headers = {**HEADERS, **headers}
    carried = received(headers, body, {**PROPERTIES, **dict(properties)}, place, content_type)
    return Context(
        {**headers, **EMBEDDED, "delivery_info": place, "properties": carried},
        args=["r"],
        kwargs={"user": "42"},
        called_directly=False,
    )


def raw():
    (message,) = [
        queue.get() for queue in memory.Channel.queues.values() for _ in range(queue.qsize())
    ]
    return message


def test_the_message_goes_back_as_it_came(resender, work):
    before = datetime.datetime.now(datetime.UTC)
    assert resender.send(work, request(), OLD, "s1", 35.0) is True
    after = datetime.datetime.now(datetime.UTC)
    message = raw()
    headers, properties = message["headers"], message["properties"]
    assert headers.pop("fairness_copy") == {"message": "m1", "serial": "s1"}
    eta = datetime.datetime.fromisoformat(headers.pop("eta"))
    wait = datetime.timedelta(seconds=35)
    assert before + wait <= eta <= after + wait
    assert headers == {name: value for name, value in HEADERS.items() if name != "eta"}
    left = datetime.datetime.fromisoformat(EXPIRES) - after
    assert int(properties.pop("expiration")) / 1000 == pytest.approx(left.total_seconds(), abs=30)
    sent = {name: value for name, value in PROPERTIES.items() if name != "expiration"}
    assert {name: properties[name] for name in sent} == sent
    assert set(properties) - set(sent) == {"body_encoding", "delivery_info", "delivery_tag"}
    assert json.loads(base64.b64decode(message["body"])) == BODY


def test_without_a_countdown_it_has_no_eta(resender, work):
    resender.send(work, request(), OLD, "s1", 0.0)
    assert raw()["headers"]["eta"] is None


@pytest.mark.parametrize("given", ["60001", "1"])
def test_the_brokers_expiry_of_a_task_that_does_not_expire_stays(resender, work, given):
    resender.send(work, request(expires=None, properties={"expiration": given}), OLD, "s1", 35.0)
    assert raw()["properties"]["expiration"] == given


def test_a_body_goes_back_in_the_bytes_and_the_compression_that_it_had(resender, work):
    body = pickle.dumps(((), {"x": object}, {}))
    # kombu gives a worker the body without compression.
    kind = "application/x-python-serialize"
    came = request(body, content_type=kind, compression="application/x-gzip")
    resender.send(work, came, OLD, "s1", 35.0)
    message = raw()
    assert message["content-type"] == "application/x-python-serialize"
    assert message["headers"]["compression"] == "application/x-gzip"
    assert zlib.decompress(base64.b64decode(message["body"])) == body


def test_the_publish_hooks_of_others_do_not_run_again(resender, work):
    heard = []

    def hear(**named):
        heard.append(named)

    hooks = signals.before_task_publish, signals.after_task_publish, signals.task_sent
    for hook in hooks:
        hook.connect(hear, weak=False)
    try:
        resender.send(work, request(), OLD, "s1", 35.0)
        parked = resender.take(request(), OLD).to_text()
        resender.promote(Promoted(Copy("m1", "p1"), parked))
        resender.send_as_retry(request(), 35.0, {"fairness": HEADER})
    finally:
        for hook in hooks:
            hook.disconnect(hear)
    assert heard == []


def test_a_message_of_the_protocol_1_keeps_its_body_and_is_due_after_its_countdown(resender, work):
    body = {"task": "shop.work", "id": "t1", "args": ["r"], "kwargs": {}, "eta": None}
    place = {"routing_key": "analysis_default", "exchange": ""}
    carried = received({"fairness": HEADER}, body, {}, place)
    old = Context(
        {**body, "headers": {"fairness": HEADER}, "argsrepr": "['r']", "kwargsrepr": "{}"},
        properties=carried,
        delivery_info=place,
    )
    resender.send(work, old, OLD, "s1", 35.0)
    message = raw()
    assert json.loads(base64.b64decode(message["body"])) == body
    headers = message["headers"]
    assert (headers["task"], headers["id"], headers["argsrepr"]) == ("shop.work", "t1", "['r']")
    assert headers["eta"] is not None


def request_of_protocol_1(body, serializer="json"):
    content_type, encoding, encoded = serialization.dumps(body, serializer)
    place = {"routing_key": "analysis_default", "exchange": ""}
    message = Message(
        encoded,
        content_type=content_type,
        content_encoding=encoding,
        delivery_info=place,
        accept={content_type},
    )
    # The payload that the message keeps changes here.
    _, headers, _, _ = proto1_to_proto2(message, message.payload)
    return Context({**headers, "properties": Received(message), "delivery_info": place})


@pytest.mark.parametrize("serializer", ["json", "yaml", "pickle"])
def test_celery_reads_a_message_of_the_protocol_1_without_args_again(resender, work, serializer):
    body = {"task": "shop.work", "id": "t1", "kwargs": {"user": "42"}}
    text = resender.take(request_of_protocol_1(body, serializer), OLD).to_text()
    message = CapturedMessage.from_text(text)
    again = message.received({message.content_type})
    assert again.payload == {**body, "args": []}
    (args, kwargs, _), *_ = hybrid_to_proto2(again, again.payload)
    assert (list(args), kwargs) == ([], {"user": "42"})


@pytest.mark.parametrize("body", ["7", "[]", "null", '{"kwargs": {}}', '"args"'])
def test_a_body_that_only_a_strategy_of_a_users_own_can_read_stays(body):
    assert received({}, body).body == body


@pytest.mark.parametrize("name", ["group", "taskset"])
def test_a_message_of_the_protocol_1_stays_in_its_place_in_its_group(resender, work, name):
    body = {"task": "shop.work", "id": "t1", "args": [], "kwargs": {}, name: "g1", "group_index": 3}
    resender.send(work, request_of_protocol_1(body), OLD, "s1", 35.0)
    headers = raw()["headers"]
    assert (headers["group"], headers["group_index"]) == ("g1", 3)


def test_what_sqs_would_take_for_a_duplicate_is_not_sent_again(resender, work):
    once = {"MessageDeduplicationId": "d1", "DelaySeconds": 900, "delay_seconds": 900}
    came = request(properties={**once, "MessageGroupId": "g1"})
    resender.send(work, came, OLD, "s1", 35.0)
    properties = raw()["properties"]
    assert not properties.keys() & once.keys()
    assert properties["MessageGroupId"] == "g1"


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", None])
def test_where_a_channel_encodes_nothing_a_body_of_text_is_published_as_text(
    resender, work, monkeypatch, encoding
):
    monkeypatch.setattr(memory.Channel, "body_encoding", encoding)
    resender.send(work, request(), OLD, "s1", 35.0)
    assert raw()["body"] == json.dumps(BODY)
    body = pickle.dumps(((), {"x": object}, {}))
    resender.send(work, request(body), OLD, "s1", 35.0)
    assert raw()["body"] == body


def test_a_request_without_its_message_is_an_error(resender, work):
    with pytest.raises(LookupError, match="expected a request of a received message"):
        resender.send(work, Context({**HEADERS, "properties": {}}), OLD, "s1", 35.0)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_properties_of_a_request_are_a_dict_that_processes_can_send(protocol):
    carried = request().properties
    assert carried == PROPERTIES
    assert json.loads(json.dumps(carried)) == PROPERTIES
    other = pickle.loads(pickle.dumps(carried, protocol))
    assert other == PROPERTIES
    assert (other.headers, json.loads(other.body)) == (HEADERS, BODY)


@pytest.mark.parametrize(
    ("current", "queue"),
    [
        ("analysis_default", "analysis_priority"),
        ("analysis_scheduled", "analysis_priority"),
        ("special", "special"),
    ],
)
def test_an_upgraded_tenant_moves_with_it_unless_somebody_put_it_there(
    resender, work, shop, current, queue
):
    shop.fairness.tenants.set_tier("42", "pro")
    parts_of(shop.fairness).tier_cache.set_version(shop.limiter.config_version())
    delivery = {"routing_key": current, "exchange": ""}
    resender.send(work, request(place=delivery), OLD, "s1", 35.0)
    sent = shop.one()
    assert sent.queue == queue
    assert sent.headers["retries"] == 2


@pytest.fixture
def failing(resender, monkeypatch):
    """Publishing fails with each of the given errors in turn, then succeeds."""
    pauses = []
    monkeypatch.setattr(resender, "_wait", pauses.append)
    real = resender._publish

    def fail_with(*errors):
        waiting = list(errors)
        tried = []

        def publish(message, copy, *rest):
            tried.append(copy)
            if waiting:
                raise waiting.pop(0)
            return real(message, copy, *rest)

        monkeypatch.setattr(resender, "_publish", publish)
        return tried

    return fail_with, pauses


def send(resender, work):
    return resender.send(work, request(), OLD, "s1", 35.0)


def test_it_tries_until_the_broker_has_it_each_time_as_another_copy(
    resender, work, shop, failing, caplog
):
    fail_with, pauses = failing
    tried = fail_with(*[OperationalError("cut")] * 8)
    assert send(resender, work) is True
    assert [round(pause, 3) for pause in pauses] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert max(pauses) == LONGEST_PAUSE_SECONDS
    assert len({copy.serial for copy in tried}) == 9
    assert tried[0] == Copy("m1", "s1")
    last = parse_copy(shop.one().headers["fairness_copy"])
    assert last == tried[-1]
    assert "task shop.work[t1] is rejected and the broker does not accept it" in caplog.text
    # Of all that may have arrived, only the last may start; or the rejected one itself.
    assert shop.limiter.called("supersede") == [(OLD, copy.serial) for copy in tried[1:]]


def test_where_a_try_did_arrive_no_other_is_published(resender, work, shop, failing, monkeypatch):
    # Another worker has started the first try meanwhile.
    monkeypatch.setattr(shop.limiter, "supersede", lambda *_: False)
    fail_with, _ = failing
    tried = fail_with(OperationalError("cut"))
    assert send(resender, work) is True
    assert len(tried) == 1
    assert shop.published() == []


def test_where_the_limiter_cannot_be_told_the_same_copy_is_published_again(
    resender, work, shop, failing
):
    shop.limiter.away = True
    fail_with, _ = failing
    tried = fail_with(OperationalError("cut"), OperationalError("cut"))
    assert send(resender, work) is True
    assert tried == [Copy("m1", "s1")] * 3


def test_a_stopping_worker_tries_once_more(shop, work, monkeypatch):
    tried = []

    def publish(*args):
        tried.append(args)
        raise OperationalError("cut")

    stopping = Resender(shop.app, shop.limiter, lambda: True, parts_of(shop.fairness).router.again)
    monkeypatch.setattr(stopping, "_publish", publish)
    assert stopping.send(work, request(), OLD, "s1", 35.0) is False
    assert len(tried) == 1


def test_a_worker_that_begins_to_stop_does_not_wait_out_its_pause(shop, work, monkeypatch):
    stops = iter([False, False, True, True, True])
    slept = []
    monkeypatch.setattr(resend_module.time, "sleep", slept.append)
    resender = Resender(
        shop.app, shop.limiter, lambda: next(stops), parts_of(shop.fairness).router.again
    )
    monkeypatch.setattr(resender, "_publish", lambda *args: (_ for _ in ()).throw(OSError("cut")))
    assert resender.send(work, request(), OLD, "s1", 35.0) is False
    assert len(slept) == 1


def test_a_users_apply_async_is_not_asked(shop, resender):
    class Checking(FairTask):
        abstract = True

        def apply_async(self, *args, **kwargs):
            raise AssertionError("sent back through the user's code")

    @shop.task(base=Checking, tenant="user", name="shop.checked")
    def checked(user=None):
        pass

    checking = request(task="shop.checked")
    resender.send(checked._get_current_object(), checking, OLD, "s1", 35.0)
    assert shop.one().name == "shop.checked"


def test_arguments_that_do_not_fit_are_for_the_worker_to_report(resender, work, shop):
    wrong = [["too", "many", "of", "them"], {}, EMBEDDED]
    resender.send(work, request(wrong), OLD, "s1", 35.0)
    assert shop.one().args == ["too", "many", "of", "them"]


def test_connections_are_kept_for_the_next_and_have_a_bound(resender, work, shop):
    for _ in range(5):
        resender.send(work, request(), OLD, "s1", 35.0)
    assert len(resender._idle) == 1
    taken = [resender._connection() for _ in range(IDLE_CONNECTIONS + 1)]
    resender._idle = taken[:IDLE_CONNECTIONS]
    resender.send(work, request(), OLD, "s1", 35.0)
    assert len(resender._idle) == IDLE_CONNECTIONS
    resender.forget_connections()
    assert resender._idle == []


def test_a_connection_that_failed_is_not_kept(resender, work, shop, monkeypatch, caplog):
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(resender, "_wait", lambda pause: None)
    real, errors = CapturedMessage.publish, [OperationalError("cut")]

    def publish(*args, **options):
        if errors:
            raise errors.pop()
        return real(*args, **options)

    monkeypatch.setattr(CapturedMessage, "publish", publish)
    used = resender._connection()
    resender._idle.append(used)
    resender.send(work, request(), OLD, "s1", 35.0)
    assert used not in resender._idle
    assert len(resender._idle) == 1


def test_a_message_that_is_lost_is_said_whole():
    text = whole_message(type("T", (), {"name": "shop.work"}), request())
    facts = json.loads(text)
    assert facts["id"] == "t1"
    assert (facts["args"], facts["kwargs"], facts["retries"]) == (["r"], {"user": "42"}, 2)
    assert facts["headers"]["fairness"] == HEADER
    assert facts["link"][0]["task"] == "shop.callbacks"
    assert "\n" not in text


def test_a_message_that_json_cannot_hold_is_said_whole_too():
    odd = request()
    odd.args = [{("a", 1): "b"}]
    text = whole_message(type("T", (), {"name": "shop.work"}), odd)
    assert "{('a', 1): 'b'}" in text
    assert "\n" not in text
