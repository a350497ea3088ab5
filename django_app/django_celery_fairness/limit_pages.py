"""Limits by key: the list of known keys, and a page for each key with its actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import current_app
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from celery_fairness.config.numbers import numbers_text
from celery_fairness.errors import FairnessError, NotFound
from celery_fairness.texts.format import held_by, held_for
from celery_fairness.texts.keys import reported_text, saving_text
from celery_fairness.wiring import wired
from django_celery_fairness import task_rows
from django_celery_fairness.limit_rows import overrides
from django_celery_fairness.live_counts import services_in_force
from django_celery_fairness.models import LimitKey, LimitOverride
from django_celery_fairness.redis_pages import (
    NAME_CHARACTERS,
    ReasonForm,
    RedisPageAdmin,
    ask,
    form_url,
    page_context,
    page_number,
    storable,
    time_text,
    unquoted,
    who,
)
from django_celery_fairness.steering import (
    PURGE,
    Order,
    SteeringForm,
    Target,
    actions_of,
    first_sentence,
)
from django_celery_fairness.tenant_rows import TenantRows, tenant_of

if TYPE_CHECKING:
    from celery_fairness import Fairness
    from celery_fairness.control.key.views import Inspection
    from celery_fairness.control.queue.views import TenantShare

#: Keys on a page of the list, and queues of a tenant whose shares a page shows.
KEYS, QUEUES = 25, 5


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key, with the used parts of its numbers in percent, for bars."""

    found: Inspection

    @property
    def held_percent(self) -> int | None:
        """Held against the limit; None if it is 0, unlimited or unknown."""
        return _percent(self.found.held, self.found.limit)

    @property
    def is_unlimited(self) -> bool:
        """Whether the number is known and is no limit. The tasks of some keys bring the number."""
        reasons = self.found.in_force.reasons
        is_known = bool(reasons) and not reasons[-1].by_people and not self.found.unknown
        return is_known and self.found.limit is None

    @property
    def rate_percent(self) -> int | None:
        """Starts in the window against the rate; None without a rate."""
        rate = self.found.rate
        return None if rate is None else _percent(rate.current_count, rate.limit)

    @property
    def opens_in(self) -> str:
        """The time until a task may start again by itself; "" if there is none."""
        seconds = self.found.opens_in_seconds
        return "" if seconds is None else time_text(seconds)

    @property
    def burst(self) -> int | None:
        """The burst of a tenant, if it is above the number in force."""
        limit, burst = self.found.limit, self.found.burst
        return burst if limit and burst and burst > limit else None

    @property
    def saves(self) -> str:
        """The slots and units that the key saves for a task, as a text. "" if it saves nothing."""
        return "" if self.found.saving is None else saving_text(self.found.saving)

    @property
    def reported(self) -> str:
        """The starts that an API has reported to be free; "" without such a report.

        If it has reported none, the key cools down.
        """
        return reported_text(self.found.holds) if self.found.holds.reported_left else ""

    @property
    def waited(self) -> list[tuple[Any, str]]:
        """The limits of the key at which tasks wait, each with its numbers."""
        return [(each, numbers_text(each.numbers) or _("unlimited")) for each in self.found.waited]

    @property
    def leases(self) -> list[tuple[Any, str, str]]:
        """The leases, each with its task and its age."""
        return [(each, held_by(each), held_for(each)) for each in self.found.leases]


@dataclass(frozen=True, slots=True)
class WaitingIn:
    """The waiting tasks of a tenant in a queue, and its share of the queue's slots.

    The share is None if it is unknown, as for parked tasks.
    """

    queue: str
    tasks: int
    share: TenantShare | None


def _percent(part: int, whole: int | None) -> int | None:
    return round(100 * min(1.0, part / whole)) if whole else None


