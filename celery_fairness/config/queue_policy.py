"""What the settings say of queues: limits, how these are partitioned, and how much may wait.

A queue whose name has a colon stands in keys as a hash, so that a key says what is the queue and
what the partition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from celery_fairness.config.fields import read_each, read_fields
from celery_fairness.config.policy import OnLimit, RateLimitPolicy
from celery_fairness.config.queue_limits import PREFIX, QueueNumbers
from celery_fairness.config.rates import Rate
from celery_fairness.config.tenants import key_hash, key_part
from celery_fairness.config.tiers import waiting_problems
from celery_fairness.errors import PolicyInvalid, got

#: Longest key, as of every limit.
_KEY_CHARACTERS = 255
#: Most arguments that a partition is made from.
MAX_ARGUMENTS = 16
#: What a person says of a queue's numbers.
NUMBERS = ("global_limit", "local_limit", "rate", "throttle", "on_limit")
#: By the name of a policy's field the name of a queue's.
_NAMES = {"concurrency": "global_limit", "key": "queue"}
#: What RabbitMQ's native delayed delivery leaves before the routing key of a delayed message.
_DELAY_PREFIX = re.compile(r"^(?:[01]\.){28}")


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What the settings say of one queue.

    Attributes:
        global_limit: Tasks at once over all processes, 0 to 1,000,000; None is unlimited, 0 pauses.
        local_limit: Tasks at once in one process, likewise; the smaller of the two holds.
        rate: Starts in any window of a period.
        throttle: Starts in a period, evenly spaced.
        on_limit: What becomes of a task over it: ``wait``, ``reschedule`` or ``drop``.
        by_args: Each value of these arguments has the numbers for itself; empty: all arguments;
            None: not by arguments.
        by_kind: Each kind of task has the numbers for itself.
        missing: What an argument that a task has not is: ``empty`` (such tasks are one partition)
            or ``error`` (likewise, and the task is charged to ``_invalid``).
        max_waiting: Tasks that may wait in it, 1 to 1,000,000,000; None is any number.
    """

    global_limit: int | None = None
    local_limit: int | None = None
    rate: Rate | None = None
    throttle: Rate | None = None
    on_limit: OnLimit = "wait"
    by_args: tuple[str, ...] | None = None
    by_kind: bool = False
    missing: Literal["empty", "error"] = "empty"
    max_waiting: int | None = None

    @property
    def partitioned(self) -> bool:
        """Whether its numbers are those of each partition."""
        return self.by_args is not None or self.by_kind

    @property
    def numbers(self) -> QueueNumbers:
        """Its numbers, as they are scheduled."""
        return QueueNumbers(
            self.global_limit,
            (_window(self.rate),) if self.rate else (),
            _window(self.throttle) if self.throttle else None,
            self.on_limit,
            self.local_limit,
        )

    @property
    def limits(self) -> bool:
        """Whether it says anything that a claim must know."""
        return self.partitioned or self.numbers != QueueNumbers()


def _window(rate: Rate) -> tuple[int, int]:
    return rate.limit, int(rate.period_ms)


def queue_of_route(routing_key: str) -> str:
    """Return the queue of a message by its routing key, whether the broker delayed it or not."""
    return _DELAY_PREFIX.sub("", routing_key)


def queue_key(queue: str) -> str:
    """Return the key of a queue's limit: of it as a whole."""
    return PREFIX + _part(queue)


def declared_numbers(queues: Mapping[str, QueuePolicy], key: str) -> QueueNumbers | None:
    """Return the numbers that are declared for the key of a queue as a whole."""
    for queue, policy in queues.items():
        if policy.limits and not policy.partitioned and queue_key(queue) == key:
            return policy.numbers
    return None


