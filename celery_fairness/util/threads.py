"""Real threads, also under gevent and eventlet, whose patched ones are greenlets.

A lease must be renewed while a body computes without a pause. A greenlet would wait for it; a
thread of the operating system does not.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from typing import Any


def start_thread(run: Callable[[], None]) -> None:
    """Run ``run`` in a daemon thread of the operating system."""
    _original("start_new_thread")(run, ())


def native_lock() -> Any:
    """Return a lock that threads and greenlets may share; nobody switches while holding it."""
    return _original("allocate_lock")()


class Bell:
    """Wakes one native thread: rung from any thread or greenlet, heard once."""

    def __init__(self) -> None:
        self._lock = _original("allocate_lock")()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the waiting thread, or let its next wait return at once."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # It had been rung and not yet heard: once is enough.

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until it is rung; returns whether it was. Only for the native thread."""
        return bool(self._lock.acquire(timeout=max(0.0, timeout_seconds)))


def _original(name: str) -> Any:
    """Return a function of ``_thread`` as it was before a green library patched it."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("_thread"):
        return gevent.get_original("_thread", name)
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        return getattr(eventlet.original("_thread"), name)
    return getattr(_thread, name)
