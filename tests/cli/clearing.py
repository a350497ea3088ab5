"""Tasks with ids, for the commands that name one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from celery_fairness.config.tenants import key_part
from celery_fairness.scheduler.types import Verdict, Waiting
from tests.cli.conftest import Installation


def send(shop: Installation, tenant: str, task_id: Any, **fields: Any) -> None:
    """Put a task of that id; ``tenant`` as written in keys."""
    headers: dict[str, Any] = {"id": task_id, "task": "shop.work"} | fields.pop("headers", {})
    message = json.dumps({"body": "", "headers": headers})
    queue, tag = fields.pop("queue", "celery"), fields.pop("tag", "") or tag_of(str(task_id))
    # A tag that says nothing of the id, as Celery's.
    fields = {"task_id": id_part(task_id), "kind": "shop.work"} | fields
    waiting = Waiting(queue, tag, tenant, message=message, **fields)
    shop.submit(waiting)


def id_part(task_id: Any) -> str:
    """Return an id as keys have it; "" where a header has no text."""
    return key_part(task_id) if isinstance(task_id, str) else ""


def tag_of(task_id: str) -> str:
    """Return the delivery tag of the task of that id."""
    return "tag-" + hashlib.sha1(task_id.encode(), usedforsecurity=False).hexdigest()[:8]


def bury(shop: Installation, tenant: str, task_id: str, **fields: Any) -> None:
    """Let a task die with its process, once: that is enough here."""
    send(shop, tenant, task_id, **fields)
    (task,) = shop.claim(queue=fields.get("queue", "celery"))
    shop.settle(task, Verdict.BEGUN)
    shop.settle(task, Verdict.DIED)
