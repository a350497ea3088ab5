"""A model of the permits of one key, and a search that visits all of its states.

A key has some permits. Its home grants them to partitions. A partition starts a task only with a
permit. Servers do not call each other. A worker carries each message, so a message may come late,
twice or never.

    request   The partition stamps its clock and takes a new number. It stops using what it returns.

    grant     The home notes the holder, its permits and their end. It may add some.

    accept    The partition adds them, if it has made no newer request. They last for LIFE ticks
              from the stamp.

A *count* makes a request at all partitions in turn. Their reports replace the home's notes.

A server may be replaced by a copy with an older memory. The old server goes on until the end of the
tick. It may also come back as itself, with the older memory of its copy. Clocks step. All times of
a state are relative to now, so the states are finite.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: How many ticks a permit lasts.
LIFE = 2
#: The most messages under way.
MESSAGES = 2
#: A message comes twice, a clock steps, the home or a partition is replaced, or it is replaced and
#: comes back as itself.
TROUBLES = frozenset({"twice", "clock", "home", "partition", "same-home", "same-partition"})
#: A time that matters no more.
_GONE = -9


@dataclass(frozen=True)
class Rules:
    """The rules, each of which may be left out."""

    #: The life of permits begins with the stamp of ``request``, not with ``accept``.
    life_from_stamp: bool = True
    #: The home counts permits for longer than the partition uses them.
    home_has_margin: bool = True
    #: A home with the memory of another server adds nothing until all noted permits have ended.
    new_home_waits: bool = True
    #: The home's clock moves by a bounded step, however far the server's clock jumps.
    home_clock_is_logical: bool = True
    #: The home rejects a request that is older than the last one.
    home_rejects_old: bool = True
    #: A partition accepts only the answer to its last request.
    accepts_last_only: bool = True
    #: A returned permit is not used from the request on.
    stops_before_it_returns: bool = True
    #: The home notes the server of a partition, not the partition alone.
    holder_names_server: bool = True
    #: A partition with the memory of another server has no permits.
    new_server_has_none: bool = True
    #: A server that was replaced and comes back is another server.
    back_is_another: bool = True
    #: A request that comes twice has the same answer.
    same_request_same_answer: bool = True
    #: The answer of a partition replaces what the home has noted.
    report_replaces: bool = True
    #: A partition that was counted for a home accepts nothing from older ones.
    counted_refuses_older: bool = True
    #: A partition is counted only if no older server of it goes on.
    counts_settled_only: bool = True
    #: A home counts only if no older home goes on.
    settled_home_counts: bool = True


class Part(NamedTuple):
    """One server of one partition. ``until`` and ``stamp`` are of its own clock."""

    p: int
    run: int
    n: int = 0
    until: int = _GONE
    number: int = 0
    stamp: int = _GONE
    returns: int = 0
    home: int = 0

    @property
    def usable(self) -> int:
        return self.n if self.until > 0 else 0


class Entry(NamedTuple):
    """The home's note of one holder."""

    p: int
    run: int
    n: int
    end: int
    number: int
    added: int


class Home(NamedTuple):
    """One server of the home. ``is_new`` means that another one wrote its memory."""

    run: int = 0
    is_new: bool = False
    entries: tuple[Entry, ...] = ()
    quiet: int = _GONE


class Message(NamedTuple):
    """A request on its way to the home, or an answer on its way to a partition."""

    is_answer: bool
    p: int
    run: int
    number: int
    n: int
    home: int = 0


class World(NamedTuple):
    """One state.

    Attributes:
        old_parts: Servers that were replaced and go on.
        count: The answers that an open count has, the home for which it was begun first.
    """

    parts: tuple[Part, ...] = (Part(0, 0), Part(1, 0))
    home: Home = Home()
    old_parts: tuple[Part, ...] = ()
    old_home: Home | None = None
    messages: tuple[Message, ...] = ()
    count: tuple[int, tuple[Message, ...]] | None = None
    troubles: int = 0

    @property
    def usable(self) -> int:
        return sum(each.usable for each in self.parts + self.old_parts)


