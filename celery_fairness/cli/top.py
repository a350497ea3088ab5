"""``celery -A APP fairness top``: its tables, its text without a terminal, and its actions.

The screen is in :mod:`celery_fairness.cli.top_screen`, which alone needs textual.

Weakness: a status has only tenants and limits with waiting tasks, so no others can be selected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from celery_fairness.config.tenants import read_tier_key
from celery_fairness.control.health.views import Status
from celery_fairness.control.key.limit_in_force import number_text
from celery_fairness.control.key.stops import PERSON_CHARACTERS, person
from celery_fairness.control.queue.views import TenantShare
from celery_fairness.errors import NotFound, SettingsError
from celery_fairness.limiter.types import KeyHolds
from celery_fairness.texts.format import PARKED, Cell, table, wait_text
from celery_fairness.texts.keys import holds_lines, overridden_lines
from celery_fairness.texts.queues import queue_cells
from celery_fairness.texts.status import verdict_line
from celery_fairness.util.extras import install_command
from celery_fairness.util.printable import printable

if TYPE_CHECKING:
    from celery_fairness.app.fairness import Fairness

#: Characters between two columns.
GAP = 2
#: The first column is never narrower.
NARROWEST = 12
#: The states of a tenant in several queues: the first one of these counts.
_STATES = ("paused", "tier", "limit", "ready")


def _text(value: Cell) -> str:
    return "" if value is None else printable(str(value))


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        head: Its name.
        text: The form of its values.
        leaves: Its turn to be left out if the terminal is too narrow. None stays.
    """

    head: str
    text: Callable[[Any], str] = _text
    leaves: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the key that an action takes, or "", and a value for each column."""

    key: str
    values: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One of the tables of the screen.

    Attributes:
        name: Its name.
        columns: Its columns. The first one names the row.
        rows: Returns its rows.
        by: Head of the column by which it is sorted first.
        empty: The text without a row.
    """

    name: str
    columns: tuple[Column, ...]
    rows: Callable[[Status], Iterable[Row]] = field(repr=False)
    by: str
    empty: str


def _queues(status: Status) -> Iterator[Row]:
    for each in status.queues:
        yield Row("", queue_cells(each))


def _tenants(status: Status) -> Iterator[Row]:
    found: defaultdict[str, list[tuple[str, TenantShare]]] = defaultdict(list)
    for queue in status.queues:
        for each in queue.tenants:
            found[each.key].append((queue.queue or PARKED, each))
    for key, places in found.items():
        first, shares = places[0][1], [share for _, share in places]
        waits = [each.waits_seconds for each in shares if each.waits_seconds is not None]
        state = min((each.state for each in shares), key=_STATES.index)
        values: tuple[Cell, ...] = (
            *(key.removeprefix("tenant:"), first.tier, state, first.held, first.limit),
            *(sum(each.waiting for each in shares), sum(each.startable for each in shares)),
            *(max(waits, default=None), ", ".join(queue for queue, _ in places)),
        )
        yield Row(key, values)


def _limits(status: Status) -> Iterator[Row]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    limits = {}
    for queue in status.queues:
        for each in queue.limits:
            limits[each.key] = each
            found[each.key].append(queue.queue or PARKED)
    for key, limit in limits.items():
        yield Row(key, (key, limit.reason or "open", limit.waiting, ", ".join(found[key])))


def _workers(status: Status) -> Iterator[Row]:
    leases = {each.owner: each.leases for each in status.owners}
    for each in status.workers:
        numbers = (leases.get(each.owner, 0), each.places)
        queues = ", ".join(each.queues)
        yield Row("", (each.name, *numbers, each.enforcement, each.path, each.pid, queues))
    for other in status.replies.unannounced:
        queues = ", ".join(other.queues or ())
        yield Row("", (other.name, None, None, "not announced", "", None, queues))


#: The tables by the key that shows them.
TABLES = {
    "u": Table(
        "queues",
        (
            *(Column("queue"), Column("waiting"), Column("startable", leaves=3)),
            *(Column("at tier"), Column("at limit"), Column("paused", leaves=4)),
            *(Column("oldest", wait_text), Column("running")),
            *(Column("delayed", leaves=1), Column("dead", leaves=2)),
        ),
        _queues,
        "waiting",
        "no queue has a task",
    ),
    "t": Table(
        "tenants",
        (
            *(Column("tenant"), Column("tier", leaves=3), Column("state"), Column("held")),
            *(Column("limit", number_text), Column("waiting"), Column("startable", leaves=2)),
            *(Column("first waits", wait_text), Column("queues", leaves=1)),
        ),
        _tenants,
        "waiting",
        "no tenant has a waiting task",
    ),
    "l": Table(
        "limits",
        (Column("limit"), Column("blocks by"), Column("waiting"), Column("queues", leaves=1)),
        _limits,
        "waiting",
        "no task waits at a limit",
    ),
    "w": Table(
        "workers",
        (
            *(Column("worker"), Column("running"), Column("places"), Column("enforces")),
            *(Column("path", leaves=2), Column("pid", leaves=3), Column("queues", leaves=1)),
        ),
        _workers,
        "worker",
        "no worker is alive",
    ),
}


