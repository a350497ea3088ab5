"""A breadth-first search of all states, and what must be true in them.

A state is final if no step of it is progress. From each state some progress leads to a final state,
so tasks do not go round in circles for ever.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from tests.interleavings.actors import PROGRESS, steps
from tests.interleavings.protocol import closed_key, is_blocked_at, is_due, is_on_hold
from tests.interleavings.world import (
    ACKS,
    CLAIMED,
    NEVER,
    PUBLISHED,
    RATE,
    STORES,
    Lease,
    Scenario,
    Task,
    World,
)

#: A task that is over and of which no process and no table has anything.
NOTHING_LEFT = Task(is_over=True)


class Found(NamedTuple):
    """The result of a search."""

    states: int
    #: The broken invariant, or "".
    problem: str
    #: The shortest sequence of events that breaks it.
    events: tuple[str, ...]


def search(scenario: Scenario) -> Found:
    """Look at all states. Stop at the first violation."""
    first = World(scenario)
    numbers = {identity_of(first): 0}
    #: By the number of a state: the state before it, and the event.
    came: list[tuple[int, str]] = [(0, "")]
    #: By the number of a state: the states from which progress leads to it.
    before: list[list[int]] = [[]]
    #: Numbers of states as a step leaves them, not tidy yet.
    known: dict[Any, int] = {}
    finals = []
    todo = deque([(0, first)])

    def found(problem: str, number: int, *last: str) -> Found:
        events = list(last)
        while number:
            number, event = came[number]
            events.insert(0, event)
        return Found(len(came), problem, tuple(events))

    while todo:
        number, world = todo.popleft()
        is_final = True
        for kind, event, then in steps(world):
            problem = then.problem or lost(then) or asleep(then)
            if problem:
                return found(problem, number, event)
            identity = identity_of(then)
            after = known.get(identity)
            if after is None:
                tidy(then)
                after = known[identity] = numbers.setdefault(identity_of(then), len(came))
                if after == len(came):
                    came.append((number, event))
                    before.append([])
                    todo.append((after, then))
            if kind == PROGRESS:
                is_final = False
                before[after].append(number)
        if is_final:
            finals.append(number)
            problem = wrong_at_the_end(world)
            if problem:
                return found(problem, number)
    circle = first_that_reaches_none(finals, before)
    if circle is not None:
        return found("tasks go round in circles", circle)
    return Found(len(came), "", ())


def first_that_reaches_none(finals: list[int], before: list[list[int]]) -> int | None:
    """Return the first state from which no progress leads to a final state, or None."""
    reaches, todo = set(finals), list(finals)
    while todo:
        new = set(before[todo.pop()]) - reaches
        reaches |= new
        todo += new
    return next((number for number in range(len(before)) if number not in reaches), None)


def identity_of(world: World) -> tuple[Any, ...]:
    """Return what equal states have in common."""
    return (
        world.tasks,
        world.keys,
        world.leases,
        world.messages,
        world.promoters,
        world.workers,
        world.outsider,
        world.window,
        world.troubles,
    )


def tidy(world: World) -> None:
    """Remove what no later step depends on, so that more states are equal."""
    rules = world.scenario.rules
    for key, kept in enumerate(world.keys):
        if (kept.available or kept.timed) and not is_blocked_at(world, key):
            world.set_key(key, available=False, timed=False)
    if rules.late_sent_is_a_no_op and rules.names_never_repeat:
        for hand in world.promoters:
            lease = Lease(hand.task, hand.serial, CLAIMED)
            if hand.does == PUBLISHED and lease not in world.leases:
                world.remove(hand)
    if not world.troubles:
        # Only the death of a worker makes a difference before it acknowledges.
        for worker in world.workers:
            if worker.does in (ACKS, STORES):
                world.remove(worker)
                if worker.does == STORES:
                    world.set(worker.task, is_over=True)
    for task, kept in enumerate(world.tasks):
        bags = (world.messages, world.promoters, world.workers)
        alive = {each.serial for bag in bags for each in bag if each.task == task}
        alive |= {each.sends for each in world.workers if each.task == task} - {NEVER}
        has_slot = kept.reserved or any(lease.task == task for lease in world.leases)
        if kept.is_over and not (alive or kept.record or has_slot):
            world.set(task, **NOTHING_LEFT._asdict())
        elif not kept.started <= alive:
            world.set(task, started=kept.started & alive)


def lost(world: World) -> str:
    """Return whether a task is nowhere and not over."""
    for task, kept in enumerate(world.tasks):
        if kept.is_over or kept.record or any(each.task == task for each in world.messages):
            continue
        hands = (*world.promoters, *world.workers)
        if not any(each.task == task and each.does not in (PUBLISHED, ACKS) for each in hands):
            return "a task is lost"
    return ""


def asleep(world: World) -> str:
    """Return whether a lane is blocked, its limits are open, and no claim looks at it."""
    for task, kept in enumerate(world.tasks):
        at = kept.blocked_at
        is_seen = at == NEVER or world.keys[at].available or (at == RATE and is_due(world))
        if not is_seen and closed_key(world, task) is None:
            return "a task waits at open limits"
    return ""


def wrong_at_the_end(world: World) -> str:
    """Return what is wrong in a final state, or ""."""
    if world.leases or any(task.reserved for task in world.tasks):
        return "a slot is held for nothing"
    for task, kept in enumerate(world.tasks):
        if kept.record and kept.expired:
            return "an expired task waits"
        if kept.record and not is_on_hold(world, task):
            return "a task waits at open limits"
    return ""
