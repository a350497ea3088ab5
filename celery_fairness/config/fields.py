"""Reads settings that are a mapping of names to fields: queues, services.

All problems are collected: an invalid entry hides neither other entries nor its other problems.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from celery_fairness.errors import ProblemsError, got, suggestion

Read = TypeVar("Read")


def read_each(
    given: Mapping[Any, Any],
    name_problems: Callable[[Any], Iterable[str]],
    read: Callable[[Any], Read],
) -> tuple[dict[str, Read], list[str]]:
    """Return the valid entries by name, and the problems of the others, one sentence each.

    Args:
        given: The entries by name.
        name_problems: Returns the problems of a name.
        read: Reads an entry, or raises ProblemsError.
    """
    found: dict[str, Read] = {}
    problems: list[str] = []
    for name, entry in given.items():
        wrong = list(name_problems(name))
        problems += wrong
        if wrong:
            continue
        try:
            found[name] = read(entry)
        except ProblemsError as error:
            problems += (f"{name}: {problem}" for problem in error.problems)
    return found, problems


def read_fields(given: Any, kind: type) -> tuple[dict[str, Any], list[str]]:
    """Return the known fields of an entry, and one problem for each other field.

    Args:
        given: The entry, a mapping or a ``kind``.
        kind: The dataclass that has the known fields.
    """
    known = [each.name for each in fields(kind)]
    if isinstance(given, kind):
        return {name: getattr(given, name) for name in known}, []
    if not isinstance(given, Mapping):
        return {}, [f"expected a mapping of fields, got: {got(given)}"]
    values = {name: given[name] for name in known if name in given}
    return values, unknown_problems(f"expected one of {', '.join(known)}", given, known)


def unknown_problems(expected: str, names: Iterable[Any], known: Collection[str]) -> list[str]:
    """Return one problem for each of ``names`` that is not known."""
    return [
        f"{expected}, got: {got(each)}{suggestion(each, known)}"
        for each in names
        if each not in known
    ]


def either(values: Sequence[Any]) -> str:
    """Return a choice as text: ``'wait', 'reschedule' or 'drop'``."""
    *others, last = map(repr, values)
    return f"{', '.join(others)} or {last}"
