"""Querysets whose bulk operations count as changes, as ``save`` and ``delete`` do.

Invariant: ``update``, ``bulk_update`` and ``bulk_create`` of tiers and tenants are published on
commit. (``save`` and ``delete`` are seen by signals: :mod:`.receivers`.)

Weakness: raw SQL is not seen; who uses it calls
:func:`django_celery_fairness.publishing.publish_on_commit` in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import ProtectedError
from django.utils.translation import gettext as _

from django_celery_fairness import wiring

if TYPE_CHECKING:
    from django_celery_fairness.models import TenantTier, Tier


class TierQuerySet(models.QuerySet["Tier"]):
    """Tiers; any bulk change publishes the tier table."""

    def update(self, **fields: Any) -> int:
        """Update as Django does, and publish on commit.

        A new name is a new tier to Redis, so the tenants of a renamed tier are published too.
        """
        from django_celery_fairness.publishing import publish_on_commit

        self._for_write = True
        with transaction.atomic(using=self.db):
            tenants = self._tenants() if "name" in fields else ()
            rows = super().update(**fields)
            publish_on_commit(tiers=bool(rows), tenants=tenants, using=self.db)
        return rows

    update.alters_data = True  # type: ignore[attr-defined]  # a mark that Django reads

    def bulk_create(self, objs: Iterable[Tier], *args: Any, **options: Any) -> list[Tier]:
        """Create as Django does, and publish on commit."""
        from django_celery_fairness.publishing import publish_on_commit

        self._for_write = True
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **options)
            publish_on_commit(tiers=bool(created), using=self.db)
        return created

    bulk_create.alters_data = True  # type: ignore[attr-defined]  # a mark that Django reads

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete as Django does.

        Raises:
            ProtectedError: The default tier is among them, or a tenant has one of them.
        """
        self.refuse_default_tier()
        return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]  # a mark that Django reads
    delete.queryset_only = True  # type: ignore[attr-defined]  # a mark that Django reads

    def refuse_default_tier(self) -> None:
        """Refuse a change that would leave unknown tenants without a tier.

        Raises:
            ProtectedError: The default tier is among these.
        """
        name = wiring.default_tier()
        tier = self.order_by().filter(name=name).first()
        if tier is not None:
            message = _("“%(name)s” is the default tier (setting default_tier): it cannot go.")
            raise ProtectedError(message % {"name": name}, {tier})

    def _tenants(self) -> list[str]:
        from django_celery_fairness.models import TenantTier

        tiers = self.order_by().values("pk")
        rows = TenantTier.objects.using(self.db).filter(tier__in=tiers)
        return list(rows.order_by().values_list("tenant", flat=True))


class TenantTierQuerySet(models.QuerySet["TenantTier"]):
    """Tenants; any bulk change publishes the tenants it touched."""

    def update(self, **fields: Any) -> int:
        """Update as Django does, and publish on commit.

        Where ``tenant`` itself changes, the tenants before and after are both published.
        """
        from django_celery_fairness.publishing import publish_on_commit

        self._for_write = True
        with transaction.atomic(using=self.db):
            before = dict(self.order_by().values_list("pk", "tenant"))
            rows = super().update(**fields)
            tenants = set(before.values())
            if "tenant" in fields:
                after = type(self)(self.model, using=self.db).in_bulk(list(before))
                tenants.update(row.tenant for row in after.values())
            publish_on_commit(tenants=sorted(tenants), using=self.db)
        return rows

    update.alters_data = True  # type: ignore[attr-defined]  # a mark that Django reads

    def bulk_create(
        self, objs: Iterable[TenantTier], *args: Any, **options: Any
    ) -> list[TenantTier]:
        """Create as Django does, and publish on commit."""
        from django_celery_fairness.publishing import publish_on_commit

        self._for_write = True
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **options)
            publish_on_commit(tenants=[row.tenant for row in created], using=self.db)
        return created

    bulk_create.alters_data = True  # type: ignore[attr-defined]  # a mark that Django reads
