"""The shop with a task that writes down all of its message, and comes again if it is asked."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from celery import Celery

from celery_fairness import FairTask, RateLimitExceeded
from tests.support.shop import ledger_line, make_app

#: Attributes of a request that belong to the worker.
_OF_WORKER = ("hostname", "is_eager", "called_directly", "_protected", "_children", "properties")


def carried(self: Any, *args: Any, how: str = "ok", **_: Any) -> None:
    """Write down the message; come again once if asked."""
    request = self.request
    seen = {name: each for name, each in vars(request).items() if name not in _OF_WORKER}
    properties = request.properties
    body = properties.body if isinstance(properties.body, bytes) else properties.body.encode()
    facts = {
        "request": seen,
        "properties": dict(properties),
        "body": hashlib.sha256(body).hexdigest(),
        "content": [properties.content_type, properties.content_encoding],
    }
    text = json.dumps(facts, default=repr, sort_keys=True).replace(str(request.id), "ID")
    ledger_line("carried", self.name, request.id, facts=json.loads(text))
    path = f"{os.environ['SHOP_LEDGER']}.{request.id}"
    if how == "ok" or os.path.exists(path):
        return
    with open(path, "w"):
        pass
    if how == "retry":
        raise self.retry(countdown=1)
    raise RateLimitExceeded(retry_after=1)


def make_carried(app: Celery) -> Celery:
    """Give ``app`` the task."""
    body: Any = carried
    app.task(base=FairTask, bind=True, tenant="user", name="shop.carried", shared=False)(body)
    return app


if os.environ.get("CELERY_BROKER_URL"):
    app = make_carried(make_app())
