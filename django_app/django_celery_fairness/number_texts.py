"""Numbers and rates as text: how forms check them, and how the database bounds them.

A number of an override is "" (unchanged), ``unlimited``, or a number or rate. A rate of a queue is
"" (none) or a rate. The package's own parsers read the texts, so a rate has the same forms here as
in a task.

Weakness: the database only checks that a rate has a slash, because SQL cannot read periods. The
publication of an invalid rate fails, and stays pending with the reason.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import F, Func, Q, TextField, Value
from django.db.models.lookups import Exact, LessThanOrEqual
from django.utils.translation import gettext_lazy as _

from celery_fairness.config.rates import Rate
from celery_fairness.config.tiers import MAX_CONCURRENCY, read_concurrency
from celery_fairness.errors import PolicyInvalid
from django_celery_fairness.octet_length import OctetLength

#: An override's text for no limit.
UNLIMITED = "unlimited"
#: Longest text of a rate.
RATE_CHARACTERS = 50

CONCURRENCY_TEXT_EXPECTED = _(
    "Expected a whole number from 0 (pause) to 1,000,000, “unlimited”, or nothing (unchanged)."
)
RATE_EXPECTED = _("Expected a rate such as “100/m” or “100/PT1M”, or nothing.")
RATE_TEXT_EXPECTED = _("Expected a rate such as “100/m”, “unlimited”, or nothing (unchanged).")


def concurrency_of(text: str) -> int | None:
    """Return an override's concurrency; None is unlimited.

    Raises:
        ValueError: It is neither a number in its bounds nor ``unlimited``.
    """
    return read_concurrency(text)


def rate_of(text: str, name: str) -> Rate | None:
    """Return an override's rate; None is unlimited.

    Raises:
        PolicyInvalid: It is neither a rate nor ``unlimited``. The text begins with ``name``.
    """
    return None if text == UNLIMITED else Rate.parse(text, name)


def number_text(number: Any) -> str:
    """Return a number of an override as text: None, a concurrency, or any form of a rate.

    Raises:
        PolicyInvalid: It is an invalid rate.
    """
    if number is None:
        return UNLIMITED
    return str(number) if isinstance(number, int) else str(Rate.parse(number))


def validate_concurrency_text(text: str) -> None:
    """Reject a text that is no concurrency of an override."""
    try:
        concurrency_of(text)
    except ValueError:
        raise ValidationError(CONCURRENCY_TEXT_EXPECTED, code="concurrency") from None


def validate_rate(text: str) -> None:
    """Reject a text that is no rate."""
    try:
        Rate.parse(text)
    except PolicyInvalid as error:
        raise ValidationError(list(error.problems), code="rate") from None


def validate_rate_text(text: str) -> None:
    """Reject a text that is no rate of an override."""
    if text != UNLIMITED:
        validate_rate(text)


def concurrency_text_is_bounded(field: str) -> Q:
    """Return the condition of an override's concurrency in the database."""
    digits = len(str(MAX_CONCURRENCY)) - 1
    is_short = Q(LessThanOrEqual(OctetLength(field), digits))
    is_number = has_only(field, "0123456789") & is_short
    return Q(**{f"{field}__in": ("", UNLIMITED, str(MAX_CONCURRENCY))}) | is_number


def has_only(field: str, characters: str) -> Q:
    """Return the condition of a text in the database that has only these characters."""
    # A regular expression would need a function of Django's own in SQLite.
    rest = Func(F(field), Value(characters), function="LTRIM", output_field=TextField())
    return Q(Exact(rest, Value("")))


def rate_is_bounded(field: str, *words: str) -> Q:
    """Return the condition of a rate in the database: one of ``words``, or a text with a slash."""
    is_rate = Q(**{f"{field}__contains": "/"})
    is_short = Q(LessThanOrEqual(OctetLength(field), RATE_CHARACTERS))
    return Q(**{f"{field}__in": ("", *words)}) | (is_rate & is_short)
