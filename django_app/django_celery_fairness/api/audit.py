"""Records who changed what through the API: always in the log, and for users in the admin.

Weakness: a token without an owner is no user, so the admin's history does not have its changes.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from django.apps import apps
from django.db.models import Model
from django.http import HttpRequest

from celery_fairness.errors import got
from django_celery_fairness.api.auth import caller_of

logger = logging.getLogger("celery_fairness")

#: As ``django.contrib.admin.models`` has them, which cannot be imported in a project without it.
ADDED, CHANGED, DELETED = 1, 2, 3


def wrote(
    request: HttpRequest,
    what: str,
    name: str,
    values: Any,
    *,
    row: Model | None = None,
    flag: int = CHANGED,
) -> None:
    """Record a change.

    Args:
        request: The request of the caller.
        what: What was changed, such as ``override``.
        name: Its name.
        values: What was written, in the form of JSON.
        row: The row of the database, if it has one.
        flag: Whether it was added, changed or deleted.
    """
    caller = caller_of(request)
    did = {ADDED: "added", CHANGED: "changed", DELETED: "deleted"}[flag]
    text = json.dumps(values)
    # A name may have a newline, which would begin another line of the log.
    logger.info("by the API %s %s %s %s: %s", caller.name, did, what, got(name, 300), text)
    if caller.user is None or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    kind = None if row is None else ContentType.objects.get_for_model(row)
    LogEntry.objects.create(
        user_id=caller.user.pk,
        content_type=kind,
        object_id=None if row is None else str(row.pk),
        # PostgreSQL stores no NUL.
        object_repr=name.replace("\x00", "�")[:200],
        action_flag=flag,
        change_message=f"{did} {what} by the API as {caller.name}: {text}",
    )
