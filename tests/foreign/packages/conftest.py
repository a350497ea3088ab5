"""An app on each path, and a worker of it in threads of this process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.app import TestApp, setup_default_app
from celery.contrib.testing.worker import start_worker

from celery_fairness import Fairness
from celery_fairness.testing.server import RedisServer

#: One task of a tenant at a time; a task at its limit waits.
SETTINGS = {"tiers": {"free": {"concurrency": 1}}, "tier_on_limit": "wait"}
RESULT_SECONDS = 30
_names = itertools.count()


@pytest.fixture(params=["fairredis", "gate"])
def path(request: pytest.FixtureRequest) -> str:
    """Each path, in turn."""
    return request.param


@pytest.fixture
def make_app(fairness_server: RedisServer, path: str) -> Iterator[Callable[..., Celery]]:
    """``make_app(**settings of Celery)``: the current app, on an empty server."""
    with fairness_server.client() as client:
        client.flushall()
    redis = fairness_server.url.removesuffix("/0")
    scheme = "fair" if path == "fairredis" else ""
    with contextlib.ExitStack() as stack:

        def make(**conf: Any) -> Celery:
            fairness = conf.pop("fairness", {})
            config = {
                "broker_url": f"{scheme}{redis}/0",
                "result_backend": f"{redis}/1",
                "fairness": {"redis_url": f"{redis}/0", **SETTINGS, **fairness},
                **conf,
            }
            app = TestApp(f"foreign{next(_names)}", config=config)
            stack.enter_context(setup_default_app(app))
            app.set_current()
            app.set_default()
            stack.callback(Fairness(app, environ={}).close)
            return app

        yield make


@contextlib.contextmanager
def working(app: Celery, concurrency: int = 2, **options: Any) -> Iterator[Any]:
    """Run a worker of ``app`` in threads."""
    given = {"pool": "threads", "concurrency": concurrency, "perform_ping_check": False, **options}
    with start_worker(app, **given) as worker:
        yield worker
    executor = getattr(worker.pool, "executor", None)
    if executor is not None:
        executor.shutdown(wait=True)
