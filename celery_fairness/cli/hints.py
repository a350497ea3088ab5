"""Hints for operators: a key that nothing has, or another reason why its tasks do not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_fairness.config.key_patterns import is_pattern
from celery_fairness.config.tenants import read_tier_key
from celery_fairness.control.key.inspector import some_names
from celery_fairness.control.key.limit_in_force import time_text
from celery_fairness.errors import suggestion
from celery_fairness.limiter.types import KeyHolds
from celery_fairness.texts.format import quoted
from celery_fairness.texts.keys import holds_lines
from celery_fairness.util.printable import printable
from celery_fairness.wiring import wired

if TYPE_CHECKING:
    from celery_fairness.app.fairness import Fairness
    from celery_fairness.control.key.views import Inspection
    from celery_fairness.control.tenant.views import PublishedTier

#: Names of keys among which a command looks for a similar one, or for those that begin so.
NAMES_AT_MOST = 10_000
_TENANT, _QUEUE = "tenant:", "queue:"
_COMMAND = "celery -A APP fairness"


def unused_key(of: Fairness, key: str) -> str:
    """Return a hint if nothing has the key now; "" if something has.

    If a tenant of that name has one, the hint has the tenant's key.
    """
    if is_pattern(key) or of.limits.is_known(key):
        return ""
    if _by_service(of) and key.startswith(_TENANT):
        return ""
    hint = f"nothing has the key {printable(key)} now"
    if of.limits.is_known(f"{_TENANT}{key}"):
        return f"{hint}; that of the tenant is {printable(_TENANT + key)}"
    return hint + similar("key", key)


def similar(what: str, name: str) -> str:
    """Return ``, did you mean X?`` for a key or a queue that is not known; "" without a similar."""
    parts = wired(click.get_current_context().obj.app)
    # Most tenants have a number, and a similar number is another tenant.
    if what == "key" and not name.startswith(_TENANT):
        known = some_names(parts.installation, NAMES_AT_MOST)
        return suggestion(name, (each for each in known if not each.startswith(_TENANT)))
    return suggestion(name, parts.installation.known_queues()) if what == "queue" else ""


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
    """Return a hint if a tier that was set ends by itself: when, and how to keep it. "" if not."""
    if published.until is None:
        return ""
    return (
        f"tier {published.tier} of the tenant {printable(published.tenant)} holds until "
        f"{time_text(published.until)}, then tier_resolver decides again; to make it "
        "last, change what the resolver returns, or give the tenant a number of its own with "
        "--concurrency N"
    )


def resumed_lines(of: Fairness, holds: KeyHolds) -> list[str]:
    """Return the remaining reason why a key's tasks do not start, after a pause was ended."""
    if holds.on_hold or not of.limits.is_known(holds.key):
        return holds_lines(holds)
    found = of.limits.inspect(holds.key)
    if found.limit != 0:
        return holds_lines(holds)
    reason = printable(found.in_force.lines[0])
    return [f"{holds.key}: not paused; nothing starts: {reason}{_ends_it(of, found)}"]


def _ends_it(of: Fairness, found: Inspection) -> str:
    """Return how to end a key's limit in force, as the end of a sentence; "" if nothing can."""
    key, reasons = found.key, found.in_force.reasons
    tenant, _ = read_tier_key(key, _by_service(of)) or ("", None)
    queue = key.removeprefix(_QUEUE)
    overridden = reasons[0].pattern or key if reasons else key
    ends: dict[str, str] = {
        "paused": f"tenant resume {quoted(tenant)}",
        "override": f"limit override {quoted(overridden)} --clear",
        "own": f"tenant tier {quoted(tenant)} {found.tier}",
        "queue": f"queue limit {quoted(queue)} --clear",
    }
    command = ends.get(reasons[0].kind) if reasons else None
    return f"; to end it: {_COMMAND} {command}" if command else ""


def _by_service(of: Fairness) -> bool:
    """Return whether a tenant has a key for each service, so that no key can be inspected alone."""
    return of.settings.tier_scope == "service"
