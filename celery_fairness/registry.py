"""Which Celery app is wired to which ``Fairness``.

Tasks find the gate and the stamp of their app here, so that no adapter imports another. The
``Fairness`` lies on the app itself: both go together when nobody holds the app any more.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery_fairness.errors import NotWired

if TYPE_CHECKING:
    from celery_fairness.extension import Fairness

_ATTRIBUTE = "_celery_fairness"

#: Whose app is publishing in this thread or greenlet: Celery's publish signals do not say. Set by
#: the router, which every publish of an app passes just before its signal.
publishing: ContextVar[Fairness | None] = ContextVar("publishing", default=None)


def wire(app: Any, fairness: Fairness | None) -> None:
    """Remember that ``app`` obeys ``fairness``; None: nobody."""
    setattr(_itself(app), _ATTRIBUTE, fairness)


def find(app: Any) -> Fairness | None:
    """Return the ``Fairness`` of ``app``, None where it has none."""
    return getattr(_itself(app), _ATTRIBUTE, None)


def wired(app: Any) -> Fairness:
    """Return the ``Fairness`` of ``app``.

    Raises:
        NotWired: It has none.
    """
    fairness = find(app)
    if fairness is None:
        raise NotWired(str(getattr(app, "main", None) or "celery"))
    return fairness


def _itself(app: Any) -> Any:
    """Return the app behind a proxy such as ``celery.current_app``."""
    get = getattr(app, "_get_current_object", None)
    return get() if get is not None else app
