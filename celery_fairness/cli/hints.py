"""Hints for operators: a key that nothing has, or another reason why its tasks do not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_fairness.cli.format import printable, quoted
from celery_fairness.cli.tables import stops_lines
from celery_fairness.config.tenants import read_tier_key
from celery_fairness.errors import NotFound
from celery_fairness.limiter.types import KeyStops

if TYPE_CHECKING:
    from celery_fairness.app.fairness import Fairness
    from celery_fairness.control.ojs_views import Inspection
    from celery_fairness.control.views import PublishedTier

_TENANT, _QUEUE = "tenant:", "queue:"
_COMMAND = "celery -A APP fairness"


def unused_key(of: Fairness, key: str) -> str:
    """Return a hint if nothing has the key now, with the key of a tenant of that name; else ""."""
    if of.limits.is_known(key) or (_by_service(of) and key.startswith(_TENANT)):
        return ""
    hint = f"nothing has the key {printable(key)} now"
    if of.limits.is_known(f"{_TENANT}{key}"):
        hint += f"; that of the tenant is {printable(_TENANT + key)}"
    return hint


def unused_tenant(of: Fairness, tenant: str) -> str:
    """Return a hint if nothing is known of a tenant; "" if something is."""
    if _by_service(of) or of.limits.is_known(f"{_TENANT}{tenant}"):
        return ""
    hint, other = f"nothing is known of the tenant {printable(tenant)} now", typed_as_key(tenant)
    return f"{hint}; {other}" if other else hint


def typed_as_key(tenant: str) -> str:
    """Return a hint with the tenant's name if its key was typed instead; "" if not."""
    name = tenant.removeprefix(_TENANT)
    return (
        f"the tenant of the key {printable(tenant)} is {printable(name)}" if name != tenant else ""
    )


def short_tier(published: PublishedTier) -> str:
    """Return a hint if a tier that was set ends by itself: when, and how to keep it; else ""."""
    if published.until is None:
        return ""
    return (
        f"tier {published.tier} of the tenant {printable(published.tenant)} holds until "
        f"{published.until:%Y-%m-%d %H:%M:%S} UTC, then tier_resolver decides again; to make it "
        "last, change what the resolver returns, or give the tenant a number of its own with "
        "--concurrency N"
    )


def resumed_lines(of: Fairness, stops: KeyStops) -> list[str]:
    """Return the remaining reason why a key's tasks do not start, after a pause was ended."""
    if stops.stopped or not of.limits.is_known(stops.key):
        return stops_lines(stops)
    found = of.limits.inspect(stops.key)
    if found.limit != 0:
        return stops_lines(stops)
    return [f"{stops.key}: not paused; nothing starts by {_stopped_by(of, found)}"]


def _stopped_by(of: Fairness, found: Inspection) -> str:
    """Return why a key without a pause has a limit of 0, and the command that ends it."""
    key, tier, override = found.key, found.tier, found.override
    tenant = read_tier_key(key, _by_service(of))
    if tenant and tenant[1] and found.stops is not None and found.stops.paused:
        ends = f"{_COMMAND} tenant resume {quoted(tenant[0])}"
        return f"a pause of all services of its tenant, until: {ends}"
    if override is not None and override.numbers.get("concurrency", 1) == 0:
        return f"an override of 0, until: {_COMMAND} limit override {quoted(key)} --clear"
    if tenant and tier:
        tiers = {each.tier: each.concurrency for each in of.stats.status().tiers}
        if tiers.get(tier, 0) == 0:
            return f"the limit of its tier {tier}, which is 0"
        ends = f"{_COMMAND} tenant tier {quoted(tenant[0])} {tier}"
        return f"a limit of its own, which is 0, until: {ends}"
    queue = key.removeprefix(_QUEUE)
    try:
        limit = None if key == queue else of.queues.inspect(queue).limit
    except NotFound:
        limit = None
    by_people = limit is not None and limit.source == "people"
    ends = f", until: {_COMMAND} queue limit {quoted(queue)} --clear" if by_people else ""
    return f"its limit, which is 0{ends}"


def _by_service(of: Fairness) -> bool:
    """Return whether a tenant has a key for each service, so that no key can be inspected alone."""
    return of.settings.tier_scope == "service"
