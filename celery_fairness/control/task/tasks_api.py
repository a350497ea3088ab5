"""``fairness.tasks``: tasks by id, and lists of tasks by tenant, queue, key and state."""

from __future__ import annotations

from collections.abc import Callable

from celery_fairness.config.fields import whole
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.workers import living, not_enforcing
from celery_fairness.control.key.limits_api import LONGEST_PAGE, PAGE_LENGTH, PAGES
from celery_fairness.control.key.views import Pagination
from celery_fairness.control.task.cancellation import cancel_tasks
from celery_fairness.control.task.explanation import explain
from celery_fairness.control.task.search import PASSES, Place, dead, find, letter
from celery_fairness.control.task.task_list import (
    CANCELLED_STATES,
    LIST_LENGTH,
    Filter,
    cancel_listed,
    count_tasks,
    list_tasks,
    read_filter,
)
from celery_fairness.control.task.views import (
    Cancelled,
    DeadLetterPage,
    Explanation,
    Requeued,
    TaskPage,
    TasksCancelled,
)
from celery_fairness.errors import NotFound
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
_STATES = ("delayed", "waiting", "running", "moving", "dead")


class TasksApi:
    """Tasks by id, and lists of tasks.

    Every method raises ``LimiterUnavailable`` if Redis does not answer.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._nowhere = _NOWHERE if installation.claims else _NOT_PARKED

    def list(
        self,
        tenant: str | None = None,
        queue: str | None = None,
        state: str | None = None,
        *,
        key: str | None = None,
        limit: int = LIST_LENGTH,
        cursor: str | None = None,
    ) -> TaskPage:
        """Return a page of tasks: dead letters, running, waiting, parked and delayed ones.

        Redis looks at a bounded number of tasks, so a page of rare tasks may have fewer than
        ``limit``, even none, and a cursor. A task that starts or comes due between two pages is on
        one of them at most, and a task that keeps its state is on one.

        Args:
            tenant: Only tasks of this tenant.
            queue: Only tasks of this queue. A parked task has the queue to which it goes back.
            state: Only those in this state: ``waiting``, ``delayed``, ``parked``, ``running`` or
                ``dead``.
            key: Only tasks that count in this key, such as ``api.stripe.com``.
            limit: Most tasks on the page, 1 to 50.
            cursor: The cursor of the page before, of a list with the same arguments.

        Raises:
            TenantInvalid: The text cannot be a tenant.
            ValueError: Another argument is invalid.
        """
        wanted = read_filter(self._installation, tenant, queue, key, state)
        return list_tasks(self._installation, wanted, limit, cursor)

    def count(
        self,
        tenant: str | None = None,
        queue: str | None = None,
        state: str | None = None,
        *,
        key: str | None = None,
    ) -> int:
        """Return how many tasks :meth:`cancel_all` would cancel with the same arguments.

        It reads each of these tasks once, in bounded calls.
        """
        wanted = self._cancellable(tenant, queue, state, key)
        return count_tasks(self._installation, wanted)

    def cancel_all(
        self,
        tenant: str | None = None,
        queue: str | None = None,
        state: str | None = None,
        *,
        key: str | None = None,
        most: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> TasksCancelled:
        """Cancel all tasks that wait, until their time too, or are parked, of a filter.

        A worker stores the result ``REVOKED`` for each, and fails its chord. A task that is
        submitted during the call may be left. A call that failed halfway can be repeated.

        Args:
            tenant: As for :meth:`list`.
            queue: As for :meth:`list`.
            state: ``waiting``, ``parked`` or ``delayed``. None is all three.
            key: As for :meth:`list`.
            most: Tasks that the call cancels at most. None is all.
            progress: Called after each group with the number that is cancelled.

        Raises:
            TenantInvalid: The text cannot be a tenant.
            ValueError: Another argument is invalid, or neither a tenant, a queue nor a key is
                given.
        """
        if most is not None:
            whole(1, 10**9).read("most", most)
        wanted = self._cancellable(tenant, queue, state, key)
        return cancel_listed(self._installation, wanted, most, progress)

    def _cancellable(
        self, tenant: str | None, queue: str | None, state: str | None, key: str | None
    ) -> Filter:
        if tenant is None and queue is None and key is None:
            raise ValueError("expected a tenant, a queue or a key, got: none")
        return read_filter(self._installation, tenant, queue, key, state, CANCELLED_STATES)

    def explain(self, task_id: str) -> Explanation:
        """Return where a task is, why it does not start, and which tasks hold its slots.

        Raises:
            NotFound: No task of this id waits, runs or is a dead letter. At a gate, none is parked.
        """
        found = None
        for _ in range(PASSES):
            # A task may end after it was found, and be put again.
            found = found or self._explain(task_id)
        if found is None:
            raise NotFound("task", task_id, self._nowhere)
        if found.state in ("running", "moving", "dead"):
            return found
        workers = living(self._installation.reader)
        taken_by = tuple(each.name for each in workers if found.queue in each.queues)
        return found.model_copy(
            update={"not_enforcing": not_enforcing(workers), "taken_by": taken_by}
        )

    def _explain(self, task_id: str) -> Explanation | None:
        for page in find(self._installation.reader, task_id):
            places = [each for each in page if each.state in _STATES]
            places.sort(key=lambda place: _STATES.index(place.state))
            explained = (explain(self._installation, place) for place in places)
            if found := next(filter(None, explained), None):
                return found
        return None

    def cancel(self, task_id: str) -> Cancelled:
        """Cancel a task that waits: in its lane, at a limit, until its time, or parked by a gate.

        A worker stores the result ``REVOKED``, and fails its chord.

        Returns:
            The state: cancelled or running. A running task is not stopped.
            ``app.control.revoke(task_id, terminate=True)`` stops it.

        Raises:
            NotFound: No task of this id waits or runs. At a gate, none is parked.
        """
        answer: Cancelled | None = None
        for _ in range(PASSES):
            # Several messages may have one id: a retry has the id of the first attempt.
            for page in find(self._installation.reader, task_id):
                found = [place for place in page if place.state != "ended"]
                cancelled = cancel_tasks(self._installation, [place.task.tag for place in found])
                if answer is None and cancelled:
                    queue = found[0].queue
                    answer = Cancelled(task_id=task_id, state="cancelled", queue=queue)
                for place in found:
                    if place.state == "running" and not place.task.is_parked:
                        queue, owner = place.queue, place.owner
                        answer = Cancelled(
                            task_id=task_id, state="running", queue=queue, owner=owner
                        )
            if answer is not None:
                return answer
        raise NotFound("task", task_id, self._nowhere)

    def dead_letters(
        self, queue: str | None = None, page: int = 1, per_page: int = PAGE_LENGTH
    ) -> DeadLetterPage:
        """Return dead letters by queue, the newest of each queue first.

        It takes one call to Redis, however many there are.

        Args:
            queue: Only those of this queue. None is all queues.
            page: The number of the page, from 1.
            per_page: How many a page has, 1 to 100.

        Raises:
            ValueError: A number is out of range, or the broker does not claim fairly.
        """
        PAGES.read("page", page)
        whole(1, LONGEST_PAGE).read("per_page", per_page)
        self._installation.expect_claims()
        found, counts = dead(self._installation.reader, queue or "", page, per_page)
        total = counts.get(queue, 0) if queue else sum(counts.values())
        return DeadLetterPage(
            items=tuple(map(letter, found)),
            pagination=Pagination(total=total, page=page, per_page=per_page),
            by_queue=counts,
        )

    def requeue(self, task_id: str) -> Requeued:
        """Put a dead letter back, last in its lane; its deaths are counted from 0 again.

        Args:
            task_id: The task's id, or the name that ``dead_letters`` shows if it has none.

        Raises:
            NotFound: There is no such dead letter.
            ValueError: The broker does not claim fairly.
        """
        self._installation.expect_claims()
        place = self._dead_letter(task_id)
        if place is None:
            hint = "is no dead letter; they are listed by: celery -A APP fairness task dead"
            raise NotFound("task", task_id, hint)
        # If it is gone, it was requeued: by this call, if Redis repeats a lost answer.
        for reader, its in self._installation.reader.by_tag([place.task.tag]):
            reader.call(calls.REQUEUE, its)
        return Requeued(task_id=task_id, queue=place.queue)

    def _dead_letter(self, task_id: str) -> Place | None:
        for _ in range(PASSES):
            for page in find(self._installation.reader, task_id):
                if letters := [place for place in page if place.state == "dead"]:
                    return letters[0]
        return None
