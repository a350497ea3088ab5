"""Values that a shell completes: names of keys, tenants, queues, services, tiers and events.

Invariant: a completion has no error. If the app or Redis cannot be used, there are no names.

Weakness: the shell imports the app at each completion of a name. The names of keys, tenants and
queues also take calls of Redis. If Redis does not answer, that costs the short time-out of a
producer. If more keys are known than are read, some names are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click
from celery.app.utils import find_app

from celery_fairness.cli.hints import NAMES_AT_MOST
from celery_fairness.config.tenants import read_tier_key
from celery_fairness.control.health.event_types import TYPES
from celery_fairness.control.key.inspector import some_names
from celery_fairness.wiring import wired

if TYPE_CHECKING:
    Completion = Callable[[click.Context, click.Parameter, str], list[str]]

#: A shell shows at most so many names at once.
OFFERED = 200


def _names(find: Callable[[Any], Iterable[str]]) -> Completion:
    """Return a completion with the names that ``find`` returns for the parts of the app."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        try:
            app = find_app(context.find_root().params["app"])
            app.loader.import_default_modules()
            names = sorted(find(wired(app)))
        except Exception:  # noqa: BLE001 - an error would be written into the person's command line
            return []
        # A shell would take several words as several names.
        return [
            each
            for each in names
            if each.startswith(begun) and each.isprintable() and each.split() == [each]
        ][:OFFERED]

    return complete


def _keys_of(parts: Any) -> set[str]:
    return some_names(parts.installation, NAMES_AT_MOST)


def _tenants_of(parts: Any) -> Iterator[str]:
    by_service = parts.settings.tier_scope == "service"
    for key in _keys_of(parts):
        found = read_tier_key(key, by_service)
        if found is not None:
            yield found[0]


keys = _names(_keys_of)
tenants = _names(lambda parts: set(_tenants_of(parts)))
queues = _names(lambda parts: {each.queue for each in parts.fairness.queues.list()})
services = _names(lambda parts: parts.settings.services)
tiers = _names(lambda parts: parts.settings.tiers)


def event_types(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the last of several types with commas between them."""
    before, comma, last = begun.rpartition(",")
    return [f"{before}{comma}{each}" for each in TYPES if each.startswith(last)]
