"""Actions of an operator on a key or a tenant: pause, resume, cool down, boost, purge.

The methods of ``fairness.limits`` and ``fairness.tenants`` do the work. A boost is a row, as every
number of this app. The page of a key and the list of tenants offer these actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery import current_app
from django import forms
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from celery_fairness.config.key_patterns import is_pattern
from celery_fairness.control.tenant.boost import BOOST_SECONDS, boosted, own_number
from celery_fairness.errors import LimiterUnavailable, NotFound
from celery_fairness.texts.keys import holds_lines, overridden_lines
from celery_fairness.wiring import wired
from django_celery_fairness.limit_rows import end_override, save_override
from django_celery_fairness.models import LimitOverride
from django_celery_fairness.publishers import in_redis
from django_celery_fairness.redis_pages import DurationField, ReasonForm

if TYPE_CHECKING:
    from celery_fairness import Fairness
    from celery_fairness.control.key.views import ChangedHolds, Inspection


class SteeringForm(ReasonForm):
    """Why, and for how long."""

    for_seconds = DurationField(
        label=gettext_lazy("For how long"),
        required=False,
        max_length=40,
        help_text=gettext_lazy(
            "For example 90s, 10m or 2h. Empty: a pause lasts until somebody resumes it, a boost "
            "lasts one hour."
        ),
        widget=forms.TextInput(attrs={"size": 10, "autocomplete": "off"}),
    )


@dataclass(frozen=True, slots=True)
class Target:
    """What is steered.

    Attributes:
        key: Its key, if a person steers a key.
        tenant: The tenant, if a person steers all services of a tenant, or the key is a tenant's.
        services: The services of the tenant that count apart. One None is a tenant that counts as
            a whole.
    """

    key: str = ""
    tenant: str = ""
    services: tuple[str | None, ...] = (None,)

    def api(self, fairness: Fairness) -> Any:
        """Return the noun whose methods take :attr:`name`."""
        return fairness.limits if self.key else fairness.tenants

    @property
    def name(self) -> str:
        """The key, or the tenant."""
        return self.key or self.tenant

    @property
    def keys(self) -> list[str]:
        """The keys by which it counts."""
        if self.key:
            return [self.key]
        whole = f"tenant:{self.tenant}"
        return [f"{whole}:{each}" if each is not None else whole for each in self.services]


@dataclass(frozen=True, slots=True)
class Order:
    """The person, the reason and the duration of an action.

    Attributes:
        who: The person's name, as Redis stores it.
        reason: Why.
        for_seconds: For how long. None is without an end.
        user: The person.
    """

    who: str
    reason: str
    for_seconds: float | None = None
    user: Any = None


Run = Callable[["Fairness", Target, Order], str]


@dataclass(frozen=True, slots=True)
class Action:
    """An action on a key or a tenant.

    Attributes:
        name: Its name in forms.
        label: The text of its button.
        run: Does it, and returns the result as a sentence.
        is_of: ``tenant`` or ``key`` if only those take it, or "".
        ends: What the action ends on a key. None: it ends nothing.
    """

    name: str
    label: str | Promise
    run: Run
    is_of: str = ""
    ends: Callable[[Inspection], object] | None = None

    def is_off(self, found: Inspection | None, rows: Iterable[LimitOverride] | None) -> bool:
        """Return whether there is nothing that it would end.

        Args:
            found: The key, or None if nothing is known of it.
            rows: The overrides of the key in the database, which may not be published yet.
        """
        if self.ends is None or (found is not None and self.ends(found)):
            return False
        return self.ends is not _override_of or all(row.has_ended for row in rows or ())


def _pause(fairness: Fairness, target: Target, order: Order) -> str:
    api = target.api(fairness)
    return _holds(api.pause(target.name, for_seconds=order.for_seconds, by=order.who))


def _resume(fairness: Fairness, target: Target, order: Order) -> str:
    return _holds(target.api(fairness).resume(target.name, by=order.who))


def _cool_down(fairness: Fairness, target: Target, order: Order) -> str:
    if order.for_seconds is None:
        raise ValueError(_("A cool-down needs a time: fill in “For how long”."))
    reason = f"{order.reason} ({order.who})"
    return _holds(
        fairness.limits.cool_down(target.key, for_seconds=order.for_seconds, reason=reason)
    )


def _clear_cool_down(fairness: Fairness, target: Target, _order: Order) -> str:
    return _holds(fairness.limits.clear_cool_down(target.key))


def _boost(fairness: Fairness, target: Target, order: Order) -> str:
    numbers = {key: _doubled(fairness.limits.inspect(key)) for key in target.keys}
    ends_at = timezone.now() + timedelta(seconds=order.for_seconds or BOOST_SECONDS)
    parts = wired(current_app)
    rows = [
        save_override(
            parts,
            key,
            {"concurrency": number},
            ends_at=ends_at,
            reason=order.reason,
            author=order.user,
            author_name=order.who,
        )
        for key, number in numbers.items()
    ]
    return "; ".join(_override(fairness, row) for row in rows)


def _clear_override(_fairness: Fairness, target: Target, _order: Order) -> str:
    if end_override(wired(current_app), target.key):
        return _("%(key)s: its own numbers hold again") % {"key": target.key}
    return _("%(key)s: no override held") % {"key": target.key}


def _purge(fairness: Fairness, target: Target, _order: Order) -> str:
    done = fairness.tenants.purge(target.tenant)
    text = ngettext(
        "tenant %(tenant)s: %(count)d waiting task is cancelled",
        "tenant %(tenant)s: %(count)d waiting tasks are cancelled",
        done.cancelled,
    )
    return text % {"tenant": target.tenant, "count": done.cancelled}


def _pause_of(found: Inspection) -> bool:
    return found.holds.paused


def _cool_down_left(found: Inspection) -> float:
    return found.holds.cool_down_seconds


def _override_of(found: Inspection) -> object:
    override = found.override
    # That of a pattern ends on the page of the pattern.
    return override if override is not None and override.pattern is None else None


PAUSE = Action("pause", gettext_lazy("Pause"), _pause)
RESUME = Action("resume", gettext_lazy("Resume"), _resume, ends=_pause_of)
BOOST = Action("boost", gettext_lazy("Boost"), _boost, "tenant")
PURGE = Action("purge", gettext_lazy("Purge"), _purge, "tenant")
CLEAR_OVERRIDE = Action(
    "clear_override", gettext_lazy("End override"), _clear_override, ends=_override_of
)
#: The actions of the page of a key. A purge has a page of its own for the confirmation.
OF_KEYS = (
    PAUSE,
    RESUME,
    BOOST,
    Action("cool_down", gettext_lazy("Cool down"), _cool_down, "key"),
    Action(
        "clear_cool_down", gettext_lazy("End cool-down"), _clear_cool_down, "key", _cool_down_left
    ),
    CLEAR_OVERRIDE,
)


def actions_of(target: Target) -> list[Action]:
    """Return the actions that a key takes."""
    if is_pattern(target.key):
        return [CLEAR_OVERRIDE]
    kind = "tenant" if target.tenant else "key"
    return [each for each in OF_KEYS if each.is_of in ("", kind)]


def _doubled(found: Inspection) -> int:
    """Return the number of a boost.

    Raises:
        ValueError: The key has no number, or the number is unknown.
    """
    number = boosted(found)
    if number is None:
        text = _("%(key)s: its number is %(number)s, so there is nothing to double.")
        raise ValueError(text % {"key": found.key, "number": own_number(found)})
    return number


def first_sentence(action: Action, order: Order) -> str:
    """Return the beginning of an entry in the history."""
    return _("%(action)s, because: %(reason)s.") % {
        "action": action.label,
        "reason": order.reason.rstrip("."),
    }


def _holds(holds: ChangedHolds) -> str:
    text = _lines(holds_lines(holds))
    return text if holds.known else _("%(text)s (nothing was known of it before)") % {"text": text}


def _override(fairness: Fairness, row: LimitOverride) -> str:
    try:
        found = fairness.limits.inspect(row.key)
    except (LimiterUnavailable, NotFound):
        found = None
    if found is None or not in_redis(row, found.override):
        return _("%(key)s: saved, and in force when it is published") % {"key": row.key}
    return _lines(overridden_lines(found))


def _lines(lines: Iterable[str]) -> str:
    return " ".join(lines)
