"""The task search: where a task is and why it does not start, in the words of the command."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from celery_fairness import Fairness
from celery_fairness.cli.show_task import (
    HOLDER_HEADS,
    LIMIT_HEADS,
    holder_cells,
    limit_cells,
    sentences,
)
from django_celery_fairness.models import Task
from django_celery_fairness.permissions import Action
from django_celery_fairness.redis_pages import (
    NAME_CHARACTERS,
    ReasonForm,
    RedisPageAdmin,
    ask,
    storable,
    unquoted,
)

#: The states in which a task can be cancelled.
CANCELLABLE = ("waiting", "later", "parked")


@admin.register(Task)
class TaskAdmin(RedisPageAdmin):
    """The admin of the task search."""

    def get_urls(self) -> list[URLPattern]:
        """Return the search, its address in the history, and the confirmation of a cancel."""
        return [
            self.route("", self.search_page, "changelist"),
            self.route("<path:object_id>/change/", self.to_search, "change"),
            self.route("<path:object_id>/cancel/", self.cancel_page, "cancel"),
        ]

    def search_page(self, request: HttpRequest) -> HttpResponse:
        """Show the field for an id, and what is known of the task."""
        self.expect_view(request)
        task_id = request.GET.get("id", "").strip()
        context: dict[str, Any] = {"task_id": task_id[:NAME_CHARACTERS], "is_live": bool(task_id)}
        if len(task_id) > NAME_CHARACTERS:
            text = _("No id has more than %(most)d characters.")
            context |= {"problem": text % {"most": NAME_CHARACTERS}, "is_live": False}
        elif task_id:
            found, problem = ask(request, lambda fairness: fairness.tasks.explain(task_id))
            context["problem"] = problem
            if found is not None:
                context |= {
                    "sentences": [
                        (each, [holder_cells(lease) for lease in each.holders])
                        for each in sentences(found)
                    ],
                    "limits": [limit_cells(each) for each in found.limits],
                    "holder_heads": HOLDER_HEADS,
                    "limit_heads": LIMIT_HEADS,
                }
                if found.state in CANCELLABLE and self.has_change_permission(request):
                    context["cancel_url"] = self.address("cancel", task_id)
                if found.state == "dead":
                    context["dead_url"] = self._dead_url(request, found.queue)
        return self.show(request, "task_search", _("Task search"), context)

    def to_search(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Go to a task."""
        self.expect_view(request)
        return redirect(self._search_url(unquoted(object_id)))

    def cancel_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation of a cancel, or cancel a task."""
        self.expect_change(request)
        task_id = unquoted(object_id)
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            what = _("Cancel, because: %(reason)s.") % {
                "reason": form.cleaned_data["reason"].rstrip(".")
            }
            self.change(
                request, Task(storable(task_id)), what, lambda fairness: cancel(fairness, task_id)
            )
            return redirect(self._search_url(task_id))
        found, problem = ask(request, lambda fairness: fairness.tasks.explain(task_id))
        context = {
            "problem": problem,
            "form": form,
            "question": _(
                "This task will not run. A worker stores its result as REVOKED, and a chord that "
                "waits for it fails."
            ),
            "names": [] if found is None else [next(sentences(found)).text],
            "button": _("Cancel this task"),
            "back": self._search_url(task_id),
        }
        title = _("Cancel task %(id)s") % {"id": task_id}
        return self.show(request, "confirm", title, context)

    def _search_url(self, task_id: str) -> str:
        return f"{self.address('changelist')}?{urlencode({'id': task_id})}"

    def _dead_url(self, request: HttpRequest, queue: str) -> str:
        if not Action.SEE_DEAD_LETTERS.allowed(request.user):
            return ""
        name = "admin:django_celery_fairness_deadletter_changelist"
        url = reverse(name, current_app=self.admin_site.name)
        return f"{url}?{urlencode({'queue': queue})}"


def cancel(fairness: Fairness, task_id: str) -> str:
    """Cancel a task.

    Raises:
        ValueError: It runs, so it is not stopped.
    """
    done = fairness.tasks.cancel(task_id)
    names = {"id": done.task_id, "queue": done.queue, "owner": done.owner}
    if done.state == "running":
        text = _(
            "task %(id)s already runs at %(owner)s and goes on; to stop it there: "
            "celery -A APP control terminate SIGTERM %(id)s"
        )
        raise ValueError(text % names)
    return _("task %(id)s of queue %(queue)s is cancelled") % names
