"""The whole state of the model as plain values: to be compared, shown and asserted on.

Empty tables are left out, so two states that answer alike look alike.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from tests.model.installation import Installation
from tests.model.lanes import Part
from tests.model.ring import Ring


def dump(installation: Installation) -> dict[str, Any]:
    """Return everything that ``installation`` remembers, but for published tiers and tenants."""
    clock = installation.clock
    lanes: dict[str, list[Any]] = {}
    for (queue, key), each in installation.lanes.items():
        for part, tasks in each.lists.items():
            rank, _, kind = part.text.partition("b ")
            name = f"lane:{key} {rank}" if part.kind is None else f"back:{key} {rank} {kind}"
            lanes[f"{name} {queue}"] = [astuple(task) for task in tasks]
    rings = {queue: _ring(ring) for queue, ring in installation.rings.items()}
    return {
        "clock": None
        if clock.logical is None
        else (clock.logical, clock.seen, clock.epoch, clock.server),
        "version": installation.news.version,
        "sequence": installation.sequence,
        "known": sorted(installation.known),
        "lanes": lanes,
        "later": {
            queue: [(eta, astuple(task)) for eta, _, task in later]
            for queue, later in installation.later.items()
            if later
        },
        "expires": {queue: dict(each) for queue, each in installation.expires.items() if each},
        "accounts": {key: astuple(each) for key, each in installation.accounts.items()},
        "closed": dict(installation.closed),
        "took": list(installation.kept_took.items()),
        "ranked": installation.ranked,
        "unranked": {
            queue: dict(ring.unranked)
            for queue, ring in installation.rings.items()
            if ring.unranked
        },
        "running": {lease: astuple(row) for lease, row in installation.running.items()},
        "ends": dict(installation.ends),
        "charged": {lease: tuple(each) for lease, each in installation.charged.items()},
        "leases": {key: dict(ends) for key, ends in installation.leases.items() if ends},
        "rings": {queue: ring for queue, ring in rings.items() if any(ring.values())},
        "replies": dict(installation.replies),
        "dead": {
            queue: [astuple(t) for t in dead] for queue, dead in installation.dead.items() if dead
        },
        "outcomes": {astuple(row): due for row, due in installation.outcomes.items()},
        "counts": dict(installation.counts),
        "exceeded": dict(installation.exceeded),
        "minutes": {number: dict(each) for number, each in installation.minutes.counts.items()},
        "events": list(installation.happenings.told),
        "task_events": list(installation.watch.happenings.told),
        "watched": installation.watch.until_ms,
        **_ready(installation),
        **_parking(installation),
    }


#: A rank before a sequence number, as the functions order parts of lanes.
_AFTER_ALL = 2**49


def _ready(installation: Installation) -> dict[str, Any]:
    ready: dict[str, dict[str, float]] = {}
    shelf: dict[str, dict[str, float]] = {}
    parked: dict[str, dict[str, str]] = {}
    for (queue, key), lanes in installation.lanes.items():
        for part, noted in lanes.noted.items():
            order = float((9 - part.lane.rank) * _AFTER_ALL + noted)
            group = lanes.parked.get(part.lane)
            if group is None:
                ready.setdefault(f"{key} {queue}", {})[part.text] = order
            else:
                shelf.setdefault(f"{key} {group} {queue}", {})[part.text] = order
        if lanes.parked:
            parked[f"{key} {queue}"] = {
                Part(lane, None).text: group for lane, group in lanes.parked.items()
            }
    return {"ready": ready, "shelf": shelf, "parked": parked}


def _parking(installation: Installation) -> dict[str, Any]:
    parking = installation.parking
    groups: dict[str, dict[str, str]] = {}
    group: dict[str, dict[str, float]] = {}
    wait: dict[str, dict[str, float]] = {}
    for (queue, name), each in parking.groups.items():
        groups.setdefault(queue, {})[name] = each.at.name
        group[f"{name} {queue}"] = dict(each.tags)
        wait.setdefault(f"{each.at.name} {queue}", {})[name] = each.best
    return {
        "groups": groups,
        "group": group,
        "wait": wait,
        "candidates": {queue: dict(each) for queue, each in parking.candidates.items()},
        "waited": {
            key: [f"{name} {queue}" for name, queue in each] for key, each in parking.waited.items()
        },
        "opens": dict(parking.due),
        "looks": dict(parking.left),
        "times": {key: (each.virtual, dict(each.tags)) for key, each in parking.times.items()},
        "windows": {
            key: (each.count, each.ideal_ms, each.most, each.kept_ms, each.asked, dict(each.log))
            for key, each in installation.windows.items()
        },
        "idle": dict(installation.idle),
        "paused": set(installation.stops.paused),
        "paused_until": dict(installation.stops.paused_until),
        "paused_by": dict(installation.stops.paused_by),
        "overrides": {
            key: (row.text, row.ends_ms) for key, row in installation.overrides.rows.items()
        },
        "cooled": dict(installation.stops.cooled),
        "declared": {key: each.numbers for key, each in installation.declared.numbers.items()},
        "queues": {queue: row.text for queue, row in installation.queues.rows.items()},
        "queues_version": installation.queues.version,
        "began": {key: dict(each) for key, each in installation.paces.began.items() if each},
        "paces": {
            key: (each.mean_ms, each.next_ms) for key, each in installation.paces.of_key.items()
        },
        "put_back": {
            key: {f"{seq} {queue}": eta for (queue, seq), eta in each.items()}
            for key, each in installation.paces.put_back.items()
            if each
        },
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
