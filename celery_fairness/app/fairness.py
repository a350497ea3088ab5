"""``Fairness(app)``: connects an app to its limits, and serves operators and programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from celery_fairness import wiring
from celery_fairness.app.parts import Parts
from celery_fairness.config.settings import Settings
from celery_fairness.control.health.events_api import EventsApi
from celery_fairness.control.health.stats_api import StatsApi
from celery_fairness.control.health.table_check import Progress, check
from celery_fairness.control.health.views import Check
from celery_fairness.control.key.limits_api import LimitsApi
from celery_fairness.control.queue.queues_api import QueuesApi
from celery_fairness.control.task.tasks_api import TasksApi
from celery_fairness.control.tenant.tenants_api import TenantsApi


class Fairness:
    """Fair shares and limits for the tasks of one Celery app.

    Each noun is one attribute: ``limits``, ``tenants``, ``queues``, ``tasks``, ``events`` and
    ``stats``. No connection is opened before one is used.

    Args:
        app: The Celery app. A second ``Fairness`` of the same app replaces the first.
        environ: Environment variables, used before ``app.conf.fairness``.

    Raises:
        SettingsError: At the first use, if a setting is invalid.
    """

    def __init__(self, app: Any, environ: Mapping[str, str] = os.environ) -> None:
        self._parts = Parts(app, environ)
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
            LimiterUnavailable: Redis does not answer, or its user may not load functions.
        """
        return check(self._parts.installation, repair=repair, progress=progress)

    @cached_property
    def limits(self) -> LimitsApi:
        """Limits by key."""
        return LimitsApi(self._parts.installation)

    @cached_property
    def tenants(self) -> TenantsApi:
        """Tenants by id, and the table of tiers."""
        return TenantsApi(self._parts.installation)

    @cached_property
    def queues(self) -> QueuesApi:
        """Queues by name."""
        return QueuesApi(self._parts.installation)

    @cached_property
    def tasks(self) -> TasksApi:
        """Tasks by id."""
        return TasksApi(self._parts.installation)

    @cached_property
    def events(self) -> EventsApi:
        """Events: a history of limits, tasks and operators' changes."""
        return self._parts.events

    @cached_property
    def stats(self) -> StatsApi:
        """Status and statistics."""
        return StatsApi(self._parts.installation)
