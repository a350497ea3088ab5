"""The report's first row of charts as one SVG file, for a page that shows a picture.

Invariant: the file needs no other file, and is readable in light and in dark.

Weakness: text becomes small where the picture is shown narrower than it is.
"""

from __future__ import annotations

from pathlib import Path

from examples.code_analysis.chart import PLOTS, Scale, waits_height
from examples.code_analysis.comparison import LABELS, Comparison
from examples.code_analysis.report import CHART_STYLE, draw_all_waits

_GAP, _TITLE = 20, 30
_STYLE = """\
svg { font: 12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.page { fill: var(--page); }
svg .title { font-size: 15px; font-weight: 600; }
"""


def write_picture(comparison: Comparison, path: Path) -> None:
    """Write the picture.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(draw(comparison), encoding="utf-8")


def draw(comparison: Comparison) -> str:
    """The picture as text."""
    charts = draw_all_waits(comparison)
    each = Scale(1.0, PLOTS[len(charts)]).width
    width = each * len(charts) + _GAP * (len(charts) - 1)
    height = _TITLE + waits_height(comparison.figures(comparison.fair))
    label = "How long each job of each user waited: " + ", ".join(
        LABELS[run.mode] for run in comparison.runs
    )
    parts = []
    for number, (run, chart) in enumerate(zip(comparison.runs, charts, strict=True)):
        inner = chart.partition(">")[2].removesuffix("</svg>")
        parts.append(
            f'<g transform="translate({number * (each + _GAP)} {_TITLE})">'
            f'<text class="title" x="8" y="-10">{LABELS[run.mode]}</text>{inner}</g>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{label}"><style>{CHART_STYLE}{_STYLE}</style>'
        f'<rect class="page" width="{width}" height="{height}"/>{"".join(parts)}</svg>\n'
    )
