"""Celery's own fixtures: ``celery_app`` with a ``Fairness``, and an eager app without one."""

from __future__ import annotations

import pytest
from celery import shared_task

from celery_fairness import Fairness, FairTask
from celery_fairness.errors import NotWired

pytest_plugins = ["celery.contrib.pytest"]


@shared_task(base=FairTask, tenant="user", name="foreign.twice")
def twice(number, user=None):
    return number * 2


@pytest.fixture(scope="session", params=["fairredis", "gate"])
def celery_config(request, fairness_server):
    url = fairness_server.url.removesuffix("/0")
    broker = f"fair{url}/0" if request.param == "fairredis" else f"{url}/0"
    return {"broker_url": broker, "result_backend": f"{url}/1"}


@pytest.fixture(scope="session")
def celery_worker_parameters():
    return {"perform_ping_check": False}


@pytest.fixture
def wired(celery_app):
    fairness = Fairness(celery_app, environ={})
    yield celery_app
    fairness.close()


def test_a_worker_runs_what_the_fixture_sends(wired, celery_worker) -> None:
    assert [twice.delay(n, user="42").get(timeout=30) for n in (1, 2)] == [2, 4]


def test_an_eager_app_needs_no_fairness(celery_app, depends_on_current_app) -> None:
    celery_app.conf.task_always_eager = True
    assert twice.delay(2, user="42").get() == 4


def test_without_fairness_the_worker_fixture_raises_at_once(request, celery_app) -> None:
    celery_app.finalize()
    with pytest.raises(NotWired, match="add 'fairness = Fairness"):
        request.getfixturevalue("celery_worker")
