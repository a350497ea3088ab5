"""What people tell an installation: the base of ``Fairness``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from celery_fairness.cooling import wait_until
from celery_fairness.decision import KeyStops
from celery_fairness.errors import got
from celery_fairness.holding import Holding, ends_ms, lasts_ms, written
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiting import Limiting
from celery_fairness.looking.inspection import Inspection
from celery_fairness.looking.values import (
    Cancelled,
    DeadLetter,
    Purged,
    QueueLimit,
    Requeued,
)
from celery_fairness.moving import Mover, changed_tiers
from celery_fairness.observing import Observing
from celery_fairness.policy import OnLimit
from celery_fairness.rates import RateLike
from celery_fairness.tenants import normalise, reserved, tier_key
from celery_fairness.tiers import Tier
from celery_fairness.units import milliseconds

logger = logging.getLogger("celery_fairness")


class Unset:
    """The type of an argument that was not given, where None means something."""


UNSET = Unset()


class Steering(Observing):
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
    ) -> None:
        """Publish one tenant's tier, for every process at its next question.

        Args:
            tenant: Who.
            tier: The name of a tier; None forgets what was published.
            concurrency: A number of the tenant's own in the place of its tier's; None: unlimited.

        Where a ``tier_resolver`` is set, a tier without a number is published only until every
        cache has run out: from then on the resolver must say the same.

        Where the broker claims fairly, what waits of the tenant, in a lane, at a limit or until its
        time, goes to the queue of its new tier before this returns; each task keeps its place among
        the tenant's others. What runs is not touched.

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

    def _mover(self) -> Mover:
        return Mover(self._claimed_limiter(), self.settings)

    def _route_changed(self, before: Mapping[str, Tier]) -> None:
        """The tier table was another: let tasks go where its queues are."""
        if not self._moves:
            return
        after = self.limiter.published_tiers()[1]
        changed = changed_tiers(before, after, self.settings.default_tier)
        if changed:
            self._mover().of_tiers(changed)

    # -- stops and overrides ----------------------------------------------------------------------

    def pause(
        self,
        tenant: str | None = None,
        *,
        key: str | None = None,
        expires_in: float | None = None,
    ) -> KeyStops:
        """Let nothing more start of a tenant or under a key; what runs runs on.

        Args:
            tenant: Who; or
            key: Of limits that tasks have beside their tier's, such as ``api.stripe.com``, or a
                tenant's, as for :meth:`inspect`.
            expires_in: For how long, in seconds; None: until it is resumed. A later call stands in
                the place of this one.

        Raises:
            TenantInvalid: It cannot be a tenant.
            ValueError: The key or the time is none.
            LimiterUnavailable: Redis does not answer.
        """
        wait_ms = 0 if expires_in is None else lasts_ms(expires_in)
        name = self._stopped_key(tenant, key)
        self._limiting.make_known(key or "")
        return self._holding.stop("pause", name, wait_ms)

    def resume(self, tenant: str | None = None, *, key: str | None = None) -> KeyStops:
        """End a pause. A cool-down of the key goes on; errors as :meth:`pause`."""
        return self._holding.stop("resume", self._stopped_key(tenant, key))

    def cool_down(self, key: str, until: datetime | float, reason: str = "") -> KeyStops:
        """Let nothing start under a key of limits until a time.

        What a later call says may make the time longer, and never shorter.

        Args:
            key: Of limits that tasks have beside their tier's, such as ``api.stripe.com``.
            until: A datetime with a time zone, or Unix seconds. What is naive, past or further than
                a day is moved to the next second, or to a day from now, with a warning.
            reason: For the log and the event.

        Raises:
            ValueError: As :meth:`pause`; a tenant's key does not cool down.
            LimiterUnavailable: Redis does not answer.
        """
        return self.cool_down_for(key, wait_until(until), reason)

    def cool_down_for(
        self, key: str, wait_seconds: float, reason: str = "", *, policy: bool = False
    ) -> KeyStops:
        """Let nothing start under a key of limits for a time; see :meth:`cool_down`.

        Args:
            key: Which.
            wait_seconds: From now on.
            reason: For the log and the event.
            policy: It is that of a policy as a message has it, which may begin as a tenant's does.
        """
        if not policy:
            key = written(key, self.settings, tenants=False)
            self._limiting.make_known(key)
        stops = self._holding.stop("cool", key, milliseconds(wait_seconds), reason)
        why = reason or "no reason given"
        logger.warning("%s cools down for %.1f s: %s", key, stops.cool_down_seconds, why)
        return stops

    def clear_cool_down(self, key: str) -> KeyStops:
        """End a cool-down. A pause of the key goes on; errors as :meth:`pause`."""
        cools = isinstance(key, str) and self._holding.cools(key)
        name = key if cools else written(key, self.settings, tenants=False)
        return self._holding.stop("clear", name)

    def override(
        self,
        key: str,
        *,
        concurrency: int | Unset | None = UNSET,
        rate: RateLike | Unset | None = UNSET,
        throttle: RateLike | Unset | None = UNSET,
        expires_in: float | None = None,
        expires_at: datetime | float | None = None,
        reason: str | None = None,
        author: str | None = None,
    ) -> Inspection:
        """Put numbers in the place of a key's own, for a time or until they are cleared.

        They act on what waits at the next claim, on every task of the key, whatever it says. What
        is not given is as the tasks have it. Another call stands in the place of this one.
        What is returned is what :meth:`inspect` says of the key from now on.

        Args:
            key: As for :meth:`pause`. A tenant's has a concurrency alone.
            concurrency: At once; None is unlimited, 0 pauses. It may be more or less than before;
                what runs above it runs on, and nothing starts until fewer run.
            rate: Starts in any window of a period, as in
                :class:`~celery_fairness.policy.RateLimitPolicy`; None is unlimited.
            throttle: The same, evenly spaced.
            expires_in: For how long, in seconds; or
            expires_at: Until when: a datetime with a time zone, or Unix seconds.
            reason: Why, for whoever looks at it.
            author: Who says so.

        Raises:
            PolicyInvalid: A number cannot be meant.
            TenantInvalid: It cannot be a tenant.
            ValueError: Nothing is said, or the key or the time is none.
            LimiterUnavailable: Redis does not answer.
        """
        if expires_in is not None and expires_at is not None:
            raise ValueError("expected expires_in or expires_at, got: both")
        given = {"concurrency": concurrency, "rate": rate, "throttle": throttle}
        details = {"reason": reason, "author": author}
        name = written(key, self.settings)
        self._limiting.make_known(key)
        self._holding.override(
            name,
            {name: value for name, value in given.items() if not isinstance(value, Unset)},
            0 if expires_in is None else lasts_ms(expires_in),
            None if expires_at is None else ends_ms(expires_at),
            {name: text for name, text in details.items() if text is not None},
        )
        # It may have ended since.
        return self._inspector.inspect(key, known=False)

    def clear_override(self, key: str) -> bool:
        """End an override; return whether there was one. Errors as :meth:`override`."""
        return self._holding.clear(written(key, self.settings))

    # -- queues -----------------------------------------------------------------------------------

    def set_queue_limit(
        self,
        queue: str,
        *,
        global_limit: int | None = None,
        local_limit: int | None = None,
        rate: RateLike | None = None,
        throttle: RateLike | None = None,
        on_limit: OnLimit = "wait",
    ) -> QueueLimit:
        """Limit a queue, in the place of what the settings declare, until it is cleared.

        The numbers act on what waits at the next claim; what runs above them runs on. Where the
        settings partition the limit they are of each partition. On a broker that does not claim
        fairly they hold for the queues that the setting ``queues`` names.

        Args:
            queue: Its name.
            global_limit: Tasks at once over all processes; None is unlimited, 0 pauses.
            local_limit: Tasks at once in one process; the smaller of the two holds.
            rate: Starts in any window of a period, as in
                :class:`~celery_fairness.policy.RateLimitPolicy`; None is unlimited.
            throttle: The same, evenly spaced.
            on_limit: What becomes of a task over it: ``wait``, ``reschedule`` or ``drop``.

        Raises:
            PolicyInvalid: A number cannot be meant, or the queue is one that the gates of this
                broker do not ask for.
            LimiterUnavailable: Redis does not answer.
        """
        said = {
            "global_limit": global_limit,
            "local_limit": local_limit,
            "rate": rate,
            "throttle": throttle,
            "on_limit": on_limit,
        }
        return self._limiting.set(queue, said)

    def queue_limit(self, queue: str) -> QueueLimit:
        """Return the limit of a queue.

        Raises:
            NotFound: It has none.
            LimiterUnavailable: Redis does not answer.
        """
        return self._limiting.of(queue)

    def clear_queue_limit(self, queue: str) -> bool:
        """End what was set of a queue: what the settings declare holds; return whether there was.

        Raises:
            LimiterUnavailable: Redis does not answer.
        """
        return self._limiting.clear(queue)

    @property
    def _limiting(self) -> Limiting:
        return Limiting(self.limiter, None if self.claims else self.settings.queues)

    @property
    def _holding(self) -> Holding:
        limiter = self.limiter
        if not isinstance(limiter, RedisLimiter):
            raise ValueError(f"limiter: expected one in Redis, got: {got(limiter)}")
        return Holding(limiter, self.settings)

    def _stopped_key(self, tenant: str | None, key: str | None) -> str:
        if (tenant is None) == (key is None):
            raise ValueError(f"expected a tenant or a key, got: {'both' if key else 'none'}")
        if tenant is None:
            return written(key, self.settings)
        name = normalise(tenant)
        if name is None:
            raise ValueError(f"tenant: expected a tenant, got: {tenant!r}")
        # Of all its services, where each counts apart.
        return tier_key(reserved(name))

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
