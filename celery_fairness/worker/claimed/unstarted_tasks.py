"""Claimed tasks that the process pool has and has not started: kept, or taken back.

When the consumer closes, Celery's pool forgets such tasks, because brokers deliver them again. The
lease of a claimed task outlives a lost connection, so no other worker would run the task, and no
end would be sent. So the pool keeps it. A stopping worker keeps only the tasks in a process's pipe:
the process runs them in any case. Without a reader of its report it would wait half a minute.

The pool also keeps a task whose lease Redis has ended. Its process finds that out and reports it,
and only that report frees the task's place in the worker.

Celery's pool finds a process by the file numbers of its pipes, and a new pipe gets the numbers of a
closed one. So after the death of a process and a lost connection, the pool would take a number for
the wrong process. Tasks would wait without end, or the worker would end. This module forgets such
numbers.

Weakness: it uses private fields of Celery's ``AsynPool``, because there is no public interface.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def tasks_kept(pool: Any, written: bool) -> Iterator[None]:
    """Keep claimed tasks in ``pool`` over the block, which makes the pool forget its tasks.

    The pool must have them all the time. If it got them back after the block, it would not look for
    the task of a process that died meanwhile. The next process would get the pipe with the rest of
    that task. It would run the task a second time, or wait for a message's end without an end.

    Args:
        pool: Celery's pool, of any kind. Pools that forget nothing stay unchanged.
        written: Keep only the tasks that a process has. False keeps those without one too.
    """
    processes: Any = getattr(pool, "_pool", None)
    if not hasattr(processes, "outbound_buffer"):
        yield
        return
    buffer = processes.outbound_buffer
    unwritten = set(buffer)
    kept = {
        job
        for job in processes._cache.values()
        if not job._accepted and _is_held(job) and not (written and job in unwritten)
    }
    for job in kept:
        job.discard = _stay
    # The pool clears the buffer of this name. It gives the tasks of dead processes back to its own.
    processes.outbound_buffer = deque()
    try:
        yield
    finally:
        processes.outbound_buffer = buffer
        for job in kept:
            del job.discard
        waiting = [job for job in buffer if job in kept]
        buffer.clear()
        if written:
            for job in waiting:
                job.discard()
        else:
            buffer.extend(waiting)
        for job in kept.difference(waiting):
            _mark_busy(processes, job)
        _forget_the_dead(processes)
        _watch_again(processes)


def take_back(pool: Any, request: Any) -> bool:
    """Take a claimed task back from ``pool``; return False if a process has it, or may have it."""
    processes: Any = getattr(pool, "_pool", None)
    for job in list(getattr(processes, "outbound_buffer", ())):
        if _request_of(job) is request:
            processes.outbound_buffer.remove(job)
            processes._cache.pop(job._job, None)
            if processes._putlock is not None:
                processes._putlock.release()
            return True
    return False


def _stay() -> None:
    """Discard nothing."""


def _mark_busy(processes: Any, job: Any) -> None:
    process = job._write_to
    if not job._accepted and process is not None and process._is_alive():
        # It was written to the end, and its process is about to begin it.
        processes._busy_workers.add(process.inqW_fd)


def _forget_the_dead(processes: Any) -> None:
    read = processes._fileno_to_outq
    for number, process in list(read.items()):
        # Their pipes are closed. For processes that died idle, the pool does this itself.
        if getattr(process, "dead", False):
            del read[number]


def _watch_again(processes: Any) -> None:
    """Let the pool watch each process whose exit it has stopped to watch.

    If several processes die in one turn of the loop, a new one may get the number of a dead one.
    Then the pool takes the event of the dead one for the exit of the new one. At the next
    connection, Celery would add the missing number to the loop, and the error would end the worker.
    """
    for process in processes._pool:
        if getattr(process, "_sentinel_poll", -1) is None:
            # Without the attribute, the pool takes a new number.
            del process._sentinel_poll


def _is_held(job: Any) -> bool:
    held = getattr(_request_of(job), "_held", None)
    return held is not None and not held.ended


def _request_of(job: Any) -> Any:
    return getattr(getattr(job, "_callback", None), "__self__", None)
