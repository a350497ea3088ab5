"""What must agree of one tenant in one queue: its count, its lanes, and where each of them stands.

As in ``checks``: the commands of one run as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_fairness.control.keys import (
    Keys,
    group_of,
    order_key,
    own_group,
    part_key,
    part_length,
    read_part,
    shared_group,
)
from celery_fairness.control.scan import Command, Reader
from celery_fairness.control.views import Finding

#: More than any sequence number; what stands before one in the order of lanes is a rank.
AFTER_ALL = 2**49
#: Lanes of one tenant in one queue that are compared with its count. There may be more: one for
#: each rank, kind of what came back, and set of limits.
LANES_AT_MOST = 1000


def orders_of(reader: Reader, key: str, queue: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the groups in which lanes of a tenant are parked, and the parts of all its lanes.

    Of each kind one more than ``LANES_AT_MOST`` where there are more.
    """
    keys = reader.keys
    flat = reader.read(
        *("ZRANGE", keys.of("parked", f"{key} {queue}"), 0, LANES_AT_MOST, "WITHSCORES")
    )
    lanes = zip(flat[::2], flat[1::2], strict=True)
    groups = tuple(dict.fromkeys(group_of(key, lane, alone) for lane, alone in lanes))
    orders: list[Command] = [
        ("ZRANGE", order_key(keys, key, group, queue), 0, LANES_AT_MOST) for group in ("", *groups)
    ]
    parts = {part: None for order in reader.together(orders) for part in order}
    return groups, tuple(parts)[: LANES_AT_MOST + 1]


