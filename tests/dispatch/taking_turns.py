"""The kinds in a worker whose new process writes where the dead one was read.

File numbers are given out again, lowest first. Which one a new pipe gets hangs on what else is
open; here it is always the one at which Celery's pool forgets to stop reading.
"""

from __future__ import annotations

import os
from typing import Any

from celery.concurrency.asynpool import AsynPool

from tests.dispatch.kinds import app

__all__ = ["app"]

_make = AsynPool.create_process_queues
_read: list[int] = []


def _make_at_the_number_read(self: Any) -> Any:
    opened: list[int] = []
    if _read:
        while _read[0] not in opened:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        # The two that the first pipe takes: its end to read, its end to write.
        for number in opened[-2:]:
            os.close(number)
    inq, outq, synq = _make(self)
    assert not _read or inq._writer.fileno() == _read[0]
    _read[:] = _read or [outq._reader.fileno()]
    for number in opened[:-2]:
        os.close(number)
    return inq, outq, synq


AsynPool.create_process_queues = _make_at_the_number_read
