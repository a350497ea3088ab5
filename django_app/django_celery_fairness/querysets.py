"""Querysets that send a signal for bulk changes, for which Django sends none.

Invariant: ``update``, ``bulk_update`` and ``bulk_create`` send :data:`rows_changed` in their
transaction, and :mod:`.receivers` publishes the change on commit.

Weakness: raw SQL sends no signal. Code that uses it must call
:func:`django_celery_fairness.publishing.publish_on_commit` in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models, transaction
from django.db.models import ProtectedError, Q
from django.dispatch import Signal
from django.utils.translation import gettext as _

from celery_fairness.config.key_patterns import is_pattern
from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.errors import FairnessError
from django_celery_fairness import wiring

if TYPE_CHECKING:
    from django_celery_fairness.models import (
        LimitOverride,
        TenantTier,  # noqa: F401 (the text below names it)
        Tier,
    )

#: Sent in the transaction of a bulk change, with the model as sender. Its arguments are ``changes``
#: (the kind and the name of each changed row, as in ``UnpublishedChange``) and ``using`` (the alias
#: of the database).
rows_changed = Signal()

Row = TypeVar("Row", bound=models.Model)


class TierQuerySet(models.QuerySet["Tier"]):
    """Tiers; any bulk change publishes the tier table."""

    def update(self, **fields: Any) -> int:
        """Update as Django does, and publish on commit.

        A new name is a new tier to Redis, so the tenants of a renamed tier are published too.

        Raises:
            ProtectedError: The default tier is among them, and would have another name.
        """
        self._for_write = True
        if "name" in fields:
            self.exclude(name=fields["name"]).refuse_default_tier()
        with transaction.atomic(using=self.db):
            tenants = self._tenants() if "name" in fields else ()
            rows = super().update(**fields)
            changes = [*([("tiers", "")] if rows else ()), *(("tenant", name) for name in tenants)]
            rows_changed.send(self.model, changes=changes, using=self.db)
        return rows

    def bulk_create(self, objs: Iterable[Tier], *args: Any, **options: Any) -> list[Tier]:
        """Create as Django does, and publish on commit."""
        self._for_write = True
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **options)
            changes = [("tiers", "")] if created else []
            rows_changed.send(self.model, changes=changes, using=self.db)
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


class NamedRowQuerySet(models.QuerySet[Row]):
    """Rows of a ``NamedRow`` model; any bulk change publishes the rows that it touched."""

    def update(self, **fields: Any) -> int:
        """Update as Django does, and publish on commit.

        If the name itself changes, the names before and after are both published.
        """
        self._for_write = True
        column = self._model.name_field
        with transaction.atomic(using=self.db):
            before = dict(self.order_by().values_list("pk", column))
            rows = super().update(**fields)
            names = set(before.values())
            if column in fields:
                after = type(self)(self.model, using=self.db).in_bulk(list(before))
                names.update(getattr(row, column) for row in after.values())
            self._send(sorted(names))
        return rows

    def bulk_create(self, objs: Iterable[Row], *args: Any, **options: Any) -> list[Row]:
        """Create as Django does, and publish on commit."""
        self._for_write = True
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **options)
            self._send([getattr(row, self._model.name_field) for row in created])
        return created

    @property
    def _model(self) -> Any:
        return self.model

    def _send(self, names: Iterable[str]) -> None:
        changes = [(self._model.kind, name) for name in names]
        rows_changed.send(self.model, changes=changes, using=self.db)


class TenantTierQuerySet(NamedRowQuerySet["TenantTier"]):
    """Tenants, some of them only for a time."""

    def in_force(self, now: datetime) -> TenantTierQuerySet:
        """Return the rows that apply now. Any other row counts as no row."""
        return self.filter(tenant_in_force(now))

    def with_time(self) -> TenantTierQuerySet:
        """Return the rows that have a beginning or an end."""
        return self.exclude(valid_from=None, valid_until=None)


def tenant_in_force(now: datetime) -> Q:
    """Return the condition of a tenant's row that applies now."""
    begun = Q(valid_from=None) | Q(valid_from__lte=now)
    return begun & (Q(valid_until=None) | Q(valid_until__gt=now))


class LimitOverrideQuerySet(NamedRowQuerySet["LimitOverride"]):
    """Overrides, some of them only for a time."""

    def in_force(self, now: datetime) -> LimitOverrideQuerySet:
        """Return the overrides that have not ended."""
        return self.filter(Q(ends_at=None) | Q(ends_at__gt=now))

    def of_key(self, key: str, in_redis: str) -> list[LimitOverride]:
        """Return the rows of a key in any of its forms, ended ones too.

        Args:
            key: The key, as a person writes it or as Redis has it.
            in_redis: The key as Redis has it.
        """
        texts = {each for each in (key, in_redis) if "\0" not in each}
        rows = list(self.filter(key__in=texts))
        if ":h_" in in_redis:
            # A hash has replaced a name. The row may have the name.
            kind = in_redis.partition(":")[0]
            others = self.filter(key__startswith=f"{kind}:").exclude(key__in=texts)
            rows += [row for row in others if _hashed(row.key) == in_redis]
        return rows

    def other_forms(self, key: str) -> list[LimitOverride]:
        """Return the rows of a key that have another form of it: a name, or the hash of it."""
        forms = {key, _hashed(key) or key}
        rows = {row.pk: row for form in forms for row in self.of_key(key, form)}
        return [row for row in rows.values() if row.key != key]


def _hashed(key: str) -> str:
    """Return the form in Redis of a key with a name that Redis does not have as it is."""
    from celery_fairness.control.key.inspector import typed_key

    if key.startswith(PREFIX) and not is_pattern(key):
        return queue_key(key.removeprefix(PREFIX))
    try:
        return typed_key(key, wiring.settings_in_force(), patterns=True)[0]
    except (FairnessError, ValueError):
        return ""
