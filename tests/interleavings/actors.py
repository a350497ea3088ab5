"""Everything that may happen next, one step of one actor at a time.

A step is progress, or trouble, or neither. Progress happens in the end: a process that lives goes
on, a window passes, a lease that nobody uses ends. Trouble costs one of the search's troubles.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.interleavings import protocol
from tests.interleavings.world import (
    ACKS,
    ASKS,
    CLAIMED,
    LATE,
    NEVER,
    ORPHAN,
    PARKS,
    PUBLISHED,
    RATE,
    RUNS,
    SENDS_BACK,
    SLOT,
    STORES,
    STUCK,
    WAITS,
    Copy,
    Lease,
    Worker,
    World,
)

PROGRESS, TROUBLE, FREE = "progress", "trouble", "free"
PROMOTERS = 2
NAMES = "AB"

Step = tuple[str, str, World]


def steps(world: World) -> Iterator[Step]:
    """Yield each step: its kind, what happens, and the state after it."""
    for part in (of_promoters, of_broker, of_workers, of_time, of_operators):
        for kind, event, then in part(world):
            if kind == TROUBLE:
                then.troubles -= 1
            yield kind, event, then


def of_promoters(world: World) -> Iterator[Step]:
    if len(world.promoters) < PROMOTERS:
        for task, kept in enumerate(world.tasks):
            at = kept.blocked_at
            if kept.record == WAITS and (at == NEVER or world.keys[at].available):
                then = world.copy()
                protocol.claim(then, task)
                yield PROGRESS, f"a promoter claims {NAMES[task]}", then
    for hand in dict.fromkeys(world.promoters):
        what = name_of(hand)
        then = world.without(hand)
        if hand.does == PUBLISHED:
            protocol.settle_sent(then, hand)
            yield PROGRESS, f"a promoter settles sent {what}", then
        else:
            then.add(hand._replace(does=PUBLISHED))
            then.add(Copy(hand.task, hand.serial))
            yield FREE if hand.does == STUCK else PROGRESS, f"a promoter publishes {what}", then
        if not world.troubles:
            continue
        yield TROUBLE, f"the promoter of {what} dies", world.without(hand)
        if hand.does == CLAIMED:
            for outcome in ("", "failed"):
                then = world.without(hand)
                protocol.settle_back(then, hand, outcome)
                yield TROUBLE, f"the broker does not take {what} {outcome}", then
            if not any(each.does == STUCK for each in world.promoters):
                then = world.without(hand)
                then.add(hand._replace(does=STUCK))
                yield TROUBLE, f"the promoter of {what} is stuck", then


def of_broker(world: World) -> Iterator[Step]:
    for message in dict.fromkeys(world.messages):
        task, what = message.task, name_of(message)
        worker = Worker(task, message.serial, ASKS, unacked=not world.scenario.early_ack)
        then = world.without(message)
        if world.tasks[task].expired:
            # Celery ends it before the gate.
            protocol.revoke(then, message)
            yield PROGRESS, f"a worker revokes {what}", then
            if world.troubles:
                then = world.without(message)
                protocol.acquire(then, worker)
                yield TROUBLE, f"a gate asks for {what}, received before it expired", then
            continue
        protocol.acquire(then, worker)
        yield PROGRESS, f"a gate asks for {what}", then
        if world.troubles and worker.unacked:
            then = world.without(message)
            then.add(worker._replace(unacked=False))
            deliver_again(then, worker)
            yield TROUBLE, f"the broker delivers {what} to two workers", then
        if world.troubles:
            # ADR 3 does not cover a copy that goes back while an older delivery of it may start.
            if not any(each[:2] == message for each in world.workers):
                then = world.without(message)
                protocol.acquire(then, worker, local=True)
                yield TROUBLE, f"a gate rejects {what} by its worker's limit", then
            then = world.without(message)
            protocol.acquire(then, worker, repeated=True)
            yield TROUBLE, f"a gate asks for {what}, and again without an answer", then
    if world.troubles:
        for worker in dict.fromkeys(world.workers):
            if worker.unacked:
                then = world.without(worker)
                then.add(worker._replace(unacked=False))
                deliver_again(then, worker)
                yield TROUBLE, f"the broker delivers {name_of(worker)} again", then


def deliver_again(world: World, worker: Worker, lives: bool = True) -> None:
    """Put the message of a delivery back on the broker.

    If two workers have the message, or its body has started, a body may start again.
    """
    world.add(Copy(worker.task, worker.serial))
    if lives or worker.serial in world.tasks[worker.task].started:
        world.allow_another_start(worker.task)


def of_workers(world: World) -> Iterator[Step]:
    for worker in dict.fromkeys(world.workers):
        what, does = name_of(worker), worker.does
        then = world.without(worker)
        if does == PARKS:
            protocol.park(then, worker)
            then.add(worker._replace(does=ACKS))
            yield PROGRESS, f"a gate parks {what}", then
        elif does == SENDS_BACK:
            then.add(Copy(worker.task, worker.sends))
            if worker.sends == worker.serial:
                # The scheduler did not answer: twice is better than never (ADR 3).
                then.allow_another_start(worker.task)
            then.add(worker._replace(does=ACKS, sends=NEVER))
            yield PROGRESS, f"a gate sends {what} back as {worker.sends}", then
        elif does in (RUNS, LATE):
            protocol.settle_done(then, worker)
            yield PROGRESS, f"the body of {what} ends", then
        elif does == STORES:
            then.set(worker.task, is_over=True)
            yield PROGRESS, f"a worker stores the result of {what} and acknowledges it", then
        elif does == ACKS:
            yield PROGRESS, f"a worker acknowledges {what}", then
        if not world.troubles:
            continue
        if does == PARKS:
            for arrives in (True, False):
                then = world.without(worker)
                if arrives:
                    protocol.park(then, worker)
                then.add(worker._replace(does=SENDS_BACK, sends=worker.serial))
                yield TROUBLE, f"a gate parks {what}, no answer, arrived: {arrives}", then
        then = world.without(worker)
        if does == RUNS:
            then.remove(Lease(worker.task, 0, RUNS))
            then.add(Lease(worker.task, 0, ORPHAN))
        if worker.unacked:
            deliver_again(then, worker, lives=False)
        elif world.scenario.early_ack:
            then.set(worker.task, is_over=True)
        yield TROUBLE, f"the worker of {what} dies", then


def of_time(world: World) -> Iterator[Step]:
    if world.keys[RATE].counted or world.window:
        then = world.copy()
        then.window = False
        then.set_key(RATE, counted=False)
        yield PROGRESS, "the window passes", then
    if protocol.is_due(world):
        then = world.copy()
        protocol.look(then)
        yield PROGRESS, "claims look at the rate again", then
    if world.outsider:
        then = world.copy()
        then.outsider = False
        protocol.wake(then, (SLOT,))
        yield PROGRESS, "the outsider ends", then
    for lease in dict.fromkeys(world.leases):
        kind = ending_of(world, lease)
        if kind == PROGRESS or (kind == TROUBLE and world.troubles):
            then = world.copy()
            protocol.end_lease(then, lease)
            if lease.state == RUNS:
                runs = next(w for w in then.workers if (w.task, w.does) == (lease.task, RUNS))
                then.remove(runs)
                then.add(runs._replace(does=LATE))
            yield kind, f"the lease {NAMES[lease.task]}{lease.name} ({lease.state}) ends", then
    for task, kept in enumerate(world.tasks):
        if kept.expired and kept.expires and kept.record == WAITS:
            then = world.copy()
            protocol.end_task(then, task, "expired")
            yield PROGRESS, f"the record of {NAMES[task]} expires", then
        if world.troubles and kept.current is not None and not has_copies(world, task):
            then = world.copy()
            then.set(task, current=None, following=None, admitted=None)
            yield TROUBLE, f"the memory of the copies of {NAMES[task]} ends", then
        if world.troubles and not kept.expired and not kept.is_over:
            then = world.copy()
            then.set(task, expired=True)
            yield TROUBLE, f"{NAMES[task]} expires", then


def has_copies(world: World, task: int) -> bool:
    """Return whether there is a message of a task, or a process that may publish one."""
    bags = (world.messages, world.promoters, world.workers)
    return any(each.task == task for bag in bags for each in bag)


def ending_of(world: World, lease: Lease) -> str | None:
    """Return whether the end of a lease is progress or trouble, or None if it cannot end."""
    if lease.state == ORPHAN:
        return PROGRESS
    if lease.state == RUNS:
        return TROUBLE
    hands = [each for each in world.promoters if each[:2] == lease[:2]]
    if hands and not world.scenario.rules.promotions_are_not_renewed:
        return None
    if any(hand.does != STUCK for hand in hands):
        return TROUBLE
    is_coming = any(message.task == lease.task for message in world.messages)
    return TROUBLE if is_coming else PROGRESS


def of_operators(world: World) -> Iterator[Step]:
    for key in sorted({key for keys in world.scenario.keys for key in keys}):
        if world.keys[key].held:
            then = world.copy()
            then.set_key(key, held=False)
            protocol.wake(then, (key,))
            yield FREE, f"a hold on key {key} ends", then
        elif world.troubles:
            then = world.copy()
            then.set_key(key, held=True)
            yield TROUBLE, f"a hold on key {key} begins", then
    for task, kept in enumerate(world.tasks):
        if world.troubles and kept.record == WAITS:
            then = world.copy()
            protocol.end_task(then, task, "cancelled")
            yield TROUBLE, f"somebody cancels {NAMES[task]}", then


def name_of(item: Copy | Worker) -> str:
    """Return a copy's name in the list of events."""
    return f"{NAMES[item.task]}{item.serial}"
