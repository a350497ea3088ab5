"""The actions of the list of tenants: pause, resume, boost and purge the selected ones.

Invariant: each action requires a reason, and leaves an entry in the history of each tenant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_celery_fairness import standing
from django_celery_fairness.live_counts import LiveCounts, services_in_force
from django_celery_fairness.models import TenantTier
from django_celery_fairness.redis_pages import ReasonForm, audited, who
from django_celery_fairness.steering import (
    BOOST,
    PAUSE,
    PURGE,
    RESUME,
    Action,
    Order,
    SteeringForm,
    Target,
    first_sentence,
)

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    # Generic in django-stubs only.
    ModelAdmin = admin.ModelAdmin

#: Tenants of one action, and tenants that its form names.
AT_MOST, NAMED = 100, 20

Run = Callable[["TenantActions", HttpRequest, QuerySet[TenantTier]], HttpResponse | None]


def _action(action: Action, description: Any, name: str) -> Run:
    @admin.action(permissions=["change"], description=description)
    def run(
        page: TenantActions, request: HttpRequest, tenants: QuerySet[TenantTier]
    ) -> HttpResponse | None:
        return page.steer(action, name, request, tenants)

    run.__name__ = name
    return run


class TenantActions(ModelAdmin):
    """An admin of tenants with these actions."""

    actions = (
        _action(PAUSE, gettext_lazy("Pause selected tenants"), "pause_tenants"),
        _action(RESUME, gettext_lazy("Resume selected tenants"), "resume_tenants"),
        _action(BOOST, gettext_lazy("Boost selected tenants for an hour"), "boost_tenants"),
        _action(
            PURGE, gettext_lazy("Purge the waiting tasks of selected tenants"), "purge_tenants"
        ),
    )

    def steer(
        self,
        action: Action,
        name: str,
        request: HttpRequest,
        tenants: QuerySet[TenantTier],
    ) -> HttpResponse | None:
        """Show the form for the reason, or run the action on each tenant."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        rows = list(tenants.order_by("tenant")[: AT_MOST + 1])
        if len(rows) > AT_MOST:
            text = _("Select at most %(most)d tenants.") % {"most": AT_MOST}
            self.message_user(request, text, messages.ERROR)
            return None
        asks_time = action in (PAUSE, BOOST)
        is_answer = "confirmed" in request.POST
        form = (SteeringForm if asks_time else ReasonForm)(request.POST if is_answer else None)
        if is_answer and form.is_valid():
            given = form.cleaned_data
            order = Order(
                who(request), given["reason"], given.get("for_seconds"), user=request.user
            )
            for row in rows:
                self._steer_one(action, order, request, row)
            return None
        return self._ask_first(action, name, request, rows, form)

    def _steer_one(
        self, action: Action, order: Order, request: HttpRequest, row: TenantTier
    ) -> None:
        target = Target(tenant=row.tenant, services=services_in_force())
        what = first_sentence(action, order)
        audited(self, request, row, what, lambda fairness: action.run(fairness, target, order))

    def _ask_first(
        self,
        action: Action,
        name: str,
        request: HttpRequest,
        rows: list[TenantTier],
        form: ReasonForm,
    ) -> HttpResponse:
        counts = LiveCounts.of_page(request)
        waiting = {row.tenant: _waiting(counts, row) for row in rows[:NAMED]}
        question = ngettext(
            "%(action)s %(count)d tenant:", "%(action)s %(count)d tenants:", len(rows)
        )
        text = question % {"action": action.label, "count": len(rows)}
        if action is PURGE:
            warning = _(
                "Their waiting and scheduled tasks are cancelled. Nothing brings them back."
            )
            text = f"{warning} {text}"
        hidden = [("action", name), ("confirmed", "yes")]
        hidden += [(ACTION_CHECKBOX_NAME, str(row.pk)) for row in rows]
        context = {
            **self.admin_site.each_context(request),
            "title": _("%(action)s tenants") % {"action": action.label},
            "opts": self.opts,
            "question": text,
            "names": [f"{tenant}: {number}" for tenant, number in waiting.items()],
            "more_names": max(0, len(rows) - NAMED),
            "hidden": hidden,
            "form": form,
            "button": action.label,
            "is_harmless": action is not PURGE,
            "back": request.get_full_path(),
            "problem": "" if counts.problem is None else str(counts.problem),
            "redis_is_away": counts.problem is not None,
            "fairness_findings": standing.findings(counts),
        }
        return TemplateResponse(request, "django_celery_fairness/confirm.html", context)


def _waiting(counts: LiveCounts, row: TenantTier) -> str:
    found = counts.tenant(row.tenant, row.tier.name)
    if found is None:
        return _("unknown how many tasks wait")
    number = sum(each.waiting_count for each in found)
    return ngettext("%(count)d task waits", "%(count)d tasks wait", number) % {"count": number}
