"""Key templates: how the key of a limit is made from a task.

A template is literal text with the fields ``{tenant}``, ``{tier}``, ``{task}``, ``{queue}`` and
``{args.NAME}``, such as ``customer:{args.order.customer_id}``. It is checked once, when it is
declared; a template without fields is a key as it stands (Open Job Spec, 6.2 and 7.1).

Invariant: two tasks whose values differ in any field never get one key of one template. Between
two fields stands one of ``.``, ``:`` and ``-``, and a value that has such a separator in itself is
written as a hash, so what stands between two separators is always one whole value.

Weakness: two *different* templates may make one key, as the text ``a:1`` is made by ``a:{task}``
and by ``{task}:1``. That is how limits share a count where it is wanted; begin templates with
different words where it is not. None, an absent argument and empty text are one value: missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from celery_fairness.config.tenants import Reserved, key_hash, key_part
from celery_fairness.errors import KeyInvalid, KeyMissing, PolicyInvalid, got, suggestion

Missing = Literal["error", "empty"]

#: Longest key.
KEY_CHARACTERS = 255
#: What a key is made of, as its error says it.
KEY_EXPECTED = "letters, digits, '.', '_', ':' and '-' (ASCII), beginning with a letter or a digit"

_FIELDS = ("tenant", "tier", "task", "queue")
_ARGUMENT = "args."
_FIELD = re.compile(r"\{([^{}]*)\}")
_LITERAL = re.compile(r"[a-zA-Z0-9._:-]*")
_SEPARATORS = frozenset(".:-")
#: What may stand in a key and not begin it.
_NO_BEGINNING = frozenset("._:-")


def _no_arguments(path: str) -> Any:
    raise LookupError(f"no arguments to read {path!r} from")


@dataclass(frozen=True, slots=True)
class KeyValues:
    """What one task gives to the fields of key templates.

    Attributes:
        task: The task's name.
        queue: The queue that it goes to; None where that is not known.
        tenant: None is a system task.
        tier: The tenant's tier; None where it has none.
        argument: Returns the argument at a path such as ``order.customer_id``, None where there is
            none (:class:`~celery_fairness.message.task_options.KeyArguments`).
    """

    task: str
    queue: str | None = None
    tenant: str | None = None
    tier: str | None = None
    argument: Callable[[str], Any] = _no_arguments


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key with fields, or a key as it stands.

    Attributes:
        text: The template.
        missing: What a field without a value is: ``error``, or ``empty``: no text, so that all
            tasks without one share a key.
        fields: What stands in braces, in its order.
        arguments: The paths behind ``args.``, in their order.
        private: Whether the key is made from the tenant.

    Raises:
        PolicyInvalid: With one problem for everything that is wrong.
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
        # Plain text, also where an enum or another subclass of str was given.
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
        """Whether it is a key as it stands, without fields."""
        return not self.fields

    def resolve(self, values: KeyValues) -> tuple[str, bool]:
        """Return the key of one task, and whether it is made from its tenant.

        A value outside the key pattern, longer than 120 characters, beginning with ``h_`` or with
        a separator of this template in it is written as ``h_`` and 32 hex digits of its SHA-256;
        so is a queue with a colon, and a whole key of more than 255 characters.

        Raises:
            KeyMissing: A field has no value and ``missing`` is ``error``.
            KeyInvalid: A value is no str, int or UUID (bool is neither), is no valid text, or
                could not be read.
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
            # As a tier's key has it; no value from outside is written with "_" or "h_n" in front.
            return f"h{value}" if first else value
        if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
            problem = f"expected str, int or UUID, got: {type(value).__name__}"
            raise KeyInvalid(problem, values.task, self.text, name)
        try:
            text = str.__str__(value) if isinstance(value, str) else str(value)
            # A queue is written as in the key of its own limit.
            is_part = self._apart.isdisjoint(text) and not (name == "queue" and ":" in text)
            return key_part(text) if is_part else key_hash(text)
        except UnicodeEncodeError:
            problem = "expected text that is valid UTF-8, got: lone surrogates"
        except ValueError:
            problem = "expected a whole number of at most 4300 digits, got: more"
        raise KeyInvalid(problem, values.task, self.text, name)

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
    """Yield what is wrong with a template, one sentence each."""
    if missing not in ("error", "empty"):
        yield f"missing: expected 'error' or 'empty', got: {got(missing)}"
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
        # kwargs.order, arg.order and order are all meant as an argument.
        path = ".".join(steps) if steps and suggestion(first, ("args", "kwargs")) else name
        hint = f", did you mean 'args.{path}'?"
    yield (
        "key: expected the fields {tenant}, {tier}, {task}, {queue} or {args.NAME}, "
        f"got: {got(name)}{hint}"
    )
