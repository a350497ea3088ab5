"""A worker that is started without the program ``celery worker`` does all that one does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from celery import Celery, _state, signals
from celery.backends.redis import ResultConsumer
from celery.contrib.testing.worker import start_worker
from kombu import pools

from celery_fairness import Fairness, FairTask, RateLimitPolicy
from celery_fairness.errors import SettingsError
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.usefixtures("own_logging")


@pytest.fixture
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def leave_it_alone(**_: Any) -> None:
        """Set up no logging for the whole test process."""

    for name in ("_MP_FORK_LOGLEVEL_", "_MP_FORK_LOGFILE_", "_MP_FORK_LOGFORMAT_"):
        monkeypatch.setenv(name, "")
    for place, name in ((_state, "default_app"), (_state._tls, "current_app")):
        monkeypatch.setattr(place, name, getattr(place, name, None), raising=False)
    monkeypatch.setattr(ResultConsumer, "consume_from", lambda self, task_id: None)
    signals.setup_logging.connect(leave_it_alone, weak=False)
    yield
    signals.setup_logging.disconnect(leave_it_alone)


def make_app(url: str, **fairness: Any) -> Celery:
    app = Celery("tested", broker=url, backend=url.removeprefix("fair"), set_as_current=False)
    app.conf.update(
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_transport_options={"polling_interval": 0.05},
        fairness=fairness,
    )
    Fairness(app, {})
    return app


def native_threads() -> int:
    return psutil.Process().num_threads()


@contextmanager
def working(app: Celery) -> Iterator[None]:
    """Start Celery's own test worker, in a thread."""
    options = {"pool": "threads", "concurrency": 2, "perform_ping_check": False}
    worker: Any = None
    try:
        with start_worker(app, shutdown_timeout=at_most(20), **options) as worker:
            yield
    finally:
        if worker is not None:
            # Its process does not end, so its pool would stay.
            worker.pool.executor.shutdown(wait=True)


@pytest.mark.parametrize("scheme", ["redis", "fairredis"])
def test_celerys_own_test_workers_bring_parked_tasks_back_and_leave_nothing(
    redis_url: str, scheme: str
) -> None:
    before = native_threads()
    app = make_app(redis_url.replace("redis:", f"{scheme}:", 1), tiers={"free": {"concurrency": 7}})
    may_end = threading.Event()
    ran: list[int] = []

    @app.task(base=FairTask, shared=False, limits=[RateLimitPolicy("api", concurrency=1)])
    def work(number: int) -> None:
        assert may_end.wait(at_most(20))
        ran.append(number)

    @app.task(base=FairTask, shared=False, service="reports")
    def of_service() -> None:
        """Have queues of its own."""

    fairness = Fairness.of(app)

    def wait() -> None:
        assert fairness.limits.inspect("api").waiting_count == 2

    try:
        # One after the other, in one process.
        for _ in range(2):
            may_end.clear()
            ran.clear()
            with working(app):
                for number in range(3):
                    work.delay(number)
                eventually(wait)
                (free,) = (each for each in fairness.stats.status().tiers if each.tier == "free")
                assert free.concurrency == 7
                assert "reports_default" in app.amqp.queues.consume_from
                may_end.set()
                eventually(lambda: sorted(ran) == [0, 1, 2], at_most(20.0))
    finally:
        may_end.set()
        fairness.close()
        app.close()
        pools.reset()
    if scheme == "redis":
        # Those of fairredis belong to its connections.
        eventually(lambda: native_threads() <= before, at_most(10.0))


def test_a_setting_that_cannot_be_meant_ends_the_test_worker(redis_url: str) -> None:
    app = make_app(redis_url, snooze_second=7)
    with (
        pytest.raises(SettingsError, match="snooze_second"),
        start_worker(app, perform_ping_check=False),
    ):
        raise AssertionError("the worker has started")
    app.close()
