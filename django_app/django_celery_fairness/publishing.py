"""Publishes the rows of the database to Redis on commit; this app's only write path.

Invariant: after a commit and its publication, every later acquire uses the new number. A
transaction that is rolled back publishes nothing. Several changes in one are published once.

Invariant: no change is lost, and saving never fails because of Redis. An ``UnpublishedChange`` is
committed with each change. The next publication of any process, a starting worker, or ``manage.py
publish`` publishes it.

No lock is held, so that a Redis that hangs does not block the database. Two processes may publish
one row at the same time::

    A  commits 3, reads 3                              writes 3, reads 5, writes 5, reads 5, ends
    B                     commits 5, reads 5, writes 5, reads 5, ends

Each process reads the database again after its write, and ends only if that agrees with the write.
So the last write is the newest. One loop does this for all kinds of rows (:data:`PUBLISHERS`).

Weakness: the request that commits also publishes. With Redis away it takes longer by the timeout of
the connection, once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from django.db import router, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from celery_fairness.errors import FairnessError, LimiterUnavailable, NotWired, SettingsError
from django_celery_fairness.models import TenantTier, Tier, UnpublishedChange
from django_celery_fairness.number_fields import none_of
from django_celery_fairness.publishers import PUBLISHERS

if TYPE_CHECKING:
    from celery_fairness.wiring import Parts

logger = logging.getLogger(__name__)

#: Rows that are read in one query and written between two readings.
CHUNK = 500
#: Readings after which a publication gives up, if other writers never pause.
READINGS = 10
#: Time within which a publication normally ends. Younger changes are not reported as unpublished.
ON_ITS_WAY = timedelta(seconds=5)

NEXT_STEP = "start Redis, then run 'manage.py publish' or restart a worker"

#: A changed row: its kind, as in ``UnpublishedChange``, and its name.
Change = tuple[str, str]
#: The rows that cannot be published, each with the reason.
Rejections = dict[Change, str]

_touched = threading.local()
_Kind = UnpublishedChange.Kind


class StillChanging(FairnessError):
    """Other writers changed the same rows faster than the publication; they stay pending."""


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication.

    Attributes:
        tiers: Number of tiers in the table.
        tenants: Number of tenants that have a number of their own or a time, or whose rows changed.
        queues: Number of queues with a limit, or whose limit changed.
        overrides: Number of overrides in force, or that changed.
        by_tier: Number of tenants with the number of their tier. They need no publication, because
            the tier resolver reads their tier.
        rejected: One sentence for each row that cannot be published.
    """

    tiers: int = 0
    tenants: int = 0
    queues: int = 0
    overrides: int = 0
    by_tier: int = 0
    rejected: tuple[str, ...] = ()


def publish_on_commit(
    *,
    tiers: bool = False,
    tenants: Iterable[str] = (),
    queues: Iterable[str] = (),
    overrides: Iterable[str] = (),
    using: str | None = None,
) -> None:
    """Record that rows changed, and publish them when the transaction commits.

    The receivers do this for ``save``, ``delete`` and bulk changes. Call it yourself, in the same
    transaction, after raw SQL.

    Args:
        tiers: Whether any tier changed. The tier table is published as a whole.
        tenants: The tenants whose rows changed or were deleted.
        queues: The queues whose limits changed or were deleted.
        overrides: The keys whose overrides changed or were deleted.
        using: The database. None is the one for writing tiers.
    """
    named = {_Kind.TENANT: tenants, _Kind.QUEUE: queues, _Kind.OVERRIDE: overrides}
    changes = [(kind, name) for kind, names in named.items() for name in names]
    publish_changes([*([(_Kind.TIERS, "")] if tiers else []), *changes], using)


def publish_changes(changes: Iterable[Change], using: str | None = None) -> None:
    """Do as :func:`publish_on_commit`, for changes as pairs of kind and name."""
    alias = using or router.db_for_write(Tier)
    rows = [UnpublishedChange(kind=kind, name=name) for kind, name in dict.fromkeys(changes)]
    if not rows:
        return

    def publish() -> None:
        _publish_once(alias)

    with transaction.atomic(using=alias, savepoint=False):
        UnpublishedChange.objects.using(alias).bulk_create(rows, CHUNK)
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
        logger.warning("changes are saved but not published: %s; next step: %s", error, NEXT_STEP)


def publish_pending(using: str | None = None) -> Published:
    """Publish the pending changes.

    Args:
        using: The database. None is the one for writing tiers.

    Raises:
        FairnessError: The Celery app has no ``Fairness``, or Redis does not answer. The changes
            stay pending, with the reason.
    """
    alias = using or router.db_for_write(Tier)
    changes = _changes(alias)
    return _publish(alias, changes, None, everything=False) if changes else Published()


