"""Keys under which nothing starts for now, whatever their limits say and whatever is enforced.

A person pauses a key and resumes it. A key cools down for a time because whoever keeps its counts
said so, as with HTTP 429; what is said later may make that time longer, and never shorter. The two
do not know of each other: who resumes a key does not end its cool-down.

Times are of the logical clock, which may lag behind the server's and never runs ahead of it: a key
is never taken up too soon.
"""

from __future__ import annotations

from celery_fairness.scheduling.limits import NEVER, Limit


class Stops:
    """What is paused and what cools down."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        #: By key, until when.
        self.cooled: dict[str, int] = {}

    def change(self, how: str, key: str, until: int) -> bool:
        """``pause`` or ``resume`` a key, ``cool`` it down until a time, or ``clear`` that.

        Returns:
            Whether that changed something.
        """
        before = key in self.paused, self.cooled.get(key)
        if how == "pause":
            self.paused.add(key)
        elif how == "resume":
            self.paused.discard(key)
        elif how == "cool":
            self.cooled[key] = max(self.cooled.get(key, 0), until)
        else:
            self.cooled.pop(key, None)
        return before != (key in self.paused, self.cooled.get(key))

    def wait_ms(self, limit: Limit, logical: int) -> float:
        """Return how long a limit is stopped; 0: it is not."""
        if limit.concurrency == 0 or limit.key in self.paused:
            return NEVER
        return max(0, self.cooled.get(limit.key, 0) - logical)

    def forget(self, logical: int, most: int) -> None:
        """Forget some cool-downs that are over, the oldest first."""
        over = sorted((until, key) for key, until in self.cooled.items() if until <= logical)
        for _, key in over[:most]:
            del self.cooled[key]
