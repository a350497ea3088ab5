"""A process that has imported Celery and the package already, and forks workers from itself.

Invariant: what it forks has the environment, the folder and the arguments it was asked for and a
session of its own, and gets SIGTERM when the fork server ends.

Weakness: a worker that it forked finds all modules imported. A worker that needs a PYTHONPATH must
be started as a process of its own.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis.utils
from celery import maybe_patch_concurrency

from celery_fairness.testing.child_process import dying_with_parent
from tests.support.waiting import at_most

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.01
PR_SET_PDEATHSIG = 1
# Those of gevent begin its event loop, which must not be there before the fork.
_fork, _waitpid = os.fork, os.waitpid
#: What a worker of the tests imports beside the package.
PRELOADED = (
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
)


class Forked:
    """A forked process, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._status: int | None = None

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        if self._status is None:
            self._status = self._server.ask(poll=self.pid)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return status

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """The fork server as the tests see it: a pipe to ask it, and one to read its answers.

    One for pools of gevent patches modules before it imports others, as those workers do.
    """

    def __init__(self, *, gevent: bool = False) -> None:
        self._lock = threading.Lock()
        pool = ["gevent"] if gevent else []
        self._process = subprocess.Popen(
            dying_with_parent([sys.executable, "-m", __name__, *pool]),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the fork server."""
        return self._process.pid

    def ask(self, **request: Any) -> Any:
        """Send a request, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, f"the fork server ended with {self._process.wait()}; its error is above"
        return json.loads(answer)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        errors: Path | None = None,
    ) -> Forked:
        """Fork what does the same as `argv`, which is `PYTHON -m MODULE …` or a script of Python.

        It appends to `log`, and what it writes to stderr to `errors` if that is given.
        """
        is_script = os.sep in argv[0] and argv[0] != sys.executable
        assert is_script or tuple(argv[:2]) == (sys.executable, "-m"), (
            f"expected PYTHON -m MODULE or a script, got: {argv}"
        )
        start = {
            "argv": list(argv if is_script else argv[2:]),
            "env": dict(env),
            "cwd": str(cwd),
            "log": str(log),
            "errors": str(errors or log),
        }
        return Forked(self, self.ask(start=start))

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], timeout_seconds: float = at_most(60.0)
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `subprocess.run` does, without importing all modules anew.

        Raises:
            subprocess.TimeoutExpired: it still ran after `timeout_seconds`, and was killed.
        """
        with tempfile.TemporaryDirectory() as folder:
            printed, errors = Path(folder, "stdout"), Path(folder, "stderr")
            printed.touch()
            errors.touch()
            forked = self.start(argv, env, ROOT, printed, errors)
            try:
                status = forked.wait(timeout_seconds)
            finally:
                forked.kill()
            return subprocess.CompletedProcess(
                list(argv), status, printed.read_text(), errors.read_text()
            )

    def stop(self) -> None:
        """End it and all that it forked."""
        self._process.communicate()


def _serve() -> dict[str, Any]:
    """Answer until the tests end; return only in a forked process, with what it was asked for."""
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            answer: int | None = _fork()
            if answer == 0:
                return dict(request["start"])
        else:
            pid, status = _waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), flush=True)
    sys.exit()


def _become(start: Mapping[str, Any], parent: int) -> None:
    """Take on the environment of the process that was asked for."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # It may have ended before that.
    if os.getppid() != parent:
        sys.exit("the fork server is gone")
    for fd, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, start["log"], os.O_WRONLY | os.O_APPEND),
        (2, start["errors"], os.O_WRONLY | os.O_APPEND),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, fd)
        os.close(opened)
    os.environ.clear()
    os.environ.update(start["env"])
    os.chdir(start["cwd"])
    sys.argv = start["argv"]


def read_version_once() -> None:
    """Keep redis-py from reading its own version from the disk for each connection, 1.4 ms long."""
    redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


def _preload() -> None:
    read_version_once()
    for name in PRELOADED:
        importlib.import_module(name)
    package = importlib.import_module("celery_fairness")
    for module in pkgutil.walk_packages(package.__path__, "celery_fairness."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            # It belongs to an extra that is not installed here.
            if str(error.name).startswith("celery_fairness"):
                raise
    # The collector would write to every page that forked processes share.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Fork until the tests end; be a worker in what was forked."""
    if "gevent" in sys.argv:
        maybe_patch_concurrency(["celery", "--pool", "gevent"])
    _preload()
    server = os.getpid()
    _become(_serve(), server)
    if os.sep in sys.argv[0]:
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
