"""Numbers that people put in the place of a key's own, for a time or until they clear them.

An override says some numbers of a limit; what it does not say is as the tasks have it. It may raise
or lower them. It changes what is asked, and nothing that is counted: starts and leases are those of
the key. Of a tenant's key it says the concurrency.

Its end is a time of the server's clock, as people say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_fairness.config.limit_spec import Limit, window_text

#: What stands for a number that an override does not say.
UNCHANGED = "-"


@dataclass(frozen=True, slots=True)
class Override:
    """One key's.

    Attributes:
        numbers: Of ``concurrency``, ``rates`` and ``throttle`` those that it says, as in
            :class:`Limit`.
        ends_ms: When it ends, server time; None: when it is cleared.
    """

    numbers: Mapping[str, Any]
    ends_ms: int | None = None

    @property
    def text(self) -> str:
        """The same as the functions keep it, without its end."""
        said = self.numbers
        concurrency = said.get("concurrency", UNCHANGED)
        throttle = said.get("throttle", UNCHANGED)
        rates = "+".join(map(window_text, said["rates"])) if "rates" in said else UNCHANGED
        return "|".join(
            (
                "" if concurrency is None else str(concurrency),
                rates,
                throttle if throttle == UNCHANGED else window_text(throttle) if throttle else "",
            )
        )


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
