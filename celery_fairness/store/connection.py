"""The connection to the limiter's Redis, and the only place that translates errors of redis-py.

Every call has a timeout, so a server that hangs costs a bounded wait. After a lost connection a
call is sent once more, because a second call of a function with the same arguments changes nothing.
If a node of a cluster redirects a call, the connections lead to the primary of that slot from then.

An address may list several servers, like a list of brokers. The client uses the first until it
fails, then the next, and after the last the first again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import OutOfMemoryError as MemoryLimit
from redis.exceptions import ResponseError as RedisResponseError
from redis.exceptions import TimeoutError as AnswerLate
from redis.retry import Retry

from celery_fairness.compat.redis_pool import take_connection
from celery_fairness.compat.redis_redirects import Redirect, redirect_of
from celery_fairness.errors import LimiterUnavailable, SettingsError
from celery_fairness.store.address import Address
from celery_fairness.store.cluster import (
    PAUSE_SECONDS,
    SlotAway,
    SlotMoved,
    SlotPrimary,
    leading_to,
    slot_of,
)
from celery_fairness.store.library import Library, LibraryUnusable, is_missing, library, load
from celery_fairness.store.readiness import ServerNotReady, attentive
from celery_fairness.store.spin import Spin
from celery_fairness.util.threads import native_local

#: Errors of redis-py.
REDIS_ERRORS = (RedisError, OSError)

#: For so long after an answer a connection may send a command whose answer is read later, in s.
TRUST_SECONDS = 1.0


def mapping_of(answer: Any) -> dict[str, str]:
    """Return a hash, or the fields of a stream's entry, that Redis sent.

    redis-py makes a mapping of some answers. Others are flat lists.
    """
    if not isinstance(answer, Mapping):
        answer = dict(zip(answer[::2], answer[1::2], strict=True))
    return {str(name): str(value) for name, value in answer.items()}


def time_ms(answer: Any) -> int:
    """Return the server's time, by its answer to ``TIME``, in ms."""
    seconds, micros = answer
    return int(seconds) * 1000 + int(micros) // 1000


@dataclass(slots=True)
class _Line:
    """One connection, and the command on it whose answer is still unread.

    Attributes:
        connection: A connection of redis-py.
        answered_at: The time of the server's last answer on it (monotonic seconds).
        posted: The command that was sent without waiting: function, prefix, arguments.
        spin: Polls briefly for an answer.
    """

    connection: Any
    answered_at: float = 0.0
    posted: tuple[str, str, Sequence[Any]] | None = None
    spin: Spin = field(default_factory=Spin)


def _own() -> Any:
    """Return the client, its process and its idle connections.

    Under gevent and eventlet a socket belongs to the native thread that opened it, so each native
    thread has its own.
    """

    class Own(native_local()):  # type: ignore[misc]  # the class depends on the green library
        def __init__(self) -> None:
            self.client: Any = None
            self.pid = 0
            self.idle: list[_Line] = []

    return Own()


