"""What a limiter does: the one in Redis, and the fake one of tests.

Invariant: no lease of a key is granted while the key holds as many live leases as its limit, and a
lease of several keys is granted for all of them or for none. A lease that is not renewed ends by
itself. Acquire, renew and release name a lease by its id and do nothing the second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from celery_fairness.config.queue_limits import How, QueueNumbers, QueueRow
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.types import (
    Admitted,
    Lease,
    LimitState,
    Parking,
    Promotion,
    Rejected,
    Renewal,
    SlotRequest,
    Unparked,
)
from celery_fairness.message.headers import Copy


class Limiter(Protocol):
    """Takes, keeps and ends leases, and knows the tiers in force.

    Every method raises :class:`~celery_fairness.errors.LimiterUnavailable` where the limiter's
    memory cannot be reached.
    """

    def acquire(
        self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON
    ) -> Admitted | Rejected:
        """Take a slot of the tier and of each other limit, or none and say why not.

        The same lease again is admitted without a change.
        """
        ...

    def renew(self, leases: Sequence[Lease], epoch: int | None = None) -> Renewal:
        """Keep ``leases`` for another lease time, and move the limiter's clock.

        Args:
            leases: Named one by one; an empty list only moves the clock.
            epoch: Of the last renewal. Where the limiter lost its memory since, what is missing
                is entered again.
        """
        ...

    def announce(self, worker: str, epoch: int | None = None, *, ends: bool = False) -> bool:
        """Report that a worker lives, for one more lease time.

        Args:
            worker: ``WorkerStatus.announced`` of it; "" only asks about the memory.
            epoch: Of the last renewal; None if there was none.
            ends: The worker ends: it is listed no more.

        Returns:
            Whether the limiter lost its memory since that epoch.
        """
        ...

    def release(self, leases: Sequence[Lease], *, died: bool = False) -> int:
        """End ``leases`` and return how many slots they held. Twice is harmless.

        Args:
            leases: Named one by one.
            died: Their processes could not end them. Who watches tasks is told so.
        """
        ...

    def release_soon(self, lease: Lease, *, watched: bool = False) -> None:
        """End ``lease``; need not have happened when this returns.

        Args:
            lease: Of an attempt whose body has ended.
            watched: Whether a trace is on (``Admitted.watched``).
        """
        ...

    def idle(
        self, lease: Lease, short_seconds: float, least_seconds: float, every_seconds: float
    ) -> tuple[int, float]:
        """Add to how long tasks waited for their snooze while their tenant had a free slot.

        Args:
            lease: Of an attempt that was just admitted, of a task that the tier had rejected.
            short_seconds: A shorter wait is not counted.
            least_seconds: Less in all is not logged.
            every_seconds: How often its worker logs it at most.

        Returns:
            The number of tenants and the seconds in all that the worker is to log; 0: nothing.
        """
        ...

    def supersede(self, refused: Copy, next_serial: str) -> bool:
        """Say that the successor of ``refused`` is published once more, as ``next_serial``.

        Asked when a publish failed and may have arrived all the same: from now on the first try
        does not count.

        Returns:
            False where it did arrive, or another copy started: nothing need be published.
        """
        ...

    def park(self, request: SlotRequest, message: str, expires_ms: int | None = None) -> Parking:
        """Keep the message of a task that was just refused until its limits open.

        Nothing that ends between the refusal and this is missed. A copy that waited here before
        takes its old place.

        Args:
            request: As it was refused, with a copy; ``next_serial`` is never published.
            message: As it is to be published again.
            expires_ms: Server time from which it does not start any more.
        """
        ...

    def promote(
        self, want: int, serial: str, enforcement: Enforcement = Enforcement.ON
    ) -> Promotion:
        """Give parked tasks that may start by now, of each limit the one that waits longest first.

        A task whose caller does not say within one lease that it is published is given again, as
        another copy. One that has expired, or was cancelled, is given whatever its limits say.

        Args:
            want: Most tasks, at least 1.
            serial: Of the copies, each with a number behind it; random.
            enforcement: Where it is not on, nothing is kept.
        """
        ...

    def unpark(self, messages: Sequence[str], how: Unparked = "published") -> int:
        """Say that the broker has parked tasks again, or how else they ended.

        Args:
            messages: Their tags.
            how: ``cancelled``: they are given to workers as if they had expired; too late of one
                that was promoted. ``failed``: no broker takes them, and no copy starts any more.

        Returns:
            How many were parked.
        """
        ...

    def put_off(self, message: str) -> int:
        """Say that a promoted task could not be published: it is promoted again after a pause.

        The pause doubles with each try, from a sixteenth of a lease to a whole one.

        Returns:
            How often it could not be published; 0: it is not promoted any more.
        """
        ...

    def forgo(self, message: str, keys: Sequence[str]) -> None:
        """Say that a promoted task ended before it came to a gate: what it was promised is free."""
        ...

    def parked(self, key: str) -> int:
        """Return how many parked tasks wait at ``key``."""
        ...

    def await_parked(self, timeout_seconds: float) -> None:
        """Wait, at most so long, until parked tasks may start; one of those that wait hears it."""
        ...

    def inspect(self, key: str, tenant: str, tier: str) -> LimitState:
        """Return what ``key`` holds now; changes nothing."""
        ...

    def publish_tiers(self, tiers: Iterable[Tier], source: str, *, force: bool = True) -> bool:
        """Put a whole tier table in force.

        Args:
            tiers: Every tier there is.
            source: ``database`` or ``settings``.
            force: False leaves a table of the database as it is.

        Returns:
            Whether the table is now in force.
        """
        ...

    def published_tiers(self) -> tuple[str, Mapping[str, Tier]]:
        """Return the source of the table in force ("" where there is none) and its tiers."""
        ...

    def publish_tenant(
        self, tenant: str, tier: str | None, concurrency: int | str | None, *, keep: bool = False
    ) -> None:
        """Publish one tenant's tier.

        Args:
            tenant: Who.
            tier: None forgets the tenant.
            concurrency: A number of its own, None for unlimited, "" for the tier's.
            keep: Until forgotten; else, without a number of its own, until every resolver's cache
                has run out and the resolvers say the same.
        """
        ...

    def published_tenant(self, tenant: str) -> str | None:
        """Return the tier that was published for ``tenant``, None where none was."""
        ...

    def limit_queue(
        self, how: How, queue: str, numbers: QueueNumbers | None = None, parts: bool = False
    ) -> QueueRow | None:
        """Say what a queue may, or that its key has something said of it.

        Args:
            how: ``declare``, ``set``, ``clear`` or ``know``
                (:mod:`celery_fairness.config.queue_limits`).
            queue: Which.
            numbers: Those; None: none.
            parts: They are declared for each partition.

        Returns:
            What is known of it now, None where that is nothing.
        """
        ...

    def queue_rows(self) -> Mapping[str, QueueRow]:
        """Return what is known of queues, by name."""
        ...

    def news(self) -> int:
        """Return the version of what was published; it grows with each publication."""
        ...

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a counter."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return every counter: ``refused:TIER``, ``superseded``, ``opened``, ``invalid``.

        Of limits beside the tiers: ``limited`` (refusals), ``dropped`` and ``rescheduled``.
        """
        ...
