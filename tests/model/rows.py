"""What an installation remembers of a tenant with something waiting, and of a claimed task."""

from __future__ import annotations

from dataclasses import dataclass, replace

from celery_fairness.config.limit_spec import without_whole
from tests.model.lanes import Task


@dataclass(slots=True)
class Account:
    """A tenant that has something waiting.

    Attributes:
        tier: As the last put knew it that knew one.
        tenant: As it is written in keys.
        closed: It was found at its limit. Rings that have met it since keep it as full.
        mean: Of the last runs of its tasks in seconds, where they are charged by that.
    """

    tier: str
    tenant: str
    closed: bool = False
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A claimed task, or one that ended for good.

    ``state`` is claimed, begun or acked; of an outcome acked, dead, unreadable, dropped,
    cancelled or expired. Who owns what was dropped is the limit, by its key; what was cancelled or
    has expired nobody does. ``since`` is the logical time of its claim, ``mean_ms`` how long those
    of its kind took lately (``took``); an outcome has neither.
    """

    owner: str
    state: str
    queue: str
    task: Task
    since: int | None = None
    mean_ms: int | None = None

    @property
    def text(self) -> str:
        """The same as the functions write it, by which outcomes of one time are ordered."""
        length = len(self.queue.encode())
        return f"{self.owner} {self.state} {length} {self.queue}{self.task.record}"

    @property
    def as_it_waits(self) -> Running:
        """The same with its task as it waits again: without the limit of its whole queue."""
        task = replace(self.task, limits=without_whole(self.task.limits))
        return Running(self.owner, self.state, self.queue, task)
