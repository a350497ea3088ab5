"""What an operator may have missed: that nothing has a key, or what else keeps it from starting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_fairness.cli.tables import stops_lines
from celery_fairness.cli.words import printable, quoted
from celery_fairness.decision import KeyStops

if TYPE_CHECKING:
    from celery_fairness.extension import Fairness

_TENANT = "tenant:"
_COMMAND = "celery -A APP fairness"


def unused_key(of: Fairness, key: str) -> str:
    """Return that nothing has a key now, and which may be meant; "" where something has it."""
    if of.is_known(key) or (_by_service(of) and key.startswith(_TENANT)):
        return ""
    said = f"nothing has the key {printable(key)} now"
    if of.is_known(f"{_TENANT}{key}"):
        said += f"; that of the tenant is {printable(_TENANT + key)}"
    return said


def unused_tenant(of: Fairness, tenant: str) -> str:
    """Return that nothing is known of a tenant, and who may be meant; "" where something is."""
    if _by_service(of) or of.is_known(f"{_TENANT}{tenant}"):
        return ""
    said, meant = f"nothing is known of the tenant {printable(tenant)} now", typed_as_key(tenant)
    return f"{said}; {meant}" if meant else said


def typed_as_key(tenant: str) -> str:
    """Return which tenant a key is of that was typed in the place of one; "" where none was."""
    name = tenant.removeprefix(_TENANT)
    return (
        f"the tenant of the key {printable(tenant)} is {printable(name)}" if name != tenant else ""
    )


def resumed_lines(of: Fairness, stops: KeyStops) -> list[str]:
    """Return what stops a key after a pause or a cool-down of it was ended."""
    if stops.stopped or not of.is_known(stops.key):
        return stops_lines(stops)
    found = of.inspect(stops.key)
    if found.limit != 0:
        return stops_lines(stops)
    said = found.state.override
    if said is not None and said.numbers.get("concurrency", 1) == 0:
        by = f"an override of 0, until: {_COMMAND} override {quoted(stops.key)} --clear"
    elif found.tier:
        by = f"the limit of its tier {found.tier}, which is 0"
    else:
        by = "its limit, which is 0"
    return [f"{stops.key}: not paused; nothing starts by {by}"]


def _by_service(of: Fairness) -> bool:
    """Say whether a tenant has several keys, of which none is inspected without its service."""
    return of.settings.tier_scope == "service"
