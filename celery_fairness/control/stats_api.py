"""``fairness.stats``: the installation at a glance, and what it counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from celery_fairness.control.minutes import KEPT
from celery_fairness.control.stats import Stats
from celery_fairness.control.views import Minute, Rejections, Status
from celery_fairness.errors import got


class StatsApi:
    """Status and statistics of one installation.

    Args:
        stats: Reads them.
        known: Returns the queues that this app knows.
    """

    def __init__(self, stats: Stats, known: Callable[[], Iterable[str]]) -> None:
        self._stats = stats
        self._known = known

    def status(self) -> Status:
        """Return the installation at a glance: queues, who holds leases, tiers, counters.

        Raises:
            LimiterUnavailable: Redis does not answer.
        """
        return self._stats.status(self._known())

    def minutes(self, last: int = 60) -> tuple[Minute, ...]:
        """Return what claims and gates did in each of the last minutes, the oldest first.

        For each queue and tier: how many tasks started, how long they had waited (tasks behind none
        of their own tenant's apart), and how often a tenant was found at its tier's limit. A gate
        counts each rejected attempt, and does not measure the waiting time. A minute without
        entries is left out; the last minute still counts.

        Args:
            last: How many minutes, 1 to 360: they are stored for six hours.

        Raises:
            ValueError: The number is out of range.
            LimiterUnavailable: Redis does not answer.
        """
        if not isinstance(last, int) or isinstance(last, bool) or not 1 <= last <= KEPT:
            raise ValueError(f"last: expected a whole number from 1 to {KEPT}, got: {got(last)}")
        return self._stats.minutes(last)

    def rejections(self) -> Rejections:
        """Return how often limits rejected a start, by tier and by key, all workers together.

        A gate counts attempts. A claim counts a tenant that it finds at its limit once, until the
        tenant may start a task again; of other limits it counts the first task of a lane.

        Raises:
            LimiterUnavailable: Redis does not answer.
        """
        return Rejections(
            tiers=self._stats.rejections_by_tier(), keys=self._stats.rejections_by_key()
        )

    def counters(self) -> dict[str, int]:
        """Return the other counters.

        =================== ========================================================================
        superseded          copies of a message that were dropped
        opened              tasks that ran without a slot while Redis was away
        invalid             tasks attributed to ``_invalid``
        memory_lost         1 if workers found that the memory before this one was lost
        expired             leases that ended without a renewal (fairredis, like all below)
        abandoned           acknowledged tasks that were lost with their worker
        dead_lettered       tasks whose process died too often, or with an unreadable message
        requeued            dead letters that an operator put back
        cancelled           tasks that an operator cancelled
        dropped             tasks that a limit rejected and that were not run
        rescheduled         tasks that a limit rejected, once for each later try
        expired_waiting     tasks that expired while they waited
        aside               entries of plain lists that were quarantined
        =================== ========================================================================

        Raises:
            LimiterUnavailable: Redis does not answer.
        """
        return self._stats.counts()
