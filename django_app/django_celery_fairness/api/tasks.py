"""Tasks by id: explain and cancel."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router

from celery_fairness import Fairness
from celery_fairness.control.views import Cancelled, Explanation
from django_celery_fairness.api.audit import DELETED, wrote
from django_celery_fairness.api.auth import access
from django_celery_fairness.api.errors import ApiError
from django_celery_fairness.api.schemas import READ, WRITE, Error
from django_celery_fairness.permissions import Action

router = Router(auth=access(Action.SEE_TASKS), tags=["tasks"])


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
