"""The kinds, in a worker whose pool has accidents on command that need an exact moment."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery.worker.control import control_command

from tests.dispatch.kinds import app

__all__ = ["app"]


@control_command()  # type: ignore[untyped-decorator]
def mistake_exits(state: Any) -> dict[str, int]:
    """Give each living process the event of a dead one that had the same file number."""
    consumer = state.consumer
    pool = consumer.pool._pool
    for process in list(pool._pool):
        pool._event_process_exit(consumer.hub, process)
    return {"ok": len(pool._pool)}


@control_command()  # type: ignore[untyped-decorator]
def close_after_a_death(state: Any) -> dict[str, int]:
    """Kill the process that has a task, and close the consumer before the pool has noticed it."""
    consumer = state.consumer
    (job,) = consumer.pool._pool._cache.values()
    child = job._write_to.pid
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    consumer.on_close()
    return {"ok": child}
