"""The admin: staff edit limits and overrides, see the limits in force, make tokens.

Invariant: every number is shown with its source. Every edit goes through ``save`` or ``delete``,
and so through :mod:`.publishing`. The names of saved rows cannot be changed, because tasks and
settings refer to them.

Weakness: a limit applies to later starts. It does not stop running tasks.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Field, Q, QuerySet
from django.forms import Field as FormField
from django.http import HttpRequest
from django.urls import get_resolver, get_urlconf, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_fairness.config.numbers import PARTITION, columns_of, numbers_of
from celery_fairness.errors import PolicyInvalid

# These register their pages.
from django_celery_fairness import dashboard as dashboard
from django_celery_fairness import dead_letters as dead_letters
from django_celery_fairness import limit_pages as limit_pages
from django_celery_fairness import queue_pages as queue_pages
from django_celery_fairness import task_search as task_search
from django_celery_fairness import tenant_pages as tenant_pages
from django_celery_fairness import tokens, wiring
from django_celery_fairness.live_counts import LiveCounts
from django_celery_fairness.models import (
    TOKEN_EXISTS,
    ApiToken,
    LimitOverride,
    QueueLimit,
    TenantTier,
    Tier,
)
from django_celery_fairness.number_fields import empty_texts
from django_celery_fairness.pages import FairnessAdmin
from django_celery_fairness.permissions import ByTable
from django_celery_fairness.publishers import in_redis
from django_celery_fairness.querysets import tenant_in_force
from django_celery_fairness.redis_pages import who
from django_celery_fairness.tenant_actions import TenantActions

if TYPE_CHECKING:
    from celery_fairness.control.key.views import Inspection

#: The numbers of a tier beside its concurrency, whose origin the admin shows.
OF_TIERS = tuple(word for word in numbers_of("tier") if word != "concurrency")
WARNING = '<span class="fairness-warning">⚠ {}</span>'


@admin.register(Tier)
class TierAdmin(FairnessAdmin):
    """Tiers; their numbers are edited in the list."""

    list_display = (
        *("name", "concurrency", "origin", *OF_TIERS, "queue_class", "tenants", "rejections"),
    )
    list_editable = ("concurrency",)
    search_fields = ("name", "description")
    search_help_text = gettext_lazy("Search by name or description")
    empty_numbers = empty_texts("tier")
    key_field = "name"
    live_fields = ("origin", "rejections")
    fields = (
        *("name", "concurrency", "origin", "rejections", *OF_TIERS, "queue_class"),
        "description",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tier]:
        """Count the tenants of each tier in the same query."""
        tiers: QuerySet[Tier] = super().get_queryset(request)
        return tiers.annotate(tenant_count=Count("tenants"))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Name the default tier among what cannot be deleted, singly and in bulk."""
        deletable, counts, missing, protected = super().get_deleted_objects(objs, request)
        name = wiring.default_tier()
        if any(tier.name == name for tier in objs):
            text = _("“%(name)s” is the default tier (setting default_tier): it cannot go.")
            protected = [*protected, text % {"name": name}]
        return deletable, counts, missing, protected

    @admin.display(description=gettext_lazy("number from"))
    def origin(self, tier: Tier) -> str:
        """Say where the number comes from, and what else sets one: a variable, or Redis still."""
        published = _counts(tier).tiers()
        in_force = None if published is None else published.get(tier.name)
        if in_force is not None and in_force.concurrency != tier.concurrency:
            text = _("workers use %(number)s until this one is published")
            values = {"number": wiring.as_text(in_force.concurrency)}
            return format_html("{} " + WARNING, _("database"), text % values)
        for found in wiring.contradictions({tier.name: tier.concurrency}):
            text = _("%(variable)s is %(number)s; the database wins")
            values = {"variable": found.variable, "number": wiring.as_text(found.value)}
            return format_html("{} " + WARNING, _("database"), text % values)
        return _("database")

    @admin.display(description=gettext_lazy("tenants"), ordering="tenant_count")
    def tenants(self, tier: Tier) -> str:
        """Count the tenants that have a row with this tier, as a link to them."""
        url = reverse(
            "admin:django_celery_fairness_tenanttier_changelist", current_app=self.admin_site.name
        )
        count = getattr(tier, "tenant_count", 0)
        link = format_html('<a href="{}?tier__id__exact={}">{}</a>', url, tier.pk, count)
        if tier.name != wiring.default_tier():
            return link
        return format_html("{} {}", link, _("and all without a row"))

    @admin.display(description=gettext_lazy("rejections so far"))
    def rejections(self, tier: Tier) -> str | None:
        """Count how often a task of this tier was sent back to wait."""
        rejections = _counts(tier).rejections()
        return None if rejections is None else str(rejections.get(tier.name, 0))


