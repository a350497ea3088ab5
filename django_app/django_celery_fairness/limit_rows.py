"""How the API and the pages write limits of queues and overrides: as rows, by name.

Invariant: a number that this app sets has a row, so ``manage.py publish`` restores it. Callers let
Redis answer before a row changes. So a request that fails because Redis is away changed nothing.

Weakness: Redis may go away between that answer and the publication. Then the row is saved, and the
next publication writes it to Redis.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery_fairness.config.numbers import PARTITION
from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.tenants import KEY_CHARACTERS
from celery_fairness.control.key.queue_keys import override_key
from django_celery_fairness.models import LimitOverride, QueueLimit, validate_queue
from django_celery_fairness.number_fields import none_of, stored
from django_celery_fairness.publishing import publish_on_commit

if TYPE_CHECKING:
    from celery_fairness.wiring import Parts


def save_override(
    parts: Parts,
    key: str,
    numbers: Mapping[str, Any],
    *,
    ends_at: datetime | None,
    reason: str,
    author: Any,
    author_name: str,
) -> LimitOverride:
    """Save the override of a key, in place of an earlier one.

    Args:
        parts: The parts of the app whose Redis has the key.
        key: The key, as a person writes it or as Redis has it.
        numbers: The numbers of an override that it changes. None is unlimited.
        ends_at: Its end. None is when the row is deleted.
        reason: Why.
        author: The user who sets it, or None.
        author_name: The name of the user or token, for commands and events.

    Raises:
        FairnessError: The key is invalid, or Redis does not answer.
        ValueError: The key is in no form that a key may have.
        ValidationError: A number, the end, or the name of a queue is invalid.
    """
    if key.startswith(PREFIX):
        validate_queue(key.removeprefix(PREFIX))
    in_redis = override_key(parts.installation, key)
    rows = LimitOverride.objects.of_key(key, in_redis)
    values = none_of("override") | stored("override", numbers)
    values |= {"ends_at": ends_at, "reason": reason}
    values |= {"author": author, "author_name": author_name}
    name = rows[0].key if rows else key if _is_storable(key) else in_redis
    LimitOverride(key=name, **values).full_clean(validate_unique=False, exclude=["author"])
    return LimitOverride.objects.update_or_create(values, key=name)[0]


def overrides(parts: Parts, key: str) -> list[LimitOverride]:
    """Return the rows of a key, ended ones too. Errors as for :func:`save_override`."""
    return LimitOverride.objects.of_key(key, override_key(parts.installation, key))


def end_override(parts: Parts, key: str) -> bool:
    """End the override of a key, one that a command has set too; return whether there was one.

    Errors as for :func:`save_override`.
    """
    # An ended row stays, and is shown as ended.
    rows = [row for row in overrides(parts, key) if not row.has_ended]
    if not rows:
        cleared = bool(parts.fairness.limits.clear_override(key))
        # A row that another request has published meanwhile is cleared with it.
        later = [row.key for row in overrides(parts, key) if not row.has_ended]
        publish_on_commit(overrides=later)
        return cleared
    expect_redis(parts, key)
    for row in rows:
        row.delete()
    return True


def expect_redis(parts: Parts, key: str) -> None:
    """Raise ``LimiterUnavailable`` if Redis does not answer."""
    parts.fairness.limits.is_known(key)


def save_queue_limit(parts: Parts, queue: str, numbers: Mapping[str, Any]) -> QueueLimit:
    """Save the limit of a queue, in place of an earlier one.

    Args:
        parts: The parts of the app whose Redis has the queue.
        queue: The name of the queue.
        numbers: The fields of a ``QueueLimit`` but the note. A number is None for none.

    Raises:
        LimiterUnavailable: Redis does not answer.
        ValidationError: A number or the name is invalid.
    """
    expect_redis(parts, queue_key(queue))
    values = stored(PARTITION, stored("queue", numbers))
    QueueLimit(queue=queue, **values).full_clean(validate_unique=False)
    return QueueLimit.objects.update_or_create(values, queue=queue)[0]


def end_queue_limit(parts: Parts, queue: str) -> bool:
    """End the limit of a queue, one that a command has set too; return whether there was one.

    Raises:
        LimiterUnavailable: Redis does not answer.
    """
    row = QueueLimit.objects.filter(queue=queue).first()
    if row is None:
        cleared = bool(parts.fairness.queues.clear_limit(queue))
        # A row that another request has published meanwhile is cleared with it.
        later = QueueLimit.objects.filter(queue=queue).values_list("queue", flat=True)
        publish_on_commit(queues=list(later))
        return cleared
    expect_redis(parts, queue_key(queue))
    row.delete()
    return True


def _is_storable(key: str) -> bool:
    """Whether a database stores the key: PostgreSQL rejects NUL."""
    return "\0" not in key and len(key.encode()) <= KEY_CHARACTERS
