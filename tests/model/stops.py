"""Keys under which nothing starts for now, whatever their limits say and whatever is enforced.

A person pauses a key, for a time or until somebody resumes it. A key cools down for a time because
whoever keeps its counts said so, as with HTTP 429; what is said later may make that time longer,
and never shorter. The two do not know of each other: who resumes a key does not end its cool-down.

A cool-down ends by the logical clock, which may lag behind the server's and never runs ahead of it:
a key is never taken up too soon. A pause ends by the server's, as people say it.
"""

from __future__ import annotations

from celery_fairness.config.limit_spec import Limit
from tests.model.window import NEVER


class Stops:
    """What is paused and what cools down."""

    def __init__(self) -> None:
        #: Until somebody resumes them.
        self.paused: set[str] = set()
        #: By key, until when, server time.
        self.paused_until: dict[str, int] = {}
        #: By key that is paused: since when, server time, and the person.
        self.paused_by: dict[str, tuple[int, str]] = {}
        #: By key, until when, logical.
        self.cooled: dict[str, int] = {}

    def pause(self, key: str, until: int | None, now: int, by: str = "") -> None:
        """Let nothing start under a key, until a time of the server's; None: until resumed."""
        self.resume(key)
        self.paused_by[key] = (now, by)
        if until is None:
            self.paused.add(key)
        else:
            self.paused_until[key] = until

    def resume(self, key: str) -> None:
        """End a pause."""
        self.paused.discard(key)
        self.paused_until.pop(key, None)
        self.paused_by.pop(key, None)

    def cool(self, key: str, until: int) -> bool:
        """Let a key cool down until a logical time; False where a later one was said before."""
        before = self.cooled.get(key, -1)
        self.cooled[key] = max(before, until)
        return until > before

    def clear(self, key: str) -> bool:
        """End a cool-down; False where there was none."""
        return self.cooled.pop(key, None) is not None

    def paused_ms(self, key: str, now: int) -> float:
        """Return how long a key is paused; 0: it is not."""
        if key in self.paused:
            return NEVER
        return max(0, self.paused_until.get(key, 0) - now)

    def says_of(self, key: str) -> bool:
        """Say whether a key is paused or cools down, or was until a time that nobody looked at."""
        return key in self.paused or key in self.paused_until or key in self.cooled

    def wait_ms(self, limit: Limit, logical: int, now: int) -> float:
        """Return how long a limit is stopped; 0: it is not."""
        if limit.concurrency == 0:
            return NEVER
        cooled_ms = max(0, self.cooled.get(limit.key, 0) - logical)
        return max(cooled_ms, self.paused_ms(limit.key, now))

    def forget(self, logical: int, most: int) -> None:
        """Forget some cool-downs that are over, the oldest first."""
        _over(self.cooled, logical, most)

    def resumed(self, now: int, most: int) -> list[str]:
        """Forget some pauses that are over, the first to end first, and return their keys."""
        over = _over(self.paused_until, now, most)
        for key in over:
            del self.paused_by[key]
        return over


def _over(ends: dict[str, int], now: int, most: int) -> list[str]:
    over = sorted((end, key) for key, end in ends.items() if end <= now)[:most]
    for _, key in over:
        del ends[key]
    return [key for _, key in over]
