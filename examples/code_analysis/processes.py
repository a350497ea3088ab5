"""The processes of one run: broker, workers, beat, sender.

Invariant: every process leads a session of its own, so Ctrl-C in a terminal reaches only the demo.
After a `Processes` block each of those sessions is empty, even after an error.

Weakness: if SIGKILL ends the demo, the kernel ends its children (on Linux). Grandchildren may end a
little later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from celery_fairness.testing.child_process import dying_with_parent

#: The folder from which `python -m celery -A examples…` imports the examples.
ROOT = Path(__file__).resolve().parents[2]

_LINE_SECONDS = 0.02


class ProcessFailed(RuntimeError):
    """A process of the demo failed; the message has its name and the reason."""


@dataclass(frozen=True)
class Process:
    """One child process and the file with its output."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise if it is gone.

        Raises:
            ProcessFailed: with the last line it wrote.
        """
        status = self.popen.poll()
        if status is not None:
            raise ProcessFailed(
                f"{self.name} expected to run, got: exit status {status}; "
                f"its last words: {self.last_line()!r}"
            )

    def last_line(self) -> str:
        """Its last line of output; empty without one."""
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Processes:
    """Starts processes and ends all of them."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Write logs into a folder, start with an environment."""
        self._folder = folder
        self._environment = dict(environment)
        self._started: list[Process] = []

    def __enter__(self) -> Self:
        """Begin without processes."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the remaining processes."""
        self.end_all()

    def start(self, name: str, *arguments: str, piped: bool = False) -> Process:
        """Start a Python module as a process, with pipes for input and output if `piped`."""
        log = self._folder / f"{name}.log"
        with log.open("ab") as file:
            popen = subprocess.Popen(
                dying_with_parent([sys.executable, "-m", *arguments]),
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
                start_new_session=True,
            )
        process = Process(name, popen, log)
        self._started.append(process)
        return process

    def check(self) -> None:
        """Raise `ProcessFailed` if a process has ended by itself."""
        for process in self._started:
            process.check()

    def end(self, process: Process, timeout_seconds: float) -> None:
        """End one politely, then by force."""
        if process.popen.poll() is None:
            process.popen.terminate()
        self._wait([process], timeout_seconds)
        self._kill(process)

    def end_all(self, timeout_seconds: float = 0.0) -> None:
        """End all, the last started first; without a timeout at once and by force."""
        processes = self._started[::-1]
        if timeout_seconds:
            for process in processes:
                if process.popen.poll() is None:
                    process.popen.terminate()
            self._wait(processes, timeout_seconds)
        for process in processes:
            self._kill(process)

    def _kill(self, process: Process) -> None:
        # The group, not the process: a worker's pool must not outlive it.
        try:
            os.killpg(process.popen.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        process.popen.wait()
        for stream in (process.popen.stdin, process.popen.stdout):
            _close(stream)
        if process in self._started:
            self._started.remove(process)

    @staticmethod
    def _wait(processes: Sequence[Process], timeout_seconds: float) -> None:
        end = time.monotonic() + timeout_seconds
        while any(process.popen.poll() is None for process in processes):
            if time.monotonic() > end:
                return
            time.sleep(_LINE_SECONDS)


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        try:
            stream.close()
        except BrokenPipeError:
            pass  # It ended before it read its input.
