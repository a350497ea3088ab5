"""Limits in addition to the tenants' tiers, and their text form.

A limit has a key, and all tasks with the key share its counts. The newest numbers that a task of
the key brought apply to all of them (``declared``), unless an operator has overridden them. A hold
stops a key independently of its limits (``stops``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from celery_fairness.config.numbers import (
    AMOUNTS_OF_TASKS,
    NUMBERS,
    placeholders,
    read_numbers,
    write_numbers,
)

#: Values of ``Limit.of``: a limit with its queue's numbers, and the limit of the whole queue.
OF_QUEUE, WHOLE = "q", "g"
#: The numbers that hold for several partitions together.
_OF_SHARED_KEYS = frozenset({"concurrency", "slots", "rate", "throttle", "units"})
OnLimit = Literal["wait", "reschedule", "drop"]
#: The actions for a task over a limit, the mildest first.
ACTIONS: tuple[OnLimit, ...] = ("wait", "reschedule", "drop")
#: The actions by their letter in a limit's text, and in answers of the library.
ACTION_BY_LETTER: Mapping[str, OnLimit] = {word[0]: word for word in ACTIONS}


@dataclass(frozen=True, slots=True, init=False)
class Limit:
    """One named constraint of a task.

    ``limit["rate"]`` is its number ``rate``, or None if it has none: a limit has the numbers of
    the table :data:`~celery_fairness.config.numbers.NUMBERS`, each in the merged form of its kind.

    Attributes:
        key: The key, which matches the pattern of the Open Job Spec, section 6.2.
        numbers: The numbers that it has, as pairs of name and value in the order of the table.
        on_limit: The action for a task over the limit.
        private: The key contains the tenant, so only this tenant's tasks have it.
        of: ``q``: the numbers are stored with the queue (``queues``) and not here. ``g``: this is
            the limit of the whole queue, which a task has only while it runs. "": any other limit.
    """

    key: str
    numbers: tuple[tuple[str, Any], ...]
    on_limit: OnLimit
    private: bool
    of: str

    def __init__(
        self,
        key: str,
        *,
        on_limit: OnLimit = "wait",
        private: bool = False,
        of: str = "",
        **numbers: Any,
    ) -> None:
        if unknown := numbers.keys() - NUMBERS.keys():
            raise TypeError(f"expected numbers of {', '.join(NUMBERS)}, got: {unknown.pop()}")
        has = ((name, numbers[name]) for name in NUMBERS if numbers.get(name) is not None)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "numbers", tuple(has))
        object.__setattr__(self, "on_limit", on_limit)
        object.__setattr__(self, "private", private)
        object.__setattr__(self, "of", of)

    def __getitem__(self, name: str) -> Any:
        return next((value for known, value in self.numbers if known == name), None)

    @property
    def spans_partitions(self) -> bool:
        """Whether it holds for several partitions together, by permits and lots (ADR 30, ADR 32).

        A task that must not wait would be dropped or put off in a partition that has none, although
        others have some. The key of a queue has the queue's numbers alone, and that of a tenant
        also counts tasks that need no permit.
        """
        if self.of == OF_QUEUE:
            return True
        if self.key.startswith(("queue:", "tenant:")):
            return False
        counted = _OF_SHARED_KEYS.issuperset(name for name, _ in self.numbers)
        return counted and self.on_limit == "wait" and not self.of

    @property
    def name(self) -> str:
        """The place where its tasks wait: key and kinds of numbers, with SIZE for each number."""
        return shape_of(f"{self.key}|{self._numbers}")

    @property
    def _numbers(self) -> str:
        return OF_QUEUE if self.of == OF_QUEUE else write_numbers(dict(self.numbers))

    @property
    def text(self) -> str:
        """The limit as text without spaces, commas and line ends: ``KEY|NUMBERS|FLAGS``."""
        flag = "p" if self.private else self.of.strip(OF_QUEUE)
        return f"{self.key}|{self._numbers}|{self.on_limit[0]}{flag}"


def key_with_amounts(limit: Limit) -> str:
    """Return the key of a limit, and behind it what one task takes: ``KEY*S3;U500``.

    A lease has its keys in this form. A task that takes more than the limit has takes all of it.
    """
    taken = {name: limit[name] for name in AMOUNTS_OF_TASKS if limit[name] is not None}
    if "slots" in taken and limit["concurrency"]:
        taken["slots"] = min(taken["slots"], limit["concurrency"])
    return f"{limit.key}*{write_numbers(taken)}" if taken else limit.key


def keys_of_lease(text: str) -> list[str]:
    """Return the keys of a lease without what its task takes."""
    return [key.partition("*")[0] for key in text.split(",")]


#: A limit's text or name: its key, its numbers, and its flags if it has any.
_LIMIT = re.compile(r"([^|,]*)\|([^|,]*)(\|[^,]*)?")


def write_limits(limits: Iterable[Limit]) -> str:
    """Return limits as one text; "" for none. Private limits come first."""
    return ",".join(map(_limit_text, limits))


@functools.lru_cache(maxsize=4096)
def _limit_text(limit: Limit) -> str:
    return limit.text


def read_limits(text: str) -> tuple[Limit, ...]:
    """Read what :func:`write_limits` wrote."""
    return tuple(map(_read_limit, text.split(","))) if text else ()


def _read_limit(text: str) -> Limit:
    key, numbers, flags = text.split("|")
    is_of_queue = numbers == OF_QUEUE
    return Limit(
        key,
        on_limit=ACTION_BY_LETTER[flags[0]],
        private=flags.endswith("p"),
        of=OF_QUEUE if is_of_queue else flags[1:].strip("p"),
        **({} if is_of_queue else read_numbers(numbers)),
    )


def shape_of(text: str) -> str:
    """Return the text of limits, or of a lane, with ``#`` in place of each number."""
    return _LIMIT.sub(_with_placeholders, text)


def _with_placeholders(found: re.Match[str]) -> str:
    key, numbers, flags = found.groups(default="")
    return f"{key}|{numbers if numbers == OF_QUEUE else placeholders(numbers)}{flags}"
