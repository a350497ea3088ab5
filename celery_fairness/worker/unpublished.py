"""The failure of a parked task that its broker does not accept.

Invariant: a second write stores the same result, and never replaces an end that the task stored.
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
    """Store that a parked task has failed; revoke it if it was cancelled or has expired.

    Args:
        app: The task's app.
        promoted: The message that could not be published.
        problem: The reason.
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