class Connection:
    """Calls the function library, and runs simple reads, on the limiter's Redis.

    Threads, greenlets and forked processes may share it. A new process gets new connections, and
    so does a native thread beside greenlets.

    Args:
        address: The address of the Redis.
        timeout_seconds: Longest wait for a connection, and longest wait for an answer.
        retries: How often a call is sent again after a lost connection.
        make: Makes the client instead of one from the address, once in every process.
        prefix: The beginning of all keys. In a cluster it names their slot.
        is_one_of: Whether callers also need other servers, so a late answer is not waited for
            twice.
    """

    def __init__(
        self,
        address: Address,
        timeout_seconds: float = 2.0,
        retries: int = 1,
        make: Callable[[], Any] | None = None,
        prefix: str = "",
        *,
        is_one_of: bool = False,
    ) -> None:
        self.address = address
        self._is_one_of = is_one_of
        self._make = make
        #: Finds the primary of the keys' slot. None if the Redis is no cluster, as far as known.
        self._primary: SlotPrimary | None = None
        if address.is_cluster:
            self._primary = SlotPrimary(address.nodes(), slot_of(prefix))
        self._timeout_seconds = timeout_seconds
        self._options: dict[str, Any] = {
            "protocol": 2,
            "decode_responses": True,
            "socket_timeout": timeout_seconds,
            "socket_connect_timeout": timeout_seconds,
            "retry": Retry(NoBackoff(), 0),
            "client_name": "celery_fairness",
            # One per concurrent caller. With the pool's own maximum, callers would get errors.
            "max_connections": 2**31,
        }
        self._retries = retries
        #: Returns the class of its connections from that of the pool.
        self.class_of: Callable[[type[Any]], type[Any]] = attentive
        #: The position of the current server in the list, and the number of other servers.
        self._server = 0
        one = address.master_name or make or address.is_cluster or address.is_divided
        self._other_servers = 0 if one else len(address.urls) - 1
        #: The number of connections taken. A new connection may lead to another server.
        self.opened = 0
        #: The server has answered a call, so it has the library.
        self._has_library = False
        self._own = _own()
        self._client_lock = threading.Lock()

    def check(self) -> None:
        """Check, without connecting, that redis-py can read the address.

        Raises:
            SettingsError: redis-py cannot read it.
        """
        try:
            for _ in range(self._other_servers + 1):
                client = self.client()
                pool = client.connection_pool
                pool.connection_class(**pool.connection_kwargs)
                if self._other_servers:
                    self._use_next_server(client)
        except (ValueError, TypeError):
            # The error itself may contain a part of the password.
            raise SettingsError(
                f"{self.address.setting}: expected an address and options that redis-py can read, "
                f"got: {self.address}"
            ) from None

    def run(self, function: str, prefix: str, args: Sequence[Any]) -> Any:
        """Call ``function`` of the library for the installation with the keys of ``prefix``.

        Raises:
            LimiterUnavailable: Redis does not answer, or answers with an error.
        """
        try:
            return self.execute(function, prefix, args)
        except REDIS_ERRORS as error:
            raise self.unavailable(error) from error

    def execute(
        self, function: str, prefix: str, args: Sequence[Any], made: Library | None = None
    ) -> Any:
        """Call ``function`` like :meth:`run`, but raise the errors of redis-py.

        ``made`` is another library than that of workers.
        """
        parts = ("FCALL", (made or library()).function(function), "1", prefix, *args)
        try:
            answer = self._call(parts)
        except RedisResponseError as error:
            if not is_missing(error):
                raise
            self.load_library(prefix, made)
            answer = self._call(parts)
        self._has_library = self._has_library or made is None
        return answer

    @property
    def place(self) -> str:
        """The place of the home's server in a list of servers, "" without a list."""
        return ""

    def at(self, _prefix: str) -> Connection:
        """Return the connection to the server that has the keys of ``prefix``."""
        return self

    def lost_at(self, prefix: str, error: BaseException) -> None:
        """Note that the server that has the keys of ``prefix`` did not answer another caller."""

    def load_library(self, prefix: str, made: Library | None = None) -> None:
        """Load the library if the server that has the keys of ``prefix`` lacks it.

        Raises:
            LibraryUnusable: The server cannot load it. The text has the address and the next step.
        """
        try:
            load(functools.partial(self._call_there, prefix), made)
        except LibraryUnusable as error:
            raise LibraryUnusable(f"{self.address}: {error}") from None

    def read_there(self, prefix: str, *parts: str) -> Any:
        """Run one command about the server that has the keys of ``prefix``.

        Raises:
            LimiterUnavailable: Redis does not answer, or answers with an error.
        """
        try:
            return self._call_there(prefix, *parts)
        except REDIS_ERRORS as error:
            raise self.unavailable(error) from error

    def _call_there(self, prefix: str, *parts: str) -> Any:
        # A node of a cluster redirects only a command with a key, and the slot may have moved since
        # the last one on this connection. A missing right is reported by the command itself.
        with contextlib.suppress(NoPermissionError):
            self._call(("EXISTS", prefix))
        return self._call(parts)

    def post(self, function: str, prefix: str, args: Sequence[Any]) -> None:
        """Call ``function`` without waiting for its answer.

        The next call on the same connection reads the answer. If there is none, it sends the call
        again. An idle connection may be dead, so this waits like :meth:`run` on an idle connection.

        Raises:
            LimiterUnavailable: It waited, and Redis did not answer or answered with an error.
        """
        if not self._has_library:
            # An error about the missing library would be read too late, so wait for this answer.
            self.run(function, prefix, args)
            return
        client = self.client()
        try:
            line = self._take_recent()
        except REDIS_ERRORS as error:
            raise self.unavailable(error) from error
        if line is None:
            self.run(function, prefix, args)
            return
        parts = ("FCALL", library().function(function), "1", prefix, *args)
        try:
            line.connection.send_packed_command([pack(parts)], check_health=False)
        except (*REDIS_ERRORS, ValueError):
            client.connection_pool.release(closed(line.connection))
            self.run(function, prefix, args)
        except BaseException:
            client.connection_pool.release(closed(line.connection))
            raise
        else:
            line.posted = (function, prefix, args)
            self._own.idle.append(line)

    def read(self, command: str, *args: Any) -> Any:
        """Run one plain command.

        Raises:
            LimiterUnavailable: Redis does not answer, or answers with an error.
        """
        try:
            return self._call((command, *args))
        except REDIS_ERRORS as error:
            raise self.unavailable(error) from error

    def read_together(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Run plain reads in one transaction, and return their answers in order, hashes as dicts.

        A Redis at its memory limit rejects transactions. There the reads are sent one after the
        other, and writes of other clients may come between them.

        Raises:
            LimiterUnavailable: Redis does not answer, or answers with an error.
        """
        as_one, tries_left = True, self._retries + self._other_servers
        while True:
            client = self.client()
            try:
                pipeline = client.pipeline(transaction=as_one)
                for command in commands:
                    pipeline.execute_command(*command)
                answers = zip(commands, pipeline.execute(), strict=True)
                return [
                    mapping_of(answer) if command[0] == "HGETALL" else answer
                    for command, answer in answers
                ]
            except (ConnectionLost, AnswerLate, OSError) as error:
                if not tries_left:
                    raise self.unavailable(error) from error
                if tries_left <= self._other_servers:
                    self._use_next_server(client)
                tries_left -= 1
            except MemoryLimit as error:
                if not as_one:
                    raise self.unavailable(error) from error
                as_one = False
            except REDIS_ERRORS as error:
                redirect = redirect_of(error)
                if redirect is None or not redirect.is_moved:
                    raise self.unavailable(error) from error
                self._use_cluster(client, redirect)

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        client, self._own.client = self._own.client, None
        idle, self._own.idle = self._own.idle, []
        if client is None:
            return
        if self._own.pid == os.getpid():
            # The client does not close the pool's connections if it was given the pool.
            for line in idle:
                client.connection_pool.release(closed(line.connection))
        client.close()

    def _call(self, parts: Sequence[Any]) -> Any:
        """Send one command and read its answer on a connection that no other caller uses.

        This does less than ``execute_command`` of a client. A task makes two calls, and the client
        would take half of their time.
        """
        packed, servers_left = [pack(parts)], self._other_servers
        away_until = 0.0
        while True:
            client = self.client()
            try:
                return self._send_and_read(client, packed)
            except RedisResponseError as error:
                redirect = redirect_of(error)
                if redirect is None or not redirect.is_moved:
                    raise
                self._use_cluster(client, redirect)
            except (SlotMoved, SlotAway):
                away_until = away_until or time.monotonic() + self._timeout_seconds
                if time.monotonic() > away_until:
                    raise
                time.sleep(PAUSE_SECONDS)
            except (ConnectionLost, AnswerLate, OSError):
                if not servers_left:
                    raise
                servers_left -= 1
                self._use_next_server(client)

    def _use_next_server(self, client: Any) -> None:
        """Use the next server of the list, unless another thread has changed it already."""
        with self._client_lock:
            if self._own.client is client:
                self._server = (self._server + 1) % len(self.address.urls)
                self._own.client = None

    def _send_and_read(self, client: Any, packed: list[bytes]) -> Any:
        for tries_left in range(self._retries, -1, -1):
            try:
                line = self._own.idle.pop()
            except IndexError:
                line = _Line(take_connection(client))
                self.opened += 1
            try:
                self._read_posted(line)
                line.connection.send_packed_command(packed, check_health=False)
                line.spin.wait(line.connection)
                answer = line.connection.read_response()
            except RedisResponseError:
                self._own.idle.append(line)
                raise
            except (ConnectionLost, AnswerLate, OSError) as error:
                # The cause, for example a restart, most likely broke all idle connections.
                stale, self._own.idle = [line, *self._own.idle], []
                for each in stale:
                    client.connection_pool.release(closed(each.connection))
                if not tries_left or (self._is_one_of and isinstance(error, AnswerLate)):
                    raise
                for each in stale:
                    if each.posted is not None:
                        self.run(*each.posted)
            except BaseException:
                # A greenlet was killed. The next command must not read this one's answer.
                client.connection_pool.release(closed(line.connection))
                raise
            else:
                line.answered_at = time.monotonic()
                self._own.idle.append(line)
                return answer
        raise AssertionError("the last try raises")

    def _take_recent(self) -> _Line | None:
        """Take the idle connection that was used last, if its server answered a moment ago."""
        try:
            line: _Line = self._own.idle.pop()
        except IndexError:
            return None
        if line.posted is not None:
            posted = line.posted
            try:
                # It was sent some time ago, so usually the answer has arrived.
                self._read_posted(line)
            except (ConnectionLost, AnswerLate, OSError):
                self.client().connection_pool.release(closed(line.connection))
                self.execute(*posted)
                return None
            except BaseException:
                # A greenlet was killed.
                self.client().connection_pool.release(closed(line.connection))
                raise
            line.answered_at = time.monotonic()
        if time.monotonic() - line.answered_at < TRUST_SECONDS:
            return line
        self._own.idle.append(line)
        return None

    def _read_posted(self, line: _Line) -> None:
        """Read the unread answer on ``line``. If it is an error, call the function again."""
        if line.posted is None:
            return
        try:
            line.connection.read_response()
        except RedisResponseError:
            # If this raises, the call stays in ``posted``.
            self.run(*line.posted)
        line.posted = None

    def client(self) -> Any:
        """Return the client of this process."""
        client = self._own.client
        if client is not None and self._own.pid == os.getpid():
            return client
        # Never make two clients: the dropped one would close its connections when it is collected,
        # even those that a thread is using.
        with self._client_lock:
            if self._own.client is None or self._own.pid != os.getpid():
                # A forked child must not use its parent's connections.
                self._own.idle = []
                # A new client may lead to another server.
                self._has_library = False
                if self._make is not None:
                    self._own.client = self._make()
                elif self.address.master_name:
                    self._own.client = self._sentinel_client()
                else:
                    self._own.client = self._server_client()
                pool = self._own.client.connection_pool
                if self._primary is None:
                    pool.connection_class = self.class_of(pool.connection_class)
                else:
                    pool.connection_class = leading_to(self._primary, pool.connection_class)
                self._own.pid = os.getpid()
            return self._own.client

    def _use_cluster(self, client: Any, redirect: Redirect) -> None:
        """Follow the slot from now on, because a node of a cluster has redirected a command."""
        with self._client_lock:
            if self._own.client is client:
                self._own.client = None
                self._primary = SlotPrimary(self.address.nodes(), redirect.slot)
                self._other_servers = 0

    def _server_client(self) -> Any:
        url = self.address.urls[self._server]
        return redis.Redis.from_url(url, **self._options, **self.address.options)

    def _sentinel_client(self) -> Any:
        from redis.sentinel import Sentinel

        given = dict(self.address.options)
        hosts, database, password, username = [], "0", None, None
        for url in self.address.urls:
            parts = urlsplit(url)
            hosts.append((parts.hostname or "localhost", parts.port or 26379))
            database = parts.path.strip("/") or database
            password = unquote(parts.password) if parts.password else password
            username = unquote(parts.username) if parts.username else username
        timeouts = {
            name: self._options[name] for name in ("socket_timeout", "socket_connect_timeout")
        }
        group: Any = Sentinel(  # type: ignore[no-untyped-call]  # redis-py has no types here
            hosts, sentinel_kwargs={**timeouts, **given.pop("sentinel_kwargs", {})}
        )
        return group.master_for(
            self.address.master_name,
            db=int(database),
            password=password,
            username=username,
            **self._options,
            **given,
        )

    def unavailable(self, error: Exception) -> LimiterUnavailable:
        """Return the LimiterUnavailable for an error of redis-py, without a password."""
        if isinstance(error, LimiterUnavailable):
            return error  # A call that was posted before could not be sent again.
        problem = str(error).replace("\n", " ") or type(error).__name__
        for url in self.address.urls:
            password = urlsplit(url).password
            if password:
                problem = problem.replace(password, "…")
        return LimiterUnavailable(
            str(self.address),
            problem,
            self.address.of_broker,
            is_not_ready=isinstance(error, ServerNotReady),
            has_answered=isinstance(error, (AuthenticationError, RedisResponseError)),
        )


def pack(parts: Sequence[Any]) -> bytes:
    """Return a command of texts and numbers in the server's protocol (RESP, byte strings)."""
    try:
        packed = "".join([f"${len(part)}\r\n{part}\r\n" for part in parts])
    except TypeError:
        # A number has no length.
        return pack([str(part) for part in parts])
    if packed.isascii():
        return f"*{len(parts)}\r\n{packed}".encode("ascii")
    # Lengths are in bytes, and some of these texts have more bytes than characters.
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part.encode()
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def closed(connection: Any) -> Any:
    """Close a connection and return it, for its pool."""
    connection.disconnect()
    return connection
