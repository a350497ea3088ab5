"""The partition of a task in its queue's limit. It is made from the task's arguments at the put."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
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
    """Return the key of a task's partition. Tasks without any value share one.

    Args:
        policy: The queue's policy, which is partitioned.
        queue: The task's queue.
        name: The task's name. "" if it is not known.
        body: The task's function, whose signature gives the positions of arguments. If it is None,
            only keyword arguments are found.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Raises:
        KeyMissing: An argument has no value, and ``missing`` is ``error``.
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


def unnamed_partition(queue: str) -> str:
    """Return the key of the partition for tasks without values."""
    return partition_key(queue, ())


def queue_limits_text(queue: str, key: str | None) -> str:
    """Return the limits that a task has from its queue, in the scheduler's text form.

    Args:
        queue: The task's queue.
        key: The key of its partition. None if the queue has no partitions.
    """
    keys = [queue_key(queue)] if key is None else [key, queue_key(queue)]
    return write_limits(Limit(each, of=OF_QUEUE) for each in keys)


def partition_limit_text(key: str) -> str:
    """Return a queue's limit in the scheduler's text form. Its numbers are in the queue's row."""
    return write_limits((Limit(key, of=OF_QUEUE),))


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
        # Keyword arguments give the same partition as with a signature, apart from its defaults.
        return {"args": list(args), "kwargs": dict(kwargs)} if args else dict(kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
