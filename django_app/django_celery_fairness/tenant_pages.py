"""Tenants: a card for each, with its slots, its running tasks and those that finished last.

Redis has no table of finished tasks, because each task would pay for it. A person may record them
for some minutes: that is a trace
(:meth:`celery_fairness.control.health.events_api.EventsApi.trace`). The page shows those among the
newest events of the trace, so a busy installation shows the last seconds.

Invariant: a page reads a bounded number of tenants and events, however many there are.

Weakness: the cards are in the order of names, so that none moves while a person reads it. The
dashboard has the tenants that wait longest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_fairness.control.health.event_types import WATCHED
from celery_fairness.control.key.limit_in_force import time_text
from celery_fairness.control.tenant.tenants_api import TENANT
from django_celery_fairness.limit_pages import KeyRow
from django_celery_fairness.models import Tenant
from django_celery_fairness.redis_pages import (
    NAME_CHARACTERS,
    RedisPageAdmin,
    ask,
    page_context,
    page_number,
)
from django_celery_fairness.tenant_rows import TenantRows

if TYPE_CHECKING:
    from celery_fairness import Fairness
    from celery_fairness.control.health.event_types import Event
    from celery_fairness.control.key.views import InspectionPage
    from celery_fairness.limiter.types import HeldLease

#: Cards of a page, tasks of each list on a card, and slots that a card draws.
CARDS, TASKS, SLOTS = 24, 5, 30
#: Newest events of the trace that a page reads, and for how long pages share them, in seconds.
EVENTS, FRESH_SECONDS = 1000, 1.5
#: For how long a person records, in minutes.
RECORDED_MINUTES = 10

_AGAIN = gettext_lazy("waits again")
#: How an attempt ended, in words.
_ENDS = {
    "done": "",
    "head": _AGAIN,
    "tail": _AGAIN,
    "died": gettext_lazy("its process died"),
    "expired": gettext_lazy("its lease expired"),
    "unreadable": gettext_lazy("its message cannot be read"),
}


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an attempt.

    Attributes:
        task: The name of its task.
        task_id: The id of its task.
        seconds: How long it ran. None if it is unknown.
        text: How it ended, in words. "" if its task is done, so that the task search has no more
            of it.
    """

    task: str
    task_id: str
    seconds: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest ends of the trace by the key of the tenant, and when the trace ends."""

    until: datetime | None = None
    finished: Mapping[str, list[Finished]] = field(default_factory=dict)


class _Shared:
    """The last look at the trace, for all requests of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recorded = Recorded()
        self._at = float("-inf")

    def read(self, fairness: Fairness) -> Recorded:
        """Return ends that are not older than :data:`FRESH_SECONDS`."""
        with self._lock:
            if time.monotonic() - self._at > FRESH_SECONDS:
                events = fairness.events
                newest = events.read(types=WATCHED, last=EVENTS).events
                self._recorded = Recorded(events.traces_until(), _finished(newest))
                self._at = time.monotonic()
            return self._recorded

    def forget(self) -> None:
        """Read again at the next request."""
        self._at = float("-inf")


shared = _Shared()


def _finished(events: Iterable[Event]) -> Mapping[str, list[Finished]]:
    found: dict[str, list[Finished]] = {}
    for event in events:
        if event.type == "task.ended":
            data = event.data
            text = str(_ENDS.get(data["outcome"], data["outcome"]))
            one = Finished(data["job_type"], data["job_id"], data["ran_seconds"], text)
            found.setdefault(data["key"], []).insert(0, one)
    return found


@dataclass(frozen=True, slots=True)
class Card:
    """A tenant.

    Attributes:
        row: Its key.
        name: Its name without the kind of the key.
        row_url: The address of its row in the database, or "".
        finished: The tasks that finished last, the newest first.
    """

    row: KeyRow
    name: str
    row_url: str
    finished: list[Finished]

    @property
    def running(self) -> list[tuple[HeldLease, str, str]]:
        """Its oldest leases, each with its task and its age."""
        return self.row.leases[:TASKS]

    @property
    def more_running(self) -> int:
        """How many leases the card does not list."""
        return self.row.found.held - len(self.running)

    @property
    def slots(self) -> list[bool]:
        """Its slots, the taken ones first; those that it holds, if it is unlimited."""
        held, limit = self.row.found.held, self.row.found.limit
        return [place < held for place in range(min(SLOTS, max(held, limit or 0)))]

    @property
    def more_slots(self) -> int:
        """How many slots the card does not draw."""
        return max(self.row.found.held, self.row.found.limit or 0) - len(self.slots)


@admin.register(Tenant)
class TenantAdmin(RedisPageAdmin):
    """The admin of the tenants at work."""

    def get_urls(self) -> list[URLPattern]:
        """Return the cards, the address of a tenant in the history, and the start of a record."""
        return [
            self.route("", self.cards_page, "changelist"),
            self.route("record/", self.record, "record"),
            self.route("<path:object_id>/change/", self.to_key, "change"),
        ]

    def cards_page(self, request: HttpRequest) -> HttpResponse:
        """Show a page of the known tenants by name."""
        self.expect_view(request)
        search, page = request.GET.get("search", "").strip(), page_number(request)
        context: dict[str, Any] = {"search": search[:NAME_CHARACTERS], "is_live": True}
        if len(search) > NAME_CHARACTERS:
            context["problem"] = _("No tenant has more than %(most)d characters.") % {
                "most": NAME_CHARACTERS
            }
            return self.show(request, "tenants", _("Tenants"), context)
        answer, context["problem"] = ask(request, lambda fairness: _read(fairness, page, search))
        if answer is not None:
            found, recorded = answer
            rows = TenantRows(self, request, [each.key for each in found.items])
            finished = recorded.finished
            context |= {
                "cards": [
                    Card(
                        KeyRow(each),
                        each.key.partition(":")[2],
                        rows.url(each.key),
                        finished.get(each.key, [])[:TASKS],
                    )
                    for each in found.items
                ],
                "recorded_until": recorded.until,
                "has_record": bool(finished),
                "record_url": self.address("record"),
                "minutes": RECORDED_MINUTES,
                **page_context(found.pagination, {"search": search} if search else {}),
            }
        return self.show(request, "tenants", _("Tenants"), context)

    def record(self, request: HttpRequest) -> HttpResponse:
        """Record the tasks that finish from now on, for some minutes."""
        self.expect_change(request)
        back = self.address("changelist")
        if request.method == "POST":
            what = _("Record finished tasks for %(minutes)d minutes.") % {
                "minutes": RECORDED_MINUTES
            }
            self.change(request, Tenant(key=_("all tenants")), what, _record)
            shared.forget()
        return redirect(back)

    def to_key(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Go to the cards, from an entry in the history."""
        self.expect_view(request)
        return redirect(self.address("changelist"))


def _read(fairness: Fairness, page: int, search: str) -> tuple[InspectionPage, Recorded]:
    """Return a page of the tenants with tasks, or with a task that has just finished."""
    recorded = shared.read(fairness)
    also = [key for key in recorded.finished if key.startswith(TENANT)]
    return fairness.tenants.list(page, CARDS, search, also=also), recorded


def _record(fairness: Fairness) -> str:
    fairness.events.trace(60 * RECORDED_MINUTES)
    until = fairness.events.traces_until()
    return _("finished tasks are recorded until %(time)s") % {
        "time": "" if until is None else time_text(until)
    }