class Step(NamedTuple):
    """One event and the state after it. ``kind`` is "progress", "free" or "trouble"."""

    kind: str
    event: str
    after: World


class Violation(Exception):
    """A state violates the limit, or permits are lost for ever."""


class Search:
    """All states of one key.

    Args:
        permits: The limit of the key.
        troubles: How many servers fail over, clocks step and messages come twice.
        has_counts: Whether partitions are counted.
        kinds: The troubles that happen.
        most: The search ends with more states than this.

    Attributes:
        states: How many it has visited.
        violation: What was violated, "" if nothing was.
        events: The events that led there.
    """

    def __init__(
        self,
        permits: int,
        troubles: int,
        rules: Rules | None = None,
        *,
        has_counts: bool = False,
        kinds: frozenset[str] = TROUBLES,
        most: int = 20_000_000,
    ) -> None:
        self.permits, self.troubles = permits, troubles
        self.rules, self.has_counts, self.kinds = rules or Rules(), has_counts, kinds
        #: The home counts permits for one tick longer for each trouble.
        self.margin = max(1, troubles) if self.rules.home_has_margin else 0
        self._numbers: dict[World, int] = {}
        self._came: list[tuple[int, str]] = []
        self._before: list[list[int]] = []
        self._freely: list[list[int]] = []
        self._full: list[int] = []
        self._gathered: list[int] = []
        self.violation, self.events = "", tuple[str, ...]()
        try:
            self._visit_all(most)
        except Violation as found:
            self.violation = str(found)

    @property
    def states(self) -> int:
        return len(self._numbers)

    def _visit_all(self, most: int) -> None:
        todo = deque([World(troubles=self.troubles)])
        self._note(todo[0], 0, "")
        while todo:
            world = todo.popleft()
            number = self._numbers[world]
            for kind, event, after in self._steps(world):
                if kind == "trouble":
                    after = after._replace(troubles=after.troubles - 1)
                after = _normal(after, self.rules)
                if after not in self._numbers:
                    self._note(after, number, event)
                    todo.append(after)
                there = self._numbers[after]
                if kind == "progress":
                    self._before[there].append(number)
                if kind != "trouble":
                    self._freely[there].append(number)
            if len(self._numbers) > most:
                raise Violation("too many states")
        self._expect_reached(self._before, self._full, "permits are lost for ever")
        self._expect_reached(self._freely, self._gathered, "no partition can have all permits")

    def _note(self, world: World, before: int, event: str) -> None:
        number = self._numbers[world] = len(self._numbers)
        self._came.append((before, event))
        self._before.append([])
        self._freely.append([])
        if world.usable > self.permits:
            self.events = self._path(number)
            raise Violation("above the limit")
        if world.usable == self.permits:
            self._full.append(number)
        if any(each.usable == self.permits for each in world.parts):
            self._gathered.append(number)

    def _path(self, number: int) -> tuple[str, ...]:
        events: list[str] = []
        while number:
            number, event = self._came[number]
            events.insert(0, event)
        return tuple(events)

    def _expect_reached(self, before: list[list[int]], goals: list[int], lost: str) -> None:
        """Expect that each state leads to one of the goals."""
        reach = bytearray(self.states)
        todo = list(goals)
        for number in todo:
            reach[number] = 1
        while todo:
            for number in before[todo.pop()]:
                if not reach[number]:
                    reach[number] = 1
                    todo.append(number)
        never = reach.find(0)
        if never >= 0:
            self.events = self._path(never)
            raise Violation(lost)

    # -- the steps --------------------------------------------------------------------------------

    def _steps(self, world: World) -> Iterator[Step]:
        yield from self._requests(world)
        for message in dict.fromkeys(world.messages):
            if message.is_answer:
                event = f"accept {message.p}.{message.run} #{message.number} +{message.n}"
                yield Step("progress", event, self._accept(world, message))
            else:
                yield from self._grants(world, message)
        if self.has_counts:
            yield from self._counts(world)
        yield Step("progress", "a tick", _tick(world))
        if world.troubles:
            yield from self._troubles(world)

    def _requests(self, world: World) -> Iterator[Step]:
        # A server that was replaced uses what it has and what is on its way. It makes no
        # request, as that would be one more holder.
        for part in world.parts:
            # A worker makes a request only after a tick, because it waits for its answer.
            if part.stamp >= 0:
                continue
            for returns in sorted({0, part.usable}):
                after, request = self._request(world, part, returns)
                event = f"request {part.p}.{part.run}, returns {returns}"
                yield Step("free" if returns else "progress", event, _send(after, request))

    def _request(
        self, world: World, part: Part, returns: int, home: int = 0
    ) -> tuple[World, Message]:
        held = part.usable
        stops = self.rules.stops_before_it_returns
        part = part._replace(
            n=held - returns if stops else held,
            until=part.until if held else _GONE,
            number=part.number + 1,
            stamp=0,
            returns=returns,
            home=max(part.home, home),
        )
        request = Message(False, part.p, part.run, part.number, held - returns)
        return _with_part(world, part), request

    def _grants(self, world: World, request: Message) -> Iterator[Step]:
        for home in (world.home, world.old_home):
            if home is None:
                continue
            is_old = home is world.old_home
            for most in sorted({self.permits, 1}, reverse=True):
                noted, answer = self._grant(home, request, most)
                after = _without(world, request)
                after = after._replace(old_home=noted) if is_old else after._replace(home=noted)
                after = _send(after, answer) if answer else after
                event = f"grant {request.p}.{request.run} #{request.number}, adds at most {most}"
                is_progress = most == self.permits and not is_old
                yield Step("progress" if is_progress else "free", event + " (old)" * is_old, after)
                if world.troubles and most == self.permits and "twice" in self.kinds:
                    yield Step("trouble", event + ", which is sent again", _send(after, request))

    def _grant(self, home: Home, request: Message, most: int) -> tuple[Home, Message | None]:
        rules = self.rules
        if home.is_new:
            quiet = LIFE + self.margin if rules.new_home_waits else _GONE
            home = home._replace(is_new=False, quiet=quiet)
        run = request.run if rules.holder_names_server else 0
        holder = (request.p, run)
        mine = next((each for each in home.entries if (each.p, each.run) == holder), None)
        if mine is not None and request.number == mine.number and rules.same_request_same_answer:
            return home, _answer(request, mine.added, home)
        if mine is not None and request.number < mine.number and rules.home_rejects_old:
            return home, None
        others = [each for each in home.entries if each is not mine]
        had = request.n
        if not rules.report_replaces and mine is not None and mine.end > 0:
            had = max(request.n, mine.n)
        free = self.permits - had - sum(each.n for each in others if each.end > 0)
        added = 0 if home.quiet > 0 else max(0, min(most, free))
        entry = Entry(request.p, run, had + added, LIFE + self.margin, request.number, added)
        home = home._replace(entries=tuple(sorted((*others, entry))))
        return home, _answer(request, added, home)

    def _accept(self, world: World, answer: Message) -> World:
        after = _without(world, answer)
        part = next((each for each in _servers(world) if _is_to(answer, each)), None)
        if part is None or part.stamp == _GONE or answer.home < part.home:
            return after
        if self.rules.accepts_last_only and answer.number != part.number:
            return after
        n = part.n + answer.n
        if not self.rules.stops_before_it_returns:
            n = max(0, n - part.returns)
        begins = part.stamp if self.rules.life_from_stamp else 0
        return _with_part(after, part._replace(n=n, until=begins + LIFE, stamp=_GONE, returns=0))

    def _counts(self, world: World) -> Iterator[Step]:
        """Count the partitions one after the other, while the home adds nothing."""
        home = world.home
        if not (home.is_new or home.quiet > 0):
            return
        if self.rules.settled_home_counts and world.old_home is not None:
            return
        run, answers = world.count or (home.run, ())
        if run == home.run and len(answers) == len(world.parts):
            after = world._replace(home=self._counted(home, answers), count=None)
            yield Step("free", "the home has counted", after)
            return
        for part in world.parts:
            if part.p in (each.p for each in answers):
                continue
            if self.rules.counts_settled_only and any(each.p == part.p for each in world.old_parts):
                continue
            known = run if self.rules.counted_refuses_older else 0
            after, request = self._request(world, part, 0, known)
            yield Step(
                "free",
                f"count {part.p}.{part.run}",
                after._replace(count=(run, tuple(sorted((*answers, request))))),
            )

    def _counted(self, home: Home, answers: tuple[Message, ...]) -> Home:
        """Return a home that has noted the answers. Answers older than its notes change nothing."""
        noted = {(each.p, each.run): each for each in home.entries}
        for each in answers:
            known = noted.get((each.p, each.run))
            if known is not None and known.number >= each.number:
                return home
        for each in answers:
            noted[each.p, each.run] = Entry(
                each.p, each.run, each.n, LIFE + self.margin, each.number, 0
            )
        return home._replace(entries=tuple(sorted(noted.values())), is_new=False, quiet=_GONE)

    def _troubles(self, world: World) -> Iterator[Step]:
        if "home" in self.kinds and world.old_home is None:
            for entries in _older(world.home.entries):
                home = world.home
                new = home._replace(run=home.run + 1, is_new=True, entries=entries)
                event = f"the home is replaced by one with {len(entries)} entries"
                yield Step("trouble", event, world._replace(home=new, old_home=home))
        if "clock" in self.kinds:
            yield from self._clock_steps(world)
        yield from self._comes_back(world)
        for part in world.parts if "partition" in self.kinds else ():
            if any(each.p == part.p for each in world.old_parts):
                continue
            new = Part(part.p, part.run + 1)
            if not self.rules.new_server_has_none:
                new = part._replace(run=part.run + 1)
            after = world._replace(old_parts=(*world.old_parts, part))
            after = after._replace(parts=_replaced(world.parts, new))
            yield Step("trouble", f"partition {part.p} is replaced", after)

    def _comes_back(self, world: World) -> Iterator[Step]:
        """Let a server be replaced and come back as itself. Its memory lacks the last request."""
        is_another = self.rules.back_is_another
        for entries in _older(world.home.entries) if "same-home" in self.kinds else ():
            home = world.home._replace(entries=entries)
            if is_another:
                home = home._replace(run=home.run + 1, is_new=True)
            event = f"the home comes back with {len(entries)} entries"
            yield Step("trouble", event, world._replace(home=home))
        for part in world.parts if "same-partition" in self.kinds else ():
            back = part._replace(n=part.n + part.returns, stamp=_GONE, returns=0)
            if is_another:
                back = Part(part.p, part.run + 1)
            parts = _replaced(world.parts, back)
            yield Step("trouble", f"partition {part.p} comes back", world._replace(parts=parts))

    def _clock_steps(self, world: World) -> Iterator[Step]:
        step = 1 if self.rules.home_clock_is_logical else 4
        after = world._replace(home=_aged(world.home, step))
        yield Step("trouble", "the clock of the home jumps", after)
        for part in world.parts:
            back = part._replace(
                until=part.until + 1 if part.until > 0 else _GONE,
                stamp=part.stamp + 1 if part.stamp != _GONE else _GONE,
            )
            yield Step("trouble", f"the clock of {part.p} steps back", _with_part(world, back))


