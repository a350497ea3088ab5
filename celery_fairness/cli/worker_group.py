"""Several workers as one command: they get its signals, and end together.

Each worker has a session of its own, so Ctrl-C in a terminal reaches only this process, which
forwards it. A worker that got the signal twice would begin a cold shutdown. Each line of output
begins with the worker's queue.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import IO, Any

import click

from celery_fairness.testing.child_process import dying_with_parent

#: Signals that end a worker.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
#: Signals that are forwarded to the workers.
_FORWARDED = (*_ENDS, signal.SIGHUP, signal.SIGUSR1)
#: Longest wait for the last lines of a worker that has ended, in seconds.
_LAST_LINES_SECONDS = 5.0


def run(commands: Mapping[str, Sequence[str]]) -> int:
    """Run a command for each queue; return the first exit code that is not 0.

    If one worker ends, the others end after their current tasks. The code of a worker that was
    killed by a signal is 128 plus the signal's number, as in a shell.
    """
    #: Signals that arrived, and queues whose worker has ended, in order.
    events: SimpleQueue[signal.Signals | str] = SimpleQueue()

    def came(number: int, _frame: Any) -> None:
        events.put(signal.Signals(number))

    before = {number: signal.signal(number, came) for number in _FORWARDED}
    try:
        return _run(commands, events)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(commands: Mapping[str, Sequence[str]], events: SimpleQueue[signal.Signals | str]) -> int:
    running = {queue: _start(command) for queue, command in commands.items()}
    threads = [
        *_copiers(running),
        *(
            threading.Thread(target=_wait, args=(queue, worker, events), daemon=True)
            for queue, worker in running.items()
        ),
    ]
    for thread in threads:
        thread.start()
    codes: list[int] = []
    stopping = False
    while running:
        event = events.get()
        if isinstance(event, signal.Signals):
            stopping |= event in _ENDS
            number = event
        else:
            code = running.pop(event).returncode
            codes.append(128 - code if code < 0 else code)
            if stopping or not running:
                continue
            problem = (
                f"{event}: ended with exit code {codes[-1]}: the other workers are stopped too"
            )
            click.echo(f"celery fairness: {problem}", err=True)
            stopping, number = True, signal.SIGTERM
        for worker in running.values():
            worker.send_signal(number)
    for thread in threads:
        thread.join(_LAST_LINES_SECONDS)
    return next((code for code in codes if code), 0)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        dying_with_parent(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def _copiers(running: Mapping[str, subprocess.Popen[bytes]]) -> Iterator[threading.Thread]:
    """Yield the threads that copy each worker's output, with its queue before each line."""
    one_line = threading.Lock()

    def copy(queue: str, source: IO[bytes], target: IO[bytes]) -> None:
        head = f"{queue}: ".encode()
        with source:
            for line in source:
                # The worker continues even if nobody reads its output any more.
                with one_line, contextlib.suppress(OSError):
                    target.write(head + line if line.endswith(b"\n") else head + line + b"\n")
                    target.flush()

    for queue, worker in running.items():
        for source, target in ((worker.stdout, sys.stdout), (worker.stderr, sys.stderr)):
            yield threading.Thread(target=copy, args=(queue, source, target.buffer), daemon=True)


def _wait(
    queue: str, worker: subprocess.Popen[bytes], events: SimpleQueue[signal.Signals | str]
) -> None:
    worker.wait()
    events.put(queue)
