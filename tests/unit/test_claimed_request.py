"""The main process's view of a claimed task, where its lease is gone before its body begins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.request import Request, create_request_cls

from celery_fairness.scheduler.types import Claimed, Verdict
from celery_fairness.transport.lease_table import LeaseTable
from celery_fairness.worker.claimed_request import ClaimedRequestMixin
from tests.unit.test_gated_request import Message, Pool

TASK = Claimed("tag.1", "jobs", 1, "tenant:42", 0, "{}")


def body():
    """Do nothing."""


@pytest.fixture
def app():
    app = Celery("claimed", broker="memory://", set_as_current=False)
    app.task(name="work", shared=False)(body)
    yield app
    app.close()


@pytest.mark.parametrize("end", ["ended", "lost"])
def test_a_task_that_may_not_begin_here_is_forgotten_by_the_worker(app, end):
    lease_table = LeaseTable()
    held = lease_table.hold(TASK, 7)
    session = SimpleNamespace(lease_table=lease_table, is_lost=lambda _: end == "lost")
    message = Message("work")
    message.delivery_tag = TASK.lease
    message.channel = SimpleNamespace(session=session, acknowledged=lambda _: None)
    task = app.tasks["work"]
    cls = create_request_cls(
        ClaimedRequestMixin.before(Request), task, Pool(), "host", None, app=app
    )
    request = cls(message, app=app, task=task, hostname="host")
    state.task_reserved(request)
    if end == "ended":
        lease_table.end(held, Verdict.HEAD)
    with pytest.raises(TaskRevokedError):
        request.execute_using_pool(Pool())
    assert request not in state.reserved_requests
    assert request.id not in state.requests
