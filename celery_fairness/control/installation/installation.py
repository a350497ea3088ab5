"""The installation that operators look at and change, from the view of one app."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property
from typing import Any, TypeVar

from celery_fairness.config.limit_spec import OF_QUEUE, Limit
from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.config.queue_policy import declared_limit, queue_key
from celery_fairness.config.settings import Settings
from celery_fairness.control.installation.control_bus import ControlBus
from celery_fairness.control.installation.reader import Reader
from celery_fairness.errors import LimiterUnavailable, got
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.message.task_options import declared_limits, service_queues
from celery_fairness.util.durations import Milliseconds, milliseconds

logger = logging.getLogger("celery_fairness")

Answer = TypeVar("Answer")

#: Keys of declared limits that metrics tell apart.
KEYS = 100


class Installation:
    """The keys of one namespace in one Redis, with the settings, tasks and queues of an app.

    Attributes:
        app: The Celery app.
        settings: The settings in force.
        claims: Whether the broker claims fairly. If not, only parked tasks are in Redis.
        limiter: The limiter.
        tier_cache: The cache of tenants' tiers.
        environ: The environment variables of this process.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        claims: bool,
        limiter: Limiter,
        tier_cache: TierCache,
        environ: Mapping[str, str],
    ) -> None:
        self.app = app
        self.settings = settings
        self.claims = claims
        self.limiter = limiter
        self.tier_cache = tier_cache
        self.environ = environ
        #: The partitions that did not answer, as they are shown. Nothing here is of them.
        self.missing: tuple[str, ...] = ()

    @cached_property
    def reader(self) -> Reader:
        """Reads its Redis."""
        return Reader(self.limiter)

    @cached_property
    def control_bus(self) -> ControlBus:
        """Collects replies of all workers on its broker, announced or not."""
        return ControlBus(self.app, self.reader)

    def of_those_that_answer(self, ask: Callable[[Installation], Answer]) -> Answer:
        """Return an answer about all partitions, or about those whose servers answer now.

        Args:
            ask: Returns the answer about an installation.

        Raises:
            LimiterUnavailable: The home does not answer, or not for another reason.
        """
        try:
            return ask(self)
        except LimiterUnavailable:
            stores = self.limiter.stores
            missing = self.limiter.missing() if len(stores) > 1 else ()
            if not missing or stores[0] in missing:
                raise
        part = copy(self)
        # The control bus stays, and only the home has what it reads.
        vars(part).pop("reader", None)
        part.limiter = self.limiter.without(missing)
        part.missing = tuple(f"{each.place} at {each.there.address}" for each in missing)
        return ask(part)

    def close(self) -> None:
        """Wait for the thread that collects replies of workers."""
        if "control_bus" in vars(self):
            self.control_bus.close()

    @property
    def lease_ms(self) -> Milliseconds:
        """The length of a lease."""
        return milliseconds(self.settings.lease_seconds)

    def expect_claims(self) -> None:
        """Raise if the broker does not claim fairly.

        Raises:
            ValueError: Its waiting tasks and dead letters are not in Redis.
        """
        if not self.claims:
            raise ValueError(
                "broker: expected fairredis://, where dead letters are stored in Redis, "
                f"got: {self.app.connection_for_read().as_uri()!r}"
            )

    @cached_property
    def tasks(self) -> Mapping[str, Any]:
        """The tasks of the app, by name, also those whose modules nobody has imported yet.

        A web process imports the modules of its views alone, and needs not have those of the
        workers. A module that cannot be imported is logged, and its tasks are missing.
        """
        try:
            self.app.loader.import_default_modules()
        except Exception as error:  # noqa: BLE001 - a module may raise anything
            problem = f"{type(error).__name__}: {error}"
            logger.warning("limits that tasks declare may be missing here: %s", got(problem, 300))
        found: Mapping[str, Any] = self.app.tasks
        return found

    def declared(self, key: str) -> Limit | None:
        """Return the limit that the app's tasks and settings declare for a key."""
        of_queue = declared_limit(self.settings.queues, key)
        if of_queue is not None:
            return of_queue
        limits = declared_limits(self.tasks.values())
        return next((limit for limit in limits if limit.key == key), None)

    def declared_limits(self) -> list[Limit]:
        """Return the limits that queues and tasks of the app declare."""
        of_queues = [
            Limit(queue_key(name), of=OF_QUEUE)
            for name, policy in sorted(self.settings.queues.items())
            if policy.limit.numbers
        ]
        return [*of_queues, *declared_limits(self.tasks.values())]

    def declared_words(self) -> tuple[str, ...]:
        """Return the first :data:`KEYS` of them as text."""
        return tuple(limit.text for limit in self.declared_limits()[:KEYS])

    def app_queues(self) -> list[str]:
        """Return the queues that the app names."""
        return [*self.app.amqp.queues, *service_queues(self.app)]

    def task_queues(self) -> set[str]:
        """Return the queues that the app or an option ``queue`` of its tasks names."""
        options = (getattr(task, "queue", None) for task in self.app.tasks.values())
        return {*self.app_queues(), *(each for each in options if isinstance(each, str))}

    def known_queues(self) -> Iterator[str]:
        """Yield the queues that the settings or the app name, and those in which tasks wait."""
        yield from self.settings.queues
        yield from self.app.amqp.queues
        (names,) = self.reader.sums(lambda keys: [("HKEYS", keys.waiting)])
        yield from (name for name in names if not name.startswith(PARKED_QUEUES))
