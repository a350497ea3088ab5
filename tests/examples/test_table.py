"""The table: plain in a file, drawn anew on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from examples.code_analysis.table import LiveDisplay, PlainDisplay, format_plain, open_display
from tests.examples.made_runs import a_good_comparison, made_job, made_run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_plain_table_is_aligned_and_has_no_control_characters() -> None:
    comparison = a_good_comparison()
    text = format_plain(comparison.figures(comparison.fair))
    lines = text.split("\n")

    assert text.replace("\n", "").isprintable()
    assert lines[0].split("  ")[0] == "user"
    assert lines[1].startswith("fred (flood)  free")
    assert lines[1].endswith("1 of 1")
    assert {len(line) for line in lines[1:-1]} == {len(lines[0])}


def test_a_file_gets_plain_lines() -> None:
    stream = io.StringIO()
    display = open_display(stream)
    run = made_run("fair", [made_job("fred", 0.0, 1.0, 2.0, refusals=3)], ended_seconds=20.0)

    display.watch(run)
    display.close()

    assert type(display) is PlainDisplay
    assert stream.getvalue() == "   20.0 s: 1 of 1 jobs done, 0 running, 3 rejections\n"


def test_progress_comes_every_few_seconds_only() -> None:
    stream = io.StringIO()
    display = open_display(stream)
    run = made_run("fair", [])
    run.ended_seconds = None

    for _ in range(20):
        display.watch(run)

    assert stream.getvalue().count("jobs done") == 1


def test_a_terminal_gets_the_live_table_and_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    display = open_display(stream)
    run = a_good_comparison().fair
    run.ended_seconds = None

    display.watch(run)
    display.watch(run)
    running = stream.getvalue()
    display.close()
    display.close()

    assert isinstance(display, LiveDisplay)
    assert "fred (flood)" in running
    hide_cursor, show_cursor = "\x1b[?25l", "\x1b[?25h"
    assert running.count(hide_cursor) == 1
    assert show_cursor not in running
    assert stream.getvalue().count(show_cursor) == 1


def test_a_terminal_without_rich_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert type(open_display(Terminal())) is PlainDisplay
