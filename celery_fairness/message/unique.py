"""The unique key of a message: of all accepted tasks with one key, at most one has not ended.

The header ``fairness`` carries it, so a producer in any language can give one. Only ``fairredis``
acts by it (ADR 23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_fairness.config.fields import number, one_of
from celery_fairness.config.key_templates import KEY_EXPECTED
from celery_fairness.config.tenants import KEY_CHARACTERS, KEY_PATTERN
from celery_fairness.errors import HeaderInvalid, got
from celery_fairness.util.durations import milliseconds

#: The field of the header.
FIELD = "unique"
#: What a duplicate does.
DROP, REPLACE, EXISTING = "drop", "replace", "existing"
ON_DUPLICATE = one_of(DROP, REPLACE, EXISTING)
#: Longest debounce: a year.
MAX_SECONDS = 366 * 86_400
SECONDS = number("a number of seconds", None, MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class Unique:
    """The unique key of one task.

    Attributes:
        key: The key. It has the form of a limit's key, and is no key of a limit.
        on_duplicate: ``drop``: a new task ends at once, with the error ``DuplicateTask``.
            ``replace``: a waiting task ends with this error, and the new one waits. A running task
            continues. ``existing``: nothing is put, and the producer gets the task that exists.
        at_most_seconds: With ``replace``, the time from the first put after which no further put
            delays the task. 0 is no such time.
    """

    key: str
    on_duplicate: str = DROP
    at_most_seconds: float = 0

    def to_wire(self) -> dict[str, Any]:
        """Return the field of the header as a message carries it."""
        wire: dict[str, Any] = {"key": self.key, "on_duplicate": self.on_duplicate}
        return {**wire, "at_most_seconds": self.at_most_seconds} if self.at_most_seconds else wire

    @property
    def text(self) -> str:
        """The word of a put (``store/lua/unique.lua``)."""
        return f"{self.on_duplicate[0]}|{milliseconds(self.at_most_seconds)}|{self.key}"


def parse_unique(value: Any) -> Unique:
    """Read the field ``unique`` of a header.

    Raises:
        HeaderInvalid: It is no object, or one of its fields is invalid.
    """
    if not isinstance(value, Mapping):
        raise HeaderInvalid(f"unique: expected an object, got: {got(value)}")
    key: Any = value.get("key")
    seconds = value.get("at_most_seconds", 0)
    on_duplicate = value.get("on_duplicate", DROP)
    problems = ON_DUPLICATE.problems("unique.on_duplicate", on_duplicate)
    if not (isinstance(key, str) and KEY_PATTERN.fullmatch(key) and len(key) <= KEY_CHARACTERS):
        problems.append(
            f"unique.key: expected up to {KEY_CHARACTERS} {KEY_EXPECTED}, got: {got(key)}"
        )
    if seconds != 0 or isinstance(seconds, bool):
        problems += SECONDS.problems("unique.at_most_seconds", seconds)
    if problems:
        raise HeaderInvalid("; ".join(problems))
    return Unique(key, on_duplicate, seconds)


def readable_unique(header: Any) -> Unique | None:
    """Return the unique key of an invalid header; None if it has no valid one."""
    try:
        return parse_unique(header[FIELD])
    except (HeaderInvalid, TypeError, KeyError):
        return None
