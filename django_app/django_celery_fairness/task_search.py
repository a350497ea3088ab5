"""Tasks: lists by tenant, queue, key and state, their bulk cancel, and the search for one by id.

A list and an explanation have the words of the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from celery_fairness import Fairness
from celery_fairness.control.task.task_list import CANCELLED_STATES
from celery_fairness.control.task.views import STATES
from celery_fairness.texts.tasks import (
    HOLDER_HEADS,
    LIMIT_HEADS,
    holder_cells,
    limit_cells,
    sentences,
)
from django_celery_fairness import task_rows
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
CANCELLABLE = ("waiting", "delayed", "parked")
#: Tasks that one request cancels at most.
CANCELLED_AT_MOST = 10_000
#: The parts of a filter.
FILTER = ("tenant", "queue", "key", "state")


@admin.register(Task)
class TaskAdmin(RedisPageAdmin):
    """The admin of the task search."""

    def get_urls(self) -> list[URLPattern]:
        """Return the lists with the search, its address in the history, and the cancels."""
        return [
            self.route("", self.search_page, "changelist"),
            self.route("cancel-all/", self.cancel_all_page, "cancel_all"),
            self.route("<path:object_id>/change/", self.to_search, "change"),
            self.route("<path:object_id>/cancel/", self.cancel_page, "cancel"),
        ]

    def search_page(self, request: HttpRequest) -> HttpResponse:
        """Show a list of tasks, or the task of an id."""
        self.expect_view(request)
        task_id = request.GET.get("id", "").strip()
        if not task_id:
            return self._list_page(request)
        context: dict[str, Any] = {"task_id": task_id[:NAME_CHARACTERS], "is_live": True}
        if len(task_id) > NAME_CHARACTERS:
            text = _("No id has more than %(most)d characters.")
            context |= {"problem": text % {"most": NAME_CHARACTERS}, "is_live": False}
        else:
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

    def _list_page(self, request: HttpRequest) -> HttpResponse:
        wanted, cursor = _filter(request), request.GET.get("cursor", "")
        found, problem = task_rows.page_of(request, wanted, cursor)
        context: dict[str, Any] = {"problem": problem, "wanted": wanted, "states": STATES}
        if found is not None:
            context |= task_rows.shown(found)
            if found.cursor:
                context["next_url"] = f"?{urlencode({**wanted, 'cursor': found.cursor})}"
            if cursor:
                context["first_url"] = task_rows.list_url(self, wanted)
            if _is_cancellable(wanted) and self.has_change_permission(request):
                context["cancel_url"] = f"{self.address('cancel_all')}?{urlencode(wanted)}"
        return self.show(request, "task_list", _("Tasks"), context)

    def to_search(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Go to a task, or to the list of a bulk cancel."""
        self.expect_view(request)
        name = unquoted(object_id)
        # The entry of a bulk cancel has the query of its list.
        if name.startswith("?"):
            return redirect(self.address("changelist") + name)
        return redirect(self._search_url(name))

    def cancel_all_page(self, request: HttpRequest) -> HttpResponse:
        """Show the confirmation of a bulk cancel, or cancel the tasks of a filter."""
        self.expect_change(request)
        wanted = _filter(request)
        back = task_rows.list_url(self, wanted)
        if not _is_cancellable(wanted):
            return redirect(back)
        form, confirmed = ReasonForm(request.POST or None), request.POST.get("confirm", "")
        if form.is_valid() and confirmed.isascii() and confirmed.isdigit():
            what = _("Cancel tasks of %(filter)s, because: %(reason)s.") % {
                "filter": _in_words(wanted),
                "reason": form.cleaned_data["reason"].rstrip("."),
            }
            most = min(int(confirmed[:9]), CANCELLED_AT_MOST)
            self.change(
                request,
                Task(storable(f"?{urlencode(wanted)}")),
                what,
                lambda fairness: cancel_all(fairness, wanted, most),
            )
            return redirect(back)
        count, problem = ask(request, lambda fairness: fairness.tasks.count(**wanted))
        text = ngettext(
            "%(count)d task of %(filter)s will not run. Running tasks go on. A worker stores the "
            "result REVOKED, and a chord that waits for it fails.",
            "%(count)d tasks of %(filter)s will not run. Running tasks go on. A worker stores the "
            "results REVOKED, and chords that wait for them fail.",
            count or 0,
        )
        more = _("One request cancels at most %(most)d tasks.") % {"most": CANCELLED_AT_MOST}
        question = text % {"count": count or 0, "filter": _in_words(wanted)}
        if not problem and not count:
            problem = _("No task of %(filter)s waits.") % {"filter": _in_words(wanted)}
        context = {
            "problem": problem,
            "form": form,
            "question": f"{question} {more}" if (count or 0) > CANCELLED_AT_MOST else question,
            "hidden": [("confirm", str(count))],
            "button": _("Cancel these tasks"),
            "back": back,
        }
        return self.show(request, "confirm", _("Cancel tasks"), context)

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


def _filter(request: HttpRequest) -> dict[str, str]:
    """Return the filter of an address."""
    named = ((name, request.GET.get(name, "").strip()) for name in FILTER)
    return {name: text[: NAME_CHARACTERS + 1] for name, text in named if text}


def _is_cancellable(wanted: Mapping[str, str]) -> bool:
    return wanted.get("state", "") in ("", *CANCELLED_STATES) and bool(wanted.keys() - {"state"})


def _in_words(wanted: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in wanted.items())


def cancel_all(fairness: Fairness, wanted: Mapping[str, Any], most: int) -> str:
    """Cancel the tasks of a filter, at most ``most`` of them."""
    done = fairness.tasks.cancel_all(**wanted, most=most)
    text = ngettext(
        "%(count)d task is cancelled", "%(count)d tasks are cancelled", done.cancelled
    ) % {"count": done.cancelled}
    return _("%(text)s, and others are left") % {"text": text} if done.has_more else text
