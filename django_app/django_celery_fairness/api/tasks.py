"""Tasks: lists and their bulk cancel; explain and cancel by id.

Invariant: a bulk cancel names how many tasks it may cancel. A filter that has more cancels none.
"""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Query, Router

from celery_fairness import Fairness
from celery_fairness.control.task.task_list import LIST_LENGTH, LONGEST_LIST
from celery_fairness.control.task.views import Cancelled, Explanation, TaskPage, TasksCancelled
from django_celery_fairness.api.audit import DELETED, wrote
from django_celery_fairness.api.auth import access
from django_celery_fairness.api.errors import NO_NUL, ApiError, named_in_url
from django_celery_fairness.api.schemas import READ, WRITE, Error
from django_celery_fairness.permissions import Action

#: Tasks that one request cancels at most.
CANCELLED_AT_MOST = 10_000

#: A part of a filter.
Name = Annotated[str | None, Query(pattern=NO_NUL, min_length=1, max_length=1000)]
Cursor = Annotated[str | None, Query(pattern="^[A-Za-z0-9_-]+$")]
Waits = Literal["waiting", "delayed", "parked"]

router = Router(auth=access(Action.SEE_TASKS), tags=["tasks"])


@router.get("tasks", response={200: TaskPage, READ: Error})
def list_tasks(
    request: HttpRequest,
    tenant: Name = None,
    queue: Name = None,
    key: Name = None,
    state: Waits | Literal["running", "dead"] | None = None,
    limit: Annotated[int, Query(ge=1, le=LONGEST_LIST)] = LIST_LENGTH,
    cursor: Cursor = None,
) -> TaskPage:
    """Return a page of tasks; ``cursor`` is the one of the page before."""
    with named_in_url():
        return Fairness.of().tasks.list(tenant, queue, state, key=key, limit=limit, cursor=cursor)


@router.delete(
    "tasks", response={200: TasksCancelled, WRITE: Error}, auth=access(Action.CANCEL_TASKS)
)
def cancel_tasks(
    request: HttpRequest,
    tenant: Name = None,
    queue: Name = None,
    key: Name = None,
    state: Waits | None = None,
    confirm: Annotated[int, Query(ge=0, le=1_000_000_000)] = 0,
) -> TasksCancelled:
    """Cancel the waiting, delayed and parked tasks of a filter, if they are at most ``confirm``.

    If there are more, nothing is cancelled, and the conflict has their number. One request cancels
    at most 10,000 tasks. If ``has_more`` is true, send it again.
    """
    tasks = Fairness.of().tasks
    found = tasks.count(tenant, queue, state, key=key)
    if found > confirm:
        text = f"the filter has {found} tasks: to cancel them, send confirm={found}"
        raise ApiError(409, "conflict", text, details={"tasks": found})
    if not found:
        return TasksCancelled(cancelled=0, has_more=False)
    most = min(confirm, CANCELLED_AT_MOST)
    done = tasks.cancel_all(tenant, queue, state, key=key, most=most)
    wanted = {"tenant": tenant, "queue": queue, "key": key, "state": state}
    named = {name: value for name, value in wanted.items() if value is not None}
    text = ", ".join(f"{name} {value}" for name, value in named.items())
    wrote(request, "tasks of", text, named | done.model_dump(mode="json"), flag=DELETED)
    return done


@router.get("tasks/{anything:task_id}", response={200: Explanation, READ: Error})
def explain_task(
    request: HttpRequest,
    task_id: str,
) -> Explanation:
    """Return where a task is, why it does not start, and which tasks hold its slots."""
    return Fairness.of().tasks.explain(task_id)


@router.delete(
    "tasks/{anything:task_id}",
    response={200: Cancelled, WRITE: Error},
    auth=access(Action.CANCEL_TASKS),
)
def cancel_task(request: HttpRequest, task_id: str) -> Cancelled:
    """Cancel a task that waits; one that runs is not stopped, and the answer is a conflict."""
    done = Fairness.of().tasks.cancel(task_id)
    if done.state != "cancelled":
        text = f"the task {task_id!r} has started, and goes on"
        raise ApiError(409, "conflict", text, details=done.model_dump(mode="json"))
    wrote(request, "task", task_id, done.model_dump(mode="json"), flag=DELETED)
    return done
