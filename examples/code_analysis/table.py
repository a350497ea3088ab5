"""The table of users, on a terminal or in a plain file.

Invariant: the plain form has no colour and no control characters, and the columns are the same in
both forms.

Weakness: the live form needs the package rich. Without it a terminal gets the plain form.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from examples.code_analysis.figures import UserFigures, by_user
from examples.code_analysis.run import Run

COLUMNS = ("user", "tier", "jobs", "done", "rejected", "wait p50", "wait p95", "most at once")
_LEFT = 2
_PROGRESS_SECONDS = 5.0


def cells(line: UserFigures) -> tuple[str, ...]:
    """One row of the table: the figures of a user."""
    return (
        line.user + (" (flood)" if line.floods else ""),
        line.tier or "-",
        str(line.jobs),
        str(line.done),
        str(line.refusals),
        format_seconds(line.wait_p50_seconds),
        format_seconds(line.wait_p95_seconds),
        f"{line.most_at_once} of {line.limit}"
        if line.limit is not None
        else str(line.most_at_once),
    )


def format_seconds(seconds: float | None) -> str:
    """A wait as text."""
    return "-" if seconds is None else f"{seconds:.2f} s"


def shown(figures: Sequence[UserFigures]) -> list[tuple[str, ...]]:
    """The head and the rows, without rejections if there are none.

    On fairredis a job at its limit waits in Redis, so no worker rejects one.
    """
    rows = [COLUMNS, *(cells(line) for line in figures)]
    if any(line.refusals for line in figures):
        return rows
    at = COLUMNS.index("rejected")
    return [row[:at] + row[at + 1 :] for row in rows]


def format_plain(figures: Sequence[UserFigures]) -> str:
    """The table as aligned text."""
    rows = shown(figures)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < _LEFT else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


class PlainDisplay:
    """Lines of text; while a run goes on, one every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream."""
        self._stream = stream
        self._said_seconds = 0.0

    def say(self, text: str) -> None:
        """Write one line, at once."""
        print(text, file=self._stream, flush=True)

    def watch(self, run: Run) -> None:
        """Write how far the run is, every few seconds."""
        if run.ended_seconds is None and time.monotonic() - self._said_seconds < _PROGRESS_SECONDS:
            return
        self._said_seconds = time.monotonic()
        self.say("  " + progress(run))

    def show(self, title: str, figures: Sequence[UserFigures]) -> None:
        """Write the table."""
        self.say(f"\n{title}\n\n{format_plain(figures)}\n")

    def close(self) -> None:
        """Give the terminal back; harmless when there is nothing to close."""


def progress(run: Run) -> str:
    """How far a run is, in one line."""
    jobs = run.book.jobs.values()
    running = sum(len(job.starts) > len(job.ends) for job in jobs)
    refusals = sum(job.refusals for job in jobs)
    return (
        f"{run.lasted_seconds:5.1f} s: {sum(job.done for job in jobs)} of {len(jobs)} jobs done, "
        f"{running} running" + (f", {refusals} rejections" if refusals else "")
    )


class LiveDisplay(PlainDisplay):
    """A table on a terminal that is drawn anew while the run goes on."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on a terminal.

        Raises:
            ImportError: rich is not installed. Use `PlainDisplay`.
        """
        from rich.console import Console

        super().__init__(stream)
        self._console = Console(file=stream, highlight=False)
        self._live: Any = None

    def say(self, text: str) -> None:
        """Write one line."""
        self._console.print(text, markup=False)

    def watch(self, run: Run) -> None:
        """Draw the run's table; it disappears when the run has ended."""
        from rich.live import Live

        if run.ended_seconds is not None:
            self.close()
            return
        if self._live is None:
            # Without its thread: the demo starts processes, and a fork wants one thread.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        figures = by_user(run.book.jobs.values(), run.limits, run.until_seconds)
        self._live.update(self._table(progress(run), figures), refresh=True)

    def show(self, title: str, figures: Sequence[UserFigures]) -> None:
        """Draw the final table."""
        self._console.print()
        self._console.print(self._table(title, figures))

    def close(self) -> None:
        """Take the running table away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    @staticmethod
    def _table(title: str, figures: Sequence[UserFigures]) -> Any:
        from rich.table import Table

        # Without lines between the columns it fits a terminal of 80 characters.
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            header_style="dim",
            box=None,
            padding=(0, 2, 0, 0),
            pad_edge=False,
        )
        head, *rows = shown(figures)
        for column, name in enumerate(head):
            table.add_column(name, justify="left" if column < _LEFT else "right", no_wrap=True)
        for line, row in zip(figures, rows, strict=True):
            table.add_row(*row, style="yellow" if line.floods else None)
        return table


def open_display(stream: TextIO | None = None) -> PlainDisplay:
    """The live form on a terminal if rich is installed, and the plain form otherwise.

    Args:
        stream: the output. None is the present standard output.
    """
    stream = sys.stdout if stream is None else stream
    if stream.isatty():
        try:
            return LiveDisplay(stream)
        except ImportError:
            pass
    return PlainDisplay(stream)
