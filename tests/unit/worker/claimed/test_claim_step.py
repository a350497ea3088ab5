"""The consumer's step: a lost broker, bodies that cannot be ended, and the end of the worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.consumer import Consumer

from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.transport.task_filter import TaskFilter
from celery_fairness.worker.claimed.claim_step import ClaimStep, _end_bodies
from celery_fairness.worker.claimed.reconnect import PAUSE_SECONDS


@pytest.fixture(autouse=True)
def nobody_reports_outcomes(monkeypatch):
    outcome_collector = SimpleNamespace(start=lambda: None, stop=lambda: None)
    monkeypatch.setattr(
        "celery_fairness.worker.claimed.claim_step.OutcomeCollector", lambda *_: outcome_collector
    )


class Worker:
    """A consumer of Celery with the step, up to where it would connect."""

    def __init__(self, fair=True):
        self.app = Celery("shop", broker="memory://", set_as_current=False)
        self.consumer = Consumer(
            lambda request: None,
            app=self.app,
            controller=SimpleNamespace(use_eventloop=False),
        )
        self.step = ClaimStep(self.consumer)
        self.task_filter = TaskFilter()
        session = SimpleNamespace(
            task_filter=self.task_filter,
            lease_table=LeaseTable(),
            start=lambda slots, shares, lends, spare: None,
            renewals=SimpleNamespace(announce=lambda _: None, withdraw=lambda _: None),
            call=None,
            stop=lambda: None,
            slots=lambda: 1,
            next_outcome=None,
        )
        channel = SimpleNamespace(session=session) if fair else SimpleNamespace()
        self.consumer.connection = SimpleNamespace(default_channel=channel)
        self.channel = channel
        self.consumer.task_consumer = SimpleNamespace(channel=channel)
        self.step.start(self.consumer)


@pytest.mark.parametrize(("fair", "is_quick"), [(True, True), (False, False)])
def test_a_worker_that_lost_its_broker_tries_often_and_other_brokers_are_celery_s(fair, is_quick):
    pauses = []

    class Lost:
        def ensure_connection(self, *_, interval_start=2, **__):
            pauses.append(interval_start)
            return self

    Worker(fair=fair).consumer.ensure_connected(Lost())
    assert pauses == ([PAUSE_SECONDS, 2] if is_quick else [2])


def test_after_the_worker_its_process_takes_everything():
    worker = Worker()
    worker.task_filter.skip("new")
    worker.step.shutdown(worker.consumer)
    assert not worker.task_filter.skipped({})


class Body:
    """A late-acked request whose lease has ended."""

    task = SimpleNamespace(acks_late=True)

    def __init__(self, error=None):
        self._held, self.error, self.cancelled = SimpleNamespace(lost=True), error, False

    def cancel(self, pool, emit_retry):
        if self.error:
            raise self.error
        self.cancelled = True


@pytest.mark.parametrize("error", [NotImplementedError(), ProcessLookupError()])
def test_a_body_that_cannot_be_ended_keeps_no_other_from_its_end(monkeypatch, error):
    bodies = [Body(error), Body()]
    monkeypatch.setattr("celery_fairness.worker.claimed.claim_step.active_requests", bodies)
    _end_bodies(SimpleNamespace(pool=None))
    assert bodies[1].cancelled


def test_a_body_whose_begin_is_read_after_the_end_of_its_lease_is_ended(monkeypatch):
    repeated = []
    worker = Worker()
    worker.consumer.hub = SimpleNamespace(call_repeatedly=lambda _, each: repeated.append(each))
    worker.consumer.pool = SimpleNamespace(num_processes=1, maintain_pool=lambda: None)
    worker.step.start(worker.consumer)
    body = Body()
    monkeypatch.setattr("celery_fairness.worker.claimed.claim_step.active_requests", [body])
    repeated[0]()
    assert body.cancelled


def test_the_channel_of_the_tasks_is_that_which_fills_the_places():
    assert Worker().channel.serves_worker
    assert not hasattr(Worker(fair=False).channel, "serves_worker")
