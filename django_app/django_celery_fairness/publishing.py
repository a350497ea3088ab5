"""The one write path: what the database says about tiers and tenants goes to Redis on commit.

Invariant: once a change is committed and its publication has ended, every later acquire uses the
new number; a transaction that is rolled back publishes nothing; several changes in one transaction
are published once. A change that could not be published is not lost: its ``UnpublishedChange`` was
committed with it, and the next publication of any process, a starting worker, or ``manage.py
publish_tiers`` makes up for it. Saving never fails because of Redis.

Two processes that publish one tenant at the same time (no lock is held, so that a Redis that hangs
makes nobody queue at the database)::

    A  commits 3, reads 3                              writes 3, reads 5, writes 5, reads 5, ends
    B                     commits 5, reads 5, writes 5, reads 5, ends

Each reads again after it wrote and ends only when both agree, so the last write is the newest.

Weakness: publication is part of the request that commits. With Redis away that request takes the
connection's timeout longer, once.
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
    from celery_fairness.wiring import Wiring

logger = logging.getLogger(__name__)

#: Tenants that are read in one query and written between two readings.
CHUNK = 500
#: Readings after which a publication gives up agreeing with writers that never pause.
READINGS = 10
#: An unpublished change younger than this may just be on its way.
ON_ITS_WAY = timedelta(seconds=5)

NEXT_STEP = "start Redis, then run 'manage.py publish_tiers' or restart a worker"

_touched = threading.local()


class StillChanging(FairnessError):
    """Writers changed the same rows faster than they could be published; they stay pending."""


@dataclass(frozen=True, slots=True)
class Published:
    """How much a publication wrote.

    Attributes:
        tiers: Tiers of the table.
        tenants: Tenants with a number of their own, and those whose rows changed.
        by_tier: Tenants with the number of their tier. They need no publication: the tier resolver
            reads their tier.
    """

    tiers: int
    tenants: int
    by_tier: int = 0


@dataclass(frozen=True, slots=True)
class TenantState:
    """What one tenant's row says; ``tier`` None where there is no row."""

    tier: str | None
    concurrency: int | None = None


def publish_on_commit(
    *, tiers: bool = False, tenants: Iterable[str] = (), using: str | None = None
) -> None:
    """Note that tiers or tenants changed, and publish them when the transaction commits.

    ``save``, ``delete``, ``update`` and the bulk methods of the models call it. Call it yourself,
    in the same transaction, after raw SQL.

    Args:
        tiers: Whether any tier changed; the tier table is published as a whole.
        tenants: The tenants whose rows changed, or are gone.
        using: The database; the one that tiers are written to where None.
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
        # One callback for each change: one that a savepoint takes back must not take others along.
        setattr(_touched, alias, True)
        transaction.on_commit(publish, using=alias, robust=True)


def _publish_once(alias: str) -> None:
    """Publish when the first callback of a transaction runs; the others find nothing to do."""
    if not getattr(_touched, alias, False):
        return
    setattr(_touched, alias, False)
    try:
        publish_pending(alias)
    except FairnessError as error:
        logger.warning("tiers are saved but not published: %s; next step: %s", error, NEXT_STEP)


def publish_pending(using: str | None = None) -> Published:
    """Publish what was changed and not published yet.

    Args:
        using: The database; the one that tiers are written to where None.

    Raises:
        FairnessError: Not wired, or Redis does not answer; the changes stay pending, with the
            reason.
    """
    alias = using or router.db_for_write(Tier)
    changes = list(UnpublishedChange.objects.using(alias).values_list("pk", "tenant"))
    if not changes:
        return Published(0, 0)
    with _settling(alias, [pk for pk, _ in changes]):
        parts = _parts()
        # The table goes first, whatever changed: a Redis that lost its memory would know a tenant
        # and not its tier. A table that is there already costs nothing and is no news.
        tiers = _publish_tier_table(parts, alias)
        tenants = _publish_changed(parts, alias, [name for _, name in changes])
    return Published(tiers, tenants)


def publish_everything(using: str | None = None, *, parts: Wiring | None = None) -> Published:
    """Publish the tier table, every tenant with a number of its own, and what is pending.

    It heals whatever Redis missed or lost, and is harmless at any time. A tenant that has a tier
    and no number of its own needs nothing in Redis: the resolver answers for it, and an older
    answer goes from Redis by itself.

    Args:
        using: The database; the one that tiers are written to where None.
        parts: The parts of a Celery app; None: of the current app.

    Raises:
        FairnessError: Not wired, or Redis does not answer.
    """
    alias = using or router.db_for_write(Tier)
    changes = list(UnpublishedChange.objects.using(alias).values_list("pk", "tenant"))
    with _settling(alias, [pk for pk, _ in changes]):
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
    """Return the changes that failed to reach Redis, or are older than a publication takes."""
    alias = using or router.db_for_write(Tier)
    late = timezone.now() - ON_ITS_WAY
    changes = UnpublishedChange.objects.using(alias).order_by("pk")
    return changes.filter(~Q(error="") | Q(made_at__lt=late))


def _parts() -> Wiring:
    from celery import current_app

    from celery_fairness.wiring import wired

    return wired(current_app)


class _settling:  # noqa: N801 (it is used as a function)
    """Remove these changes when the block succeeds; write down why when it does not."""

    def __init__(self, alias: str, changes: list[int]) -> None:
        self._alias, self._changes = alias, changes

    def __enter__(self) -> None:
        """Nothing to do before."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove by id: the same tenant changed again meanwhile is another change."""
        remaining = iter(self._changes)
        while chunk := list(islice(remaining, CHUNK)):
            rows = UnpublishedChange.objects.using(self._alias).filter(pk__in=chunk)
            if error is None:
                rows.delete()
            elif isinstance(error, FairnessError):
                rows.update(error=str(error))


def _publish_tier_table(parts: Wiring, alias: str) -> int:
    def read() -> list[PublishedTier]:
        return [tier.published() for tier in Tier.objects.using(alias).order_by("name")]

    table = read()
    for _ in range(READINGS):
        parts.fairness.tenants.publish_tiers(table, source="database")
        before, table = table, read()
        if table == before:
            return len(table)
    raise StillChanging("the tier table changed while it was published; it stays pending")


def _publish_changed(parts: Wiring, alias: str, names: list[str]) -> int:
    """Publish tenants that may have another tier now: what waits of them is routed again."""
    count = _publish_tenants(parts, alias, dict.fromkeys(names))
    for chunk in _chunks(filter(None, dict.fromkeys(names))):
        parts.fairness.tenants.reroute(chunk)
    return count


def _publish_tenants(parts: Wiring, alias: str, tenants: Iterable[str]) -> int:
    count = 0
    for chunk in _chunks(filter(None, tenants)):
        _publish_chunk(parts, alias, chunk)
        count += len(chunk)
    return count


def _publish_chunk(parts: Wiring, alias: str, tenants: list[str]) -> None:
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


def _publish_tenant(parts: Wiring, tenant: str, state: TenantState) -> None:
    # A tenant without a row has the default tier. That is said, not forgotten: after a mere
    # "forget" each worker would judge once more by the tier that it remembers.
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
