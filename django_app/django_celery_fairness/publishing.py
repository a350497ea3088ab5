"""Publishes tiers and tenants of the database to Redis on commit; this app's only write path.

Invariant: after a commit and its publication, every later acquire uses the new number. A
transaction that is rolled back publishes nothing. Several changes in one are published once.

Invariant: no change is lost, and saving never fails because of Redis. An ``UnpublishedChange`` is
committed with each change. The next publication of any process, a starting worker, or ``manage.py
publish_tiers`` publishes it.

No lock is held, so that a Redis that hangs does not block the database. Two processes may publish
one tenant at the same time::

    A  commits 3, reads 3                              writes 3, reads 5, writes 5, reads 5, ends
    B                     commits 5, reads 5, writes 5, reads 5, ends

Each process reads the database again after its write, and ends only if that agrees with the write.
So the last write is the newest.

Weakness: the request that commits also publishes. With Redis away it takes longer by the timeout of
the connection, once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from django.db import router, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from celery_fairness.errors import FairnessError
from django_celery_fairness.models import TenantTier, Tier, UnpublishedChange

if TYPE_CHECKING:
    from celery_fairness.config.tiers import Tier as PublishedTier
    from celery_fairness.wiring import Parts

logger = logging.getLogger(__name__)

#: Tenants that are read in one query and written between two readings.
CHUNK = 500
#: Readings after which a publication gives up, if other writers never pause.
READINGS = 10
#: Time within which a publication normally ends. Younger changes are not reported as unpublished.
ON_ITS_WAY = timedelta(seconds=5)

NEXT_STEP = "start Redis, then run 'manage.py publish_tiers' or restart a worker"

_touched = threading.local()


class StillChanging(FairnessError):
    """Other writers changed the same rows faster than the publication; they stay pending."""


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication.

    Attributes:
        tiers: Number of tiers in the table.
        tenants: Number of tenants that have their own number, or whose rows changed.
        by_tier: Number of tenants with the number of their tier. They need no publication, because
            the tier resolver reads their tier.
    """

    tiers: int
    tenants: int
    by_tier: int = 0


@dataclass(frozen=True, slots=True)
class TenantState:
    """The row of one tenant; ``tier`` is None if there is no row."""

    tier: str | None
    concurrency: int | None = None


def publish_on_commit(
    *, tiers: bool = False, tenants: Iterable[str] = (), using: str | None = None
) -> None:
    """Record that tiers or tenants changed, and publish them when the transaction commits.

    The receivers call it for ``save``, ``delete`` and bulk changes. Call it yourself, in the same
    transaction, after raw SQL.

    Args:
        tiers: Whether any tier changed. The tier table is published as a whole.
        tenants: The tenants whose rows changed or were deleted.
        using: The database. None is the one for writing tiers.
    """
    alias = using or router.db_for_write(Tier)
    changed = [*([""] if tiers else []), *dict.fromkeys(tenants)]
    if not changed:
        return

    def publish() -> None:
        _publish_once(alias)

    with transaction.atomic(using=alias, savepoint=False):
        changes = UnpublishedChange.objects.using(alias)
        changes.bulk_create([UnpublishedChange(tenant=tenant) for tenant in changed], CHUNK)
        # One callback for each change: the rollback of a savepoint drops only its own callbacks.
        setattr(_touched, alias, True)
        transaction.on_commit(publish, using=alias, robust=True)


def _publish_once(alias: str) -> None:
    """Publish in the first callback of a transaction; the others do nothing."""
    if not getattr(_touched, alias, False):
        return
    setattr(_touched, alias, False)
    try:
        publish_pending(alias)
    except FairnessError as error:
        logger.warning("tiers are saved but not published: %s; next step: %s", error, NEXT_STEP)


def publish_pending(using: str | None = None) -> Published:
    """Publish the pending changes.

    Args:
        using: The database. None is the one for writing tiers.

    Raises:
        FairnessError: The Celery app has no ``Fairness``, or Redis does not answer. The changes
            stay pending, with the reason.
    """
    alias = using or router.db_for_write(Tier)
    changes = list(UnpublishedChange.objects.using(alias).values_list("pk", "tenant"))
    if not changes:
        return Published(0, 0)
    with _Settling(alias, [pk for pk, _ in changes]):
        parts = _parts()
        # Always the table first: a Redis that lost its memory would have a tenant without its tier.
        # An unchanged table costs nothing and gets no new version.
        tiers = _publish_tier_table(parts, alias)
        tenants = _publish_changed(parts, alias, [name for _, name in changes])
    return Published(tiers, tenants)


