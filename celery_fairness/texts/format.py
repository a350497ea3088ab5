"""Numbers, texts and tables for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from celery_fairness.control.key.views import Pagination
from celery_fairness.limiter.types import HeldLease
from celery_fairness.util.printable import printable

Cell = str | int | float | None

#: Stands for the queue of parked tasks.
PARKED = "(parked)"


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], empty: str = "") -> list[str]:
    """Return aligned lines, with numbers to the right; the line ``empty`` if there is no row."""
    if not rows and empty:
        return [empty]
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    right = [
        all(not isinstance(cell, str) for cell in column) for column in zip(*rows, strict=True)
    ]
    right = right or [False] * len(heads)

    def line(cells: Sequence[str]) -> str:
        parts = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(parts).rstrip()

    return [click.style(line(heads), bold=True), *map(line, texts)]


def count(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def seconds_text(seconds: float) -> str:
    """Return a time, to a tenth of a second."""
    return f"{seconds:.1f} s"


def wait_text(waited: float | None) -> str:
    """Return a time; "" if it is unknown."""
    return "" if waited is None else seconds_text(waited)


def weight_text(weight: float | None) -> str:
    """Return a weight; "" if there is none."""
    return "" if weight is None else f"{weight:g}"


def quoted(text: str) -> str:
    """Return ``text`` as one word of a shell."""
    return shlex.quote(printable(text))


def held_by(lease: HeldLease) -> str:
    """Return the id of the task that holds a lease, or the lease's id if it has no task."""
    return lease.task_id or f"lease {lease.id}"


def held_for(lease: HeldLease) -> str:
    """Return the age of a lease; "" if it is unknown."""
    return wait_text(lease.held_seconds)


def page_line(pagination: Pagination, noun: str) -> str:
    """Return the position of a page in the whole."""
    pages = -(-pagination.total // pagination.per_page) or 1
    return f"page {pagination.page} of {pages}, {count(pagination.total, noun)}"
