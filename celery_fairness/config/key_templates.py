"""Key templates: how the key of a limit is made from a task.

A template is literal text with the fields ``{tenant}``, ``{tier}``, ``{task}``, ``{queue}`` and
``{args.NAME}``, such as ``customer:{args.order.customer_id}``. It is checked when it is declared.
A template without fields is a key (Open Job Spec, 6.2 and 7.1).

Invariant: if the values of two tasks differ in any field, one template gives them different keys.
Between two fields is at least one of ``.``, ``:`` and ``-``. A value that contains such a separator
is written as a hash, so the text between two separators is always one whole value.

Weakness: two *different* templates may make one key. Both ``a:{task}`` and ``{task}:1`` can make
``a:1``. That is how limits can share a count. If they must not, begin the templates with different
words. None, an absent argument and empty text all count as missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from celery_fairness.config.fields import one_of
from celery_fairness.config.tenants import KEY_CHARACTERS, Reserved, id_text, key_hash, key_part
from celery_fairness.errors import (
    KeyInvalid,
    KeyMissing,
    PolicyInvalid,
    TenantInvalid,
    got,
    suggestion,
)

Missing = Literal["error", "empty"]

#: The characters of a key, as its error names them.
KEY_EXPECTED = "letters, digits, '.', '_', ':' and '-' (ASCII), beginning with a letter or a digit"

_MISSING = one_of("error", "empty")
_FIELDS = ("tenant", "tier", "task", "queue")
_ARGUMENT = "args."
_FIELD = re.compile(r"\{([^{}]*)\}")
_LITERAL = re.compile(r"[a-zA-Z0-9._:-]*")
_SEPARATORS = frozenset(".:-")
#: Characters of a key that must not be its first.
_NO_BEGINNING = frozenset("._:-")


def _no_arguments(path: str) -> Any:
    raise LookupError(f"no arguments to read {path!r} from")


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The values of one task for the fields of key templates.

    Attributes:
        task: The task's name.
        queue: The task's queue. None if it is not known.
        tenant: The task's tenant. None for a system task.
        tier: The tenant's tier. None if it has none.
        argument: Returns the argument at a path such as ``order.customer_id``, None if it is
            absent.
    """

    task: str
    queue: str | None = None
    tenant: str | None = None
    tier: str | None = None
    argument: Callable[[str], Any] = _no_arguments


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key with or without fields.

    Attributes:
        text: The template.
        missing: The action if a field has no value. ``error``: raise KeyMissing. ``empty``: write
            no text, so that all tasks without a value share a key.
        fields: The names in braces, in order.
        arguments: The paths after ``args.``, in order.
        private: Whether the key contains the tenant.

    Raises:
        PolicyInvalid: The template is invalid, with one problem for each part.
    """

    text: str
    missing: Missing = "error"
    fields: tuple[str, ...] = field(init=False, repr=False, compare=False)
    arguments: tuple[str, ...] = field(init=False, repr=False, compare=False)
    private: bool = field(init=False, repr=False, compare=False)
    _literals: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _apart: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if problems := list(_problems(self.text, self.missing)):
            raise PolicyInvalid(*problems)
        # Plain text, also if ``text`` is an enum or another subclass of str.
        text = str.__str__(self.text)
        literals, names = _split(text)
        parts = {
            "text": text,
            "arguments": tuple(n.removeprefix(_ARGUMENT) for n in names if n not in _FIELDS),
            "private": "tenant" in names,
            "_literals": literals,
            "fields": names,
            "_apart": _SEPARATORS.intersection("".join(literals[1:-1])),
        }
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    @property
    def static(self) -> bool:
        """Whether the template has no fields, so that it is a key."""
        return not self.fields

    def resolve(self, values: KeyValues) -> tuple[str, bool]:
        """Return the key of one task, and whether it contains the tenant.

        A value is written as a hash (``h_`` and 32 hex digits of its SHA-256) in these cases:

        - it does not match the key pattern, is longer than 120 characters, or begins with ``h_``
        - it contains a separator of this template
        - it is a queue whose name has a colon

        A key of more than 255 characters is written as a hash too.

        Raises:
            KeyMissing: A field has no value and ``missing`` is ``error``.
            KeyInvalid: A value is no str, int or UUID, is a bool, is no valid text, or could not
                be read.
        """
        if not self.fields:
            return self.text, False
        key = self._literals[0]
        for name, literal in zip(self.fields, self._literals[1:], strict=True):
            key += self._written(name, values, first=not key) + literal
        return (key if len(key) <= KEY_CHARACTERS else key_hash(key)), self.private

    def _written(self, name: str, values: KeyValues, first: bool) -> str:
        value = self._value(name, values)
        if value is None or (isinstance(value, str) and not value):
            if self.missing == "empty":
                return ""
            raise KeyMissing(values.task, self.text, name)
        if name == "tenant" and isinstance(value, Reserved):
            # As in a tier's key. No other value is written with "_" or "h_n" at its beginning.
            return f"h{value}" if first else value
        try:
            text = id_text(value)
        except TenantInvalid as error:
            raise KeyInvalid(error.problem, values.task, self.text, name) from None
        # A queue has the same form as in the key of its own limit.
        is_part = self._apart.isdisjoint(text) and not (name == "queue" and ":" in text)
        return key_part(text) if is_part else key_hash(text)

    def _value(self, name: str, values: KeyValues) -> Any:
        if name in _FIELDS:
            return getattr(values, name)
        try:
            return values.argument(name.removeprefix(_ARGUMENT))
        except Exception as error:
            problem = f"expected a value, got: {type(error).__name__}: {error}"
            raise KeyInvalid(problem[:500], values.task, self.text, name) from error


def _split(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the literals of a template, one more than its fields, and the names of its fields."""
    pieces = _FIELD.split(text)
    return tuple(pieces[::2]), tuple(pieces[1::2])


