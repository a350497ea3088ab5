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

from celery_fairness.config.limit_spec import window_text

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
