"""What a key remembers of its starts.

Windows live by the logical clock, which never runs faster than the server's, so that no jump of a
clock lets more starts into a window. Starts are numbered, and the log says when each was: a rate of
N is open when the start N before the next one has left the window. The last EXACT starts are all in
the log, of older ones every fortieth part of the largest rate; where one is missing the next later
one stands for it. So a rate is exact up to EXACT, and above it the limit is kept and up to a
fortieth of it is given away. One part more than the largest rate is kept: where that has left the
window the log has all that is in it, and a rate that is raised is open at once.

A throttle may be late (a worker sleeps, a claim comes after the moment) and makes up for it by at
most a tenth of its interval: two starts are never nearer than nine tenths of it. Starts that were
nearer, because nothing was enforced, leave no debt: one interval after the last of them it is open.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.counting import PARTS

#: What never opens by itself.
NEVER = float("inf")
#: Starts that are remembered one by one.
EXACT = 1000
#: Starts among which one is found that is given back.
LATER_AT_MOST = 64
#: A key is remembered so long after its last start, at least.
REMEMBERED_MS = 60_000


@dataclass(slots=True)
class Window:
    """What a key remembers of its starts.

    Attributes:
        count: How many there were since it is remembered.
        ideal_ms: When the last one would have been with perfect spacing, logical.
        most: The largest rate that was asked of it.
        kept_ms: How long it is remembered after a start.
        asked: The numbers by which the last one was judged, for people who look.
        log: By number, when a start was, logical; not of all.

    Weakness: of a period longer than any before the log knows less than it should: where a rate is
    replaced by one of such a period, the first that it has stands for those that it has not.
    """

    count: int = 0
    ideal_ms: float = 0.0
    most: int = 0
    kept_ms: int = REMEMBERED_MS
    asked: str = ""
    log: dict[int, int] = field(default_factory=dict)

    def rate_wait_ms(self, starts: int, period_ms: int, logical: int) -> float:
        """Return how long until one more start fits into a window; 0: now."""
        if self.count < starts:
            return 0
        number = min(number for number in self.log if number > self.count - starts)
        # Two starts of one millisecond and its neighbours may be nearer than they look.
        return max(0, self.log[number] + period_ms + 1 - logical)

    def throttle_wait_ms(
        self, starts: int, period_ms: int, logical: int, before: float = 0
    ) -> float:
        """Return how long until a start is due that has ``before`` others before it; 0: now."""
        ideal, before = (self.ideal_ms, before + 1) if self.count else (logical, before)
        return max(0, ideal + before * period_ms / starts - logical)

    def start(self, limit: Limit, logical: int) -> None:
        """Count one start of a task that has ``limit``."""
        self.count += 1
        self.asked = limit.numbers
        interval = limit.throttle[1] / limit.throttle[0] if limit.throttle else 0.0
        late_ms = max(1.0, interval / 10)
        ideal_ms = max(self.ideal_ms + interval, logical - late_ms) if interval else logical
        # Where nothing is enforced many start at once: they leave no debt.
        self.ideal_ms = min(ideal_ms, logical)
        for starts, period_ms in limit.rates:
            self.most = max(self.most, starts)
            self.kept_ms = max(self.kept_ms, period_ms)
        if limit.throttle:
            self.kept_ms = max(self.kept_ms, limit.throttle[1])
        self.log[self.count] = logical
        older, part = self.count - EXACT, max(1, -(-self.most // PARTS))
        if older in self.log and older % part:
            del self.log[older]
        for number in sorted(self.log)[:2]:
            if number <= self.count - self.most - part:
                del self.log[number]

    def give_back(self, limit: Limit, at: int) -> bool:
        """Forget the start of ``at``, whose body did not begin; say whether it was found.

        Later ones move up by one. Only the last LATER_AT_MOST are looked at.
        """
        last = sorted(self.log)[-LATER_AT_MOST:]
        found = max((number for number in last if self.log[number] == at), default=None)
        if found is None:
            return False
        for number in range(found, self.count):
            self.log[number] = self.log[number + 1]
        del self.log[self.count]
        self.count -= 1
        if self.log:
            interval = limit.throttle[1] / limit.throttle[0] if limit.throttle else 0.0
            # Not before what the start that is the last one now demands.
            least = self.log[self.count] - max(1.0, interval / 10)
            self.ideal_ms = min(self.ideal_ms, max(self.ideal_ms - interval, least))
        return True
