"""Values that a shell completes: names of queues, services, tiers and events.

Invariant: a completion has no error. If the app or Redis cannot be used, there are no names.

Weakness: the shell imports the app at each completion of a name. The names of queues also take a
call of Redis. If Redis does not answer, that costs the short time-out of a producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from celery.app.utils import find_app

from celery_fairness.app.fairness import Fairness
from celery_fairness.control.event_types import TYPES

if TYPE_CHECKING:
    Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def _names(find: Callable[[Fairness], Iterable[str]]) -> Completion:
    """Return a completion with the names that ``find`` returns for the app of ``-A``."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        try:
            app = find_app(context.find_root().params["app"])
            names = sorted(find(Fairness.of(app)))
        except Exception:  # noqa: BLE001 - an error would be written into the person's command line
            return []
        # A shell would take several words as several names.
        return [
            each
            for each in names
            if each.startswith(begun) and each.isprintable() and each.split() == [each]
        ]

    return complete


queues = _names(lambda of: {each.queue for each in of.queues.list()})
services = _names(lambda of: of.settings.services)
tiers = _names(lambda of: of.settings.tiers)


def event_types(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the last of several types with commas between them."""
    before, comma, last = begun.rpartition(",")
    return [f"{before}{comma}{each}" for each in TYPES if each.startswith(last)]
