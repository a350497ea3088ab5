"""The receivers that publish changed rows, and all of them when a worker starts.

Invariant: every change of a row that workers use is published on commit. Django's signals cover
``save`` and ``delete`` (forms, shell, fixtures, cascades); :data:`.querysets.rows_changed` covers
bulk changes.

Weakness: raw SQL sends no signal. Code that uses it must call
:func:`.publishing.publish_on_commit`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.signals import worker_init
from django.db import connections, router
from django.db.models.signals import post_delete, post_save, pre_save

from celery_fairness.errors import NotWired
from celery_fairness.wiring import wired
from django_celery_fairness.models import LimitOverride, NamedRow, QueueLimit, TenantTier, Tier
from django_celery_fairness.publishing import (
    Change,
    publish_changes,
    publish_everything,
    publish_on_commit,
)
from django_celery_fairness.querysets import rows_changed

if TYPE_CHECKING:
    from celery_fairness.wiring import Parts

logger = logging.getLogger(__name__)

#: The models whose rows are published by their names.
NAMED: tuple[type[NamedRow], ...] = (TenantTier, QueueLimit, LimitOverride)


def connect() -> None:
    """Connect all receivers. ``AppConfig.ready`` calls it; a second call is harmless."""
    for signal, receiver, senders in (
        (pre_save, tier_will_be_saved, (Tier,)),
        (post_save, tier_was_changed, (Tier,)),
        (post_delete, tier_was_changed, (Tier,)),
        (pre_save, override_will_be_saved, (LimitOverride,)),
        (pre_save, row_will_be_saved, NAMED),
        (post_save, row_was_changed, NAMED),
        (post_delete, row_was_changed, NAMED),
    ):
        for sender in senders:
            signal.connect(receiver, sender=sender, dispatch_uid=f"fairness-{receiver.__name__}")
    rows_changed.connect(rows_were_changed, dispatch_uid="fairness-rows-were-changed")
    worker_init.connect(worker_starts, dispatch_uid="fairness-worker-starts")


def tier_will_be_saved(instance: Tier, using: str, **_context: Any) -> None:
    """Publish the tenants of a tier that gets another name, because Redis refers to it by name."""
    renamed = Tier.objects.using(using).filter(pk=instance.pk).exclude(name=instance.name)
    tenants = TenantTier.objects.using(using).filter(tier__in=renamed).order_by()
    publish_on_commit(tenants=list(tenants.values_list("tenant", flat=True)), using=using)


def tier_was_changed(using: str, **_context: Any) -> None:
    """Publish the tier table."""
    publish_on_commit(tiers=True, using=using)


def override_will_be_saved(instance: LimitOverride, using: str, **_context: Any) -> None:
    """Reject a row whose key has a row in another form, such as the hash of its name.

    The forms of Django check this too, but ``create`` and fixtures use none.
    """
    instance.expect_one_form(using)


def row_will_be_saved(instance: NamedRow, using: str, **_context: Any) -> None:
    """Publish the former name of a row that gets another name."""
    column = instance.name_field
    manager = type(instance)._default_manager  # noqa: SLF001 (documented by Django)
    rows = manager.using(using).filter(pk=instance.pk)
    old = rows.exclude(**{column: getattr(instance, column)}).values_list(column, flat=True)
    publish_changes([(instance.kind, name) for name in old], using)


def row_was_changed(instance: NamedRow, using: str, **_context: Any) -> None:
    """Publish a saved or deleted row by its name."""
    publish_changes([(instance.kind, getattr(instance, instance.name_field))], using)


def rows_were_changed(changes: Iterable[Change], using: str, **_context: Any) -> None:
    """Publish a bulk change."""
    publish_changes(changes, using)


def worker_starts(sender: Any = None, **_context: Any) -> None:
    """Publish everything from the database, before the worker takes its first task.

    If the database or Redis is away, the worker starts all the same, and publishes when both are
    back. It publishes again each time that it finds that Redis lost its memory.
    """
    from celery import current_app

    try:
        parts = wired(getattr(sender, "app", None) or current_app)
    except NotWired:
        return
    parts.settings_publisher.add("database", partial(publish_from_worker, parts))


def publish_from_worker(parts: Parts) -> None:
    """Publish everything from the database.

    Raises:
        FairnessError: Redis does not answer, or rejects a row.
        DatabaseError: The database does not answer.
    """
    alias = router.db_for_write(Tier)
    was_open = connections[alias].connection is not None
    try:
        published = publish_everything(alias, parts=parts)
    finally:
        if not was_open:
            # A pool forked from here must not inherit an open connection.
            connections[alias].close()
    logger.info(
        "published %d tiers, %d tenants, %d queues, %d overrides; "
        "%d tenants have the number of their tier",
        published.tiers,
        published.tenants,
        published.queues,
        published.overrides,
        published.by_tier,
    )
