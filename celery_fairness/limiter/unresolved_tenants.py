"""The failures of the tier resolver that a process has not reported to Redis yet.

Invariant: a resolver that fails for every tenant takes no more memory than one that fails for
:data:`TENANTS_AT_MOST`. All failures are counted.

Weakness: a process that is killed loses those of its last second.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

from celery_fairness.limiter.types import Unresolved

#: Tenants that one report names.
TENANTS_AT_MOST = 20
#: Most characters of the type of an error.
ERROR_CHARACTERS = 60
#: The error of a resolver that returns a tier that is not in the table.
UNKNOWN_TIER = "UnknownTier"


class UnresolvedTenants:
    """Counts failures by tenant until they are reported. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed = 0
        self._tenants: dict[str, Unresolved] = {}

    def note(self, tenant: str, error: str) -> None:
        """Count one failure.

        Args:
            tenant: The tenant.
            error: The type of the error.
        """
        kind = re.sub(r"[^\w.]", "_", error, flags=re.ASCII)[:ERROR_CHARACTERS]
        with self._lock:
            self._failed += 1
            before = self._tenants.get(tenant)
            if before is not None or len(self._tenants) < TENANTS_AT_MOST:
                self._tenants[tenant] = Unresolved((before.failures if before else 0) + 1, kind)

    def __bool__(self) -> bool:
        """Whether there is something to report."""
        return self._failed > 0

    def take(self) -> tuple[int, Mapping[str, Unresolved]]:
        """Return all failures and those of the first tenants, and begin anew."""
        with self._lock:
            taken = self._failed, self._tenants
            self._failed, self._tenants = 0, {}
            return taken

    def put_back(self, failed: int, tenants: Mapping[str, Unresolved]) -> None:
        """Keep failures that could not be reported."""
        with self._lock:
            self._failed += failed
            for tenant, each in tenants.items():
                if tenant not in self._tenants and len(self._tenants) < TENANTS_AT_MOST:
                    self._tenants[tenant] = each
