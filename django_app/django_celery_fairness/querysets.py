"""Querysets that send a signal for bulk changes, for which Django sends none.

Invariant: ``update``, ``bulk_update`` and ``bulk_create`` of tiers and tenants send
:data:`rows_changed` in their transaction, and :mod:`.receivers` publishes the change on commit.

Weakness: raw SQL sends no signal. Code that uses it must call
:func:`django_celery_fairness.publishing.publish_on_commit` in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import ProtectedError
from django.dispatch import Signal
from django.utils.translation import gettext as _

from django_celery_fairness import wiring

if TYPE_CHECKING:
    from django_celery_fairness.models import TenantTier, Tier

#: Sent in the transaction of a bulk change, with the model as sender. Its arguments are ``tiers``
#: (whether any tier changed), ``tenants`` (whose rows or tiers changed) and ``using`` (the alias of
#: the database).
rows_changed = Signal()


class TierQuerySet(models.QuerySet["Tier"]):
    """Tiers; any bulk change publishes the tier table."""

    def update(self, **fields: Any) -> int:
        """Update as Django does, and publish on commit.

        A new name is a new tier to Redis, so the tenants of a renamed tier are published too.
        """
        self._for_write = True
        with transaction.atomic(using=self.db):
            tenants = self._tenants() if "name" in fields else ()
            rows = super().update(**fields)
            rows_changed.send(self.model, tiers=bool(rows), tenants=tenants, using=self.db)
        return rows

    def bulk_create(self, objs: Iterable[Tier], *args: Any, **options: Any) -> list[Tier]:
        """Create as Django does, and publish on commit."""
        self._for_write = True
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **options)
            rows_changed.send(self.model, tiers=bool(created), tenants=(), using=self.db)
        return created

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete as Django does.

        Raises:
            ProtectedError: The default tier is among them, or a tenant has one of them.
        """
        self.refuse_default_tier()
        return super().delete()

    delete.queryset_only = True  # type: ignore[attr-defined]  # a mark that Django reads

    def refuse_default_tier(self) -> None:
        """Reject a change that would leave unknown tenants without a tier.

        Raises:
            ProtectedError: The default tier is among these.
        """
        name = wiring.default_tier()
        tier = self.order_by().filter(name=name).first()
        if tier is not None:
            message = _("“%(name)s” is the default tier (setting default_tier): it cannot go.")
            raise ProtectedError(message % {"name": name}, {tier})

    def _tenants(self) -> list[str]:
        # Not from ``self``: its filters may have left out some tenants of a tier.
        tiers = type(self)(self.model, using=self.db).filter(pk__in=self.order_by().values("pk"))
        return list(tiers.exclude(tenants=None).values_list("tenants__tenant", flat=True))


class TenantTierQuerySet(models.QuerySet["TenantTier"]):
    """Tenants; any bulk change publishes the tenants it touched."""

    def update(self, **fields: Any) -> int:
        """Update as Django does, and publish on commit.

        If ``tenant`` itself changes, the tenants before and after are both published.
        """
        self._for_write = True
        with transaction.atomic(using=self.db):
            before = dict(self.order_by().values_list("pk", "tenant"))
            rows = super().update(**fields)
            tenants = set(before.values())
            if "tenant" in fields:
                after = type(self)(self.model, using=self.db).in_bulk(list(before))
                tenants.update(row.tenant for row in after.values())
            rows_changed.send(self.model, tiers=False, tenants=sorted(tenants), using=self.db)
        return rows

    def bulk_create(
        self, objs: Iterable[TenantTier], *args: Any, **options: Any
    ) -> list[TenantTier]:
        """Create as Django does, and publish on commit."""
        self._for_write = True
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **options)
            tenants = [row.tenant for row in created]
            rows_changed.send(self.model, tiers=False, tenants=tenants, using=self.db)
        return created
