"""What people tell an installation: the base of ``Fairness``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from celery_fairness.config.tenants import normalise, reserved, tier_key
from celery_fairness.config.tiers import Tier
from celery_fairness.control.overriding import UNSET, Overriding, Unset
from celery_fairness.control.rerouting import Rerouter, changed_tiers
from celery_fairness.control.views import Cancelled, DeadLetter, PublishedTier, Purged, Requeued
from celery_fairness.limiter.redis import RedisLimiter


class Steering(Overriding):
    """An installation as people see it."""

    # -- tiers ------------------------------------------------------------------------------------

    def publish_tiers(self, tiers: Iterable[Tier], source: str = "database") -> None:
        """Put a whole tier table in force, for every process at its next question.

        Where the class of a tier's queue is another than before, and the broker claims fairly, what
        waits of its tenants goes to their new queues before this returns.

        Args:
            tiers: Every tier there is.
            source: ``database`` keeps starting workers from putting their settings in its place.

        Raises:
            LimiterUnavailable: Redis does not answer; the table before stays in force.
        """
        before = self.limiter.published_tiers()[1] or self.settings.tiers
        self.limiter.publish_tiers(tiers, source)
        self._route_changed(before)

    def set_tier(
        self, tenant: str, tier: str | None, *, concurrency: int | Unset | None = UNSET
    ) -> PublishedTier:
        """Publish one tenant's tier, for every process at its next question.

        Args:
            tenant: Who.
            tier: The name of a tier; None forgets what was published.
            concurrency: A number of the tenant's own in the place of its tier's; None: unlimited.

        If a ``tier_resolver`` is set, a tier without a number holds for twice
        ``tier_cache_seconds``. Then the resolver decides again. To make the tier last, change what
        the resolver returns, or give the tenant a number of its own.

        Where the broker claims fairly, what waits of the tenant, in a lane, at a limit or until its
        time, goes to the queue of its new tier before this returns; each task keeps its place among
        the tenant's others. What runs is not touched.

        Returns:
            The tier, and until when it holds.

        Raises:
            TenantInvalid: It cannot be a tenant.
            ValueError: There is no such tier, or the number is none.
            LimiterUnavailable: Redis does not answer.
        """
        name = normalise(tenant)
        if name is None:
            raise ValueError(f"tenant: expected a tenant, got: {tenant!r}")
        known = dict(self.limiter.published_tiers()[1]) or self.settings.tiers
        if tier is not None and tier not in known:
            raise ValueError(f"tier: expected one of {', '.join(sorted(known))}, got: {tier!r}")
        number: int | str | None = ""
        if not isinstance(concurrency, Unset):
            number = Tier("own", concurrency).concurrency
        keep = self.settings.tier_resolver is None
        self.limiter.publish_tenant(reserved(name), tier, number, keep=keep)
        self.route_again([name])
        lasts = keep or tier is None or number != ""
        kept = timedelta(seconds=2 * self.settings.tier_cache_seconds)
        return PublishedTier(
            tenant=name, tier=tier, until=None if lasts else datetime.now(UTC) + kept
        )

    def route_again(self, tenants: Iterable[str]) -> int:
        """Let what waits of tenants go to the queues of the tiers that they have now.

        A task moves only between the priority and the default queue of its own service, and not
        where it was submitted as a scheduled one. Elsewhere than on a broker that claims fairly
        nothing moves: there a tier acts on tasks that are sent after it.

        Args:
            tenants: Who; again does no harm.

        Returns:
            How many tasks were moved.

        Raises:
            LimiterUnavailable: Redis does not answer; call again.
        """
        if not self._moves:
            return 0
        names = (reserved(tenant) for tenant in tenants)
        return self._mover().of_tenants([tier_key(name).partition(":")[2] for name in names])

    @property
    def _moves(self) -> bool:
        return self.claims and isinstance(self.limiter, RedisLimiter)

    def _mover(self) -> Rerouter:
        return Rerouter(self._claimed_limiter(), self.settings)

    def _route_changed(self, before: Mapping[str, Tier]) -> None:
        """The tier table was another: let tasks go where its queues are."""
        if not self._moves:
            return
        after = self.limiter.published_tiers()[1]
        changed = changed_tiers(before, after, self.settings.default_tier)
        if changed:
            self._mover().of_tiers(changed)

    # -- single tasks -----------------------------------------------------------------------------

    def cancel(self, task_id: str) -> Cancelled:
        """Cancel a task that waits, in its lane, at a limit or until its time; or a parked one.

        A worker writes that it was revoked: its result, its chord, signal and event. To find the
        task, the messages of all that wait are read.

        Args:
            task_id: Its id.

        Returns:
            Whether it was cancelled, or runs already: then it is not stopped, which is the matter
            of ``app.control.revoke(task_id, terminate=True)``.

        Raises:
            NotFound: No task of this id waits or runs; on the gate: none is parked.
            ValueError: The limiter is not in Redis.
            LimiterUnavailable: Redis does not answer.
        """
        return self._clearing(claims=False).cancel(task_id)

    def purge_tenant(self, tenant: str) -> Purged:
        """Cancel all that waits of a tenant, in every queue; what runs runs on.

        What comes while it works may be left.

        Raises:
            TenantInvalid: It cannot be a tenant.
            ValueError: It is none, or the limiter is not in Redis.
            LimiterUnavailable: Redis does not answer.
        """
        name = normalise(tenant)
        if name is None:
            raise ValueError(f"tenant: expected a tenant, got: {tenant!r}")
        return self._clearing(claims=False).purge(reserved(name))

    def cancel_parked(self, queue: str) -> int:
        """Cancel what gates have parked of a queue; ``celery purge`` does it, too.

        Args:
            queue: Its name.

        Returns:
            How many tasks that was.

        Raises:
            LimiterUnavailable: Redis does not answer.
        """
        if self.claims or not isinstance(self.limiter, RedisLimiter):
            return 0
        return self._clearing(claims=False).purge_queue(queue)

    def dead_letters(self, queue: str | None = None) -> tuple[DeadLetter, ...]:
        """Return the dead letters of a queue, or of all, the last of a queue first."""
        return tuple(self._clearing().dead_letters(queue))

    def requeue(self, task_id: str) -> Requeued:
        """Let a dead letter wait again, last in its lane; its deaths are counted from 0.

        Args:
            task_id: Its id, or what ``dead_letters`` says where its message has none.

        Raises:
            NotFound: There is no such dead letter; others as :meth:`cancel`.
        """
        return self._clearing().requeue(task_id)
