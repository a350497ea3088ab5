"""The whole state of the model as plain values: to be compared, shown and asserted on.

Empty tables are left out, so two states that answer alike look alike.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from celery_fairness.scheduling.installation import Installation
from celery_fairness.scheduling.ring import Ring


def dump(installation: Installation) -> dict[str, Any]:
    """Return everything that ``installation`` remembers, but for published tiers and tenants."""
    clock = installation.clock
    lanes: dict[str, list[Any]] = {}
    for (queue, key), each in installation.lanes.items():
        for rank, new in each.new.items():
            lanes[f"lane:{key} {rank} {queue}"] = [astuple(task) for task in new]
        for (rank, kind), back in each.back.items():
            lanes[f"back:{key} {rank} {kind} {queue}"] = [astuple(task) for task in back]
    rings = {queue: _ring(ring) for queue, ring in installation.rings.items()}
    return {
        "clock": None if clock.logical is None else (clock.logical, clock.seen, clock.epoch),
        "version": installation.news.version,
        "sequence": installation.sequence,
        "known": sorted(installation.known),
        "lanes": lanes,
        "later": {
            queue: [(eta, astuple(task)) for eta, _, task in later]
            for queue, later in installation.later.items()
            if later
        },
        "accounts": {key: astuple(each) for key, each in installation.accounts.items()},
        "closed": dict(installation.closed),
        "running": {lease: astuple(row) for lease, row in installation.running.items()},
        "ends": dict(installation.ends),
        "leases": {key: dict(ends) for key, ends in installation.leases.items() if ends},
        "rings": {queue: ring for queue, ring in rings.items() if any(ring.values())},
        "replies": dict(installation.replies),
        "dead": {queue: [astuple(t) for t in dead] for queue, dead in installation.dead.items()},
        "obituaries": {astuple(row): due for row, due in installation.obituaries.items()},
        "counts": dict(installation.counts),
    }


def _ring(ring: Ring) -> dict[str, Any]:
    return {
        "virtual": ring.virtual,
        "members": dict(ring.members),
        "full": dict(ring.full),
        "out": dict(ring.out),
        "bell": ring.bell,
        "left": ring.left,
    }
