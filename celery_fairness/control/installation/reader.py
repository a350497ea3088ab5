"""Reads of an installation's Redis that are bounded in memory, and never KEYS."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any, TypeVar

from celery_fairness.errors import NotWithPartitions
from celery_fairness.limiter.redis import Limiter
from celery_fairness.store.connection import time_ms
from celery_fairness.store.keys import Names

Item = TypeVar("Item")
Command = tuple[Any, ...]

#: Keys that one SCAN looks at.
SCAN_COUNT = 1000
#: Names that one HSCAN or ZSCAN looks at.
NAMES_COUNT = 250
#: Members that one HSCAN, SSCAN or ZSCAN looks at. Each may have a message.
WALK_COUNT = 100


class Reader:
    """Reads one installation.

    With several partitions it reads the tables of the home. Each partition has a reader of its own
    (:attr:`parts`), and :meth:`sums` adds up the tables of all.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter, self._connection = limiter, limiter.there
        self.keys = limiter.names
        #: The longest step of the logical clock in one call.
        self.longest_step_ms = limiter.lease_ms // 3
        #: The tables that an installation with several partitions has in its home.
        keys = self.keys
        self._of_home = {keys.clock, keys.workers, keys.tiers, keys.queue_limits}

    @cached_property
    def parts(self) -> tuple[Reader, ...]:
        """A reader of each partition. The only partition has this one."""
        return self._readers(self._limiter.parts)

    @cached_property
    def stores(self) -> tuple[Reader, ...]:
        """A reader of the home and of each partition. A lone home has this one."""
        return self._readers(self._limiter.stores)

    def _readers(self, limiters: Iterable[Limiter]) -> tuple[Reader, ...]:
        return tuple(self if each is self._limiter else Reader(each) for each in limiters)

    def _reader_of(self, part: Limiter) -> Reader:
        return self.parts[self._limiter.parts.index(part)]

    def parts_of_key(self, key: str) -> tuple[Reader, ...]:
        """Return readers of the partitions whose tasks count in a key: its tenant's, or all."""
        return tuple(map(self._reader_of, self._limiter.parts_of_key(key)))

    def meet_home(self) -> None:
        """Prepare a write in the home; see ``Limiter.meet_home``."""
        self._limiter.meet_home()

    def by_tag(self, tags: Iterable[str]) -> Iterator[tuple[Reader, list[str]]]:
        """Yield a reader of each partition that has tasks with these tags, and its tags."""
        of = defaultdict[Limiter, list[str]](list)
        for tag in tags:
            of[self._limiter.part_of_tag(tag)].append(tag)
        for limiter, its in of.items():
            yield self._reader_of(limiter), its

    def call(self, function: str, args: Sequence[Any]) -> Any:
        """Call a function of the library."""
        self._limiter.expect_number()
        with self._limiter.naming():
            prefix = self._limiter.prefix_for(function)
            return self._limiter.connection.run(function, prefix, args)

    def read(self, command: str, *args: Any) -> Any:
        """Run one plain command. With several partitions it reads a table of the home.

        Raises:
            NotWithPartitions: Each partition has this table.
        """
        if args:
            self._expect_table(command, args)
        with self._limiter.naming():
            return self._connection.read(command, *args)

    def together(self, commands: Sequence[Command]) -> list[Any]:
        """Run plain commands as one: no other client's write comes between them.

        On a Redis at its memory limit one may: see ``Connection.read_together``.
        """
        for command, *args in commands:
            self._expect_table(command, args)
        with self._limiter.naming():
            return self._connection.read_together(commands)

    def sums(self, commands: Callable[[Names], Sequence[Command]]) -> list[Any]:
        """Run plain commands in the home and in each partition, and return sums of their answers.

        Numbers are added, and in hashes those of each field. Lists become one list. A field with
        another value is left out, if there are several partitions.

        Args:
            commands: Returns the commands for the tables with these names.
        """
        answers = (each.together(commands(each.keys)) for each in self.stores)
        return [_sum(its) for its in zip(*answers, strict=True)]

    def _expect_table(self, command: str, args: Sequence[Any]) -> None:
        self._limiter.expect_number()
        if self._limiter.partitions.are_several and args[0] not in self._of_home:
            raise NotWithPartitions.of(str(self._connection.address), command)

    def scan(self) -> Iterator[str]:
        """Yield the names of all keys without the prefix. A key may occur twice."""
        self._expect_table("SCAN", [self.keys.prefix])
        start = len(self.keys.prefix)
        cursor = "0"
        while True:
            pattern = self.keys.pattern()
            scan = "SCAN", str(cursor), "MATCH", pattern, "COUNT", str(SCAN_COUNT)
            with self._limiter.naming():
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


def _sum(answers: Sequence[Any]) -> Any:
    """Return the sum of the answers to one command. A single answer stays as it is."""
    if len(answers) == 1:
        return answers[0]
    if not isinstance(answers[0], Mapping):
        is_list = isinstance(answers[0], (list, set))
        return list(chain(*answers)) if is_list else sum(int(each or 0) for each in answers)
    found: Counter[str] = Counter()
    for answer in answers:
        for field, value in answer.items():
            if value.isdecimal():
                found[field] += int(value)
    return found


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield ``items`` in lists of at most ``size``."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
