"""The methods of a limiter: the one in Redis, and the fake one of tests.

Invariant: a key never gets more live leases than its limit. A lease of several keys is granted for
all of them or for none. A lease that is not renewed ends by itself. Acquire, renew and release take
a lease's id, and a second call with the same id changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from celery_fairness.config.queue_limits import How, QueueNumbers, QueueRow
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.types import (
    Admitted,
    KeyLeases,
    Lease,
    Parking,
    Promoted,
    Promotion,
    PromotionEnd,
    Rejected,
    SlotRequest,
    Unresolved,
)
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler.types import Renewal


class Limiter(Protocol):
    """Takes, renews and ends leases, parks tasks, and stores the tiers in force.

    Every method raises :class:`~celery_fairness.errors.LimiterUnavailable` if the limiter's Redis
    does not answer.
    """

    def acquire(
        self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON
    ) -> Admitted | Rejected:
        """Take a slot of the tier and of each other limit, or none.

        A lease that is already held is admitted again without a change.
        """

    def renew(self, leases: Sequence[Lease], epoch: int | None = None) -> Renewal[Lease]:
        """Renew ``leases`` for one lease time, and move the limiter's clock.

        Args:
            leases: The leases. An empty list only moves the clock.
            epoch: The epoch of the last renewal. If the limiter has lost its memory since, missing
                leases are registered again.
        """

    def announce(
        self,
        worker: str,
        epoch: int | None = None,
        *,
        ends: bool = False,
        limits: Sequence[str] = (),
    ) -> bool:
        """Report that a worker lives, for one more lease time.

        Args:
            worker: The worker's ``WorkerStatus`` as JSON. "" only checks the memory.
            epoch: The epoch of the last renewal. None if there was none.
            ends: The worker ends, and its entry is removed.
            limits: The limits that the worker's app declares, as text. The limiter looks whether
                they are used up.

        Returns:
            Whether the limiter has lost its memory since that epoch.
        """

    def release(self, leases: Sequence[Lease], *, died: bool = False) -> int:
        """End ``leases`` and return how many of them were held. A second call returns 0.

        ``died`` is whether their processes died. A trace reports this.
        """

    def release_soon(self, lease: Lease) -> None:
        """End the lease of an attempt whose body has ended, without waiting for the answer."""

    def supersede(self, rejected: Copy, next_serial: str) -> bool:
        """Replace the successor of ``rejected`` by a copy with ``next_serial``.

        A caller uses this if a publish failed and may have arrived. From now on a gate drops the
        message of the first try.

        Returns:
            False if the first try arrived, or another copy started. Then nothing must be published.
        """

    def park(
        self, request: SlotRequest, message: str, expires_ms: int = 0, rank: int = 0
    ) -> Parking:
        """Store the message of a task that was just rejected until its limits are available.

        A lease that ends between the rejection and this call is not missed. A copy that was parked
        before gets its old place.

        Args:
            request: The rejected request, with a copy. ``next_serial`` is never published.
            message: The message to publish again.
            expires_ms: The server time from which the task must not start. 0 for none.
            rank: The priority, 0 to 9. Rank 9 goes first.
        """

    def promote(self, want: int, enforcement: Enforcement = Enforcement.ON) -> Promotion:
        """Lease parked tasks that may start now, in their fair order.

        If the caller does not report within one lease that a task is published, the task waits
        again in its place, and is promoted again as another copy.

        Args:
            want: Most tasks, at least 1.
            enforcement: If it is not ``ON``, all parked tasks may start.
        """

    def end_promotion(self, promoted: Promoted, how: PromotionEnd) -> None:
        """Store what became of the copy of a promoted task.

        A task that was not published is promoted again after a pause. The pause doubles with each
        try, from a sixteenth of a lease to a whole one. A task that its broker has rejected ten
        times has failed.
        """

    def await_parked(self, timeout_seconds: float) -> None:
        """Wait until parked tasks may start, or the timeout. Each wake-up wakes one caller."""

    def leases_of(self, key: str) -> KeyLeases:
        """Return the live leases of ``key`` without changing it."""

    def publish_tiers(self, tiers: Iterable[Tier], source: str, *, force: bool = True) -> bool:
        """Put a whole tier table in force.

        Args:
            tiers: All tiers.
            source: ``database`` or ``settings``.
            force: False does not replace a table from the database.

        Returns:
            Whether the table is now in force.
        """

    def published_tiers(self) -> tuple[str, Mapping[str, Tier]]:
        """Return the source of the table in force, "" if there is none, and its tiers."""

    def publish_tenant(
        self,
        tenant: str,
        tier: str | None,
        concurrency: int | str | None,
        *,
        keep: bool = False,
        ends_ms: int | None = None,
    ) -> int:
        """Publish one tenant's tier.

        Args:
            tenant: The tenant.
            tier: Its tier. None removes the record.
            concurrency: Its own number. None for unlimited, "" for the tier's.
            keep: Keep the record until it is removed. Otherwise a record without an own number
                expires when the caches of all resolvers have expired.
            ends_ms: Server time from which the tenant has the default tier, in Unix ms. None for no
                end.

        Returns:
            The config version.
        """

    def published_tenant(self, tenant: str) -> str | None:
        """Return the tier that was published for ``tenant``; None if none was."""

    def limit_queue(
        self, how: How, queue: str, numbers: QueueNumbers | None = None, parts: bool = False
    ) -> QueueRow | None:
        """Change the limit of a queue, or only make its row.

        Args:
            how: ``declare``, ``set``, ``clear`` or ``know``
                (:mod:`celery_fairness.config.queue_limits`).
            queue: The queue.
            numbers: The new numbers. None for none.
            parts: Whether they are declared for each partition.

        Returns:
            The queue's row; None if it has none.
        """

    def queue_rows(self) -> Mapping[str, QueueRow]:
        """Return the rows of queues by name."""

    def config_version(self) -> int:
        """Return the config version. It grows with each publication."""

    def report_unresolved(self, failed: int, tenants: Mapping[str, Unresolved]) -> int:
        """Count failures of the tier resolver, and return the config version.

        Args:
            failed: All failures since the last report.
            tenants: Those of the first tenants.
        """

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a counter."""

    def counts(self) -> Mapping[str, int]:
        """Return every counter: ``rejected:TIER``, ``superseded``, ``opened``, ``invalid``.

        Limits other than tiers have ``limited`` (rejections), ``dropped`` and ``rescheduled``.
        """
