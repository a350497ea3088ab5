"""The lots of a rate as a model, whose states are all visited up to a number of requests.

A key with a rate has a home, which lends *lots*: some starts with a short life. Workers carry the
messages, which come late, twice or never.

    request at the partition: it stamps its clock and a new number, and its lot ends
    grant   at the home: it counts what the last lot has started, and lends another lot
    accept  at the partition: the lot lasts for LIFE ticks from the stamp

The home counts a lot as if its starts came at its end, so it may count a start too late, but never
too early. A report of the starts counts them at the time of the report.

A home with an older memory *counts*: it makes a request at all partitions, which report their
starts of the last period.

All times are relative to now. A start that left the window is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: The period of the rate, and how long a lot lasts, in ticks.
PERIOD, LIFE = 2, 2
#: The most messages under way.
MESSAGES = 2
#: A message comes twice, the clock of a partition steps back, a server is replaced, or is replaced
#: and comes back as itself.
TROUBLES = frozenset({"twice", "clock", "home", "partition", "same-home", "same-partition"})
#: A time that matters no more.
_GONE = -9


@dataclass(frozen=True)
class Rules:
    """The rules, each of which may be left out."""

    #: The home counts a lot at the last tick of its life, not at the grant.
    counts_at_the_end: bool = True
    #: It counts it later by a margin.
    home_has_margin: bool = True
    #: The life of a lot begins with the stamp of the request.
    life_from_stamp: bool = True
    #: A lot starts nothing from the next request on.
    request_ends_the_lot: bool = True
    #: The home counts the starts of a report of the lot that it lent last.
    report_counts_starts: bool = True
    #: The home rejects a request that is older than the last one.
    home_rejects_old: bool = True
    #: A partition accepts only the answer to its last request.
    accepts_last_only: bool = True
    #: A home with the memory of another server lends nothing until it has counted.
    new_home_counts: bool = True
    #: The count has the starts of the last period, not only those that were never reported.
    count_has_all_starts: bool = True
    #: A partition with the memory of another server has no lot.
    new_server_has_none: bool = True
    #: A server that was replaced and comes back is another server.
    back_is_another: bool = True
    #: The home notes the server of a partition, not the partition alone.
    holder_names_server: bool = True


class Part(NamedTuple):
    """One server of one partition.

    ``lot`` is the number of the last accepted lot, and ``own`` has the times of its starts.
    """

    p: int
    run: int
    number: int = 0
    stamp: int = _GONE
    lot: int = 0
    left: int = 0
    spent: int = 0
    until: int = _GONE
    own: tuple[int, ...] = ()


class Lot(NamedTuple):
    """What the home has of one holder. ``at`` is when its starts count."""

    p: int
    run: int
    number: int
    starts: int
    at: int


class Home(NamedTuple):
    """The home. ``counted`` has the times of starts that were reported."""

    lots: tuple[Lot, ...] = ()
    counted: tuple[int, ...] = ()
    is_new: bool = False


class Message(NamedTuple):
    """A request, or an answer with the starts of a lot."""

    is_answer: bool
    p: int
    run: int
    number: int
    lot: int
    starts: int


class World(NamedTuple):
    """One state. ``started`` has the times of real starts in the last period."""

    parts: tuple[Part, ...] = (Part(0, 0), Part(1, 0))
    home: Home = Home()
    #: The home before its last grant: what a copy of it may have.
    older: Home = Home()
    old_parts: tuple[Part, ...] = ()
    messages: tuple[Message, ...] = ()
    started: tuple[int, ...] = ()
    requests: int = 0
    troubles: int = 0


class Search:
    """All states of a key.

    Args:
        limit: Starts in a period.
        requests: How many requests are made at most.
        kinds: The troubles that happen, one in all.

    Attributes:
        states: How many were visited.
        violation: The events that led above the limit, empty if none did.
        most: The most starts in a period.
    """

    def __init__(
        self, limit: int, requests: int, kinds: frozenset[str] = frozenset(), **without: bool
    ) -> None:
        self.limit, self.kinds, self.rules = limit, kinds, Rules(**without)
        self.margin = 1 if self.rules.home_has_margin else 0
        begin = World(requests=requests, troubles=1 if kinds else 0)
        came: dict[World, tuple[World, str] | None] = {begin: None}
        todo = deque([begin])
        self.violation: tuple[str, ...] = ()
        self.most = 0
        while todo and not self.violation:
            world = todo.popleft()
            for event, after in self._steps(world):
                if after in came:
                    continue
                came[after] = world, event
                self.most = max(self.most, len(after.started))
                if len(after.started) > limit:
                    self.violation = _path(came, after)
                    break
                todo.append(after)
        self.states = len(came)

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield "a tick", _tick(world)
        for part in world.parts + world.old_parts:
            if part.left and part.until > 0:
                started = part._replace(
                    left=part.left - 1, spent=part.spent + 1, own=tuple(sorted((*part.own, 0)))
                )
                after = _with(world, started)._replace(started=tuple(sorted((*world.started, 0))))
                yield f"{part.p}.{part.run} starts", after
        if world.requests:
            for part in world.parts:
                yield f"{part.p}.{part.run} requests", self._request(world, part)
        for message in dict.fromkeys(world.messages):
            name = f"{message.p}.{message.run} #{message.number}"
            if message.is_answer:
                yield f"accept {name}: {message.starts}", self._accept(world, message)
                continue
            after = self._grant(world, message)
            yield f"grant {name}", after
            if world.troubles and "twice" in self.kinds:
                again = _send(after, message)._replace(troubles=0)
                yield f"grant {name}, which is sent again", again
        if world.home.is_new and not world.old_parts:
            yield "the home counts", self._count(world)
        if world.troubles:
            yield from self._troubles(world)

    def _request(self, world: World, part: Part) -> World:
        ends = self.rules.request_ends_the_lot
        number = part.number + 1
        request = Message(False, part.p, part.run, number, part.lot, part.spent)
        part = part._replace(number=number, stamp=0, left=0 if ends else part.left)
        after = _with(world, part)._replace(requests=world.requests - 1)
        return _send(after, request)

    def _grant(self, world: World, request: Message) -> World:
        rules, home = self.rules, world.home
        after = _without(world, request)
        run = request.run if rules.holder_names_server else 0
        known = next((each for each in home.lots if (each.p, each.run) == (request.p, run)), None)
        if known and request.number == known.number:
            return _send(after, _answer(request, known.starts))
        if known and request.number < known.number and rules.home_rejects_old:
            return after
        counted = list(home.counted)
        if known and request.lot == known.number and rules.report_counts_starts:
            counted += [0] * request.starts
        lots = [each for each in home.lots if each is not known]
        used = sum(each.starts for each in lots if each.at > -PERIOD)
        used += sum(at > -PERIOD for at in counted)
        starts = 0 if home.is_new else max(0, self.limit - used)
        at = LIFE - 1 + self.margin if rules.counts_at_the_end else 0
        lots.append(Lot(request.p, run, request.number, starts, at))
        new = Home(tuple(sorted(lots)), tuple(sorted(counted)), home.is_new)
        after = after._replace(home=new, older=home)
        return _send(after, _answer(request, starts))

    def _accept(self, world: World, answer: Message) -> World:
        after = _without(world, answer)
        for part in world.parts + world.old_parts:
            if (part.p, part.run) != (answer.p, answer.run) or part.stamp == _GONE:
                continue
            if self.rules.accepts_last_only and answer.number != part.number:
                continue
            until = (part.stamp if self.rules.life_from_stamp else 0) + LIFE
            left = answer.starts + (0 if self.rules.request_ends_the_lot else part.left)
            after = _with(
                after,
                part._replace(lot=answer.number, left=left, spent=0, until=until, stamp=_GONE),
            )
        return after

    def _count(self, world: World) -> World:
        """Count all partitions. Each makes a request, so its lot ends, and no answer is awaited."""
        lots, counted = [], list[int]()
        for part in world.parts:
            number = part.number + 1
            counted += part.own if self.rules.count_has_all_starts else [0] * part.spent
            lots.append(Lot(part.p, part.run, number, 0, 0))
            world = _with(world, part._replace(number=number, stamp=_GONE, left=0, spent=0))
        home = Home(tuple(lots), tuple(sorted(counted)))
        return world._replace(home=home, older=home)

    def _troubles(self, world: World) -> Iterator[tuple[str, World]]:
        world = world._replace(troubles=0)
        if "home" in self.kinds:
            new = world.older._replace(is_new=self.rules.new_home_counts)
            yield "the home is replaced", world._replace(home=new, older=new)
        if "same-home" in self.kinds:
            new = world.older._replace(is_new=self.rules.back_is_another)
            yield "the home comes back", world._replace(home=new, older=new)
        for part in world.parts:
            if "clock" in self.kinds:
                back = part._replace(
                    until=part.until + 1 if part.until > 0 else _GONE,
                    stamp=part.stamp + 1 if part.stamp != _GONE else _GONE,
                )
                yield f"the clock of {part.p} steps back", _with(world, back)
            if "same-partition" in self.kinds:
                # Its memory lacks all starts of the last lot.
                back = part._replace(left=part.left + part.spent, spent=0, stamp=_GONE)
                if self.rules.back_is_another:
                    back = Part(part.p, part.run + 1)
                parts = tuple(back if each is part else each for each in world.parts)
                yield f"partition {part.p} comes back", world._replace(parts=parts)
            if "partition" in self.kinds:
                new_part = Part(part.p, part.run + 1)
                if not self.rules.new_server_has_none:
                    new_part = part._replace(run=part.run + 1)
                parts = tuple(new_part if each is part else each for each in world.parts)
                yield (
                    f"partition {part.p} is replaced",
                    world._replace(parts=parts, old_parts=(part,)),
                )


def _path(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    events: list[str] = []
    while (before := came[world]) is not None:
        world, event = before
        events.insert(0, event)
    return tuple(events)


def _answer(request: Message, starts: int) -> Message:
    return Message(True, request.p, request.run, request.number, 0, starts)


def _send(world: World, message: Message) -> World:
    if len(world.messages) == MESSAGES:
        return world
    return world._replace(messages=tuple(sorted((*world.messages, message))))


def _without(world: World, message: Message) -> World:
    left = list(world.messages)
    left.remove(message)
    return world._replace(messages=tuple(left))


def _with(world: World, part: Part) -> World:
    def new(each: Part) -> Part:
        return part if (each.p, each.run) == (part.p, part.run) else each

    return world._replace(
        parts=tuple(map(new, world.parts)), old_parts=tuple(map(new, world.old_parts))
    )


def _tick(world: World) -> World:
    """Let time pass. A replaced server ends."""

    def later(part: Part) -> Part:
        until = part.until - 1 if part.until > 1 else _GONE
        stamp = part.stamp - 1 if part.stamp > -LIFE else _GONE
        own = tuple(at - 1 for at in part.own if at - 1 > -PERIOD)
        return part._replace(until=until, stamp=stamp, own=own, left=part.left if until > 0 else 0)

    def aged(home: Home) -> Home:
        lots = tuple(each._replace(at=max(each.at - 1, -PERIOD)) for each in home.lots)
        counted = tuple(at - 1 for at in home.counted if at - 1 > -PERIOD)
        return Home(lots, counted, home.is_new)

    return world._replace(
        parts=tuple(map(later, world.parts)),
        home=aged(world.home),
        older=aged(world.older),
        old_parts=(),
        started=tuple(at - 1 for at in world.started if at - 1 > -PERIOD),
    )
