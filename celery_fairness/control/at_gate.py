"""The tasks before a parked task: of its own tenant, and of other tenants by their turns.

Weakness: the weights of the first tenants are a sample for those of all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from celery_fairness.config.tiers import Tier
from celery_fairness.control.forecast import Before, Turn, before_it
from celery_fairness.control.keys import read_parked, turn_name
from celery_fairness.control.scan import Reader, batches
from celery_fairness.scheduler.cost import cost_of

#: Size of the sample of tenants whose tasks before a task are counted.
TENANTS_AT_MOST = 1000
#: Tenants in one call.
BATCH = 100
#: Tenants whose tier is read from their first task, with its whole message.
TIERS_AT_MOST = 100


class BeforeParked(NamedTuple):
    """The tasks before a parked task.

    Attributes:
        of_tenant: Older tasks of its tenant at the same limit.
        tenants: Tenants that have their turn before its tenant.
        tasks: All tasks before it.
    """

    of_tenant: int
    tenants: int
    tasks: Before


def before_parked(
    reader: Reader, tiers: Mapping[str, Tier], tenant: str, place: str, tag: str
) -> BeforeParked | None:
    """Return the tasks before a task at a limit; None if it does not wait there.

    Args:
        reader: The reader of the installation.
        tiers: Tiers in force. Under "" is the tier for tenants of an unknown tier.
        tenant: Tenant of the task.
        place: The limit's name, or the key of a tier limit.
        tag: Delivery tag of the task.
    """
    keys = reader.keys
    lane, turns = keys.of("gate_at", f"{tenant} {place}"), keys.of("gate_turns", place)
    ahead, first = reader.together(
        [("ZRANK", lane, tag), ("ZRANGE", lane, 0, 0, "WITHSCORES")],
    )
    if ahead is None:
        return None
    own = turn_name(tenant, int(float(first[1])))
    at, rank = reader.together([("ZSCORE", turns, own), ("ZRANK", turns, own)])
    if at is None:
        return BeforeParked(int(ahead), 0, Before(int(ahead)))
    (weight,) = _weights(reader, tiers, place, [tenant])
    mine = Turn(own, float(at), int(ahead), cost_of(1.0, weight))
    until = mine.at + mine.tasks * mine.charge
    number, flat = reader.together(
        [
            ("ZCOUNT", turns, "-inf", until),
            ("ZRANGEBYSCORE", turns, "-inf", until, "WITHSCORES", "LIMIT", 0, TENANTS_AT_MOST),
        ]
    )
    starts = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
    others = _turns(reader, tiers, place, starts)
    return BeforeParked(int(ahead), int(rank), before_it(others, mine, int(number)))


def _turns(
    reader: Reader, tiers: Mapping[str, Tier], place: str, starts: Mapping[str, float]
) -> list[Turn]:
    names = list(starts)
    tenants = [name.partition(" ")[2] for name in names]
    weights = _weights(reader, tiers, place, tenants[:TIERS_AT_MOST])
    usual = sum(weights) / len(weights) if weights else 1.0
    weights += [usual] * (len(names) - len(weights))
    sizes: list[int] = []
    for some in batches(tenants, BATCH):
        lanes = [reader.keys.of("gate_at", f"{tenant} {place}") for tenant in some]
        sizes += map(int, reader.together([("ZCARD", lane) for lane in lanes]))
    rows = zip(names, sizes, weights, strict=True)
    return [Turn(name, starts[name], size, cost_of(1.0, weight)) for name, size, weight in rows]


def _weights(
    reader: Reader, tiers: Mapping[str, Tier], place: str, tenants: Sequence[str]
) -> list[float]:
    """Return the weights of tenants, by the tier in the first task of each."""
    keys = reader.keys
    heads = reader.together(
        [("ZRANGE", keys.of("gate_at", f"{tenant} {place}"), 0, 0) for tenant in tenants]
    )
    records = reader.together(
        [("HGET", keys.gate_tasks, head[0] if head else "") for head in heads]
    )
    tasks = [read_parked(record) if record else None for record in records]
    # A tenant may have no task there any more.
    published = reader.together(
        [("HGET", f"{keys.prefix}{task.record if task else ''}", "tier") for task in tasks]
    )
    return [
        float(tiers.get(tier or (task.tier if task else ""), tiers[""]).weight)
        for task, tier in zip(tasks, published, strict=True)
    ]
