"""What a body's 429 means for its task's keys, however it is said."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Reject

from celery_fairness import Fairness, FairTask, RateLimitExceeded
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.control.key.stops import Stops
from celery_fairness.message.headers import HEADER
from celery_fairness.worker.captured_message import CapturedMessage
from celery_fairness.worker.rate_limited import after_rate_limit
from tests.support.received import received

WAITS = {"key": "api", "concurrency": 1}


@pytest.fixture
def cooled(monkeypatch):
    """The keys that cool down."""
    keys = []
    monkeypatch.setattr(Stops, "cool_down", lambda self, key, *_, **__: keys.append(key))
    return keys


@pytest.fixture
def make_task():
    app = Celery("cooled", broker="memory://", set_as_current=False)
    app.conf.fairness = {
        "redis_url": "redis://127.0.0.1:1/0",
        "queues": {"parts": {"global_limit": 1, "by_args": ["user"]}},
    }
    Fairness(app)

    def make(header, queue="mail", **kwargs):
        request = Context(
            called_directly=False,
            headers={HEADER: header},
            delivery_info={"routing_key": queue},
            args=(),
            kwargs=kwargs,
            properties=received({"task": "shop.t", "id": "t1"}, [[], kwargs, {}]),
        )
        return SimpleNamespace(
            app=app,
            name="shop.t",
            run=lambda user=None: None,
            request=request,
            default_retry_delay=5,
        )

    yield make
    app.close()


def test_of_a_header_that_cannot_be_read_whole_those_keys_cool_down_that_hold(make_task, cooled):
    wrong = {"v": 1, "tenant": 7.5, "limits": [WAITS, {"key": "a b"}, {"key": "tenant:42"}]}
    after_rate_limit(make_task(wrong), RateLimitExceeded(retry_after=2))
    assert cooled == ["api", "tenant:42"]


def limits(*keys):
    return [{"key": key, "concurrency": 1} for key in keys]


@pytest.mark.parametrize(
    ("queue", "own"),
    [
        ("mail", ["tenant:42", "queue:mail"]),
        ("a:b", ["tenant:42", queue_key("a:b")]),
        ("parts", ["tenant:42", "queue:parts", "queue:parts:7"]),
    ],
)
def test_all_policies_cool_down_but_those_that_are_its_tier_s_or_its_queue_s(
    make_task, cooled, queue, own
):
    others = ["tenant:acme-corp:reports", "tenant:43", "queue:other", "queue:parts:8", "api"]
    header = {"v": 1, "tenant": "42", "limits": limits(*own, *others)}
    after_rate_limit(make_task(header, queue, user="7"), RateLimitExceeded(retry_after=2))
    assert sorted(cooled) == sorted(others)


def test_the_partition_that_a_producer_named_does_not_cool_down(make_task, cooled):
    header = {"v": 1, "tenant": "42", "limits": limits("queue:told:1", "queue:told:2")}
    header["partition"] = {"queue": "told", "key": "queue:told:1"}
    after_rate_limit(make_task(header, "told"), RateLimitExceeded(retry_after=2))
    assert cooled == ["queue:told:2"]


@pytest.mark.parametrize("key", [7, None, ("a",), "a b", "x" * 9000])
def test_a_key_that_is_none_is_said_and_the_task_runs_again(make_task, caplog, key):
    error = RateLimitExceeded(retry_after=2, key=key)
    with caplog.at_level(logging.WARNING, "celery_fairness"):
        told = after_rate_limit(make_task({"v": 1}), error)
    assert type(told).__name__ == "Retry"
    if key is not None:
        (record,) = [each for each in caplog.records if each.name == "celery_fairness"]
        assert "does not cool down: key: expected the key of a limit" in record.getMessage()
        assert len(record.getMessage()) < 400


@pytest.fixture
def run_unsent(make_task, monkeypatch):
    """Run a body that raises a 429 and whose new message cannot be sent."""

    def run(**options):
        app = make_task({"v": 1}).app

        @app.task(base=FairTask, name="shop.unsent", shared=False, **options)
        def unsent():
            raise RateLimitExceeded(retry_after=2)

        def publish(*_, **__):
            raise OSError("the broker is away")

        monkeypatch.setattr(CapturedMessage, "publish", publish)
        properties = received({"task": "shop.unsent", "id": "t1"})
        unsent.push_request(called_directly=False, headers={}, retries=0, properties=properties)
        try:
            unsent.run()
        finally:
            unsent.pop_request()

    return run


def test_a_message_that_could_not_be_sent_goes_back_and_no_retry_is_spent(run_unsent):
    with pytest.raises(Reject, match="the broker is away") as told:
        run_unsent(acks_late=True, autoretry_for=(Exception,))
    assert told.value.requeue


def test_a_task_without_a_message_at_the_broker_fails_if_it_could_not_be_sent(run_unsent):
    with pytest.raises(RateLimitExceeded) as told:
        run_unsent(acks_late=False, autoretry_for=(Exception,))
    assert "the broker is away" in told.value.__notes__[0]


def test_a_number_too_long_to_write_is_shown_all_the_same():
    assert "int that is too long to show" in str(RateLimitExceeded(until=10**5000))
