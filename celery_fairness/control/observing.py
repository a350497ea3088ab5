"""What people ask of an installation: the half of ``Fairness`` that changes no limit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from functools import cached_property, partial
from typing import Any

from celery_fairness.config.limit_spec import Limit, read_limits
from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.config.queue_policy import declared_numbers, queue_key
from celery_fairness.config.settings import Settings
from celery_fairness.config.tenants import normalise
from celery_fairness.control import events as happened
from celery_fairness.control.event_types import Event, EventPage, check_types
from celery_fairness.control.holding import WATCH_SECONDS, Holding, lasts_ms
from celery_fairness.control.inspect import Inspector
from celery_fairness.control.keys import Keys
from celery_fairness.control.list_limits import LONGEST_PAGE, PAGE_LENGTH
from celery_fairness.control.ojs_views import Inspection, InspectionPage
from celery_fairness.control.queue_limits import Limiting
from celery_fairness.control.scan import Reader
from celery_fairness.control.stats import Stats
from celery_fairness.control.tasks import Clearing
from celery_fairness.control.views import (
    Audit,
    Explanation,
    KeyRefusals,
    Minute,
    Status,
    TenantLimit,
)
from celery_fairness.errors import NotFound, TenantInvalid, got
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.message.limits import word_of
from celery_fairness.message.task_options import declared_limit, service_queues
from celery_fairness.scheduling.minutes import KEPT
from celery_fairness.util.durations import milliseconds


class Observing(ABC):
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
    def directory(self) -> TierCache:
        """Tiers in force and tiers of tenants."""

    @property
    @abstractmethod
    def claims(self) -> bool:
        """Whether the broker claims fairly."""

    # -- looking ----------------------------------------------------------------------------------

    @cached_property
    def _looker(self) -> Stats:
        return Stats(self.limiter, self.directory, self.settings, self.claims)

    @cached_property
    def _inspector(self) -> Inspector:
        by_service = self.settings.tier_scope == "service"
        return Inspector(self._looker, self.limiter, self._declared, by_service)

    def _declared(self, key: str) -> Limit | None:
        """Return the limit that this app's tasks and settings declare for a key."""
        numbers = declared_numbers(self.settings.queues, key)
        if numbers is not None:
            return numbers.limit(key)
        limit = declared_limit(self.app.tasks.values(), key)
        return None if limit is None else read_limits(word_of((limit,)))[0]

    def inspect(self, key: str) -> Inspection:
        """Return what a key holds and may hold now, as the Open Job Spec writes it.

        ``model_dump(mode="json")`` is its object: ``key``, ``concurrency``, ``rate``, ``throttle``,
        ``waiting_count`` and ``override``; other facts, such as ``leases``, are attributes beside
        that.

        A tenant's key always answers, computed from its tier: whoever was never seen has the tier
        that a first task would have, and is not ``known``. Another key answers while anything is
        kept of it, and where a task or the setting ``queues`` of this app declares it.

        Args:
            key: ``tenant:{tenant}`` with the tenant in plain; ``tenant:{tenant}:{service}`` where
                ``tier_scope`` is ``service``. Also the key of a limit that tasks have beside their
                tier's, such as ``api.stripe.com``, and of a queue's: ``queue:{queue}``.

        Raises:
            NotFound: Nothing is known of the key, or it is forgotten.
            ValueError: The key is of another form.
            LimiterUnavailable: Redis does not answer.
        """
        try:
            return self._inspector.inspect(key)
        except NotFound:
            queue = self._limiting.queue_of(key) if key.startswith(PREFIX) else ""
            if not queue or queue_key(queue) == key:
                raise
            # With a colon in its name.
            return self._inspector.inspect(queue_key(queue))

    def is_known(self, key: str) -> bool:
        """Return whether anything has a key now, or it is that of a queue which is there.

        A key that is none, and one of a tenant of which nothing but its tier is known, is not.

        Raises:
            LimiterUnavailable: Redis does not answer.
        """
        try:
            return self.inspect(key).known
        except NotFound:
            return key.startswith(PREFIX) and self._limiting.queue_of(key) != ""
        except (TenantInvalid, ValueError):
            return False

    @property
    def _limiting(self) -> Limiting:
        named = None if self.claims else self.settings.queues
        return Limiting(self.limiter, named, self._known_queues)

    def _known_queues(self) -> Iterator[str]:
        yield from self.settings.queues
        yield from self.app.amqp.queues
        limiter = self.limiter
        if isinstance(limiter, RedisLimiter):
            keys = Keys(limiter.prefix)
            yield from limiter.connection.read("HKEYS", keys.waiting)

    def tenant_limit(self, tenant: str, tier: str = "", service: str | None = None) -> TenantLimit:
        """Return the limit of a tenant that is in force and why, what runs, and what waits.

        It reads less than :meth:`inspect`, for a page that shows many tenants.

        Args:
            tenant: Who.
            tier: The tier as the caller knows it; "" is the default tier. A published tier and the
                tier of waiting tasks win. The resolver is not called.
            service: Where ``tier_scope`` is ``service``: of which.

        Raises:
            TenantInvalid: It cannot be a tenant.
            ValueError: It is none.
            LimiterUnavailable: Redis does not answer.
        """
        name = normalise(tenant)
        if name is None:
            raise ValueError(f"tenant: expected a tenant, got: {tenant!r}")
        tier = tier or self.settings.default_tier
        return self._looker.tenant_limit(name, tier, service)

    def list_limits(self, page: int = 1, per_page: int = PAGE_LENGTH) -> InspectionPage:
        """Return the keys of which anything is known, tenants' among them, by name.

        ``model_dump(mode="json")`` is the object of the Open Job Spec: ``items``, each as
        :meth:`inspect` has it, and ``pagination``.

        Args:
            page: Which, from 1.
            per_page: How many keys a page has, 1 to 100.

        Raises:
            ValueError: A number is out of range, or the limiter is not in Redis.
            LimiterUnavailable: Redis does not answer.
        """
        for name, number, most in (("page", page, None), ("per_page", per_page, LONGEST_PAGE)):
            whole = isinstance(number, int) and not isinstance(number, bool)
            if not whole or number < 1 or (most is not None and number > most):
                to = "on" if most is None else f"to {most}"
                raise ValueError(f"{name}: expected a whole number from 1 {to}, got: {got(number)}")
        return self._inspector.page(page, per_page)

    def status(self) -> Status:
        """Return the installation at a glance: queues, who holds leases, tiers, counts."""
        return self._looker.status([*self.app.amqp.queues, *service_queues(self.app)])

    def audit(self) -> Audit:
        """Return every difference between tables in Redis that must agree."""
        return self._looker.audit()

    def refusals(self) -> dict[str, int]:
        """Return how many refusals each tier has met, all workers together.

        The gate counts attempts; a claim counts a tenant that it finds at its limit, once until
        the tenant opens again.
        """
        return self._looker.refusals()

    def exceeded(self) -> tuple[KeyRefusals, ...]:
        """Return how often each key has refused, tenants' among them, by strategy and key.

        A refusal is one of the task at the head of a lane that a claim meets, or of an attempt at
        a gate, by its tier or by a limit beside that; a task may meet several. Those by a tier are
        in :meth:`refusals` too. Of more than a thousand keys of tenants, and as many others, the
        later are ``_other``.
        """
        return self._looker.exceeded()

    def minutes(self, last: int = 60) -> tuple[Minute, ...]:
        """Return what claims and gates did in each of the last minutes, the oldest first.

        Of each queue and tier: how many tasks started, how long they had waited, those behind none
        of their tenant's apart, and how often a tenant was found at its tier's limit. A gate counts
        every attempt that the tier refuses, and does not know how long what it starts has waited. A
        minute in which nothing was is left out; the last one still counts.

        Args:
            last: How many minutes, 1 to 360: they are kept for six hours.

        Raises:
            ValueError: The number is out of range, or the limiter is not in Redis.
            LimiterUnavailable: Redis does not answer.
        """
        if not isinstance(last, int) or isinstance(last, bool) or not 1 <= last <= KEPT:
            raise ValueError(f"last: expected a whole number from 1 to {KEPT}, got: {got(last)}")
        return self._looker.minutes(last)

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
        (``aside``). ``memory_lost`` is 1 if workers found that the memory before this one was lost.
        """
        return self._looker.counts()

    def explain(self, task_id: str) -> Explanation:
        """Return where a task is: its place in lane and ring, what keeps it, and who holds that.

        To find the task, the messages of all that wait are read.

        Args:
            task_id: Its id.

        Raises:
            NotFound: No task of this id waits or runs, or is a dead letter; on the gate: none is
                parked.
            ValueError: The limiter is not in Redis.
            LimiterUnavailable: Redis does not answer.
        """
        return self._clearing(claims=False).explain(task_id, self._looker)

    # -- events -----------------------------------------------------------------------------------

    def events(
        self,
        after: str | None = None,
        types: Collection[str] | None = None,
        limit: int = 100,
        *,
        last: int | None = None,
    ) -> EventPage:
        """Return what happened, the oldest first, as far as it is kept.

        A flood of tasks does not push out what people do, what goes wrong or what is cancelled: of
        each of these, and of the rest, the last ten thousand events are kept.

        Args:
            after: The id of an event, or a page's cursor, behind which to begin; None: at the
                oldest.
            types: The event types to return, see ``event_types.TYPES``. None returns all but
                those of tasks (``task.…``), which exist while a trace is on and are named alone.
            limit: Most events, 1 to 1,000.
            last: Only the newest so many, 1 to 1,000, in the place of ``limit``; without ``after``.

        Raises:
            ValueError: An argument cannot be meant, or the limiter is not in Redis.
            LimiterUnavailable: Redis does not answer.
        """
        for name, number in (("limit", limit), ("last", 1 if last is None else last)):
            whole = isinstance(number, int) and not isinstance(number, bool)
            if not whole or not 1 <= number <= happened.LONGEST_PAGE:
                raise ValueError(
                    f"{name}: expected 1 to {happened.LONGEST_PAGE} events, got: {got(number)}"
                )
        asked = check_types(types)
        if last is not None:
            if after is not None:
                raise ValueError("expected after or last, got: both")
            return happened.last_page(*self._stream(), asked, last)
        return happened.page(*self._stream(), after, asked, limit)

    def follow(
        self, after: str | None = None, types: Collection[str] | None = None
    ) -> Iterator[Event]:
        """Yield events as they happen, for ever; whoever had enough leaves the loop.

        Nothing is missed or told twice while it goes on. Who keeps the id of the last event that
        it has seen to, and begins ``after`` that, sees each at least once, as long as the stream
        keeps it. Whoever follows what becomes of tasks watches them, as :meth:`watch_tasks` says,
        until it has had enough.

        Args:
            after: As for :meth:`events`; None: from now on.
            types: As for :meth:`events`.

        Raises:
            ValueError: As :meth:`events`.
            LimiterUnavailable: Redis does not answer; begin again after the last event.
        """
        asked = check_types(types)
        watch = partial(self.watch_tasks, happened.WATCH_SECONDS)
        return happened.follow(*self._stream(), after, asked, watch)

    def watch_tasks(self, expires_in: float) -> None:
        """Let what becomes of each task be told for a while: ``task.put``, ``started``, ``ended``.

        At a gate of tasks that have limits, and ``task.put`` by producers of this package, within
        a second. Each is one command more for the functions that do it. The last hundred thousand
        are kept, in a stream of their own, until an hour after the last watch.

        Args:
            expires_in: For how many seconds, at most a day; several who watch do not shorten it for
                each other.

        Raises:
            ValueError: It is no such number.
            LimiterUnavailable: Redis does not answer.
        """
        holding = Holding(self._claimed_limiter(claims=False), self.settings)
        holding.watch(lasts_ms(expires_in, WATCH_SECONDS))

    def _stream(self) -> tuple[Reader, str]:
        limiter = self._claimed_limiter(claims=False)
        source = happened.source_of(self.app.main or "celery", limiter.connection.address)
        return Reader(limiter.connection, Keys(limiter.prefix)), source

    def _clearing(self, *, claims: bool = True) -> Clearing:
        limiter = self._claimed_limiter(claims=claims)
        lease_ms = milliseconds(self.settings.lease_seconds)
        return Clearing(limiter, lease_ms, claims=self.claims)

    def _claimed_limiter(self, *, claims: bool = True) -> RedisLimiter:
        limiter = self.limiter
        if (self.claims or not claims) and isinstance(limiter, RedisLimiter):
            return limiter
        raise ValueError(
            "broker: expected one at fairredis://, where limits and waiting tasks are kept, "
            f"got: {self.app.connection_for_write().as_uri()!r}"
        )
