"""A connection of redis-py's pool, in the form of redis-py 5.3."""

from __future__ import annotations

from typing import Any

import redis

_ARGUMENTS = ("_",) if redis.VERSION < (5, 3) else ()


def take_connection(client: Any) -> Any:
    """Return a connected connection of a client's pool, which belongs to the caller."""
    return client.connection_pool.get_connection(*_ARGUMENTS)