def partition_key(queue: str, values: Sequence[Any]) -> str:
    """Return the key of one partition of a queue.

    Args:
        queue: Which.
        values: What makes the partition; None is no value, and where all are that it is the
            partition of tasks that say none, however many there are. Others than text and whole
            numbers are written as a hash of their JSON.
    """
    whole = queue_key(queue)
    texts = ["" if value is None else _part(_text(value)) for value in values]
    words = ":".join(texts) if any(value is not None for value in values) else ""
    key = f"{whole}:{words}"
    return key if len(key) <= _KEY_CHARACTERS else f"{whole}:{key_hash(words)}"


def _part(text: str) -> str:
    return key_hash(text) if ":" in text else key_part(text)


def _text(value: Any) -> str:
    if isinstance(value, str):
        text = str.__str__(value)
        return text.encode("utf-8", "backslashreplace").decode()
    plain = isinstance(value, int) and not isinstance(value, bool)
    try:
        return str(value) if plain else ":" + json.dumps(value, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):
        return ":" + type(value).__name__


def read_queues(queues: Mapping[Any, Any]) -> tuple[dict[str, QueuePolicy], list[str]]:
    """Return what is said of queues by name, and what is wrong, one sentence each.

    Args:
        queues: ``{name: {"global_limit": 5, …}}`` or ``{name: QueuePolicy}``.
    """
    return read_each(queues, _name_problems, read_queue)


def _name_problems(name: Any) -> list[str]:
    if isinstance(name, str) and name:
        return []
    return [f"queue name: expected text that is not empty, got: {got(name)}"]


def read_queue(given: Any) -> QueuePolicy:
    """Read what is said of one queue.

    Raises:
        PolicyInvalid: With one problem for everything that is wrong.
    """
    said, problems = read_fields(given, QueuePolicy)
    policy, wrong = _read_numbers(said)
    problems += wrong
    problems += _partition_problems(said)
    problems += waiting_problems(said.get("max_waiting"))
    if problems or policy is None:
        raise PolicyInvalid(*problems)
    by_args = said.get("by_args")
    return QueuePolicy(
        policy.concurrency,
        said.get("local_limit"),
        policy.rate,
        policy.throttle,
        policy.on_limit,
        None if by_args is None else tuple(by_args),
        said.get("by_kind", False),
        said.get("missing", "empty"),
        said.get("max_waiting"),
    )


def _read_numbers(said: Mapping[str, Any]) -> tuple[RateLimitPolicy | None, list[str]]:
    problems: list[str] = []
    policy = None
    given = {name: said[name] for name in ("rate", "throttle", "on_limit") if name in said}
    try:
        policy = RateLimitPolicy("queue", said.get("global_limit"), **given)
    except PolicyInvalid as error:
        problems += map(_renamed, error.problems)
    try:
        RateLimitPolicy("queue", said.get("local_limit"))
    except PolicyInvalid as error:
        problems += (each.replace("concurrency:", "local_limit:", 1) for each in error.problems)
    return policy, problems


def _renamed(problem: str) -> str:
    name, colon, rest = problem.partition(":")
    rest = rest.replace("a key, set its concurrency to 0", "a queue, set its global_limit to 0")
    return f"{_NAMES.get(name, name)}{colon}{rest}"


def _partition_problems(said: Mapping[str, Any]) -> list[str]:
    problems = []
    by_args, by_kind = said.get("by_args"), said.get("by_kind", False)
    names = isinstance(by_args, (list, tuple)) and len(by_args) <= MAX_ARGUMENTS
    if by_args is not None and not (
        names and all(isinstance(each, str) and each.isidentifier() for each in by_args)
    ):
        problems.append(
            f"by_args: expected a list of at most {MAX_ARGUMENTS} names of arguments (an empty one "
            f"is all arguments), or None, got: {got(by_args)}"
        )
    if not isinstance(by_kind, bool):
        problems.append(f"by_kind: expected true or false, got: {got(by_kind)}")
    missing = said.get("missing", "empty")
    if missing not in ("empty", "error"):
        problems.append(f"missing: expected 'empty' or 'error', got: {got(missing)}")
    return problems
