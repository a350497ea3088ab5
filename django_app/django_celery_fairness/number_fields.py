"""The numbers of limits in the database: fields, bounds and conversions, from the table of numbers.

A holder of :data:`celery_fairness.config.numbers.HOLDERS` that is a model inherits its fields from
:func:`numbers_in`, and adds :func:`bounds_of` to its constraints. A new number needs no line here.

    kind     field of a tier, a tenant or a queue       field of an override
    count    whole number; NULL is none                 text: "" (unchanged), unlimited, or a value
    share    number above 0; a tenant's may be NULL     text: "" (unchanged), or a value
    rate     text: "" is none, or a rate                text: "" (unchanged), unlimited, or a rate

The kinds read the texts, so a rate has the same forms here as in a task.

Weakness: the database checks only that a rate has a slash, and that a share as text has digits,
because SQL cannot read them. The publication of an invalid one fails, and stays pending with the
reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Func, Q, TextField, Value
from django.db.models.lookups import Exact, LessThanOrEqual
from django.utils.deconstruct import deconstructible
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from celery_fairness.config.numbers import (
    BURST,
    PARTITION,
    UNLIMITED,
    Count,
    Kind,
    Number,
    Share,
    Starts,
    columns_of,
    numbers_of,
)
from celery_fairness.config.rates import Rate
from celery_fairness.errors import PolicyInvalid, ProblemsError
from django_celery_fairness.octet_length import OctetLength

#: Longest text of a rate or of a share.
TEXT_CHARACTERS = 50
#: The holder whose numbers are texts, and the holder that has a number in place of its tier's.
OVERRIDE, TENANT = "override", "tenant"

#: What an empty number means, if it is not any number.
_NONE: Final[Mapping[str, Any]] = {UNLIMITED: _("unlimited"), BURST.none: _("no burst")}

#: Labels and help texts of numbers that their own name and help do not describe well enough.
_TEXTS: Final[Mapping[tuple[str, str], tuple[Any, Any]]] = {
    ("tier", "concurrency"): (
        _("tasks at once"),
        _(
            "How many tasks one tenant of this tier may run at the same time, for example 3. "
            "Empty is unlimited, 0 pauses every tenant of the tier."
        ),
    ),
    ("tier", "weight"): (
        _("weight"),
        _(
            "Share among tenants that wait, for example 2 for twice the share of a tier with 1. "
            "Above 0, up to 1,000,000."
        ),
    ),
    ("tier", "burst"): (
        _("at once while idle"),
        _(
            "How many tasks one tenant of this tier may run while a worker on fairredis has "
            "nothing else to start, for example 10. Empty is no burst."
        ),
    ),
    ("tenant", "burst"): (
        _("own tasks while idle"),
        _(
            "A number for this tenant alone in place of its tier's, for example 20. "
            "Empty uses the tier's."
        ),
    ),
    ("tier", "max_waiting"): (
        _("may wait"),
        _(
            "How many tasks of one tenant of this tier may wait on fairredis, for example 10000: "
            "over it delay() raises BacklogFull. Empty is any number."
        ),
    ),
    ("tenant", "concurrency"): (
        _("own tasks at once"),
        _(
            "A number for this tenant alone in place of its tier's, for example 8. "
            "Empty uses the tier's, 0 pauses this tenant."
        ),
    ),
    ("tier", "rate"): (
        _("rate"),
        _(
            "How many tasks of one tenant of this tier may start in any period, for example "
            "“100/h” or “1000/PT24H”. Empty is any number."
        ),
    ),
    ("tier", "throttle"): (
        _("throttle"),
        _("The same, but evenly spaced: for example “60/m” is one start a second."),
    ),
    ("tenant", "rate"): (
        _("own rate"),
        _(
            "How many tasks of this tenant may start in any period in place of its tier's, for "
            "example “500/h”. Empty uses the tier's."
        ),
    ),
    ("tenant", "throttle"): (
        _("own throttle"),
        _("The same, but evenly spaced, for example “60/m”. Empty uses the tier's."),
    ),
    ("queue", "global_limit"): (
        _("at once in all"),
        _(
            "How many tasks of the queue may run at once in all workers, for example 20. "
            "Empty is unlimited, 0 pauses the queue."
        ),
    ),
    ("queue", "local_limit"): (
        _("at once in one worker"),
        _(
            "How many of them may run at once in one worker, for example 4. Empty is unlimited, "
            "0 pauses the queue. The smaller of both numbers holds."
        ),
    ),
    ("queue", "rate"): (
        _("rate"),
        _(
            "How many may start in any period, for example “100/m”, “5/s” or “1000/PT24H”. "
            "Empty is any number."
        ),
    ),
    ("queue", "throttle"): (
        _("throttle"),
        _("The same, but evenly spaced: for example “60/m” is one start a second."),
    ),
    (PARTITION, "partition_concurrency"): (
        _("at once in each partition"),
        _(
            "How many tasks of one partition may run at once in all workers, for example 1. The "
            "settings (queues) say what a partition is, for example each customer. If all four "
            "numbers are empty, those of the settings hold."
        ),
    ),
    (PARTITION, "partition_local_limit"): (
        _("of each partition in one worker"),
        _("How many of them may run at once in one worker, for example 1. Empty is unlimited."),
    ),
    (PARTITION, "partition_rate"): (
        _("rate of each partition"),
        _("How many tasks of one partition may start in any period, for example “100/h”."),
    ),
    (PARTITION, "partition_throttle"): (
        _("throttle of each partition"),
        _("The same, but evenly spaced: for example “60/m” is one start a second."),
    ),
    ("override", "concurrency"): (
        _("tasks at once"),
        _(
            "For example “10”. “unlimited” is no limit, 0 pauses the key. Empty leaves the "
            "number as it is."
        ),
    ),
    ("override", "rate"): (
        _("rate"),
        _(
            "How many may start in any period, for example “100/m”, “5/s” or “unlimited”. "
            "Empty leaves it as it is."
        ),
    ),
    ("override", "throttle"): (
        _("throttle"),
        _("The same, but evenly spaced: for example “60/m” is one start a second."),
    ),
}


def numbers_in(holder: str) -> Any:
    """Return the base of the model of a holder: abstract, with a field for each of its numbers."""
    fields = {word: _field(holder, word, number) for word, number in columns_of(holder).items()}
    meta = type("Meta", (), {"abstract": True})
    body = {"__module__": __name__, "Meta": meta, **fields}
    return type(f"{holder.title()}Numbers", (models.Model,), body)


def bounds_of(holder: str) -> tuple[models.CheckConstraint, ...]:
    """Return a constraint for each number of a holder."""
    return tuple(
        models.CheckConstraint(
            name=_constraint(holder, word, number.kind),
            condition=_condition(holder, word, number.kind),
            violation_error_message=_expected(holder, number.kind),
        )
        for word, number in columns_of(holder).items()
    )


def _constraint(holder: str, word: str, kind: Kind) -> str:
    # The columns of a partition begin with its name.
    prefix = "" if holder == PARTITION else f"{holder}_"
    return f"fairness_{prefix}{word}{'' if _is_text(holder, kind) else '_bounds'}"


def none_of(holder: str) -> dict[str, Any]:
    """Return the fields of a holder with their values if none of its numbers is set."""
    return {
        word: "" if _is_text(holder, number.kind) else None
        for word, number in columns_of(holder).items()
    }


def given_in(holder: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a row, from its fields by name. A number that is not set is absent."""
    return {word: fields[word] for word in columns_of(holder) if fields[word] not in (None, "")}


