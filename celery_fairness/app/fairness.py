"""``Fairness(app)``: connects an app to its limits, and serves operators and programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from celery_fairness import wiring
from celery_fairness.app.parts import Parts
from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.config.queue_policy import declared_numbers
from celery_fairness.config.settings import Settings
from celery_fairness.control.check import Progress, check
from celery_fairness.control.events import EventsApi
from celery_fairness.control.inspect import Inspector
from celery_fairness.control.limits_api import LimitsApi
from celery_fairness.control.queue_keys import QueueKeys
from celery_fairness.control.queues_api import QueuesApi
from celery_fairness.control.stats_api import StatsApi
from celery_fairness.control.tasks_api import TasksApi
from celery_fairness.control.tenants_api import TenantsApi
from celery_fairness.control.views import Check
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.message.task_options import declared_limit, service_queues


class Fairness:
    """Fair shares and limits for the tasks of one Celery app.

    Each noun is one attribute: ``limits``, ``tenants``, ``queues``, ``tasks``, ``events`` and
    ``stats``. No connection is opened before one is used.

    Args:
        app: The Celery app. A second ``Fairness`` of the same app replaces the first.
        environ: Environment variables, used before ``app.conf.fairness``.
        limiter: For tests: a limiter to use instead of the one in Redis.

    Raises:
        SettingsError: At the first use, if a setting is invalid.
    """

    def __init__(
        self,
        app: Any,
        environ: Mapping[str, str] = os.environ,
        limiter: Limiter | None = None,
    ) -> None:
        self._parts = Parts(app, environ, limiter)
        self._parts.fairness = self

    def __repr__(self) -> str:
        return f"<Fairness of {self._parts.app.main or 'celery'!r}>"

    def __dir__(self) -> list[str]:
        nouns = ("limits", "tenants", "queues", "tasks", "events", "stats")
        return [*nouns, "check", "close", "of", "settings"]

    @classmethod
    def of(cls, app: Any = None) -> Fairness:
        """Return the ``Fairness`` of ``app``, by default of the current app.

        Raises:
            NotWired: The app has no ``Fairness``.
        """
        if app is None:
            from celery import current_app as app
        found: Fairness = wiring.wired(app).fairness
        return found

    @property
    def settings(self) -> Settings:
        """The settings in force in this process."""
        return self._parts.settings

    def close(self) -> None:
        """Undo the wiring and close the connections, for tests that make many apps."""
        self._parts.close()

    def check(self, *, repair: bool = False, progress: Progress | None = None) -> Check:
        """Return every contradiction between the tables in Redis.

        It may run while workers claim and settle. Each call to Redis reads about a hundred rows.

        Args:
            repair: Whether to repair rows whose correct value is certain. A finding then holds the
                repair.
            progress: Called now and then with the number of keys that were compared.

        Raises:
            ValueError: The Redis is a cluster.
            LimiterUnavailable: Redis does not answer, or its user may not load functions.
        """
        parts = self._parts
        return check(parts.redis_limiter, parts.settings, repair=repair, progress=progress)

    @cached_property
    def limits(self) -> LimitsApi:
        """Limits by key."""
        return LimitsApi(self._inspector, self._parts.holding, self._queue_keys)

    @cached_property
    def tenants(self) -> TenantsApi:
        """Tenants by id, and the table of tiers."""
        parts = self._parts
        return TenantsApi(
            self.limits,
            parts.holding,
            self._inspector,
            self._redis_limiter,
            parts.rerouting,
            parts.limiter,
        )

    @cached_property
    def queues(self) -> QueuesApi:
        """Queues by name."""
        return QueuesApi(self._parts.limiter, self._queue_keys, self.stats)

    @cached_property
    def tasks(self) -> TasksApi:
        """Tasks by id."""
        parts = self._parts
        return TasksApi(
            self._redis_limiter, self._inspector, parts.claims_fairly, parts.expect_claims
        )

    @cached_property
    def events(self) -> EventsApi:
        """Events: a history of limits, tasks and operators' changes."""
        return self._parts.events

    @cached_property
    def stats(self) -> StatsApi:
        """Status and statistics."""
        parts = self._parts
        return StatsApi(self._redis_limiter, parts.settings, parts.claims_fairly, self._app_queues)

    def _redis_limiter(self) -> RedisLimiter:
        return self._parts.redis_limiter

    @cached_property
    def _inspector(self) -> Inspector:
        parts = self._parts
        return Inspector(
            self._redis_limiter,
            parts.directory,
            parts.settings,
            parts.claims_fairly,
            self._declared,
        )

    @cached_property
    def _queue_keys(self) -> QueueKeys:
        parts = self._parts
        # A gate checks only the queues that the settings name.
        named = None if parts.claims_fairly else parts.settings.queues
        return QueueKeys(parts.limiter, named, self._known_queues)

    def _app_queues(self) -> list[str]:
        app = self._parts.app
        return [*app.amqp.queues, *service_queues(app)]

    def _known_queues(self) -> Iterator[str]:
        parts = self._parts
        yield from parts.settings.queues
        yield from parts.app.amqp.queues
        limiter = parts.redis_limiter
        names = limiter.connection.read("HKEYS", limiter.names.waiting)
        yield from (name for name in names if not name.startswith(PARKED_QUEUES))

    def _declared(self, key: str) -> Limit | None:
        """Return the limit that this app's tasks and settings declare for a key."""
        numbers = declared_numbers(self._parts.settings.queues, key)
        if numbers is not None:
            return numbers.limit(key)
        return declared_limit(self._parts.app.tasks.values(), key)
