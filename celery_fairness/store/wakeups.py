"""Waits for a wake-up with a BLPOP, but never longer than the caller wants.

A server checks timeouts ten times a second, so a BLPOP may end 0.1 s late. That is too late for a
throttle of twenty per second. So a BLPOP continues after a wait has timed out, and the next wait
gets the entry that it took meanwhile.

Weakness: an entry that it takes after the last wait is lost, so callers also poll once a second.
"""

from __future__ import annotations

import os
import time
from typing import Any

from redis.exceptions import TimeoutError as AnswerLate

from celery_fairness.compat.redis_pool import take_connection
from celery_fairness.store.connection import REDIS_ERRORS, Connection, closed, pack

#: The timeout of one BLPOP, in seconds.
LISTEN_SECONDS = 1.0
#: How late its answer may come after that, in seconds.
LATE_SECONDS = 2.0


class Listener:
    """Waits for entries of lists, for one thread.

    Args:
        connection: The connection to Redis. The listener takes one of its pool for itself.
    """

    def __init__(self, connection: Connection) -> None:
        self._redis = connection
        self._connection: Any = None
        self._pid = 0
        #: When the current BLPOP was sent, in monotonic seconds; None if there is none.
        self._sent_at: float | None = None

    def wait(self, key: str, seconds: float) -> bool:
        """Wait at most ``seconds`` for a list's entry and take it. Return whether there was one.

        Raises:
            LimiterUnavailable: Redis does not answer, or answers with an error.
        """
        client = self._redis.client()
        ends_at = time.monotonic() + seconds
        try:
            while True:
                self._send(client, key)
                if not self._connection.can_read(max(0.0, ends_at - time.monotonic())):
                    self._check()
                    return False
                self._sent_at, found = None, self._connection.read_response()
                if found is not None:
                    return True
        except REDIS_ERRORS as error:
            self.close()
            raise self._redis.unavailable(error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the connection. The next wait takes another one."""
        connection, self._connection, self._sent_at = self._connection, None, None
        if connection is not None and self._pid == os.getpid():
            self._redis.client().connection_pool.release(closed(connection))

    def _send(self, client: Any, key: str) -> None:
        if self._connection is None or self._pid != os.getpid():
            # A forked child must not use its parent's connections.
            self._connection, self._sent_at, self._pid = None, None, os.getpid()
            self._connection = take_connection(client)
        if self._sent_at is None:
            command = pack(("BLPOP", key, f"{LISTEN_SECONDS:.3f}"))
            self._connection.send_packed_command([command], check_health=False)
            self._sent_at = time.monotonic()

    def _check(self) -> None:
        if time.monotonic() - (self._sent_at or 0.0) > LISTEN_SECONDS + LATE_SECONDS:
            raise AnswerLate("a BLPOP has no end")