def publish_everything(using: str | None = None, *, parts: Parts | None = None) -> Published:
    """Publish the tier table, every tenant with a number of its own, and the pending changes.

    It restores everything that Redis missed or lost, and is harmless at any time. A tenant with a
    tier and without a number of its own needs nothing in Redis. The resolver returns its tier, and
    an older record in Redis expires.

    Args:
        using: The database. None is the one for writing tiers.
        parts: The parts of a Celery app. None is the current app.

    Raises:
        FairnessError: The Celery app has no ``Fairness``, or Redis does not answer.
    """
    alias = using or router.db_for_write(Tier)
    changes = list(UnpublishedChange.objects.using(alias).values_list("pk", "tenant"))
    with _Settling(alias, [pk for pk, _ in changes]):
        parts = parts or _parts()
        tiers = _publish_tier_table(parts, alias)
        changed = {name: None for _, name in changes}
        rows = TenantTier.objects.using(alias).order_by("pk")
        own = rows.exclude(concurrency=None).values_list("tenant", flat=True)
        others = (name for name in own.iterator(chunk_size=CHUNK) if name not in changed)
        tenants = _publish_tenants(parts, alias, others)
        tenants += _publish_changed(parts, alias, list(changed))
    return Published(tiers, tenants, rows.filter(concurrency=None).count())


def unpublished(using: str | None = None) -> QuerySet[UnpublishedChange]:
    """Return the changes whose publication failed, or that are older than a publication takes."""
    alias = using or router.db_for_write(Tier)
    late = timezone.now() - ON_ITS_WAY
    changes = UnpublishedChange.objects.using(alias).order_by("pk")
    return changes.filter(~Q(error="") | Q(made_at__lt=late))


def _parts() -> Parts:
    from celery import current_app

    from celery_fairness.wiring import wired

    return wired(current_app)


class _Settling:
    """Remove changes if the block succeeds, and store its error with them if it fails."""

    def __init__(self, alias: str, changes: list[int]) -> None:
        self._alias, self._changes = alias, changes

    def __enter__(self) -> None:
        """Nothing to do before."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove changes by id, because a tenant may have changed again meanwhile."""
        remaining = iter(self._changes)
        while chunk := list(islice(remaining, CHUNK)):
            rows = UnpublishedChange.objects.using(self._alias).filter(pk__in=chunk)
            if error is None:
                rows.delete()
            elif isinstance(error, FairnessError):
                rows.update(error=str(error))


def _publish_tier_table(parts: Parts, alias: str) -> int:
    def read() -> list[PublishedTier]:
        return [tier.published() for tier in Tier.objects.using(alias).order_by("name")]

    table = read()
    for _ in range(READINGS):
        parts.fairness.tenants.publish_tiers(table, source="database")
        before, table = table, read()
        if table == before:
            return len(table)
    raise StillChanging("the tier table changed while it was published; it stays pending")


def _publish_changed(parts: Parts, alias: str, names: list[str]) -> int:
    """Publish tenants that may have another tier now, and reroute their waiting tasks."""
    count = _publish_tenants(parts, alias, dict.fromkeys(names))
    for chunk in _chunks(filter(None, dict.fromkeys(names))):
        parts.fairness.tenants.reroute(chunk)
    return count


def _publish_tenants(parts: Parts, alias: str, tenants: Iterable[str]) -> int:
    count = 0
    for chunk in _chunks(filter(None, tenants)):
        _publish_chunk(parts, alias, chunk)
        count += len(chunk)
    return count


def _publish_chunk(parts: Parts, alias: str, tenants: list[str]) -> None:
    written: dict[str, TenantState] = {}
    for _ in range(READINGS):
        states = _read_tenants(alias, tenants)
        stale = {name: state for name, state in states.items() if written.get(name) != state}
        if not stale:
            return
        for name, state in stale.items():
            _publish_tenant(parts, name, state)
        written.update(stale)
    raise StillChanging("tenants changed while they were published; they stay pending")


def _publish_tenant(parts: Parts, tenant: str, state: TenantState) -> None:
    # A tenant without a row has the default tier. Publish that, because after a mere removal each
    # worker would use its cached tier once more.
    tier = state.tier or parts.settings.default_tier
    number = "" if state.concurrency is None else state.concurrency
    # ``tenants.set_tier`` would reject a tier that Redis does not have, and move tasks one by one.
    parts.limiter.publish_tenant(tenant, tier, number)


def _read_tenants(alias: str, tenants: list[str]) -> dict[str, TenantState]:
    rows = TenantTier.objects.using(alias).filter(tenant__in=tenants)
    found = {
        tenant: TenantState(tier, concurrency)
        for tenant, tier, concurrency in rows.values_list("tenant", "tier__name", "concurrency")
    }
    return {tenant: found.get(tenant, TenantState(None)) for tenant in tenants}


def _chunks(tenants: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(tenants)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk
