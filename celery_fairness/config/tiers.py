"""Tiers: named plans, the four defaults of ADR-10, and the queue for a tier's tasks (ADR-16)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from celery_fairness.config.fields import one_of, problems_of, text_of, unknown_problems
from celery_fairness.config.numbers import (
    UNLIMITED,
    has_numbers_of,
    numbers_of,
    read_numbers,
    shown_numbers,
    write_numbers,
)
from celery_fairness.config.rates import RateLike
from celery_fairness.errors import SettingsError, got

QueueClass = Literal["priority", "default"]

#: ADR-16: the name of a tier or of a service. Names of queues are made from it.
NAME = text_of(r"[A-Za-z0-9_-]{1,100}", "1 to 100 letters, digits, '_' or '-'")
_RULES = {
    **{word: number.kind.rule for word, number in numbers_of("tier").items()},
    "queue_class": one_of("priority", "default"),
}


@dataclass(frozen=True, slots=True)
@has_numbers_of("tier")
class Tier:
    """A plan: how many tasks each of its tenants may run at once, and start in a period.

    Attributes:
        name: Letters, digits, ``_`` and ``-``.
        concurrency: Tasks of one tenant at once, 0 to 1,000,000. None is unlimited, 0 pauses.
        weight: Share among waiting tenants, above 0, up to 1,000,000.
        queue_class: The class of the queue for this tier's tasks.
        max_waiting: Most waiting tasks of one tenant on ``fairredis``, 1 to 1,000,000,000. None is
            unlimited.
        rate: Starts of one tenant in any window of a period, as ``RateLimitPolicy`` takes it. It is
            a :class:`~celery_fairness.config.rates.Rate` from then on. None is any number.
        throttle: Starts of one tenant in a period, evenly spaced, likewise.
        burst: Tasks of one tenant at once on ``fairredis``, while a claim finds nothing else to
            start. 1 to 1,000,000. None, or at most the concurrency, is no burst.
    """

    name: str
    concurrency: int | None
    weight: float = 1.0
    queue_class: QueueClass = "default"
    max_waiting: int | None = None
    rate: RateLike | None = None
    throttle: RateLike | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        problems = _problems(self.name, tier_fields(self))
        if problems:
            raise ValueError("; ".join(problems))
        # So that an equal number has one text in Redis, and is no news.
        for word, number in numbers_of("tier").items():
            object.__setattr__(self, word, number.kind.read(word, getattr(self, word)))
        object.__setattr__(self, "weight", float(self.weight))


def _problems(name: Any, fields: Mapping[str, Any]) -> list[str]:
    return [*NAME.problems("tier name", name), *problems_of(fields, _RULES)]


def tier_fields(tier: Tier) -> dict[str, Any]:
    """Return the fields of a tier without its name."""
    return {name: getattr(tier, name) for name in _RULES}


def tier_numbers(tier: Tier, holder: str = "tier") -> dict[str, Any]:
    """Return the limited numbers of a tier by name, in the form of a limit.

    Args:
        tier: The tier.
        holder: ``tier`` for all of them, ``tenant`` for those that decide whether a task starts.
    """
    given = {
        number.name: number.kind.merged([getattr(tier, word)])
        for word, number in numbers_of(holder).items()
    }
    return {name: value for name, value in given.items() if value is not None}


def write_tier(tier: Tier) -> str:
    """Return the row of a tier in Redis: JSON with its numbers as a text, and its queue class."""
    numbers = write_numbers(tier_numbers(tier))
    return json.dumps({"numbers": numbers, "queue_class": tier.queue_class}, sort_keys=True)


def read_tier(name: str, text: str) -> Tier:
    """Read what :func:`write_tier` wrote."""
    row = json.loads(text)
    numbers = {"concurrency": None} | shown_numbers("tier", read_numbers(row["numbers"]))
    return Tier(name, queue_class=row["queue_class"], **numbers)


#: The tiers of ADR-10. Each has its own concurrency.
DEFAULT_TIERS: Mapping[str, Tier] = {
    tier.name: tier
    for tier in (
        Tier("free", 1),
        Tier("pro", 3, queue_class="priority"),
        Tier("pro_plus", 3, queue_class="priority"),
        Tier("enterprise", 5, queue_class="priority"),
    )
}


def tiers_by_name(given: Any) -> Any:
    """Return a value of the setting ``tiers`` as a mapping by name, if it is valid.

    ``unlimited`` takes the limit off every default tier.
    """
    return {name: {"concurrency": None} for name in DEFAULT_TIERS} if given == UNLIMITED else given


def merge_tiers(changes: Mapping[Any, Any]) -> dict[str, Tier]:
    """Return the default tiers with ``changes`` laid over them by name and field.

    Args:
        changes: ``{name: {field: value}}`` or ``{name: Tier}``. A value None removes a tier.

    Raises:
        SettingsError: A tier is invalid, with one problem for each.
    """
    fields: dict[Any, dict[str, Any]] = {n: tier_fields(t) for n, t in DEFAULT_TIERS.items()}
    expected = f"expected one of {', '.join(_RULES)}"
    problems: list[str] = []
    for name, change in changes.items():
        if change is None:
            fields.pop(name, None)
        elif isinstance(change, Tier):
            if change.name != name:
                problems.append(f"{name}: expected a tier of that name, got: {change.name!r}")
            fields[name] = tier_fields(change)
        elif not isinstance(change, Mapping):
            problems.append(f"{name}: expected a mapping of fields, or None, got: {got(change)}")
        elif unknown := unknown_problems(expected, change, _RULES):
            problems += (f"{name}: {problem}" for problem in unknown)
        else:
            fields.setdefault(name, {}).update(change)
    for name, values in fields.items():
        if "concurrency" not in values:
            problems.append(f"{name}: expected a concurrency, as for every new tier, got: none")
        problems += (f"{name}: {problem}" for problem in _problems(name, values))
    if problems:
        raise SettingsError(*problems)
    return {name: Tier(name, **values) for name, values in fields.items()}


def queues_of(service: str) -> tuple[str, str, str]:
    """Return the three queues of a service: priority, default, scheduled."""
    return f"{service}_priority", f"{service}_default", f"{service}_scheduled"


def select_queue(
    service: str,
    tier: str | None,
    scheduled: bool = False,
    tiers: Mapping[str, Tier] = DEFAULT_TIERS,
) -> str:
    """Return the queue for a task of ``service``, as ADR-16 defines it.

    Args:
        service: The name of the service, with which the queue's name begins.
        tier: The tenant's tier. One of queue class ``priority`` goes to the priority queue, None,
            unknown and all other tiers go to the default queue.
        scheduled: Beat sends the task, or it is declared as scheduled. This has priority over the
            tier.
        tiers: The tiers in force.
    """
    priority, default, background = queues_of(service)
    if scheduled:
        return background
    known = tiers.get(tier) if tier is not None else None
    return priority if known is not None and known.queue_class == "priority" else default


def by_name(tiers: Iterable[Tier]) -> dict[str, Tier]:
    """Return ``tiers`` as a mapping by name."""
    return {tier.name: tier for tier in tiers}
