"""The functions of the scheduler. Each is one atomic call.

Invariant: at most one serial of a task is valid after a claim, that of the claim's lease. So a copy
that is not superseded ends the live promotion lease of its name, and no other copy meets one.
"""

from __future__ import annotations

from tests.interleavings.world import (
    ACKS,
    CLAIMED,
    FIRST,
    FIRST_SENT_BACK,
    NEVER,
    ORPHAN,
    PARKS,
    RATE,
    RUNS,
    SENDS_BACK,
    SENT,
    SLOT,
    STORES,
    WAITS,
    Copy,
    Lease,
    Promoter,
    Worker,
    World,
)

# -- limits -----------------------------------------------------------------------------------


def closed_key(world: World, task: int) -> int | None:
    """Return the first key that keeps a task from starting now, or None."""
    rules, keys_of = world.scenario.rules, world.scenario.keys
    for key in keys_of[task]:
        if world.keys[key].held:
            return key
        if key == RATE and (world.keys[key].counted or is_reserved(world, task)):
            return key
        if key == SLOT and world.outsider:
            return key
        for lease in world.leases if key == SLOT else ():
            counts = lease.state in (RUNS, ORPHAN) or rules.promotions_count_as_slots
            if counts and SLOT in keys_of[lease.task]:
                return key
    return None


def is_reserved(world: World, task: int) -> bool:
    """Return whether another task has reserved the start of the rate."""
    others = (each for number, each in enumerate(world.tasks) if number != task)
    return world.scenario.rules.reservations_count and any(each.reserved for each in others)


def is_on_hold(world: World, task: int) -> bool:
    """Return whether an operator holds a key of a task."""
    return any(world.keys[key].held for key in world.scenario.keys[task])


def is_behind(world: World, task: int) -> bool:
    """Return whether a newcomer must wait behind a task that is blocked at one of its keys."""
    keys = world.scenario.keys[task]
    others = (each for number, each in enumerate(world.tasks) if number != task)
    is_blocked = any(each.record == WAITS and each.blocked_at in keys for each in others)
    return world.tasks[task].newcomer and is_blocked


def wake(world: World, keys: tuple[int, ...]) -> None:
    """Let claims look at the lanes that are blocked at these keys."""
    for key in keys:
        if is_blocked_at(world, key):
            world.set_key(key, available=True)


def is_blocked_at(world: World, key: int) -> bool:
    """Return whether a lane is blocked at a key."""
    return any(each.blocked_at == key for each in world.tasks)


def block(world: World, task: int, key: int) -> None:
    """Block the lane of a task at a key. A timer looks at a rate again."""
    world.set(task, record=WAITS, blocked_at=key)
    if key == RATE and (world.keys[RATE].counted or world.scenario.rules.a_reservation_is_timed):
        world.set_key(RATE, timed=True)


def is_due(world: World) -> bool:
    """Return whether the timer of the rate finds it open."""
    rate = world.keys[RATE]
    is_reserved = world.scenario.rules.reservations_count and any(x.reserved for x in world.tasks)
    return rate.timed and not (rate.held or rate.counted or is_reserved)


def look(world: World) -> None:
    """The timer of the rate lets claims look at its lanes."""
    world.set_key(RATE, timed=False)
    wake(world, (RATE,))


# -- leases and records -----------------------------------------------------------------------


def promotion_of(world: World, task: int, serial: int) -> Lease | None:
    """Return the live promotion lease of a copy."""
    for lease in world.leases:
        if lease[:2] == (task, serial) and lease.state in (CLAIMED, SENT):
            return lease
    return None


def end_lease(world: World, lease: Lease) -> None:
    """End a lease, as a sweep does. The record of a claimed task goes back to its lane."""
    rules, task = world.scenario.rules, lease.task
    world.remove(lease)
    if lease.state in (CLAIMED, SENT):
        if lease.state == CLAIMED and world.tasks[task].record == CLAIMED:
            world.set(task, record=WAITS, blocked_at=NEVER)
            if rules.promotion_is_no_start:
                world.set(task, expires=True)
        if rules.reservations_end_with_the_lease:
            world.set(task, reserved=False)
    if rules.each_end_wakes:
        wake(world, world.scenario.keys[task])


