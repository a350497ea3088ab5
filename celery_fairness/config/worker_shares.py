"""A worker's places, shared out among the three queues of a service (ADR-16).

The numbers come from variables such as ``ANALYSIS_QUEUE_PRIORITY_WORKERS``, else from the setting
``services``, else the pool is parted 50/30/20. They are of one worker process, not of all.

``strict``: places of a queue stay idle while nothing of it waits. ``borrow``: each queue is sure of
its places, and what it does not use is lent until it does, which is within one task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from celery_fairness.config.fields import read_each, read_fields
from celery_fairness.config.tiers import SERVICE_EXPECTED, is_service_name, queues_of
from celery_fairness.errors import SettingsError, got
from celery_fairness.util.durations import parse_count

#: ADR-16: the part of each class of queues in a pool, in percent; in the order of its queues.
PARTS: Mapping[str, int] = {"priority": 50, "default": 30, "scheduled": 20}
#: Most places of one queue.
MOST_PLACES = 1_000_000
#: What a number of places takes.
PLACES_EXPECTED = f"a whole number from 0 (nothing of the queue is taken) to {MOST_PLACES}"

_MODES = ("strict", "borrow")
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Service:
    """What the settings say of one service.

    Attributes:
        env_prefix: What its variables begin with; None: its name in capitals, ``-`` as ``_``.
        priority: Places for its priority queue, 0 to 1,000,000; None: not said.
        default: Likewise.
        scheduled: Likewise.
        shares: ``strict`` or ``borrow``.
    """

    env_prefix: str | None = None
    priority: int | None = None
    default: int | None = None
    scheduled: int | None = None
    shares: Literal["strict", "borrow"] = "strict"


@dataclass(frozen=True, slots=True)
class Shares:
    """What one worker has for each queue of a service.

    Attributes:
        pool: Its places in all.
        places: By queue, in the order of their classes.
        borrow: Whether what a queue does not use is lent to the others.
        warnings: What is legal and may not be meant, one sentence each.
    """

    pool: int
    places: Mapping[str, int]
    borrow: bool
    warnings: tuple[str, ...] = ()

    @property
    def queues(self) -> tuple[str, ...]:
        """Those that a worker takes tasks of."""
        return tuple(name for name, places in self.places.items() if places or self.borrow)


#: Nobody said that queues have places of their own.
NO_SHARES = Shares(0, {}, False)


def read_services(services: Mapping[Any, Any]) -> tuple[dict[str, Service], list[str]]:
    """Return what is said of services by name, and what is wrong, one sentence each.

    Args:
        services: ``{name: {"priority": 5, …}}`` or ``{name: Service}``.
    """
    return read_each(services, _name_problems, _read_service)


def _name_problems(name: Any) -> list[str]:
    return [] if is_service_name(name) else [f"service name: {SERVICE_EXPECTED}, got: {got(name)}"]


def _read_service(given: Any) -> Service:
    said, problems = read_fields(given, Service)
    prefix = said.get("env_prefix")
    if prefix is not None and not (isinstance(prefix, str) and _PREFIX.fullmatch(prefix)):
        problems.append(
            "env_prefix: expected 1 to 64 letters, digits or '_', no digit first, "
            f"got: {got(prefix)}"
        )
    for name in PARTS:
        places = said.get(name)
        plain = isinstance(places, int) and not isinstance(places, bool)
        if places is not None and not (plain and 0 <= places <= MOST_PLACES):
            problems.append(f"{name}: expected {PLACES_EXPECTED}, got: {got(places)}")
    if said.get("shares", "strict") not in _MODES:
        problems.append(f"shares: expected 'strict' or 'borrow', got: {got(said['shares'])}")
    if problems:
        raise SettingsError(*problems)
    return Service(**said)


def variables_of(name: str, service: Service) -> dict[str, str]:
    """Return the variables of a service by the class of queues that each is of."""
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
    """Share out the places of one worker.

    Args:
        name: Of the service.
        service: What the settings say of it.
        environ: Variables, which win.
        pool: The worker's places; None where nobody said: then the sum of the numbers, or as many
            as there are processors where no number is given either.
        cpus: How many processors there are.
        lends: One worker takes all queues, so that they may borrow: on ``fairredis`` alone.

    Raises:
        SettingsError: A number cannot be meant, one is missing, or they do not go into the pool.
    """
    variables = variables_of(name, service)
    said = _said(service, variables, environ)
    missing = [each for each in PARTS if each not in said]
    total = sum(said.values())
    if pool is None:
        if said and missing:
            raise SettingsError(
                f"{variables[missing[0]]}: expected a number, as of the service's other queues, or "
                "the size of the pool (--concurrency N), got: nothing"
            )
        pool = total if said else cpus
    borrow = service.shares == "borrow"
    if pool < 1:
        raise SettingsError(
            f"{', '.join(variables.values())}: expected a place for one queue at least, got: 0"
        )
    if total > pool:
        raise SettingsError(
            f"{', '.join(variables[each] for each in said)}: expected at most the {pool} places "
            f"of the pool (--concurrency), got: {total}"
        )
    rest = pool - total
    if missing and rest < len(missing) and not borrow:
        may_borrow = f"fairness.services = {{{name!r}: {{'shares': 'borrow'}}}}"
        raise SettingsError(
            f"service {name}: expected a pool with a place for each queue, {total + len(missing)} "
            f"or more (--concurrency {total + len(missing)}), got: {pool}"
            + (f"; or let queues borrow: {may_borrow}" if lends else "")
        )
    said |= part(rest, {each: PARTS[each] for each in missing})
    warnings = []
    if not missing and rest and not borrow:
        warnings.append(
            f"service {name}: {rest} of the pool's {pool} places are no queue's and stay idle"
        )
    places = {queue: said[each] for queue, each in zip(queues_of(name), PARTS, strict=True)}
    return Shares(pool, places, borrow, tuple(warnings))


def part(pool: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Part a pool by weights, what is left over to the largest remainders, the first of equals."""
    whole = sum(weights.values())
    parts = {name: pool * weight // whole for name, weight in weights.items()}
    left = pool - sum(parts.values()) if weights else 0
    remainders: Sequence[str] = sorted(
        weights, key=lambda name: pool * weights[name] % whole, reverse=True
    )
    for name in remainders[:left]:
        parts[name] += 1
    return parts


def _said(
    service: Service, variables: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, int]:
    said, problems = {}, []
    for name, variable in variables.items():
        text = environ.get(variable, "").strip()
        places = getattr(service, name)
        if text:
            places = parse_count(text, MOST_PLACES)
            if places is None:
                problems.append(f"{variable}: expected {PLACES_EXPECTED}, got: {got(text)}")
        if places is not None:
            said[name] = places
    if problems:
        raise SettingsError(*problems)
    return said
