"""Whether a count is the sum of its parts, while tasks come and go.

Of a queue the parts are its tenants' counts, of a key at which a gate has parked tasks the lists of
these.
"""

from __future__ import annotations

from celery_fairness.control.scan import Command, Reader, batches
from celery_fairness.control.views import Finding

#: Tenants whose counts are read as one: a millisecond or two of the server's time.
AT_ONCE = 2000
#: Tenants of one call where there are more.
BATCH = 1000
#: Tries to see all of a queue at one moment.
TRIES = 10


class SumOfQueue:
    """One queue; ``findings`` looks anew each time."""

    def __init__(self, reader: Reader, queue: str) -> None:
        self._reader = reader
        self._queue = queue
        keys = reader.keys
        self._count: Command = ("HGET", keys.waiting, queue)
        self._places = (keys.of("ring", queue), keys.of("full", queue))

    def findings(self) -> list[Finding] | None:
        """Return what does not agree; None where no moment could be seen."""
        for _ in range(TRIES):
            sizes = self._reader.together([("ZCARD", place) for place in self._places])
            seen = self._small() if sum(sizes) <= AT_ONCE else self._large()
            if seen is not None:
                count, total = seen
                if count == total:
                    return []
                expected = f"{total} (its tenants' accounts)"
                return [Finding("waiting of a queue", self._queue, expected, str(count))]
        return None

    def _small(self) -> tuple[int, int] | None:
        """Read everything as one; None where a tenant came between."""
        tenants = self._tenants()
        ranges: list[Command] = [("ZRANGE", place, 0, -1) for place in self._places]
        count, ring, full, *counts = self._reader.together(
            [self._count, *ranges, *map(self._of_tenant, tenants)]
        )
        if not {*ring, *full} <= set(tenants):
            return None
        return int(count or 0), sum(int(each or 0) for each in counts)

    def _large(self) -> tuple[int, int] | None:
        """Read it in pieces; None where something was put or claimed meanwhile."""
        before = self._moment()
        total = 0
        for some in batches(self._tenants(), BATCH):
            answers = self._reader.together(list(map(self._of_tenant, some)))
            total += sum(int(each or 0) for each in answers)
        if before != self._moment():
            return None
        return int(before[0] or 0), total

    def _moment(self) -> tuple[str | None, ...]:
        """Return what changes with every put and with every claim that finds something."""
        keys = self._reader.keys
        virtual: Command = ("HGET", keys.virtual, self._queue)
        return tuple(self._reader.together([self._count, ("GET", keys.sequence), virtual]))

    def _tenants(self) -> list[str]:
        """Return who is in the ring or full; in pieces, so one who moves is seen in either."""
        return list(
            {key for place in self._places for key, _ in self._reader.pairs("ZSCAN", place)}
        )

    def _of_tenant(self, key: str) -> Command:
        return ("HGET", self._reader.keys.of("account", key), f"q:{self._queue}")


class SumOfKey:
    """Parked tasks that wait at one key of a gate; ``findings`` looks anew each time."""

    def __init__(self, reader: Reader, key: str) -> None:
        self._reader = reader
        self._key = key

    def findings(self) -> list[Finding] | None:
        """Return what does not agree; None where no moment could be seen."""
        keys = self._reader.keys
        count: Command = ("HGET", keys.gate_waiting, self._key)
        of_key: Command = ("ZRANGE", keys.of("gate_places", self._key), 0, -1)
        for _ in range(TRIES):
            places = self._reader.read(*of_key)
            lanes = self._lanes(places)
            if len(lanes) > AT_ONCE:
                return None
            sizes: list[Command] = [("ZCARD", keys.of("gate_at", lane)) for lane in lanes]
            turns: list[Command] = [("ZCARD", keys.of("gate_turns", place)) for place in places]
            counted, now, *found = self._reader.together([count, of_key, *turns, *sizes])
            numbers = list(map(int, found))
            tenants, total = sum(numbers[: len(turns)]), sum(numbers[len(turns) :])
            if now == places and tenants == len(lanes) and 0 not in numbers:
                if int(counted or 0) == total:
                    return []
                return [Finding("parked of a key", self._key, str(total), str(counted))]
        return None

    def _lanes(self, places: list[str]) -> list[str]:
        """Return the lists of tasks that wait at places; one call more than ``AT_ONCE`` at most."""
        keys, lanes = self._reader.keys, list[str]()
        for place in places:
            names = self._reader.read("ZRANGE", keys.of("gate_turns", place), 0, AT_ONCE)
            lanes += [f"{name.partition(' ')[2]} {place}" for name in names]
        return lanes
