"""The names of the keys that Python reads.

``docs/internals/redis-keys.md`` lists all keys with type, meaning and lifetime. All keys of an
installation share one hash tag.
"""

from __future__ import annotations

import re

from celery_fairness.config.tenants import key_part


class Names:
    """Key names of one installation.

    Args:
        namespace: The setting ``namespace``.
        before: The broker's ``global_keyprefix``, on the dispatch path.
    """

    def __init__(self, namespace: str, before: str = "") -> None:
        #: The beginning of every key.
        self.prefix = prefix = f"{before}{{{namespace}}}:"
        self.changes = prefix + "changes"
        self.clock = prefix + "clock"
        self.cool_downs = prefix + "cool_downs"
        self.counters = prefix + "counters"
        self.events = prefix + "events"
        self.key_expiry = prefix + "key_expiry"
        self.ids = prefix + "ids"
        self.kept_events = prefix + "kept_events"
        self.messages = prefix + "messages"
        self.queue_limits = prefix + "queue_limits"
        self.queues = prefix + "queues"
        self.running = prefix + "running"
        self.trace = prefix + "trace"
        self.tasks = prefix + "tasks"
        self.tiers = prefix + "tiers"
        self.virtual_times = prefix + "virtual_times"
        self.waiting = prefix + "waiting"
        self.waiting_at = prefix + "waiting_at"
        self.workers = prefix + "workers"

    def of(self, kind: str, name: str) -> str:
        """Return a key of one queue, limit or task, such as ``active:QUEUE``."""
        return f"{self.prefix}{kind}:{name}"

    def pattern(self, kind: str = "") -> str:
        """Return a pattern that matches every key, or every key of one kind."""
        return re.sub(r"([\\*?\[\]])", r"\\\1", self.prefix) + (f"{kind}:*" if kind else "*")

    def tenant(self, tenant: str) -> str:
        """Return the name of the record of ``tenant``."""
        return self.of("tenant", key_part(tenant))
