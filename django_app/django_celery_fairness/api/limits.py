"""Limits by key: list, inspect, override (sections 10.1 to 10.3 of the Open Job Spec).

Invariant: an override is a row, as one of the admin is. An override that a command has set is in
Redis alone; a deletion ends it too. A caller who may write and not read gets no number of a key.

Weakness: a tenant whose name ends in ``/override`` has no address of its own here. Its key in
Redis, ``tenant:h_…``, has one.
"""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from celery import current_app
from django.db import router as databases
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Router

from celery_fairness import Fairness
from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.control.key.limits_api import PAGE_LENGTH
from celery_fairness.control.key.views import Inspection, InspectionPage
from celery_fairness.errors import NotFound
from celery_fairness.wiring import wired
from django_celery_fairness.api.audit import DELETED, wrote
from django_celery_fairness.api.auth import access, caller_of
from django_celery_fairness.api.errors import ApiError, named_in_url
from django_celery_fairness.api.schemas import (
    READ,
    WRITE,
    Error,
    OverrideBody,
    PageLength,
    PageNumber,
)
from django_celery_fairness.limit_rows import end_override, overrides, save_override
from django_celery_fairness.models import LimitOverride
from django_celery_fairness.permissions import Action, saving

PAST = "expires_at: expected a time to come, got: one that is past"

router = Router(auth=access(Action.SEE_KEYS), tags=["rate limits"])


@router.get("rate-limits", response={200: InspectionPage, READ: Error})
def list_rate_limits(
    request: HttpRequest,
    page: PageNumber = 1,
    per_page: PageLength = PAGE_LENGTH,
) -> InspectionPage:
    """Return the known keys by name, each as it is inspected."""
    return Fairness.of().limits.list(page, per_page)


# Before the routes of a key, which match this address too.
@router.delete(
    "rate-limits/{anything:key}/override",
    response={204: None, WRITE: Error},
    auth=access(Action.DELETE_OVERRIDES, Action.STEER_KEYS),
)
def delete_override(request: HttpRequest, key: str) -> HttpResponse:
    """End an override, one that a command has set too."""
    with named_in_url():
        cleared = clear_override(request, key)
    if not cleared:
        raise ApiError(404, "not_found", f"the key {key!r} has no override")
    return deleted(request, key)


@router.get("rate-limits/{anything:key}", response={200: Inspection, READ: Error})
def get_rate_limit(
    request: HttpRequest,
    response: HttpResponse,
    key: str,
) -> Inspection:
    """Return what a key holds and may hold now."""
    with named_in_url():
        found = Fairness.of().limits.inspect(key)
    add_headers(response, found)
    return found


@router.put(
    "rate-limits/{anything:key}",
    response={200: Inspection, 204: None, WRITE: Error},
    auth=access(Action.ADD_OVERRIDES, Action.CHANGE_OVERRIDES),
)
def put_override(
    request: HttpRequest, response: HttpResponse, key: str, body: OverrideBody
) -> Inspection | HttpResponse:
    """Override numbers of a key, until a time or until the override is deleted.

    The override is a row of the database, and holds in Redis when the answer comes. While Redis
    does not answer, nothing is saved and the answer is 503. If Redis goes away during the request,
    the answer is 503 too, and the row is published later. A repeated request does no harm. The
    answer has no content (204) if the caller may not read the key.
    """
    with named_in_url(), suppress(NotFound):
        Fairness.of().limits.inspect(key)
    found = override(request, key, body)
    if not caller_of(request).may(Action.SEE_KEYS):
        return HttpResponse(status=204)
    add_headers(response, found)
    return found


def override(request: HttpRequest, key: str, body: OverrideBody) -> Inspection:
    """Save an override, and who saved it. Redis must have answered before."""
    if body.expires_at is not None and body.expires_at <= timezone.now():
        raise ApiError(409, "conflict", PAST)
    caller, parts = caller_of(request), wired(current_app)
    caller.expect(saving(LimitOverride, is_saved=bool(overrides(parts, key))))
    with transaction.atomic(using=databases.db_for_write(LimitOverride)):
        row = save_override(
            parts,
            key,
            body.numbers,
            ends_at=body.expires_at,
            reason=body.reason or "",
            author=caller.user,
            author_name=caller.name,
        )
        values = body.model_dump(mode="json", exclude_unset=True)
        wrote(request, "override", key, values, row=row)
    try:
        return Fairness.of().limits.inspect(key)
    except NotFound:
        # Its time or another request has ended it since, and nothing else is known of the key.
        if body.expires_at is not None and body.expires_at <= timezone.now():
            raise ApiError(409, "conflict", PAST) from None
        text = "another request ended the override"
        raise ApiError(503, "unavailable", text, retryable=True) from None


def clear_override(request: HttpRequest, key: str) -> bool:
    """End an override, and record who ended it; return whether there was one."""
    parts = wired(current_app)
    if all(row.has_ended for row in overrides(parts, key)):
        # The override of a command has no row, and the admin ends it on the page of its key.
        caller_of(request).expect(Action.STEER_KEYS)
    with transaction.atomic(using=databases.db_for_write(LimitOverride)):
        ended = end_override(parts, key)
        if ended:
            wrote(request, "override", key, None, flag=DELETED)
    return ended


def deleted(request: HttpRequest, key: str) -> HttpResponse:
    """Return the answer to a deletion, with the headers of the numbers that hold now."""
    response = HttpResponse(status=204)
    add_headers_of(request, response, key)
    return response


def add_headers_of(request: HttpRequest, response: HttpResponse, key: str) -> None:
    """Add the headers of a key if the caller may see it, or the queue whose key it is."""
    of_queue = key.startswith(PREFIX) and caller_of(request).may(Action.SEE_QUEUES)
    if of_queue or caller_of(request).may(Action.SEE_KEYS):
        # A key without a number, an override or a limit may be unknown.
        with suppress(NotFound):
            add_headers(response, Fairness.of().limits.inspect(key))


def add_headers(response: HttpResponse, found: Inspection) -> None:
    """Add ``X-RateLimit-*`` for the number of a key that leaves the fewest starts.

    A key without any number is not limited, and gets none of them. The end of a running task is
    not known, so the reset of a full concurrency is now.
    """
    now, holds = datetime.now(UTC), found.holds
    opens_at = now + timedelta(seconds=found.opens_in_seconds or 0.0)
    numbers: list[tuple[int, int, datetime | None]] = []
    if found.rate is not None:
        rate = found.rate
        left = max(0, rate.limit - rate.current_count)
        numbers.append((rate.limit, left, rate.window_resets_at))
    if found.throttle is not None:
        at = found.throttle.next_allowed_at
        numbers.append((found.throttle.limit, int(at is not None and at <= now), at))
    if found.concurrency.limit is not None:
        numbers.append((found.concurrency.limit, found.concurrency.available or 0, opens_at))
    if not numbers:
        return
    limit, left, resets_at = min(numbers, key=lambda number: number[1])
    if holds.reported_left is not None and holds.reported_left < left:
        left, resets_at = holds.reported_left, holds.reported_until
    if left and found.blocked_by:
        # The key cools down, or saves for a task.
        left, resets_at = 0, opens_at
    response["X-RateLimit-Limit"] = str(limit)
    response["X-RateLimit-Remaining"] = str(left)
    # A pause without an end has no time either.
    response["X-RateLimit-Reset"] = str(math.ceil((resets_at or now).timestamp()))
