"""Sends calls whose answers nobody needs, on a connection that gets no answers.

A sent call is in the system's buffers, so it reaches Redis even if its process is killed right
after it. The server answers nothing (``CLIENT REPLY OFF``), so neither side spends time on answers.

An idle connection may be dead without a sign. So the sender asks for the answers once a second:

    answered at most TRUST_SECONDS ago --> send the calls
    otherwise                          --> REPLY ON, the calls, REPLY OFF; read the answers

A server may lose the slot of one partition and keep the others, so each partition has its time.

Weakness: calls that were sent in the second before a connection broke, or before a slot moved, may
be lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as AnswerLate

from celery_fairness.compat.redis_pool import take_connection
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.store.cluster import NotServed, SlotMoved
from celery_fairness.store.connection import REDIS_ERRORS, TRUST_SECONDS, Connection, closed, pack
from celery_fairness.store.library import library
from celery_fairness.util.threads import native_local

#: After a failed try, calls are dropped for this time, in seconds. A body does not wait for them.
PAUSE_SECONDS = 5.0
_REPLY_ON, _REPLY_OFF = pack(("CLIENT", "REPLY", "ON")), pack(("CLIENT", "REPLY", "OFF"))


class _Note:
    """One call, with the arguments of :meth:`Connection.run`.

    Attributes:
        is_sent: Whether some thread has sent it.
    """

    __slots__ = ("args", "function", "is_sent", "prefix")

    def __init__(self, function: str, prefix: str, args: Sequence[str]) -> None:
        self.function, self.prefix, self.args, self.is_sent = function, prefix, args, False


class _Line:
    """The connection of one process, and of one native thread if greenlets run beside it.

    Attributes:
        notes: Calls that no thread has sent yet.
        lock: Held while a thread sends. Under a green library it is green, because the others wait
            for it while a socket is full.
        connection: The connection without answers.
        client: The client that made it. Another client may lead to another server.
        answered_at: By prefix, the time of the last answer (monotonic seconds).
        not_before: The end of the pause after a failed try (monotonic seconds).
        is_refused: Whether the server refuses to leave out answers.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.notes: list[_Note] = []
        self.lock = threading.Lock()
        self.connection: Any = None
        self.client: Any = None
        self.answered_at: dict[str, float] = {}
        self.not_before = 0.0
        self.is_refused = False


class NoteSender:
    """Sends calls of the function library without waiting for their answers.

    Threads, greenlets and forked processes may share it. Threads that call at the same time share
    one send, because each send gives the interpreter's lock away.

    Args:
        connection: Leads to the Redis.
        callers: Makes the calls if the server, a proxy or the user's rights refuse ``CLIENT
            REPLY``, or if the server has not the keys. None for ``connection``.
    """

    def __init__(self, connection: Connection, callers: Connection | None = None) -> None:
        self._connection, self._callers = connection, callers or connection
        self._own = _own()

    def send(self, function: str, prefix: str, args: Sequence[str]) -> None:
        """Call ``function``; on return the system has the call, or Redis does not answer."""
        line: _Line = self._own.line
        if line is None or line.pid != os.getpid():
            line = self._own.line = _Line()
        note = _Note(function, prefix, args)
        line.notes.append(note)
        with line.lock:
            if note.is_sent:
                return
            # Threads may add notes meanwhile.
            notes = line.notes[:]
            del line.notes[: len(notes)]
            try:
                self._send(line, notes)
            finally:
                for each in notes:
                    each.is_sent = True

    def _send(self, line: _Line, notes: list[_Note]) -> None:
        now = time.monotonic()
        if now < line.not_before:
            return
        client = self._connection.client()
        if line.is_refused:
            for note in notes:
                with suppress(LimiterUnavailable):
                    self._callers.post(note.function, note.prefix, note.args)
            return
        calls = b"".join([self._packed(note) for note in notes])
        if line.client is client and _is_trusted(line, notes, now):
            try:
                line.connection.send_packed_command([calls], check_health=False)
            except REDIS_ERRORS:
                pass
            except BaseException:
                # A greenlet was killed in the send, and the connection would answer from now on.
                _close(line)
                raise
            else:
                return
        try:
            self._ask(line, client, calls, notes)
        except REDIS_ERRORS as error:
            _close(line)
            if not _is_elsewhere(error):
                line.not_before = now + PAUSE_SECONDS
                if not isinstance(error, NotServed):
                    self._callers.lost_at(notes[0].prefix, error)
                return
            for note in notes:
                with suppress(LimiterUnavailable):
                    self._callers.run(note.function, note.prefix, note.args)
        except BaseException:
            # A greenlet was killed between the send and the answer.
            _close(line)
            raise

    def _packed(self, note: _Note) -> bytes:
        name = library().function(note.function)
        return pack(("FCALL", name, "1", note.prefix, *note.args))

    def _ask(self, line: _Line, client: Any, calls: bytes, notes: list[_Note]) -> None:
        """Send calls and read their answers, over a new connection if the old one is dead."""
        if line.client is client:
            try:
                _read_answers(line, calls, notes)
            except AnswerLate:
                raise
            except (ConnectionLost, OSError):
                pass
            else:
                return
        _close(line)
        line.connection, line.client = take_connection(client), client
        _read_answers(line, calls, notes)


def _read_answers(line: _Line, calls: bytes, notes: list[_Note]) -> None:
    packed = _REPLY_ON + calls + _REPLY_OFF
    line.connection.send_packed_command([packed], check_health=False)
    try:
        line.connection.read_response()
    except ResponseError:
        line.is_refused = True
        raise
    for _ in notes:
        line.connection.read_response()
    line.answered_at |= dict.fromkeys((note.prefix for note in notes), time.monotonic())


def _is_trusted(line: _Line, notes: list[_Note], now: float) -> bool:
    """Return whether the server answered a moment ago for the partitions of all notes."""
    answered_at = line.answered_at
    return all(now - answered_at.get(note.prefix, 0.0) < TRUST_SECONDS for note in notes)


def _is_elsewhere(error: Exception) -> bool:
    """Return whether the server lacks the library, or another one has the slot by now.

    An ordinary call handles both.
    """
    has_moved = isinstance(error, NotServed) and error.has_moved
    return has_moved or isinstance(error, (ResponseError, SlotMoved))


def _close(line: _Line) -> None:
    connection, client, line.connection, line.client = line.connection, line.client, None, None
    line.answered_at.clear()
    if connection is not None:
        client.connection_pool.release(closed(connection))


def _own() -> Any:
    """Return the place of a line, one for each native thread under a green library."""

    class Own(native_local()):  # type: ignore[misc]  # the class depends on the green library
        def __init__(self) -> None:
            self.line: _Line | None = None

    return Own()