def arranged(of: Table, status: Status, by: str, words: str = "") -> list[Row]:
    """Return the rows with ``words`` in a text, sorted: the largest number or the first text."""
    place = [each.head for each in of.columns].index(by)

    def order(row: Row) -> tuple[Any, ...]:
        value = row.values[place]
        ordered = value.casefold() if isinstance(value, str) else -(value or 0)
        return value is None, ordered, str(row.values[0])

    wanted = words.casefold()
    rows = (
        row
        for row in of.rows(status)
        if any(isinstance(each, str) and wanted in each.casefold() for each in row.values)
    )
    return sorted(rows, key=order)


def fitting(of: Table, rows: Sequence[Row], width: int) -> tuple[list[str], list[list[str]]]:
    """Return heads and texts that are at most ``width`` wide, each with a gap after it.

    Columns leave in their order until the others fit. Then the first one is cut.
    """
    texts = [
        [column.text(value) for column, value in zip(of.columns, row.values, strict=True)]
        for row in rows
    ]
    heads = [each.head for each in of.columns]
    widths = [GAP + max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    shown = list(range(len(heads)))
    leaving = {each.leaves: place for place, each in enumerate(of.columns) if each.leaves}
    for _, place in sorted(leaving.items()):
        if sum(widths[each] for each in shown) <= width:
            break
        shown.remove(place)
    over = sum(widths[each] for each in shown) - width
    most = max(NARROWEST, widths[0] - GAP - max(0, over))
    for row in texts:
        row[0] = row[0] if len(row[0]) <= most else f"{row[0][: most - 1]}…"
    return [heads[each] for each in shown], [[row[each] for each in shown] for row in texts]


def once_lines(status: Status) -> list[str]:
    """Return the verdict and all tables as text."""
    lines = [verdict_line(status.verdict)]
    for each in TABLES.values():
        rows = [
            [
                column.text(value) if column.text is not _text else value
                for column, value in zip(each.columns, row.values, strict=True)
            ]
            for row in arranged(each, status, each.by)
        ]
        heads = [column.head for column in each.columns]
        lines += ["", *table(heads, rows, empty=each.empty)]
    return lines


def pause_of(of: Fairness, key: str) -> str:
    """Return the paused key that stops ``key``, or "" if it is not paused."""
    try:
        holds = of.limits.inspect(key).holds
    except NotFound:
        return ""
    return (holds.pause_of or key) if holds.paused else ""


def pause(of: Fairness, key: str, reason: str) -> str:
    """Pause a limit, or a tenant in all services; return the result as a sentence."""
    tenant, by = _tenant(of, key), _by(reason)
    holds: KeyHolds = of.tenants.pause(tenant, by=by) if tenant else of.limits.pause(key, by=by)
    return _plain(holds_lines(holds))


def resume(of: Fairness, key: str, reason: str) -> str:
    """End a pause; return the result as a sentence."""
    return _plain(holds_lines(of.limits.resume(key, by=_by(reason))))


def boost(of: Fairness, key: str, reason: str) -> str:
    """Boost a tenant for an hour; return the result as a sentence."""
    tenant, service = read_tier_key(key, of.settings.tier_scope == "service") or ("", None)
    found = of.tenants.boost(tenant, service=service, reason=reason, by=person(None) or None)
    return _plain(overridden_lines(found))


def expect_textual() -> None:
    """Raise if textual is not installed.

    Raises:
        SettingsError: It is not. The text has the command that installs it.
    """
    if find_spec("textual") is None:
        raise SettingsError(
            f"top: expected textual, got: none installed; run: {install_command('top')}, "
            "or show it once with --once"
        )


def _tenant(of: Fairness, key: str) -> str:
    return (read_tier_key(key, of.settings.tier_scope == "service") or ("", None))[0]


def _by(reason: str) -> str:
    """Return the user with the reason: a pause has no other place for it."""
    return f"{person(None) or 'somebody'}: {reason}"[:PERSON_CHARACTERS]


def _plain(lines: Sequence[str]) -> str:
    return click.unstyle("; ".join(lines))
