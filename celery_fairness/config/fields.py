"""Things that the settings say by name, each as a mapping of its fields: queues, services.

They are read whole: what is wrong with one hides neither the others nor what else is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from celery_fairness.errors import ProblemsError, got, suggestion

Read = TypeVar("Read")


def read_each(
    given: Mapping[Any, Any],
    name_problems: Callable[[Any], Iterable[str]],
    read: Callable[[Any], Read],
) -> tuple[dict[str, Read], list[str]]:
    """Return what is said by name, and what is wrong, one sentence each; what is wrong is left out.

    Args:
        given: By name, what is said of it.
        name_problems: Returns what is wrong with a name.
        read: Reads what is said of one, or raises ProblemsError.
    """
    found: dict[str, Read] = {}
    problems: list[str] = []
    for name, said in given.items():
        wrong = list(name_problems(name))
        problems += wrong
        if wrong:
            continue
        try:
            found[name] = read(said)
        except ProblemsError as error:
            problems += (f"{name}: {problem}" for problem in error.problems)
    return found, problems


def read_fields(given: Any, kind: type) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that a mapping or a ``kind`` says, and a sentence for all else.

    Args:
        given: What somebody said.
        kind: A dataclass with these fields.
    """
    known = [each.name for each in fields(kind)]
    if isinstance(given, kind):
        return {name: getattr(given, name) for name in known}, []
    if not isinstance(given, Mapping):
        return {}, [f"expected a mapping of fields, got: {got(given)}"]
    said = {name: given[name] for name in known if name in given}
    return said, unknown_problems(f"expected one of {', '.join(known)}", given, known)


def unknown_problems(expected: str, names: Iterable[Any], known: Collection[str]) -> list[str]:
    """Return one problem for each of ``names`` that is not known."""
    return [
        f"{expected}, got: {got(each)}{suggestion(each, known)}"
        for each in names
        if each not in known
    ]