def typed_in(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that the row of an override changes; None is unlimited.

    Raises:
        PolicyInvalid: A number is invalid.
    """
    numbers = numbers_of(OVERRIDE)
    given = given_in(OVERRIDE, fields)
    try:
        return {word: numbers[word].kind.read_typed(word, text) for word, text in given.items()}
    except ProblemsError as error:
        raise PolicyInvalid(*error.problems) from None


def shown_in(holder: str, row: models.Model) -> dict[str, Any]:
    """Return all numbers of a row in the form of JSON; None is one that is not set.

    The holder is no override.
    """
    kinds = {word: number.kind for word, number in columns_of(holder).items()}
    given = given_in(holder, vars(row))
    read = {word: kinds[word].read(word, value) for word, value in given.items()}
    return {word: kind.to_ojs(read.get(word)) for word, kind in kinds.items()}


def stored(holder: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a row, of which the numbers are given as in code; None is unlimited.

    Raises:
        PolicyInvalid: A rate is invalid.
    """
    own = {
        word: _stored(holder, number.kind, given[word])
        for word, number in columns_of(holder).items()
        if word in given
    }
    return {**given, **own}


def _stored(holder: str, kind: Kind, value: Any) -> Any:
    if not _is_text(holder, kind):
        return value
    if value is None:
        return UNLIMITED if holder == OVERRIDE else ""
    return str(Rate.parse(value)) if isinstance(kind, Starts) else str(value)


def empty_texts(holder: str) -> dict[str, Any]:
    """Return what an empty number means, for each field of a holder that can be empty."""
    if holder in (OVERRIDE, TENANT):
        text = _("unchanged") if holder == OVERRIDE else _("as its tier")
        return dict.fromkeys(columns_of(holder), text)
    return {
        word: _NONE.get(number.kind.none, _("any number"))
        for word, number in columns_of(holder).items()
        if number.kind.none
    }


def label_of(holder: str, word: str) -> Any:
    """Return the label of a number's field."""
    return _texts_of(holder, word)[0] or word.replace("_", " ")


class NumberValidator(ABC):
    """Rejects a value of a field that is no number of a kind.

    It has no name of a number, so that Django finds that a number has another name.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = object.__hash__

    def __call__(self, value: Any) -> None:
        """Reject a value.

        Raises:
            ValidationError: It is invalid.
        """
        try:
            self.read(value)
        except ProblemsError as error:
            raise ValidationError(self.expected or list(error.problems), code="number") from None

    @abstractmethod
    def read(self, value: Any) -> None:
        """Read a value.

        Raises:
            ProblemsError: It is invalid.
        """

    @property
    def expected(self) -> Any:
        """The error of an invalid value. None is what :meth:`read` found."""
        return None


@deconstructible
class CountText(NumberValidator):
    """Rejects a text that is no count, nor ``unlimited``."""

    def __init__(self, least: int, most: int, zero: str = "") -> None:
        self.least, self.most, self.zero = least, most, zero

    def read(self, value: Any) -> None:
        """See :class:`NumberValidator`."""
        Count(self.least, self.most, self.zero).read_typed("count", value)

    @property
    def expected(self) -> Any:
        """See :class:`NumberValidator`."""
        return _expected(OVERRIDE, Count(self.least, self.most, self.zero))


@deconstructible
class ShareBounds(NumberValidator):
    """Rejects a share, as number or text, outside its bounds, and NaN, which is never inside."""

    def __init__(self, most: float) -> None:
        self.most = most

    def read(self, value: Any) -> None:
        """See :class:`NumberValidator`."""
        Share(self.most).read_typed("share", str(value))

    @property
    def expected(self) -> Any:
        """See :class:`NumberValidator`."""
        return _expected("", Share(self.most))


@deconstructible
class RateText(NumberValidator):
    """Rejects a text that is no rate. With ``unlimited`` this word is accepted too."""

    def __init__(self, *, unlimited: bool = False) -> None:
        self.unlimited = unlimited

    def read(self, value: Any) -> None:
        """See :class:`NumberValidator`."""
        read = Starts().read_typed if self.unlimited else Starts().read
        read("rate", value)


def has_only(field: str, characters: str) -> Q:
    """Return the condition of a text in the database that has only these characters."""
    # A regular expression would need a function of Django's own in SQLite.
    rest = Func(F(field), Value(characters), function="LTRIM", output_field=TextField())
    return Q(Exact(rest, Value("")))


def _is_text(holder: str, kind: Kind) -> bool:
    return holder == OVERRIDE or isinstance(kind, Starts)


def _field(holder: str, word: str, number: Number) -> models.Field[Any, Any]:
    kind: Any = number.kind
    label, help_text = _texts_of(holder, word)
    texts = {"verbose_name": label, "help_text": help_text}
    if _is_text(holder, kind):
        return models.CharField(
            max_length=_characters(kind),
            blank=True,
            default="",
            validators=[_validator(holder, kind)],
            **texts,
        )
    if isinstance(kind, Count):
        # The field itself rejects what is below 0.
        least = [MinValueValidator(kind.least)] if kind.least else []
        bounds = [*least, MaxValueValidator(kind.most)]
        return models.PositiveIntegerField(null=True, blank=True, validators=bounds, **texts)
    empty = {"null": True, "blank": True} if holder == TENANT else {"default": kind.default}
    return models.FloatField(validators=[_validator(holder, kind)], **empty, **texts)


def _validator(holder: str, kind: Any) -> NumberValidator:
    if isinstance(kind, Starts):
        return RateText(unlimited=holder == OVERRIDE)
    if isinstance(kind, Share):
        return ShareBounds(kind.most)
    return CountText(kind.least, kind.most, kind.zero)


def _texts_of(holder: str, word: str) -> tuple[Any, Any]:
    """Return the label and the help text of a number's field; a label None is Django's own."""
    if found := _TEXTS.get((holder, word)):
        return found
    number = columns_of(holder)[word]
    end: Any = ""
    if holder == OVERRIDE:
        end = _("Empty leaves it as it is.")
    elif holder == TENANT:
        end = _("Empty uses the tier's.")
    elif number.kind.none:
        end = format_lazy(_("Empty is {none}."), none=number.kind.none)
    example = _("{help} For example “{example}”. {end}")
    text = format_lazy(example, help=number.help, example=number.example, end=end)
    return None, text


def _characters(kind: Kind) -> int:
    return max(len(UNLIMITED), len(str(kind.most))) if isinstance(kind, Count) else TEXT_CHARACTERS


def _expected(holder: str, kind: Any) -> Any:
    """Return the valid values of a field, for people."""
    if isinstance(kind, Starts):
        if holder == OVERRIDE:
            return _("Expected a rate such as “100/m”, “unlimited”, or nothing (unchanged).")
        return _("Expected a rate such as “100/m” or “100/PT1M”, or nothing.")
    if isinstance(kind, Share):
        return format_lazy(_("Expected a number above 0, up to {most}."), most=f"{kind.most:,.0f}")
    least = f"{kind.least} ({kind.zero})" if kind.zero else kind.least
    also = _("or nothing (see the help text)")
    if holder == OVERRIDE:
        also = _("“unlimited”, or nothing (unchanged)")
    text = _("Expected a whole number from {least} to {most}, {also}.")
    return format_lazy(text, least=least, most=f"{kind.most:,}", also=also)


def _condition(holder: str, word: str, kind: Any) -> Q:
    """Return the condition of a number in the database."""
    if isinstance(kind, Starts):
        words = ("", UNLIMITED) if holder == OVERRIDE else ("",)
        is_rate = Q(**{f"{word}__contains": "/"})
        return Q(**{f"{word}__in": words}) | (is_rate & _is_short(word, TEXT_CHARACTERS))
    if isinstance(kind, Count):
        if holder != OVERRIDE:
            return Q(**{word: None}) | Q(**{f"{word}__range": (kind.least, kind.most)})
        is_number = has_only(word, "0123456789") & _is_short(word, len(str(kind.most)) - 1)
        if kind.least:
            is_number &= ~has_only(word, "0")
        return Q(**{f"{word}__in": ("", UNLIMITED, str(kind.most))}) | is_number
    if holder == OVERRIDE:
        return has_only(word, "0123456789.e+-") & _is_short(word, TEXT_CHARACTERS)
    in_bounds = Q(**{f"{word}__gt": 0, f"{word}__lte": kind.most})
    return Q(**{word: None}) | in_bounds if holder == TENANT else in_bounds


def _is_short(field: str, most_bytes: int) -> Q:
    return Q(LessThanOrEqual(OctetLength(field), most_bytes))
