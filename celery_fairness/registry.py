"""Which Celery app is wired to which ``Fairness``.

Tasks find the gate and the stamp of their app here, so that no adapter imports another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from celery_fairness.errors import NotWired

if TYPE_CHECKING:
    from celery_fairness.extension import Fairness

_wired: WeakKeyDictionary[Any, Fairness] = WeakKeyDictionary()


def wire(app: Any, fairness: Fairness) -> None:
    """Remember that ``app`` obeys ``fairness``."""
    _wired[_itself(app)] = fairness


def find(app: Any) -> Fairness | None:
    """Return the ``Fairness`` of ``app``, None where it has none."""
    return _wired.get(_itself(app))


def wired(app: Any) -> Fairness:
    """Return the ``Fairness`` of ``app``.

    Raises:
        NotWired: It has none.
    """
    fairness = find(app)
    if fairness is None:
        raise NotWired(str(getattr(app, "main", None) or "celery"))
    return fairness


def wired_apps() -> int:
    """Return how many apps are wired in this process."""
    return len(_wired)


def _itself(app: Any) -> Any:
    """Return the app behind a proxy such as ``celery.current_app``."""
    get = getattr(app, "_get_current_object", None)
    return get() if get is not None else app
