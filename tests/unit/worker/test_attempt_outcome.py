"""How a body ended, from what it raised."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.exceptions import Ignore, Reject, Retry

from celery_fairness.errors import RateLimitExceeded
from celery_fairness.scheduler.types import Verdict
from celery_fairness.worker.attempt import outcome_of


def task_of(retries: int = 0, **options: object):
    app = Celery("suite", broker="memory://", set_as_current=False)

    def work():
        """Do nothing."""

    task = app.task(name="shop.work", **options)(work)
    task.push_request(retries=retries)
    return task


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Verdict.DONE),
        (Ignore(), Verdict.DONE),
        (Reject(), Verdict.DONE),
        (Retry(), Verdict.RETRIED),
        (RateLimitExceeded(), Verdict.RETRIED),
        (ValueError(), Verdict.FAILED),
        (SystemExit(), Verdict.FAILED),
    ],
)
def test_an_error_is_a_failure_unless_celery_has_another_word_for_it(error, outcome):
    assert outcome_of(error) is outcome
    assert outcome_of(error, task_of()) is outcome


@pytest.mark.parametrize(
    ("retries", "options", "outcome"),
    [
        (0, {"autoretry_for": (OSError,)}, Verdict.RETRIED),
        (2, {"autoretry_for": (OSError,), "max_retries": 3}, Verdict.RETRIED),
        (3, {"autoretry_for": (OSError,), "max_retries": 3}, Verdict.FAILED),
        (99, {"autoretry_for": (OSError,), "max_retries": None}, Verdict.RETRIED),
        (0, {"autoretry_for": (KeyError,)}, Verdict.FAILED),
        (
            0,
            {"autoretry_for": (OSError,), "dont_autoretry_for": (ConnectionError,)},
            Verdict.FAILED,
        ),
    ],
)
def test_an_error_that_celery_retries_by_itself_is_a_retry(retries, options, outcome):
    assert outcome_of(ConnectionError(), task_of(retries, **options)) is outcome
