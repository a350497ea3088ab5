"""Sending a refused task back: the same message, another copy, and nothing given up."""

from __future__ import annotations

import datetime
import json
import logging

import pytest
from celery.app.task import Context
from kombu.exceptions import EncodeError, OperationalError
from kombu.transport import memory

from celery_fairness import FairTask
from celery_fairness.limiter.types import Lease
from celery_fairness.message.headers import Copy, parse_copy
from celery_fairness.worker import resend as resend_module
from celery_fairness.worker.resend import (
    IDLE_CONNECTIONS,
    LONGEST_PAUSE_SECONDS,
    Resender,
    whole_message,
)
from tests.support.parts import parts_of

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


def request(**more):
    headers = {"fairness": HEADER, "trace": "abc"}
    return Context(
        {
            "id": "t1",
            "task": "shop.work",
            "retries": 2,
            "root_id": "root",
            "parent_id": "parent",
            "group": "group",
            "group_index": 4,
            "expires": EXPIRES,
            "timelimit": (60, 30),
            "reply_to": "reply",
            "correlation_id": "t1",
            "delivery_info": {"routing_key": "analysis_default", "exchange": "", "priority": 7},
            "headers": headers,
            "callbacks": [
                {
                    "task": "shop.linked",
                    "args": [],
                    "kwargs": {},
                    "options": {},
                    "subtask_type": None,
                    "immutable": False,
                }
            ],
            "errbacks": [
                {
                    "task": "shop.failed",
                    "args": [],
                    "kwargs": {},
                    "options": {},
                    "subtask_type": None,
                    "immutable": False,
                }
            ],
            "chain": [
                {
                    "task": "shop.next",
                    "args": [],
                    "kwargs": {},
                    "options": {},
                    "subtask_type": None,
                    "immutable": False,
                }
            ],
            **headers,
            **more,
        },
        args=["r"],
        kwargs={"user": "42"},
        called_directly=False,
    )


def raw():
    (message,) = [
        queue.get() for queue in memory.Channel.queues.values() for _ in range(queue.qsize())
    ]
    return message


def test_the_message_goes_back_whole(resender, work):
    assert resender.send(work, request(), OLD, "s1", 35.0, "application/json") is True
    message = raw()
    headers = message["headers"]
    assert headers["fairness_copy"] == {"message": "m1", "serial": "s1"}
    expected = {
        "id": "t1",
        "task": "shop.work",
        "retries": 2,
        "root_id": "root",
        "parent_id": "parent",
        "group": "group",
        "group_index": 4,
        "timelimit": [60, 30],
        "fairness": HEADER,
        "trace": "abc",
    }
    assert {name: headers[name] for name in expected} == expected
    assert datetime.datetime.fromisoformat(headers["expires"]) == (
        datetime.datetime.fromisoformat(EXPIRES)
    )
    assert message["properties"]["reply_to"] == "reply"
    assert message["properties"]["priority"] == 7


def test_its_canvas_goes_with_it(resender, work, shop):
    resender.send(
        work,
        request(
            chord={
                "task": "shop.chord",
                "args": [],
                "kwargs": {},
                "options": {},
                "subtask_type": None,
                "immutable": False,
            }
        ),
        OLD,
        "s1",
        35.0,
        "application/json",
    )
    message = raw()
    import base64

    args, kwargs, embed = json.loads(base64.b64decode(message["body"]))
    assert (args, kwargs) == (["r"], {"user": "42"})
    assert [each["task"] for each in embed["callbacks"]] == ["shop.linked"]
    assert [each["task"] for each in embed["errbacks"]] == ["shop.failed"]
    assert [each["task"] for each in embed["chain"]] == ["shop.next"]
    assert embed["chord"]["task"] == "shop.chord"


def test_it_is_due_after_its_countdown(resender, work):
    before = datetime.datetime.now(datetime.UTC)
    resender.send(work, request(), OLD, "s1", 35.0, "application/json")
    eta = datetime.datetime.fromisoformat(raw()["headers"]["eta"])
    after = datetime.datetime.now(datetime.UTC)
    wait = datetime.timedelta(seconds=35)
    assert before + wait <= eta <= after + wait


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
    resender.send(work, request(delivery_info=delivery), OLD, "s1", 35.0, "application/json")
    sent = shop.one()
    assert sent.queue == queue
    assert sent.headers["retries"] == 2


@pytest.mark.parametrize(
    ("content_type", "found"),
    [
        ("application/json", "application/json"),
        ("application/x-python-serialize", "application/x-python-serialize"),
        ("application/x-unknown", "application/json"),
        (None, "application/json"),
    ],
)
def test_it_goes_back_serialised_as_it_came(resender, work, content_type, found):
    resender.send(work, request(), OLD, "s1", 35.0, content_type)
    assert raw()["content-type"] == found


