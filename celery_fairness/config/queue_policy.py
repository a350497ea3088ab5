"""The setting ``queues``: a queue's limit, its partitions, and its most waiting tasks.

Keys have a hash in place of a queue's name with a colon, so that in each key the queue and the
partition are distinct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from celery_fairness.config.fields import read_each, read_fields
from celery_fairness.config.limit_spec import OnLimit
from celery_fairness.config.policy import RateLimitPolicy
from celery_fairness.config.queue_limits import PREFIX, QueueNumbers
from celery_fairness.config.rates import Rate
from celery_fairness.config.tenants import key_hash, key_part
from celery_fairness.config.tiers import waiting_problems
from celery_fairness.errors import PolicyInvalid, got

#: Longest key, as for every limit.
_KEY_CHARACTERS = 255
#: Most arguments that define a partition.
MAX_ARGUMENTS = 16
#: The names of a policy's fields that a queue names differently.
_NAMES = {"concurrency": "global_limit", "key": "queue"}
#: The prefix that RabbitMQ's native delayed delivery puts before a delayed message's routing key.
_DELAY_PREFIX = re.compile(r"^(?:[01]\.){28}")


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The settings of one queue.

    Attributes:
        global_limit: Tasks at once over all processes, 0 to 1,000,000. None is unlimited, 0 pauses.
        local_limit: Tasks at once in one process, with the same range. The smaller of both limits
            applies.
        rate: Starts in any window of a period.
        throttle: Starts in a period, evenly spaced.
        on_limit: The action for a task over the limit: ``wait``, ``reschedule`` or ``drop``.
        by_args: The arguments whose values define a partition, which has the numbers for itself.
            Empty means all arguments, None means no partition by arguments.
        by_kind: Whether each task name is a partition.
        missing: The action if a task lacks an argument. ``empty``: such tasks are one partition.
            ``error``: they are too, and their tenant is ``_invalid``.
        max_waiting: Most waiting tasks, 1 to 1,000,000,000. None is unlimited.
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
        """Whether each partition has the numbers for itself."""
        return self.by_args is not None or self.by_kind

    @property
    def numbers(self) -> QueueNumbers:
        """Its numbers in the form of the scheduler."""
        return QueueNumbers(
            self.global_limit,
            (self.rate.window,) if self.rate else (),
            self.throttle.window if self.throttle else None,
            self.on_limit,
            self.local_limit,
        )

    @property
    def limits(self) -> bool:
        """Whether it has anything that a claim must check."""
        return self.partitioned or self.numbers != QueueNumbers()


def queue_of_route(routing_key: str) -> str:
    """Return the queue of a routing key, also of a message that the broker has delayed."""
    return _DELAY_PREFIX.sub("", routing_key)


def queue_key(queue: str) -> str:
    """Return the key of the whole queue's limit."""
    return PREFIX + _part(queue)


def declared_numbers(queues: Mapping[str, QueuePolicy], key: str) -> QueueNumbers | None:
    """Return the declared numbers of the whole queue that has ``key``; None if it has none."""
    for queue, policy in queues.items():
        if policy.limits and not policy.partitioned and queue_key(queue) == key:
            return policy.numbers
    return None


def partition_key(queue: str, values: Sequence[Any]) -> str:
    """Return the key of one partition of a queue.

    Args:
        queue: The queue's name.
        values: The values that define the partition. None means no value, and tasks without any
            value are one partition. Values other than text and whole numbers are written as a hash
            of their JSON.
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
    """Return the valid queues by name, and the problems of the others, one sentence each.

    Args:
        queues: ``{name: {"global_limit": 5, …}}`` or ``{name: QueuePolicy}``.
    """
    return read_each(queues, _name_problems, read_queue)


def _name_problems(name: Any) -> list[str]:
    if isinstance(name, str) and name:
        return []
    return [f"queue name: expected text that is not empty, got: {got(name)}"]


def read_queue(given: Any) -> QueuePolicy:
    """Read the settings of one queue.

    Raises:
        PolicyInvalid: A value is invalid, with one problem for each.
    """
    values, problems = read_fields(given, QueuePolicy)
    policy, wrong = _read_numbers(values)
    problems += wrong
    problems += _partition_problems(values)
    problems += waiting_problems(values.get("max_waiting"))
    if problems or policy is None:
        raise PolicyInvalid(*problems)
    by_args = values.get("by_args")
    return QueuePolicy(
        policy.concurrency,
        values.get("local_limit"),
        policy.rate,
        policy.throttle,
        policy.on_limit,
        None if by_args is None else tuple(by_args),
        values.get("by_kind", False),
        values.get("missing", "empty"),
        values.get("max_waiting"),
    )


def _read_numbers(values: Mapping[str, Any]) -> tuple[RateLimitPolicy | None, list[str]]:
    problems: list[str] = []
    policy = None
    given = {name: values[name] for name in ("rate", "throttle", "on_limit") if name in values}
    try:
        policy = RateLimitPolicy("queue", values.get("global_limit"), **given)
    except PolicyInvalid as error:
        problems += map(_renamed, error.problems)
    try:
        RateLimitPolicy("queue", values.get("local_limit"))
    except PolicyInvalid as error:
        problems += (each.replace("concurrency:", "local_limit:", 1) for each in error.problems)
    return policy, problems


def _renamed(problem: str) -> str:
    name, colon, rest = problem.partition(":")
    rest = rest.replace("a key, set its concurrency to 0", "a queue, set its global_limit to 0")
    return f"{_NAMES.get(name, name)}{colon}{rest}"


def _partition_problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    by_args, by_kind = values.get("by_args"), values.get("by_kind", False)
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
    missing = values.get("missing", "empty")
    if missing not in ("empty", "error"):
        problems.append(f"missing: expected 'empty' or 'error', got: {got(missing)}")
    return problems
