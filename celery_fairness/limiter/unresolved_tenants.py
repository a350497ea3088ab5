"""The failures of the tier resolver that a process has not reported to Redis yet.

Invariant: a resolver that fails for every tenant takes no more memory than one that fails for
:data:`TENANTS_AT_MOST`. All failures are counted.

Weakness: a process that is killed loses those of its last second.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import NamedTuple

from celery_fairness.limiter.types import Unresolved

#: Tenants that one report names.
TENANTS_AT_MOST = 20
#: Most characters of the type of an error.
ERROR_CHARACTERS = 60
#: The error of a resolver that returns a tier that is not in the table.
UNKNOWN_TIER = "UnknownTier"


class Noted(NamedTuple):
    """The failures for one tenant that are not reported yet.

    Attributes:
        failures: Their number.
        error: The type of the last error.
        at: When it failed last (monotonic seconds).
    """

    failures: int
    error: str
    at: float

    def row(self, now: float) -> Unresolved:
        """Return its row of a report. A process that puts no tasks may report hours later."""
        return Unresolved(self.failures, self.error, max(0, round((now - self.at) * 1000)))


class UnresolvedTenants:
    """Counts failures by tenant until they are reported. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed = 0
        self._tenants: dict[str, Noted] = {}

    def note(self, tenant: str, error: str, at: float) -> None:
        """Count one failure.

        Args:
            tenant: The tenant.
            error: The type of the error.
            at: When it failed (monotonic seconds).
        """
        kind = re.sub(r"[^\w.]", "_", error, flags=re.ASCII)[:ERROR_CHARACTERS]
        with self._lock:
            self._failed += 1
            before = self._tenants.get(tenant)
            if before is not None or len(self._tenants) < TENANTS_AT_MOST:
                self._tenants[tenant] = Noted((before.failures if before else 0) + 1, kind, at)

    def __bool__(self) -> bool:
        """Whether there is something to report."""
        return self._failed > 0

    def take(self) -> tuple[int, Mapping[str, Noted]]:
        """Return all failures and those of the first tenants, and begin anew."""
        with self._lock:
            taken = self._failed, self._tenants
            self._failed, self._tenants = 0, {}
            return taken

    def put_back(self, failed: int, tenants: Mapping[str, Noted]) -> None:
        """Keep failures that could not be reported."""
        with self._lock:
            self._failed += failed
            for tenant, each in tenants.items():
                if tenant not in self._tenants and len(self._tenants) < TENANTS_AT_MOST:
                    self._tenants[tenant] = each
