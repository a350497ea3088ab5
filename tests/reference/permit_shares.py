"""How many permits of a key each partition should have, in a form that is easy to believe (ADR 30).

Quotas are weighted max-min. A partition gets permits in pieces, because fewer start no task. The
partition with the most credit gets its first piece in any case, if so many permits are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Demand:
    """The slots that one partition could use.

    Attributes:
        slots: The slots that it could use.
        piece: The slots of its first task.
        tenants: The tenants that wait there.
        credit: The permits that it had too few, times seconds.
    """

    slots: int
    piece: int = 1
    tenants: int = 1
    credit: float = 0.0


def quotas_of(limit: int, demands: Sequence[Demand]) -> list[Fraction]:
    """Raise all quotas together by their tenants, until each has its demand or nothing is left."""
    quotas = [Fraction(0)] * len(demands)
    left = Fraction(limit)
    while True:
        open_ = [each for each, demand in enumerate(demands) if quotas[each] < demand.slots]
        if not open_ or not left:
            return quotas
        tenants = sum(demands[each].tenants for each in open_)
        step = min(
            left / tenants,
            *((demands[each].slots - quotas[each]) / demands[each].tenants for each in open_),
        )
        for each in open_:
            quotas[each] += step * demands[each].tenants
            left -= step * demands[each].tenants


def shares_of(limit: int, demands: Sequence[Demand], gone: int = 0) -> list[int]:
    """Return how many permits each demand should have.

    Args:
        gone: The permits that servers have which were replaced.
    """
    demands = [
        Demand(min(each.slots, limit), min(each.piece, limit), each.tenants, each.credit)
        for each in demands
    ]
    limit = max(0, limit - gone)
    shares = [
        int(quota / each.piece) * each.piece
        for quota, each in zip(quotas_of(limit, demands), demands, strict=True)
    ]
    order = sorted(range(len(demands)), key=lambda each: (-demands[each].credit, each))

    def piece(each: int) -> int:
        return min(demands[each].piece, demands[each].slots - shares[each])

    first = order[0]
    if shares[first] == 0 and piece(first) <= limit:
        for other in reversed(order[1:]):
            missing = piece(first) - (limit - sum(shares))
            shares[other] -= max(0, min(shares[other], missing))
    for each in order:
        if piece(each) <= limit - sum(shares):
            shares[each] += piece(each)
    return shares