def end_promotion(world: World, promotion: Lease) -> None:
    """End the promotion of a copy that came to a gate or was revoked. Its task waits no more."""
    world.remove(promotion)
    world.set(promotion.task, reserved=False)


def delete_record(world: World, task: int) -> None:
    """Delete a record from its lane, or from its lease."""
    world.set(task, record="", blocked_at=NEVER)


def end_task(world: World, task: int, outcome: str) -> None:
    """Store an outcome in place of a record."""
    world.set(task, outcome=outcome, is_over=True)
    delete_record(world, task)
    if world.scenario.rules.an_outcome_makes_serials_stale:
        remember(world, task, NEVER, NEVER)


# -- the memory of copies -----------------------------------------------------------------------


def is_superseded(world: World, task: int, serial: int) -> bool:
    """Return whether a copy must not run."""
    if not world.scenario.rules.copies_are_checked:
        return False
    kept = world.tasks[task]
    if kept.admitted is not None:
        return kept.admitted != serial
    return kept.current is not None and serial not in (kept.current, kept.following)


def remember(world: World, task: int, current: int, following: int) -> None:
    """Store the serials that may run from now on."""
    world.set(task, current=current, following=following, admitted=None)


# -- functions of the gate ------------------------------------------------------------------------


def acquire(world: World, worker: Worker, local: bool = False, repeated: bool = False) -> None:
    """A copy comes to a gate.

    Args:
        world: The state.
        worker: The delivery. It is not among the workers of the state.
        local: The worker's own limit rejects the task if the others do not.
        repeated: The first answer is lost, and the gate calls again.
    """
    rules, task, serial = world.scenario.rules, worker.task, worker.serial
    if is_superseded(world, task, serial):
        world.add(worker._replace(does=ACKS))
        return
    promotion = promotion_of(world, task, serial)
    if promotion and rules.arrival_ends_the_promotion:
        end_promotion(world, promotion)
    if rules.arrival_ends_the_record:
        delete_record(world, task)
    closed = closed_key(world, task) is not None or is_behind(world, task)
    if promotion and not rules.promotions_are_checked_again:
        closed = False
    if closed or local:
        if promotion and not is_on_hold(world, task) and not local:
            world.problem = "a promoted task is rejected by its own limit"
        reject(world, worker, by_worker=local and not closed)
        return
    world.add(Lease(task, 0, RUNS))
    if RATE in world.scenario.keys[task] and (not promotion or rules.rates_count_at_arrival):
        world.set_key(RATE, counted=True)
    is_remembered = serial != FIRST or world.tasks[task].current is not None
    if is_remembered and rules.a_start_makes_others_stale:
        world.set(task, admitted=serial)
    if repeated and not rules.own_lease_first:
        # The second call finds the slot of the first one taken.
        world.remove(Lease(task, 0, RUNS))
        world.add(Lease(task, 0, ORPHAN))
        if promotion:
            world.problem = "a promoted task is rejected by its own limit"
        reject(world, worker, by_worker=False)
        return
    world.problem = start(world, worker)


def reject(world: World, worker: Worker, by_worker: bool) -> None:
    """Reject a copy. A limit of the worker sends it back, other limits let it wait."""
    if world.scenario.rules.each_end_wakes:
        wake(world, world.scenario.keys[worker.task])
    sends = world.fresh_name(worker.task, FIRST_SENT_BACK) if by_worker else NEVER
    remember(world, worker.task, worker.serial, sends)
    world.add(worker._replace(does=SENDS_BACK if by_worker else PARKS, sends=sends))


