"""Listening to a bell: a BLPOP that is waited for no longer than was asked.

A server looks ten times a second whose time is over, and a BLPOP alone ends up to 0.1 s late: too
late for a throttle of twenty a second. So one goes on behind the waits, and what it takes meanwhile
is found by the next.

Weakness: what it takes when nobody waits any more is lost; whoever listens looks once a second too.
"""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from redis.exceptions import TimeoutError as AnswerLate

from celery_fairness.store.connection import AWAY, Connection, closed, pack

#: How long one BLPOP takes, in seconds.
LISTEN_SECONDS = 1.0
#: How long after that it may be silent, in seconds.
LATE_SECONDS = 2.0


class Listener:
    """Waits for entries of lists, for one thread.

    Args:
        connection: Of the Redis; the listener takes a line of its own.
    """

    def __init__(self, connection: Connection) -> None:
        self._redis = connection
        self._line: Any = None
        self._pid = 0
        #: When the BLPOP that goes on was sent (monotonic seconds); None where none does.
        self._asked_at: float | None = None

    def wait(self, key: str, seconds: float) -> bool:
        """Wait, at most so long, until a list has an entry, and take it; say whether it had one.

        Raises:
            LimiterUnavailable: No answer, or an error.
        """
        client = self._redis.client()
        if not isinstance(client, redis.Redis):
            return self._redis.read("BLPOP", key, f"{seconds:.3f}") is not None
        ends_at = time.monotonic() + seconds
        try:
            while True:
                self._ask(client, key)
                if not self._line.can_read(max(0.0, ends_at - time.monotonic())):
                    self._check()
                    return False
                self._asked_at, found = None, self._line.read_response()
                if found is not None:
                    return True
        except AWAY as error:
            self.close()
            raise self._redis.unavailable(error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the line up; the next wait takes another."""
        line, self._line, self._asked_at = self._line, None, None
        if line is not None and self._pid == os.getpid():
            self._redis.client().connection_pool.release(closed(line))

    def _ask(self, client: Any, key: str) -> None:
        if self._line is None or self._pid != os.getpid():
            # A forked child leaves its parent's connections alone.
            self._line, self._asked_at, self._pid = None, None, os.getpid()
            self._line = client.connection_pool.get_connection()
        if self._asked_at is None:
            command = pack(("BLPOP", key, f"{LISTEN_SECONDS:.3f}"))
            self._line.send_packed_command([command], check_health=False)
            self._asked_at = time.monotonic()

    def _check(self) -> None:
        if time.monotonic() - (self._asked_at or 0.0) > LISTEN_SECONDS + LATE_SECONDS:
            raise AnswerLate("a BLPOP has no end")
