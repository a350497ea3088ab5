"""How tasks, hooks and Celery's own classes find the parts that belong to their app.

Celery makes requests, steps and tasks itself, so they cannot be given their parts. They find them
through the app, which stores them, so both are freed together. This module names the type of the
parts and imports no room while the program runs.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery_fairness.errors import NotWired

if TYPE_CHECKING:
    from celery_fairness.app.parts import Parts as Parts

_ATTRIBUTE = "_celery_fairness"

#: The parts of the app that is publishing in this thread or greenlet. Celery's publish signals do
#: not name the app, so the router sets this: each publish passes it just before the signal.
publishing: ContextVar[Parts | None] = ContextVar("publishing", default=None)


def wire(app: Any, fairness: Parts | None) -> None:
    """Store the parts of ``app`` on it; None removes them."""
    setattr(_itself(app), _ATTRIBUTE, fairness)


def find(app: Any) -> Parts | None:
    """Return the parts of ``app``; None if it has no ``Fairness``."""
    return getattr(_itself(app), _ATTRIBUTE, None)


def wired(app: Any) -> Parts:
    """Return the parts of ``app``.

    Raises:
        NotWired: The app has no ``Fairness``.
    """
    fairness = find(app)
    if fairness is None:
        raise NotWired(str(getattr(app, "main", None) or "celery"))
    return fairness


def _itself(app: Any) -> Any:
    """Return the app behind a proxy such as ``celery.current_app``."""
    get = getattr(app, "_get_current_object", None)
    return get() if get is not None else app
