"""A tiny Celery app without this package: what the process harness itself is tested with.

Broker and result backend come from CELERY_BROKER_URL and CELERY_RESULT_BACKEND, which Celery reads.
"""

from __future__ import annotations

import os

from celery import Celery

app = Celery("plain")
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right


@app.task
def whoami() -> int:
    """Return the process id of the pool's process that ran it."""
    return os.getpid()
