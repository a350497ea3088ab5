"""Queues: the list, and a page for each with the reasons of its waits and its workers.

Weakness: the workers are those of the dashboard's look, which may be two seconds old. A worker with
a share of its places for each queue shows how many of them run something, but not for which queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from celery_fairness.control.queue.views import QueueState
from celery_fairness.texts.queues import queue_limit_lines
from django_celery_fairness import dashboard, task_rows, wiring
from django_celery_fairness.models import Queue, QueueLimit
from django_celery_fairness.permissions import APP, Action
from django_celery_fairness.redis_pages import (
    RedisPageAdmin,
    ask,
    form_url,
    quoted,
    storable,
    unquoted,
)

#: Tenants on the page of a queue.
TENANTS = 50


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue of the list, with the addresses of its page and of its dead letters."""

    state: QueueState
    url: str
    dead_url: str

    @property
    def limit(self) -> str:
        """Its limit in one line; "" without one."""
        return limit_text(self.state)


@dataclass(frozen=True, slots=True)
class Taker(dashboard.WorkerRow):
    """A worker that takes a queue, with its places for it."""

    queue: str

    @property
    def for_queue(self) -> str:
        """Its places for the queue, in words."""
        worker = self.worker
        share, others = worker.shares.get(self.queue), len(worker.queues) - 1
        values = {"places": worker.places, "share": share, "others": others}
        if share is not None:
            text = (
                _("%(share)d of %(places)d, and those that other queues do not need")
                if worker.lends
                else _("%(share)d of %(places)d")
            )
        elif others:
            text = ngettext(
                "up to %(places)d, in turn with %(others)d other queue",
                "up to %(places)d, in turn with %(others)d other queues",
                others,
            )
        else:
            text = _("all %(places)d")
        return text % values


@admin.register(Queue)
class QueueAdmin(RedisPageAdmin):
    """The admin of the queues."""

    def get_urls(self) -> list[URLPattern]:
        """Return the list, and the page of a queue."""
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<path:object_id>/change/", self.queue_page, "change"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Show the known queues by name."""
        self.expect_view(request)
        found, problem = ask(request, lambda fairness: fairness.queues.list())
        rows = [
            QueueRow(
                state,
                self.address("change", state.queue),
                self._dead_url(request, state.queue) if state.tasks and state.tasks.dead else "",
            )
            for state in found or ()
        ]
        parts = wiring.wired()
        context = {
            "problem": problem,
            "rows": rows,
            "counts_tasks": parts is not None and parts.claims_fairly,
            "is_live": True,
        }
        return self.show(request, "queue_list", _("Queues"), context)

    def queue_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a queue."""
        self.expect_view(request)
        name = unquoted(object_id)
        state, problem = ask(request, lambda fairness: fairness.queues.inspect(name))
        context: dict[str, Any] = {"problem": problem, "state": state, "is_live": True}
        if state is not None:
            tenants = state.tasks.tenants if state.tasks is not None else ()
            status = dashboard.shared.look().status
            takers = [
                Taker(row.worker, row.busy, name)
                for row in (dashboard.workers(status) if status is not None else ())
                if name in row.worker.queues
            ]
            context |= {
                **task_rows.first_tasks(self, request, queue=name),
                "limit": limit_text(state),
                "key_url": self._key_url(request, f"queue:{name}"),
                "limit_url": form_url(
                    self, request, QueueLimit.objects.filter(queue=storable(name)), queue=name
                ),
                "dead_url": self._dead_url(request, name),
                "tenants": dashboard.tenant_rows(
                    self, request, [(name, each) for each in tenants[:TENANTS]]
                ),
                "more_tenants": max(0, len(tenants) - TENANTS),
                "limits": state.tasks.limits if state.tasks is not None else (),
                "workers": takers,
                "queue_shares": True,
                "places": sum(row.worker.places for row in takers),
                "places_for_it": sum(row.worker.most_of(name) for row in takers),
            }
        title = _("Queue %(name)s") % {"name": name}
        return self.show(request, "queue", title, context)

    def _key_url(self, request: HttpRequest, key: str) -> str:
        if not Action.SEE_KEYS.allowed(request.user):
            return ""
        name = f"admin:{APP}_limitkey_change"
        return reverse(name, args=[quoted(key)], current_app=self.admin_site.name)

    def _dead_url(self, request: HttpRequest, queue: str) -> str:
        if not Action.SEE_DEAD_LETTERS.allowed(request.user):
            return ""
        url = reverse(f"admin:{APP}_deadletter_changelist", current_app=self.admin_site.name)
        return f"{url}?{urlencode({'queue': queue})}"


def limit_text(state: QueueState) -> str:
    """Return the limit of a queue in one line; "" without one."""
    if state.limit is None:
        return ""
    lines = queue_limit_lines(state.limit)
    return "; ".join(line.removeprefix(state.queue).lstrip(":, ") for line in lines)
