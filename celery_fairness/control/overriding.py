"""What people tell an installation of its keys and queues: pauses, cool-downs, numbers."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from celery_fairness.config.policy import OnLimit
from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.config.rates import RateLike
from celery_fairness.config.tenants import normalise, reserved, tier_key
from celery_fairness.control.holding import Holding, ends_ms, lasts_ms, person, written
from celery_fairness.control.observing import Observing
from celery_fairness.control.ojs_views import Inspection
from celery_fairness.control.views import QueueLimit
from celery_fairness.errors import NotFound, got
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiter.types import KeyStops
from celery_fairness.util.durations import milliseconds
from celery_fairness.util.retry_after import wait_until

logger = logging.getLogger("celery_fairness")


class Unset:
    """The type of an argument that was not given, where None means something."""


UNSET = Unset()


class Overriding(Observing):
    """An installation whose keys may be told to stop, or what they may."""

    # -- stops and overrides ----------------------------------------------------------------------

    def pause(
        self,
        tenant: str | None = None,
        *,
        key: str | None = None,
        expires_in: float | None = None,
        by: str | None = None,
    ) -> KeyStops:
        """Let nothing more start of a tenant or under a key; what runs runs on.

        Args:
            tenant: Who; or
            key: Of limits that tasks have beside their tier's, such as ``api.stripe.com``, or a
                tenant's, as for :meth:`inspect`.
            expires_in: For how long, in seconds; None: until it is resumed. A later call stands in
                the place of this one.
            by: The person who pauses it, which is shown with the pause, at most 200 characters;
                None: the user of this process.

        Raises:
            TenantInvalid: It cannot be a tenant.
            ValueError: The key, the time or the person is none.
            LimiterUnavailable: Redis does not answer.
        """
        wait_ms = 0 if expires_in is None else lasts_ms(expires_in)
        who = person(by)
        name = self._stopped_key(tenant, key, says=True)
        return self._holding.stop("pause", name, wait_ms, by=who)

    def resume(
        self, tenant: str | None = None, *, key: str | None = None, by: str | None = None
    ) -> KeyStops:
        """End a pause. A cool-down of the key goes on; ``by`` and errors as :meth:`pause`."""
        who = person(by)
        return self._holding.stop("resume", self._stopped_key(tenant, key), by=who)

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
            key = self._key(key, tenants=False, says=True)
        stops = self._holding.stop("cool", key, milliseconds(wait_seconds), reason)
        why = reason or "no reason given"
        logger.warning("%s cools down for %.1f s: %s", key, stops.cool_down_seconds, why)
        return stops

    def clear_cool_down(self, key: str) -> KeyStops:
        """End a cool-down. A pause of the key goes on; errors as :meth:`pause`."""
        cools = isinstance(key, str) and self._holding.cools(key)
        name = key if cools else self._key(key, tenants=False)
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
                :class:`~celery_fairness.config.policy.RateLimitPolicy`; None is unlimited.
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
        name = self._key(key, of_all=False, says=True)
        self._holding.override(
            name,
            {name: value for name, value in given.items() if not isinstance(value, Unset)},
            0 if expires_in is None else lasts_ms(expires_in),
            None if expires_at is None else ends_ms(expires_at),
            {name: text for name, text in details.items() if text is not None},
        )
        # It may have ended since.
        return self._inspector.inspect(name if name.startswith(PREFIX) else key, known=False)

    def clear_override(self, key: str) -> bool:
        """End an override; return whether there was one. Errors as :meth:`override`."""
        return self._holding.clear(self._key(key))

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
                :class:`~celery_fairness.config.policy.RateLimitPolicy`; None is unlimited.
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
    def _holding(self) -> Holding:
        limiter = self.limiter
        if not isinstance(limiter, RedisLimiter):
            raise ValueError(f"limiter: expected one in Redis, got: {got(limiter)}")
        return Holding(limiter, self.settings)

    def _key(
        self, key: Any, *, tenants: bool = True, of_all: bool = True, says: bool = False
    ) -> str:
        """Return a key as the functions write it.

        Args:
            key: As people say it.
            tenants: It may be a tenant's.
            of_all: It may be that of all services of a tenant, where each counts apart.
            says: Something will be said of it: where it is a queue's, claims ask for it.
        """
        queue = ""
        if isinstance(key, str) and key.startswith(PREFIX):
            key, queue = self._limiting.find(key, self._is_used)
        name = written(key, self.settings, tenants=tenants, of_all=of_all)
        if says and queue:
            self._limiting.make_known(queue)
        return name

    def _is_used(self, key: str) -> bool:
        """Say whether anything is known of a key as it stands."""
        try:
            self._inspector.inspect(key)
        except (NotFound, ValueError):
            return False
        return True

    def _stopped_key(self, tenant: str | None, key: str | None, *, says: bool = False) -> str:
        if (tenant is None) == (key is None):
            raise ValueError(f"expected a tenant or a key, got: {'both' if key else 'none'}")
        if tenant is None:
            return self._key(key, says=says)
        name = normalise(tenant)
        if name is None:
            raise ValueError(f"tenant: expected a tenant, got: {tenant!r}")
        # Of all its services, where each counts apart.
        return tier_key(reserved(name))
