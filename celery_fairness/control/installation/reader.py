"""Reads of an installation's Redis that are bounded in memory, and never KEYS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from celery_fairness.errors import NotWithPartitions
from celery_fairness.limiter.redis import Limiter
from celery_fairness.store.connection import time_ms

Item = TypeVar("Item")
Command = tuple[Any, ...]

#: Keys that one SCAN looks at.
SCAN_COUNT = 1000
#: Names that one HSCAN or ZSCAN looks at.
NAMES_COUNT = 250
#: Members that one HSCAN, SSCAN or ZSCAN looks at. Each may have a message.
WALK_COUNT = 100


class Reader:
    """Reads one installation."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter, self._connection = limiter, limiter.connection
        self.keys = limiter.names
        #: The longest step of the logical clock in one call.
        self.longest_step_ms = limiter.lease_ms // 3

    def call(self, function: str, args: Sequence[Any]) -> Any:
        """Call a function of the library."""
        self._limiter.expect_number()
        return self._connection.run(function, self._limiter.prefix_for(function, args), args)

    def read(self, command: str, *args: Any) -> Any:
        """Run one plain command."""
        if args:
            self._expect_one_partition(command)
        return self._connection.read(command, *args)

    def together(self, commands: Sequence[Command]) -> list[Any]:
        """Run plain commands as one: no other client's write comes between them.

        On a Redis at its memory limit one may: see ``Connection.read_together``.
        """
        self._expect_one_partition(commands[0][0])
        return self._connection.read_together(commands)

    def _expect_one_partition(self, what: str) -> None:
        self._limiter.expect_number()
        if self._limiter.partitions.are_several:
            raise NotWithPartitions.of(str(self._connection.address), what)

    def scan(self) -> Iterator[str]:
        """Yield the names of all keys without the prefix. A key may occur twice."""
        self._expect_one_partition("SCAN")
        start = len(self.keys.prefix)
        cursor = "0"
        while True:
            pattern = self.keys.pattern()
            scan = "SCAN", str(cursor), "MATCH", pattern, "COUNT", str(SCAN_COUNT)
            cursor, found = self._connection.read_there(self.keys.prefix, *scan)
            for key in found:
                yield key[start:]
            if str(cursor) == "0":
                return

    def members(self, key: str) -> Iterator[str]:
        """Yield the members of a set."""
        for part in self._walk("SSCAN", key):
            yield from part

    def pairs(self, command: str, key: str, count: int = WALK_COUNT) -> Iterator[tuple[str, str]]:
        """Yield fields and values with HSCAN, members and scores with ZSCAN.

        Args:
            command: The command.
            key: The key.
            count: How many of them one command looks at.
        """
        for part in self._walk(command, key, count):
            yield from zip(part[::2], part[1::2], strict=True)

    def _walk(self, command: str, key: str, count: int = WALK_COUNT) -> Iterator[Any]:
        cursor = "0"
        while True:
            cursor, part = self.read(command, key, cursor, "COUNT", count)
            yield part
            if str(cursor) == "0":
                return


def server_now(reader: Reader) -> int:
    """Return the server's time in ms."""
    return time_ms(reader.read("TIME"))


def logical_now(reader: Reader) -> float:
    """Return the logical time in ms that the next call will have; 0 if there is none yet."""
    logical, seen = reader.read("HMGET", reader.keys.clock, "logical", "seen")
    if not (logical and seen):
        return 0.0
    # No function has moved the clock since then.
    step_ms = max(0, server_now(reader) - int(seen))
    return float(logical) + min(step_ms, reader.longest_step_ms)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield ``items`` in lists of at most ``size``."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
