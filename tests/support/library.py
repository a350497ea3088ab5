"""Calls of the function library on a plain client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from celery_fairness.store.library import Library, is_missing, library, load


def call(
    client: Redis, function: str, prefix: str, args: Sequence[Any], made: Library | None = None
) -> Any:
    """Call ``function``; its library is loaded where the server does not have it."""
    made = made or library()
    try:
        return client.fcall(made.function(function), 1, prefix, *args)
    except ResponseError as error:
        if not is_missing(error):
            raise
    load(client.execute_command, made)
    return client.fcall(made.function(function), 1, prefix, *args)


def tag_of(lease: str) -> str:
    """Return the delivery tag of the task that holds a lease."""
    return lease.rsplit(".", 2)[0]
