"""``fairness.tenants``: one tenant's limit, tier and waiting tasks, and the table of tiers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_fairness.config.fields import whole
from celery_fairness.config.numbers import read_given
from celery_fairness.config.tenants import NO_SERVICE, key_part, normalise, reserved, tier_key
from celery_fairness.config.tiers import Tier
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.key.inspector import Inspector
from celery_fairness.control.key.limits_api import (
    LONGEST_PAGE,
    PAGE_LENGTH,
    PAGES,
    LimitsApi,
)
from celery_fairness.control.key.stops import Stops, lasts_ms, person
from celery_fairness.control.key.views import ChangedHolds, Inspection, InspectionPage
from celery_fairness.control.task.cancellation import purge_tenant
from celery_fairness.control.tenant.boost import BOOST_SECONDS, boosted, own_number
from celery_fairness.control.tenant.rerouting import Rerouting
from celery_fairness.control.tenant.views import PublishedTier, Purged
from celery_fairness.errors import got, suggestion

#: The beginning of a tenant's key.
TENANT = "tenant:"


class TenantsApi:
    """Tenants by their id.

    Every method raises ``LimiterUnavailable`` if Redis does not answer. Methods for one tenant
    raise ``TenantInvalid`` if the text cannot be a tenant, and ``ValueError`` if it is empty.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._limiter = installation.limiter
        self._settings = installation.settings
        self._limits = LimitsApi(installation)
        self._inspector = Inspector(installation)
        self._stops = Stops(installation)

    def list(
        self,
        page: int = 1,
        per_page: int = PAGE_LENGTH,
        search: str = "",
        *,
        also: Collection[str] = (),
    ) -> InspectionPage:
        """Return the known tenants by name, each as :meth:`inspect` returns it.

        A tenant is known while its tasks wait or run, and while an operator has changed its key. If
        the setting ``tier_scope`` is ``service``, each service of a tenant is an entry. The names
        of a large installation may be some seconds old, as for :meth:`LimitsApi.list`.

        Args:
            page: The number of the page, from 1.
            per_page: How many tenants a page has, 1 to 100.
            search: A part of the name. "" returns all tenants.
            also: Keys of tenants in their form in Redis that are known from elsewhere, for example
                from events.

        Raises:
            ValueError: A number is out of range.
        """
        PAGES.read("page", page)
        whole(1, LONGEST_PAGE).read("per_page", per_page)
        # If a key cannot have the name, it has the hash of it.
        texts = {search, key_part(search)} if search else {""}

        def keep(key: str) -> bool:
            name = key.removeprefix(TENANT)
            return name != key and any(text in name for text in texts)

        return self._inspector.page(page, per_page, keep, also)

    def inspect(self, tenant: str, service: str | None = None) -> Inspection:
        """Return the state of a tenant: its limit, leases and waiting tasks.

        Args:
            tenant: The tenant's id.
            service: The service, if the setting ``tier_scope`` is ``service``. None is the part of
                the tasks without a service.

        Raises:
            ValueError: A service is given and ``tier_scope`` is ``global``.
        """
        return self._limits.inspect(self._key(tenant, service))

    def limit(self, tenant: str, tier: str = "", service: str | None = None) -> Inspection:
        """Return the state of a tenant without a call of the resolver.

        So it suits pages with many tenants.

        Args:
            tenant: The tenant's id.
            tier: The tenant's tier, or "" for the default tier. A published tier and the tier of
                waiting tasks are used before it.
            service: As for :meth:`inspect`.
        """
        tier = tier or self._settings.default_tier
        return self._inspector.of_tenant(_named(tenant), tier, service)

    def pause(
        self,
        tenant: str,
        *,
        for_seconds: float | None = None,
        until: datetime | float | None = None,
        by: str | None = None,
    ) -> ChangedHolds:
        """Start nothing more of a tenant, in any service; running tasks go on.

        Arguments as for :meth:`LimitsApi.pause`. The tenant may have no task yet.

        Raises:
            ValueError: The time or the person is invalid, or ``tier_scope`` is ``service`` and the
                tenant has a colon. Pause the keys of its services with :meth:`LimitsApi.pause`.
        """
        wait_ms = lasts_ms(self._installation.reader, for_seconds, until)
        return self._stop("pause", tenant, person(by), wait_ms)

    def resume(self, tenant: str, *, by: str | None = None) -> ChangedHolds:
        """End a pause. Arguments and errors as for :meth:`pause`."""
        return self._stop("resume", tenant, person(by))

    def _stop(self, how: str, tenant: str, by: str, wait_ms: int = 0) -> ChangedHolds:
        name = tier_key(reserved(_named(tenant)))
        if self._settings.tier_scope == "service" and name.count(":") > 1:
            raise ValueError(
                "tenant: expected one without a colon while the setting tier_scope is 'service', "
                f"because {name} is the key of a service, got: {got(tenant)}; to {how} one of its "
                f"services: celery -A APP fairness limit {how} {name}:{NO_SERVICE}"
            )
        known = self._limits.is_known(self._key(tenant, None))
        return self._stops.stop(how, name, wait_ms, by=by, known=known)

    def override(
        self,
        tenant: str,
        *,
        service: str | None = None,
        for_seconds: float | None = None,
        until: datetime | float | None = None,
        reason: str | None = None,
        by: str | None = None,
        **numbers: Any,
    ) -> Inspection:
        """Override the numbers of a tenant, for a time or until they are cleared.

        Arguments and errors as for :meth:`LimitsApi.override`, ``service`` as for :meth:`inspect`.
        A tenant has the numbers ``concurrency``, ``rate`` and ``throttle``.
        """
        return self._limits.override(
            self._key(tenant, service),
            for_seconds=for_seconds,
            until=until,
            reason=reason,
            by=by,
            **numbers,
        )

    def boost(
        self,
        tenant: str,
        *,
        service: str | None = None,
        for_seconds: float | None = None,
        until: datetime | float | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Inspection:
        """Override the concurrency of a tenant with twice its own number, and at least one more.

        Its own number is the one without pauses and overrides, so a second boost changes only the
        end. In a Django project the page of the tenant also keeps the boost in the database.

        Arguments as for :meth:`override`. By default the boost lasts an hour.

        Raises:
            ValueError: The tenant is unlimited, or its number is unknown.
        """
        found = self.inspect(tenant, service)
        number = boosted(found)
        if for_seconds is None and until is None:
            for_seconds = BOOST_SECONDS
        if number is None:
            raise ValueError(
                f"{found.key}: its number is {own_number(found)}, so there is nothing to double"
            )
        return self.override(
            tenant,
            concurrency=number,
            service=service,
            for_seconds=for_seconds,
            until=until,
            reason=reason,
            by=by,
        )

    def clear_override(self, tenant: str, service: str | None = None) -> bool:
        """End an override; return whether there was one. Errors as for :meth:`override`."""
        return self._limits.clear_override(self._key(tenant, service))

    def purge(self, tenant: str) -> Purged:
        """Cancel all waiting tasks of a tenant, in every queue; running tasks go on.

        A task that is submitted during the call may be left.
        """
        name = reserved(_named(tenant))
        cancelled = purge_tenant(self._installation, name)
        return Purged(tenant=name, cancelled=cancelled)

    def set_tier(self, tenant: str, tier: str, **numbers: Any) -> PublishedTier:
        """Publish one tenant's tier; each process uses it at its next task.

        If a ``tier_resolver`` is set, a tier without a number holds for twice
        ``tier_cache_seconds``. Then the resolver decides again. To make the tier last, change what
        the resolver returns, or give the tenant a number of its own.

        On ``fairredis://`` the waiting tasks of the tenant move to the queue of the new tier before
        this returns. Each task keeps its place among the tenant's others. Running tasks go on.

        Args:
            tenant: The tenant's id.
            tier: The name of a tier.
            numbers: The tenant's own numbers, in place of its tier's: ``concurrency``, ``burst``,
                ``rate`` and ``throttle``. None is unlimited, and for ``burst`` no burst.

        Returns:
            The tier, and the time when it ends.

        Raises:
            ValueError: There is no such tier, or the number is invalid.
        """
        name = _named(tenant)
        known = dict(self._limiter.published_tiers()[1]) or self._settings.tiers
        if tier not in known:
            names, hint = ", ".join(sorted(known)), suggestion(tier, known)
            raise ValueError(f"tier: expected one of {names}, got: {got(tier)}{hint}")
        own = read_given("tenant", numbers)
        keep = self._settings.tier_resolver is None
        version = self._limiter.publish_tenant(reserved(name), tier, own, keep=keep)
        self._installation.tier_cache.set_version(version)
        self.reroute([name])
        kept = timedelta(seconds=2 * self._settings.tier_cache_seconds)
        until = None if keep or own else datetime.now(UTC) + kept
        return PublishedTier(tenant=name, tier=tier, until=until)

    def clear_tier(self, tenant: str) -> None:
        """Clear the published tier of a tenant; the resolver or the default tier decides again.

        Waiting tasks move as for :meth:`set_tier`.
        """
        name = _named(tenant)
        keep = self._settings.tier_resolver is None
        version = self._limiter.publish_tenant(reserved(name), None, keep=keep)
        self._installation.tier_cache.set_version(version)
        self.reroute([name])

    def publish_tiers(self, tiers: Iterable[Tier], source: str = "database") -> None:
        """Replace the whole table of tiers; each process uses it at its next task.

        If a tier's queue class changes, the waiting tasks of its tenants move to their new queues
        before this returns (on ``fairredis://``).

        Args:
            tiers: All tiers.
            source: ``database`` prevents starting workers from publishing the tiers of their
                settings.

        Raises:
            LimiterUnavailable: Redis does not answer. If the new table is in force already, tasks
                may still wait in their former queues, which :meth:`reroute` ends.
        """
        before = self._limiter.published_tiers()[1] or self._settings.tiers
        self._limiter.publish_tiers(tiers, source)
        self._installation.tier_cache.set_version(self._limiter.config_version())
        Rerouting(self._installation).of_changed_tiers(before)

    def reroute(self, tenants: Iterable[str]) -> int:
        """Move the waiting tasks of tenants to the queues of their present tiers.

        A task moves only between the priority and the default queue of its own service, and not if
        it was submitted as a scheduled task. On other brokers no task moves, and a tier acts on
        later tasks. A repeated call does no harm.

        Args:
            tenants: The tenants' ids.

        Returns:
            The number of moved tasks.

        Raises:
            LimiterUnavailable: Redis does not answer. Call it again.
        """
        return Rerouting(self._installation).of_tenants(tenants)

    def _key(self, tenant: str, service: str | None) -> str:
        name = _named(tenant)
        if self._settings.tier_scope == "service":
            return f"tenant:{name}:{NO_SERVICE if service is None else service}"
        if service is not None:
            raise ValueError(
                "service: expected none while the setting tier_scope is 'global', "
                f"got: {got(service)}"
            )
        return f"tenant:{name}"


def _named(tenant: str) -> str:
    name = normalise(tenant)
    if name is None:
        raise ValueError(f"tenant: expected a tenant, got: {tenant!r}")
    return name
