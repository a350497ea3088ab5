"""The connection to the limiter's Redis: the one edge where errors of redis-py are translated.

Every call has a time limit, so a server that hangs costs a bounded wait. A call is sent again once
after a lost connection: every function does nothing the second time. A node of a cluster that
points elsewhere makes the client a cluster's.

An address may list several servers, as a list of brokers does: the first is asked until it fails,
then the next, and so on in a circle.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import MovedError, RedisClusterException, RedisError
from redis.exceptions import OutOfMemoryError as MemoryLimit
from redis.exceptions import ResponseError as RedisResponseError
from redis.exceptions import TimeoutError as AnswerLate
from redis.retry import Retry

from celery_fairness.errors import LimiterUnavailable, SettingsError
from celery_fairness.store.address import Address
from celery_fairness.store.library import Library, LibraryUnusable, is_missing, library, load
from celery_fairness.store.readiness import attentive
from celery_fairness.store.spin import Spin

#: Errors of redis-py.
AWAY = (RedisError, RedisClusterException, OSError)

#: How long after an answer a connection is trusted to take a command whose answer is read later.
TRUST_SECONDS = 1.0


@dataclass(slots=True)
class _Line:
    """One connection and what is owed on it.

    Attributes:
        connection: Of redis-py.
        answered_at: When the server last answered on it (monotonic seconds).
        posted: What was sent without waiting for the answer: function, prefix, arguments.
        spin: Waits a moment for an answer.
    """

    connection: Any
    answered_at: float = 0.0
    posted: tuple[str, str, Sequence[Any]] | None = None
    spin: Spin = field(default_factory=Spin)


class Connection:
    """Calls the function library, and runs simple reads, on the limiter's Redis.

    Safe to share between threads, greenlets and forked processes: redis-py's pool opens new
    connections in a new process.

    Args:
        address: Where the Redis is.
        timeout_seconds: Longest wait for a connection or an answer, each.
        retries: How often a call is sent again after a lost connection.
        make: Makes the client in the place of one from the address, in every process anew.
    """

    def __init__(
        self,
        address: Address,
        timeout_seconds: float = 2.0,
        retries: int = 1,
        make: Callable[[], Any] | None = None,
    ) -> None:
        self.address = address
        self._make = make
        self._options: dict[str, Any] = {
            "protocol": 2,
            "decode_responses": True,
            "socket_timeout": timeout_seconds,
            "socket_connect_timeout": timeout_seconds,
            "retry": Retry(NoBackoff(), 0),
            "client_name": "celery_fairness",
            # As many as there are callers at once: the pool's own bound would be an outage.
            "max_connections": 2**31,
        }
        self._retries = retries
        #: Which server of a list is asked, and how many others there are.
        self._at = 0
        self._others = 0 if address.master_name or make else len(address.urls) - 1
        #: How many connections were taken; behind a new one may be another server.
        self.opened = 0
        #: The server has answered a call: it has the library.
        self._has_library = False
        self._made: Any = None
        self._made_in = 0
        self._idle: list[_Line] = []
        self._making = threading.Lock()

    def check(self) -> None:
        """Check, without connecting, that redis-py can read the address.

        Raises:
            SettingsError: It cannot.
        """
        try:
            for _ in range(self._others + 1):
                client = self.client()
                pool = client.connection_pool
                pool.connection_class(**pool.connection_kwargs)
                if self._others:
                    self._turn_from(client)
        except (ValueError, TypeError):
            # The error itself may hold a part of the password.
            raise SettingsError(
                f"{self.address.setting}: expected an address and options that redis-py can read, "
                f"got: {self.address}"
            ) from None

    def run(self, function: str, prefix: str, args: Sequence[Any]) -> Any:
        """Call ``function`` of the library for the installation with the keys of ``prefix``.

        Raises:
            LimiterUnavailable: No answer, or an error; the message says which.
        """
        try:
            return self.execute(function, prefix, args)
        except AWAY as error:
            raise self.unavailable(error) from error

    def execute(
        self, function: str, prefix: str, args: Sequence[Any], made: Library | None = None
    ) -> Any:
        """Call ``function`` as :meth:`run` does, with the errors of redis-py.

        Args:
            function: Its name in the library.
            prefix: What every key begins with.
            args: As the function reads them.
            made: Another library than the one that workers call.
        """
        parts = ("FCALL", (made or library()).function(function), "1", prefix, *args)
        try:
            answer = self._call(parts)
        except MovedError:
            self.close()
            self._made = self._cluster()
            self.load_library(prefix, made)
            answer = self._call(parts)
        except RedisResponseError as error:
            if not is_missing(error):
                raise
            self.load_library(prefix, made)
            answer = self._call(parts)
        self._has_library = self._has_library or made is None
        return answer

    def load_library(self, prefix: str, made: Library | None = None) -> None:
        """Load the library where it is absent, on a cluster on the node that has ``prefix``.

        Args:
            prefix: What every key begins with.
            made: Another library than the one that workers call.

        Raises:
            LibraryUnusable: The server cannot have it; the text has the address and the next step.
        """
        try:
            load(functools.partial(self._of_prefix, prefix), made)
        except LibraryUnusable as error:
            raise LibraryUnusable(f"{self.address}: {error}") from None

    def about_functions(self, prefix: str, *parts: str) -> Any:
        """Run one command about functions, on a cluster on the node that has ``prefix``.

        Raises:
            LimiterUnavailable: No answer, or an error.
        """
        try:
            return self._of_prefix(prefix, *parts)
        except AWAY as error:
            raise self.unavailable(error) from error

    def _of_prefix(self, prefix: str, *parts: str) -> Any:
        client = self.client()
        if isinstance(client, redis.Redis):
            return self._call(parts)
        return client.execute_command(*parts, target_nodes=client.get_node_from_key(prefix))

    def post(self, function: str, prefix: str, args: Sequence[Any]) -> None:
        """Call ``function``, whose answer nobody needs, without waiting for it.

        The next call on the same connection reads the answer, and calls again where there was
        none. A connection that has been quiet may be dead without our knowing; there, and on a
        cluster, this waits as :meth:`run` does.

        Raises:
            LimiterUnavailable: No answer, or an error, where it waited.
        """
        if not self._has_library:
            # An answer that says so would be read too late for the slot that it frees.
            self.run(function, prefix, args)
            return
        client = self.client()
        try:
            line = self._trusted() if isinstance(client, redis.Redis) else None
        except AWAY as error:
            raise self.unavailable(error) from error
        if line is None:
            self.run(function, prefix, args)
            return
        parts = ("FCALL", library().function(function), "1", prefix, *args)
        try:
            line.connection.send_packed_command([pack(parts)], check_health=False)
        except (*AWAY, ValueError):
            client.connection_pool.release(closed(line.connection))
            self.run(function, prefix, args)
        except BaseException:
            client.connection_pool.release(closed(line.connection))
            raise
        else:
            line.posted = (function, prefix, args)
            self._idle.append(line)

    def read(self, command: str, *args: Any) -> Any:
        """Run one plain command.

        Raises:
            LimiterUnavailable: No answer, or an error.
        """
        try:
            return self._call((command, *args))
        except AWAY as error:
            raise self.unavailable(error) from error

    def read_together(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Run plain commands that only read as one, and return their answers in order.

        No other client's write comes between them, but on a Redis at its memory limit: that refuses
        to queue what is to be run as one, so there they are sent one behind the other.

        Raises:
            LimiterUnavailable: No answer, or an error.
        """
        as_one, tries_left = True, self._retries + self._others
        while True:
            client = self.client()
            try:
                pipeline = client.pipeline(transaction=as_one)
                for command in commands:
                    pipeline.execute_command(*command)
                return list(pipeline.execute())
            except (ConnectionLost, AnswerLate, OSError) as error:
                if not tries_left:
                    raise self.unavailable(error) from error
                if tries_left <= self._others:
                    self._turn_from(client)
                tries_left -= 1
            except MemoryLimit as error:
                if not as_one:
                    raise self.unavailable(error) from error
                as_one = False
            except AWAY as error:
                raise self.unavailable(error) from error

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        made, self._made = self._made, None
        idle, self._idle = self._idle, []
        if made is None:
            return
        if self._made_in == os.getpid():
            # A client that was given its pool leaves the pool's connections open.
            for line in idle:
                made.connection_pool.release(closed(line.connection))
        made.close()

    def _call(self, parts: Sequence[Any]) -> Any:
        """Send one command and read its answer, on a connection of its own for that time.

        This is what a client's ``execute_command`` does without what it does besides; a task asks
        twice, and that half of the time was the client's.
        """
        packed: list[bytes] = []
        for others_left in range(self._others, -1, -1):
            client = self.client()
            if not isinstance(client, redis.Redis):
                return client.execute_command(*parts)
            packed = packed or [pack(parts)]
            try:
                return self._ask(client, packed)
            except (ConnectionLost, AnswerLate, OSError):
                if not others_left:
                    raise
                self._turn_from(client)
        raise AssertionError("the last server's error is raised")

    def _turn_from(self, client: Any) -> None:
        """Ask the next server of the list from now on, unless somebody has turned to it already."""
        with self._making:
            if self._made is client:
                self._at = (self._at + 1) % len(self.address.urls)
                self._made = None

    def _ask(self, client: Any, packed: list[bytes]) -> Any:
        for tries_left in range(self._retries, -1, -1):
            try:
                line = self._idle.pop()
            except IndexError:
                line = _Line(client.connection_pool.get_connection())
                self.opened += 1
            try:
                self._settle(line)
                line.connection.send_packed_command(packed, check_health=False)
                line.spin.wait(line.connection)
                answer = line.connection.read_response()
            except RedisResponseError:
                self._idle.append(line)
                raise
            except (ConnectionLost, AnswerLate, OSError):
                # What one idle connection suffered, a restart for instance, the others did too.
                stale, self._idle = [line, *self._idle], []
                for each in stale:
                    client.connection_pool.release(closed(each.connection))
                if not tries_left:
                    raise
                for each in stale:
                    if each.posted is not None:
                        self.run(*each.posted)
            except BaseException:
                # A greenlet that was killed here leaves an answer behind that is not the next's.
                client.connection_pool.release(closed(line.connection))
                raise
            else:
                line.answered_at = time.monotonic()
                self._idle.append(line)
                return answer
        raise AssertionError("the last try raises")

    def _trusted(self) -> _Line | None:
        """Take the idle connection that was used last, if its server answered just now."""
        try:
            line = self._idle.pop()
        except IndexError:
            return None
        if line.posted is not None:
            posted = line.posted
            try:
                # Sent some time ago: mostly the answer is here.
                self._settle(line)
            except (ConnectionLost, AnswerLate, OSError):
                self.client().connection_pool.release(closed(line.connection))
                self.execute(*posted)
                return None
            line.answered_at = time.monotonic()
        if time.monotonic() - line.answered_at < TRUST_SECONDS:
            return line
        self._idle.append(line)
        return None

    def _settle(self, line: _Line) -> None:
        """Read the answer that is owed on ``line``; run again what the server could not run."""
        if line.posted is None:
            return
        try:
            line.connection.read_response()
        except RedisResponseError:
            # While it fails too, the caller still owes it.
            self.run(*line.posted)
        line.posted = None

    def client(self) -> Any:
        """Return the client of this process."""
        made = self._made
        if made is not None and self._made_in == os.getpid():
            return made
        # Two clients would be one too many: the dropped one closes its connections when it is
        # collected, also those that a thread is using.
        with self._making:
            if self._made is None or self._made_in != os.getpid():
                # A forked child leaves its parent's connections alone.
                self._idle = []
                # Behind a new client may be another server.
                self._has_library = False
                if self._make is not None:
                    self._made = self._make()
                elif self.address.master_name:
                    self._made = self._sentinel()
                else:
                    self._made = self._server()
                pool = self._made.connection_pool
                pool.connection_class = attentive(pool.connection_class)
                self._made_in = os.getpid()
            return self._made

    def _server(self) -> Any:
        url = self.address.urls[self._at]
        return redis.Redis.from_url(url, **self._options, **self.address.options)

    def _cluster(self) -> Any:
        return redis.RedisCluster.from_url(
            self.address.urls[self._at], **self._options, **self.address.options
        )

    def _sentinel(self) -> Any:
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
        group = Sentinel(  # type: ignore[no-untyped-call]  # redis-py says no types
            hosts, sentinel_kwargs={**timeouts, **given.pop("sentinel_kwargs", {})}
        )
        return group.master_for(  # type: ignore[no-untyped-call]  # nor here
            self.address.master_name,
            db=int(database),
            password=password,
            username=username,
            **self._options,
            **given,
        )

    def unavailable(self, error: Exception) -> LimiterUnavailable:
        """Return what an error of redis-py is for callers."""
        problem = str(error).replace("\n", " ") or type(error).__name__
        for url in self.address.urls:
            password = urlsplit(url).password
            if password:
                problem = problem.replace(password, "…")
        return LimiterUnavailable(str(self.address), problem, self.address.of_broker)


def pack(parts: Sequence[Any]) -> bytes:
    """Return a command of texts and numbers as the server reads it (RESP: byte strings)."""
    try:
        packed = "".join([f"${len(part)}\r\n{part}\r\n" for part in parts])
    except TypeError:
        # A number has no length.
        return pack([str(part) for part in parts])
    if packed.isascii():
        return f"*{len(parts)}\r\n{packed}".encode("ascii")
    # Lengths are in bytes, and some of these have more of them than characters.
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part.encode()
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def closed(connection: Any) -> Any:
    """Close a connection, for its pool."""
    connection.disconnect()
    return connection
