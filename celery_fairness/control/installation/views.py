"""The values about worker processes that methods of ``Fairness`` return."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_fairness.util.value import Value


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """One process that runs tasks, and its number of leases."""

    owner: str
    leases: int


class WorkerStatus(Value):
    """One live worker process, which stores this as JSON in Redis.

    Attributes:
        name: Celery's name of it, such as ``celery@web-3``.
        pid: Process id of its main process.
        path: ``dispatch`` or ``gate``.
        enforcement: ``on``, ``observe`` or ``off``. With the last two the worker starts tasks above
            their limits.
        owner: Its name as the owner of leases.
        places: Tasks that its pool runs at once.
        queues: Queues that it consumes.
        shares: Its places for each queue of a service. Empty if it takes its queues in turn.
        lends: Whether other queues may use places that their queue does not need.
        app: Name of its Celery app. None is not announced.
        backend: A hash of its result backend, or "" if it has none.
        lease_seconds: Its setting. 0 is not announced.
        started_at: When it started, by the clock of its host. None is not announced.
    """

    name: str
    pid: int
    path: str
    enforcement: str
    owner: str = ""
    places: int = 0
    queues: tuple[str, ...] = ()
    shares: dict[str, int] = {}
    lends: bool = False
    app: str | None = None
    backend: str = ""
    lease_seconds: float = 0.0
    started_at: datetime | None = None

    def most_of(self, queue: str) -> int:
        """Return how many tasks of a queue it runs at once at most."""
        return self.places if self.lends else self.shares.get(queue, self.places)


@dataclass(frozen=True, slots=True)
class UnannouncedWorker:
    """A worker that answers Celery and is not announced in the installation.

    It lacks this package, or it has another namespace or Redis.

    Attributes:
        name: Celery's name of it, such as ``celery@web-3``.
        queues: Queues that it consumes. None if it did not send them.
        shares: Whether it may take tasks of the installation: one of its queues is known here, or
            its queues are not known.
    """

    name: str
    queues: tuple[str, ...] | None
    shares: bool


class WorkerReplies(Value):
    """The workers that answered Celery, compared with those that are announced.

    Attributes:
        at: When they were asked, by the clock of this process.
        answered: How many workers answered.
        unannounced: Those of them that are not announced, those that share a queue first.
        problem: Why nobody was seen, although workers may run. "" if Celery's control bus worked.
    """

    at: datetime
    answered: int = 0
    unannounced: tuple[UnannouncedWorker, ...] = ()
    problem: str = ""

    @property
    def sharing(self) -> tuple[UnannouncedWorker, ...]:
        """The unannounced workers that may take tasks of the installation."""
        return tuple(each for each in self.unannounced if each.shares)
