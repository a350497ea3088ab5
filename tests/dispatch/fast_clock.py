"""The tasks of every kind, in a process whose clock is an hour ahead."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, tzinfo

from celery.worker import request

from tests.dispatch.kinds import app

__all__ = ("app",)

AHEAD_SECONDS = 3600
_time = time.time


class AheadOfTime(datetime):
    """Celery's clock for the expiry of tasks."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Return the time in an hour."""
        return datetime.now(tz) + timedelta(seconds=AHEAD_SECONDS)


# Modules that were imported before have bound neither.
time.time = lambda: _time() + AHEAD_SECONDS
request.datetime = AheadOfTime  # type: ignore[attr-defined]
