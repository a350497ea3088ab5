"""Tasks with ids, for the commands that name one."""

from __future__ import annotations

import json
from typing import Any

from celery_fairness.scheduling.words import Verdict, Waiting
from celery_fairness.store import verbs
from tests.cli.conftest import Installation


def send(
    shop: Installation, tenant: str, task_id: str, tenant_told: str = "", **fields: Any
) -> None:
    """Put a task of that id; ``tenant`` as written in keys, ``tenant_told`` as its header says."""
    headers: dict[str, Any] = {"id": task_id, "task": "shop.work"}
    if tenant_told:
        headers["fairness"] = {"v": 1, "tenant": tenant_told}
    message = json.dumps({"body": "", "headers": headers})
    queue = fields.pop("queue", "celery")
    waiting = Waiting(queue, f"tag-of-{task_id}", tenant, message=message, **fields)
    shop.run(verbs.PUT, verbs.put_args(waiting))


def bury(shop: Installation, tenant: str, task_id: str) -> None:
    """Let a task die with its process, once: that is enough here."""
    send(shop, tenant, task_id)
    (task,) = shop.claim()
    shop.settle(task, Verdict.BEGUN)
    shop.settle(task, Verdict.DIED)
