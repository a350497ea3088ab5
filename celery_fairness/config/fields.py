"""Checks fields by rules.

A rule is the valid values of a field, and their description. It stands in a table, or in the type
of a field of a :class:`Section`. All problems are collected: an invalid entry hides neither other
entries nor its other problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import CoreSchema, core_schema

from celery_fairness.errors import ProblemsError, SettingsError, got, suggestion

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """The valid values of a field.

    Attributes:
        expected: Their description in an error.
        accepts: Whether a value is one of them.
        suggests: An error suggests the most similar of these.
    """

    expected: str
    accepts: Callable[[Any], bool]
    suggests: tuple[str, ...] = ()

    def problems(self, name: str, value: Any) -> list[str]:
        """Return the problem of the field ``name`` as one sentence; empty if it is valid."""
        return [] if self.accepts(value) else [self.problem(name, value)]

    def read(self, name: str, value: Any) -> Any:
        """Return the value of the field or argument ``name``.

        Raises:
            ProblemsError: It is invalid.
        """
        if not self.accepts(value):
            raise ProblemsError(self.problem(name, value))
        return value

    def problem(self, name: str, value: Any) -> str:
        """Return the error of an invalid value."""
        hint = suggestion(value, self.suggests)
        return f"{name}: expected {self.expected}, got: {got(value)}{hint}"

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Make pydantic check a field whose type is annotated with the rule."""
        check = partial(self.read, "")
        return core_schema.no_info_before_validator_function(check, handler(source))


def whole(least: int, most: int, *, zero: str = "", none: str = "") -> Rule:
    """Return the rule of a whole number; ``zero`` and ``none`` are what 0 and None mean.

    Without ``none``, None is invalid.
    """
    lowest = f"{least} ({zero})" if zero else str(least)
    also = f", or None ({none})" if none else ""

    def accepts(value: Any) -> bool:
        return (value is None and bool(none)) or (type(value) is int and least <= value <= most)

    return Rule(f"a whole number from {lowest} to {most}{also}", accepts)


def one_of(*choices: str) -> Rule:
    """Return the rule of a choice."""
    return Rule(either(choices), lambda value: value in choices)


def text_of(pattern: str, expected: str) -> Rule:
    """Return the rule of text that matches a pattern."""
    whole_text = re.compile(pattern)
    return Rule(
        expected, lambda value: isinstance(value, str) and bool(whole_text.fullmatch(value))
    )


def number(what: str, least: float | None, most: float) -> Rule:
    """Return the rule of a number, described as ``what``; without ``least`` it is above 0."""
    if least is None:
        expected = f"{what} above 0, up to {most:.0f}"
        return Rule(expected, lambda value: type(value) in (int, float) and 0 < value <= most)
    expected = f"{what} from {least} to {most:.0f}"
    return Rule(expected, lambda value: type(value) in (int, float) and least <= value <= most)


def optional(rule: Rule) -> Rule:
    """Return a rule that also accepts None, which means that the field is not set."""
    return Rule(rule.expected, lambda value: value is None or rule.accepts(value))


TRUTH = Rule("true or false", lambda value: isinstance(value, bool))


def either(values: Sequence[Any]) -> str:
    """Return a choice as text: ``'wait', 'reschedule' or 'drop'``."""
    *others, last = map(repr, values)
    return f"{', '.join(others)} or {last}"


def problems_of(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[str]:
    """Return the problems of all fields that are present."""
    return [
        rule.problem(name, values[name])
        for name, rule in rules.items()
        if name in values and not rule.accepts(values[name])
    ]


def unknown_problems(
    expected: str,
    names: Iterable[Any],
    known: Collection[str],
    meant: Mapping[str, str] | None = None,
) -> list[str]:
    """Return one problem for each of ``names`` that is not known.

    Args:
        expected: The beginning of each problem.
        names: The names that somebody wrote.
        known: The valid names.
        meant: By a name that is valid elsewhere, the valid name for the same thing.
    """
    return [
        f"{expected}, got: {got(each)}{suggestion((meant or {}).get(each, each), known)}"
        for each in names
        if each not in known
    ]


def collect(problems: list[str], make: Callable[..., T], *args: Any) -> T | None:
    """Return ``make(*args)``. If it is invalid, add its problems to ``problems``, return None."""
    try:
        return make(*args)
    except ProblemsError as error:
        problems.extend(error.problems)
        return None


def expected_of(field: FieldInfo) -> str:
    """Return the valid values of a field as text: those of its rule, or of its Literal."""
    rules = [each.expected for each in field.metadata if isinstance(each, Rule)]
    return rules[0] if rules else either(get_args(field.annotation))


def texts_of(item: Any, model: type[BaseModel]) -> Iterator[str]:
    """Yield the problems of one item of a model's ValidationError, without the field's name.

    A problem of the whole value begins with a colon, and one of a part of it with a dot.
    """
    cause = item.get("ctx", {}).get("error")
    if cause is None:
        # It is none of the values of a Literal.
        expected = expected_of(model.model_fields[item["loc"][0]])
        yield f": expected {expected}, got: {got(item['input'])}"
        return
    _, *within = item["loc"] or ("",)
    # The problem of a name already contains the name.
    place = "" if within[-1:] == ["[key]"] else "".join(f": {each}" for each in within)
    for problem in cause.problems:
        yield place + (problem if problem[0] in ":." else f": {problem}")


class Section(BaseModel):
    """A mapping of fields in the settings, checked by the rules of the fields.

    Its one error has all problems: those of its fields, and unknown names with a suggestion.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    #: By a name that is valid in another mapping, the field for the same thing.
    meant: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise SettingsError(f"expected a mapping of fields, got: {got(given)}")
        known = list(cls.model_fields)
        expected = f"expected one of {', '.join(known)}"
        problems = unknown_problems(expected, given, known, cls.meant)
        try:
            made = read({name: given[name] for name in known if name in given})
        except ValidationError as error:
            for item in error.errors():
                problems += (f"{item['loc'][0]}{text}" for text in texts_of(item, cls))
        if problems:
            raise SettingsError(*problems)
        return made