@pytest.fixture
def failing(resender, monkeypatch):
    """Publishing fails with each of the given errors in turn, then succeeds."""
    pauses = []
    monkeypatch.setattr(resender, "_wait", pauses.append)
    real = resender._publish

    def fail_with(*errors):
        waiting = list(errors)
        tried = []

        def publish(task, request, copy, *rest):
            tried.append(copy)
            if waiting:
                raise waiting.pop(0)
            return real(task, request, copy, *rest)

        monkeypatch.setattr(resender, "_publish", publish)
        return tried

    return fail_with, pauses


def send(resender, work):
    return resender.send(work, request(), OLD, "s1", 35.0, "application/json")


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
    # Of all that may have arrived, only the last may start; or the refused one itself.
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


@pytest.mark.parametrize("error", [EncodeError("x")])
def test_what_can_never_be_sent_is_not_tried_again(resender, work, failing, error):
    fail_with, pauses = failing
    tried = fail_with(error)
    with pytest.raises(type(error)):
        resender.send(work, request(), OLD, "s1", 35.0, "application/json")
    assert (len(tried), pauses) == (1, [])


def test_a_stopping_worker_tries_once_more(shop, work, monkeypatch):
    tried = []

    def publish(*args):
        tried.append(args)
        raise OperationalError("cut")

    stopping = Resender(shop.app, shop.limiter, lambda: True, parts_of(shop.fairness).router.again)
    monkeypatch.setattr(stopping, "_publish", publish)
    assert stopping.send(work, request(), OLD, "s1", 35.0, "application/json") is False
    assert len(tried) == 1


def test_a_worker_that_begins_to_stop_does_not_wait_out_its_pause(shop, work, monkeypatch):
    stops = iter([False, False, True, True, True])
    slept = []
    monkeypatch.setattr(resend_module.time, "sleep", slept.append)
    resender = Resender(
        shop.app, shop.limiter, lambda: next(stops), parts_of(shop.fairness).router.again
    )
    monkeypatch.setattr(resender, "_publish", lambda *args: (_ for _ in ()).throw(OSError("cut")))
    assert resender.send(work, request(), OLD, "s1", 35.0, "application/json") is False
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
    resender.send(checked._get_current_object(), checking, OLD, "s1", 35.0, None)
    assert shop.one().name == "shop.checked"


def test_arguments_that_do_not_fit_are_for_the_worker_to_report(resender, work, shop):
    wrong = request()
    wrong.update(args=["too", "many", "of", "them"])
    resender.send(work, wrong, OLD, "s1", 35.0, "application/json")
    assert shop.one().args == ["too", "many", "of", "them"]


def test_connections_are_kept_for_the_next_and_have_a_bound(resender, work, shop):
    for _ in range(5):
        resender.send(work, request(), OLD, "s1", 35.0, "application/json")
    assert len(resender._idle) == 1
    taken = [resender._connection() for _ in range(IDLE_CONNECTIONS + 1)]
    resender._idle = taken[:IDLE_CONNECTIONS]
    resender.send(work, request(), OLD, "s1", 35.0, "application/json")
    assert len(resender._idle) == IDLE_CONNECTIONS
    resender.forget_connections()
    assert resender._idle == []


def test_a_connection_that_failed_is_not_kept(resender, work, shop, monkeypatch, caplog):
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(resender, "_wait", lambda pause: None)
    real = shop.app.send_task
    errors = [OperationalError("cut")]

    def send_task(*args, **options):
        if errors:
            raise errors.pop()
        return real(*args, **options)

    monkeypatch.setattr(shop.app, "send_task", send_task)
    used = resender._connection()
    resender._idle.append(used)
    resender.send(work, request(), OLD, "s1", 35.0, "application/json")
    assert used not in resender._idle
    assert len(resender._idle) == 1


def test_a_message_that_is_lost_is_said_whole():
    text = whole_message(type("T", (), {"name": "shop.work"}), request())
    facts = json.loads(text)
    assert facts["id"] == "t1"
    assert (facts["args"], facts["kwargs"], facts["retries"]) == (["r"], {"user": "42"}, 2)
    assert facts["headers"]["fairness"] == HEADER
    assert facts["link"][0]["task"] == "shop.linked"
    assert "\n" not in text


def test_a_message_that_json_cannot_hold_is_said_whole_too():
    odd = request()
    odd.args = [{("a", 1): "b"}]
    text = whole_message(type("T", (), {"name": "shop.work"}), odd)
    assert "{('a', 1): 'b'}" in text
    assert "\n" not in text
