"""Threads of the operating system, also under gevent and eventlet.

Under these libraries a patched thread is a greenlet. A greenlet could not renew a lease while a
body computes without a pause; a thread of the operating system can.
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
    """Return a lock for threads and greenlets. A greenlet must not switch while it holds it."""
    return _original("allocate_lock")()


def native_reentrant_lock() -> Any:
    """Return a lock that its thread may take again, also in a signal handler."""
    return _original("RLock")()


def native_local() -> type:
    """Return a base class: under a green library each native thread has its own attributes.

    Without a green library all threads share them, because the class is ``object``.
    """
    return _patched_away("_local") or object


class Bell:
    """Wakes one native thread. Any thread or greenlet may ring it."""

    def __init__(self) -> None:
        self._lock = _original("allocate_lock")()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the waiting thread, or let its next wait return at once."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # It has been rung and the thread has not woken yet: once is enough.

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until it is rung. Return False after the timeout. Only for the native thread."""
        return bool(self._lock.acquire(timeout=max(0.0, timeout_seconds)))


def _original(name: str) -> Any:
    """Return a function of ``_thread`` as it was before a green library patched it."""
    return _patched_away(name) or getattr(_thread, name)


def _patched_away(name: str) -> Any:
    """Return what a green library replaced in ``_thread``; None without such a library."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("_thread"):
        return gevent.get_original("_thread", name)
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        return getattr(eventlet.original("_thread"), name)
    return None
