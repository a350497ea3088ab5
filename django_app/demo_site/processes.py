"""The processes of a running site: started in sessions of their own, stopped by process id.

Invariant: after ``stop``, every started process and its forks have ended. On Linux, the kernel ends
them if the site is killed.

Weakness: a worker that does not finish its tasks in time is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from celery_fairness.testing.child_process import dying_with_parent

STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Child:
    """One process, its name for messages, and its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Processes:
    """Started together, stopped together in the order they were started."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, {**os.environ, **environment}
        self._children: list[Child] = []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def start(self, name: str, argv: Sequence[str], directory: Path) -> Child:
        """Start one process; its output goes to ``{name}.log``."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                dying_with_parent(argv),
                cwd=directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Only the site gets Ctrl-C. It stops the others in their order.
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def dead(self) -> Child | None:
        """Return a process that ended by itself, if any."""
        return next((child for child in self._children if child.process.poll() is not None), None)

    def stop(self) -> None:
        """Send SIGTERM to all, wait, and kill the rest with their children."""
        for child in self._children:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass  # It is killed below, with its session.
            _kill_session(child.process.pid)
            child.process.wait()
        self._children.clear()


def _kill_session(leader: int) -> None:
    """Kill what is left of the process group that ``leader`` led."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # The group is empty. macOS raises the second error for that.
