"""The report's charts, as SVG text.

Invariant: the text contains no script, no font and no external address. Colours are CSS variables
of the page, so one drawing serves light and dark. The runs of a row have the same scale.

Weakness: running jobs are drawn as means of short intervals, which flattens shorter peaks. The
table's "most at once" is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from examples.code_analysis.figures import UserFigures

_LEFT, _RIGHT, _TOP, _BOTTOM = 120, 54, 8, 34
#: Width between the names and the values, by the number of charts in a row.
PLOTS = {2: 386, 3: 206}

ROW = 24
AREA_HEIGHT = 190
#: The intervals over which running jobs are averaged.
BIN_SECONDS = 0.25


@dataclass(frozen=True)
class Scale:
    """Values from 0 to `largest`, drawn from left to right on a width of `plot`."""

    largest: float
    plot: int = PLOTS[2]

    @property
    def ticks(self) -> list[float]:
        """Round values along the scale, 0 included."""
        step = _round_step(self.largest / 5)
        return [step * number for number in range(int(self.largest / step + 1e-9) + 1)]

    def x(self, value: float) -> float:
        """The position of a value."""
        return _LEFT + self.plot * min(value, self.largest) / self.largest

    @property
    def end(self) -> int:
        """The right end of the values."""
        return _LEFT + self.plot

    @property
    def width(self) -> int:
        """The width of a chart, with its names and values."""
        return self.end + _RIGHT


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def scale_to(values: Iterable[float], charts: int = 2) -> Scale:
    """A scale on which all values have room, for a row of charts."""
    return Scale(max([1.0, *values]) * 1.02, PLOTS[charts])


def draw_waits(label: str, figures: Sequence[UserFigures], scale: Scale) -> str:
    """One row per user: a dot per job where its wait lies, and a bar at p95."""
    height = waits_height(figures)
    parts = [*_x_axis(scale, height, "seconds waited")]
    for number, line in enumerate(figures):
        middle = _TOP + ROW * number + ROW / 2
        kind = "flood" if line.floods else "quiet" if line.quiet else "beat"
        tier = escape(line.tier.replace("_", " "))
        name = f'{escape(line.user)}<tspan class="dim"> {tier}</tspan>'
        parts.append(f'<text class="name" x="{_LEFT - 10}" y="{middle + 4:.1f}">{name}</text>')
        parts.append(_dots(line, scale, middle, kind))
        if line.wait_p95_seconds is not None:
            x = scale.x(line.wait_p95_seconds)
            parts.append(
                f'<line class="p95 {kind}" x1="{x:.1f}" x2="{x:.1f}" '
                f'y1="{middle - 9:.1f}" y2="{middle + 9:.1f}"/>'
                f'<text class="value" x="{scale.end + 8}" y="{middle + 4:.1f}">'
                f"{line.wait_p95_seconds:.1f} s</text>"
            )
    return _svg(label, scale, height, parts)


def waits_height(figures: Sequence[UserFigures]) -> int:
    """The height of a chart of waits."""
    return _TOP + ROW * len(figures) + _BOTTOM


def _dots(line: UserFigures, scale: Scale, middle: float, kind: str) -> str:
    # Spread over the row's height in a fixed pattern, so that many equal waits stay visible.
    spread = [0.0, -3.5, 3.5, -6.0, 6.0, -1.8, 1.8] if len(line.waits_seconds) > 1 else [0.0]
    return "".join(
        f'<circle class="{kind}" r="2.6" cx="{scale.x(wait):.1f}" '
        f'cy="{middle + spread[number % len(spread)]:.1f}"/>'
        for number, wait in enumerate(sorted(line.waits_seconds))
    )


def mean_running(runs: Iterable[tuple[float, float]], bins: int) -> list[float]:
    """How many runs there were on average in each interval; times count from 0."""
    busy = [0.0] * bins
    for start, end in runs:
        first = max(0, int(start / BIN_SECONDS))
        for number in range(first, min(bins, int(end / BIN_SECONDS) + 1)):
            begin = number * BIN_SECONDS
            busy[number] += max(0.0, min(end, begin + BIN_SECONDS) - max(start, begin))
    return [seconds / BIN_SECONDS for seconds in busy]


def draw_running(
    label: str,
    layers: Sequence[tuple[str, Sequence[float]]],
    scale: Scale,
    most: int,
    limit: int | None,
) -> str:
    """Areas on top of each other, one per layer (its CSS class, its mean of each interval)."""
    height = _TOP + AREA_HEIGHT + _BOTTOM
    bottom = _TOP + AREA_HEIGHT

    def y(value: float) -> float:
        return bottom - AREA_HEIGHT * value / most

    parts = [*_x_axis(scale, height, "seconds since the flood")]
    for value in range(0, most + 1, 2 if most > 4 else 1):
        text = f'<text class="name" x="{_LEFT - 10}" y="{y(value) + 4:.1f}">{value}</text>'
        parts += [_level("grid", y(value), scale), text]
    below = [0.0] * max((len(values) for _, values in layers), default=0)
    for kind, values in layers:
        above = [low + value for low, value in zip(below, values, strict=True)]
        upper = _steps(above, scale, y)
        lower = _steps(below, scale, y)[::-1]
        points = " ".join(f"{x:.1f},{y_:.1f}" for x, y_ in [*upper, *lower])
        parts.append(f'<polygon class="area {kind}" points="{points}"/>')
        below = above
    if limit is not None:
        place = f'x="{scale.end + 8}" y="{y(limit) + 4:.1f}"'
        parts += [
            _level("limit", y(limit), scale),
            f'<text class="value" {place}>limit {limit}</text>',
        ]
    return _svg(label, scale, height, parts)


def _level(kind: str, y: float, scale: Scale) -> str:
    return f'<line class="{kind}" x1="{_LEFT}" x2="{scale.end}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _steps(
    values: Sequence[float], scale: Scale, y: Callable[[float], float]
) -> list[tuple[float, float]]:
    points = []
    for number, value in enumerate(values):
        points.append((scale.x(number * BIN_SECONDS), y(value)))
        points.append((scale.x((number + 1) * BIN_SECONDS), y(value)))
    return points


def _x_axis(scale: Scale, height: int, title: str) -> Iterable[str]:
    bottom = height - _BOTTOM
    for value in scale.ticks:
        x = scale.x(value)
        yield (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15}">{value:g}</text>'
        )
    yield f'<text class="axis" x="{scale.end}" y="{bottom + 30}">{escape(title)}</text>'


def _svg(label: str, scale: Scale, height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {scale.width} {height}">'
        + "".join(parts)
        + "</svg>"
    )
