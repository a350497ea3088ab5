"""The tiers in force, and a cache of each tenant's tier.

The first of these sources gives a tenant's tier:

1. the tier that an administrator published in Redis
2. the user's resolver; without a resolver, the tier in the message's header
3. the default tier

If a resolver fails, or a tier is not in the table, the default tier applies and a line is logged.
A producer never gets an exception. The failures are counted in Redis by tenant. At most once a
second one call reports them. It returns the config version, so it takes the place of the call that
reads the version. Commands and the admin call :meth:`TierCache.answer`, which returns also why a
tier is unknown.

An entry is valid for ``tier_cache_seconds``, or until the config version in Redis changes: every
publication raises it. Workers receive the version with every answer of the limiter. Producers read
it at most once a second, without a thread. A process that publishes empties its cache at once. If
Redis hangs, a producer waits once for a bounded time, and then does not call Redis for a while. An
entry that was made without Redis ends with that while.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from celery_fairness.config.settings import Resolver, Settings
from celery_fairness.config.tenants import INVALID, NONE, Reserved
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import LimiterUnavailable, SettingsError, got, suggestion
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.unresolved_tenants import UNKNOWN_TIER, UnresolvedTenants
from celery_fairness.util.throttled_log import Notices

Answer = TypeVar("Answer")

#: Most tenants in the cache. The oldest is removed first.
CACHE_TENANTS = 10_000
#: How long a resolver is not called again for a tenant for which it failed, in seconds.
FAILURE_SECONDS = 1.0
#: How often a producer reads the config version, in seconds.
LOOK_SECONDS = 1.0
#: How long a producer does not call a Redis that did not answer, in seconds.
AWAY_SECONDS = 5.0

#: Why the tier of a tenant that has a hash in Redis is unknown.
HASHED = (
    "Redis has a hash in place of this tenant's name, and the tier resolver needs the name: "
    "use the name itself"
)


class TierAnswer(NamedTuple):
    """The tier of a tenant, for commands and the admin.

    Attributes:
        tier: The tier's name. If it is unknown, the default tier, which applies meanwhile.
        unknown: Why the tier is unknown. "" if it is known.
    """

    tier: str
    unknown: str = ""


class _Known(NamedTuple):
    """A cache entry: its end, the tier, and the error if the resolver failed."""

    until: float
    tier: str | None
    problem: Exception | None = None


class TierCache:
    """A cache of tiers. Threads may share it.

    Args:
        limiter: Returns the limiter with short timeouts. It is called at first use.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        settings: Settings,
        limiter: Callable[[], Limiter],
        notices: Notices,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._limiter = limiter
        self._notices = notices
        self._clock = clock
        self._lock = threading.Lock()
        self._resolver: Resolver | None = None
        self._known: dict[str, _Known] = {}
        self._tiers: Mapping[str, Tier] = settings.tiers
        self._version = 0
        self._tiers_version = 0
        self._look_at = 0.0
        self._away_until = 0.0
        self._unresolved = UnresolvedTenants()
        self._report_at = 0.0

    def close(self) -> None:
        """Report the failures of the resolver that are left."""
        atexit.unregister(self._report)
        self._report()

    def prepare(self) -> Resolver:
        """Import the resolver and return it. At a worker's start this reports a wrong name.

        Raises:
            SettingsError: It cannot be imported, or is not callable.
        """
        if self._resolver is None:
            self._resolver = load_resolver(self._settings)
        return self._resolver

    def tiers(self) -> Mapping[str, Tier]:
        """Return the tiers in force by name: the published ones, or those of the settings."""
        version = self._version
        if version != self._tiers_version:
            answer = self.ask(lambda limiter: limiter.published_tiers())
            if answer is not None:
                self._tiers = answer[1] or self._settings.tiers
                self._tiers_version = version
        return self._tiers

    def tier_of(self, tenant: str, hint: str | None = None) -> str:
        """Return the name of the tenant's tier; ``hint`` is the tier in the message's header."""
        if isinstance(tenant, Reserved):
            return self._settings.default_tier
        now, default = self._clock(), self._settings.default_tier
        entry = self._known.get(tenant)
        if entry is None or entry.until <= now:
            entry = self._look_up(tenant, now)
            if entry.problem is not None:
                self._note_unresolved(tenant, type(entry.problem).__name__)
                self._notices.error(
                    "tier_resolver",
                    "the tier resolver failed, the default tier is used: %r",
                    entry.problem,
                )
            elif entry.tier not in (None, default) and entry.tier not in self.tiers():
                if self._settings.tier_resolver is not None:
                    self._note_unresolved(tenant, UNKNOWN_TIER)
                self._log_unknown(tenant, entry.tier)
        return self._in_force(entry.tier or hint)

    def answer(self, tenant: str) -> TierAnswer:
        """Return the tenant's tier, and why it is unknown if it is.

        Args:
            tenant: The tenant. If Redis has only its hash, a ``Reserved`` of the hash.
        """
        default = self._settings.default_tier
        if tenant in (NONE, INVALID) and isinstance(tenant, Reserved):
            return TierAnswer(default)
        if isinstance(tenant, Reserved):
            tier = self.ask(lambda limiter: limiter.published_tenant(tenant))
            asks = tier is None and self._settings.tier_resolver is not None
            return TierAnswer(self._in_force(tier), HASHED if asks else "")
        now = self._clock()
        entry = self._known.get(tenant)
        if entry is None or entry.until <= now:
            entry = self._look_up(tenant, now)
        problem = entry.problem
        why = "" if problem is None else f"the tier resolver failed: {problem!r}"
        return TierAnswer(self._in_force(entry.tier), why)

    def _note_unresolved(self, tenant: str, error: str) -> None:
        if not self._unresolved:
            # A short script may end before its next look.
            atexit.register(self._report)
        self._unresolved.note(tenant, error, self._clock())
        if self._clock() >= self._report_at and self._reachable():
            self._report()

    def _report(self) -> None:
        """Report the failures of the resolver. A report that fails is tried again later."""
        atexit.unregister(self._report)
        if not self._unresolved:
            return
        # Other threads do not wait beside this one if Redis does not answer.
        now = self._clock()
        self._report_at = now + AWAY_SECONDS
        failed, tenants = self._unresolved.take()
        try:
            rows = {tenant: each.row(now) for tenant, each in tenants.items()}
            version = self._limiter().report_unresolved(failed, rows)
        except Exception as error:  # noqa: BLE001 - a count must not fail a producer
            self._unresolved.put_back(failed, tenants)
            self._report_at = self._clock() + AWAY_SECONDS
            if isinstance(error, LimiterUnavailable) and not error.has_answered:
                # A rejection is of this call alone: the user may lack a right for it.
                self._away_until = self._report_at
            return
        now = self._clock()
        self._report_at = self._look_at = now + LOOK_SECONDS
        self.set_version(version)

    def _log_unknown(self, tenant: str, tier: str | None) -> None:
        known = sorted(self.tiers())
        self._notices.error(
            "unknown_tier",
            "the tier of tenant %r: expected one of %s, got: %s%s; the default tier %s is used",
            *(tenant, ", ".join(known), got(tier), suggestion(tier, known)),
            self._settings.default_tier,
        )

    def _in_force(self, tier: str | None) -> str:
        return tier if tier is not None and tier in self.tiers() else self._settings.default_tier

    def set_version(self, version: int) -> None:
        """Store the config version. If it has changed, empty the cache."""
        if version != self._version:
            with self._lock:
                self._known.clear()
                self._version = version

    def look(self) -> None:
        """Read the config version, at most once a second: for processes that only publish."""
        now = self._clock()
        if now < self._look_at or not self._reachable():
            return
        self._look_at = now + LOOK_SECONDS
        if self._unresolved and now >= self._report_at:
            self._report()
            return
        version = self.ask(lambda limiter: limiter.config_version())
        if version is not None:
            self.set_version(version)

    def ask(self, question: Callable[[Limiter], Answer]) -> Answer | None:
        """Call Redis. Return None if it does not answer, or recently did not."""
        if not self._reachable():
            return None
        try:
            return question(self._limiter())
        except LimiterUnavailable:
            self._away_until = self._clock() + AWAY_SECONDS
            return None

    def _reachable(self) -> bool:
        return self._clock() >= self._away_until

    def _look_up(self, tenant: str, now: float) -> _Known:
        version = self._version
        until = now + self._settings.tier_cache_seconds
        problem: Exception | None = None
        tier = self.ask(lambda limiter: limiter.published_tenant(tenant)) if version else None
        if version and not self._reachable() and self._settings.tier_resolver is None:
            # The tenant may have a published tier, so Redis is called again as soon as allowed. A
            # resolver answers for the usual time, because its store may be the only one left.
            until = min(until, self._away_until)
        if tier is None and self._settings.tier_resolver is not None:
            try:
                tier = self._resolve(tenant)
            except Exception as error:  # noqa: BLE001 - it is the user's code
                problem = error
                until = min(until, now + FAILURE_SECONDS)
            # If there is a resolver, a header must not choose the tier, even if the resolver fails
            # or returns None.
            tier = tier or self._settings.default_tier
        entry = _Known(until, tier, problem)
        with self._lock:
            if version == self._version:
                while len(self._known) >= CACHE_TENANTS:
                    self._known.pop(next(iter(self._known)))
                self._known[tenant] = entry
        return entry

    def try_resolver(self, tenant: str) -> str:
        """Call the resolver now, and return why its answer is of no use. "" if it is.

        It returns the type alone of an error, because the text may have a secret.
        """
        try:
            tier = self._resolve(tenant)
        except Exception as error:  # noqa: BLE001 - it is the user's code
            return type(error).__name__
        known = sorted(self.tiers())
        if tier is None or tier in known:
            return ""
        return f"it returned the tier {got(tier)}, expected one of {', '.join(known)}"

    def _resolve(self, tenant: str) -> str | None:
        tier = self.prepare()(tenant)
        if tier is not None and not isinstance(tier, str):
            raise TypeError(f"expected a tier's name or None, got: {got(tier)}")
        return tier or None


def load_resolver(settings: Settings) -> Resolver:
    """Return the callable of ``tier_resolver``, imported if it is given by name.

    Raises:
        SettingsError: There is no such module or name, or it is not callable.
    """
    given = settings.tier_resolver
    if not isinstance(given, str):
        return given or (lambda _tenant: None)
    module, _, name = given.partition(":")
    try:
        resolver: Resolver = getattr(_imported(module), name)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(
            f"fairness.tier_resolver: expected 'module:name' that can be imported, "
            f"got: {given!r} ({type(error).__name__}: {error})"
        ) from error
    if not callable(resolver):
        raise SettingsError(f"fairness.tier_resolver: expected a callable, got: {got(resolver)}")
    return resolver


def _imported(module: str) -> Any:
    """Import a module as Celery does: also from the folder in which the process was started.

    The ``celery`` command takes this folder out of ``sys.path`` after it has imported the app.
    """
    sys.path.insert(0, "")
    try:
        return import_module(module)
    finally:
        sys.path.remove("")
