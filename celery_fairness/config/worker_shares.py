"""A worker's slots, divided among the three queues of a service (ADR-16).

The numbers come from variables such as ``ANALYSIS_QUEUE_PRIORITY_WORKERS`` or from the setting
``services``. Without both, the pool is divided 50/30/20. They apply to one worker process, not to
all.

``strict``: a queue's slots stay idle while none of its tasks wait. ``borrow``: other queues use
these slots until a task of the queue waits. It then gets the next free slot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from celery_fairness.config.fields import Section, optional, text_of, whole
from celery_fairness.config.tiers import queues_of
from celery_fairness.errors import SettingsError, got
from celery_fairness.util.durations import parse_count

#: ADR-16: the share of each class of queues in a pool, in percent, in the order of its queues.
PARTS: Mapping[str, int] = {"priority": 50, "default": 30, "scheduled": 20}
#: Most slots of one queue.
MOST_SLOTS = 1_000_000
#: The valid numbers of slots.
SLOTS = whole(0, MOST_SLOTS, zero="the queue is not consumed")

_PREFIX = text_of(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "1 to 64 letters, digits or '_', no digit first")
_Slots = Annotated[int | None, optional(SLOTS)]


class Service(Section):
    """The settings of one service.

    Attributes:
        env_prefix: The beginning of its variables. None means its name in capitals, ``-`` as ``_``.
        priority: Slots for its priority queue, 0 to 1,000,000. None means not set.
        default: Slots for its default queue, likewise.
        scheduled: Slots for its scheduled queue, likewise.
        shares: ``strict`` or ``borrow``.
    """

    env_prefix: Annotated[str | None, optional(_PREFIX)] = None
    priority: _Slots = None
    default: _Slots = None
    scheduled: _Slots = None
    shares: Literal["strict", "borrow"] = "strict"


@dataclass(frozen=True, slots=True)
class Shares:
    """The slots of one worker for each queue of a service.

    Attributes:
        pool: All slots of the worker.
        slots: Slots by queue, in the order of their classes.
        borrow: Whether other queues may use a queue's idle slots.
        warnings: Legal but suspicious values, one sentence each.
    """

    pool: int
    slots: Mapping[str, int]
    borrow: bool
    warnings: tuple[str, ...] = ()

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that a worker consumes."""
        return tuple(name for name, slots in self.slots.items() if slots or self.borrow)


#: No queue has slots of its own.
NO_SHARES = Shares(0, {}, False)


def variables_of(name: str, service: Service) -> dict[str, str]:
    """Return the variables of a service by class of queues."""
    prefix = service.env_prefix or re.sub("[^A-Z0-9_]", "_", name.upper())
    return {each: f"{prefix}_QUEUE_{each.upper()}_WORKERS" for each in PARTS}


def shares_of(
    name: str,
    service: Service,
    environ: Mapping[str, str],
    pool: int | None,
    cpus: int,
    lends: bool = True,
) -> Shares:
    """Divide the slots of one worker among the queues of a service.

    Args:
        name: The service's name.
        service: The service's settings.
        environ: Environment variables, which replace the settings.
        pool: The worker's slots. None means the sum of the numbers, or one slot per processor if
            no number is set.
        cpus: The number of processors.
        lends: Whether one worker consumes all queues, so that they can borrow (``fairredis`` only).

    Raises:
        SettingsError: A number is invalid or missing, or their sum is larger than the pool.
    """
    variables = variables_of(name, service)
    given = _given_slots(service, variables, environ)
    missing = [each for each in PARTS if each not in given]
    total = sum(given.values())
    if pool is None:
        if given and missing:
            raise SettingsError(
                f"{variables[missing[0]]}: expected a number, as of the service's other queues, or "
                "the size of the pool (--concurrency N), got: nothing"
            )
        pool = total if given else cpus
    borrow = service.shares == "borrow"
    if pool < 1:
        raise SettingsError(
            f"{', '.join(variables.values())}: expected a slot for at least one queue, got: 0"
        )
    if total > pool:
        raise SettingsError(
            f"{', '.join(variables[each] for each in given)}: expected at most the {pool} slots "
            f"of the pool (--concurrency), got: {total}"
        )
    rest = pool - total
    if missing and rest < len(missing) and not borrow:
        may_borrow = f"fairness.services = {{{name!r}: {{'shares': 'borrow'}}}}"
        raise SettingsError(
            f"service {name}: expected a pool with a slot for each queue, {total + len(missing)} "
            f"or more (--concurrency {total + len(missing)}), got: {pool}"
            + (f"; or let queues borrow: {may_borrow}" if lends else "")
        )
    given |= part(rest, {each: PARTS[each] for each in missing})
    warnings = []
    if not missing and rest and not borrow:
        warnings.append(
            f"service {name}: {rest} of the pool's {pool} slots belong to no queue and stay idle"
        )
    slots = {queue: given[each] for queue, each in zip(queues_of(name), PARTS, strict=True)}
    return Shares(pool, slots, borrow, tuple(warnings))


def part(pool: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divide a pool by weights. Slots that are left over go to the largest remainders, in order."""
    whole = sum(weights.values())
    parts = {name: pool * weight // whole for name, weight in weights.items()}
    left = pool - sum(parts.values()) if weights else 0
    remainders: Sequence[str] = sorted(
        weights, key=lambda name: pool * weights[name] % whole, reverse=True
    )
    for name in remainders[:left]:
        parts[name] += 1
    return parts


def _given_slots(
    service: Service, variables: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, int]:
    given, problems = {}, []
    for name, variable in variables.items():
        text = environ.get(variable, "").strip()
        slots = getattr(service, name)
        if text:
            slots = parse_count(text, MOST_SLOTS)
            if slots is None:
                problems.append(f"{variable}: expected {SLOTS.expected}, got: {got(text)}")
        if slots is not None:
            given[name] = slots
    if problems:
        raise SettingsError(*problems)
    return given
