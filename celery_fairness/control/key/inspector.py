"""Inspects keys: those that operators name, and those that exist.

The function ``inspect`` of the library returns all facts of one moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from celery_fairness.config.key_patterns import check_pattern, is_pattern
from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.numbers import write_numbers
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Settings
from celery_fairness.config.tenants import (
    KEY_CHARACTERS,
    KEY_PATTERN,
    normalise,
    read_tier_key,
    reserved,
    tier_key,
)
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import NAMES_COUNT, Reader, logical_now
from celery_fairness.control.installation.task_records import is_tenants, keys_of_row
from celery_fairness.control.key.snapshot import read_inspection
from celery_fairness.control.key.views import Inspection, InspectionPage, Pagination
from celery_fairness.errors import NotFound, got
from celery_fairness.limiter.tier_cache import TierAnswer
from celery_fairness.scheduler.types import SYSTEM

#: Leases on a page.
ROWS = 100
#: If more keys are known, their names are read once for many pages.
READ_ANEW = 1000
#: Such names are used for this many times the seconds that it took to read them.
USED_FOR = 20
#: But not for more seconds than this, however slow Redis was.
USED_AT_MOST = 30.0
_NOT_KNOWN = (
    "is not known: nothing holds it, nothing of it waits, it is forgotten, or no task had it yet; "
    "a tenant's key is tenant:{tenant}"
)


class _Names(NamedTuple):
    """The names of all known keys, and the monotonic time until which they are used."""

    names: Sequence[str]
    until: float


class Inspector:
    """Inspects keys of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._settings = installation.settings
        self._names = _Names((), 0.0)

    def inspect(self, key: str, page: int = 1, *, known: bool = True) -> Inspection:
        """Return the state of a key; see ``LimitsApi.inspect``.

        Args:
            key: The key, as a person writes it.
            page: The number of the page of leases.
            known: Whether an unknown key is an error.

        Raises:
            NotFound: Nothing is known of the key.
            ValueError: The key has another form.
        """
        found = self._of_text(key, self._installation.declared(key), (page - 1) * ROWS)
        if known and not (found.known or is_tenants(found.key)):
            raise NotFound("key", key, _NOT_KNOWN)
        return found

    def page(
        self,
        page: int,
        per_page: int,
        keep: Callable[[str], bool] | None = None,
        also: Collection[str] = (),
    ) -> InspectionPage:
        """Return a page of the known keys; see ``LimitsApi.list``.

        Args:
            page: The number of the page.
            per_page: Most keys on a page.
            keep: Whether a key belongs to the list. None: each does.
            also: Further keys in their form in Redis.
        """
        keys = self._known_names()
        if also:
            keys = sorted([*keys, *{*also}.difference(keys)])
        if keep is not None:
            keys = list(filter(keep, keys))
        some = keys[(page - 1) * per_page : page * per_page]
        return InspectionPage(
            items=tuple(map(self._of_known, some)),
            pagination=Pagination(total=len(keys), page=page, per_page=per_page),
        )

    def _known_names(self) -> Sequence[str]:
        """Return the names of the known keys in their order.

        No table has them in this order, and an index would make each task dearer. So a list of many
        names may be some seconds old, and a client that turns its pages reads them once.
        """
        began = time.monotonic()
        if began < self._names.until:
            return self._names.names
        names = tuple(sorted({*_known_keys(self._installation.reader)} - {SYSTEM}))
        now = time.monotonic()
        if len(names) > READ_ANEW:
            self._names = _Names(names, now + min(USED_AT_MOST, USED_FOR * (now - began)))
        return names

    def of_tenant(self, tenant: str, tier: str, service: str | None) -> Inspection:
        """Return the state of a tenant's key without a call of the resolver."""
        return self._look(tier_key(tenant, service), tenant, tier)

    def _of_text(self, key: str, declared: Limit | None, first: int) -> Inspection:
        kind, _, name = key.partition(":")
        if key == SYSTEM and self._installation.claims:
            return self._look(key, first=first).model_copy(update={"weight": 1.0})
        if kind == "queue" and name and not KEY_PATTERN.fullmatch(key) and not is_pattern(key):
            key = queue_key(name)
        name, who = typed_key(key, self._settings, patterns=True)
        if who is None:
            return self._look(name, declared=declared, first=first)
        return self._by_next_task(name, who, declared, first)

    def _of_known(self, key: str) -> Inspection:
        """Return the state of a key in its form in Redis."""
        declared = self._installation.declared(key)
        kind, _, written = key.partition(":")
        if kind != "tenant":
            return self._look(key, declared=declared)
        if self._settings.tier_scope == "service":
            written = written.rpartition(":")[0]
        return self._by_next_task(key, reserved(written), declared)

    def _by_next_task(
        self, key: str, who: str, declared: Limit | None, first: int = 0
    ) -> Inspection:
        """Return the state of a tenant's key, with the tier that applies to its next task.

        Args:
            key: The key.
            who: The tenant, or its hash if the tenant is unknown.
            declared: The limit that this app declares for the key.
            first: Index of the first lease.
        """
        self._installation.tier_cache.look()
        answer = self._waits_by(key) or self._installation.tier_cache.answer(who)
        tier = "" if answer.unknown else answer.tier
        return self._look(key, who, tier, unknown=answer.unknown, declared=declared, first=first)

    def _waits_by(self, key: str) -> TierAnswer | None:
        """Return the tier of a tenant's waiting tasks. Then nobody needs the resolver."""
        if not self._installation.claims:
            return None
        reader = self._installation.reader.parts_of_key(key)[0]
        tier = reader.read("HGET", reader.keys.of("tenant_state", key), "tier")
        return TierAnswer(tier) if tier else None

    def _look(
        self,
        key: str,
        who: str = "",
        tier: str = "",
        *,
        unknown: str = "",
        declared: Limit | None = None,
        first: int = 0,
    ) -> Inspection:
        app = "" if declared is None else write_numbers(dict(declared.numbers))
        answer = self._installation.limiter.look(key, who, tier, app, first)
        return read_inspection(answer, unknown=unknown, declared=declared is not None)


