"""A process of our own that looks like a Docker container to pytest-celery.

Invariant: it has a session of its own, so its children are found and ended with it; every process
that comes from it is in that session or has a mark in its environment. `assert_gone` finds both.

Weakness: it is no container. There is one network, one file system, one process table.
"""

from __future__ import annotations

import os
import signal as signals
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from celery_fairness.testing.child_process import dying_with_parent
from tests.support.fork_server import Forked, ForkServer
from tests.support.process_tree import descendants
from tests.support.waiting import at_most, eventually

#: In the environment of every process that a LocalProcess started, and of its children.
MARK = "TEST_PROCESS_MARK"
#: Settings of the person who runs the tests must not reach the processes under test.
SCRUBBED_PREFIXES = ("FAIRNESS_", "CELERY_")
ROOT = Path(__file__).resolve().parents[2]


def clean_environment() -> dict[str, str]:
    """Our environment without variables that the package or Celery would obey."""
    return {k: v for k, v in os.environ.items() if not k.startswith(SCRUBBED_PREFIXES)}


class LocalProcess:
    """One process and its log, with the attributes of docker-py that pytest-celery reads."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | str = ROOT,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.id = uuid4().hex
        self.name = name
        self.argv = list(argv)
        self.env = {**clean_environment(), **(env or {}), MARK: self.id}
        self.cwd = Path(cwd)
        self.popen: subprocess.Popen[bytes] | Forked | None = None
        self._fork_server = fork_server
        #: None of these comes from it; most processes of a machine are older.
        self._older: set[psutil.Process] = set()
        with tempfile.NamedTemporaryFile(
            prefix=f"{name}-", suffix=".log", delete=False
        ) as log_file:
            self._log_path = Path(log_file.name)
        self._log_offset = 0
        self._kept_log: bytes | None = None
        # What docker inspect would say; no port is listed, so pytest-celery waits for none.
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": "localhost", "Env": [f"{k}={v}" for k, v in self.env.items()]},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {"lo": {"IPAddress": "127.0.0.1"}}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        """`created`, `running` or `exited`, as Docker names them."""
        if self.popen is None:
            return "created"
        return "running" if self.popen.poll() is None else "exited"

    @property
    def pid(self) -> int:
        """Process id of the main process."""
        assert self.popen is not None, f"{self.name} was not started"
        return self.popen.pid

    @property
    def alive(self) -> bool:
        """Whether the main process runs."""
        return self.status == "running"

    @property
    def exit_code(self) -> int | None:
        """Exit status of the main process, negative for a signal; None while it runs."""
        return None if self.popen is None else self.popen.poll()

    def start(self) -> LocalProcess:
        """Start it; the log of an earlier run is kept and continued."""
        assert not self.alive, f"{self.name} runs already"
        self._log_offset = self._log_path.stat().st_size
        if self.popen is None:
            self._older = set(psutil.process_iter())
        if self._fork_server is not None:
            self.popen = self._fork_server.start(self.argv, self.env, self.cwd, self._log_path)
            return self
        with self._log_path.open("ab") as log:
            self.popen = subprocess.Popen(
                dying_with_parent(self.argv),
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def children(self) -> list[psutil.Process]:
        """All living descendants of the main process."""
        return list(descendants(self.pid).values())

    def survivors(self) -> list[psutil.Process]:
        """Every living process that came from this one, whoever its parent is by now."""
        return [
            process
            for process in psutil.process_iter()
            if process not in self._older and self._is_ours(process)
        ]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            # The environment of a forked process is that of the fork server here.
            ours = os.getsid(process.pid) == self._session or process.environ().get(MARK) == self.id
            return ours and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ProcessLookupError):
            return False

    @property
    def _session(self) -> int | None:
        return None if self.popen is None else self.popen.pid

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal. SIGKILL (the default) ends all its processes, as a host's death would.

        Any other signal reaches the main process only, as `docker kill --signal` does.
        """
        number = self._number(signal)
        if number == signals.SIGKILL:
            for process in [*self.children(), *self.survivors()]:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass
            if self.popen is not None:
                self.popen.kill()
                self.popen.wait()
        elif self.alive:
            os.kill(self.pid, number)

    @staticmethod
    def _number(signal: str | int | None) -> signals.Signals:
        if signal is None:
            return signals.SIGKILL
        return signals.Signals[signal] if isinstance(signal, str) else signals.Signals(signal)

    def ask_to_end(self) -> None:
        """Ask for an orderly end without waiting for it."""
        if self.alive:
            os.kill(self.pid, signals.SIGCONT)
            os.kill(self.pid, signals.SIGTERM)

    def ended_in_order(self, timeout_seconds: float) -> bool:
        """Wait for the end, kill what is left, and say whether it had ended by itself with 0."""
        if self.popen is not None:
            try:
                self.popen.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                pass
        self.kill("SIGKILL")
        return self.exit_code == 0

    def stop(
        self, signal: str | int = "SIGTERM", timeout_seconds: float = at_most(10.0)
    ) -> int | None:
        """Ask it to end; kill it when it does not. Returns its exit status, None if killed."""
        polite: int | None = None
        if self.alive and self.popen is not None:
            self.kill(signal)
            try:
                polite = self.popen.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                pass
        self.kill("SIGKILL")
        return polite

    def assert_gone(self, timeout_seconds: float = at_most(5.0)) -> None:
        """Fail when any process that came from this one still lives after a while."""

        def nothing_left() -> None:
            left = [str(process) for process in self.survivors()]
            assert not left, f"{self.name} left processes behind: {left}"

        eventually(nothing_left, timeout_seconds=timeout_seconds)

    def log_text(self, *, since_start: bool = False) -> str:
        """All that it printed, or only since the latest start."""
        printed = self.logs()
        return printed[self._log_offset if since_start else 0 :].decode(errors="replace")

    def discard_log(self) -> None:
        """Remove the log file; what it held can still be asked for."""
        if self._kept_log is None:
            self._kept_log = self._log_path.read_bytes()
            self._log_path.unlink()

    # The names below are docker-py's.

    def logs(self) -> bytes:
        """All that it printed, as docker-py gives it."""
        return self._log_path.read_bytes() if self._kept_log is None else self._kept_log

    def reload(self) -> None:
        """Nothing to fetch: the process table is always current."""

    def restart(self, timeout: float = at_most(10.0)) -> None:
        """Stop it if it runs and start it again with the same command."""
        self.stop(timeout_seconds=timeout)
        self.start()
