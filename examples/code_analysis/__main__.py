"""The demo: `python -m examples.code_analysis`, which is `make demo`.

Invariant: no process is left after its end. The exit codes are:

- 0: both runs ended without a finding
- 1: there are findings
- 2: wrong usage
- 69: the demo could not run
- 128 plus the number of a signal: the signal ended it

Weakness: other work on the machine changes the times of the two runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from celery_fairness.testing.server import ServerFailed
from examples.code_analysis.catalogue import find_packages
from examples.code_analysis.comparison import FAIR_LABEL, PLAIN_LABEL, Comparison
from examples.code_analysis.interruption import Interrupted, Interruption
from examples.code_analysis.load import NothingToAnalyze, plan_load
from examples.code_analysis.processes import ProcessFailed
from examples.code_analysis.report import write_report
from examples.code_analysis.run import POOL_SLOTS, WORKERS, Way, run_load
from examples.code_analysis.table import PlainDisplay, open_display
from examples.code_analysis.users import USERS, the_flood

CANNOT_RUN = 69


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not os.access(options.report.absolute().parent, os.W_OK):
        # Report it now, not after a minute of work.
        parser.error(f"--report expected in a folder that can be written, got: {options.report}")
    display = PlainDisplay(sys.stderr) if options.json else open_display()
    try:
        with Interruption() as interruption:
            comparison = run_both(options.jobs, options.seed, display, interruption, options.path)
            write_report(comparison, options.report)
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


def run_both(
    flood_jobs: int,
    seed: int,
    display: PlainDisplay,
    interruption: Interruption,
    way: Way = "fairredis",
) -> Comparison:
    """Run the load on plain Celery and with the package."""
    orders = plan_load(find_packages(), flood_jobs, seed)
    jobs = sum(order.jobs for order in orders)
    display.say(
        f"{len(USERS)} users send {jobs} jobs, {the_flood().name} {flood_jobs} of them at once; "
        f"{WORKERS} workers with {POOL_SLOTS} processes each."
    )
    with tempfile.TemporaryDirectory(prefix="code-analysis-") as name:
        display.say(f"\n1. {PLAIN_LABEL}: one queue, no limits")
        plain = run_load("plain", orders, Path(name, "plain"), interruption, display.watch)
        display.say(f"\n2. {FAIR_LABEL} ({way}): three queues a service, limits by tier")
        fair = run_load("fair", orders, Path(name, "fair"), interruption, display.watch, way)
    return Comparison(plain, fair, seed)


def tell(comparison: Comparison, report: Path, display: PlainDisplay) -> None:
    """Print the result of the runs."""
    display.show(PLAIN_LABEL, comparison.figures(comparison.plain))
    display.show(FAIR_LABEL, comparison.figures(comparison.fair))
    display.say(comparison.sentence)
    display.say(comparison.path_sentence)
    for finding in comparison.findings:
        display.say(f"FOUND: {finding}")
    display.say(f"Report: {report}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.code_analysis",
        description="One user floods a code-analysis platform: plain Celery and celery_fairness.",
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
        "--json", action="store_true", help="a summary on standard output, the rest on error"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got: {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
