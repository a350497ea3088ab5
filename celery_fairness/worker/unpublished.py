"""The failure of a parked task that its broker does not take back.

Invariant: written twice it says the same, and an end that the task itself had stored stays.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from celery.exceptions import TaskRevokedError
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_fairness.errors import PublishFailed
from celery_fairness.limiter.types import Promoted
from celery_fairness.worker.outcome_writer import request_of_message
from celery_fairness.worker.parked_message import body_of

logger = logging.getLogger("celery_fairness")


def write_unpublished(app: Any, promoted: Promoted, problem: Exception) -> None:
    """Store that a parked task has failed; one that was cancelled or has expired is revoked.

    Args:
        app: Of the task.
        promoted: What could not be published.
        problem: Why.
    """
    taken = json.loads(promoted.message)
    accept = prepare_accept_content(app.conf.accept_content)
    facts = {name: taken[name] for name in ("content_type", "content_encoding", "headers")}
    properties = taken["properties"]
    message: Any = Message(body_of(taken), properties=properties, accept=accept, **facts)
    request = request_of_message(message, app)
    place = taken["exchange"], taken["routing_key"]
    error = PublishFailed(str(request.name), str(request.id), *place, str(problem))
    if not request.stored_end(error):
        if promoted.ended:
            request.revoke(TaskRevokedError("expired"), expired=True)
        else:
            request.fail(error)
    logger.error("%s", error)
