"""What keys of limits count, who has stopped them or changed their numbers, and when they open.

Tenants' keys stand among them: who holds a lease of one is counted here too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from celery_fairness.config.limit_spec import Limit, of_one_key
from celery_fairness.scheduler.types import Rules
from tests.model.declared import Declared
from tests.model.overrides import Overrides
from tests.model.pace import Paces
from tests.model.queues import QueueLimits
from tests.model.stops import Stops
from tests.model.window import NEVER, REMEMBERED_MS, Window

#: A lease of the gate may be released without a word to the rings: look again so soon.
LOOK_AGAIN_MS = 1000


class Counting:
    """The counts of every key.

    Args:
        now_ms: The server's time, in ms.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        #: By key and lease: when it ends by itself.
        self.leases: defaultdict[str, dict[str, float]] = defaultdict(dict)
        #: By key of a limit that counts starts.
        self.windows: dict[str, Window] = {}
        #: By key: the logical time at which its window is forgotten; with a space before it: until
        #: when it is known that somebody has used it.
        self.idle: dict[str, int] = {}
        self.stops = Stops()
        self.overrides = Overrides()
        self.queues = QueueLimits()
        self.declared = Declared()
        self.paces = Paces()

    def judged(self, limit: Limit) -> Limit:
        """Return a limit with the numbers that it is judged by now."""
        numbered = self.declared.judged(self.queues.judged(limit))
        return self.overrides.judged(numbered, self.now_ms())

    def held(self, key: str, logical: int) -> int:
        """Return how many leases of ``key`` live."""
        return sum(end > logical for end in self.leases.get(key, {}).values())

    def drop_lease(self, key: str, lease: str) -> bool:
        """Count a lease no longer; say whether it counted."""
        was_there = self.leases[key].pop(lease, None) is not None
        if not self.leases[key]:
            del self.leases[key]
        return was_there

    def stay_known(self, keys: Iterable[str], logical: int) -> None:
        """A lease of these keys has ended: they are known for a while."""
        self.idle |= {f" {key}": logical + REMEMBERED_MS for key in keys}

    def stopped_ms(self, limit: Limit, logical: int) -> float:
        """Return how long nothing starts under a limit whatever it counts; 0: it is not stopped."""
        return self.stops.wait_ms(self.judged(limit), logical, self.now_ms())

    def wait_ms(self, limit: Limit, logical: int, rules: Rules) -> float:
        """Return how long a limit is closed: 0 is open, NEVER until something else opens it."""
        return max(self.waits_ms(limit, logical, rules), default=0)

    def waits_ms(self, limit: Limit, logical: int, rules: Rules) -> list[float]:
        """Return for how long each number of a limit closes it, or for how long it is stopped."""
        stopped_ms = self.stopped_ms(limit, logical)
        if stopped_ms or rules.enforcement != "on":
            return [stopped_ms] if stopped_ms else []
        judged = self.judged(limit)
        waits: list[float] = []
        if self.has_no_slot(limit, logical):
            ends = [end for end in self.leases[limit.key].values() if logical < end < NEVER]
            waits.append(min(min(ends) - logical, LOOK_AGAIN_MS) if ends else NEVER)
        window = self.windows.get(limit.key)
        if window is not None:
            waits += [window.rate_wait_ms(*rate, logical) for rate in judged.rates]
            if judged.throttle:
                waits.append(window.throttle_wait_ms(*judged.throttle, logical))
        return waits

    def has_no_slot(self, limit: Limit, logical: int) -> bool:
        """Say whether as many leases of a limit live as may."""
        most = self.judged(limit).concurrency
        return most is not None and self.held(limit.key, logical) >= most

    def count_start(self, limit: Limit, lease: str, logical: int) -> None:
        """A task starts under a limit, as that is judged now."""
        self.leases[limit.key][lease] = NEVER
        self.paces.begins(limit, lease, logical)
        if limit.rates or limit.throttle or limit.key in self.windows:
            window = self.windows.setdefault(limit.key, Window())
            window.start(limit, logical)
            self.idle[limit.key] = logical + window.kept_ms

    def give_starts_back(self, limits: Iterable[Limit], at: int) -> None:
        """A task that was claimed ``at`` this logical time ended before its body began."""
        for limit in of_one_key(tuple(map(self.judged, limits))):
            window = self.windows.get(limit.key)
            if window is None or not window.give_back(limit, at):
                continue
            if window.log:
                self.idle[limit.key] = window.log[window.count] + window.kept_ms
            else:
                del self.windows[limit.key], self.idle[limit.key]

    def tenant_limit(self, key: str, tenant: str, own: int | None) -> int | None:
        """Return what a tenant may hold where a person has paused it or changed that.

        Args:
            key: Of the tenant, or of one service of it.
            tenant: As it is written in keys.
            own: What it may hold else.
        """
        now = self.now_ms()
        if self.stops.paused_ms(key, now) or self.stops.paused_ms(f"tenant:{tenant}", now):
            return 0
        override = self.overrides.of(key, now)
        if override is None or "concurrency" not in override.numbers:
            return own
        number: int | None = override.numbers["concurrency"]
        return number
