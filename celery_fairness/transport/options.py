"""The settings of a channel: the transport option ``fairness``.

``Fairness(app)`` puts it into ``broker_transport_options``. Without Celery, pass it to
``kombu.Connection``. Every key is optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from celery_fairness.config.queue_policy import QueuePolicy
from celery_fairness.scheduler.types import Bounds, Rules

#: The name of the transport option.
OPTION = "fairness"


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """Settings for the dispatch path.

    They mean the same as the app's settings of these names, except the following.

    Attributes:
        enforcement: ``on``, ``observe`` or ``off``.
        default_limit: The default tier's limit, or None without a limit.
        waiting_of_tiers: For every tier, the maximum of a tenant's waiting tasks, or None.
        waiting_of_queues: For some queues, the maximum of waiting tasks, or None.
        partitions: The policies of queues with a partitioned limit. They give a partition to
        messages without one.
    """

    namespace: str = "fairness"
    lease_seconds: float = 15.0
    enforcement: str = "on"
    default_tier: str = "free"
    default_limit: int | None = 1
    max_deliveries: int = 5
    fairness_by: Literal["tasks", "cost", "runtime"] = "tasks"
    snooze_seconds: float = 30.0
    tier_scope: Literal["global", "service"] = "global"
    no_tenant: Literal["bypass", "shared", "error"] = "bypass"
    priority_scope: Literal["tenant", "queue"] = "tenant"
    priority_order: Literal["high_first", "low_first"] = "high_first"
    waiting_of_tiers: tuple[tuple[str, int | None], ...] = ()
    waiting_of_queues: tuple[tuple[str, int | None], ...] = ()
    partitions: tuple[tuple[str, QueuePolicy], ...] = ()

    @classmethod
    def of(cls, transport_options: Mapping[str, Any] | None) -> Self:
        """Return the options from a connection's transport options.

        Raises:
            ValueError: The option is not a mapping, or has an unknown key.
        """
        given = (transport_options or {}).get(OPTION) or {}
        if not isinstance(given, Mapping):
            raise ValueError(
                f"transport option {OPTION!r}: expected a mapping, got: {type(given).__name__}"
            )
        known = {each.name for each in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(
                f"transport option {OPTION!r}: expected keys among {', '.join(sorted(known))}, "
                f"got: {', '.join(unknown)}"
            )
        return cls(**given)

    @property
    def rules(self) -> Rules:
        """The rules that each claim carries."""
        return Rules(
            round(self.lease_seconds * 1000),
            self.enforcement,
            self.default_tier,
            self.default_limit,
            self.max_deliveries,
            self.fairness_by,
            round(self.snooze_seconds * 1000),
            self.priority_scope,
        )

    def bounds(self, queue: str, tier: str) -> Bounds | None:
        """Return the maximum of waiting tasks for a new task; None for no maximum."""
        if self.enforcement != "on":
            return None
        tiers = dict(self.waiting_of_tiers)
        of_tier = tiers.get(tier if tier in tiers else self.default_tier)
        return Bounds(self.default_tier, of_tier, dict(self.waiting_of_queues).get(queue))
