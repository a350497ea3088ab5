"""How each kind of rows reaches Redis: what is read from the database, and what is written.

Invariant: a state has everything that its write uses, so two equal states need no second write. A
row that is out of its time has the state of a row that does not exist.

Weakness: a row of the database replaces an override or a queue's limit that a command has set for
the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils import timezone

from celery_fairness.config.numbers import PARTITION, columns_of, numbers_of, read_given
from celery_fairness.errors import NotFound, TenantInvalid
from celery_fairness.util.durations import milliseconds
from django_celery_fairness.models import (
    LimitOverride,
    QueueLimit,
    TenantTier,
    Tier,
    UnpublishedChange,
)
from django_celery_fairness.number_fields import given_in, none_of

if TYPE_CHECKING:
    from celery_fairness.control.key.views import Override
    from celery_fairness.wiring import Parts


@dataclass(frozen=True, slots=True)
class Publisher:
    """How the rows of one kind reach Redis.

    Attributes:
        read: Returns the state of each name, in one query. None if there is no row in force.
        write: Writes one state to Redis.
        kept: Returns the names whose states Redis keeps, so that they are restored if it lost them.
    """

    read: Callable[[str, Sequence[str]], Mapping[str, Any]]
    write: Callable[[Parts, str, Any], None]
    kept: Callable[[str], Iterable[str]]


class TenantState(NamedTuple):
    """The row of one tenant.

    Attributes:
        tier: The name of its tier.
        own: The tenant's own numbers by field, in place of the tier's.
        valid_from: When the row began to apply, or None.
        valid_until: When the row ends, or None.
    """

    tier: str
    own: Mapping[str, Any] = {}
    valid_from: datetime | None = None
    valid_until: datetime | None = None


class OverrideState(NamedTuple):
    """The override of one key.

    Attributes:
        texts: Its numbers by field.
        ends_at: Its end, or None.
        reason: Why.
        author_name: Who saved it.
    """

    texts: Mapping[str, str]
    ends_at: datetime | None
    reason: str
    author_name: str


def _read_tiers(alias: str, names: Sequence[str]) -> Mapping[str, tuple[tuple[Any, ...], ...]]:
    """Return the whole table as the state of the one name, ""."""
    rows = Tier.objects.using(alias).order_by("name").values_list(*_TIER_FIELDS)
    return dict.fromkeys(names, tuple(rows))


def _write_tiers(parts: Parts, _name: str, rows: tuple[tuple[Any, ...], ...]) -> None:
    table = [Tier(**dict(zip(_TIER_FIELDS, row, strict=True))).published() for row in rows]
    parts.fairness.tenants.publish_tiers(table, source="database")


def _read_tenants(alias: str, tenants: Sequence[str]) -> Mapping[str, TenantState | None]:
    rows = TenantTier.objects.using(alias).in_force(timezone.now()).filter(tenant__in=tenants)
    fields = ("tenant", "tier__name", "valid_from", "valid_until", *numbers_of("tenant"))
    found = {
        row["tenant"]: TenantState(
            row["tier__name"], given_in("tenant", row), row["valid_from"], row["valid_until"]
        )
        for row in rows.values(*fields)
    }
    return {tenant: found.get(tenant) for tenant in tenants}


def _write_tenant(parts: Parts, tenant: str, state: TenantState | None) -> None:
    # A tenant without a row has the default tier. Publish that, because after a mere removal each
    # worker would use its cached tier once more.
    state = state or TenantState(parts.settings.default_tier)
    # ``tenants.set_tier`` would reject a tier that Redis does not have, and move tasks one by one.
    version = parts.limiter.publish_tenant(
        tenant,
        state.tier,
        read_given("tenant", state.own),
        keep=state.valid_from is not None or state.valid_until is not None,
        ends_ms=_unix_ms(state.valid_until),
    )
    parts.tier_cache.set_version(version)


def _kept_tenants(alias: str) -> Iterable[str]:
    """Return the tenants that the resolver is not enough for."""
    rows = TenantTier.objects.using(alias).in_force(timezone.now()).order_by("pk")
    kept = rows.exclude(valid_from=None, valid_until=None, **none_of("tenant"))
    return kept.values_list("tenant", flat=True).iterator(chunk_size=1000)


def _read_queues(alias: str, queues: Sequence[str]) -> Mapping[str, tuple[Any, ...] | None]:
    rows = QueueLimit.objects.using(alias).filter(queue__in=queues)
    found = {queue: tuple(row) for queue, *row in rows.values_list("queue", *_QUEUE_FIELDS)}
    return {queue: found.get(queue) for queue in queues}


def _write_queue(parts: Parts, queue: str, state: tuple[Any, ...] | None) -> None:
    if state is None:
        parts.fairness.queues.clear_limit(queue)
        return
    given = dict(zip(_QUEUE_FIELDS, state, strict=True))
    row = QueueLimit(queue=queue, **given)
    numbers = row.numbers()
    present = parts.limiter.queue_rows().get(queue)
    # The same limit again would write an event, and make every process read all limits again.
    if present is None or present.chosen != numbers.chosen:
        parts.fairness.queues.set_limit(queue, **row.given())


def _kept_queues(alias: str) -> Iterable[str]:
    return QueueLimit.objects.using(alias).order_by("pk").values_list("queue", flat=True)


def _read_overrides(alias: str, keys: Sequence[str]) -> Mapping[str, OverrideState | None]:
    rows = LimitOverride.objects.using(alias).in_force(timezone.now()).filter(key__in=keys)
    others = ("ends_at", "reason", "author_name")
    found = {
        row["key"]: OverrideState(given_in("override", row), *(row[name] for name in others))
        for row in rows.values("key", *others, *numbers_of("override"))
    }
    return {key: found.get(key) for key in keys}


def _write_override(parts: Parts, key: str, state: OverrideState | None) -> None:
    limits = parts.fairness.limits
    if state is None:
        # Nothing was published under an invalid key.
        with suppress(ValueError, TenantInvalid):
            limits.clear_override(key)
        return
    row = LimitOverride(ends_at=state.ends_at, **state.texts)
    reason, author = state.reason or None, state.author_name or None
    try:
        present = limits.inspect(key).override
    except NotFound:
        present = None
    details = None if present is None else (present.reason, present.by)
    # The same override again would write an event.
    if not (in_redis(row, present) and details == (reason, author)):
        limits.override(key, **row.numbers(), until=state.ends_at, reason=reason, by=author)


def in_redis(row: LimitOverride, present: Override | None) -> bool:
    """Return whether the override of a key in Redis has the numbers and the end of a row.

    Raises:
        PolicyInvalid: A number of the row is invalid.
    """
    numbers = numbers_of("override")
    wanted = {word: numbers[word].kind.to_ojs(value) for word, value in row.numbers().items()}
    if present is None or present.pattern is not None:
        return False
    ends = _unix_ms(present.expires_at), _unix_ms(row.ends_at)
    return present.numbers == wanted and ends[0] == ends[1]


def _kept_overrides(alias: str) -> Iterable[str]:
    rows = LimitOverride.objects.using(alias).in_force(timezone.now()).order_by("pk")
    return rows.values_list("key", flat=True)


def _unix_ms(when: datetime | None) -> int | None:
    return None if when is None else milliseconds(when.timestamp())


_TIER_FIELDS = ("name", *numbers_of("tier"), "queue_class")
_QUEUE_FIELDS = (*columns_of("queue"), *columns_of(PARTITION), "on_limit")

#: By kind, in the order of a publication. The table of tiers is first: a Redis that lost its memory
#: would have a tenant without its tier. An unchanged table costs nothing and gets no new version.
PUBLISHERS: Mapping[str, Publisher] = {
    UnpublishedChange.Kind.TIERS: Publisher(_read_tiers, _write_tiers, lambda _alias: [""]),
    UnpublishedChange.Kind.TENANT: Publisher(_read_tenants, _write_tenant, _kept_tenants),
    UnpublishedChange.Kind.QUEUE: Publisher(_read_queues, _write_queue, _kept_queues),
    UnpublishedChange.Kind.OVERRIDE: Publisher(_read_overrides, _write_override, _kept_overrides),
}
