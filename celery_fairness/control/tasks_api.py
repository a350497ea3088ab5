"""``fairness.tasks``: one waiting, running or dead task by its id."""

from __future__ import annotations

from collections.abc import Callable, Collection

from celery_fairness.control.explain import explain
from celery_fairness.control.find_task import PASSES, Place, dead, find, letter
from celery_fairness.control.inspect import Inspector
from celery_fairness.control.purging import cancel_tasks
from celery_fairness.control.scan import Reader
from celery_fairness.control.views import Cancelled, DeadLetter, Explanation, Requeued
from celery_fairness.control.workers import living, not_enforcing
from celery_fairness.errors import NotFound
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.scheduler import calls

_NOWHERE = (
    "neither waits nor runs: it has ended, is of another app, has no id in the headers of its "
    "message, or no worker has taken it over from redis:// yet"
)
_NOT_PARKED = (
    "is not parked in Redis: it may be on its broker, in its queue or until its snooze ends, or it "
    "runs, or has ended; to find out: celery -A APP inspect query_task ID, and the workers' "
    "logs; to cancel it where it is: celery -A APP control revoke ID"
)
#: The states that are shown, the most telling of several first.
_STATES = ("later", "waiting", "running", "dead")


class TasksApi:
    """Tasks by id.

    Every method raises ``LimiterUnavailable`` if Redis does not answer.

    Args:
        limiter: Returns the limiter of the installation.
        inspector: Inspects the limits of a task.
        claims: Whether the broker claims fairly. If not, only parked tasks are in Redis.
        expect_claims: Raises ValueError if it does not.
    """

    def __init__(
        self,
        limiter: Callable[[], RedisLimiter],
        inspector: Inspector,
        claims: bool,
        expect_claims: Callable[[], None],
    ) -> None:
        self._limiter = limiter
        self._inspector = inspector
        self._nowhere = _NOWHERE if claims else _NOT_PARKED
        self._expect_claims = expect_claims

    def explain(self, task_id: str) -> Explanation:
        """Return where a task is, why it does not start, and which tasks hold its slots.

        Raises:
            NotFound: No task of this id waits, runs or is a dead letter. At a gate, none is parked.
        """
        limiter = self._limiter()
        reader = Reader(limiter)
        places = _places(reader, task_id, _STATES)
        if not places:
            raise NotFound("task", task_id, self._nowhere)
        place = min(places, key=lambda place: _STATES.index(place.state))
        found = explain(limiter, place, self._inspector)
        if found.state in ("running", "dead"):
            return found
        return found.model_copy(update={"not_enforcing": not_enforcing(living(reader))})

    def cancel(self, task_id: str) -> Cancelled:
        """Cancel a task that waits: in its lane, at a limit, until its time, or parked by a gate.

        A worker stores the result ``REVOKED``, and fails its chord.

        Returns:
            The state: cancelled; or running, and then the task is not stopped:
            ``app.control.revoke(task_id, terminate=True)`` does that.

        Raises:
            NotFound: No task of this id waits or runs. At a gate, none is parked.
        """
        reader = Reader(self._limiter())
        for _ in range(PASSES):
            found = [place for place in find(reader, task_id) if place.state != "ended"]
            tags = [place.task.tag for place in found]
            cancelled = cancel_tasks(reader, self._inspector.settings, tags)
            # Several messages may have one id: a retry has the id of the first attempt.
            for place in found:
                if place.state == "running" and not place.task.is_parked:
                    return Cancelled(
                        task_id=task_id, state="running", queue=place.queue, owner=place.owner
                    )
            if cancelled:
                return Cancelled(task_id=task_id, state="cancelled", queue=found[0].queue)
        raise NotFound("task", task_id, self._nowhere)

    def dead_letters(self, queue: str | None = None) -> tuple[DeadLetter, ...]:
        """Return the dead letters of a queue, or of all, the newest of each queue first.

        Raises:
            ValueError: The broker does not claim fairly.
        """
        self._expect_claims()
        return tuple(map(letter, dead(Reader(self._limiter()), queue)))

    def requeue(self, task_id: str) -> Requeued:
        """Put a dead letter back, last in its lane; its deaths are counted from 0 again.

        Args:
            task_id: The task's id, or the name that ``dead_letters`` shows if it has none.

        Raises:
            NotFound: There is no such dead letter.
            ValueError: The broker does not claim fairly.
        """
        self._expect_claims()
        reader = Reader(self._limiter())
        for place in _places(reader, task_id, ["dead"]):
            # If it is gone, it was requeued: by this call, if Redis repeats a lost answer.
            reader.call(calls.REQUEUE, [place.task.tag])
            return Requeued(task_id=task_id, queue=place.queue)
        hint = "is no dead letter; they are listed by: celery -A APP fairness task dead"
        raise NotFound("task", task_id, hint)


def _places(reader: Reader, task_id: str, states: Collection[str]) -> list[Place]:
    """Return the tasks of an id that are in one of these states."""
    for _ in range(PASSES):
        found = [place for place in find(reader, task_id) if place.state in states]
        if found:
            return found
    return []
