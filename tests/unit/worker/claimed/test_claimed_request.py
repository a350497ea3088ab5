"""The main process's view of a claimed task that may not begin, or whose body has ended."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.request import Request, create_request_cls

from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Claimed, Verdict
from celery_fairness.worker.claimed.claimed_request import ClaimedRequestMixin
from tests.unit.worker.gate.test_gated_request import Message, Pool

TASK = Claimed("tag.1", "jobs", 1, "tenant:42", 0, "{}")


def body():
    """Do nothing."""


@pytest.fixture
def app():
    app = Celery("claimed", broker="memory://", set_as_current=False)
    app.task(name="work", shared=False)(body)
    yield app
    app.close()


def request_of(app, channel, **options):
    """Return a worker's request for the task, which the pool has begun."""
    message = Message("work")
    message.delivery_tag = TASK.lease
    message.channel = channel
    task = app.tasks["work"]
    task.acks_late = options.pop("acks_late", False)
    cls = create_request_cls(
        ClaimedRequestMixin.before(Request), task, Pool(), "host", None, app=app
    )
    request = cls(message, app=app, task=task, hostname="host")
    state.task_reserved(request)
    return request


@pytest.mark.parametrize("end", ["ended", "lost"])
def test_a_task_that_may_not_begin_here_is_forgotten_by_the_worker(app, end):
    lease_table = LeaseTable()
    held = lease_table.hold(TASK, 7)
    session = SimpleNamespace(lease_table=lease_table, is_lost=lambda _: end == "lost")
    request = request_of(app, SimpleNamespace(session=session, acknowledged=lambda _: None))
    if end == "ended":
        lease_table.end(held, Verdict.HEAD)
    with pytest.raises(TaskRevokedError):
        request.execute_using_pool(Pool())
    assert request not in state.reserved_requests
    assert request.id not in state.requests


class Channel:
    """A channel whose claims only note what they find."""

    def __init__(self, error=None):
        self.lease_table = LeaseTable()
        renewals = SimpleNamespace(settle_soon=lambda: None)
        self.session = SimpleNamespace(
            lease_table=self.lease_table,
            body_blocks_loop=True,
            renewals=renewals,
            flush=lambda: None,
        )
        self.error, self.request, self.seen, self.acks = error, None, [], []

    def acknowledged(self, message):
        """Note an ack."""
        self.acks.append(message.delivery_tag)

    def claim_next(self):
        """Note what this claim carries, and whether Celery has counted the task."""
        ends = [end.verdict for end in self.lease_table.take_ends(9)]
        self.seen.append((ends, self.request in state.reserved_requests, len(self.acks)))
        if self.error:
            raise self.error


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_claim_after_a_body_carries_its_end_before_celery_counts_it(app, acks_late):
    channel = Channel()
    channel.lease_table.hold(TASK, 7)
    request = channel.request = request_of(app, channel, acks_late=acks_late)
    request.on_accepted(1, 0.0)
    request.on_success((0, "None", 0.1))
    assert channel.seen == [([Verdict.DONE], True, 1)]
    assert request not in state.reserved_requests
    assert channel.acks == [TASK.lease]
    assert not channel.lease_table.has_ends


def test_celery_counts_a_task_whose_claim_could_not_be_sent(app):
    channel = Channel(ConnectionResetError())
    channel.lease_table.hold(TASK, 7)
    request = channel.request = request_of(app, channel)
    request.on_accepted(1, 0.0)
    with pytest.raises(ConnectionResetError):
        request.on_success((0, "None", 0.1))
    assert request not in state.reserved_requests


def test_a_body_that_failed_is_reported_before_the_next_claim(app):
    channel = Channel()
    channel.lease_table.hold(TASK, 7)
    request = channel.request = request_of(app, channel)
    request.on_accepted(1, 0.0)
    try:
        raise ValueError
    except ValueError:
        request.on_success((1, ExceptionInfo(), 0.1))
    assert channel.seen == []
    assert [end.verdict for end in channel.lease_table.take_ends(9)] == [Verdict.FAILED]


def test_the_lease_of_a_body_that_ends_its_process_ends_as_a_death(app):
    channel = Channel()
    channel.lease_table.hold(TASK, 7)
    request = channel.request = request_of(app, channel, acks_late=True)
    request.on_accepted(1, 0.0)
    channel.lease_table.take_ends(9)
    try:
        raise SystemExit(3)
    except SystemExit:
        # The pool calls this for every exception that it does not know.
        with pytest.raises(TypeError):
            request.on_success(ExceptionInfo())
    assert channel.seen == []
    assert [end.verdict for end in channel.lease_table.take_ends(9)] == [Verdict.DIED]
