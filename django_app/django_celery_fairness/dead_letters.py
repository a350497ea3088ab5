"""Dead letters: tasks that killed their processes too often, or that no worker could read.

Invariant: a page takes one call to Redis, however many dead letters there are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from celery_fairness import Fairness
from django_celery_fairness import wiring
from django_celery_fairness.models import DeadLetter
from django_celery_fairness.redis_pages import (
    ReasonForm,
    RedisPageAdmin,
    ask,
    page_context,
    page_number,
    storable,
    unquoted,
)

#: Dead letters on a page.
LETTERS = 50


class RequeueForm(ReasonForm):
    """The selected dead letters, and the reason."""

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        self.task_ids: list[str] = data.getlist("task_id")[:LETTERS] if data else []

    def clean(self) -> dict[str, Any]:
        """Expect at least one letter."""
        if not self.task_ids:
            raise forms.ValidationError(_("Select at least one dead letter."), code="none")
        return super().clean() or {}


@admin.register(DeadLetter)
class DeadLetterAdmin(RedisPageAdmin):
    """The admin of the dead letters."""

    def get_urls(self) -> list[URLPattern]:
        """Return the page, and the address of a letter in the history."""
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<path:object_id>/change/", self.to_task, "change"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Show the letters, and requeue the selected ones."""
        self.expect_view(request)
        queue = request.GET.get("queue", "")
        form = RequeueForm()
        if request.method == "POST":
            self.expect_change(request)
            form = RequeueForm(request.POST)
            if form.is_valid():
                self._requeue(request, form)
                return redirect(request.get_full_path())
            for problem in form.non_field_errors():
                self.message_user(request, str(problem), messages.ERROR)
        page = page_number(request)
        parts = wiring.wired()
        keeps_letters = parts is None or parts.claims_fairly
        found, problem = None, ""
        if keeps_letters:
            found, problem = ask(
                request, lambda fairness: fairness.tasks.dead_letters(queue or None, page, LETTERS)
            )
        context: dict[str, Any] = {"problem": problem, "form": form, "queue": queue}
        context["keeps_letters"] = keeps_letters
        if found is not None:
            context |= {
                "queues": found.by_queue.items(),
                "letters": found.items,
                **page_context(found.pagination, {"queue": queue} if queue else {}),
            }
        return self.show(request, "dead_letters", _("Dead letters"), context)

    def to_task(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Go to the task of a letter, which may wait again."""
        self.expect_view(request)
        name = "admin:django_celery_fairness_task_changelist"
        url = reverse(name, current_app=self.admin_site.name)
        return redirect(f"{url}?{urlencode({'id': unquoted(object_id)})}")

    def _requeue(self, request: HttpRequest, form: RequeueForm) -> None:
        reason = form.cleaned_data["reason"].rstrip(".")
        what = _("Requeue, because: %(reason)s.") % {"reason": reason}
        for task_id in form.task_ids:
            row = DeadLetter(storable(task_id))
            self.change(request, row, what, partial(_requeued, task_id=task_id))


def _requeued(fairness: Fairness, task_id: str) -> str:
    done = fairness.tasks.requeue(task_id)
    values = {"id": done.task_id, "queue": done.queue}
    return _("task %(id)s waits again in queue %(queue)s") % values
