"""The common parts of the pages about what is in Redis: permissions, banner, audit.

Invariant: every change needs the permission to change, is a POST, and has an entry in the history
before it is made. If it fails, the entry has the reason.

Weakness: the entry is in the database and the change in Redis. If the process dies between the two,
the entry names a change that was not made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_fairness.control.key.stops import LEAST_SECONDS, MOST_SECONDS, PERSON_CHARACTERS
from celery_fairness.errors import FairnessError, LimiterUnavailable
from celery_fairness.util.durations import parse_duration
from django_celery_fairness import standing, wiring
from django_celery_fairness.live_counts import LiveCounts
from django_celery_fairness.permissions import APP, Action, ByTable, saving

if TYPE_CHECKING:
    from celery_fairness import Fairness
    from celery_fairness.control.key.views import Pagination

    ModelAdmin = admin.ModelAdmin[Any]

Answer = TypeVar("Answer")

_DOT = "_2E"

NOT_WIRED = gettext_lazy("Fairness is not wired in this process.")

#: Longest reason in a form, in characters. A cool-down adds the name of the person, and an event
#: has room for both.
FORM_REASON_CHARACTERS = 200
#: Longest name that the search takes, in characters. No name in Redis needs so many.
NAME_CHARACTERS = 1000


class ReasonForm(forms.Form):
    """The reason of a change. The history keeps it."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=FORM_REASON_CHARACTERS,
        help_text=gettext_lazy("For the history, for example “incident 17”."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


class DurationField(forms.CharField):
    """The duration of a hold, in the forms that commands take; None if it is empty."""

    def clean(self, value: Any) -> float | None:
        """Return seconds."""
        text = super().clean(value)
        if not text:
            return None
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise forms.ValidationError(str(error), code="duration") from error
        if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
            problem = _("Expected a time from 1 ms to 366 days, got: %(time)s.") % {"time": text}
            raise forms.ValidationError(problem, code="duration")
        return seconds


class RedisPageAdmin(ByTable):
    """An entry of the admin without a table."""

    def route(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        """Return the address of a view of this page."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return path(route, self.admin_site.admin_view(view), name=name)

    def address(self, name: str, *args: str) -> str:
        """Return the address of a view, with names of things in Redis in their quoted form."""
        full = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return reverse(full, args=list(map(quoted, args)), current_app=self.admin_site.name)

    def show(
        self, request: HttpRequest, template: str, title: str, context: dict[str, Any]
    ) -> HttpResponse:
        """Show a page, or only the part that changes if the page's script requests it.

        Args:
            request: The request.
            template: Name of the page, without folder and extension. The part that changes has the
                same name with ``_live``.
            title: Title of the page.
            context: What the templates show.
        """
        full: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "may_change": self.has_change_permission(request),
            "sees_tasks": Action.SEE_TASKS.allowed(request.user),
            "keys_url": self._keys_url(request),
            "live_template": f"django_celery_fairness/{template}_live.html",
            "live_url": request.get_full_path(),
            **context,
        }
        counts = LiveCounts.of_page(request)
        full["fairness_findings"] = standing.findings(counts)
        full["redis_is_away"] = counts.problem is not None
        full["problem"] = full.get("problem") or str(counts.problem or "")
        # Only a live page has a part that changes. Anybody can send the header for any page.
        is_part = bool(full.get("is_live")) and request.headers.get("X-Fairness") == "live"
        is_part = is_part and request.method == "GET"
        shown = full["live_template"] if is_part else f"django_celery_fairness/{template}.html"
        response = TemplateResponse(request, shown, full)
        response["Cache-Control"] = "no-store"
        return response

    def _keys_url(self, request: HttpRequest) -> str:
        if not Action.SEE_KEYS.allowed(request.user):
            return ""
        return reverse(f"admin:{APP}_limitkey_changelist", current_app=self.admin_site.name)

    def expect_view(self, request: HttpRequest) -> None:
        """Raise PermissionDenied if the person may not see the page."""
        if not self.has_view_permission(request):
            raise PermissionDenied

    def expect_change(self, request: HttpRequest) -> None:
        """Raise PermissionDenied if the person may change nothing."""
        if not self.has_change_permission(request):
            raise PermissionDenied

    def change(
        self,
        request: HttpRequest,
        row: Model,
        what: str,
        change: Callable[[Fairness], str],
    ) -> bool:
        """Make a change, with an entry in the history, and tell the person its result.

        Args:
            request: The request.
            row: The row that the entry is about.
            what: The change and its reason.
            change: Makes the change, and returns its result as a sentence.

        Returns:
            Whether the change was made.
        """
        self.expect_change(request)
        return audited(self, request, row, what, change)


def form_url(page: ModelAdmin, request: HttpRequest, rows: QuerySet[Any], **named: str) -> str:
    """Return the address of the form of a row, or of a new row with this name.

    Args:
        page: The page with the link.
        request: The request.
        rows: The row, or none.
        named: The field with the name, and the name.

    Returns:
        The address, or "" if the person may not save this form.
    """
    row, opts = rows.first(), rows.model._meta  # noqa: SLF001 (documented by Django)
    verb = "add" if row is None else "change"
    if not saving(rows.model, is_saved=row is not None).allowed(request.user):
        return ""
    name = f"admin:{opts.app_label}_{opts.model_name}_{verb}"
    site = page.admin_site.name
    if row is not None:
        return reverse(name, args=[row.pk], current_app=site)
    return f"{reverse(name, current_app=site)}?{urlencode(named)}"


def quoted(name: str) -> str:
    """Return a name for an address. A browser would take one of dots alone for a folder."""
    return quote(name) if name.strip(".") else name.replace(".", _DOT)


def unquoted(text: str) -> str:
    """Return the name that :func:`quoted` has written."""
    dots = text.count(_DOT)
    # A quoted underscore is longer, so a name with this text does not look so.
    return "." * dots if text and text == _DOT * dots else unquote(text)


def ask(request: HttpRequest, question: Callable[[Fairness], Answer]) -> tuple[Answer | None, str]:
    """Return the answer of this process's ``Fairness``, or why there is none.

    If Redis does not answer, the banner of the page does not call it again.
    """
    parts = wiring.wired()
    if parts is None:
        return None, str(NOT_WIRED)
    try:
        return question(parts.fairness), ""
    except LimiterUnavailable as error:
        LiveCounts.of_page(request).problem = error
        return None, str(error)
    except ValidationError as error:
        return None, " ".join(error.messages)
    except (FairnessError, ValueError) as error:
        return None, str(error)


def audited(
    page: ModelAdmin,
    request: HttpRequest,
    row: Model,
    what: str,
    change: Callable[[Fairness], str],
) -> bool:
    """Make a change as :meth:`RedisPageAdmin.change` does, for any admin.

    The caller has checked the permission.
    """
    entry: LogEntry = page.log_change(request, row, what)
    result, problem = ask(request, change)
    template = _("Not done: %(what)s") if problem else _("Done: %(what)s")
    text = template % {"what": problem or result}
    entry.change_message = f"{what} {text}"
    entry.save(update_fields=["change_message"])
    page.message_user(request, text, messages.ERROR if problem else messages.SUCCESS)
    return not problem


def page_number(request: HttpRequest) -> int:
    """Return the number of the page that an address names, by default 1."""
    number = request.GET.get("page", "1")
    is_number = number.isascii() and number.isdigit() and len(number) < 7
    return max(1, int(number)) if is_number else 1


def page_context(page: Pagination, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``pages_of.html`` shows.

    Args:
        page: The position of the page.
        query: The other parameters of its address.
    """
    pages = -(-page.total // page.per_page)

    def address(number: int) -> str:
        return f"?{urlencode({**query, 'page': str(number)})}"

    return {
        "page": page,
        "page_count": pages,
        "first_url": address(1),
        "previous_url": address(page.page - 1) if page.page > 1 else "",
        "next_url": address(page.page + 1) if page.page < pages else "",
    }


def storable(text: str) -> str:
    """Return text that a database stores: PostgreSQL rejects NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def time_text(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 120:
        return _("%(number).1f s") % {"number": seconds}
    if seconds < 7200:
        return _("%(number).0f min") % {"number": seconds / 60}
    return _("%(number).1f h") % {"number": seconds / 3600}


def who(request: HttpRequest) -> str:
    """Return the name of the person, as far as Redis stores it."""
    return request.user.get_username()[:PERSON_CHARACTERS]
