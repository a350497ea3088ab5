"""Tasks that the process pool has and has not begun, when the consumer closes.

Celery's pool forgets them, for brokers deliver them again. Of a claimed task the lease outlives a
lost connection: nobody else would run it, and nobody would say that it has ended. So the pool keeps
it. A worker that stops keeps those alone that lie in a process's pipe: they run, whoever forgets
them, and their process would wait half a minute for somebody who reads that they have.

Celery's pool also goes on reading, after the connection, at the file numbers of processes that
died at work. Where a new process's pipe has such a number, the pool could never write to it: what
it kept for that process would wait for ever. So those are forgotten here.

Weakness: it knows Celery's ``AsynPool`` from inside, where no other way leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def tasks_kept(pool: Any, written: bool) -> Iterator[None]:
    """Let ``pool`` have its claimed tasks after the block, though it forgets them there.

    Args:
        pool: Celery's, of any kind; those that forget nothing are left alone.
        written: Those alone that a process has; else those too that wait for one.
    """
    processes: Any = getattr(pool, "_pool", None)
    if not hasattr(processes, "outbound_buffer"):
        yield
        return
    # In the order in which they came to the pool.
    jobs = dict(sorted(processes._cache.items()))  # noqa: SLF001 - there is no other way
    try:
        yield
    finally:
        _forget_the_dead(processes)
        for number, job in jobs.items():
            if not job._accepted and _is_held(job):  # noqa: SLF001 - no other way
                _give_back(processes, number, job, written)


def _forget_the_dead(processes: Any) -> None:
    read = processes._fileno_to_outq  # noqa: SLF001 - no other way
    for number, process in list(read.items()):
        # Their pipes are closed; of those that died idle the pool thinks itself.
        if getattr(process, "dead", False):
            del read[number]


def _is_held(job: Any) -> bool:
    request = getattr(getattr(job, "_callback", None), "__self__", None)
    held = getattr(request, "_held", None)
    return held is not None and not held.ended and not held.lost


def _give_back(processes: Any, number: int, job: Any, written: bool) -> None:
    process = job._write_to  # noqa: SLF001 - no other way
    if process is not None and process._is_alive():  # noqa: SLF001 - no other way
        # It was written to the end, and its process is about to begin it.
        processes._busy_workers.add(process.inqW_fd)  # noqa: SLF001 - no other way
    elif written:
        return
    else:
        job._write_to = job._scheduled_for = None  # noqa: SLF001 - no other way
        processes.outbound_buffer.append(job)
    processes._cache[number] = job  # noqa: SLF001 - no other way
