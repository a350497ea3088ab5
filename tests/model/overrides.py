"""The overrides of keys that are in force."""

from __future__ import annotations

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.overrides import Override


class Overrides:
    """Those in force, by key."""

    def __init__(self) -> None:
        self.rows: dict[str, Override] = {}

    def put(self, key: str, override: Override | None) -> None:
        """Set or replace a key's; None clears it."""
        self.rows.pop(key, None)
        if override is not None:
            self.rows[key] = override

    def of(self, key: str, now: int) -> Override | None:
        """Return a key's, unless it has ended."""
        override = self.rows.get(key)
        if override is None or (override.ends_ms is not None and override.ends_ms <= now):
            return None
        return override

    def judged(self, limit: Limit, now: int) -> Limit:
        """Return a limit with the numbers that it is judged by; its name is another then."""
        override = self.of(limit.key, now)
        return limit if override is None else limit._replace(**override.numbers)

    def ended(self, now: int, most: int) -> list[str]:
        """Forget some that have ended, the first to end first, and return their keys."""
        over = sorted(
            (row.ends_ms, key)
            for key, row in self.rows.items()
            if row.ends_ms is not None and row.ends_ms <= now
        )[:most]
        for _, key in over:
            del self.rows[key]
        return [key for _, key in over]
