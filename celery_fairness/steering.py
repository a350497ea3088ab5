"""What people ask of an installation, and what they tell it: the base of ``Fairness``."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from typing import Any

from celery_fairness.clearing import Clearing
from celery_fairness.cooling import wait_until
from celery_fairness.decision import KeyStops, LimitState
from celery_fairness.directory import TierDirectory
from celery_fairness.errors import got
from celery_fairness.keys import KEY_CHARACTERS
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.looking.looker import Looker
from celery_fairness.looking.values import (
    Audit,
    Cancelled,
    DeadLetter,
    Explanation,
    Purged,
    Requeued,
    Status,
)
from celery_fairness.settings import Settings
from celery_fairness.store import verbs
from celery_fairness.tenants import KEY_PATTERN, normalise, reserved
from celery_fairness.tiers import Tier
from celery_fairness.units import milliseconds, seconds

logger = logging.getLogger("celery_fairness")


class Unset:
    """The type of an argument that was not given, where None means something."""


UNSET = Unset()


class Steering(ABC):
    """An installation as people see it."""

    app: Any

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """Those in force."""

    @property
    @abstractmethod
    def limiter(self) -> Limiter:
        """The limiter of this process."""

    @property
    @abstractmethod
    def directory(self) -> TierDirectory:
        """Tiers in force and tiers of tenants."""

    @property
    @abstractmethod
    def claims(self) -> bool:
        """Whether the broker claims fairly."""

    # -- looking ----------------------------------------------------------------------------------

    @cached_property
    def _looker(self) -> Looker:
        return Looker(self.limiter, self.directory, self.settings, self.claims)

    def inspect(self, key: str) -> LimitState:
        """Return what a key holds now.

        Args:
            key: ``tenant:{tenant}`` with the tenant in plain; ``tenant:{tenant}:{service}`` where
                ``tier_scope`` is ``service``. On the dispatch path also the key of a limit that
                tasks have beside their tier's, such as ``api.stripe.com``.

        Raises:
            ValueError: The key is of another form.
            LimiterUnavailable: Redis does not answer.
        """
        return self._looker.inspect(key)

    def status(self) -> Status:
        """Return the installation at a glance: queues, who holds leases, tiers, counts."""
        return self._looker.status(self.app.amqp.queues)

    def audit(self) -> Audit:
        """Return every difference between tables of the dispatch path that must agree."""
        return self._looker.audit()

    def refusals(self) -> dict[str, int]:
        """Return how many refusals each tier has met, all workers together.

        The gate counts attempts; a claim counts a tenant that it finds at its limit, once until
        the tenant opens again.
        """
        return self._looker.refusals()

    def counts(self) -> dict[str, int]:
        """Return the other counts.

        ``superseded`` copies that were dropped, tasks that ran without a slot while Redis was away
        (``opened``), and tasks charged to ``_invalid`` (``invalid``). On the dispatch path leases
        that nobody renewed (``expired``), acknowledged tasks that were lost with their worker
        (``abandoned``), tasks whose process died too often or whose message cannot be read
        (``dead_lettered``), those of them that people let wait again (``requeued``), tasks that
        people cancelled (``cancelled``), tasks that a limit refused and that were not run
        (``dropped``) or tried again later (``rescheduled``, once for each time), tasks that expired
        while they waited (``expired_waiting``), and entries of plain lists that were moved aside
        (``aside``).
        """
        return self._looker.counts()

    # -- tiers ------------------------------------------------------------------------------------

    def publish_tiers(self, tiers: Iterable[Tier], source: str = "database") -> None:
        """Put a whole tier table in force, for every process at its next question.

        Args:
            tiers: Every tier there is.
            source: ``database`` keeps starting workers from putting their settings in its place.

        Raises:
            LimiterUnavailable: Redis does not answer; the table before stays in force.
        """
        self.limiter.publish_tiers(tiers, source)

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
        self.limiter.publish_tenant(name, tier, number, keep=self.settings.tier_resolver is None)

    # -- stops ------------------------------------------------------------------------------------

    def pause(self, *, key: str) -> KeyStops:
        """Let nothing more start under a key of limits, until it is resumed; what runs runs on.

        Args:
            key: Of limits that tasks have beside their tier's, such as ``api.stripe.com``.

        Raises:
            ValueError: It is a tenant's key or none at all, or the broker does not claim fairly.
            LimiterUnavailable: Redis does not answer.
        """
        return self._stop("pause", key)

    def resume(self, *, key: str) -> KeyStops:
        """End a pause. A cool-down of the key goes on; errors as :meth:`pause`."""
        return self._stop("resume", key)

    def cool_down(self, key: str, until: datetime | float, reason: str = "") -> KeyStops:
        """Let nothing start under a key of limits until a time.

        What a later call says may make the time longer, and never shorter.

        Args:
            key: As for :meth:`pause`.
            until: A datetime with a time zone, or Unix seconds. What is naive, past or further than
                a day is moved to the next second, or to a day from now, with a warning.
            reason: For the log.

        Raises:
            ValueError: As :meth:`pause`.
            LimiterUnavailable: Redis does not answer.
        """
        return self.cool_down_for(key, wait_until(until), reason)

    def cool_down_for(self, key: str, wait_seconds: float, reason: str = "") -> KeyStops:
        """Let nothing start under a key of limits for a time; see :meth:`cool_down`."""
        stops = self._stop("cool", key, milliseconds(wait_seconds))
        why = reason or "no reason given"
        logger.warning("%s cools down for %.1f s: %s", key, stops.cool_down_seconds, why)
        return stops

    def clear_cool_down(self, key: str) -> KeyStops:
        """End a cool-down. A pause of the key goes on; errors as :meth:`pause`."""
        return self._stop("clear", key)

    def _stop(self, how: str, key: str, wait_ms: int = 0) -> KeyStops:
        # A task's body may name anything.
        fits = isinstance(key, str) and len(key) <= KEY_CHARACTERS and KEY_PATTERN.fullmatch(key)
        if not fits or key.partition(":")[0] == "tenant":
            raise ValueError(
                "key: expected the key of a limit such as 'api.stripe.com' (a tenant is paused by "
                f"set_tier(…, concurrency=0)), got: {got(key)}"
            )
        limiter = self._claimed_limiter()
        settings = self.settings
        lease_ms = milliseconds(settings.lease_seconds)
        args = verbs.stop_args(how, key, wait_ms, lease_ms, settings.enforcement.value)
        told = limiter.connection.run(verbs.STOP, (limiter.prefix,), args)
        paused, cool_ms = verbs.read_stop(told)
        return KeyStops(key, paused, seconds(cool_ms))

    # -- single tasks -----------------------------------------------------------------------------

    def explain(self, task_id: str) -> Explanation:
        """Return where a task is: its place in lane and ring, what keeps it, and who holds that.

        To find the task, the messages of all that wait are read.

        Args:
            task_id: Its id.

        Raises:
            NotFound: No task of this id waits or runs, or is a dead letter.
            ValueError: The broker does not claim fairly.
            LimiterUnavailable: Redis does not answer.
        """
        return self._clearing().explain(task_id, self._looker)

    def cancel(self, task_id: str) -> Cancelled:
        """Cancel a task that waits, in its lane, at a limit or until its time.

        A worker writes that it was revoked: its result, its chord, signal and event. To find the
        task, the messages of all that wait are read.

        Args:
            task_id: Its id.

        Returns:
            Whether it was cancelled, or runs already: then it is not stopped, which is the matter
            of ``app.control.revoke(task_id, terminate=True)``.

        Raises:
            NotFound: No task of this id waits or runs.
            ValueError: The broker does not claim fairly.
            LimiterUnavailable: Redis does not answer.
        """
        return self._clearing().cancel(task_id)

    def purge_tenant(self, tenant: str) -> Purged:
        """Cancel all that waits of a tenant, in every queue; what runs runs on.

        What comes while it works may be left.

        Raises:
            TenantInvalid: It cannot be a tenant.
            ValueError: It is none, or the broker does not claim fairly.
            LimiterUnavailable: Redis does not answer.
        """
        name = normalise(tenant)
        if name is None:
            raise ValueError(f"tenant: expected a tenant, got: {tenant!r}")
        return self._clearing().purge(reserved(name))

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

    def _clearing(self) -> Clearing:
        return Clearing(self._claimed_limiter(), milliseconds(self.settings.lease_seconds))

    def _claimed_limiter(self) -> RedisLimiter:
        limiter = self.limiter
        if self.claims and isinstance(limiter, RedisLimiter):
            return limiter
        raise ValueError(
            "broker: expected one at fairredis://, where limits and waiting tasks are kept, "
            f"got: {self.app.connection_for_write().as_uri()!r}"
        )
