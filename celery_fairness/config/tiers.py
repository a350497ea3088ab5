"""Tiers: named plans, the four defaults of ADR-10, and the queue for a tier's tasks.

Routing follows ADR-16. Scheduled tasks of all tiers go to the scheduled queue. Tiers of
queue class ``priority`` go to the priority queue, all others and unknown tiers to the default
queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from celery_fairness.errors import got

QueueClass = Literal["priority", "default"]

#: Largest concurrency that a tier may have.
MAX_CONCURRENCY = 1_000_000
#: Largest weight that a tier may have.
MAX_WEIGHT = 1_000_000.0

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_FIELDS = {"concurrency", "weight", "queue_class", "max_waiting"}

#: Largest ``max_waiting``.
MAX_WAITING = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Tier:
    """A plan: how many tasks each of its tenants may run at once.

    Attributes:
        name: Letters, digits, ``_`` and ``-``.
        concurrency: Tasks of one tenant at once, 0 to 1,000,000. None is unlimited, 0 pauses.
        weight: Share among waiting tenants, above 0, up to 1,000,000.
        queue_class: The class of the queue for this tier's tasks.
        max_waiting: Most waiting tasks of one tenant on ``fairredis``, 1 to 1,000,000,000. None is
            unlimited.
    """

    name: str
    concurrency: int | None
    weight: float = 1.0
    queue_class: QueueClass = "default"
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        problems = tier_problems(self.name, tier_fields(self))
        if problems:
            raise ValueError("; ".join(problems))


def waiting_problems(value: Any) -> list[str]:
    """Return the problem of a ``max_waiting`` as one sentence; empty if it is valid.

    Only a put checks it. A task that comes back, such as a retry, is accepted above it.
    """
    if value is None or (type(value) is int and 1 <= value <= MAX_WAITING):
        return []
    takes = f"a whole number from 1 to {MAX_WAITING}, or None (any number)"
    return [f"max_waiting: expected {takes}, got: {got(value)}"]


def tier_problems(name: Any, fields: Mapping[str, Any]) -> list[str]:
    """Return the problems of a tier, one sentence each; empty if it is valid."""
    problems = []
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problems.append(
            f"tier name: expected 1 to 100 letters, digits, '_' or '-', got: {got(name)}"
        )
    concurrency = fields.get("concurrency")
    if concurrency is not None and not (
        type(concurrency) is int and 0 <= concurrency <= MAX_CONCURRENCY
    ):
        problems.append(
            f"concurrency: expected a whole number from 0 (pause) to {MAX_CONCURRENCY}, "
            f"or None (unlimited), got: {got(concurrency)}"
        )
    weight = fields.get("weight", 1.0)
    if type(weight) not in (int, float) or not 0 < weight <= MAX_WEIGHT:
        problems.append(
            f"weight: expected a number above 0, up to {MAX_WEIGHT:.0f}, got: {got(weight)}"
        )
    queue_class = fields.get("queue_class", "default")
    if queue_class not in ("priority", "default"):
        problems.append(f"queue_class: expected 'priority' or 'default', got: {got(queue_class)}")
    return problems + waiting_problems(fields.get("max_waiting"))


def tier_fields(tier: Tier) -> dict[str, Any]:
    """Return the fields of a tier without its name."""
    return {
        "concurrency": tier.concurrency,
        "weight": tier.weight,
        "queue_class": tier.queue_class,
        "max_waiting": tier.max_waiting,
    }


#: The tiers of ADR-10. If a setting changes pro's concurrency, ``pro_plus`` has the new one too.
DEFAULT_TIERS: Mapping[str, Tier] = {
    tier.name: tier
    for tier in (
        Tier("free", 1),
        Tier("pro", 3, queue_class="priority"),
        Tier("pro_plus", 3, queue_class="priority"),
        Tier("enterprise", 5, queue_class="priority"),
    )
}


def merge_tiers(changes: Mapping[Any, Any]) -> tuple[dict[str, Tier], list[str]]:
    """Return the default tiers with ``changes`` laid over them by name and field.

    Args:
        changes: ``{name: {field: value}}`` or ``{name: Tier}``. A value None removes a tier.

    Returns:
        The valid tiers by name, and the problems of the others, one sentence each.
    """
    fields: dict[Any, dict[str, Any]] = {n: tier_fields(t) for n, t in DEFAULT_TIERS.items()}
    del fields["pro_plus"]["concurrency"]
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
        elif unknown := sorted(set(map(str, change)) - _FIELDS):
            problems.append(
                f"{name}: expected fields concurrency, weight, queue_class, max_waiting, "
                f"got: {unknown[0]!r}"
            )
        else:
            fields.setdefault(name, {}).update(change)
    if "pro_plus" in fields and "concurrency" not in fields["pro_plus"]:
        like = fields.get("pro", {"concurrency": DEFAULT_TIERS["pro"].concurrency})
        fields["pro_plus"]["concurrency"] = like["concurrency"]
    tiers = {}
    for name, values in fields.items():
        if "concurrency" not in values:
            problems.append(f"{name}: expected a concurrency, as for every new tier, got: none")
        elif wrong := tier_problems(name, values):
            problems.extend(f"{name}: {problem}" for problem in wrong)
        else:
            tiers[name] = Tier(name, **values)
    return tiers, problems


SERVICE_EXPECTED = "expected 1 to 100 letters, digits, '_' or '-'"


def is_service_name(name: Any) -> bool:
    """Return whether a service may have this name. ADR-16: letters, digits, ``_`` and ``-``."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


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
        tier: The tenant's tier. None and unknown tiers go to the default queue.
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
