"""The shop with unique tasks, each of which waits for a file."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from celery_fairness import FairTask
from tests.dispatch.kinds import body
from tests.support.shop import make_app


def sync(self: Any, account: str, gate: str = "/", how: str = "ok", user: str | None = None) -> str:
    """Wait."""
    del account, user
    return body(self, gate, how)


def add_unique_tasks(app: Celery) -> Celery:
    """Give ``app`` a task for each thing that a duplicate does, and one that is debounced."""
    given: dict[str, Any] = {"base": FairTask, "bind": True, "shared": False, "tenant": "user"}
    key = "{tenant}:{args.account}"
    for how in ("drop", "replace", "existing"):
        app.task(sync, name=f"unique.{how}", unique=key, on_duplicate=how, **given)
    app.task(
        sync,
        name="unique.debounced",
        unique=f"debounced:{key}",
        on_duplicate="replace",
        debounce=1,
        **given,
    )
    return app


if os.environ.get("CELERY_BROKER_URL"):
    app = add_unique_tasks(make_app())