def typed_key(
    key: Any,
    settings: Settings,
    *,
    tenants: bool = True,
    of_all: bool = True,
    patterns: bool = False,
) -> tuple[str, str | None]:
    """Return a key in its form in Redis, and the tenant whose key it is, or None.

    Args:
        key: The key, as a person writes it.
        settings: The settings in force.
        tenants: Whether a tenant's key is allowed.
        of_all: Whether the key of all services of a tenant is allowed, if each counts apart.
        patterns: Whether a pattern is allowed (:mod:`celery_fairness.config.key_patterns`).

    Raises:
        TenantInvalid: Its tenant is not valid.
        ValueError: The key has another form.
    """
    if is_pattern(key):
        if not patterns:
            raise ValueError(
                "key: expected one key, because a pattern stops keys that nobody thinks of; only "
                f"an override takes one, got: {got(key)}"
            )
        check_pattern(key)
        return str(key), None
    kind = key.partition(":")[0] if isinstance(key, str) else ""
    if kind == "tenant" and tenants:
        by_service = settings.tier_scope == "service"
        found = read_tier_key(key, by_service)
        tenant = normalise(found[0]) if found else None
        if found is None or tenant is None or (by_service and found[1] is None and not of_all):
            form = "tenant:{tenant}:{service}" if by_service else "tenant:{tenant}"
            more = ", or tenant:{tenant} of all its services" if by_service and of_all else ""
            raise ValueError(f"key: expected {form}{more}, got: {got(key)}")
        who = reserved(tenant)
        return tier_key(who, found[1]), who
    fits = isinstance(key, str) and len(key) <= KEY_CHARACTERS and KEY_PATTERN.fullmatch(key)
    if fits and kind != "tenant":
        return str(key), None
    other = " or 'tenant:42'" if tenants else "; a tenant is paused: fairness tenant pause TENANT"
    raise ValueError(
        f"key: expected the key of a limit such as 'api.stripe.com'{other}, got: {got(key)}"
    )


def _known_keys(reader: Reader) -> Iterator[str]:
    """Yield the keys that are used, or were just now, or were changed; some occur several times.

    Each table that has keys is read in pages. Other keys of the Redis are not read.
    """
    for store in reader.stores:
        yield from _known_there(store)


def _known_there(reader: Reader) -> Iterator[str]:
    keys = reader.keys
    for table in (keys.changes, keys.queue_limits):
        # A field is `pause KEY`, `override KEY` or `key KEY`, or it is of a queue.
        fields = (field.partition(" ") for field, _ in reader.pairs("HSCAN", table, NAMES_COUNT))
        yield from (key for kind, _, key in fields if kind in ("pause", "override", "key"))
    tables = [("ZSCAN", keys.cool_downs), ("HSCAN", keys.waiting_at)]
    for queue, _ in reader.pairs("HSCAN", keys.waiting, NAMES_COUNT):
        tables += [("ZSCAN", keys.of(kind, queue)) for kind in ("active", "blocked")]
    for command, table in tables:
        yield from (key for key, _ in reader.pairs(command, table, NAMES_COUNT))
    for _, row in reader.pairs("HSCAN", keys.running, NAMES_COUNT):
        yield from keys_of_row(row)
    logical = logical_now(reader)
    lately = reader.pairs("ZSCAN", keys.key_expiry, NAMES_COUNT)
    yield from (key.strip() for key, until in lately if float(until) > logical)


def some_names(installation: Installation, at_most: int) -> set[str]:
    """Return the keys that the app declares and those that Redis has, of both at most so many."""
    declared = (limit.key for limit in installation.declared_limits())
    stored = _known_keys(installation.reader)
    return set(islice(chain(declared, stored), at_most)) - {SYSTEM}
