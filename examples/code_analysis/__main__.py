"""The demo: `python -m examples.code_analysis`, which is `make demo`.

Invariant: no process is left after its end. The exit codes are:

- 0: all runs ended without a finding
- 1: there are findings
- 2: wrong usage
- 69: the demo could not run
- 128 plus the number of a signal: the signal ended it

Weakness: other work on the machine changes the times of the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from celery_fairness.testing.server import ServerFailed
from examples.code_analysis.catalogue import find_packages
from examples.code_analysis.comparison import LABELS, Comparison
from examples.code_analysis.interruption import Interrupted, Interruption
from examples.code_analysis.load import NothingToAnalyze, plan_load
from examples.code_analysis.picture import write_picture
from examples.code_analysis.processes import ProcessFailed
from examples.code_analysis.report import write_report
from examples.code_analysis.run import POOL_SLOTS, WORKERS, Mode, Run, run_load
from examples.code_analysis.table import PlainDisplay, open_display
from examples.code_analysis.users import USERS, the_flood

CANNOT_RUN = 69

#: The runs of each path of the package.
MODES: Mapping[str, tuple[Mode, ...]] = {
    "fairredis": ("plain", "turns", "fair"),
    "gate": ("plain", "gate"),
}
_HOW: Mapping[Mode, str] = {
    "plain": "one queue, no limits",
    "turns": "no limits, every user in turn, fairredis",
    "fair": "three queues a service, limits by tier, fairredis",
    "gate": "three queues a service, limits by tier, stock Redis",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    for name, path in (("--report", options.report), ("--picture", options.picture)):
        # Report it now, not after minutes of work.
        if path is not None and not os.access(path.absolute().parent, os.W_OK):
            parser.error(f"{name} expected in a folder that can be written, got: {path}")
    display = PlainDisplay(sys.stderr) if options.json else open_display()
    try:
        with Interruption() as interruption:
            modes = MODES[options.path]
            comparison = run_all(options.jobs, options.seed, display, interruption, modes)
            write_report(comparison, options.report)
            if options.picture is not None:
                write_picture(comparison, options.picture)
    except Interrupted as interrupted:
        print(f"demo {interrupted}; nothing is left running", file=sys.stderr)
        return interrupted.exit_code
    except (ServerFailed, ProcessFailed, NothingToAnalyze, OSError) as error:
        print(f"demo: {' '.join(str(error).split())}", file=sys.stderr)
        return CANNOT_RUN
    finally:
        display.close()
    if options.json:
        print(json.dumps(comparison.as_json(), indent=2))
    tell(comparison, options.report, display)
    return 1 if comparison.findings else 0


def run_all(
    flood_jobs: int,
    seed: int,
    display: PlainDisplay,
    interruption: Interruption,
    modes: Sequence[Mode],
) -> Comparison:
    """Run the load in each mode, one after the other."""
    orders = plan_load(find_packages(), flood_jobs, seed)
    jobs = sum(order.jobs for order in orders)
    display.say(
        f"{len(USERS)} users send {jobs} jobs, {the_flood().name} {flood_jobs} of them at once; "
        f"{WORKERS} workers with {POOL_SLOTS} processes each."
    )
    with tempfile.TemporaryDirectory(prefix="code-analysis-") as name:
        runs: dict[Mode, Run] = {}
        for number, mode in enumerate(modes, 1):
            display.say(f"\n{number}. {LABELS[mode]}: {_HOW[mode]}")
            runs[mode] = run_load(mode, orders, Path(name, mode), interruption, display.watch)
    return Comparison(runs["plain"], runs[modes[-1]], seed, runs.get("turns"))


def tell(comparison: Comparison, report: Path, display: PlainDisplay) -> None:
    """Print the result of the runs."""
    for run in comparison.runs:
        display.show(LABELS[run.mode], comparison.figures(run))
    for sentence in (
        comparison.sentence,
        comparison.turns_sentence,
        comparison.path_sentence,
    ):
        if sentence:
            display.say(sentence)
    for finding in comparison.findings:
        display.say(f"FOUND: {finding}")
    display.say(f"Report: {report}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.code_analysis",
        description="One user floods a code-analysis platform: plain Celery, then celery_fairness "
        "with turns alone, then with limits and turns.",
    )
    parser.add_argument(
        "--jobs", type=_positive, default=200, metavar="N", help="the flood's jobs (200)"
    )
    parser.add_argument(
        "--path",
        choices=("fairredis", "gate"),
        default="fairredis",
        help="how the package runs: its broker transport, or the gate on stock Redis (fairredis)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the load (1)")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("demo-report.html"),
        metavar="PATH",
        help="where to write the page (demo-report.html)",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="PATH",
        help="where to write the page's first charts as an SVG file (not written)",
    )
    parser.add_argument(
        "--json", action="store_true", help="a summary on standard output, the rest on error"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got: {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