def _problems(text: Any, missing: Any) -> Iterator[str]:
    """Yield the problems of a template, one sentence each."""
    yield from _MISSING.problems("missing", missing)
    if text is None or (isinstance(text, str) and not text):
        yield (
            "key: expected a key (a limit without one belongs to its queue: give it there, in the "
            f"setting 'queues'), got: {got(text)}"
        )
    elif not isinstance(text, str):
        yield f"key: expected text, got: {got(text)}"
    else:
        yield from _text_problems(text)
        if missing == "empty" and text.startswith("{"):
            yield (
                "key: expected text before the first field where missing is 'empty', as a key "
                f"cannot begin with nothing, got: {got(text)}"
            )


def _text_problems(text: str) -> Iterator[str]:
    literals, names = _split(text)
    whole = "".join(literals)
    if "{" in whole or "}" in whole:
        yield f"key: expected a '}}' for every '{{', and no other, got: {got(text)}"
        return
    for name in names:
        yield from _name_problems(name)
    if not _LITERAL.fullmatch(whole) or literals[0][:1] in _NO_BEGINNING:
        yield f"key: expected {KEY_EXPECTED}, got: {got(text)}"
    if any(_SEPARATORS.isdisjoint(literal) for literal in literals[1:-1]):
        yield f"key: expected '.', ':' or '-' between two fields, got: {got(text)}"
    # A value has at least one character.
    shortest = len(whole) + len(names)
    if shortest > KEY_CHARACTERS:
        yield f"key: expected at most {KEY_CHARACTERS} characters, got: {shortest}"


def _name_problems(name: str) -> Iterator[str]:
    first, *steps = name.removeprefix(_ARGUMENT).split(".")
    readable = first.isidentifier() and all(steps)
    if name in _FIELDS or (name.startswith(_ARGUMENT) and readable):
        return
    if f"{name}.".startswith(_ARGUMENT):
        yield f"key: expected a parameter's name behind 'args.', got: {got(name)}"
        return
    hint = suggestion(name, _FIELDS)
    if not hint and readable:
        # In kwargs.order, arg.order and order the user means an argument.
        path = ".".join(steps) if steps and suggestion(first, ("args", "kwargs")) else name
        hint = f", did you mean 'args.{path}'?"
    yield (
        "key: expected the fields {tenant}, {tier}, {task}, {queue} or {args.NAME}, "
        f"got: {got(name)}{hint}"
    )