@admin.register(LimitKey)
class LimitKeyAdmin(RedisPageAdmin):
    """The admin of the keys of limits."""

    def get_urls(self) -> list[URLPattern]:
        """Return the list, the page of a key, and the confirmation of a purge."""
        return [
            self.route("", self.list_page, "changelist"),
            self.route("<path:object_id>/change/", self.key_page, "change"),
            self.route("<path:object_id>/purge/", self.purge_page, "purge"),
        ]

    def list_page(self, request: HttpRequest) -> HttpResponse:
        """Show the known keys by name, or go to the key that is searched for."""
        self.expect_view(request)
        searched = request.GET.get("key", "").strip()
        if searched and len(searched) <= NAME_CHARACTERS:
            return redirect(self.address("change", searched))
        page = page_number(request)
        found, problem = ask(request, lambda fairness: fairness.limits.list(page, per_page=KEYS))
        if searched:
            problem = _("No key has more than %(most)d characters.") % {"most": NAME_CHARACTERS}
        context: dict[str, Any] = {"problem": problem}
        if found is not None:
            rows = [(KeyRow(each), self.address("change", each.key)) for each in found.items]
            context |= {"rows": rows, **page_context(found.pagination, {})}
        return self.show(request, "limit_list", _("Limits by key"), context)

    def key_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a key, or run the action of its form."""
        self.expect_view(request)
        key = unquoted(object_id)
        target = target_of(key)
        form = SteeringForm()
        if request.method == "POST":
            self.expect_change(request)
            form = SteeringForm(request.POST)
            actions = {each.name: each for each in actions_of(target)}
            action = actions.get(request.POST.get("action", ""))
            if action is not None and form.is_valid():
                given = form.cleaned_data
                order = Order(
                    who(request), given["reason"], given["for_seconds"], user=request.user
                )
                self.change(
                    request,
                    LimitKey(storable(key)),
                    first_sentence(action, order),
                    lambda fairness: action.run(fairness, target, order),
                )
                return redirect(self.address("change", key))
        context: dict[str, Any] = {"form": form, "target": target, "is_live": True}
        found, problem = ask(request, lambda fairness: _inspect(fairness, key))
        context |= {"problem": problem, "may_steer": not problem}
        if not problem:
            offered, rows = actions_of(target), _override_rows(key)
            context |= {
                "row": KeyRow(found) if found else None,
                "actions": offered,
                "off": [each.name for each in offered if each.is_off(found, rows)],
                "override_url": self._override_url(request, key, rows),
                "row_url": TenantRows(self, request, [key]).url(key),
                "purge_url": self.address("purge", key) if target.tenant else "",
            }
        if found is not None and target.tenant:
            context["waiting"] = ask(request, lambda fairness: waiting_in(fairness, found))[0]
        if found is not None:
            context |= task_rows.first_tasks(self, request, key=key)
        return self.show(request, "limit", key, context)

    def _override_url(
        self, request: HttpRequest, key: str, rows: list[LimitOverride] | None
    ) -> str:
        if rows is None:
            return ""
        saved = LimitOverride.objects.filter(pk__in=[row.pk for row in rows])
        return form_url(self, request, saved, key=key)

    def purge_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation of a purge, or cancel the waiting tasks of a tenant."""
        self.expect_change(request)
        key = unquoted(object_id)
        target = target_of(key)
        if not target.tenant:
            return redirect(self.address("change", key))
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            order = Order(who(request), form.cleaned_data["reason"])
            self.change(
                request,
                LimitKey(storable(key)),
                first_sentence(PURGE, order),
                lambda fairness: PURGE.run(fairness, target, order),
            )
            return redirect(self.address("change", key))
        found, problem = ask(request, lambda fairness: _waiting_count(fairness, target))
        count = found or 0
        text = ngettext(
            "%(count)d task of tenant %(tenant)s waits. It will be cancelled, with its scheduled "
            "tasks, in every queue. Running tasks go on. Nothing brings a cancelled task back.",
            "%(count)d tasks of tenant %(tenant)s wait. They will be cancelled, with its scheduled "
            "tasks, in every queue. Running tasks go on. Nothing brings a cancelled task back.",
            count,
        )
        context = {
            "problem": problem,
            "form": form,
            "question": text % {"count": count, "tenant": target.tenant},
            "button": _("Cancel the waiting tasks"),
            "back": self.address("change", key),
        }
        title = _("Purge tenant %(tenant)s") % {"tenant": target.tenant}
        return self.show(request, "confirm", title, context)


def target_of(key: str) -> Target:
    """Return the target of the actions on a key."""
    return Target(key=key, tenant=tenant_of(key))


def _override_rows(key: str) -> list[LimitOverride] | None:
    """Return the overrides of a key in the database; None if no override can have this key."""
    try:
        return overrides(wired(current_app), key)
    except (FairnessError, ValueError):
        return None


def waiting_in(fairness: Fairness, found: Inspection) -> list[WaitingIn]:
    """Return where the tasks of a tenant wait, the most tasks first."""
    tasks: dict[str, int] = {}
    for lane in found.waiting:
        tasks[lane.queue] = tasks.get(lane.queue, 0) + lane.tasks
    rows = sorted(tasks.items(), key=lambda row: -row[1])
    return [
        WaitingIn(queue, number, _share(fairness, queue, found.key) if place < QUEUES else None)
        for place, (queue, number) in enumerate(rows)
    ]


def _waiting_count(fairness: Fairness, target: Target) -> int:
    """Return how many tasks a purge cancels: those of every service of a tenant."""
    whole = Target(tenant=target.tenant, services=services_in_force())
    found = [_inspect(fairness, key) for key in {target.key, *whole.keys}]
    return sum(each.waiting_count for each in found if each is not None)


def _share(fairness: Fairness, queue: str, key: str) -> TenantShare | None:
    if not queue:
        return None
    try:
        state = fairness.queues.inspect(queue)
    except NotFound:
        return None
    tenants = state.tasks.tenants if state.tasks is not None else ()
    return next((each for each in tenants if each.key == key), None)


def _inspect(fairness: Fairness, key: str) -> Inspection | None:
    """Return a key, or None if it is unknown. Actions on an unknown key are possible."""
    try:
        return fairness.limits.inspect(key)
    except NotFound:
        return None
