"""Claimed tasks that the process pool has and has not started: kept, or taken back.

When the consumer closes, Celery's pool forgets such tasks, because brokers deliver them again. The
lease of a claimed task outlives a lost connection, so no other worker would run the task, and no
end would be sent. So the pool keeps it. A stopping worker keeps only the tasks in a process's pipe:
the process runs them in any case. Without a reader of its report it would wait half a minute.

After a lost connection, Celery's pool also goes on reading from the file numbers of processes that
died at work. If a new process's pipe gets such a number, the pool can never write to it, and its
tasks wait without end. This module forgets those numbers.

Weakness: it uses private fields of Celery's ``AsynPool``, because there is no public interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def tasks_kept(pool: Any, written: bool) -> Iterator[None]:
    """Put claimed tasks back into ``pool`` after the block, which makes the pool forget them.

    Args:
        pool: Celery's pool, of any kind. Pools that forget nothing stay unchanged.
        written: Keep only the tasks that a process has. False keeps those without one too.
    """
    processes: Any = getattr(pool, "_pool", None)
    if not hasattr(processes, "outbound_buffer"):
        yield
        return
    # In the order in which they came to the pool.
    jobs = dict(sorted(processes._cache.items()))
    try:
        yield
    finally:
        _forget_the_dead(processes)
        for number, job in jobs.items():
            if not job._accepted and _is_held(job):
                _give_back(processes, number, job, written)


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


def _forget_the_dead(processes: Any) -> None:
    read = processes._fileno_to_outq
    for number, process in list(read.items()):
        # Their pipes are closed. For processes that died idle, the pool does this itself.
        if getattr(process, "dead", False):
            del read[number]


def _is_held(job: Any) -> bool:
    held = getattr(_request_of(job), "_held", None)
    return held is not None and not held.ended and not held.lost


def _request_of(job: Any) -> Any:
    return getattr(getattr(job, "_callback", None), "__self__", None)


def _give_back(processes: Any, number: int, job: Any, written: bool) -> None:
    process = job._write_to
    if process is not None and process._is_alive():
        # It was written to the end, and its process is about to begin it.
        processes._busy_workers.add(process.inqW_fd)
    elif written:
        return
    else:
        job._write_to = job._scheduled_for = None
        processes.outbound_buffer.append(job)
    processes._cache[number] = job
