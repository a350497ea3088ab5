"""Checks fields by rules, and reads settings that are a mapping of names to fields.

A rule is one line in a table: the valid values of a field, and their description. All problems are
collected: an invalid entry hides neither other entries nor its other problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

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

    def check(self, name: str, value: Any) -> None:
        """Raise ``ValueError`` if the argument ``name`` is invalid."""
        if not self.accepts(value):
            raise ValueError(self.problem(name, value))

    def problem(self, name: str, value: Any) -> str:
        """Return the error of an invalid value."""
        hint = suggestion(value, self.suggests)
        return f"{name}: expected {self.expected}, got: {got(value)}{hint}"


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


def unknown_problems(expected: str, names: Iterable[Any], known: Collection[str]) -> list[str]:
    """Return one problem for each of ``names`` that is not known."""
    return [
        f"{expected}, got: {got(each)}{suggestion(each, known)}"
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


def read_each(
    kind: str, name_rule: Rule, read: Callable[[Any], T], given: Mapping[Any, Any]
) -> dict[str, T]:
    """Read the entries of a setting by name.

    Args:
        kind: What the names name, for errors.
        name_rule: The valid names.
        read: Reads an entry, or raises ProblemsError.
        given: The entries by name.

    Raises:
        SettingsError: A name or an entry is invalid.
    """
    found: dict[str, T] = {}
    problems: list[str] = []
    for name, entry in given.items():
        if wrong := name_rule.problems(f"{kind} name", name):
            problems += wrong
            continue
        of_entry: list[str] = []
        value = collect(of_entry, read, entry)
        if value is not None:
            found[name] = value
        problems += (f"{name}: {problem}" for problem in of_entry)
    if problems:
        raise SettingsError(*problems)
    return found


def read_fields(
    given: Any, kind: type, rules: Mapping[str, Rule]
) -> tuple[dict[str, Any], list[str]]:
    """Return the known fields of an entry, and the problems of its fields.

    Args:
        given: The entry, a mapping or a ``kind``.
        kind: The dataclass that has the known fields.
        rules: The rules of its fields.
    """
    known = [each.name for each in fields(kind)]
    if isinstance(given, kind):
        return {name: getattr(given, name) for name in known}, []
    if not isinstance(given, Mapping):
        return {}, [f"expected a mapping of fields, got: {got(given)}"]
    values = {name: given[name] for name in known if name in given}
    unknown = unknown_problems(f"expected one of {', '.join(known)}", given, known)
    return values, unknown + problems_of(values, rules)