@admin.register(TenantTier)
class TenantTierAdmin(TenantActions, FairnessAdmin):
    """Tenants; tier and own numbers are edited in the list."""

    # A rate and a throttle beside the others would be cut off. The form has them.
    list_display = ("tenant", "tier", "concurrency", "valid", "limit", "running", "waiting", "note")
    list_editable = ("tier", "concurrency")
    list_filter = ("tier",)
    list_select_related = ("tier",)
    list_per_page = 50
    show_full_result_count = False
    search_fields = ("tenant", "note")
    search_help_text = gettext_lazy("Search by tenant or note")
    empty_numbers = empty_texts("tenant")
    key_field = "tenant"
    reason_field = "note"
    live_fields = ("limit", "running", "waiting")
    fields = (
        *("tenant", "tier", *numbers_of("tenant"), "valid_from", "valid_until", "limit"),
        *("running", "waiting", "note"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[TenantTier]:
        """Mark the rows that apply now."""
        rows: QuerySet[TenantTier] = super().get_queryset(request)
        return rows.annotate(is_in_force=tenant_in_force(timezone.now()))

    def get_changelist_formset(self, request: HttpRequest, **options: Any) -> Any:
        """Read the tiers to choose from once for the page, not once for each row."""
        formset = super().get_changelist_formset(request, **options)
        field: Any = formset.form.base_fields["tier"]
        field.choices = list(field.choices)
        # Tiers are edited in their own list; four icons beside each choice would fill the row.
        widget = field.widget
        widget.can_add_related = widget.can_change_related = False
        widget.can_delete_related = widget.can_view_related = False
        return formset

    @admin.display(description=gettext_lazy("valid"), ordering="valid_until")
    def valid(self, row: TenantTier) -> str:
        """Show the time in which the row applies, and whether it applies now."""
        if row.valid_from is None and row.valid_until is None:
            return _("always")
        begins = _("from %(time)s") % {"time": _shown(row.valid_from)} if row.valid_from else ""
        ends = _("until %(time)s") % {"time": _shown(row.valid_until)} if row.valid_until else ""
        text = " ".join(filter(None, (begins, ends)))
        return text if _is_in_force(row) else format_html("{} " + WARNING, text, _("not now"))

    @admin.display(description=gettext_lazy("limit in force"))
    def limit(self, row: TenantTier) -> str:
        """Show the number in force and why, and that of the database where it is another."""
        limits = self._limits(row)
        if not limits:
            return _("unknown; the database has %(number)s") % {"number": _of_database(row)}
        shown = dict.fromkeys(str(each.in_force) for each in limits)
        if len(shown) > 1:
            # One for each service: a pause may hold for one of them.
            shown = {f"{each.key.rpartition(':')[2]}: {each.in_force}": None for each in limits}
        text = format_html_join(mark_safe("<br>"), "{}", ((each,) for each in shown))
        if not _is_in_force(row) or all(_as_in_database(row, each) for each in limits):
            return text
        differs = _("the database has %(number)s: open and save this row to put it in force")
        return format_html("{} " + WARNING, text, differs % {"number": _of_database(row)})

    @admin.display(description=gettext_lazy("running now"))
    def running(self, row: TenantTier) -> str | None:
        """Count the tasks that hold a slot now; unknown while Redis is away."""
        limits = self._limits(row)
        return None if limits is None else str(sum(each.held for each in limits))

    @admin.display(description=gettext_lazy("waiting now"))
    def waiting(self, row: TenantTier) -> str | None:
        """Count the waiting tasks in Redis; with a gate, the others are on the broker."""
        limits = self._limits(row)
        if limits is None:
            return None
        count = str(sum(each.waiting_count for each in limits))
        if _counts(row).all_wait_in_redis:
            return count
        return _("%(count)s parked") % {"count": count}

    def _limits(self, row: TenantTier) -> list[Inspection] | None:
        """Call Redis once for a row, even if several columns show it."""
        asked: Any = row
        if not hasattr(asked, "tenant_limits"):
            tier = row.tier.name if _is_in_force(row) else ""
            asked.tenant_limits = _counts(row).tenant(row.tenant, tier)
        limits: list[Inspection] | None = asked.tenant_limits
        return limits


@admin.register(QueueLimit)
class QueueLimitAdmin(FairnessAdmin):
    """Limits of queues; the numbers at once are edited in the list."""

    list_display = ("queue", *numbers_of("queue"), "on_limit", "in_redis", "note")
    list_editable = ("global_limit", "local_limit")
    search_fields = ("queue", "note")
    search_help_text = gettext_lazy("Search by queue or note")
    # An empty number of a partition is unlimited only beside another one, so it has no text.
    empty_numbers = empty_texts("queue") | dict.fromkeys(columns_of(PARTITION), "")
    key_field = "queue"
    reason_field = "note"
    live_fields = ("in_redis",)
    fields = (
        *("queue", *columns_of("queue"), *columns_of(PARTITION), "on_limit", "in_redis", "note"),
    )

    @admin.display(description=gettext_lazy("in force"))
    def in_redis(self, row: QueueLimit) -> str | None:
        """Show whether workers use these numbers."""
        queues = _counts(row).queues()
        if queues is None:
            return None
        found = queues.get(row.queue)
        try:
            numbers = row.numbers()
            if found is not None and found.chosen == numbers.chosen:
                return _("yes")
        except PolicyInvalid as error:
            return format_html(WARNING, str(error))
        text = _("workers use other numbers until this row is published")
        return format_html(WARNING, text)


class StateFilter(admin.SimpleListFilter):
    """Chooses overrides by their end."""

    title = gettext_lazy("end")
    parameter_name = "end"

    def lookups(self, *_args: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [
            ("in-force", gettext_lazy("in force")),
            ("soon", gettext_lazy("ends within a day")),
            ("never", gettext_lazy("has no end")),
            ("ended", gettext_lazy("has ended")),
        ]

    def queryset(self, _request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the chosen rows."""
        now = timezone.now()
        conditions = {
            "in-force": Q(ends_at=None) | Q(ends_at__gt=now),
            "soon": Q(ends_at__gt=now, ends_at__lte=now + timedelta(days=1)),
            "never": Q(ends_at=None),
            "ended": Q(ends_at__lte=now),
        }
        return rows.filter(conditions.get(self.value() or "", Q()))


@admin.register(LimitOverride)
class LimitOverrideAdmin(FairnessAdmin):
    """Overrides; the person who saves one is its author."""

    list_display = (*("key", *numbers_of("override"), "ends_at", "state", "reason", "author_name"),)
    list_per_page = 50
    list_filter = (StateFilter,)
    search_fields = ("key", "reason")
    search_help_text = gettext_lazy("Search by key or reason")
    empty_numbers = empty_texts("override")
    key_field = "key"
    reason_field = "reason"
    live_fields = ("state", "author_name")
    fields = ("key", *numbers_of("override"), "ends_at", "state", "reason", "author_name")

    def save_model(self, request: HttpRequest, obj: LimitOverride, form: Any, change: bool) -> None:
        """Save the row, with the person as its author."""
        obj.author_id = request.user.pk
        obj.author_name = who(request)
        super().save_model(request, obj, form, change)

    def formfield_for_dbfield(
        self, db_field: Field[Any, Any], request: HttpRequest, **options: Any
    ) -> FormField | None:
        """Require a reason of people. A program may give none."""
        field = super().formfield_for_dbfield(db_field, request, **options)
        if field is not None and db_field.name == self.reason_field:
            field.required = True
        return field

    @admin.display(description=gettext_lazy("in force"))
    def state(self, row: LimitOverride) -> str | None:
        """Show whether workers use these numbers."""
        if row.has_ended:
            return _("ended")
        counts = _counts(row)
        found = counts.key(row.key)
        if found is None and not counts.are_complete:
            return None
        try:
            if in_redis(row, None if found is None else found.override):
                return _("yes")
        except PolicyInvalid as error:
            return format_html(WARNING, str(error))
        text = _("workers use other numbers until this row is published")
        return format_html(WARNING, text)


def effective(row: TenantTier) -> int | None:
    """Return a tenant's number in the database: its own, or its tier's if it has none."""
    number: int | None = row.tier.concurrency if row.concurrency is None else row.concurrency
    return number


def _counts(row: Any) -> LiveCounts:
    """Return the live counts of the row's page; of a form those of the row."""
    if not hasattr(row, "live"):
        row.live = LiveCounts()
    counts: LiveCounts = row.live
    return counts


def _is_in_force(row: TenantTier) -> bool:
    """Return the mark that ``TenantTierAdmin.get_queryset`` has made."""
    return bool(getattr(row, "is_in_force", True))


def _shown(when: datetime | None) -> str:
    return "" if when is None else date_format(timezone.localtime(when), "DATETIME_FORMAT")


def _of_database(row: TenantTier) -> str:
    own = _("own number") if row.concurrency is not None else row.tier.name
    return f"{wiring.as_text(effective(row))} ({own})"


def _as_in_database(row: TenantTier, limit: Inspection) -> bool:
    """Whether Redis has the tier and the number of the database, below what an operator set."""
    number = limit.in_force.reasons[-1].limit
    return limit.tier == row.tier.name and number == effective(row)


class ApiTokenForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in django-stubs only
    """A new token."""

    def clean_name(self) -> str:
        """Reject the name of a token in use, which a form does not check by the constraint."""
        name: str = self.cleaned_data["name"]
        if ApiToken.objects.filter(name=name, revoked_at=None).exists():
            raise forms.ValidationError(TOKEN_EXISTS)
        return name


@admin.register(ApiToken)
class ApiTokenAdmin(ByTable):
    """Tokens of the HTTP API: made, revoked, deleted, and never edited.

    A token that a user makes here is the user's, so it may do no more than the user may.

    Weakness: the new token passes through Django's messages, which may use a cookie of the user.
    """

    form = ApiTokenForm
    list_display = ("name", "begins", "scope", "owner", "created_at", "last_used_at", "revoked_at")
    list_select_related = ("owner",)
    search_fields = ("name",)
    fields = ("name", "scope")
    actions = ("revoke",)

    @admin.display(description=gettext_lazy("begins with"), ordering="prefix")
    def begins(self, row: ApiToken) -> str:
        """Show the part by which a token can be recognised."""
        return f"fairness_{row.prefix}_…"

    def has_module_permission(self, request: HttpRequest) -> bool:
        """List the tokens only if the project has addresses that take them."""
        # A middleware may have given the request other addresses.
        addresses = getattr(request, "urlconf", None) or get_urlconf()
        return tokens.are_taken(get_resolver(addresses)) and super().has_module_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Make no row editable. The action checks the permission itself."""
        return obj is None and super().has_change_permission(request)

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        """Give the token its secret, and show it this once."""
        obj.owner_id = request.user.pk
        text = tokens.give_secret(obj)
        super().save_model(request, obj, form, change)
        shown = _("The token, which is not shown again: %(token)s")
        self.message_user(request, shown % {"token": text}, messages.WARNING)

    @admin.action(description=gettext_lazy("Revoke the selected tokens"), permissions=["change"])
    def revoke(self, request: HttpRequest, rows: QuerySet[ApiToken]) -> None:
        """Revoke the tokens."""
        for row in rows.filter(revoked_at=None):
            row.revoked_at = timezone.now()
            row.save(update_fields=["revoked_at"])
            self.log_change(request, row, "revoked")
