"""Limits of queues (section 7.2 of the Open Job Spec).

Invariant: a limit is a row, as one of the admin is. A limit that a command has set is in Redis
alone; a deletion ends it too.
"""

from __future__ import annotations

from celery import current_app
from django.core.exceptions import ValidationError
from django.db import router as databases
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from ninja import Router

from celery_fairness import Fairness
from celery_fairness.config.numbers import PARTITION, numbers_of
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.control.queue.views import QueueLimit
from celery_fairness.wiring import wired
from django_celery_fairness.api.audit import DELETED, wrote
from django_celery_fairness.api.auth import access, caller_of
from django_celery_fairness.api.errors import ApiError
from django_celery_fairness.api.limits import add_headers_of, deleted
from django_celery_fairness.api.schemas import READ, WRITE, Error, QueueLimitBody, QueueLimitState
from django_celery_fairness.limit_rows import end_queue_limit, save_queue_limit
from django_celery_fairness.models import QueueLimit as Row
from django_celery_fairness.models import validate_queue
from django_celery_fairness.permissions import Action, saving

router = Router(auth=access(Action.SEE_QUEUES), tags=["queues"], by_alias=True)

PATH = "admin/queues/{anything:name}/rate-limit"


@router.get(PATH, response={200: QueueLimitState, READ: Error})
def get_queue_limit(
    request: HttpRequest,
    response: HttpResponse,
    name: str,
) -> QueueLimitState:
    """Return the limit of a queue: an operator's, or that of the settings."""
    _expect_name(name)
    limit = Fairness.of().queues.inspect(name).limit
    if limit is None or not limit.source:
        raise ApiError(404, "not_found", f"the queue {name!r} has no limit")
    return _shown(request, response, limit)


@router.put(
    PATH,
    response={200: QueueLimitState, 204: None, WRITE: Error},
    auth=access(Action.ADD_QUEUE_LIMITS, Action.CHANGE_QUEUE_LIMITS),
)
def put_queue_limit(
    request: HttpRequest, response: HttpResponse, name: str, body: QueueLimitBody
) -> QueueLimitState | HttpResponse:
    """Set the limit of a queue. It replaces that of the settings until it is deleted.

    The limit is a row of the database, and holds in Redis when the answer comes. While Redis does
    not answer, nothing is saved and the answer is 503. If Redis goes away during the request, the
    answer is 503 too, and the row is published later. A repeated request does no harm. The answer
    has no content (204) if the caller may not read the queue.
    """
    _expect_name(name)
    limit = set_limit(request, name, body)
    if not caller_of(request).may(Action.SEE_QUEUES):
        return HttpResponse(status=204)
    return _shown(request, response, limit)


@router.delete(PATH, response={204: None, WRITE: Error}, auth=access(Action.DELETE_QUEUE_LIMITS))
def delete_queue_limit(request: HttpRequest, name: str) -> HttpResponse:
    """End the limit that an operator set, so that the settings hold."""
    _expect_name(name)
    if not clear_limit(request, name):
        raise ApiError(404, "not_found", f"no operator has set a limit of the queue {name!r}")
    return deleted(request, queue_key(name))


def set_limit(request: HttpRequest, name: str, body: QueueLimitBody) -> QueueLimit:
    """Save the limit of a queue, and who saved it."""
    is_saved = Row.objects.filter(queue=name).exists()
    caller_of(request).expect(saving(Row, is_saved=is_saved))
    names = body.model_dump()
    part = names.pop(PARTITION) or {}
    numbers = {word: names.pop(number.name) for word, number in numbers_of("queue").items()}
    numbers |= {f"{PARTITION}_{word}": part.get(word) for word in numbers_of(PARTITION)}
    with transaction.atomic(using=databases.db_for_write(Row)):
        row = save_queue_limit(wired(current_app), name, names | numbers)
        values = body.model_dump(mode="json", exclude_unset=True)
        wrote(request, "queue limit", name, values, row=row)
    limit = Fairness.of().queues.inspect(name).limit
    if limit is None:
        raise ApiError(503, "unavailable", "another request ended the limit", retryable=True)
    return limit


def clear_limit(request: HttpRequest, name: str) -> bool:
    """End a queue's limit, and record who ended it; return whether there was one."""
    with transaction.atomic(using=databases.db_for_write(Row)):
        ended = end_queue_limit(wired(current_app), name)
        if ended:
            wrote(request, "queue limit", name, None, flag=DELETED)
    return ended


def _expect_name(name: str) -> None:
    try:
        validate_queue(name)
    except ValidationError as error:
        raise ApiError(404, "not_found", f"queue: {error.message}") from None


def _shown(request: HttpRequest, response: HttpResponse, limit: QueueLimit) -> QueueLimitState:
    add_headers_of(request, response, limit.key)
    return QueueLimitState(**dict(limit))
