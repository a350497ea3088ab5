"""The screen of ``celery -A APP fairness top``.

One worker reads a status, shows it and waits. It reads in a thread, so the keys always work. While
Redis is away the screen keeps its last numbers, shows the problem, and tries again.

The widgets end before the workers do. A worker whose call ends in between finds no widget. So every
method that a worker calls does nothing once the screen has ended.

Weakness: the end of the command waits for a call of Redis that has begun, until its time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from celery_fairness.app.fairness import Fairness
from celery_fairness.cli import top
from celery_fairness.control.health.views import Status
from celery_fairness.errors import LimiterUnavailable, NotFound, TenantInvalid
from celery_fairness.texts.format import count
from celery_fairness.util.printable import printable

KEYS = "u t l w table  s sort  / filter  p pause  b boost  ? help  q end"
HELP = """\
u queues, t tenants, l limits, w workers: shows that table
s  sorts by the next column
/  shows only rows with a text; escape ends it
p  pauses the selected tenant or limit, or resumes it; asks first
b  boosts the selected tenant for an hour: twice its number; asks first
up, down, page up, page down: select a row
q, escape or Ctrl-C: end

Tenants and limits are those with waiting tasks. Any key closes this."""


class Box(ModalScreen[str | None]):
    """Shows a text until a key is pressed."""

    DEFAULT_CSS = """
    Box { align: center middle; }
    Box Static { width: auto; max-width: 90%; height: auto; border: round $accent; padding: 0 1; }
    Box Input { width: 60; max-width: 90%; display: none; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the text."""
        yield Static(self._text, markup=False)

    def on_key(self, event: Key) -> None:
        """Close it."""
        event.stop()
        self.dismiss(None)


class Ask(Box):
    """Waits for y or n, and after y for a reason. Returns the reason, or None."""

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(f"{self._text}  y/n", markup=False)
        yield Input(placeholder="reason, then enter", max_length=150, disabled=True)

    def on_key(self, event: Key) -> None:
        """Read y or n. Escape is n at any time."""
        reason = self.query_one(Input)
        # Otherwise textual calls the method of Box as well.
        event.prevent_default()
        if event.key == "escape" or (not reason.display and event.key == "n"):
            self.dismiss(None)
        elif not reason.display and event.key == "y":
            reason.display, reason.disabled = True, False
            reason.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Read the reason; it must not be empty."""
        event.stop()
        if event.value.strip():
            self.dismiss(event.value.strip())


class TopScreen(App[None]):
    """Verdict, table, and what keys do."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Static { height: auto; }
    DataTable { height: 1fr; }
    #filter { display: none; }
    .ok { color: $text-success; } .busy { color: $text-warning; } .trouble { color: $text-error; }
    #keys { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"table('{key}')") for key in top.TABLES),
        Binding("s", "sort"),
        Binding("slash", "filter"),
        Binding("p", "pause"),
        Binding("b", "boost"),
        Binding("question_mark", "explain"),
        Binding("q", "quit"),
        Binding("escape", "leave"),
        Binding("ctrl+c", "quit", priority=True),
    ]

    def __init__(self, of: Fairness, every_seconds: float) -> None:
        super().__init__()
        self._of, self._every_seconds = of, every_seconds
        self._wake = asyncio.Event()
        self._status: Status | None = None
        self._problem = ""
        self._table = top.TABLES["u"]
        self._by = {each.name: each.by for each in top.TABLES.values()}
        self._rows: list[top.Row] = []
        self._heads: list[str] = []

    def compose(self) -> ComposeResult:
        """Make the screen, from the top."""
        yield Static("reading …", id="verdict", markup=False)
        yield Static(id="facts", markup=False)
        yield DataTable(id="rows", cursor_type="row")
        yield Static(id="message", markup=False)
        yield Input(id="filter", placeholder="show rows with …")
        yield Static(KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(DataTable).focus()
        self._read()

    @work
    async def _read(self) -> None:
        while self.is_running:
            try:
                self._status = await asyncio.to_thread(self._of.stats.status)
                self._problem = ""
            except LimiterUnavailable as error:
                self._problem = f"{error.address} does not answer, trying again: {error.problem}"
            self._show()
            # Python 3.11: wait_for loses a cancellation that comes with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_seconds):
                    await self._wake.wait()
            self._wake.clear()

    def _show(self) -> None:
        """Show the last status, and the problem if Redis is away."""
        if not self.is_running:
            return
        status = self._status
        verdict = self.screen_stack[0].query_one("#verdict", Static)
        if self._problem:
            verdict.update(printable(self._problem))
        elif status is not None:
            verdict.update(printable(status.verdict.line))
        level = "trouble" if self._problem or status is None else status.verdict.level
        verdict.set_classes(level)
        if status is not None:
            self._show_table(status)

    def _show_table(self, status: Status) -> None:
        name, words = self._table.name, self.screen_stack[0].query_one("#filter", Input).value
        table = self.screen_stack[0].query_one(DataTable)
        selected, by = self._selected(), self._by[name]
        self._rows = top.arranged(self._table, status, by, words)
        # Two columns less than the terminal: a scroll bar may need them.
        self._heads, texts = top.fitting(self._table, self._rows, self.size.width - 2)
        table.clear(columns=True)
        for head in self._heads:
            table.add_column(Text(f"{head}↓" if head == by else head), key=head)
        for row in texts:
            table.add_row(*(Text(cell) for cell in row))
        if selected in self._rows_keys():
            table.move_cursor(row=self._rows_keys().index(selected), animate=False)
        found = count(len(self._rows), name.removesuffix("s")) if self._rows else self._table.empty
        order = f", by {by}" if self._rows else ""
        facts = f"{found}{order}" + (f", with “{words}”" if words else "")
        at = f"at {status.at:%H:%M:%S} UTC"
        self.screen_stack[0].query_one("#facts", Static).update(
            printable(f"{status.redis} {status.namespace} {at}: {facts}")
        )

    def _rows_keys(self) -> list[str]:
        return [str(row.values[0]) for row in self._rows]

    def _selected(self) -> str:
        """Return the first value of the selected row, or "" without one."""
        place = self.screen_stack[0].query_one(DataTable).cursor_row
        return self._rows_keys()[place] if 0 <= place < len(self._rows) else ""

    def on_resize(self, _: Resize) -> None:
        """Fit the table into the new width."""
        self._show()

    def on_input_changed(self, _: Input.Changed) -> None:
        """Filter while the person types."""
        self._show()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Keep the filter, and go back to the table."""
        self.query_one(DataTable).focus()

    def action_table(self, key: str) -> None:
        """Show another table."""
        self._table, self._rows = top.TABLES[key], []
        self._show()

    def action_sort(self) -> None:
        """Sort by the next column that is shown."""
        by, heads = self._by[self._table.name], self._heads or [self._table.by]
        place = heads.index(by) if by in heads else -1
        self._by[self._table.name] = heads[(place + 1) % len(heads)]
        self._show()

    def action_filter(self) -> None:
        """Ask for a text."""
        words = self.query_one("#filter", Input)
        words.display = True
        words.focus()

    def action_explain(self) -> None:
        """Show the help."""
        self.push_screen(Box(HELP))

    def action_leave(self) -> None:
        """End the filter, or the command."""
        words = self.query_one("#filter", Input)
        if not words.display:
            self.exit()
        words.display, words.value = False, ""
        self.query_one(DataTable).focus()

    @work
    async def action_pause(self) -> None:
        """Pause or resume the selected tenant or limit."""
        if (key := self._key("tl")) and (paused := await self._call(top.pause_of, key)) is not None:
            if paused:
                await self._ask(f"Resume {paused}?", top.resume, paused)
            else:
                await self._ask(f"Pause {key}? Running tasks go on.", top.pause, key)

    @work
    async def action_boost(self) -> None:
        """Boost the selected tenant."""
        if key := self._key("t"):
            await self._ask(f"Boost {key} to twice its number for an hour?", top.boost, key)

    def _key(self, tables: str) -> str:
        """Return the key of the selected row if it is in one of these tables."""
        if not self.is_running:
            return ""
        place, names = self.query_one(DataTable).cursor_row, [top.TABLES[each] for each in tables]
        if self._table not in names or not 0 <= place < len(self._rows):
            nouns = {"tl": "a tenant (t) or a limit (l)", "t": "a tenant (t)"}
            self._say(f"select {nouns[tables]} first")
            return ""
        return self._rows[place].key

    async def _ask(self, question: str, act: Callable[[Fairness, str, str], str], key: str) -> None:
        reason = await self.push_screen_wait(Ask(printable(question)))
        if reason is None:
            self._say("nothing was changed")
        elif (done := await self._call(act, key, reason)) is not None:
            self._say(done)
            self._wake.set()

    async def _call(self, ask: Callable[..., str], *arguments: str) -> str | None:
        """Call Redis in a thread; show a problem and return None if there is one.

        It returns None too if the screen ended meanwhile.
        """
        try:
            found = await asyncio.to_thread(ask, self._of, *arguments)
        except (LimiterUnavailable, NotFound, TenantInvalid, ValueError) as error:
            self._say(f"not done: {error}")
            return None
        return found if self.is_running else None

    def _say(self, text: str) -> None:
        if not self.is_running:
            return
        self.screen_stack[0].query_one("#message", Static).update(printable(text))
