"""The page that shows the runs: `demo-report.html`.

Invariant: it is one file without JavaScript, and needs no other file and no internet. It is
readable in light and in dark.

Weakness: it shows one row of runs on one machine, so it is a picture and no benchmark.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from examples.code_analysis.chart import (
    BIN_SECONDS,
    draw_running,
    draw_waits,
    mean_running,
    scale_to,
)
from examples.code_analysis.comparison import LABELS, Comparison
from examples.code_analysis.figures import UserFigures, format_wait
from examples.code_analysis.jobs import Job
from examples.code_analysis.run import POOL_SLOTS, WORKERS
from examples.code_analysis.table import format_seconds
from examples.code_analysis.users import the_flood

_FOLDER = Path(__file__).parent
CHART_STYLE = (_FOLDER / "chart.css").read_text(encoding="utf-8")
_STYLE = CHART_STYLE + (_FOLDER / "report.css").read_text(encoding="utf-8")


def write_report(comparison: Comparison, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(render(comparison), encoding="utf-8")


def render(comparison: Comparison) -> str:
    """The page as text."""
    flood = the_flood()
    slots = WORKERS * POOL_SLOTS
    jobs = sum(job.user == flood.name for job in comparison.fair.book.jobs.values())
    body = [
        "<header>",
        f"<h1>One user sends {jobs} jobs at once. Who waits?</h1>",
        f"<p>{escape(comparison.sentence)} {escape(comparison.turns_sentence)}</p>",
        "</header>",
        _tiles(comparison),
        _verdict(comparison),
        "<h2>How long each job waited</h2>",
        '<p class="note">A dot is a job, the bar and the number are the user’s p95. '
        + _legend()
        + "</p>",
        _row_of(comparison, draw_all_waits(comparison)),
        "<h2>Jobs running over time</h2>",
        f'<p class="note">Mean over {BIN_SECONDS:g} s; {WORKERS} workers, {slots} processes.</p>',
        _row_of(comparison, _running(comparison)),
        "<h2>Users</h2>",
        _table(comparison),
        f'<p class="note">{escape(comparison.path_sentence)}</p>',
        f"<footer>{escape(_machine(comparison))}</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>celery_fairness: one user sends {jobs} jobs</title>"
        f"<style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _tiles(comparison: Comparison) -> str:
    runs, flood = comparison.runs, the_flood()
    tiles = [
        ("the others’ wait, p95", [format_wait(comparison.quiet_p95_seconds(run)) for run in runs]),
        (
            f"{flood.name}’s jobs at once, at most",
            [str(comparison.flood_at_once(run)) for run in runs],
        ),
        (
            f"{flood.name} is done after",
            [f"{comparison.flood_seconds(run):.0f} s" for run in runs],
        ),
    ]
    return f'<div class="tiles">{"".join(_tile(*each) for each in tiles)}</div>'


def _tile(what: str, values: Sequence[str]) -> str:
    *before, last = map(escape, values)
    arrow = '<span class="arrow">→</span>'
    return (
        f'<div class="tile"><span class="what">{escape(what)}</span>'
        + "".join(f'<span class="then">{value}</span>{arrow}' for value in before)
        + f'<span class="now">{last}</span></div>'
    )


def _verdict(comparison: Comparison) -> str:
    findings = comparison.findings
    if not findings:
        return (
            '<p class="verdict good">With the package no user was above its limit, no job was '
            f"lost, none ran twice, and no quiet user’s p95 was above "
            f"{comparison.longest_quiet_seconds:g} s.</p>"
        )
    items = "".join(f"<li>{escape(finding)}</li>" for finding in findings)
    return f'<div class="verdict bad"><p>Found:</p><ul>{items}</ul></div>'


def _legend() -> str:
    flood = the_flood().name
    return "".join(
        f'<span class="key {kind}"></span>{escape(text)} '
        for kind, text in (
            ("flood", f"{flood}, who floods"),
            ("quiet", "the other users"),
            ("beat", "beat’s background jobs"),
        )
    )


def _row_of(comparison: Comparison, charts: Sequence[str]) -> str:
    return (
        '<div class="charts">'
        + "".join(
            f"<figure><figcaption>{escape(LABELS[run.mode])}</figcaption>{chart}</figure>"
            for run, chart in zip(comparison.runs, charts, strict=True)
        )
        + "</div>"
    )


def draw_all_waits(comparison: Comparison) -> list[str]:
    """One chart for each run: how long each job waited."""
    row = [(run, comparison.figures(run)) for run in comparison.runs]
    waits = (wait for _, figures in row for line in figures for wait in line.waits_seconds)
    scale = scale_to(waits, len(row))
    return [
        draw_waits(f"Waiting time of each user: {LABELS[run.mode]}", figures, scale)
        for run, figures in row
    ]


def _running(comparison: Comparison) -> list[str]:
    runs = comparison.runs
    scale = scale_to((run.lasted_seconds for run in runs), len(runs))
    flood = the_flood()
    charts = []
    for run in runs:
        bins = max(1, math.ceil(run.lasted_seconds / BIN_SECONDS))
        groups: dict[str, list[Job]] = {"flood": [], "quiet": [], "beat": []}
        for job in run.book.jobs.values():
            kind = "beat" if job.user is None else "flood" if job.user == flood.name else "quiet"
            groups[kind].append(job)
        layers = [
            (
                kind,
                mean_running(
                    (
                        (start - run.began_seconds, end - run.began_seconds)
                        for job in jobs
                        for start, end in job.runs(run.until_seconds)
                    ),
                    bins,
                ),
            )
            for kind, jobs in groups.items()
        ]
        limit = run.limits.get(flood.tier)
        label = f"Jobs running over time: {LABELS[run.mode]}"
        charts.append(draw_running(label, layers, scale, WORKERS * POOL_SLOTS, limit))
    return charts


def _table(comparison: Comparison) -> str:
    runs = comparison.runs
    by_user = [{line.user: line for line in comparison.figures(run)} for run in runs]
    # On fairredis no worker rejects a job, because a job at its limit waits in Redis.
    refused = any(line.refusals for line in by_user[-1].values())
    names = "".join(f'<th colspan="3">{LABELS[run.mode]}</th>' for run in runs)
    columns = "<th>wait p50</th><th>wait p95</th><th>at once</th>" * len(runs)
    head = (
        f'<tr><th colspan="3"></th>{names}{"<th></th>" if refused else ""}</tr>'
        f"<tr><th>user</th><th>tier</th><th>jobs</th>{columns}"
        f"{'<th>rejections</th>' if refused else ''}</tr>"
    )
    body = "".join(_row([lines.get(user) for lines in by_user], refused) for user in by_user[-1])
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _row(lines: Sequence[UserFigures | None], refused: bool) -> str:
    """The row of one user, with its line of each run. A run may have none, and the last has one."""
    last = lines[-1]
    assert last is not None
    cells = [
        f"<td>{escape(last.user)}</td>",
        f"<td>{escape(last.tier.replace('_', ' '))}</td>",
        f"<td>{last.jobs}</td>",
    ]
    for line in lines:
        if line is None:
            cells.append('<td colspan="3"></td>')
            continue
        limited = line is last and line.limit is not None
        cells += [
            f"<td>{format_seconds(line.wait_p50_seconds)}</td>",
            f"<td>{format_seconds(line.wait_p95_seconds)}</td>",
            f"<td>{line.most_at_once}"
            + (f' <span class="dim">of {line.limit}</span></td>' if limited else "</td>"),
        ]
    if refused:
        cells.append(f"<td>{last.refusals}</td>")
    mark = ' class="flooding"' if last.floods else ""
    return f"<tr{mark}>{''.join(cells)}</tr>"


def _machine(comparison: Comparison) -> str:
    runs = comparison.runs
    lines = [sum(job.lines for job in run.book.jobs.values()) for run in runs]
    return (
        f"Every run: the same load (seed {comparison.seed}) on real source, "
        f"{_listed(f'{count:,}' for count in lines)} lines parsed; they differ only in what beat "
        f"added. {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{datetime.now().astimezone():%Y-%m-%d %H:%M}. Runs took "
        f"{_listed(f'{run.lasted_seconds:.0f} s' for run in runs)}."
    )


def _listed(texts: Iterable[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} and {last}"
