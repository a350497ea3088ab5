"""The tiers in force, and the tier of a tenant: a chain of answers behind a cache.

A tenant's tier is, the first that answers: what an administrator published in Redis, the user's
resolver, or where there is none what the message's producer knew, the default tier. A resolver that
fails means the default tier and a log line, never an exception in a producer. Commands and the
admin read :meth:`TierCache.answer`, which returns why a tier is unknown instead of the default.

The cache is believed for ``tier_cache_seconds`` or until news: every publication raises a version
in Redis. Workers learn it with every answer of the limiter; producers look at most once a second,
without a thread, and a Redis that hangs costs them one bounded wait and is then left alone for
a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple, TypeVar

from celery_fairness.config.settings import Resolver, Settings
from celery_fairness.config.tenants import INVALID, NONE, Reserved
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import LimiterUnavailable, SettingsError, got
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.util.throttled_log import Notices

Answer = TypeVar("Answer")

#: Tenants whose tier is remembered; the oldest goes first.
CACHE_TENANTS = 10_000
#: How long a failed resolver is left alone for one tenant, in seconds.
FAILURE_SECONDS = 1.0
#: How often a producer looks for news, in seconds.
LOOK_SECONDS = 1.0
#: How long a producer leaves a Redis alone that did not answer, in seconds.
AWAY_SECONDS = 5.0

#: Why nobody can be asked for the tier of a tenant that Redis knows by a hash.
HASHED = (
    "Redis has a hash in place of this tenant's name, and the tier resolver needs the name: "
    "ask by the name itself"
)


class TierAnswer(NamedTuple):
    """The tier of a tenant, for somebody who reads it.

    Attributes:
        tier: Its name; where it is unknown the default tier, by which tasks are judged meanwhile.
        unknown: Why the tier is unknown; "" where it is known.
    """

    tier: str
    unknown: str = ""


class _Known(NamedTuple):
    """What is remembered of a tenant, until when, and how the resolver failed if it did."""

    until: float
    tier: str | None
    problem: Exception | None = None


class TierCache:
    """Knows tiers and tenants. Safe to share between threads.

    Args:
        settings: Tiers, default tier, resolver and cache time.
        limiter: Makes the limiter whose publications count, at first use; its waits are short.
        notices: Where trouble is logged.
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

    def prepare(self) -> Resolver:
        """Import the resolver and return it; at a worker's start, so that a wrong name ends it.

        Raises:
            SettingsError: It cannot be imported, or is not callable.
        """
        if self._resolver is None:
            self._resolver = load_resolver(self._settings)
        return self._resolver

    def tiers(self) -> Mapping[str, Tier]:
        """Return the tiers in force by name: those published, else those of the settings."""
        version = self._version
        if version != self._tiers_version:
            answer = self.ask(lambda limiter: limiter.published_tiers())
            if answer is not None:
                self._tiers = answer[1] or self._settings.tiers
                self._tiers_version = version
        return self._tiers

    def tier_of(self, tenant: str, hint: str | None = None) -> str:
        """Return the name of the tenant's tier.

        Args:
            tenant: Who.
            hint: The tier in the message's header, where there is one.
        """
        default = self._settings.default_tier
        if isinstance(tenant, Reserved):
            return default
        now = self._clock()
        entry = self._known.get(tenant)
        if entry is None or entry.until <= now:
            entry = self._look_up(tenant, now)
            if entry.problem is not None:
                self._notices.error(
                    "tier_resolver",
                    "the tier resolver failed, the default tier is used: %r",
                    entry.problem,
                )
        return self._in_force(entry.tier or hint)

    def answer(self, tenant: str) -> TierAnswer:
        """Return the tenant's tier for a person who reads it: never a default for an unknown one.

        Args:
            tenant: Who; as it stands in keys where that is a hash.
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

    def _in_force(self, tier: str | None) -> str:
        return tier if tier is not None and tier in self.tiers() else self._settings.default_tier

    def heard(self, version: int) -> None:
        """Take note of the version of what is published; other news than before empty the cache."""
        if version != self._version:
            with self._lock:
                self._known.clear()
                self._version = version

    def look(self) -> None:
        """Look for news, at most once a second: for processes that only publish."""
        now = self._clock()
        if now < self._look_at or not self._reachable():
            return
        self._look_at = now + LOOK_SECONDS
        version = self.ask(lambda limiter: limiter.news())
        if version is not None:
            self.heard(version)

    def ask(self, question: Callable[[Limiter], Answer]) -> Answer | None:
        """Ask Redis something; None where it does not answer, or did not lately."""
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
        lives = self._settings.tier_cache_seconds
        problem: Exception | None = None
        tier = self.ask(lambda limiter: limiter.published_tenant(tenant)) if version else None
        if tier is None and self._settings.tier_resolver is not None:
            try:
                tier = self._resolve(tenant)
            except Exception as error:  # noqa: BLE001 - it is the user's code
                problem = error
                lives = min(lives, FAILURE_SECONDS)
            # A resolver that knows nothing, or fails, has said what a stranger is: only where there
            # is none does the message's header count.
            tier = tier or self._settings.default_tier
        entry = _Known(now + lives, tier, problem)
        with self._lock:
            if version == self._version:
                while len(self._known) >= CACHE_TENANTS:
                    self._known.pop(next(iter(self._known)))
                self._known[tenant] = entry
        return entry

    def _resolve(self, tenant: str) -> str | None:
        tier = self.prepare()(tenant)
        if tier is not None and not isinstance(tier, str):
            raise TypeError(f"expected a tier's name or None, got: {got(tier)}")
        return tier or None


def load_resolver(settings: Settings) -> Resolver:
    """Return the callable behind ``tier_resolver``, imported where it is given by name.

    Raises:
        SettingsError: There is no such module or name, or it is not callable.
    """
    given = settings.tier_resolver
    if not isinstance(given, str):
        return given or (lambda _tenant: None)
    module, _, name = given.partition(":")
    try:
        resolver = getattr(import_module(module), name)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(
            f"fairness.tier_resolver: expected 'module:name' that can be imported, "
            f"got: {given!r} ({type(error).__name__}: {error})"
        ) from error
    if not callable(resolver):
        raise SettingsError(f"fairness.tier_resolver: expected a callable, got: {got(resolver)}")
    return resolver  # type: ignore[no-any-return]  # whatever the user's name stands for
