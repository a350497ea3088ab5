"""Which versions of the function library a server has, and which of them an installation uses.

Nothing removes a library by itself: a worker sees its own namespace alone, and another installation
may use the same server.
"""

from __future__ import annotations

import functools
from datetime import datetime

from celery_fairness.errors import NotFound
from celery_fairness.limiter.redis import Limiter
from celery_fairness.store.library import FAMILY, check_library, library, loaded
from celery_fairness.util.timestamps import at_ms
from celery_fairness.util.value import Value


class LibraryStatus(Value):
    """One library of a server.

    Attributes:
        name: With the digest of its text.
        size: Of its text, in bytes.
        current: This version of the package calls it: workers, or ``celery fairness check``.
        used: When a worker of this installation called it last, to an hour. None is never.
    """

    name: str
    size: int
    current: bool
    used: datetime | None


def libraries(limiter: Limiter) -> list[LibraryStatus]:
    """Return the libraries on the limiter's server, the one used last first.

    Raises:
        LimiterUnavailable: Redis does not answer, or the user may not list functions.
    """
    connection = limiter.connection
    found = loaded(functools.partial(connection.read_there, limiter.prefix))
    fields = [f"lib:{name}" for name in found]
    times = connection.read("HMGET", limiter.names.clock, *fields) if fields else []
    rows = [
        LibraryStatus(
            name=name,
            size=size,
            current=name in (library().name, check_library().name),
            used=None if used is None else at_ms(int(used)),
        )
        for (name, size), used in zip(found.items(), times, strict=True)
    ]
    rows.sort(key=lambda each: each.name)
    return sorted(rows, key=lambda each: each.used or at_ms(0), reverse=True)


def delete_library(limiter: Limiter, name: str) -> None:
    """Delete the library ``name``; a process that still needs it loads it again.

    Raises:
        ValueError: It is no library of this package.
        NotFound: The server does not have it.
        LimiterUnavailable: Redis does not answer, or the user may not delete functions.
    """
    if not name.startswith(FAMILY):
        raise ValueError(f"expected a name that begins with {FAMILY}, got: {name}")
    connection = limiter.connection
    ask = functools.partial(connection.read_there, limiter.prefix)
    if name not in loaded(ask):
        raise NotFound("library", name, f"is not on {connection.address}")
    ask("FUNCTION", "DELETE", name)
    connection.read("HDEL", limiter.names.clock, f"lib:{name}")
