"""The main process's view of an attempt: what the pool's callbacks mean for its lease."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, WorkerLostError
from celery import Celery
from celery.worker import state
from celery.worker.request import Request, create_request_cls

from celery_fairness import Fairness, FairTask, RateLimitDropped
from celery_fairness.limiter.types import Lease
from celery_fairness.worker.attempt import NotBegun
from celery_fairness.worker.gate.gate import ATTEMPT_KEY, NotSentBack, Parked
from celery_fairness.worker.gate.gated_request import GatedRequestMixin
from tests.support.answering_limiter import AnsweringLimiter
from tests.support.parts import parts_of


class LeaseRenewer:
    """Records what it gets."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []

    def accepted(self, lease: Any, process_id: int) -> None:
        assert process_id == os.getpid()
        self.reported.append(("accepted", lease.key))

    def ended(self, lease: Any) -> None:
        self.reported.append(("ended", lease.key))

    def lost(self, lease: Any, *, process_is_gone: bool = True) -> None:
        self.reported.append(("lost" if process_is_gone else "failed", lease.key))


class Message:
    """As much of a message as a request reads."""

    content_type, content_encoding = "application/json", "utf-8"
    delivery_info = {"exchange": "", "routing_key": "celery"}
    properties: dict[str, Any] = {}

    def __init__(self, task: str, **kwargs: Any) -> None:
        self.headers = {"id": "t1", "task": task, "retries": 0}
        self.payload = [[], kwargs, {}]
        self.body = json.dumps(self.payload)

    def ack_log_error(self, *_: Any) -> None: ...


class Pool:
    """A pool that takes everything and runs nothing."""

    def apply_async(self, *_: Any, **__: Any) -> None: ...