def _is_to(message: Message, part: Part) -> bool:
    return (message.p, message.run) == (part.p, part.run)


def _answer(request: Message, added: int, home: Home) -> Message:
    return Message(True, request.p, request.run, request.number, added, home.run)


def _send(world: World, message: Message) -> World:
    if len(world.messages) == MESSAGES:
        return world
    return world._replace(messages=tuple(sorted((*world.messages, message))))


def _without(world: World, message: Message) -> World:
    left = list(world.messages)
    left.remove(message)
    return world._replace(messages=tuple(left))


def _servers(world: World) -> tuple[Part, ...]:
    return world.parts + world.old_parts


def _replaced(parts: tuple[Part, ...], part: Part) -> tuple[Part, ...]:
    return tuple(part if each.p == part.p else each for each in parts)


def _with_part(world: World, part: Part) -> World:
    if world.parts[part.p].run == part.run:
        return world._replace(parts=_replaced(world.parts, part))
    return world._replace(old_parts=_replaced(world.old_parts, part))


def _tick(world: World) -> World:
    """Let time pass: all times move one tick into the past, and replaced servers end."""

    def later(part: Part) -> Part:
        until = part.until - 1 if part.until > 1 else _GONE
        stamp = part.stamp - 1 if part.stamp - 1 > -LIFE else _GONE
        return part._replace(until=until, stamp=stamp, n=part.n if until != _GONE else 0)

    return world._replace(
        parts=tuple(map(later, world.parts)),
        home=_aged(world.home, 1),
        old_parts=(),
        old_home=None,
    )


