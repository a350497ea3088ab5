"""The numbers of limits. Each number is declared once, in :data:`NUMBERS`.

- A kind reads, compares, writes and shows a value. Counts, rates and shares are kinds.
- A number has a name, a kind, and the letter that stands for it in Redis.
- A holder has numbers: a tier, a tenant, a policy, a queue or an override. :data:`HOLDERS` lists
  the numbers of each holder, and the holder's own word for a number.

Settings, commands, HTTP, the admin, the tables of the documentation and the texts in Redis are
derived from these two tables (ADR 21). CONTRIBUTING lists what else a new number needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeVar

from pydantic import BaseModel, create_model

from celery_fairness.config.fields import Rule, collect, number, unknown_problems, whole
from celery_fairness.config.rates import MAX_RATE_LIMIT, Rate, Window
from celery_fairness.errors import PolicyInvalid, ProblemsError, got
from celery_fairness.util.durations import iso_duration, parse_count, seconds

T = TypeVar("T")

#: Largest concurrency.
MAX_CONCURRENCY = 1_000_000
#: Largest weight of a tier.
MAX_WEIGHT = 1_000_000.0
#: Largest ``max_waiting``.
MAX_WAITING = 1_000_000_000
#: The text of a person who wants no limit, and the text in Redis of a number that an operator took
#: away.
UNLIMITED, NO_LIMIT = "unlimited", "-"
#: The placeholder for the value of any number.
SIZE = "#"
#: The path of ``fairredis``, for a number that acts on it alone.
DISPATCH = "dispatch"
#: The beginning of the path of an argument.
ARGUMENT = "args."


class Kind(ABC):
    """How the values of a number are read, compared, written and shown.

    A value is what :meth:`read` returns; None is unlimited. A limit of a task has the value in the
    form of :meth:`merged`, because it may come from several policies.

    Attributes:
        name: Its name in the function library.
        rule: The valid values, for errors and for the tables of the documentation.
        typed: The valid texts of a person, for errors.
        none: The meaning of None, in a word. "" if a number of the kind always has a value.
        typed_none: What people type for None.
        default: The value of a number that is not given.
        answer: The type of a value in the form of JSON.
    """

    name: str
    rule: Rule
    typed: str
    none: str = ""
    typed_none: str = UNLIMITED
    default: Any = None
    answer: Any

    @abstractmethod
    def read(self, name: str, value: Any) -> Any:
        """Return a value that code or settings gave for the number ``name``.

        Raises:
            ProblemsError: It is invalid.
        """

    def read_ojs(self, name: str, value: Any) -> Any:
        """Return a value in the form of the Open Job Spec. Errors as for :meth:`read`."""
        return self.read(name, value)

    def to_ojs(self, value: Any) -> Any:
        """Return a value in the form of the Open Job Spec, which is also that of JSON."""
        return value

    @abstractmethod
    def read_typed(self, name: str, text: str) -> Any:
        """Return the value of a text that a person typed.

        Raises:
            ProblemsError: It is invalid.
        """

    def merged(self, values: Iterable[Any]) -> Any:
        """Return the strictest of values; None if there is none."""
        return min((each for each in values if each is not None), default=None)

    def join(self, merged: Iterable[Any]) -> Any:
        """Return the strictest of values in the form of :meth:`merged`."""
        return self.merged(merged)

    def write(self, merged: Any) -> str:
        """Return a value of a limit as the text in Redis."""
        return str(merged)

    def parse(self, text: str) -> Any:
        """Return the value of a limit that :meth:`write` wrote."""
        return int(text)

    def one(self, merged: Any) -> Any:
        """Return a value of a limit in the form of JSON. Of several windows, it is the first."""
        return merged

    def show(self, merged: Any) -> str:
        """Return a value of a limit as text for people."""
        return str(merged)

    def show_one(self, value: Any) -> str:
        """Return a value in the form of JSON as text for people."""
        return str(value)


class Count(Kind):
    """A whole number."""

    name, answer = "count", int | None

    def __init__(
        self,
        least: int,
        most: int,
        zero: str = "",
        none: str = UNLIMITED,
        typed_none: str = UNLIMITED,
    ) -> None:
        self.least, self.most, self.zero, self.none = least, most, zero, none
        self.typed_none = typed_none
        self.rule = whole(least, most, zero=zero, none=none)
        lowest = f"{least} ({zero})" if zero else str(least)
        self.typed = f"a whole number from {lowest} to {most}, or '{typed_none}'"

    def read(self, name: str, value: Any) -> Any:
        """See :class:`Kind`."""
        return self.rule.read(name, value)

    def read_typed(self, name: str, text: str) -> Any:
        """See :class:`Kind`."""
        if text.lower() == self.typed_none:
            return None
        found = parse_count(text, self.most)
        if found is not None and found >= self.least:
            return found
        raise ProblemsError(f"{name}: expected {self.typed}, got: {got(text)}")


class Share(Kind):
    """A number above 0, which always has a value."""

    name, answer, default = "share", float, 1.0

    def __init__(self, most: float) -> None:
        self.most = most
        self.rule = number("a number", None, most)
        self.typed = self.rule.expected

    def read(self, name: str, value: Any) -> Any:
        """See :class:`Kind`."""
        return self.rule.read(name, value)

    def read_typed(self, name: str, text: str) -> Any:
        """See :class:`Kind`."""
        try:
            return self.rule.read(name, float(text))
        except (ValueError, ProblemsError):
            raise ProblemsError(f"{name}: expected {self.typed}, got: {got(text)}") from None

    def write(self, merged: Any) -> str:
        """See :class:`Kind`."""
        return repr(merged)

    def parse(self, text: str) -> Any:
        """See :class:`Kind`."""
        return float(text)

    def show(self, merged: Any) -> str:
        """See :class:`Kind`."""
        return f"{merged:g}"


class Starts(Kind):
    """Starts in any window of a period. A limit has every window that no other implies."""

    rule = Rule(
        "LIMIT/PERIOD such as '100/m' or '100/PT1M', a mapping of limit and period, a Rate, or "
        "None (unlimited)",
        lambda value: value is None or _is_rate(value),
    )
    typed = f"a rate such as 100/m or 100/PT1M, or '{UNLIMITED}'"
    answer = dict[str, Any] | None
    name, none = "starts", "any number"

    def read(self, name: str, value: Any) -> Any:
        """See :class:`Kind`."""
        return None if value is None else Rate.parse(value, name)

    def read_typed(self, name: str, text: str) -> Any:
        """See :class:`Kind`."""
        return None if text == UNLIMITED else Rate.parse(text, name)

    def read_ojs(self, name: str, value: Any) -> Any:
        """See :class:`Kind`."""
        return None if value is None else Rate.from_ojs(value, name)

    def to_ojs(self, value: Any) -> Any:
        """See :class:`Kind`."""
        return None if value is None else value.to_ojs()

    def merged(self, values: Iterable[Any]) -> Any:
        """Return the windows of rates, the shortest first; None if there is no rate."""
        return self.join((each.window,) for each in values if each is not None)

    def join(self, merged: Iterable[Any]) -> Any:
        """See :class:`Kind`."""
        windows = (window for each in merged if each is not None for window in each)
        kept: list[Window] = []
        for starts, period_ms in sorted(windows, key=lambda rate: (-rate[1], rate[0])):
            # A window implies a shorter one that allows at least as many starts.
            if not kept or starts < kept[-1][0]:
                kept.append((starts, period_ms))
        return tuple(reversed(kept)) or None

    def write(self, merged: Any) -> str:
        """See :class:`Kind`."""
        return "+".join(f"{starts}/{period_ms}" for starts, period_ms in merged)

    def parse(self, text: str) -> Any:
        """See :class:`Kind`."""
        return tuple(_window(each) for each in text.split("+"))

    def one(self, merged: Any) -> Any:
        """See :class:`Kind`."""
        starts, period_ms = merged[0]
        return Rate(starts, seconds(period_ms)).to_ojs()

    def show_one(self, value: Any) -> str:
        """See :class:`Kind`."""
        return f"{value['limit']}/{value['period']}"

    def show(self, merged: Any) -> str:
        """See :class:`Kind`."""
        return ", ".join(f"{n}/{iso_duration(seconds(period_ms))}" for n, period_ms in merged)


class Spacing(Starts):
    """Starts in a period, evenly spaced. A limit has the widest spacing."""

    name = "spacing"

    def join(self, merged: Iterable[Any]) -> Any:
        """See :class:`Kind`."""
        windows = (window for each in merged if each is not None for window in each)
        # If two have the same spacing, take the smaller limit, so that the order has no effect.
        widest = max(windows, key=lambda each: (Fraction(each[1], each[0]), -each[0]), default=None)
        return None if widest is None else (widest,)


class Amount(Kind):
    """How much one task takes of a number: a whole number, or the argument that has it.

    A limit has the number itself, and none if it is 1.

    Attributes:
        amount: The valid numbers.
    """

    name, none = "amount", "1"
    answer = int | None

    def __init__(self, most: int) -> None:
        self.amount = whole(1, most)
        self.typed = f"{self.amount.expected}, or an argument such as 'args.size'"
        self.rule = Rule(
            f"{self.typed}, or None ({self.none})",
            lambda value: value is None or is_argument(value) or self.amount.accepts(value),
        )

    def read(self, name: str, value: Any) -> Any:
        """See :class:`Kind`."""
        return self.rule.read(name, value)

    def read_typed(self, name: str, text: str) -> Any:
        """See :class:`Kind`."""
        return self.rule.read(name, int(text) if text.isascii() and text.isdigit() else text)

    def merged(self, values: Iterable[Any]) -> Any:
        """Return the largest of values, because a task takes as much of a key as its limits say."""
        largest = max((each for each in values if type(each) is int), default=1)
        return largest if largest > 1 else None


def is_argument(value: Any) -> bool:
    """Return whether an amount is the path of an argument, such as ``args.size``."""
    if not isinstance(value, str) or not value.startswith(ARGUMENT):
        return False
    first, *steps = value.removeprefix(ARGUMENT).split(".")
    return first.isidentifier() and all(steps)


def _is_rate(value: Any) -> bool:
    try:
        Rate.parse(value)
    except PolicyInvalid:
        return False
    return True


def _window(text: str) -> Window:
    starts, _, period_ms = text.partition("/")
    return int(starts), int(period_ms)


@dataclass(frozen=True, slots=True)
class Number:
    """One number.

    Attributes:
        name: Its name in Python, JSON and answers of the library.
        letter: A capital letter, which stands for it in the texts in Redis.
        kind: Its kind.
        help: What it means, as a sentence. None, 0 and the form of a value are the kind's.
        example: A text that a person may type.
        phrase: A value of it in the text of a limit, such as ``3 at once``.
        taken_of: The number of the key of which one task takes so much. "" if it is a number of
            the key itself.
        acts_on: The path on which it acts, ``dispatch``. "" is both.
    """

    name: str
    letter: str
    kind: Kind
    help: str
    example: str
    phrase: str = "{}"
    taken_of: str = ""
    acts_on: str = ""


COUNT: Final = Count(0, MAX_CONCURRENCY, zero="pause")
#: The cost of a task, which is no number of a limit.
COST: Final = Share(MAX_WEIGHT).rule
WAITING: Final = Count(1, MAX_WAITING, none="any number")
BURST: Final = Count(1, MAX_CONCURRENCY, none="no burst", typed_none="none")

#: Every number. Texts in Redis have them in this order.
NUMBERS: Final = {
    each.name: each
    for each in (
        Number("concurrency", "C", COUNT, "Tasks at once.", "20", "{} at once"),
        Number("burst", "B", BURST, "Tasks at once while a claim finds nothing else.", "10",
               "{} while a claim finds nothing else", acts_on=DISPATCH),
        Number("local_limit", "L", COUNT, "Tasks at once in one process.", "4",
               "{} in one process"),
        Number("rate", "R", Starts(), "Starts in any window of a period.", "100/m"),
        Number("throttle", "T", Spacing(), "Starts in a period, evenly spaced.", "60/m",
               "{} evenly"),
        Number("weight", "W", Share(MAX_WEIGHT), "Share among waiting tenants.", "2"),
        Number("max_waiting", "M", WAITING, "Most waiting tasks of one tenant on fairredis.",
               "10000", acts_on=DISPATCH),
        Number("slots", "S", Amount(MAX_CONCURRENCY), "What one task counts at the concurrency.",
               "8", "takes {} slots", taken_of="concurrency"),
        Number("units", "U", Amount(MAX_RATE_LIMIT), "What one task's start counts at the rate.",
               "500", "takes {}", taken_of="rate"),
    )
}  # fmt: skip

#: The field of a queue with the numbers of each partition.
PARTITION: Final = "partition"

#: The numbers of each holder: the holder's word for each, and the name of the number.
HOLDERS: Final[Mapping[str, Mapping[str, str]]] = {
    "tier": {
        "concurrency": "concurrency",
        "burst": "burst",
        "rate": "rate",
        "throttle": "throttle",
        "weight": "weight",
        "max_waiting": "max_waiting",
    },
    # These numbers decide whether a task of the tenant starts.
    "tenant": {
        "concurrency": "concurrency",
        "burst": "burst",
        "rate": "rate",
        "throttle": "throttle",
    },
    "policy": {
        "concurrency": "concurrency",
        "rate": "rate",
        "throttle": "throttle",
        "slots": "slots",
        "units": "units",
    },
    "queue": {
        "global_limit": "concurrency",
        "local_limit": "local_limit",
        "rate": "rate",
        "throttle": "throttle",
    },
    "partition": {
        "concurrency": "concurrency",
        "local_limit": "local_limit",
        "rate": "rate",
        "throttle": "throttle",
    },
    "override": {"concurrency": "concurrency", "rate": "rate", "throttle": "throttle"},
}


#: The numbers of a tenant that has none of its own.
NO_NUMBERS: Final[Mapping[str, Any]] = {}


def numbers_of(holder: str) -> Mapping[str, Number]:
    """Return the numbers of a holder by the holder's word for each."""
    return {word: NUMBERS[name] for word, name in HOLDERS[holder].items()}