class OwnRequest(Request):
    """A user's own Request class."""

    seen: list[str] = []

    def on_failure(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("on_failure")
        return super().on_failure(*args, **kwargs)


@pytest.fixture
def app():
    app = Celery("requests", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.fairness = {"redis_url": "redis://127.0.0.1:1/0"}
    fairness = Fairness(app, {})
    parts_of(fairness).__dict__["lease_renewer"] = LeaseRenewer()
    yield app
    fairness.close()
    app.close()


@pytest.fixture(autouse=True)
def nothing_revoked():
    """Celery notes the expired tasks of the process."""
    yield
    state.revoked.clear()


@pytest.fixture
def reported(app) -> list[tuple[str, str]]:
    return parts_of(Fairness.of(app)).lease_renewer.reported


def make_request(
    app: Celery,
    base: Any = Request,
    accept: bool = True,
    headers: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    if "requests.work" not in app.tasks:

        @app.task(base=FairTask, tenant="user", name="requests.work", shared=False, acks_late=True)
        def work(user=None): ...

    task = app.tasks["requests.work"]
    cls = create_request_cls(GatedRequestMixin.before(base), task, Pool(), "host", None, app=app)
    message = Message(task.name, **kwargs)
    message.headers.update(headers or {})
    request = cls(message, app=app, task=task, hostname="host")
    if accept:
        request.on_accepted(os.getpid(), 0.0)
    return request


def failure(error: BaseException) -> ExceptionInfo:
    try:
        raise error
    except type(error):
        return ExceptionInfo(internal=True)


def test_an_attempt_has_a_lease_of_its_own_which_the_pool_gets(app, reported):
    first, second = (make_request(app, user="42") for _ in range(2))
    ids = [request.request_dict[ATTEMPT_KEY]["lease"] for request in (first, second)]
    assert len(set(ids)) == 2
    assert reported == [("accepted", "tenant:42")] * 2


def test_a_task_without_a_tenant_has_no_lease(app, reported):
    request = make_request(app)
    request.on_success((0, "None", 0.1))
    assert request.request_dict[ATTEMPT_KEY]["lease"] is None
    assert reported == []


@pytest.mark.parametrize(
    ("end", "word"),
    [
        (lambda request: request.on_success((0, "None", 0.1)), "ended"),
        (lambda request: request.on_success((1, failure(ValueError("x")), 0.1)), "ended"),
        (lambda request: request.on_failure(failure(WorkerLostError("gone"))), "lost"),
        (lambda request: request.on_failure(failure(Terminated(15))), "lost"),
        (lambda request: request.on_failure(failure(ValueError("outside the trace"))), "failed"),
        (lambda request: request.on_timeout(soft=False, timeout=1), "lost"),
    ],
    ids=["success", "error", "worker lost", "terminated", "raised outside", "hard limit"],
)
def test_every_callback_ends_it_once(app, reported, end, word):
    request = make_request(app, user="42")
    end(request)
    end(request)
    assert reported == [("accepted", "tenant:42"), (word, "tenant:42")]


def test_a_greenlet_is_not_taken_for_a_process(app, reported):
    request = make_request(app, user="42", accept=False)
    request.on_accepted(id(request), 0.0)
    assert reported == [("accepted", "tenant:42")]


@pytest.mark.parametrize(
    ("expires", "serial", "released"),
    [
        ("1970-01-01T00:00:00+00:00", "m1.1.p", [([Lease("m1.1.p", "tenant:42")], False)]),
        # It may still start.
        ("2970-01-01T00:00:00+00:00", "m1.1.p", []),
        # Nobody promoted it.
        ("1970-01-01T00:00:00+00:00", "", []),
    ],
)
def test_a_promoted_copy_that_is_revoked_gives_its_slots_back(app, expires, serial, released):
    limiter = AnsweringLimiter()
    vars(parts_of(Fairness.of(app)))["limiter"] = limiter
    headers = {"expires": expires, "fairness_copy": {"message": "m1", "serial": serial}}
    request = make_request(app, accept=False, headers=headers, user="42")
    assert request.revoked() == (not expires.startswith("2"))
    assert limiter.called("release") == released


def test_a_copy_is_revoked_though_redis_does_not_answer(app):
    limiter = AnsweringLimiter()
    limiter.away = True
    vars(parts_of(Fairness.of(app)))["limiter"] = limiter
    copy = {"message": "m1", "serial": "m1.1.p"}
    headers = {"expires": "1970-01-01T00:00:00+00:00", "fairness_copy": copy}
    assert make_request(app, accept=False, headers=headers, user="42").revoked()
    assert len(limiter.called("release")) == 1


def test_a_soft_limit_ends_nothing(app, reported):
    make_request(app, user="42").on_timeout(soft=True, timeout=1)
    assert reported == [("accepted", "tenant:42")]


def test_a_users_own_request_class_stays(app, reported):
    request = make_request(app, OwnRequest, user="42")
    assert isinstance(request, OwnRequest)
    assert isinstance(request, GatedRequestMixin)
    request.on_failure(failure(WorkerLostError("gone")))
    assert OwnRequest.seen == ["on_failure"]
    assert reported[-1] == ("lost", "tenant:42")
    own = GatedRequestMixin.before(OwnRequest)
    assert GatedRequestMixin.before(own) is own
    assert issubclass(GatedRequestMixin.before("celery.worker.request:Request"), GatedRequestMixin)


@pytest.mark.parametrize(
    ("error", "seen", "end"),
    [
        (NotBegun(), [], "acked"),
        (Parked(), [], "acked"),
        (NotSentBack(OSError("cut"), requeue=True), [], "rejected"),
        (RateLimitDropped("requests.work", "t1", "api"), ["on_failure"], "acked"),
        (ValueError("x"), ["on_failure"], "acked"),
    ],
)
def test_a_request_class_of_the_user_sees_failures_and_no_rejections(
    app, reported, monkeypatch, error, seen, end
):
    monkeypatch.setattr(OwnRequest, "seen", [])
    request, ends = make_request(app, OwnRequest, user="42"), []
    request._on_ack = lambda *_: ends.append("acked")
    request._on_reject = lambda *_: ends.append("rejected")
    request.on_success((1, failure(error), 0.1))
    assert (OwnRequest.seen, ends, reported[-1]) == (seen, [end], ("ended", "tenant:42"))