@dataclass(frozen=True, slots=True)
class Place:
    """A tenant in a queue: its count, its lanes, its place in ring or full.

    Attributes:
        key: Who is charged.
        queue: Where.
        groups: In which its lanes are parked, as ``parked`` said just now.
        parts: Of its lanes, as ``ready`` and the shelves of those groups named them just now.
    """

    key: str
    queue: str
    groups: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """How it is called in a finding."""
        return f"{self.key} {self.queue}"

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        account = keys.of("account", self.key)
        orders = (order_key(keys, self.key, group, self.queue) for group in ("", *self.groups))
        return [
            ("HGET", account, f"q:{self.queue}"),
            ("HGET", account, "closed"),
            ("ZSCORE", keys.closed, self.key),
            ("ZSCORE", keys.of("ring", self.queue), self.key),
            ("ZSCORE", keys.of("full", self.queue), self.key),
            ("ZRANGE", keys.of("parked", self.name), 0, LANES_AT_MOST, "WITHSCORES"),
            *(("ZRANGE", order, 0, LANES_AT_MOST) for order in orders),
            *(part_length(keys, self.key, part, self.queue) for part in self.parts),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        count, closed, judged, ring, full, flat, ready, *rest = answers
        shelves, lengths = rest[: len(self.groups)], rest[len(self.groups) :]
        parked = {
            lane: group_of(self.key, lane, alone)
            for lane, alone in zip(flat[::2], flat[1::2], strict=True)
        }
        named = {part for order in (ready, *shelves) for part in order}
        if not named <= set(self.parts) or not set(parked.values()) <= set(self.groups):
            # One came between, and was not counted.
            return
        yield from self._counted(int(count or 0), sum(lengths))
        yield from self._stands(bool(sum(lengths)), ready, ring, full, closed, judged)
        for part, length in zip(self.parts, lengths, strict=True):
            if part in named and not length:
                yield Finding("lanes of a tenant", self.name, f"tasks in {part}", "none")
        filled = {read_part(part)[0] for order in shelves for part in order}
        for lane in sorted(parked.keys() - filled):
            found = "nothing on a shelf"
            yield Finding("parked lanes", self.name, f"tasks of {lane}", found)

    def _counted(self, counted: int, lanes: int) -> Iterator[Finding]:
        if counted != lanes:
            yield Finding(
                "waiting of a tenant", self.name, f"{lanes} (its lanes)", f"{counted} (its account)"
            )

    def _stands(
        self, waits: bool, ready: list[str], ring: Any, full: Any, closed: Any, judged: Any
    ) -> Iterator[Finding]:
        places = [kind for kind, start in (("ring", ring), ("full", full)) if start is not None]
        found = " and ".join(places) or "neither"
        if waits and len(places) != 1:
            yield Finding("place of a tenant", self.name, "ring or full", found)
        if not waits and places:
            yield Finding("place of a tenant", self.name, "neither: nothing waits", found)
        if waits and not ready and ring is not None:
            yield Finding("place of a tenant", self.name, "full: all its lanes are parked", found)
        # One with nothing ready is full whether or not it is at its limit.
        if full is not None and ready and closed is None:
            yield Finding("full is closed", self.name, "closed in its account", "not closed")
        if full is not None and ready and judged is None:
            yield Finding("full is closed", self.name, "its key in closed", "none")


@dataclass(frozen=True, slots=True)
class PartOfLane:
    """A part of a lane stands in one order, that of its lane, where its first task does.

    It may stand before that: where it is alone in its order nobody notes where its next task is.
    """

    key: str
    part: str
    queue: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        lane, kind = read_part(self.part)
        tasks = part_key(keys, self.key, self.part, self.queue)
        kinds = keys.of("kinds", f"{self.key} {lane} {self.queue}")
        return [
            ("LRANGE", tasks, 0, 0) if kind is None else ("ZRANGE", tasks, 0, 0, "WITHSCORES"),
            ("SISMEMBER", kinds, kind or ""),
            ("ZSCORE", keys.of("parked", f"{self.key} {self.queue}"), lane),
            *(
                ("ZSCORE", order_key(keys, self.key, group, self.queue), self.part)
                for group in self._groups
            ),
        ]

    @property
    def _groups(self) -> tuple[str, ...]:
        """In which it may stand; the first stands for what is ready."""
        lane = read_part(self.part)[0]
        return ("", own_group(self.key, lane), shared_group(lane)) if lane[2:] else ("",)

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        first, of_kind, alone, *orders = answers
        lane, kind = read_part(self.part)
        place = f"{self.key} {self.queue}"
        group = group_of(self.key, lane, alone)
        stands = {
            each: float(order)
            for each, order in zip(self._groups, orders, strict=True)
            if order is not None
        }
        expected = [group] if first else []
        if expected != list(stands):
            texts = (f"{self.part} {_names(each)}" for each in (expected, list(stands)))
            yield Finding("lanes of a tenant", place, *texts)
        elif first:
            yield from self._order(first, stands[group])
        if kind is not None and lane[2:] and bool(first) != bool(of_kind):
            there, marked = (str(bool(each)) for each in (first, of_kind))
            yield Finding("kinds of a lane", f"{self.key} {self.part} {self.queue}", there, marked)

    def _order(self, first: list[str], order: float) -> Iterator[Finding]:
        seq = int(first[1]) if len(first) > 1 else _seq(first[0])
        rank = 9 - int(self.part[0])
        if seq is None:
            # Whoever reads the tasks tells of one that cannot be read.
            return
        if not rank * AFTER_ALL <= order <= rank * AFTER_ALL + seq:
            name = f"{self.key} {self.part} {self.queue}"
            expected, found = f"at most {seq}", f"{order - rank * AFTER_ALL:.0f}"
            yield Finding("order of lanes", name, expected, found)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Parked lanes of a tenant in one group, which knows the tenant.

    Attributes:
        key: Who is charged.
        group: Its name.
        queue: Where.
        parts: As the shelf named them just now.
    """

    key: str
    group: str
    queue: str
    parts: tuple[str, ...]

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        parked = keys.of("parked", f"{self.key} {self.queue}")
        return [
            ("ZRANGE", order_key(keys, self.key, self.group, self.queue), 0, LANES_AT_MOST),
            ("ZSCORE", keys.of("group", f"{self.group} {self.queue}"), self.key),
            *(("ZSCORE", parked, read_part(part)[0]) for part in self.parts),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        stand, tag, *parked = answers
        name = f"{self.key} {self.group} {self.queue}"
        if stand and tag is None:
            yield Finding("a group knows its tenants", name, "its tag in group", "none")
        if not stand and tag is not None:
            yield Finding("a group knows its tenants", name, "lanes on a shelf", "only a tag")
        for part, alone in zip(self.parts, parked, strict=True):
            group = group_of(self.key, read_part(part)[0], alone)
            if part in stand and group != self.group:
                where = _names([group])
                yield Finding("parked lanes", f"{self.key} {self.queue}", where, f"{part} {name}")


@dataclass(frozen=True, slots=True)
class KindOfLane:
    """A kind of which something of a lane with limits came back."""

    key: str
    lane: str
    kind: str
    queue: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        name = f"{self.key} {self.lane}"
        return [
            ("SISMEMBER", keys.of("kinds", f"{name} {self.queue}"), self.kind),
            ("EXISTS", keys.of("back", f"{name} {self.kind} {self.queue}")),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        marked, there = answers
        if marked and not there:
            name = f"{self.key} {self.lane}b {self.kind} {self.queue}"
            yield Finding("kinds of a lane", name, "tasks that came back", "none")


def _names(groups: list[str]) -> str:
    return " and ".join(f"on the shelf of {each}" if each else "ready" for each in groups) or (
        "nowhere"
    )


def _seq(record: str) -> int | None:
    word = record.partition(" ")[0]
    return int(word) if word.isdecimal() else None
