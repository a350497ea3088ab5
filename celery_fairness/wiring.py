"""How tasks, hooks and Celery's own classes find the parts that belong to their app.

Celery makes requests, steps and tasks itself, so they cannot be given their parts. They find them
through the app, which stores them, so both are freed together. The Protocol lists the parts that
they may use. The parts have no types, because this module imports no room.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from celery_fairness.errors import NotWired

_ATTRIBUTE = "_celery_fairness"


class Wiring(Protocol):
    """The parts of one app."""

    @property
    def app(self) -> Any:
        """The Celery app."""

    @property
    def settings(self) -> Any:
        """:class:`~celery_fairness.config.settings.Settings`."""

    @property
    def claims_fairly(self) -> bool:
        """Whether the broker claims fairly (``fairredis://``), so that no gate is needed."""

    @property
    def worker(self) -> Any:
        """The id of this process's worker."""

    fairness: Any
    """The :class:`~celery_fairness.Fairness` of the app."""

    publishers: list[Any]
    """Functions that publish tiers again, called in a thread if Redis lost its memory."""

    shares: Any
    """How this worker's slots are divided among its queues."""

    consumer: Any
    """The consumer of this process's worker; None in a process that runs none."""

    @property
    def notices(self) -> Any:
        """The throttled log."""

    @property
    def environ(self) -> Any:
        """The environment variables that the settings were read from."""

    @property
    def stamp(self) -> Any:
        """Makes the headers of published messages."""

    @property
    def puts(self) -> Any:
        """Emits ``task.put`` on brokers that do not claim."""

    @property
    def directory(self) -> Any:
        """The tier cache."""

    @property
    def router(self) -> Any:
        """Chooses the queue of a task."""

    @property
    def gate(self) -> Any:
        """Acquires a task's limits before its body runs."""

    @property
    def lease_renewer(self) -> Any:
        """Renews the leases of the gate."""

    @property
    def promoter(self) -> Any:
        """Publishes parked tasks whose limits are available."""

    @property
    def limiter(self) -> Any:
        """The limiter on Redis."""

    def announcement(self, name: str) -> str:
        """Return what the worker ``name`` stores about itself for ``status``."""

    def close(self) -> None:
        """Undo the wiring and close the connections."""

    def install_router(self) -> None:
        """Put the router into the app's ``task_routes``."""

    def give_token_back(self, name: str) -> None:
        """Return the token of Celery's own ``rate_limit`` that a rejected attempt took."""

    def republish(self) -> Any:
        """Publish tiers and queue limits again, for example to an empty Redis."""

    def cool_down(self, key: str, wait_seconds: float, reason: str, *, policy: bool) -> None:
        """Store a cool-down of a key: none of its tasks start for ``wait_seconds``."""

    def cancel_parked(self, queue: str) -> Any:
        """Cancel the tasks of a queue that are parked."""

    def on_worker_init(self) -> None:
        """Handle the start of a worker whose options can still change."""

    def on_worker_made(self) -> None:
        """Handle a worker that is complete and has not started."""

    def on_worker_start(self, worker: Any) -> None:
        """Handle the start of a worker's consumer."""

    def on_worker_stopping(self) -> None:
        """Handle a worker's order to stop."""

    def on_worker_stopped(self) -> None:
        """Handle the end of a worker."""

    def on_pool_child(self) -> None:
        """Handle the start of a pool child, in that child."""


#: The parts of the app that is publishing in this thread or greenlet. Celery's publish signals do
#: not name the app, so the router sets this: each publish passes it just before the signal.
publishing: ContextVar[Wiring | None] = ContextVar("publishing", default=None)


def wire(app: Any, fairness: Wiring | None) -> None:
    """Store the parts of ``app`` on it; None removes them."""
    setattr(_itself(app), _ATTRIBUTE, fairness)


def find(app: Any) -> Wiring | None:
    """Return the parts of ``app``; None if it has no ``Fairness``."""
    return getattr(_itself(app), _ATTRIBUTE, None)


def wired(app: Any) -> Wiring:
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