def publish_everything(using: str | None = None, *, parts: Parts | None = None) -> Published:
    """Publish all rows that Redis keeps, and the pending changes.

    It restores everything that Redis missed or lost, and is harmless at any time. A tenant with a
    tier, without a number of its own and without a time needs nothing in Redis. The resolver
    returns its tier, and an older record in Redis expires.

    Args:
        using: The database. None is the one for writing tiers.
        parts: The parts of a Celery app. None is the current app.

    Raises:
        FairnessError: The Celery app has no ``Fairness``, or Redis does not answer.
    """
    alias = using or router.db_for_write(Tier)
    return _publish(alias, _changes(alias), parts, everything=True)


def unpublished(using: str | None = None) -> QuerySet[UnpublishedChange]:
    """Return the changes whose publication failed, or that are older than a publication takes."""
    alias = using or router.db_for_write(Tier)
    late = timezone.now() - ON_ITS_WAY
    changes = UnpublishedChange.objects.using(alias).order_by("pk")
    return changes.filter(~Q(error="") | Q(made_at__lt=late))


def _changes(alias: str) -> dict[int, Change]:
    """Return the pending changes by the id of their row."""
    rows = UnpublishedChange.objects.using(alias).values_list("pk", "kind", "name")
    return {pk: (kind, name) for pk, kind, name in rows}


def _parts() -> Parts:
    from celery import current_app

    from celery_fairness.wiring import wired

    return wired(current_app)


def _publish(
    alias: str, changes: dict[int, Change], parts: Parts | None, *, everything: bool
) -> Published:
    changed = dict.fromkeys(changes.values())
    counts: dict[str, int] = {}
    with _settling(alias, changes) as rejections:
        parts = parts or _parts()
        for kind, publisher in PUBLISHERS.items():
            names: Iterable[str] = [name for of, name in changed if of == kind]
            if everything or kind == _Kind.TIERS:
                others = (name for name in publisher.kept(alias) if (kind, name) not in changed)
                names = chain(others, names)
            counts[kind] = 0
            for chunk in _chunks(names):
                _publish_chunk(parts, alias, kind, chunk, rejections)
                counts[kind] += len(chunk)
        _reroute(parts, alias, changed, everything=everything)
    rows = TenantTier.objects.using(alias)
    return Published(
        tiers=Tier.objects.using(alias).count(),
        tenants=counts[_Kind.TENANT],
        queues=counts[_Kind.QUEUE],
        overrides=counts[_Kind.OVERRIDE],
        by_tier=rows.filter(valid_from=None, valid_until=None, **none_of("tenant")).count()
        if everything
        else 0,
        rejected=tuple(f"{kind} {name}: {why}" for (kind, name), why in rejections.items()),
    )


def _publish_chunk(
    parts: Parts, alias: str, kind: str, names: Sequence[str], rejections: Rejections
) -> None:
    publisher = PUBLISHERS[kind]
    written: dict[str, Any] = {}
    for _ in range(READINGS):
        states = publisher.read(alias, names)
        stale = {
            name: state
            for name, state in states.items()
            if name not in written or written[name] != state
        }
        if not stale:
            return
        for name, state in stale.items():
            rejections.pop((kind, name), None)
            try:
                publisher.write(parts, name, state)
            except (LimiterUnavailable, NotWired, SettingsError):
                raise
            except (FairnessError, ValueError) as error:
                # Only this row is invalid. The others must not wait for its correction.
                rejections[kind, name] = str(error)
        written.update(stale)
    raise StillChanging(f"{kind}: rows changed while they were published; they stay pending")


def _reroute(parts: Parts, alias: str, changed: Iterable[Change], *, everything: bool) -> None:
    """Move the waiting tasks of tenants that may have another tier now."""
    tenants = dict.fromkeys(name for kind, name in changed if kind == _Kind.TENANT)
    if everything:
        # The tier of a tenant with a time may have begun or ended since the last publication.
        timed = TenantTier.objects.using(alias).with_time().values_list("tenant", flat=True)
        tenants |= dict.fromkeys(timed)
    for chunk in _chunks(tenants):
        parts.fairness.tenants.reroute(chunk)


@contextmanager
def _settling(alias: str, changes: dict[int, Change]) -> Iterator[Rejections]:
    """Remove changes if the block succeeds, and store its error with them if it fails.

    A change of a rejected row stays, with the reason, which is logged once. Changes are removed by
    id, because a row may have changed again meanwhile.
    """
    rejections: Rejections = {}
    try:
        yield rejections
    except FairnessError as error:
        for chunk in _chunks(changes):
            UnpublishedChange.objects.using(alias).filter(pk__in=chunk).update(error=str(error))
        raise
    for chunk in _chunks(pk for pk, change in changes.items() if change not in rejections):
        UnpublishedChange.objects.using(alias).filter(pk__in=chunk).delete()
    for (kind, name), why in rejections.items():
        rows = UnpublishedChange.objects.using(alias).filter(kind=kind, name=name)
        if not rows.filter(error=why).exists():
            logger.error("the %s %r cannot be published: %s", kind, name, why)
        rows.filter(pk__in=[pk for pk in changes if changes[pk] == (kind, name)]).update(error=why)


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk
