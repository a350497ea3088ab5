"""One run of the load: server, workers, beat and sender from start to end.

Invariant: when `run_load` returns or raises, no process of the run is left. All modes go through
the same steps with the same times.

Weakness: a run without progress for some time is stopped, and its open jobs count as lost.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from celery_fairness.testing.server import RedisServer
from examples.code_analysis.interruption import Interruption
from examples.code_analysis.jobs import JobBook
from examples.code_analysis.ledger import Entry, Ledger, LedgerReader, now_seconds
from examples.code_analysis.load import Order
from examples.code_analysis.processes import Process, Processes, ProcessFailed

#: Celery alone, turns without limits, limits and turns, or limits at the gate in the worker.
Mode = Literal["plain", "turns", "fair", "gate"]
#: The modes in which the broker is `fairredis://`.
CLAIMING: frozenset[Mode] = frozenset({"turns", "fair"})

WORKERS = 2
#: Processes in each worker's pool. Together more than the largest limit, so that limits bind and
#: the pool does not.
POOL_SLOTS = 4
READY_SECONDS = 40.0
#: Time without a start or an end of a job after which a run is stopped, in seconds. It is longer
#: than a snooze.
STALL_SECONDS = 60.0
#: Time without a start or an end of one of beat's last jobs, after all others have ended, after
#: which it counts as lost, in seconds.
DRAIN_SECONDS = 5.0

_APP = "examples.code_analysis.app"
_LOOK_SECONDS = 0.25
_ANSWER_SECONDS = 30.0


@dataclass
class Run:
    """The state of a run, or its result."""

    mode: Mode
    book: JobBook = field(default_factory=JobBook)
    began_seconds: float = 0.0
    ended_seconds: float | None = None
    #: Limits by tier. None is no limit. Empty in the run without the package.
    limits: dict[str, int | None] = field(default_factory=dict)
    #: Whether the broker claimed fairly. If not, the gate sent jobs back.
    claims: bool = False
    snooze_seconds: float = 0.0
    snooze_jitter_seconds: float = 0.0
    #: Rejections by tier, as the package counted them.
    refusals: dict[str, int] = field(default_factory=dict)
    #: Why the run was stopped early; empty if it was not.
    stopped: str = ""

    @property
    def until_seconds(self) -> float:
        """The end of the run, or the present time during the run."""
        return now_seconds() if self.ended_seconds is None else self.ended_seconds

    @property
    def lasted_seconds(self) -> float:
        """Its duration in seconds, without the set-up."""
        return self.until_seconds - self.began_seconds


def run_load(
    mode: Mode,
    orders: Sequence[Order],
    folder: Path,
    interruption: Interruption,
    watch: Callable[[Run], None],
    stall_seconds: float = STALL_SECONDS,
) -> Run:
    """Run the load once.

    Args:
        mode: without the package, or with a part of it.
        orders: the load.
        folder: the folder for its files, made here.
        interruption: checked several times a second.
        watch: called several times a second with the state of the run.
        stall_seconds: the run is stopped after this time without a job that is sent, begins or
            ends.

    Raises:
        ServerFailed: there is no Redis, or it does not start.
        ProcessFailed: a worker, beat or the sender did not start or ended too soon.
        Interrupted: a signal requested the end.
    """
    for name in ("ledger", "views"):
        (folder / name).mkdir(parents=True)
    with RedisServer() as server:
        scheme = "fair" if mode in CLAIMING else ""
        environment = _environment(mode, scheme + server.url, folder)
        with Processes(folder, environment) as processes:
            course = _Course(mode, folder, processes, interruption, watch)
            return course.follow(orders, stall_seconds)


class _Course:
    """The steps of one run."""

    def __init__(
        self,
        mode: Mode,
        folder: Path,
        processes: Processes,
        interruption: Interruption,
        watch: Callable[[Run], None],
    ) -> None:
        self.run = Run(mode)
        self._reader = LedgerReader(Ledger(folder / "ledger"))
        self._processes = processes
        self._interruption = interruption
        self._watch = watch

    def follow(self, orders: Sequence[Order], stall_seconds: float) -> Run:
        run = self.run
        sender = self._processes.start("sender", "examples.code_analysis.sender", piped=True)
        workers = [
            self._processes.start(f"worker-{number}", "celery", *_worker_arguments(number))
            for number in range(1, WORKERS + 1)
        ]
        self._tell(sender, [order.as_json() for order in orders])
        self._take_settings(self._answer(sender)["ready"])
        if not self._look_until(lambda: run.book.ready_workers == WORKERS, READY_SECONDS):
            raise ProcessFailed(
                f"{WORKERS} workers expected to be ready within {READY_SECONDS:.0f} s, "
                f"got: {run.book.ready_workers}"
            )
        planned = [job for job in run.book.jobs.values() if job.planned]

        run.began_seconds = now_seconds()
        self._watch(run)
        self._tell(sender, "go")
        beat = self._processes.start("beat", "celery", "-A", _APP, "beat", "--loglevel", "WARNING")
        all_done = self._look_until(
            lambda: all(job.done for job in planned), stall_seconds, self._is_planned
        )
        # Beat sends no more jobs. The run waits for those it has sent.
        self._processes.end(beat, timeout_seconds=5.0)
        drain_seconds = DRAIN_SECONDS if all_done else 0.0
        self._look_until(lambda: not run.book.open_jobs, drain_seconds, lambda _: all_done)
        run.ended_seconds = now_seconds()

        self._end_input(sender)
        if not all_done:
            run.stopped = (
                f"stopped, as no job began or ended for {stall_seconds:.0f} s; "
                "the workers' last words: "
                + ", ".join(repr(worker.last_line()) for worker in workers)
            )
        else:
            run.refusals = self._answer(sender)["refusals"]
            self._processes.end_all(timeout_seconds=8.0)
        # A job that ran a second time may have done so until now.
        run.book.add(self._reader.read_new())
        self._watch(run)
        return run

    def _look_until(
        self,
        reached: Callable[[], bool],
        timeout_seconds: float,
        counts: Callable[[Entry], bool] = lambda _: False,
    ) -> bool:
        """Wait until ``reached`` returns True; return whether it did within the timeout.

        Each start or end of a job that ``counts`` begins the timeout anew.
        """
        end = now_seconds() + timeout_seconds
        while True:
            news = self._reader.read_new()
            self.run.book.add(news)
            if any(entry["event"] in ("start", "end") and counts(entry) for entry in news):
                end = now_seconds() + timeout_seconds
            if self.run.began_seconds:
                self._watch(self.run)
            if reached():
                return True
            if now_seconds() >= end:
                return False
            self._processes.check()
            self._interruption.pause(_LOOK_SECONDS)

    def _is_planned(self, entry: Entry) -> bool:
        """Return whether the entry is of a planned job; jobs of beat are not."""
        return self.run.book.jobs[entry["job"]].planned

    def _take_settings(self, facts: dict[str, Any]) -> None:
        for name, value in facts.items():
            setattr(self.run, name, value)

    @staticmethod
    def _tell(process: Process, message: object) -> None:
        assert process.popen.stdin is not None
        try:
            process.popen.stdin.write(json.dumps(message).encode() + b"\n")
            process.popen.stdin.flush()
        except BrokenPipeError:
            process.check()
            raise

    @staticmethod
    def _end_input(process: Process) -> None:
        assert process.popen.stdin is not None
        process.popen.stdin.close()

    def _answer(self, process: Process) -> dict[str, Any]:
        assert process.popen.stdout is not None
        end = now_seconds() + _ANSWER_SECONDS
        while not select.select([process.popen.stdout], [], [], 0.1)[0]:
            self._interruption.check()
            if now_seconds() > end:
                raise ProcessFailed(
                    f"{process.name} expected to answer within {_ANSWER_SECONDS:.0f} s, "
                    f"got: nothing; its last words: {process.last_line()!r}"
                )
        line = process.popen.stdout.readline()
        if not line:
            raise ProcessFailed(
                f"{process.name} expected to answer, got: the end of its output; "
                f"its last words: {process.last_line()!r}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def _worker_arguments(number: int) -> list[str]:
    # Without -Q: with the package a worker takes the queues of all services, as it comes.
    return [
        *("--quiet", "-A", _APP, "worker", "--pool", "prefork", "--concurrency", str(POOL_SLOTS)),
        *("--hostname", f"worker-{number}@%h", "--loglevel", "WARNING"),
    ]


def _environment(mode: Mode, broker_url: str, folder: Path) -> dict[str, str]:
    # The caller's FAIRNESS_ variables hold, so that one may try other limits; but not one that
    # points away from our server, and none of Celery's own.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CELERY_") and name != "FAIRNESS_REDIS_URL"
    }
    return {
        **kept,
        "CODE_ANALYSIS_MODE": mode,
        "CODE_ANALYSIS_BROKER": broker_url,
        "CODE_ANALYSIS_FOLDER": str(folder),
    }
