"""The page that shows both runs: `demo-report.html`.

Invariant: it is one file without JavaScript, and needs no other file and no internet. It is
readable in light and in dark.

Weakness: it shows one pair of runs on one machine, so it is a picture and no benchmark.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
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
from examples.code_analysis.comparison import FAIR_LABEL, PLAIN_LABEL, Comparison
from examples.code_analysis.figures import UserFigures, format_wait
from examples.code_analysis.jobs import Job
from examples.code_analysis.run import POOL_SLOTS, WORKERS, Run
from examples.code_analysis.table import format_seconds
from examples.code_analysis.users import the_flood

_STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
_LABELS = {"plain": PLAIN_LABEL, "fair": FAIR_LABEL}


def write_report(comparison: Comparison, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(render(comparison), encoding="utf-8")


def render(comparison: Comparison) -> str:
    """The page as text."""
    runs = comparison.runs
    flood = the_flood()
    slots = WORKERS * POOL_SLOTS
    jobs = sum(job.user == flood.name for job in comparison.fair.book.jobs.values())
    body = [
        "<header>",
        f"<h1>One user sends {jobs} jobs at once. Who waits?</h1>",
        f"<p>{escape(comparison.sentence)}</p>",
        "</header>",
        _tiles(comparison),
        _verdict(comparison),
        "<h2>How long each job waited</h2>",
        '<p class="note">A dot is a job, the bar and the number are the user’s p95. '
        + _legend()
        + "</p>",
        _pair(runs, _waits(comparison)),
        "<h2>Jobs running over time</h2>",
        f'<p class="note">Mean over {BIN_SECONDS:g} s; {WORKERS} workers, {slots} processes.</p>',
        _pair(runs, _running(comparison)),
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
    plain, fair = comparison.plain, comparison.fair
    flood = the_flood()
    at_once = [
        next(line.most_at_once for line in comparison.figures(run) if line.floods)
        for run in comparison.runs
    ]
    tiles = [
        (
            "the others’ wait, p95",
            format_wait(comparison.quiet_p95_seconds(plain)),
            format_wait(comparison.quiet_p95_seconds(fair)),
        ),
        (f"{flood.name}’s jobs at once, at most", str(at_once[0]), str(at_once[1])),
        (
            f"{flood.name} is done after",
            f"{comparison.flood_seconds(plain):.0f} s",
            f"{comparison.flood_seconds(fair):.0f} s",
        ),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><span class="what">{escape(what)}</span>'
            f'<span class="then">{escape(before)}</span><span class="arrow">→</span>'
            f'<span class="now">{escape(after)}</span></div>'
            for what, before, after in tiles
        )
        + "</div>"
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


def _pair(runs: Sequence[Run], charts: Sequence[str]) -> str:
    return (
        '<div class="pair">'
        + "".join(
            f"<figure><figcaption>{escape(_LABELS[run.mode])}</figcaption>{chart}</figure>"
            for run, chart in zip(runs, charts, strict=True)
        )
        + "</div>"
    )


def _waits(comparison: Comparison) -> list[str]:
    pair = [(run, comparison.figures(run)) for run in comparison.runs]
    scale = scale_to(wait for _, figures in pair for line in figures for wait in line.waits_seconds)
    return [
        draw_waits(f"Waiting time of each user with {_LABELS[run.mode]}", figures, scale)
        for run, figures in pair
    ]


def _running(comparison: Comparison) -> list[str]:
    runs = comparison.runs
    scale = scale_to(run.lasted_seconds for run in runs)
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
        limit = comparison.fair.limits.get(flood.tier) if run.mode == "fair" else None
        label = f"Jobs running over time with {_LABELS[run.mode]}"
        charts.append(draw_running(label, layers, scale, WORKERS * POOL_SLOTS, limit))
    return charts


def _table(comparison: Comparison) -> str:
    plain = {line.user: line for line in comparison.figures(comparison.plain)}
    fair = comparison.figures(comparison.fair)
    # On fairredis no worker rejects a job, because a job at its limit waits in Redis.
    refused = any(line.refusals for line in fair)
    rows = [_row(line, plain.get(line.user), refused) for line in fair]
    head = (
        '<tr><th colspan="3"></th><th colspan="3">' + PLAIN_LABEL + "</th>"
        f'<th colspan="{4 if refused else 3}">{FAIR_LABEL}</th></tr>'
        "<tr><th>user</th><th>tier</th><th>jobs</th>"
        "<th>wait p50</th><th>wait p95</th><th>at once</th>"
        "<th>wait p50</th><th>wait p95</th><th>at once</th>"
        + ("<th>rejections</th></tr>" if refused else "</tr>")
    )
    body = "".join(rows)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _row(fair: UserFigures, plain: UserFigures | None, refused: bool) -> str:
    limit = "" if fair.limit is None else f' <span class="dim">of {fair.limit}</span>'
    cells = [
        f"<td>{escape(fair.user)}</td>",
        f"<td>{escape(fair.tier.replace('_', ' '))}</td>",
        f"<td>{fair.jobs}</td>",
    ]
    for line in (plain, fair):
        if line is None:
            cells.append('<td colspan="3"></td>')
            continue
        cells += [
            f"<td>{format_seconds(line.wait_p50_seconds)}</td>",
            f"<td>{format_seconds(line.wait_p95_seconds)}</td>",
            f"<td>{line.most_at_once}{limit if line is fair else ''}</td>",
        ]
    if refused:
        cells.append(f"<td>{fair.refusals}</td>")
    mark = ' class="flooding"' if fair.floods else ""
    return f"<tr{mark}>{''.join(cells)}</tr>"


def _machine(comparison: Comparison) -> str:
    lines = [sum(job.lines for job in run.book.jobs.values()) for run in comparison.runs]
    return (
        f"Both runs: the same load (seed {comparison.seed}) on real source, "
        f"{lines[0]:,} and {lines[1]:,} lines parsed; they differ only in what beat added. "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{datetime.now().astimezone():%Y-%m-%d %H:%M}. Runs took "
        f"{comparison.plain.lasted_seconds:.0f} s and {comparison.fair.lasted_seconds:.0f} s."
    )
