"""When a task that a limit puts back is tried again.

Under a rate or a throttle that is when its window opens. When a full limit has a free slot nobody
knows: its first lease is expected to end when it has lived as long as those before it did, in the
mean. Of a key of which none has ended yet a lease lives a second; and where nothing has begun for
longer than the mean, as long as that.

    first      its window opens; the first lease is expected to end, at least a second ahead
    the next   one interval later each: that of the rate and some more, or the mean divided by the
               slots
    the last   all others at the snooze, or at the window if that opens later, with a wide jitter

So as many come in a second as may start, and of a crowd of N at most N in each snooze beside them.

Whoever comes to a window a moment before it opens goes to the end, and his start is lost. So under
a rate and a throttle they come somewhat further apart than these ask, and their jitter is smaller
than that.

A key remembers of some of these tasks where they wait. When people say something else of it they
come at once, and the others at their time. What it puts back from then on does not wait behind
those of before.

Weakness: who comes takes what is free. A task that was put later may start before, and a slot may
stay free until the next one comes.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from math import ceil, floor

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.keys import whole_of
from tests.model.charging import mean_of

#: A full limit does not know when it opens: so soon a task is tried again, at least.
TRY_AGAIN_MS = 1000
#: What a rate or a throttle asks to lie between two tasks, they lie so many times that apart; their
#: jitter is at most one of so many parts of its period.
APART, PARTS = 1.03, 100
#: The jitter is a part of the wait, and not more than this.
JITTER_PARTS, JITTER_MS = 4, 1000
#: Tasks that a key remembers it has put back, and brings forward.
FORWARD_AT_MOST = 100
#: Of tasks of one time, so many are looked at to find one.
SAME_TIME_AT_MOST = 16


@dataclass(slots=True)
class Pace:
    """What is known of a key.

    Attributes:
        mean_ms: How long its last leases lived; None where none has ended.
        next_ms: Server time at which the next task that it puts back is tried again.
    """

    mean_ms: float | None = None
    next_ms: float = 0.0


class Paces:
    """What keys know whose limits say ``reschedule``, and of a gate's leases."""

    def __init__(self) -> None:
        #: By key and lease: when it began, logical.
        self.began: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.of_key: dict[str, Pace] = {}
        #: By key, that of a whole queue for its partitions: queue and place of tasks that it has
        #: put back, and until when, server time.
        self.put_back: defaultdict[str, dict[tuple[str, int], int]] = defaultdict(dict)

    def begins(self, limit: Limit, lease: str, logical: int) -> None:
        """A task is claimed that has ``limit``, as that is judged now."""
        if limit.on_limit == "reschedule":
            self.holds(limit, lease, logical)

    def holds(self, limit: Limit, lease: str, logical: int) -> None:
        """A lease begins; at a gate nothing else says since when it is held."""
        if limit.concurrency is not None:
            self.began[limit.key][lease] = logical

    def ends(self, key: str, lease: str, logical: int) -> None:
        """A lease of a key has ended."""
        since = self.began[key].pop(lease, None)
        if not self.began[key]:
            del self.began[key]
        if since is not None:
            pace = self.of_key.setdefault(key, Pace())
            pace.mean_ms = mean_of(pace.mean_ms, max(0, logical - since))

    def wait_ms(
        self,
        limit: Limit,
        again_ms: float,
        is_full: bool,
        now: int,
        logical: int,
        snooze_ms: int,
        name: str,
        last_ms: float,
    ) -> int:
        """Return how long the next task waits that ``limit`` puts back, its jitter included.

        Args:
            limit: As it is judged now.
            again_ms: How soon it may be tried again; of a full limit the least.
            is_full: It has no free slot.
            now: The server's time.
            logical: The logical one.
            snooze_ms: The longest wait for what nobody knows.
            name: Of the task, or its attempt: it decides the jitter.
            last_ms: The largest jitter of the last, which come together.
        """
        pace = self.of_key.setdefault(limit.key, Pace())
        windows = (*limit.rates, *([limit.throttle] if limit.throttle else []))
        interval = max((period_ms / starts for starts, period_ms in windows), default=0.0) * APART
        jitter = min((period_ms / PARTS for _, period_ms in limit.rates), default=JITTER_MS)
        if limit.throttle:
            jitter = min(jitter, limit.throttle[1] / limit.throttle[0] / PARTS)
        if limit.concurrency:
            began = sorted(self.began.get(limit.key, {}).values())
            lives = TRY_AGAIN_MS if pace.mean_ms is None else pace.mean_ms
            lives = max(lives, logical - began[-1]) if began else lives
            slot_ms = lives / limit.concurrency
            interval = max(interval, slot_ms)
            if is_full:
                ends = began[0] + lives - logical if began else 0
                again_ms = max(again_ms, min(ends if ends > 0 else slot_ms, snooze_ms))
        most = max(again_ms, snooze_ms)
        wait_ms = min(max(again_ms, pace.next_ms - now), most)
        pace.next_ms = now + wait_ms + interval
        longest_ms = last_ms if wait_ms == most else min(jitter, JITTER_MS)
        return ceil(wait_ms) + jitter_ms(name, ceil(wait_ms), longest_ms)

    def remember(self, key: str, queue: str, seq: int, eta_ms: int, now: int) -> None:
        """A key has put a task back until ``eta_ms``."""
        there = self.put_back[whole_of(key)]
        for each in [each for each, eta in there.items() if eta <= now]:
            del there[each]
        if len(there) < FORWARD_AT_MOST:
            there[queue, seq] = eta_ms

    def forget(self, key: str, now: int) -> list[tuple[str, int, int]]:
        """Somebody says something of a key: return what it remembers, as queue, place and time."""
        there = self.put_back.get(whole_of(key), {})
        to_come = [(eta, f"{seq} {queue}", queue, seq) for (queue, seq), eta in there.items()]
        found = [(queue, seq, eta) for eta, _, queue, seq in sorted(to_come) if eta > now]
        if found:
            del self.put_back[whole_of(key)]
        pace = self.of_key.pop(key, None)
        if pace is not None and pace.mean_ms is not None:
            self.of_key[key] = Pace(pace.mean_ms)
        return found


def jitter_ms(name: str, wait_ms: int, longest_ms: float) -> int:
    """Return by how much longer a task waits: those that were refused at once come one by one."""
    most = floor(min(wait_ms / JITTER_PARTS, longest_ms))
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
    return int(digest[:8], 16) % (most + 1)
