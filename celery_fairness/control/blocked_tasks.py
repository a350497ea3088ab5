"""The waiting tasks of a key with their limits: in lanes, and parked by a gate.

Weakness: only the name of a lane has its limits. So for each page of keys, this reads the names of
all lanes, and the messages of all parked tasks. If tasks in more than a hundred lanes bring
different numbers, only the first hundred lanes count.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from celery_fairness.config.limit_spec import Limit, limit_numbered
from celery_fairness.control.keys import (
    is_tenants,
    lane_key,
    lane_parts,
    limits_of,
)
from celery_fairness.control.parked import parked
from celery_fairness.control.scan import Reader, batches, orders_of

#: Lanes whose last task is read, to find the newest of several numbers.
LAST_AT_MOST = 100
#: Lanes in one call.
BATCH = 500


@dataclass
class WaitingOfKey:
    """The waiting tasks with a limit of one key.

    Attributes:
        lanes: The limit in each lane, by ``(key, lane, queue)``.
        queues: Number of waiting tasks by queue, if the key is a tenant's.
        parked: Number of parked tasks.
        last: Sequence number and limit of the newest parked task with a limit.
    """

    lanes: dict[tuple[str, str, str], Limit] = field(default_factory=dict)
    queues: dict[str, int] | None = None
    parked: int = 0
    last: tuple[int, Limit | None] = (0, None)

    def count(self, reader: Reader, without: str | None = None) -> int:
        """Return the number of waiting tasks in all queues, or in all but one."""
        total = self.parked
        if self.queues is not None:
            return total + sum(self.queues.values())
        lanes = [each for each in self.lanes if each[2] != without]
        for some in batches(lanes, BATCH):
            total += sum(
                reader.together([("ZCARD", lane_key(reader.keys, *lane)) for lane in some])
            )
        return total

    def limit(self, reader: Reader) -> Limit | None:
        """Return the limit of the task that was put last; None if no task waits."""
        limits = set(self.lanes.values())
        last = self.last[1]
        if len(limits | {last or next(iter(limits), None)}) <= 1:
            return last or next(iter(limits), None)
        seen = [self.last] if last else []
        for lane in sorted(self.lanes)[:LAST_AT_MOST]:
            seen += [(seq, self.lanes[lane]) for seq in _last_seq(reader, *lane)]
        return max(seen, key=lambda each: each[0], default=(0, None))[1]


def waiting_of(reader: Reader, keys: Collection[str]) -> dict[str, WaitingOfKey]:
    """Return the waiting tasks of some keys, by key; for a tenant's key those in its own lanes."""
    found = {key: WaitingOfKey() for key in keys}
    for key in filter(is_tenants, found):
        found[key].queues = queues = _queues(reader, key)
        for queue in queues:
            for lane in orders_of(reader, key, queue)[1]:
                _note(found, (key, lane, queue), key)
    # If no task waits in a queue, as always on the gate path, there are no lanes.
    if not all(map(is_tenants, found)) and reader.read("EXISTS", reader.keys.waiting):
        for name in reader.names("lane"):
            _note(found, lane_parts(name))
    _note_parked(reader, found)
    return found


def _queues(reader: Reader, key: str) -> dict[str, int]:
    flat = reader.read("HGETALL", reader.keys.of("account", key))
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return {name[2:]: int(count) for name, count in pairs if name.startswith("q:")}


def _note(found: dict[str, WaitingOfKey], lane: tuple[str, str, str], only: str = "") -> None:
    """Add a lane to each key of which it has a limit."""
    for word in limits_of(lane[1]):
        key = word.partition("|")[0]
        if key in found and (only == key if only else not is_tenants(key)):
            found[key].lanes[lane] = limit_numbered(word.rpartition("|")[0])


def _note_parked(reader: Reader, found: dict[str, WaitingOfKey]) -> None:
    seen: set[str] = set()
    for task in parked(reader):
        if task.tag in seen:
            continue
        seen.add(task.tag)
        seq = int(task.fields[0])
        limits: dict[str, Limit | None] = {task.key: None}
        limits |= {limit.key: limit for limit in task.limits}
        for key in limits.keys() & found.keys():
            found[key].parked += 1
            limit = limits[key]
            if limit is not None and seq > found[key].last[0]:
                found[key].last = (seq, limit)


def _last_seq(reader: Reader, key: str, lane: str, queue: str) -> list[int]:
    found = reader.read("ZRANGE", lane_key(reader.keys, key, lane, queue), -1, -1, "WITHSCORES")
    return [int(float(found[1]))] if found else []
