"""The common parts of this app's admin pages: live rows, the banner, the button that publishes.

Invariant: a page renders with Redis away, without ``Fairness``, and for staff with the permission
to view only. The button is shown only to staff with the permission to change.
Every change leaves a log entry with the person, the time and the reason of the row.

Weakness: the banner is about the process that serves the page (:mod:`.standing`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.views.main import ChangeList
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import Field
from django.forms import Field as FormField
from django.forms import SplitDateTimeField
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from celery_fairness.errors import FairnessError
from django_celery_fairness import publishing, standing
from django_celery_fairness.live_counts import LiveCounts
from django_celery_fairness.permissions import Action, ByTable


class LiveChangeList(ChangeList):
    """A change list whose rows have an attribute ``live``: the page's ``LiveCounts``."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page's rows, and give each the page's counts."""
        super().get_results(request)
        counts = LiveCounts.of_page(request)
        for row in self.result_list:
            row.live = counts


class FairnessAdmin(ByTable):
    """An admin of this app: banner, live rows, and the button that publishes."""

    change_list_template = "django_celery_fairness/change_list.html"
    change_form_template = "django_celery_fairness/change_form.html"
    empty_value_display = "–"
    #: Placeholder of an empty number, by the field's name.
    empty_numbers: Mapping[str, Any] = {}
    #: The field that cannot be changed after a row is saved.
    key_field = ""
    #: The field with the reason of a row. Each log entry has the reason.
    reason_field = ""
    #: Fields that the form shows only for a saved row.
    live_fields: tuple[str, ...] = ()

    def get_changelist(self, request: HttpRequest, **_options: Any) -> type[ChangeList]:
        """Use rows with live counts."""
        return LiveChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Add the banner, and the button for staff who may publish."""
        context = self._with_banner(request, extra_context)
        context["fairness_may_publish"] = self.has_change_permission(request)
        return super().changelist_view(request, context)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Add the banner, and the link to a tenant's key for staff who may see it."""
        context = self._with_banner(request, extra_context)
        context["sees_keys"] = Action.SEE_KEYS.allowed(request.user)
        return super().changeform_view(request, object_id, form_url, context)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Make the name of a saved row and its live fields read-only."""
        return (self.key_field, *self.live_fields) if obj else ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Omit the live fields for a new row."""
        fields = super().get_fields(request, obj)
        return fields if obj else [name for name in fields if name not in self.live_fields]

    def formfield_for_dbfield(
        self, db_field: Field[Any, Any], request: HttpRequest, **options: Any
    ) -> FormField | None:
        """Put a placeholder into empty numbers, make notes three lines high, name dates."""
        field = super().formfield_for_dbfield(db_field, request, **options)
        if field is not None and db_field.name in self.empty_numbers:
            empty = self.empty_numbers[db_field.name]
            field.widget.attrs.update(placeholder=empty, style="width: 8em")
        elif field is not None and db_field.name in ("description", "note"):
            field.widget.attrs.update(rows=3)
        elif isinstance(field, SplitDateTimeField):
            # The texts beside the two fields are no labels.
            for part, widget in zip((_("date"), _("time")), field.widget.widgets, strict=True):
                widget.attrs["aria-label"] = f"{field.label}: {part}"
        return field

    def get_changelist_formset(self, request: HttpRequest, **options: Any) -> Any:
        """Name each field of the list as its column, because it has no label there."""
        formset = super().get_changelist_formset(request, **options)
        for field in formset.form.base_fields.values():
            field.widget.attrs["aria-label"] = field.label
        return formset

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        """Add the row's reason to the text of the log entry."""
        message = super().construct_change_message(request, form, formsets, add)
        return self._with_reason(message, form.instance)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Write one log entry for each row, with the row's reason."""
        user: Any = request.user.pk
        log = LogEntry.objects.log_actions
        return [
            log(user, [row], DELETION, self._with_reason("", row), single_object=True)
            for row in queryset
        ]

    def _with_reason(self, message: Any, row: Any) -> Any:
        why = getattr(row, self.reason_field, "") if self.reason_field else ""
        if not why:
            return message
        what = LogEntry(change_message=json.dumps(message) if message else "").get_change_message()
        reason = _("Reason: %(reason)s") % {"reason": why}
        return " ".join(filter(None, (what, reason)))

    def get_urls(self) -> list[URLPattern]:
        """Add the address of the button."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_publish"
        publish = path("publish/", self.admin_site.admin_view(self.publish_now), name=name)
        return [publish, *super().get_urls()]

    @method_decorator(require_POST)
    def publish_now(self, request: HttpRequest) -> HttpResponse:
        """Publish everything, and show the list again with the result."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        try:
            done = publishing.publish_everything()
        except FairnessError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            text = _(
                "Published %(tiers)d tiers, %(tenants)d tenants, %(queues)d queues and "
                "%(overrides)d overrides to Redis; %(by_tier)d tenants have the number of their "
                "tier, which needs no publication."
            )
            self.message_user(request, text % asdict(done), messages.SUCCESS)
            for rejected in done.rejected:
                self.message_user(request, rejected, messages.ERROR)
            self._log_publication(request)
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return redirect(reverse(name, current_app=self.admin_site.name))

    def _log_publication(self, request: HttpRequest) -> None:
        user: Any = request.user.pk
        LogEntry.objects.create(
            user_id=user,
            content_type_id=ContentType.objects.get_for_model(self.model).pk,
            object_repr=str(self.opts.verbose_name_plural),
            action_flag=CHANGE,
            change_message="Published everything to Redis.",
        )

    def _with_banner(
        self, request: HttpRequest, extra_context: dict[str, Any] | None
    ) -> dict[str, Any]:
        # A callable, because the template calls it after the commit and after the rows' calls.
        banner = partial(standing.findings, LiveCounts.of_page(request))
        return {**(extra_context or {}), "fairness_findings": banner}
