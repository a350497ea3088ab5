"""Several workers as one command: they get its signals, and end together.

Each has a session of its own, so that Ctrl-C of a terminal reaches this process alone, which hands
it on: two that arrive at a worker would be a cold shutdown. Lines of output begin with the queue.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import IO, Any

import click

from celery_fairness.children import dying_with_parent

#: What is handed on.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP", "SIGUSR1")
#: Those of them that end a worker.
_ENDS = ("SIGINT", "SIGTERM", "SIGQUIT")
#: Of a worker that has ended, its last lines are waited for so long, in seconds.
_LAST_LINES_SECONDS = 5.0


class _Workers:
    """Those of one command."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.stopping = False
        self._line = threading.Lock()

    def hand_on(self, number: int, _frame: Any = None) -> None:
        """Give every worker a signal."""
        self.stopping |= signal.Signals(number).name in _ENDS
        for worker in list(self.running.values()):
            worker.send_signal(number)

    def copy(self, queue: str, source: IO[bytes], target: IO[bytes]) -> None:
        """Write each line of a worker with its queue before it."""
        head = f"{queue}: ".encode()
        with source:
            for line in source:
                with self._line:
                    target.write(head + line if line.endswith(b"\n") else head + line + b"\n")
                    target.flush()


def run(commands: Mapping[str, Sequence[str]]) -> int:
    """Run a command for each queue; return the first exit code that is not 0.

    Where one ends, the others are told to end after their tasks. A worker that a signal ended
    counts as 128 and its number, as in a shell.
    """
    workers = _Workers()
    before = {name: signal.signal(name, workers.hand_on) for name in map(_number, _SIGNALS)}
    try:
        return _run(commands, workers)
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _run(commands: Mapping[str, Sequence[str]], workers: _Workers) -> int:
    ended: SimpleQueue[str] = SimpleQueue()
    for queue, command in commands.items():
        if workers.stopping:
            break
        workers.running[queue] = subprocess.Popen(
            dying_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    copiers = []
    for queue, worker in workers.running.items():
        for source, target in ((worker.stdout, sys.stdout), (worker.stderr, sys.stderr)):
            args = (queue, source, target.buffer)
            copiers.append(threading.Thread(target=workers.copy, args=args, daemon=True))
        threading.Thread(target=_wait, args=(queue, worker, ended), daemon=True).start()
    for copier in copiers:
        copier.start()
    codes = []
    while workers.running:
        queue = ended.get()
        code = workers.running.pop(queue).returncode
        codes.append(128 - code if code < 0 else code)
        if workers.running and not workers.stopping:
            problem = f"{queue}: ended with exit code {codes[-1]}: the others are told to end too"
            click.echo(f"celery fairness: {problem}", err=True)
            workers.hand_on(signal.SIGTERM)
    for copier in copiers:
        copier.join(_LAST_LINES_SECONDS)
    return next((code for code in codes if code), 0)


def _wait(queue: str, worker: subprocess.Popen[bytes], ended: SimpleQueue[str]) -> None:
    worker.wait()
    ended.put(queue)


def _number(name: str) -> int:
    return int(signal.Signals[name])
