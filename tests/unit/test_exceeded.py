"""What a body's 429 means for its task's keys, however it is said."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_fairness import Fairness, RateLimitExceeded
from celery_fairness.header import HEADER
from celery_fairness.worker.exceeded import answer

WAITS = {"key": "api", "concurrency": 1}


class Again:
    """A signature that is sent."""

    def apply_async(self):
        """Send it."""


@pytest.fixture
def cooled(monkeypatch):
    """The keys that cool down."""
    keys = []
    monkeypatch.setattr(Fairness, "cool_down_for", lambda self, key, *_: keys.append(key))
    return keys


@pytest.fixture
def make_task():
    app = Celery("cooled", broker="memory://", set_as_current=False)
    Fairness(app)

    def make(header):
        request = SimpleNamespace(
            called_directly=False, is_eager=False, retries=0, headers={HEADER: header}
        )
        return SimpleNamespace(
            app=app,
            name="shop.t",
            request=request,
            default_retry_delay=5,
            signature_from_request=lambda *_, **__: Again(),
        )

    yield make
    app.close()


def test_of_a_header_that_cannot_be_read_whole_those_keys_cool_down_that_hold(make_task, cooled):
    wrong = {"v": 1, "tenant": 7.5, "limits": [WAITS, {"key": "a b"}, {"key": "tenant:42"}]}
    answer(make_task(wrong), RateLimitExceeded(retry_after=2))
    assert cooled == ["api"]


@pytest.mark.parametrize("key", [7, None, ("a",), "a b", "x" * 9000])
def test_a_key_that_is_none_is_said_and_the_task_runs_again(make_task, caplog, key):
    error = RateLimitExceeded(retry_after=2, key=key)
    with caplog.at_level(logging.WARNING, "celery_fairness"):
        told = answer(make_task({"v": 1}), error)
    assert type(told).__name__ == "Retry"
    if key is not None:
        (record,) = caplog.records
        assert "does not cool down: key: expected the key of a limit" in record.getMessage()
        assert len(record.getMessage()) < 400


def test_a_number_too_long_to_write_is_shown_all_the_same():
    assert "int that is too long to show" in str(RateLimitExceeded(until=10**5000))
