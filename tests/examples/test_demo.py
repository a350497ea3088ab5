"""The demo run for real: what it prints, writes and returns, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4
from xml.etree import ElementTree

import pytest

from celery_fairness.testing.server import ServerFailed
from examples.code_analysis import __main__ as demo
from examples.code_analysis.catalogue import find_packages
from examples.code_analysis.figures import by_user
from examples.code_analysis.interruption import Interruption
from examples.code_analysis.load import plan_load
from examples.code_analysis.processes import ROOT, Processes, ProcessFailed
from examples.code_analysis.run import run_load
from examples.code_analysis.verdict import find_faults, find_unfairness
from tests.examples.made_runs import a_good_comparison, made_job
from tests.support.services import only_in_ci
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis

#: Processes that run at least, besides the demo: Redis, two workers and the sender.
CHILDREN = 4

#: The same demo with packages that are parsed quickly, which all come within three seconds.
QUICK = """
import sys
from examples.code_analysis import __main__, catalogue, load
catalogue.SMALLEST_BYTES, catalogue.LARGEST_BYTES, load.WINDOW_SECONDS = 20_000, 50_000, 3.0
sys.exit(__main__.main())
"""

StartDemo = Callable[..., "subprocess.Popen[str]"]


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRNESS_")}
    return {**kept, "CODE_ANALYSIS_MARK": uuid4().hex, **variables}


def marked(mark: str) -> dict[int, str]:
    """Command lines of the processes that inherited a mark in their environment, by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = words.decode(errors="replace")
            except OSError:
                continue  # It is gone, or not ours.
    return found


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[StartDemo]:
    started: list[tuple[subprocess.Popen[str], str]] = []

    def start(
        *arguments: str, code: Sequence[str] = ("-m", "examples.code_analysis"), **variables: str
    ) -> subprocess.Popen[str]:
        # A demo that is killed leaves its files: here.
        env = environment(TMPDIR=str(tmp_path), **variables)
        report = tmp_path / "report.html"
        process = subprocess.Popen(
            [sys.executable, *code, "--report", str(report), *arguments],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        process.mark = env["CODE_ANALYSIS_MARK"]
        started.append((process, env["CODE_ANALYSIS_MARK"]))
        return process

    yield start
    for process, mark in started:
        process.kill()
        process.communicate()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


def mark_of(process: subprocess.Popen[str]) -> str:
    mark: str = process.mark
    return mark


@pytest.mark.parametrize("way", ["fairredis", pytest.param("gate", marks=only_in_ci)])
def test_a_short_demo_from_start_to_end(start_demo: StartDemo, tmp_path: Path, way: str) -> None:
    pictured = ("--picture", str(tmp_path / "picture.svg"))
    words = ("--jobs", "12", "--seed", "5", "--json", "--path", way, *pictured)
    process = start_demo(*words, code=("-c", QUICK))
    output, errors = process.communicate(timeout=at_most(170))
    summary = json.loads(output)

    # How long somebody waited says nothing of a run beside other tests, on any machine: `make
    # bench` measures it (P7). Whatever else is found is wrong.
    waited = [each for each in summary["findings"] if " s at p95, expected at most " in each]
    assert summary["findings"] == waited
    assert process.returncode == (1 if waited else 0), errors
    assert "Traceback" not in errors
    assert summary["sentence"] in errors
    assert summary["path"] == way
    told = "snoozed for 1 s + 1 s;" if way == "gate" else "waited in Redis (fairredis)"
    assert told in summary["waiting"]
    modes = list(summary["runs"])
    assert modes == (["plain", "gate"] if way == "gate" else ["plain", "turns", "fair"])
    for mode in modes:
        users = {user["user"]: user for user in summary["runs"][mode]["users"]}
        assert users["fred"]["jobs"] == users["fred"]["done"] == 12
        assert all(user["jobs"] == user["done"] > 0 for user in users.values()), mode
    plain, *turns, fair = (
        next(user for user in summary["runs"][mode]["users"] if user["flood"]) for mode in modes
    )
    assert all(each["most_at_once"] > 1 and each["limit"] is None for each in turns)
    assert plain["most_at_once"] > fair["most_at_once"] == fair["limit"] == 1
    assert plain["refusals"] == 0
    assert (fair["refusals"] > 0) == (way == "gate")
    assert summary["runs"][modes[-1]]["refusals_by_tier"].get("free", 0) >= fair["refusals"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ElementTree.fromstring(page.partition("\n")[2]).tag == "html"
    picture = ElementTree.parse(tmp_path / "picture.svg").getroot()
    assert picture.tag.endswith("svg")
    assert marked(mark_of(process)) == {}


@only_in_ci
def test_without_enforcement_the_run_is_found_unfair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRNESS_ENABLED", "false")
    orders = plan_load(find_packages(), 30, seed=1)[:30]

    with Interruption() as interruption:
        run = run_load("fair", orders, tmp_path, interruption, lambda _: None)

    figures = by_user(run.book.jobs.values(), run.limits, run.until_seconds)
    (finding,) = find_unfairness("here", figures)
    assert finding.startswith("here: fred (free) had ")
    assert find_faults("here", run.book.jobs.values()) == []
    assert len(list((tmp_path / "views").iterdir())) == 0


def test_a_run_in_which_nothing_happens_any_more_is_stopped_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRNESS_FREE_LIMIT", "0")
    orders = plan_load(find_packages(), 30, seed=1)[:30]

    with Interruption() as interruption:
        run = run_load("fair", orders, tmp_path, interruption, lambda _: None, stall_seconds=2.0)

    assert run.stopped.startswith("stopped, as no job began or ended for 2 s; ")
    assert any("lost (never started)" in each for each in find_faults("", run.book.jobs.values()))


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (1, 1)])
def test_the_exit_code_tells_whether_something_was_found(
    lost: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    comparison = a_good_comparison()
    for job in [made_job("paul", 0.0) for _ in range(lost)]:
        comparison.fair.book.jobs[job.id] = job
    monkeypatch.setattr(demo, "run_all", lambda *_: comparison)

    assert demo.main(["--report", str(tmp_path / "report.html")]) == code

    output = capsys.readouterr().out
    assert ("FOUND: limits and turns: 1 job lost" in output) == bool(lost)
    assert output.replace("\n", "").isprintable()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_a_signal_ends_everything(
    start_demo: StartDemo, number: signal.Signals, moment: str, tmp_path: Path
) -> None:
    process = start_demo("--jobs", "200")
    mark = mark_of(process)
    if moment == "starting":
        eventually(lambda: len(marked(mark)) > 1, timeout_seconds=at_most(30))
    else:
        _read_until(process, " jobs done")
        assert len(marked(mark)) > CHILDREN

    process.send_signal(number)
    _, errors = process.communicate(timeout=at_most(30))

    assert process.returncode == 128 + number
    assert errors == f"demo ended by {number.name}; nothing is left running\n"
    assert marked(mark) == {}
    assert not (tmp_path / "report.html").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_the_kernel_ends_the_children_of_a_killed_demo(start_demo: StartDemo) -> None:
    process = start_demo("--jobs", "200")
    _read_until(process, " jobs done")

    process.kill()
    process.wait()

    def all_gone() -> None:
        assert marked(mark_of(process)) == {}

    eventually(all_gone, timeout_seconds=at_most(30))


def _read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"{words!r} expected in the demo's output, got: its end")


def test_without_a_server_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def no_server() -> None:
        raise ServerFailed("no Redis server found:\ninstall one")

    monkeypatch.setattr("examples.code_analysis.run.RedisServer", no_server)

    code = demo.main(["--jobs", "1", "--report", str(tmp_path / "report.html")])

    assert code == demo.CANNOT_RUN
    assert capsys.readouterr().err == "demo: no Redis server found: install one\n"


def test_a_process_that_does_not_start_is_named(tmp_path: Path) -> None:
    with Processes(tmp_path, environment()) as processes:
        process = processes.start("worker-1", "surely_missing")

        eventually(lambda: process.popen.poll() is not None)

        with pytest.raises(ProcessFailed, match=r"worker-1 expected to run.*surely_missing"):
            processes.check()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "0"], "expected a whole number of at least 1, got: '0'"),
        (["--jobs", "many"], "expected a whole number of at least 1, got: 'many'"),
        (["--report", "/surely/missing/report.html"], "expected in a folder that can be written"),
    ],
)
def test_wrong_usage_is_said_before_anything_starts(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        demo.main(arguments)

    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
