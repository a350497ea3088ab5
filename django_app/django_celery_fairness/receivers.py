"""The receivers that publish changed tiers and tenants, and all of them when a worker starts.

Invariant: every change of a tier or tenant is published on commit. Django's signals cover ``save``
and ``delete`` (forms, shell, fixtures, cascades); :data:`.querysets.rows_changed` covers bulk
changes.

Weakness: raw SQL sends no signal. Code that uses it must call
:func:`.publishing.publish_on_commit`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import astuple
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.signals import worker_init
from django.db import DatabaseError, connections, router
from django.db.models.signals import post_delete, post_save, pre_save

from celery_fairness.errors import FairnessError, NotWired
from celery_fairness.wiring import wired
from django_celery_fairness.models import TenantTier, Tier
from django_celery_fairness.publishing import publish_everything, publish_on_commit
from django_celery_fairness.querysets import rows_changed

if TYPE_CHECKING:
    from celery_fairness.wiring import Parts

logger = logging.getLogger(__name__)


def connect() -> None:
    """Connect all receivers. ``AppConfig.ready`` calls it; a second call is harmless."""
    for signal, receiver, sender in (
        (pre_save, tier_will_be_saved, Tier),
        (post_save, tier_was_saved, Tier),
        (post_delete, tier_was_deleted, Tier),
        (pre_save, tenant_will_be_saved, TenantTier),
        (post_save, tenant_was_saved, TenantTier),
        (post_delete, tenant_was_deleted, TenantTier),
    ):
        signal.connect(receiver, sender=sender, dispatch_uid=f"fairness-{receiver.__name__}")
    rows_changed.connect(rows_were_changed, dispatch_uid="fairness-rows-were-changed")
    worker_init.connect(worker_starts, dispatch_uid="fairness-worker-starts")


def tier_will_be_saved(instance: Tier, using: str, **_context: Any) -> None:
    """Publish the tenants of a tier that gets another name, because Redis refers to it by name."""
    renamed = Tier.objects.using(using).filter(pk=instance.pk).exclude(name=instance.name)
    tenants = TenantTier.objects.using(using).filter(tier__in=renamed).order_by()
    publish_on_commit(tenants=list(tenants.values_list("tenant", flat=True)), using=using)


def tier_was_saved(using: str, **_context: Any) -> None:
    """Publish the tier table."""
    publish_on_commit(tiers=True, using=using)


def tier_was_deleted(using: str, **_context: Any) -> None:
    """Publish the tier table."""
    publish_on_commit(tiers=True, using=using)


def tenant_will_be_saved(instance: TenantTier, using: str, **_context: Any) -> None:
    """Publish the former tenant of a row that gets another tenant."""
    old = TenantTier.objects.using(using).filter(pk=instance.pk).exclude(tenant=instance.tenant)
    publish_on_commit(tenants=list(old.values_list("tenant", flat=True)), using=using)


def tenant_was_saved(instance: TenantTier, using: str, **_context: Any) -> None:
    """Publish the tenant."""
    publish_on_commit(tenants=[instance.tenant], using=using)


def tenant_was_deleted(instance: TenantTier, using: str, **_context: Any) -> None:
    """Publish that the tenant has no row: it has the default tier."""
    publish_on_commit(tenants=[instance.tenant], using=using)


def rows_were_changed(tiers: bool, tenants: Iterable[str], using: str, **_context: Any) -> None:
    """Publish a bulk change."""
    publish_on_commit(tiers=tiers, tenants=tenants, using=using)


def worker_starts(sender: Any = None, **_context: Any) -> None:
    """Publish everything from the database, before the worker takes its first task.

    If the database or Redis is away, the worker starts all the same, with the numbers that it has.
    It publishes again each time that it finds that Redis lost its memory.
    """
    from celery import current_app

    try:
        parts = wired(getattr(sender, "app", None) or current_app)
    except NotWired:
        return
    parts.publishers.append(partial(publish_from_worker, parts))
    publish_from_worker(parts)


def publish_from_worker(parts: Parts) -> None:
    """Publish everything from the database, or log the error."""
    alias = router.db_for_write(Tier)
    was_open = connections[alias].connection is not None
    try:
        published = publish_everything(alias, parts=parts)
    except (FairnessError, DatabaseError) as error:
        logger.error("this worker could not publish the tiers of the database: %s", error)
    else:
        logger.info(
            "published %d tiers, %d tenants; %d tenants have the number of their tier",
            *astuple(published),
        )
    finally:
        if not was_open:
            # A pool forked from here must not inherit an open connection.
            connections[alias].close()
