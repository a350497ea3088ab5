"""The lease of the body that runs in this thread or greenlet, on both paths.

The worker sets it around the body. So ``fairness.limits.used`` finds the start that it corrects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_lease: ContextVar[str] = ContextVar("celery_fairness_lease", default="")


def current_lease() -> str:
    """Return the name of the lease, "" if no body with a lease runs here."""
    return _lease.get()


@contextmanager
def running(lease: str) -> Iterator[None]:
    """Run a body with this lease; "" is none."""
    token = _lease.set(lease)
    try:
        yield
    finally:
        _lease.reset(token)
