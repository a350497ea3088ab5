"""What people stop, and let go on.

A pause, a cool-down and their ends are told where they change something.
"""

from __future__ import annotations

from celery_fairness.scheduling.cancelling import Cancelling
from celery_fairness.scheduling.words import Rules

#: What is told of a change, but for a cool-down.
TOLD = {
    "pause": "fairness.paused",
    "resume": "fairness.resumed",
    "clear": "fairness.cool_down_cleared",
}


class Stopping(Cancelling):
    """An installation of which keys can be stopped."""

    def stop(
        self, how: str, key: str, wait_ms: int, rules: Rules, reason: str = ""
    ) -> tuple[bool, int]:
        """Change a key's stops; ``wait_ms`` is for how long it cools down.

        Returns:
            Whether it is paused, and how long it still cools down in ms.
        """
        logical = self.clock.tick(self.now_ms(), rules.lease_ms)
        changed = self.stops.change(how, key, logical + wait_ms)
        if changed and how == "cool":
            until = self.now_ms() + wait_ms
            self.happenings.tell("rate_limit.dynamic_adjusted", key=key, until=until, reason=reason)
        elif changed:
            self.happenings.tell(TOLD[how], key=key)
        if how in ("resume", "clear"):
            self.pump(key, logical, rules)
        stops = self.stops
        return key in stops.paused, max(0, stops.cooled.get(key, 0) - logical)
