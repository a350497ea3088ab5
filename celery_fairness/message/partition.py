"""In which partition of its queue's limit a task is: taken from its arguments when it is put."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_fairness.config.queue_policy import QueuePolicy, partition_key, queue_key
from celery_fairness.errors import KeyMissing, TaskDeclarationError
from celery_fairness.message.task_options import ArgumentSource


def partition_of(
    policy: QueuePolicy,
    queue: str,
    name: str,
    body: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """Return the key of a task's partition; tasks without the values share one.

    Args:
        policy: The queue's, which is partitioned.
        queue: Where the task goes.
        name: The task's; "" where nobody says it.
        body: Its function, whose signature says where arguments stand; None where this process
            does not know it: then by keyword alone.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Raises:
        KeyMissing: It has no value for an argument, and ``missing`` is ``error``.
    """
    values: list[Any] = []
    if policy.by_args is not None and not policy.by_args:
        values.append(_all(body, args, kwargs))
    for each in policy.by_args or ():
        value = _argument(name, each, body, args, kwargs)
        if policy.missing == "error" and value in (None, ""):
            raise KeyMissing(name, queue_key(queue), f"args.{each}")
        values.append(None if value == "" else value)
    if policy.by_kind:
        values.append(name or None)
    return partition_key(queue, values)


def nobodys(queue: str) -> str:
    """Return the key of the partition of tasks that name none."""
    return partition_key(queue, ())


def words_of(queue: str, key: str | None) -> str:
    """Return the limits of a task of a queue beside its own, as the scheduler is told of them.

    Args:
        queue: Which.
        key: Of the task's partition; None where there are none.
    """
    whole = queue_key(queue)
    # What people say of the key of a queue holds for its partitions too.
    return f"{whole}|q|||w" if key is None else f"{partition_word(key)},{whole}||||w"


def partition_word(key: str) -> str:
    """Return a partition's limit as the scheduler is told of it: its numbers are its queue's."""
    return f"{key}|q|||w"


def _argument(
    task: str,
    name: str,
    body: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    source = _source(task, name, body) if body is not None else None
    return kwargs.get(name) if source is None else source.read(args, kwargs)


@functools.lru_cache(maxsize=1024)
def _source(task: str, name: str, body: Callable[..., Any]) -> ArgumentSource | None:
    try:
        return ArgumentSource(task, name, body, "by_args")
    except (TaskDeclarationError, ValueError):
        return None


def _all(
    body: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        bound = inspect.signature(body).bind(*args, **kwargs) if body is not None else None
    except (TypeError, ValueError):
        bound = None
    if bound is None:
        # Named ones are the same whoever sends them, but for those that a signature has besides.
        return {"args": list(args), "kwargs": dict(kwargs)} if args else dict(kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
