"""The setting ``queues``: limits of a queue and of its partitions, and its most waiting tasks.

Keys have a hash in place of a queue's name with a colon, so that in each key the queue and the
partition are distinct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ValidationError, create_model, model_validator

from celery_fairness.config.fields import TRUTH, Rule, Section
from celery_fairness.config.limit_spec import Limit, OnLimit
from celery_fairness.config.numbers import (
    PARTITION,
    WAITING,
    Kind,
    Starts,
    numbers_of,
    words_of_others,
)
from celery_fairness.config.policy import ON_LIMIT
from celery_fairness.config.queue_limits import PARKED_QUEUES, PREFIX
from celery_fairness.config.rates import Rate
from celery_fairness.config.tenants import KEY_CHARACTERS, key_hash, key_part
from celery_fairness.errors import PolicyInvalid, SettingsError

#: Most arguments that define a partition.
MAX_ARGUMENTS = 16
QUEUE_NAME = Rule(
    f"text in valid UTF-8 that is not empty and does not begin with {PARKED_QUEUES}",
    lambda value: isinstance(value, str) and _is_queue_name(value),
)
_ARGUMENTS = Rule(
    f"a list of at most {MAX_ARGUMENTS} names of arguments (an empty one is all arguments), "
    "or None",
    lambda value: value is None or _are_arguments(value),
)
#: How a rate of 0 is written instead: in a policy, and in a queue or a partition.
_PAUSED = "a key, set its concurrency to 0"
_PAUSED_IN = {
    "queue": "a queue, set its global_limit to 0",
    PARTITION: "a partition, set its concurrency to 0",
}
#: The prefix that RabbitMQ's native delayed delivery puts before a delayed message's routing key.
_DELAY_PREFIX = re.compile(r"^(?:[01]\.){28}")


def _read_rate(holder: str, value: Any) -> Rate | None:
    try:
        return None if value is None else Rate.parse(value, "")
    except PolicyInvalid as error:
        problems = (each.replace(_PAUSED, _PAUSED_IN[holder]) for each in error.problems)
        raise PolicyInvalid(*problems) from None


def _type_of(holder: str, kind: Kind) -> Any:
    if isinstance(kind, Starts):
        return Annotated[Rate | None, BeforeValidator(partial(_read_rate, holder))]
    return Annotated[kind.answer, kind.rule]


def _numbers_in(holder: str) -> Any:
    fields: dict[str, Any] = {
        word: (_type_of(holder, number.kind), number.kind.default)
        for word, number in numbers_of(holder).items()
    }
    made = create_model(f"NumbersOf{holder.title()}", __base__=Section, **fields)
    made.meant = words_of_others(holder)
    return made


def _limit_of(holder: str, numbers: Any, on_limit: OnLimit) -> Limit:
    merged = {
        number.name: number.kind.merged([getattr(numbers, word)])
        for word, number in numbers_of(holder).items()
    }
    return Limit("", on_limit=on_limit, **merged)


class PartitionNumbers(_numbers_in(PARTITION)):  # type: ignore[misc]  # mypy cannot read the table
    """The numbers that each partition of a queue has for itself.

    Attributes:
        concurrency: Tasks at once over all processes, 0 to 1,000,000. None is unlimited, 0 pauses.
        local_limit: Tasks at once in one process, with the same range. The smaller of both limits
            applies.
        rate: Starts in any window of a period.
        throttle: Starts in a period, evenly spaced.
    """


class QueueNumbers(_numbers_in("queue")):  # type: ignore[misc]  # as above
    """The limit of a queue as a whole, and that of each of its partitions.

    Attributes:
        global_limit: Tasks at once over all processes, 0 to 1,000,000. None is unlimited, 0 pauses.
        local_limit: Tasks at once in one process, with the same range. The smaller of both limits
            applies.
        rate: Starts in any window of a period.
        throttle: Starts in a period, evenly spaced.
        partition: The numbers that each partition has for itself, beside these. None is no numbers.
        on_limit: The action for a task over a limit: ``wait``, ``reschedule`` or ``drop``.
    """

    partition: PartitionNumbers | None = None
    on_limit: Annotated[OnLimit, ON_LIMIT] = "wait"

    @property
    def limit(self) -> Limit:
        """The limit of the queue as a whole, without a key."""
        return _limit_of("queue", self, self.on_limit)

    @property
    def part_limit(self) -> Limit | None:
        """The limit of each partition, without a key. None if it has none."""
        return self.partition and _limit_of(PARTITION, self.partition, self.on_limit)

    def problem_of_partitions(self, count: int) -> str:
        """Return what holds in each of some partitions of the installation alone; "" if nothing.

        All numbers hold for the partitions together, by permits and lots (ADR 30, ADR 32). A task
        that must not wait would be dropped or put off in a partition that has none, although others
        have some.
        """
        if count == 1 or self.on_limit == "wait":
            return ""
        alone = f"because fairness.partitions is {count} and it would hold in each partition alone"
        return f"on_limit: expected 'wait', {alone}, got: {self.on_limit!r}"

    @property
    def chosen(self) -> tuple[Limit | None, Limit | None]:
        """The limits of the whole queue and of each partition that an operator sets with these.

        If only one of the two has a number, the other is None: it is as the settings declare it.
        """
        part = self.part_limit
        is_whole = part is None or self.model_fields_set & numbers_of("queue").keys()
        return self.limit if is_whole else None, part


class QueuePolicy(QueueNumbers):
    """The settings of one queue.

    Attributes:
        by_args: The arguments whose values define a partition. Empty means all arguments, None
            means no partition by arguments.
        by_kind: Whether each task name is a partition.
        missing: The action if a task lacks an argument. ``empty``: such tasks are one partition.
            ``error``: they are too, and their tenant is ``_invalid``.
        max_waiting: Most waiting tasks, 1 to 1,000,000,000. None is unlimited.
    """

    by_args: Annotated[tuple[str, ...] | None, _ARGUMENTS] = None
    by_kind: Annotated[bool, TRUTH] = False
    missing: Literal["empty", "error"] = "empty"
    max_waiting: Annotated[int | None, WAITING.rule] = None

    @model_validator(mode="after")
    def _has_partitions(self) -> Self:
        if self.partition is not None and not self.partitioned:
            raise SettingsError("partition: expected by_args or by_kind beside it, got: neither")
        return self

    @property
    def partitioned(self) -> bool:
        """Whether its tasks have partitions, with numbers or without."""
        return self.by_args is not None or self.by_kind

    @property
    def part_limit(self) -> Limit | None:
        """See :class:`QueueNumbers`. A partition without numbers counts, and may be paused."""
        if not self.partitioned:
            return None
        return _limit_of(PARTITION, self.partition or PartitionNumbers(), self.on_limit)

    @property
    def limits(self) -> bool:
        """Whether it has anything that a claim must check."""
        return self.partitioned or self.limit != Limit("")


def queue_of_route(routing_key: str) -> str:
    """Return the queue of a routing key, also of a message that the broker has delayed."""
    return _DELAY_PREFIX.sub("", routing_key)


def queue_key(queue: str) -> str:
    """Return the key of the whole queue's limit."""
    return PREFIX + _part(queue)


def declared_limit(queues: Mapping[str, QueuePolicy], key: str) -> Limit | None:
    """Return the declared limit of the whole queue that has ``key``; None if it has none."""
    for queue, policy in queues.items():
        if policy.limit.numbers and queue_key(queue) == key:
            return policy.limit
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
    return key if len(key) <= KEY_CHARACTERS else f"{whole}:{key_hash(words)}"


def _is_queue_name(text: str) -> bool:
    in_utf8 = text.encode(errors="ignore").decode() == text
    return in_utf8 and text != "" and not text.startswith(PARKED_QUEUES)


def _are_arguments(value: Any) -> bool:
    listed = isinstance(value, (list, tuple)) and len(value) <= MAX_ARGUMENTS
    return listed and all(isinstance(each, str) and each.isidentifier() for each in value)


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


def read_queue(given: Any) -> QueueNumbers:
    """Read the limits of one queue.

    Raises:
        PolicyInvalid: A value is invalid, with one problem for each.
    """
    try:
        numbers: QueueNumbers = QueueNumbers.model_validate(given)
    except ValidationError as error:
        # A section raises one error with all problems.
        (item,) = error.errors()
        raise PolicyInvalid(*item["ctx"]["error"].problems) from None
    return numbers
