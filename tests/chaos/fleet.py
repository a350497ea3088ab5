"""The workers of a run: one process group each, started again whenever it is gone.

Invariant: the ledger says of every incarnation when it was killed or found gone, and no process
outlives the run: a reaper holds their groups.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from celery_fairness.testing.child_process import dying_with_parent
from tests.chaos import ledger
from tests.chaos.plan import LIGHT_QUEUE, QUEUE
from tests.support.local_process import ROOT, clean_environment

#: Pool and places of each worker, whether its connections go through the proxy, and more options.
SLOTS: tuple[tuple[str, int, bool, tuple[str, ...]], ...] = (
    ("prefork", 4, False, ()),
    ("prefork", 3, True, ("--max-tasks-per-child", "50")),
    ("threads", 6, True, ()),
    ("gevent", 10, False, ()),
    ("solo", 1, True, ()),
)
#: How Celery's log calls an error that ends a worker.
UNRECOVERABLE = "Unrecoverable error"


@dataclass
class Worker:
    """One incarnation of one worker."""

    name: str
    pool: str
    process: subprocess.Popen[bytes]
    ready: bool = False
    killed: bool = False
    stopping: bool = False
    frozen: tuple[float, list[int]] | None = None

    @property
    def alive(self) -> bool:
        """Whether its main process exists."""
        return self.process.poll() is None

    def children(self) -> list[int]:
        """Return the processes of its pool, oldest first."""
        try:
            found = psutil.Process(self.process.pid).children()
            return [each.pid for each in sorted(found, key=lambda each: each.create_time())]
        except psutil.NoSuchProcess:
            return []


@dataclass
class Fleet:
    """Every worker of a run.

    Attributes:
        directory: Where logs go.
        environ: Variables of a worker; the second set for those that use the proxy.
    """

    directory: Path
    environ: tuple[Mapping[str, str], Mapping[str, str]]
    workers: list[Worker] = field(default_factory=list)
    _incarnations: list[int] = field(default_factory=lambda: [0] * len(SLOTS))
    _guarded: set[int] = field(default_factory=set)
    _reaper: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start every worker, and what kills them if we die."""
        self._reaper = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.reaper"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.workers = [self._start(slot) for slot in range(len(SLOTS))]

    def run(
        self, argv: list[str], environ: Mapping[str, str], log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own that dies with the run."""
        process = subprocess.Popen(
            dying_with_parent(argv),
            cwd=ROOT,
            env={**clean_environment(), **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._tell_reaper("+", process.pid)
        return process

    def guard(self, groups: set[int]) -> None:
        """Let the groups of servers die with the run, which may be paused then."""
        for sign, changed in (("-", self._guarded - groups), ("+", groups - self._guarded)):
            for group in changed:
                self._tell_reaper(sign, group)
        self._guarded = groups

    def _tell_reaper(self, sign: str, group: int) -> None:
        assert self._reaper is not None
        assert self._reaper.stdin is not None
        self._reaper.stdin.write(f"{sign}{group}\n".encode())
        self._reaper.stdin.flush()

    def _start(self, slot: int) -> Worker:
        pool, places, by_proxy, more = SLOTS[slot]
        self._incarnations[slot] += 1
        name = f"{pool}{slot}.{self._incarnations[slot]}"
        argv = [sys.executable, "-m", "celery", "-A", "tests.chaos.app", "worker"]
        argv += ["--hostname", f"{name}@localhost", "--pool", pool, "--concurrency", str(places)]
        argv += ["--loglevel", "INFO", "--without-mingle", "--without-gossip", *more]
        argv += ["--queues", ",".join(("celery", QUEUE, LIGHT_QUEUE))]
        with (self.directory / f"{name}.log").open("wb") as log:
            about = {"CHAOS_WORKER": name, "CHAOS_PLACES": str(places)}
            process = self.run(argv, {**self.environ[by_proxy], **about}, log)
        return Worker(name, pool, process)

    def dead(self) -> list[int]:
        """Return the slots whose worker is gone."""
        return [slot for slot, worker in enumerate(self.workers) if not worker.alive]

    def restart(self, slots: list[int]) -> None:
        """Start new workers in the slots of dead ones."""
        for slot in slots:
            worker = self.workers[slot]
            if not worker.killed:
                ledger.write(
                    "gone",
                    worker=worker.name,
                    status=worker.process.returncode,
                    ours=self._is_our_error(worker),
                )
            self._kill_group(worker)
            self._tell_reaper("-", worker.process.pid)
            self.workers[slot] = self._start(slot)

    def _is_our_error(self, worker: Worker) -> bool:
        """Say whether the package is in what the log says of a worker's end."""
        text = (self.directory / f"{worker.name}.log").read_text(errors="replace")
        return f'File "{ROOT / "celery_fairness"}{os.sep}' in text.rpartition(UNRECOVERABLE)[2]

    def note_ready(self, name: str) -> None:
        """A worker said that it consumes."""
        for worker in self.workers:
            worker.ready = worker.ready or worker.name == name

    def note_killed(self, name: str) -> None:
        """A task wrote that it kills its worker."""
        for worker in self.workers:
            worker.killed = worker.killed or worker.name == name

    def _kill_group(self, worker: Worker) -> None:
        try:
            os.killpg(worker.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def kill(self, worker: Worker) -> None:
        """End a worker and its pool at once, as the death of its host would."""
        at = ledger.now()
        worker.killed = True
        self._kill_group(worker)
        worker.process.wait()
        self._note_thaw(worker)
        ledger.write("kill", at, what="worker", worker=worker.name, pid=worker.process.pid)

    def stop(self, worker: Worker) -> None:
        """Ask a worker to end in order, as a deployment does; it may take its time."""
        worker.stopping = True
        ledger.write("stop", worker=worker.name)
        worker.process.terminate()

    def kill_child(self, worker: Worker, pid: int) -> bool:
        """End one process of a pool; False where it was gone."""
        at = ledger.now()
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        ledger.write("kill", at, what="child", worker=worker.name, pid=pid)
        return True

    def freeze(self, worker: Worker, *, with_children: bool) -> None:
        """Stop a worker's main process, or all its processes."""
        pids = [worker.process.pid, *(worker.children() if with_children else [])]
        worker.frozen = ledger.now(), pids
        for pid in pids:
            _signal(pid, signal.SIGSTOP)

    def thaw(self, worker: Worker) -> None:
        """Let it go on; harmless where it does."""
        if worker.frozen is not None and worker.alive:
            for pid in worker.frozen[1]:
                _signal(pid, signal.SIGCONT)
        self._note_thaw(worker)

    def _note_thaw(self, worker: Worker) -> None:
        if worker.frozen is not None:
            (begun, _), worker.frozen = worker.frozen, None
            ledger.write("freeze", begun, over=ledger.now(), worker=worker.name)

    def close(self) -> None:
        """End everything."""
        for worker in self.workers:
            self._kill_group(worker)
            worker.process.wait()
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            self._reaper.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
