"""What the admin pages of this app share: live rows, the banner, publishing by hand.

Invariant: a page renders with Redis away, without ``Fairness``, and for staff who may only look;
an action is offered only to who may change.

Weakness: the banner speaks for the process that serves the page (:mod:`.standing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import Field, QuerySet
from django.forms import Field as FormField
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_fairness.errors import FairnessError
from django_celery_fairness import publishing, standing
from django_celery_fairness.live_counts import LiveCounts

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    # Generic in django-stubs only.
    ModelAdmin = admin.ModelAdmin


class LiveChangeList(ChangeList):
    """A change list whose rows carry ``live``: what the page asked Redis with."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page's rows, and hand each the page's counts."""
        super().get_results(request)
        counts = LiveCounts.of_page(request)
        for row in self.result_list:
            row.live = counts


class FairnessAdmin(ModelAdmin):
    """An admin of this app: banner, live rows, and the action that publishes."""

    change_list_template = "django_celery_fairness/change_list.html"
    change_form_template = "django_celery_fairness/change_form.html"
    actions = ("publish_now",)
    empty_value_display = "–"
    #: Text in the empty field of a number, by its name: what empty means.
    empty_numbers: Mapping[str, Any] = {}
    #: The field that cannot be changed once a row is made.
    key_field = ""
    #: What the form shows of a row that exists, and of no other.
    live_fields: tuple[str, ...] = ()

    def get_changelist(
        self,
        request: HttpRequest,  # noqa: ARG002 (Django's signature)
        **_options: Any,
    ) -> type[ChangeList]:
        """Use rows that know the live counts."""
        return LiveChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Add the banner."""
        return super().changelist_view(request, self._with_banner(request, extra_context))

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Add the banner."""
        context = self._with_banner(request, extra_context)
        return super().changeform_view(request, object_id, form_url, context)

    def get_readonly_fields(
        self,
        request: HttpRequest,  # noqa: ARG002 (Django's signature)
        obj: Any = None,
    ) -> tuple[str, ...]:
        """Keep the name of a row that exists, and show what is in force."""
        return (self.key_field, *self.live_fields) if obj else ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out what can only be known of a row that exists."""
        fields = super().get_fields(request, obj)
        return fields if obj else [name for name in fields if name not in self.live_fields]

    def formfield_for_dbfield(
        self, db_field: Field[Any, Any], request: HttpRequest, **options: Any
    ) -> FormField | None:
        """Say inside an empty number what empty means, and keep texts for people small."""
        field = super().formfield_for_dbfield(db_field, request, **options)
        if field is not None and db_field.name in self.empty_numbers:
            empty = self.empty_numbers[db_field.name]
            field.widget.attrs.update(placeholder=empty, style="width: 8em")
        elif field is not None and db_field.name in ("description", "note"):
            field.widget.attrs.update(rows=3)
        return field

    @admin.action(permissions=["change"], description=gettext_lazy("Publish to Redis now"))
    def publish_now(self, request: HttpRequest, _rows: QuerySet[Any]) -> None:
        """Publish everything, whichever rows are ticked: half a table would help nobody."""
        try:
            done = publishing.publish_everything()
        except FairnessError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        text = _("Published %(tiers)d tiers and %(tenants)d tenants to Redis.")
        counts = {"tiers": done.tiers, "tenants": done.tenants}
        self.message_user(request, text % counts, messages.SUCCESS)

    def _with_banner(
        self, request: HttpRequest, extra_context: dict[str, Any] | None
    ) -> dict[str, Any]:
        # A callable, so that the template asks once the rows have asked, and after the commit.
        banner = partial(standing.findings, LiveCounts.of_page(request))
        return {**(extra_context or {}), "fairness_findings": banner}
