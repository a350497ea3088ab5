"""The numbers of an override, in the text form that Redis stores.

An operator sets them for a key, until a time or until they are cleared. The operator's name and
reason are not here: ``control/holding.py`` writes them, and ``control/snapshot.py`` reads them.

An override has some numbers of a limit, higher or lower ones. For the others the tasks' own numbers
apply. It changes only the numbers: the counted starts and leases stay those of the key. For a
tenant's key it has the concurrency.

Its end is a time of the server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_fairness.config.limit_spec import window_text

#: The placeholder for a number that an override does not change.
UNCHANGED = "-"


@dataclass(frozen=True, slots=True)
class Override:
    """The numbers of the override of one key, and its end.

    Attributes:
        numbers: The overridden ones of ``concurrency``, ``rates`` and ``throttle``, as in
            :class:`Limit`.
        ends_ms: Its end, server time. None if it has no end.
    """

    numbers: Mapping[str, Any]
    ends_ms: int | None = None

    @property
    def text(self) -> str:
        """The numbers in the text form that Redis stores."""
        numbers = self.numbers
        concurrency = numbers.get("concurrency", UNCHANGED)
        throttle = numbers.get("throttle", UNCHANGED)
        rates = "+".join(map(window_text, numbers["rates"])) if "rates" in numbers else UNCHANGED
        return "|".join(
            (
                "" if concurrency is None else str(concurrency),
                rates,
                throttle if throttle == UNCHANGED else window_text(throttle) if throttle else "",
            )
        )
