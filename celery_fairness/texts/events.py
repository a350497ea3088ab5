"""The texts of events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from celery_fairness.control.health.event_types import Event, EventPage
from celery_fairness.util.printable import printable


def page_lines(page: EventPage, if_more: str) -> list[str]:
    """Return a page of events, and a note if there are more."""
    lines = [event_line(each) for each in page.events] or ["no events"]
    return [*lines, "", click.style(f"note: {if_more}", fg="yellow")] if page.has_more else lines


def event_line(event: Event) -> str:
    """Return one event as a line."""
    present = ((name, value) for name, value in event.data.items() if value not in ("", None, {}))
    facts = " ".join(f"{name}={_fact(value)}" for name, value in present)
    return printable(f"{event.at:%Y-%m-%d %H:%M:%S}  {event.type}  {facts}".rstrip())


def _fact(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)
