"""``make foreign``: run Celery's own integration suite on each path, and print what passed."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from celery_fairness.testing.child_process import dying_with_parent
from tests.foreign.modes import MODE_VARIABLE, MODES, QUICK_VARIABLE, REPORT_VARIABLE
from tests.foreign.plugin import OUTCOMES, outcomes_of
from tests.foreign.source import ROOT, fetch, pinned_version

SUITE = "t/integration"
#: The quick run: the files with most tests, on both paths, without the slow ones.
QUICK_MODES = ("fairredis", "gate")
QUICK_FILES = ("test_canvas.py", "test_tasks.py")
#: Processes of one mode. Most of the time their tests wait.
PROCESSES = 4


def main() -> int:
    """Run and print; returns 1 if an unlisted test fails twice, or if a listed one passes."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=__doc__)
    parser.add_argument("--mode", action="append", choices=MODES, help="all of them by default")
    parser.add_argument("--quick", action="store_true", help="two modes, two files, at once")
    parser.add_argument("-n", type=int, default=PROCESSES, help="processes of each mode")
    parser.add_argument("files", nargs="*", help="of the suite, or ids of tests: test_canvas.py")
    options = parser.parse_args()
    # An orderly end, so that everything that was started ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = fetch()
    modes = options.mode or (QUICK_MODES if options.quick else tuple(MODES))
    files = options.files or (QUICK_FILES if options.quick else ())
    places = [f"{SUITE}/{each}" for each in files] or [SUITE]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as reports:
        paths = {mode: Path(reports, mode) for mode in modes}
        # The modes of a whole run come one after the other: their tests measure time.
        groups = [list(modes)] if options.quick else [[mode] for mode in modes]
        codes: dict[str, int] = {}
        for group in groups:
            started = {mode: _start(folder, mode, paths[mode], places, options) for mode in group}
            codes |= {mode: each.wait() for mode, each in started.items()}
        found = {mode: outcomes_of(path) for mode, path in paths.items()}
        for mode in [mode for mode, code in codes.items() if code == pytest.ExitCode.TESTS_FAILED]:
            codes[mode] = _run_failed_alone(folder, mode, paths[mode], found[mode], options)
    _print_table(found)
    print(f"Celery {pinned_version()}, {time.monotonic() - begun:.0f} s")
    return 1 if any(codes.values()) or not all(found.values()) else 0


def _run_failed_alone(
    folder: Path, mode: str, report: Path, outcomes: dict[str, str], options: argparse.Namespace
) -> int:
    """Run the failed tests of a mode once more, one after the other, and take what comes out then.

    Celery's tests wait for a second or two, and look at what the tests before them left on the
    server. A machine with other work, or another order, fails some of them now and then.
    """
    failed = sorted(test for test, outcome in outcomes.items() if outcome == "failed")
    print(f"foreign: {mode}: {len(failed)} failed, and run once more alone", flush=True)
    report.unlink()
    alone = argparse.Namespace(**{**vars(options), "n": 0})
    code = _start(folder, mode, report, failed, alone).wait()
    outcomes |= outcomes_of(report)
    return code


def _start(
    folder: Path, mode: str, report: Path, places: Sequence[str], options: argparse.Namespace
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", *places, "-n", str(options.n), "-q", "-rfE"]
    command += ["--tb=short", "-c", str(Path(__file__).parent / "celery.ini"), "--rootdir=."]
    # Plugins of ours that would want Redis or Django.
    command += ["-p", "tests.foreign.plugin", "-p", "no:cacheprovider", "-p", "no:valkey"]
    command += ["-p", "no:django"]
    env = {
        **os.environ,
        MODE_VARIABLE: mode,
        REPORT_VARIABLE: str(report),
        QUICK_VARIABLE: "1" if options.quick else "",
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
        # Some tests start the command celery.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    print(f"foreign: {mode}", flush=True)
    return subprocess.Popen(dying_with_parent(command), cwd=folder, env=env)


def _print_table(found: Mapping[str, Mapping[str, str]]) -> None:
    """Print passed, skipped, expected and failed tests by file and mode."""
    counts = {
        mode: Counter((nodeid.partition("::")[0], each) for nodeid, each in outcomes.items())
        for mode, outcomes in found.items()
    }
    files = sorted({file for each in counts.values() for file, _ in each})
    print("\n" + "/".join(OUTCOMES))
    print(" ".join([" " * 46, *(f"{mode:>18}" for mode in found)]))
    for file in files:
        cells = ["/".join(str(each[file, name]) for name in OUTCOMES) for each in counts.values()]
        print(
            " ".join([f"{file.removeprefix(SUITE + '/'):46}", *(f"{cell:>18}" for cell in cells)])
        )


if __name__ == "__main__":
    sys.exit(main())
