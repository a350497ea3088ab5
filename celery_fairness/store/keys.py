"""The names of the limiter's keys: the only place that spells them.

The table of keys with type, meaning and lifetime is ``lua/README.md``. All keys of an installation
share one hash tag.
"""

from __future__ import annotations

from celery_fairness.config.tenants import Reserved, key_part


class Names:
    """Key names of one installation.

    Args:
        namespace: The setting of that name.
        before: What the broker puts before every key (``global_keyprefix``), on the dispatch path.
    """

    def __init__(self, namespace: str, before: str = "") -> None:
        prefix = f"{before}{{{namespace}}}:"
        self._prefix = prefix
        self.clock = prefix + "clock"
        self.tiers = prefix + "tiers"
        self.news = prefix + "news"
        self.counts = prefix + "counts"
        #: What happened.
        self.events = prefix + "events"
        #: How often each key has refused.
        self.exceeded = prefix + "exceeded"
        #: When the leases of claimed tasks end.
        self.ends = prefix + "ends"
        #: Heard by who promotes parked tasks.
        self.gate_bell = prefix + "gate_bell"
        #: How many parked tasks wait at each key.
        self.gate_waiting = prefix + "gate_waiting"

    @property
    def prefix(self) -> str:
        """What every key begins with."""
        return self._prefix

    def leases(self, key: str) -> str:
        """Return the leases of the limit ``key``."""
        return f"{self._prefix}leases:{key}"

    def minute(self, minute: str) -> str:
        """Return what was in one minute, by its number; "": what stands before any number."""
        return f"{self._prefix}minute:{minute}"

    def tenant(self, tenant: str) -> str:
        """Return the record of ``tenant``."""
        part = tenant if isinstance(tenant, Reserved) else key_part(tenant)
        return f"{self._prefix}tenant:{part}"

    def copy(self, message: str) -> str:
        """Return the memory of the copies of ``message``."""
        return f"{self._prefix}copy:{message}"
