"""The answers of the commands with ``--json``: each has a type, from which its JSON Schema comes.

The function of such a command returns ``Shown[TYPE]``. mypy compares that with what it returns, and
``schema`` prints the schema of the type. So there is no other list of answers.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
from pydantic import TypeAdapter

from celery_fairness.control.key.views import KeyFacts, Pagination
from celery_fairness.util.json_schema import schema_of
from celery_fairness.util.value import Value

Answer = TypeVar("Answer")
#: The value, its text, and the exit code.
Shown = tuple[Answer, list[str], int]


class KeyPage(Value):
    """A page of keys."""

    items: tuple[KeyFacts, ...]
    pagination: Pagination


class ClearedOverride(Value):
    """Whether a key had an override, which has ended."""

    key: str
    cleared: bool


class ClearedQueueLimit(Value):
    """Whether a person had set the limit of a queue, which has ended."""

    queue: str
    cleared: bool


class DeletedLibrary(Value):
    """The name of a function library that was deleted."""

    deleted: str


class Verb(click.Command):
    """A command with ``--json``."""

    #: Returns the value, its text, and the exit code.
    ask: Callable[..., Shown[Any]]

    @functools.cached_property
    def kind(self) -> Any:
        """The type of its answer. A command that goes on prints a line of JSON for each value."""
        answer = get_args(get_type_hints(self.ask)["return"])[0]
        kinds = get_args(answer) if isinstance(answer, UnionType) else (answer,)
        lines = (get_args(each)[0] if get_origin(each) is Iterator else each for each in kinds)
        return functools.reduce(operator.or_, lines)

    def plain(self, value: Any) -> Any:
        """Return an answer as JSON."""
        return TypeAdapter(self.kind).dump_python(value, mode="json")

    def schema(self, name: str) -> dict[str, Any]:
        """Return the JSON Schema of its answers."""
        return schema_of(self.kind, f"celery fairness {name} --json")


def verbs(group: click.Group, *path: str) -> Iterator[tuple[str, Verb]]:
    """Yield each command with ``--json`` by its name, such as ``limit show``."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, *path, name)
        elif isinstance(command, Verb):
            yield " ".join((*path, name)), command
