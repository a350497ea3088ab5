"""The consumer's step: whose rate limits are kept by whom, and who sees unknown tasks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.consumer import Consumer

from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import SkippedTasks
from celery_fairness.transport.task_filter import TaskFilter
from celery_fairness.worker.claim_step import ClaimStep, _end_bodies
from celery_fairness.worker.reconnect import PAUSE_SECONDS


def body():
    """Do nothing."""


@pytest.fixture(autouse=True)
def nobody_reports_outcomes(monkeypatch):
    outcome_reporter = SimpleNamespace(start=lambda: None, stop=lambda: None)
    monkeypatch.setattr(
        "celery_fairness.worker.claim_step.OutcomeReporter", lambda *_: outcome_reporter
    )


class Channel:
    """A channel that gives back what it is told to."""

    def __init__(self, gives_back):
        self.gives_back = gives_back

    def leave_to_others(self, message):
        return self.gives_back


class Worker:
    """A consumer of Celery with the step, up to where it would connect."""

    def __init__(self, fair=True, disable_rate_limits=False):
        self.app = Celery("shop", broker="memory://", set_as_current=False)
        self.app.task(name="slow", rate_limit="5/s", shared=False)(body)
        self.app.task(name="fast", shared=False)(body)
        self.discarded = []
        self.consumer = Consumer(
            lambda request: None,
            app=self.app,
            controller=SimpleNamespace(use_eventloop=False),
            disable_rate_limits=disable_rate_limits,
        )
        self.consumer.on_unknown_task = lambda *args: self.discarded.append(args)
        self.step = ClaimStep(self.consumer)
        self.task_filter = TaskFilter()
        session = SimpleNamespace(
            task_filter=self.task_filter,
            lease_table=LeaseTable(),
            start=lambda slots, shares, lends: None,
            renewals=SimpleNamespace(announce=lambda _: None, withdraw=lambda _: None),
            call=None,
            stop=lambda: None,
            next_outcome=None,
        )
        channel = SimpleNamespace(session=session) if fair else SimpleNamespace()
        self.consumer.connection = SimpleNamespace(default_channel=channel)
        self.channel = channel
        self.consumer.task_consumer = SimpleNamespace(channel=channel)
        self.step.start(self.consumer)


def test_a_rate_limit_is_kept_by_the_claims_and_by_no_bucket_of_the_worker():
    worker = Worker()
    assert not any(worker.consumer.task_buckets.values())
    assert worker.task_filter.skipped({}) == SkippedTasks((), ("slow",), {})
    worker.app.tasks["fast"].rate_limit = "1/m"
    worker.consumer.reset_rate_limits()
    assert not any(worker.consumer.task_buckets.values())
    assert worker.task_filter.skipped({}).once == ("fast", "slow")
    worker.app.tasks["slow"].rate_limit = None
    worker.consumer.reset_rate_limits()
    assert worker.task_filter.skipped({}).once == ("fast",)


def test_rate_limits_that_are_switched_off_are_nobody_s():
    worker = Worker(disable_rate_limits=True)
    assert worker.task_filter.skipped({}) == SkippedTasks()


def test_another_broker_s_rate_limits_are_celery_s():
    worker = Worker(fair=False)
    assert worker.consumer.task_buckets["slow"].fill_rate == 5
    assert worker.consumer.task_buckets["fast"] is None
    assert worker.task_filter.skipped({}) == SkippedTasks()


@pytest.mark.parametrize(("fair", "is_quick"), [(True, True), (False, False)])
def test_a_worker_that_lost_its_broker_tries_often_and_other_brokers_are_celery_s(fair, is_quick):
    pauses = []

    class Lost:
        def ensure_connection(self, *_, interval_start=2, **__):
            pauses.append(interval_start)
            return self

    Worker(fair=fair).consumer.ensure_connected(Lost())
    assert pauses == ([PAUSE_SECONDS, 2] if is_quick else [2])


@pytest.mark.parametrize(
    ("channel", "is_discarded"), [(Channel(True), 0), (Channel(False), 1), (object(), 1)]
)
def test_an_unknown_task_that_was_not_claimed_is_celery_s_matter(channel, is_discarded):
    worker = Worker()
    worker.consumer.on_unknown_task(None, SimpleNamespace(channel=channel), KeyError("new"))
    assert len(worker.discarded) == is_discarded


def test_after_the_worker_its_process_takes_everything():
    worker = Worker()
    worker.task_filter.skip("new")
    worker.step.shutdown(worker.consumer)
    assert not worker.task_filter.skipped({})


class Body:
    """A late-acked request whose lease has ended."""

    task = SimpleNamespace(acks_late=True)

    def __init__(self, error=None):
        self._held, self.error, self.cancelled = object(), error, False

    def cancel(self, pool, emit_retry):
        if self.error:
            raise self.error
        self.cancelled = True


@pytest.mark.parametrize("error", [NotImplementedError(), ProcessLookupError()])
def test_a_body_that_cannot_be_ended_keeps_no_other_from_its_end(monkeypatch, error):
    bodies = [Body(error), Body()]
    monkeypatch.setattr("celery_fairness.worker.claim_step.active_requests", bodies)
    consumer = SimpleNamespace(hub=SimpleNamespace(call_soon=lambda end: end()), pool=None)
    _end_bodies(consumer, [body._held for body in bodies])
    assert bodies[1].cancelled


def test_the_channel_of_the_tasks_is_that_which_fills_the_places():
    assert Worker().channel.serves_worker
    assert not hasattr(Worker(fair=False).channel, "serves_worker")
