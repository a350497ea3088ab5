"""What a channel knows of the settings: the transport option ``fairness``.

``Fairness(app)`` puts it into ``broker_transport_options``; without Celery it may be given to
``kombu.Connection`` as it is, and every key may be missing.
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
    """Settings that act on the wire.

    Attributes:
        namespace: What every key begins with, in a hash tag.
        lease_seconds: How long a lease lives without a renewal.
        enforcement: ``on``, ``observe`` or ``off``.
        default_tier: For a tier that is not known.
        default_limit: Of the default tier; None is unlimited.
        max_deliveries: Deaths after which a task goes to the dead letters; 0: never.
        fairness_by: What a task charges: ``tasks``, ``cost`` or ``runtime``.
        snooze_seconds: How long a rescheduled task waits at most for a slot.
        tier_scope: ``service``: each service counts apart.
        no_tenant: ``bypass``: a task without a tenant has no limit.
        priority_scope: What a priority orders: the tasks of one ``tenant``, or of a ``queue``.
        priority_order: Which priority goes first.
        waiting_of_tiers: Every tier, and how many tasks of one tenant may wait; None is any number.
        waiting_of_queues: Queues, and how many tasks may wait in each; None is any number.
        partitions: Queues whose limit is partitioned, and what it is; of a message that does not
            say its partition there it is read.
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
        """Read them from a connection's transport options.

        Raises:
            ValueError: The option is no mapping, or has a key that is not known.
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
        """What a claim is told."""
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
        """Return how many may wait where a task of ``tier`` is put into ``queue``; None: any."""
        if self.enforcement != "on":
            return None
        tiers = dict(self.waiting_of_tiers)
        of_tier = tiers.get(tier if tier in tiers else self.default_tier)
        return Bounds(self.default_tier, of_tier, dict(self.waiting_of_queues).get(queue))