def words_of_others(holder: str) -> Mapping[str, str]:
    """Return the words of other holders for the numbers of a holder, each with its own word."""
    own = {name: word for word, name in HOLDERS[holder].items()}
    return {
        word: own[name]
        for other in HOLDERS.values()
        for word, name in other.items()
        if name in own and word not in HOLDERS[holder]
    }


def columns_of(holder: str) -> Mapping[str, Number]:
    """Return the numbers of a holder as :func:`numbers_of`, by words for options and columns.

    A queue and its partitions have theirs side by side, so those of a partition have a prefix:
    ``partition_rate``.
    """
    prefix = f"{PARTITION}_" if holder == PARTITION else ""
    return {prefix + word: number for word, number in numbers_of(holder).items()}


def with_partition(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return options or columns of a queue, those of its partitions in a field ``partition``.

    The field is absent if none of them is given.
    """
    words = dict(zip(columns_of(PARTITION), numbers_of(PARTITION), strict=True))
    given = {name: value for name, value in columns.items() if name not in words}
    part = {words[name]: value for name, value in columns.items() if name in words}
    return {**given, PARTITION: part} if part else given


#: The numbers in Redis by their letter.
BY_LETTER: Final = {each.letter: each for each in NUMBERS.values()}


def write_numbers(values: Mapping[str, Any]) -> str:
    """Return numbers by name as the text in Redis; None is a number that a person took away.

    ``C3;R100/60000+5/1000``: a letter, then the value. An absent number is not in the text.
    """
    return ";".join(
        each.letter + (NO_LIMIT if values[name] is None else each.kind.write(values[name]))
        for name, each in NUMBERS.items()
        if name in values
    )


def read_numbers(text: str) -> dict[str, Any]:
    """Read what :func:`write_numbers` wrote, also a newer version of it.

    A number that this version does not have is left out, as the function library leaves it out.

    Raises:
        ValueError: A value has another form.
    """
    found = {}
    for part in text.split(";") if text else ():
        each, value = BY_LETTER.get(part[0]), part[1:]
        if each is not None:
            found[each.name] = None if value == NO_LIMIT else each.kind.parse(value)
    return found


def placeholders(text: str) -> str:
    """Return a text of numbers with ``#`` in place of each value.

    A concurrency of 0 stays, because it stops only the tasks that have it, not all of the key.
    What one task takes is left out, because it is no number of the key.
    """
    parts = (
        part if part == STOPPED else part[0] + SIZE
        for part in (text.split(";") if text else ())
        if part[0] not in AMOUNTS
    )
    return ";".join(parts)


def read_given(holder: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers that code gave, by name and in the form of a limit; None is unlimited.

    Args:
        holder: What has them.
        given: The numbers, by the holder's words for them.

    Raises:
        PolicyInvalid: A number is invalid or its name is unknown, with one problem for each.
    """
    known = numbers_of(holder)
    expected = f"expected any of {', '.join(known)}"
    problems = unknown_problems(expected, given, known, words_of_others(holder))
    read = {
        each.name: each.kind.merged([collect(problems, each.kind.read, word, given[word])])
        for word, each in known.items()
        if word in given
    }
    if problems:
        raise PolicyInvalid(*problems)
    return read


def shown_numbers(holder: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers by name in the form of JSON, by the holder's words for them.

    A number that is not in ``values`` is absent, and None is unlimited.
    """
    return {
        word: None if values[each.name] is None else each.kind.one(values[each.name])
        for word, each in numbers_of(holder).items()
        if each.name in values
    }


def values_of(holder: str, base: type[BaseModel], absent: Any = None) -> Any:
    """Return a model of the numbers of a holder in the form of JSON, by its words.

    Classes inherit from it, so that their fields follow from the table.

    Args:
        holder: What has them.
        base: The base of the model.
        absent: The value of a number that is not given; ``...`` makes every number required.
    """
    fields: dict[str, Any] = {
        word: (each.kind.answer, absent) for word, each in numbers_of(holder).items()
    }
    return create_model(f"NumbersOf{holder.title()}", __base__=base, **fields)


def has_numbers_of(holder: str) -> Callable[[type[T]], type[T]]:
    """Give a class a field for each number of a holder that it does not declare itself.

    It goes below ``@dataclass``. So a class declares the numbers for editors and type checkers,
    and a number that it does not declare is a field nevertheless.
    """

    def add(made: type[T]) -> type[T]:
        for word, each in numbers_of(holder).items():
            if word not in made.__annotations__:
                made.__annotations__[word] = "Any"
                setattr(made, word, each.kind.default)
        return made

    return add


def numbers_text(values: Mapping[str, Any]) -> str:
    """Return the numbers of a limit by name as text for people; "" if it has none."""
    return ", ".join(
        each.phrase.format(each.kind.show(values[name]))
        for name, each in NUMBERS.items()
        if values.get(name) is not None
    )


#: The valid numbers of what one task takes.
AMOUNTS_OF_TASKS: Final = {
    name: each.kind.amount for name, each in NUMBERS.items() if isinstance(each.kind, Amount)
}
#: The letters of what one task takes.
AMOUNTS: Final = "".join(each.letter for each in NUMBERS.values() if each.taken_of)
#: The text of a concurrency of 0.
STOPPED: Final = NUMBERS["concurrency"].letter + "0"
