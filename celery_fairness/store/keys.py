"""The names of the keys that a limiter reads.

The keys that the modules of ``control`` read are in ``control/keys.py``.
``docs/reference/redis-keys.md`` lists the keys with type, meaning and lifetime. All keys of an
installation share one hash tag.
"""

from __future__ import annotations

from celery_fairness.config.tenants import Reserved, key_part


class Names:
    """Key names of one installation.

    Args:
        namespace: The setting ``namespace``.
        before: The broker's ``global_keyprefix``, on the dispatch path.
    """

    def __init__(self, namespace: str, before: str = "") -> None:
        prefix = f"{before}{{{namespace}}}:"
        self._prefix = prefix
        self.clock = prefix + "clock"
        self.tiers = prefix + "tiers"
        self.news = prefix + "news"
        self.counts = prefix + "counts"
        #: The stream of events.
        self.events = prefix + "events"
        #: The number of rejections of each key.
        self.exceeded = prefix + "exceeded"
        #: The ends of the leases of claimed tasks.
        self.ends = prefix + "ends"
        #: The wake-ups of promoters.
        self.gate_bell = prefix + "gate_bell"

    @property
    def prefix(self) -> str:
        """The beginning of every key."""
        return self._prefix

    def leases(self, key: str) -> str:
        """Return the name of the leases of the limit ``key``."""
        return f"{self._prefix}leases:{key}"

    def minute(self, minute: str) -> str:
        """Return the name of one minute's stats. ``minute`` is its number; "" gives the prefix."""
        return f"{self._prefix}minute:{minute}"

    def tenant(self, tenant: str) -> str:
        """Return the name of the record of ``tenant``."""
        part = tenant if isinstance(tenant, Reserved) else key_part(tenant)
        return f"{self._prefix}tenant:{part}"

    def copy(self, message: str) -> str:
        """Return the name of the row of the copies of ``message``."""
        return f"{self._prefix}copy:{message}"