def start(world: World, worker: Worker) -> str:
    """Start a body. Return which invariant that breaks, or ""."""
    task, serial = worker.task, worker.serial
    keys, kept = world.scenario.keys[task], world.tasks[task]
    others = [each for each in world.workers if each.does == RUNS]
    problem = ""
    if serial not in kept.started and kept.starts > kept.redelivered:
        problem = "a body starts twice"
    if kept.outcome:
        problem = "a body starts after its outcome"
    if is_on_hold(world, task):
        problem = "a body starts during a hold"
    if RATE in keys and world.window:
        problem = "more starts in a window than the rate"
    if SLOT in keys and world.outsider:
        problem = "more running than the limit"
    if SLOT in keys and any(SLOT in world.scenario.keys[each.task] for each in others):
        problem = "more running than the limit"
    if serial not in kept.started:
        world.set(task, started=kept.started | {serial}, starts=kept.starts + 1)
    world.window = world.window or RATE in keys
    world.add(worker._replace(does=RUNS))
    return problem


def revoke(world: World, copy: Copy) -> None:
    """A worker ends a copy before it comes to a gate. The worker releases the lease of its name."""
    world.set(copy.task, is_over=True)
    promotion = promotion_of(world, copy.task, copy.serial)
    if promotion:
        end_promotion(world, promotion)
        wake(world, world.scenario.keys[copy.task])
    if promotion or world.tasks[copy.task].record == WAITS:
        delete_record(world, copy.task)


def park(world: World, worker: Worker) -> None:
    """Store the task of a rejected copy. Its lane is blocked at once if a limit is closed."""
    rules, task = world.scenario.rules, worker.task
    if is_superseded(world, task, worker.serial):
        return
    key = closed_key(world, task)
    if key is None and not rules.park_asks_limits_again:
        key = world.scenario.keys[task][0]
    if not world.tasks[task].record:
        world.set(task, record=WAITS, attempts=0)
        if key is not None:
            block(world, task, key)
    world.set(task, newcomer=False)
    remember(world, task, NEVER, NEVER)


def settle_done(world: World, worker: Worker) -> None:
    """A body ended: end its lease. A late one has none any more."""
    task = worker.task
    if worker.does == RUNS:
        end_lease(world, Lease(task, 0, RUNS))
    if not world.scenario.rules.done_withdraws_nothing and world.tasks[task].record == WAITS:
        delete_record(world, task)
        remember(world, task, worker.serial, NEVER)
    world.add(worker._replace(does=STORES))


# -- functions of the promoter ------------------------------------------------------------------


def claim(world: World, task: int) -> None:
    """Take one waiting task, or block its lane at a limit that is closed."""
    rules, kept = world.scenario.rules, world.tasks[task]
    key = closed_key(world, task)
    if key is not None:
        if kept.blocked_at == key:
            world.set_key(key, available=False)
        block(world, task, key)
        return
    name = world.fresh_name(task, 1)
    if not rules.names_never_repeat:
        name = kept.attempts + 1
        world.set(task, attempts=name)
    world.set(task, record=CLAIMED, blocked_at=NEVER, reserved=RATE in world.scenario.keys[task])
    remember(world, task, name, name)
    if not rules.promotion_is_no_start:
        world.set(task, expires=False)
    world.add(Lease(task, name, CLAIMED))
    if RATE in world.scenario.keys[task] and not rules.rates_count_at_arrival:
        world.set_key(RATE, counted=True)
    world.add(Promoter(task, name, CLAIMED))


def settle_sent(world: World, hand: Promoter) -> None:
    """The broker has confirmed the copy: the record goes, the lease stays for its time."""
    lease = Lease(hand.task, hand.serial, CLAIMED)
    if lease in world.leases:
        world.remove(lease)
        world.add(lease._replace(state=SENT))
        delete_record(world, hand.task)
    elif not world.scenario.rules.late_sent_is_a_no_op:
        delete_record(world, hand.task)


def settle_back(world: World, hand: Promoter, outcome: str = "") -> None:
    """The broker did not take the copy: its task waits again, or ends."""
    lease = Lease(hand.task, hand.serial, CLAIMED)
    if lease in world.leases:
        end_lease(world, lease)
        if outcome:
            end_task(world, hand.task, outcome)
