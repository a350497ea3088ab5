"""Reads the state of an installation: its status, one key, its counters; and checks its tables.

Weakness: a status takes several calls while tasks come and go, so its numbers are from slightly
different moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import KEY_PATTERN, Reserved, read_tier_key, reserved, tier_key
from celery_fairness.config.tiers import Tier
from celery_fairness.control import queue_rows as queues
from celery_fairness.control import tenant_state as tenant
from celery_fairness.control import waiters as waited
from celery_fairness.control.check import Progress, check
from celery_fairness.control.holds import with_holds
from celery_fairness.control.keys import Keys
from celery_fairness.control.limit_in_force import limit_in_force
from celery_fairness.control.minutes import minutes
from celery_fairness.control.scan import Reader
from celery_fairness.control.views import (
    Check,
    KeyRejections,
    Minute,
    Status,
    TenantLimit,
    TierStatus,
    WorkerStatus,
)
from celery_fairness.control.workers import living
from celery_fairness.errors import got
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiter.tier_cache import TierAnswer, TierCache
from celery_fairness.limiter.types import LimitState
from celery_fairness.scheduler.types import SYSTEM, Rules
from celery_fairness.util.durations import milliseconds

_REFUSED = "refused:"


class Stats:
    """Reads one installation.

    Args:
        limiter: The limiter of the installation. A fake limiter has fewer facts.
        directory: The cache of tenants' tiers.
        settings: The settings in force.
        claims: Whether the broker claims fairly.
    """

    def __init__(
        self, limiter: Limiter, directory: TierCache, settings: Settings, claims: bool
    ) -> None:
        self._limiter = limiter
        self._directory = directory
        self._settings = settings
        #: The reader of the dispatch path; None on the gate path.
        self._reader: Reader | None = None
        self._address = "this process's memory"
        if isinstance(limiter, RedisLimiter):
            self._address = str(limiter.connection.address)
            if claims:
                self._reader = Reader(limiter.connection, Keys(limiter.prefix))

    def inspect(self, key: str) -> LimitState:
        """Return the state of a key; see ``LimitsApi.inspect``."""
        if key == SYSTEM and self._reader is not None:
            state = self._limiter.inspect(key, "", self._settings.default_tier)
            state = replace(state, tier="", limit=None, weight=1.0)
            return tenant.with_dispatch(self._reader, state)
        kind, _, name = key.partition(":")
        if kind == "queue" and name and not KEY_PATTERN.fullmatch(key):
            key = queue_key(name)
        if kind != "tenant" and self._reader is not None and KEY_PATTERN.fullmatch(key):
            state = self._limiter.inspect(key, "", self._settings.default_tier)
            state = replace(state, tier="", limit=None, parked=self._limiter.parked(key))
            return waited.with_waited(self._reader, state)
        if (
            kind != "tenant"
            and KEY_PATTERN.fullmatch(key)
            and isinstance(self._limiter, RedisLimiter)
        ):
            state = self._limiter.inspect(key, "", self._settings.default_tier)
            return replace(state, tier="", limit=None, parked=self._limiter.parked(key))
        by_service = self._settings.tier_scope == "service"
        found = read_tier_key(key, by_service)
        if found is None:
            form = "tenant:{tenant}:{service}, or tenant:{tenant} of all its services"
            form = form if by_service else "tenant:{tenant}"
            raise ValueError(f"key: expected {form}, got: {got(key)}")
        name, service = found
        who = reserved(name)
        limit_key = tier_key(who, service)
        state = self._of_tenant(self._reader, limit_key, who)
        if self._reader is None:
            return state
        return tenant.with_dispatch(self._reader, state, tier_key(who, None) if service else "")

    def _of_tenant(self, reader: Reader | None, key: str, who: str) -> LimitState:
        """Return the state of a tenant's key, with the tier that applies to its next task.

        Args:
            reader: The reader of the installation, or None on the gate path.
            key: Key of the tenant's tier limit.
            who: The tenant, or its hash if the tenant is unknown.
        """
        self._directory.look()
        waits = "" if reader is None else tenant.tier_of_waiting(reader, key)
        answer = TierAnswer(waits) if waits else self._directory.answer(who)
        # The limiter uses a published record before the tier that this process has cached.
        published = self._limiter.published_tenant(who) is not None
        state = self._limiter.inspect(key, who, answer.tier)
        judged = self._limiter.published_tiers()[1] or self._settings.tiers
        state = replace(
            state,
            weight=judged[state.tier].weight if state.tier in judged else 1.0,
            published=published,
            parked=self._limiter.parked(key),
        )
        if not answer.unknown or published:
            return state
        return replace(state, tier="", limit=None, weight=None, unknown=answer.unknown)

    def tenant_limit(self, who: str, tier: str, service: str | None) -> TenantLimit:
        """Return a short summary of a tenant; see ``TenantsApi.limit``."""
        key, waiting = tier_key(who, service), self._limiter.parked(tier_key(who, service))
        if not isinstance(self._limiter, RedisLimiter):
            state = self._limiter.inspect(key, who, tier)
        else:
            reader = Reader(self._limiter.connection, Keys(self._limiter.prefix))
            waits_by, in_lanes = tenant.waiting_in_lanes(reader, key)
            waiting += in_lanes
            state = self._limiter.inspect(key, who, waits_by or tier)
            state = with_holds(reader, state, tier_key(who, None) if service else "")
        return TenantLimit(
            key=key,
            tier=state.tier,
            in_force=limit_in_force(state),
            held=state.held,
            waiting=waiting,
        )

    @property
    def claims(self) -> bool:
        """Whether the broker claims fairly, with a limiter in Redis."""
        return self._reader is not None

    @property
    def enforced(self) -> bool:
        """Whether limits are enforced."""
        return self._settings.enforcement is Enforcement.ON

    @property
    def fairness_by(self) -> str:
        """The cost of a task for its tenant: ``tasks``, ``cost`` or ``runtime``."""
        return self._settings.fairness_by

    @property
    def by_rank(self) -> bool:
        """Whether priorities order the tasks of all tenants of a queue."""
        return self._settings.priority_scope == "queue"

    def tiers(self) -> Mapping[str, Tier]:
        """Return the tiers in force, and under "" the tier for tenants of an unknown tier."""
        tiers = self._limiter.published_tiers()[1] or self._settings.tiers
        default = self._settings.default_tier
        return {"": tiers.get(default) or self._settings.tiers[default], **tiers}

    def of_waiting(self, reader: Reader, key: str, written: str, parked: str = "") -> LimitState:
        """Return the state of a tenant with waiting tasks, with the tier that a claim uses.

        Args:
            reader: The reader of the installation.
            key: Key of its tier limit, or ``_system``.
            written: The tenant in its form in keys.
            parked: The tier of its parked task, or "" for a task in a lane.
        """
        if key == SYSTEM:
            return self.inspect(key)
        state = self._of_tier(reader, key, written, parked)
        of_all = tier_key(Reserved(written), None)
        state = with_holds(reader, state, of_all if of_all != key else "")
        return replace(state, leases=tuple(tenant.with_rows(reader, state.key, state.leases)))

    def tier_limit(self, reader: Reader, key: str, written: str, parked: str = "") -> int | None:
        """Return the limit of such a tenant without holds and overrides; None is unlimited."""
        return self._of_tier(reader, key, written, parked).limit

    def _of_tier(self, reader: Reader, key: str, written: str, parked: str) -> LimitState:
        waits = "" if parked else tenant.tier_of_waiting(reader, key)
        tier = parked or waits or self._settings.default_tier
        return self._limiter.inspect(key, Reserved(written), tier)

    def of_known(self, reader: Reader, key: str) -> LimitState:
        """Return the state of a key in its form in Redis."""
        kind, _, written = key.partition(":")
        if kind != "tenant":
            return self.inspect(key)
        of_all = ""
        if self._settings.tier_scope == "service":
            written = written.rpartition(":")[0]
            of_all = tier_key(Reserved(written), None)
        state = self._of_tenant(reader, key, reserved(written))
        return tenant.with_dispatch(reader, state, of_all)

    def status(self, known_queues: Iterable[str] = ()) -> Status:
        """Return the status of the installation; see ``StatsApi.status``."""
        source, published = self._limiter.published_tiers()
        counts = dict(self._limiter.counts())
        tiers = tuple(
            TierStatus(
                tier.name,
                tier.concurrency,
                tier.weight,
                tier.queue_class,
                counts.pop(_REFUSED + tier.name, 0),
            )
            for tier in (published or self._settings.tiers).values()
        )
        status = Status(
            path="gate" if self._reader is None else "dispatch",
            redis=self._address,
            namespace=self._settings.namespace,
            news=self._limiter.config_version(),
            tiers_from=source,
            tiers=tiers,
            counts=counts,
            workers=self.workers(),
        )
        if self._reader is None:
            return status
        return queues.with_queues(self._reader, status, known_queues)

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Return the live worker processes; a fake limiter has none."""
        if not isinstance(self._limiter, RedisLimiter):
            return ()
        return living(Reader(self._limiter.connection, Keys(self._limiter.prefix)))

    def minutes(self, last: int) -> tuple[Minute, ...]:
        """Return the counts of the last minutes; see ``StatsApi.minutes``."""
        if not isinstance(self._limiter, RedisLimiter):
            raise ValueError("limiter: expected one in Redis, where minutes are counted")
        reader = Reader(self._limiter.connection, Keys(self._limiter.prefix))
        return tuple(minutes(reader, last))

    def rejections_by_key(self) -> tuple[KeyRejections, ...]:
        """Return the rejections by key; see ``StatsApi.rejections``."""
        if not isinstance(self._limiter, RedisLimiter):
            return ()
        keys = Keys(self._limiter.prefix)
        flat = self._limiter.connection.read("HGETALL", keys.exceeded)
        rows = zip(flat[::2], flat[1::2], strict=True)
        found = ((*field.partition(" ")[::2], int(total)) for field, total in rows)
        return tuple(
            KeyRejections(key=key, strategy=strategy, total=total)
            for strategy, key, total in sorted(found)
        )

    def rejections_by_tier(self) -> dict[str, int]:
        """Return the rejections by tier; see ``StatsApi.rejections``."""
        return {
            counter.removeprefix(_REFUSED): amount
            for counter, amount in self._limiter.counts().items()
            if counter.startswith(_REFUSED)
        }

    def counts(self) -> dict[str, int]:
        """Return every other counter; see ``StatsApi.counters``."""
        return {
            counter: amount
            for counter, amount in self._limiter.counts().items()
            if not counter.startswith(_REFUSED)
        }

    def check(self, *, repair: bool, progress: Progress | None) -> Check:
        """Compare the tables of the installation; see ``Fairness.check``."""
        limiter = self._limiter
        if not isinstance(limiter, RedisLimiter):
            raise ValueError("limiter: expected one in Redis, which has tables to compare")
        default = self._settings.default_tier
        rules = Rules(
            lease_ms=milliseconds(self._settings.lease_seconds),
            default_tier=default,
            default_limit=self._settings.tiers[default].concurrency,
        )
        reader = Reader(limiter.connection, Keys(limiter.prefix))
        return check(limiter.connection, reader, rules, repair=repair, progress=progress)
