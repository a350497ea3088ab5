"""Lists of tasks on pages: the tasks of a filter, and the address of all of them.

Invariant: only a person who may see tasks sees a list, because it shows arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from celery_fairness.control.task.task_list import LIST_LENGTH
from celery_fairness.control.task.views import TaskPage, TaskRow
from celery_fairness.texts.tasks import why_text
from django_celery_fairness.permissions import APP, Action
from django_celery_fairness.redis_pages import ask, time_text

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]

#: Tasks on the page of a key, a tenant or a queue.
FIRST = 10


def first_tasks(page: ModelAdmin, request: HttpRequest, **wanted: str) -> dict[str, Any]:
    """Return the first tasks of a filter for ``task_rows.html``, and the address of all.

    Args:
        page: The page.
        request: The request.
        wanted: The filter, as ``fairness.tasks.list`` takes it.
    """
    if not Action.SEE_TASKS.allowed(request.user):
        return {}
    found = ask(request, lambda fairness: fairness.tasks.list(**wanted, limit=FIRST))[0]
    if found is None:
        return {}
    return {**shown(found), "all_tasks_url": list_url(page, wanted)}


def shown(found: TaskPage) -> dict[str, Any]:
    """Return a page of tasks for ``task_rows.html``."""
    return {
        "task_page": found,
        "task_rows": [(row, _state_of(row)) for row in found.items],
    }


def _state_of(row: TaskRow) -> str:
    """Return the state of a task with its time, and why it is in this state."""
    state: str = row.state
    if row.due_in_seconds is not None:
        state = _("%(state)s, due in %(time)s") % {
            "state": row.state,
            "time": time_text(row.due_in_seconds),
        }
    elif row.age_seconds is not None:
        state = _("%(state)s %(time)s") % {"state": row.state, "time": time_text(row.age_seconds)}
    why = why_text(row)
    return f"{state}: {why}" if why else state


def list_url(page: ModelAdmin, query: Mapping[str, str]) -> str:
    """Return the address of a list of tasks."""
    url = reverse(f"admin:{APP}_task_changelist", current_app=page.admin_site.name)
    return f"{url}?{urlencode(query)}" if query else url


def page_of(
    request: HttpRequest, wanted: Mapping[str, str], cursor: str
) -> tuple[TaskPage | None, str]:
    """Return a page of the tasks of a filter, or why there is none."""
    return ask(
        request,
        lambda fairness: fairness.tasks.list(
            wanted.get("tenant"),
            wanted.get("queue"),
            wanted.get("state"),
            key=wanted.get("key"),
            limit=LIST_LENGTH,
            cursor=cursor or None,
        ),
    )
