"""Fixtures that take the place of those of Celery's pytest plugin, and wire its apps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_fairness import Fairness
from tests.foreign.modes import current_mode


@pytest.fixture(scope="session")
def celery_worker_parameters() -> dict[str, Any]:
    return {"concurrency": current_mode().concurrency}


@pytest.fixture(scope="session")
def celery_parameters() -> dict[str, Any]:
    return {"task_cls": "celery_fairness:FairTask"} if current_mode().fair_tasks else {}


@pytest.fixture(scope="session", autouse=True)
def fair_session_app(celery_session_app: Any) -> Iterator[None]:
    mode = current_mode()
    with _wired(celery_session_app) as fairness:
        yield
        if fairness is not None and mode.rejects:
            assert sum(each.total for each in fairness.stats.rejections().keys), (
                "no limit rejected anything"
            )


@pytest.fixture(autouse=True)
def fair_app(fair_session_app: None, celery_app: Any) -> Iterator[None]:
    with _wired(celery_app):
        yield


@contextmanager
def _wired(app: Any) -> Iterator[Fairness | None]:
    """Let an app of the suite use the package, unless the mode is plain Celery."""
    settings = current_mode().settings
    if settings is None:
        yield None
        return
    app.conf.fairness = dict(settings)
    fairness = Fairness(app, environ={})
    yield fairness
    fairness.close()