def _aged(home: Home, ticks: int) -> Home:
    entries = tuple(
        each._replace(end=max(each.end - ticks, 0), n=each.n if each.end > ticks else 0)
        for each in home.entries
    )
    return home._replace(entries=entries, quiet=home.quiet - ticks if home.quiet > ticks else _GONE)


def _older(entries: tuple[Entry, ...]) -> Iterator[tuple[Entry, ...]]:
    """Yield what a copy may have: of each entry the last state, an older one, or none."""
    choices = [(each, each._replace(n=0, number=-1, added=0), None) for each in entries]
    for kept in itertools.product(*choices):
        yield tuple(each for each in kept if each is not None)


# -- equal states ---------------------------------------------------------------------------------


def _normal(world: World, rules: Rules) -> World:
    """Return the same state without what no later step reads, so that more states are equal.

    The numbers of one holder, its servers and the homes get the least numbers in the same order.
    """
    world = _without_stale(world, rules)
    world = _with_least_numbers(world, rules)
    one, two = world.parts
    return _swapped(world) if one[1:] > two[1:] else world


def _homes(world: World) -> tuple[Home, ...]:
    return (world.home,) if world.old_home is None else (world.home, world.old_home)


def _without_stale(world: World, rules: Rules) -> World:
    """Drop messages that change nothing, servers without permits, and counts of old homes."""
    servers = {(each.p, each.run): each for each in _servers(world)}
    kept = []
    for message in world.messages:
        part = servers.get((message.p, message.run))
        if message.is_answer:
            if part is None or part.stamp == _GONE or message.home < part.home:
                continue
            if rules.accepts_last_only and message.number != part.number:
                continue
        elif rules.home_rejects_old:
            run = message.run if rules.holder_names_server else 0
            noted = [
                next((e.number for e in home.entries if (e.p, e.run) == (message.p, run)), -1)
                for home in _homes(world)
            ]
            if all(message.number < each for each in noted):
                continue
        kept.append(message)
    count = world.count
    if count is not None:
        home = world.home
        is_open = (home.is_new or home.quiet > 0) and count[0] == home.run
        runs = {(each.p, each.run) for each in world.parts}
        if not is_open or any((each.p, each.run) not in runs for each in count[1]):
            count = None
    addressed = {(each.p, each.run) for each in kept}
    # Without counts, a server without permits to which nothing is on its way has no effect.
    old_parts = tuple(
        each
        for each in world.old_parts
        if each.usable or (each.p, each.run) in addressed or rules.counts_settled_only
    )
    return world._replace(messages=tuple(kept), count=count, old_parts=old_parts)


