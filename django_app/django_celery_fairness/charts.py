"""Charts as SVG, drawn on the server: no script and nothing from the internet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log10

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 640, 180
#: Room for the labels at the left and below.
LEFT, BELOW, ABOVE = 56, 22, 8
#: The height of the lowest line.
BOTTOM = HEIGHT - BELOW
#: Steps of the axis of times, in seconds.
STEPS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
STEP_TEXTS = ("1 ms", "10 ms", "0.1 s", "1 s", "10 s", "100 s", "17 min", "3 h")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        name: What it shows.
        css: Its class, which gives its colour.
        points: A value for each column, of a time in seconds. None leaves a gap.
    """

    name: str
    css: str
    points: Sequence[float | None]


def times(lines: Sequence[Line], summary: str, first: str, last: str) -> SafeString:
    """Return a chart of times over columns, with a logarithmic axis.

    Args:
        lines: The lines. All have the same number of points.
        summary: The chart in one sentence, for readers who do not see it.
        first: Label of the first column.
        last: Label of the last column.
    """
    values = [value for line in lines for value in line.points if value]
    low = max([step for step in STEPS if step <= min(values, default=1.0)] or [STEPS[0]])
    high = min([step for step in STEPS if step >= max(values, default=1.0)] or [STEPS[-1]])
    high = high if high > low else low * 10
    steps = [
        (_y(step, low, high), text)
        for step, text in zip(STEPS, STEP_TEXTS, strict=True)
        if low <= step <= high
    ]
    grid = _grid(steps)
    paths = _paths(lines, lambda value: _y(value, low, high))
    return _chart(summary, (grid, paths), first, last)


def rates(lines: Sequence[Line], summary: str, first: str, last: str) -> SafeString:
    """Return a chart of counts over columns as lines, with an axis from zero.

    Arguments as for :func:`times`.
    """
    most, bottom = max([1.0, *(value or 0.0 for line in lines for value in line.points)]), BOTTOM
    paths = _paths(lines, lambda value: round(bottom - value / most * (bottom - ABOVE), 1))
    return _chart(summary, (_grid_from_zero(most), paths), first, last)


def counts(values: Sequence[int], summary: str, first: str, last: str) -> SafeString:
    """Return a chart of a count for each column, with an axis from zero.

    Args:
        values: The counts.
        summary: The chart in one sentence, for readers who do not see it.
        first: Label of the first column.
        last: Label of the last column.
    """
    most, bottom = max([1, *values]), BOTTOM
    step = (WIDTH - LEFT) / max(1, len(values))
    grid = _grid_from_zero(most)
    # A count of a few is still a pixel high.
    heights = [max(1.0, round(value / most * (bottom - ABOVE), 1)) for value in values]
    columns = format_html_join(
        "",
        '<rect class="count" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        (
            (round(LEFT + index * step, 1), bottom - height, round(step * 0.8, 1), height, value)
            for index, (value, height) in enumerate(zip(values, heights, strict=True))
            if value
        ),
    )
    return _chart(summary, (grid, columns), first, last)


def _chart(summary: str, parts: tuple[SafeString, SafeString], first: str, last: str) -> SafeString:
    return format_html(
        '<svg class="fairness-chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}'
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text></svg>',
        *(WIDTH, HEIGHT, summary, *parts),
        *(LEFT, HEIGHT - 4, first, WIDTH, HEIGHT - 4, last),
    )


def _grid_from_zero(most: float) -> SafeString:
    return _grid([(BOTTOM, "0"), (ABOVE, f"{most:,.0f}")])


def _grid(steps: Iterable[tuple[float, str]]) -> SafeString:
    """Return lines across the chart. A step has its height and its label."""
    return format_html_join(
        "",
        '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        '<text x="{}" y="{}" text-anchor="end">{}</text>',
        ((LEFT, WIDTH, y, y, LEFT - 6, y + 4, text) for y, text in steps),
    )


def _paths(lines: Sequence[Line], y: Callable[[float], float]) -> SafeString:
    return format_html_join(
        "",
        '<path class="{}" d="{}"><title>{}</title></path>',
        ((line.css, _path(line.points, y), line.name) for line in lines),
    )


def _y(value: float, low: float, high: float) -> float:
    part = log10(max(value, low) / low) / log10(high / low)
    return round(BOTTOM - min(1.0, part) * (BOTTOM - ABOVE), 1)


def _path(points: Sequence[float | None], height: Callable[[float], float]) -> str:
    """Return the path through the points. A point beside two gaps is a short stroke."""
    step = (WIDTH - LEFT) / max(1, len(points) - 1)
    parts, pen_is_down = [], False
    for index, value in enumerate(points):
        if value is None:
            pen_is_down = False
            continue
        x, y = round(LEFT + index * step, 1), height(value)
        parts.append(f"L{x} {y}" if pen_is_down else f"M{x} {y}h1")
        pen_is_down = True
    return "".join(parts)