def _ranks(values: set[int]) -> dict[int, int]:
    return {value: rank for rank, value in enumerate(sorted(values))}


def _with_least_numbers(world: World, rules: Rules) -> World:
    counted = world.count[1] if world.count else ()
    requests = [each for each in world.messages if not each.is_answer] + list(counted)

    def of_entry(p: int, run: int) -> tuple[int, int]:
        return (p, run if rules.holder_names_server else 0)

    requested = {of_entry(each.p, each.run) for each in requests}
    pending = {(*of_entry(each.p, each.run), each.number) for each in requests}
    numbers: dict[tuple[int, int], set[int]] = {}
    for each in (*_servers(world), *world.messages, *counted):
        numbers.setdefault((each.p, each.run), set()).add(each.number)
    for home in _homes(world):
        for each in home.entries:
            if (each.p, each.run) in requested:
                numbers.setdefault((each.p, each.run), set()).add(each.number)
    number = {holder: _ranks(each) for holder, each in numbers.items()}
    runs: dict[int, set[int]] = {0: set(), 1: set()}
    for holder in numbers:
        runs[holder[0]].add(holder[1])
    if rules.holder_names_server:
        for home in _homes(world):
            for each in home.entries:
                if each.end > 0 or (each.p, each.run) in requested:
                    runs[each.p].add(each.run)
    run = {p: _ranks(each) for p, each in runs.items()}
    # A run from before all homes is 0.
    known = {each.run for each in _homes(world)}
    known |= {each.home for each in world.messages if each.is_answer}
    known |= {each.home for each in _servers(world) if each.home >= min(known)}
    home_run = {**dict.fromkeys(range(min(known)), 0), **_ranks(known)}

    def part(each: Part) -> Part:
        is_read = not (rules.stops_before_it_returns and rules.back_is_another)
        returns = each.returns if is_read else 0
        return each._replace(
            run=run[each.p][each.run],
            number=number[each.p, each.run][each.number],
            returns=returns,
            home=home_run.get(each.home, 0),
        )

    def message(each: Message) -> Message:
        return each._replace(
            run=run[each.p][each.run],
            number=number[each.p, each.run][each.number],
            home=home_run.get(each.home, 0) if each.is_answer else 0,
        )

    def entry(each: Entry) -> Entry:
        is_asked = (each.p, each.run) in requested
        is_pending = (each.p, each.run, each.number) in pending
        return each._replace(
            run=run[each.p][each.run] if rules.holder_names_server else 0,
            number=number[each.p, each.run][each.number] if is_asked else -1,
            added=each.added if is_pending else 0,
            n=each.n if each.end > 0 else 0,
        )

    def noted(home: Home) -> Home:
        entries = tuple(
            entry(each) for each in home.entries if each.end > 0 or (each.p, each.run) in requested
        )
        return home._replace(run=home_run[home.run], entries=entries)

    return _mapped(world, part, message, noted, home_run.__getitem__)


def _swapped(world: World) -> World:
    """Return the same state with the names of the partitions exchanged."""

    def part(each: Part) -> Part:
        return each._replace(p=1 - each.p)

    def message(each: Message) -> Message:
        return each._replace(p=1 - each.p)

    def home(each: Home) -> Home:
        entries = tuple(sorted(entry._replace(p=1 - entry.p) for entry in each.entries))
        return each._replace(entries=entries)

    return _mapped(world, part, message, home, lambda run: run)


def _mapped(
    world: World,
    part: Callable[[Part], Part],
    message: Callable[[Message], Message],
    home: Callable[[Home], Home],
    home_run: Callable[[int], int],
) -> World:
    """Return a world in which each server, message, home and run of a home is replaced."""
    count = world.count
    return world._replace(
        parts=tuple(sorted(map(part, world.parts))),
        home=home(world.home),
        old_parts=tuple(sorted(map(part, world.old_parts))),
        old_home=home(world.old_home) if world.old_home else None,
        messages=tuple(sorted(map(message, world.messages))),
        count=(home_run(count[0]), tuple(sorted(map(message, count[1])))) if count else None,
    )
