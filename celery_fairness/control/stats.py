"""Reads the state of an installation: its status, one key, its counters; and checks its tables.

Weakness: a status takes several calls while tasks come and go, so its numbers are from slightly
different moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import KEY_PATTERN, Reserved, read_tier_key, reserved, tier_key
from celery_fairness.config.tiers import Tier
from celery_fairness.control import queue_rows as queues
from celery_fairness.control.check import Progress, check
from celery_fairness.control.keys import Keys, TaskHead
from celery_fairness.control.minutes import minutes
from celery_fairness.control.ojs_views import Inspection
from celery_fairness.control.positions import Positions
from celery_fairness.control.scan import Reader
from celery_fairness.control.snapshot import read_inspection, read_state
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

    def inspect(self, key: str, declared: Limit | None = None, first: int = 0) -> Inspection:
        """Inspect a key; see ``LimitsApi.inspect``.

        Args:
            key: The key, as a person writes it.
            declared: The limit that this app declares for it.
            first: Index of the first lease in the answer, from 0.

        Raises:
            ValueError: The key has another form.
        """
        kind, _, name = key.partition(":")
        if key == SYSTEM and self.claims:
            return self._look(key, first=first).model_copy(update={"weight": 1.0})
        if kind == "queue" and name and not KEY_PATTERN.fullmatch(key):
            key = queue_key(name)
        of_limit = kind != "tenant" and KEY_PATTERN.fullmatch(key)
        if of_limit and isinstance(self._limiter, RedisLimiter):
            return self._look(key, declared=declared, first=first)
        by_service = self._settings.tier_scope == "service"
        tenant = read_tier_key(key, by_service)
        if tenant is None:
            form = "tenant:{tenant}:{service}, or tenant:{tenant} of all its services"
            form = form if by_service else "tenant:{tenant}"
            raise ValueError(f"key: expected {form}, got: {got(key)}")
        who = reserved(tenant[0])
        return self._of_tenant(tier_key(who, tenant[1]), who, declared, first)

    def of_known(self, key: str, declared: Limit | None = None) -> Inspection:
        """Inspect a key in its form in Redis."""
        kind, _, written = key.partition(":")
        if kind != "tenant":
            return self._look(key, declared=declared)
        if self._settings.tier_scope == "service":
            written = written.rpartition(":")[0]
        return self._of_tenant(key, reserved(written), declared)

    def _of_tenant(self, key: str, who: str, declared: Limit | None, first: int = 0) -> Inspection:
        """Inspect a tenant's key, with the tier that applies to its next task.

        Args:
            key: The key.
            who: The tenant, or its hash if the tenant is unknown.
            declared: The limit that this app declares for the key.
            first: Index of the first lease.
        """
        self._directory.look()
        answer = self._waits_by(key) or self._directory.answer(who)
        tier = "" if answer.unknown else answer.tier
        return self._look(key, who, tier, unknown=answer.unknown, declared=declared, first=first)

    def _waits_by(self, key: str) -> TierAnswer | None:
        """Return the tier of a tenant's waiting tasks. Then nobody needs the resolver."""
        if self._reader is None:
            return None
        tier = self._reader.read("HGET", self._reader.keys.of("account", key), "tier")
        return TierAnswer(tier) if tier else None

    def _look(
        self,
        key: str,
        who: str = "",
        tier: str = "",
        *,
        unknown: str = "",
        limit: str = "",
        declared: Limit | None = None,
        first: int = 0,
    ) -> Inspection:
        if not isinstance(self._limiter, RedisLimiter):
            return read_state(self._limiter.inspect(key, who, tier))
        app = "" if declared is None else declared.numbers
        answer = self._limiter.look(key, who, tier, limit, app, first)
        return read_inspection(key, answer, unknown=unknown, declared=declared is not None)

    def of_limit(self, limit: Limit) -> Inspection:
        """Inspect the key of a task's limit, with the numbers of this limit."""
        return self._look(limit.key, limit=limit.text)

    def of_waiting(self, key: str, written: str, parked: str = "") -> Inspection:
        """Inspect a tenant with waiting tasks, with its tier's limit alone.

        Args:
            key: Key of its tier limit.
            written: The tenant in its form in keys.
            parked: The tier of its parked task, or "" for a task in a lane.
        """
        tier = parked or self._settings.default_tier
        return self._look(key, Reserved(written), tier, limit=key)

    def positions(self, task: TaskHead) -> Positions | None:
        """Return the positions of a task; None if it does not wait any more."""
        if not isinstance(self._limiter, RedisLimiter):
            return None
        scope, by = self._settings.priority_scope, self._settings.fairness_by
        answer = self._limiter.position(task.tag, by, scope)
        if answer is None:
            return None
        return Positions(answer, task, by_runtime=by == "runtime", enforced=self.enforced)

    def tenant_limit(self, who: str, tier: str, service: str | None) -> TenantLimit:
        """Return a short summary of a tenant; see ``TenantsApi.limit``."""
        found = self._look(tier_key(who, service), who, tier)
        return TenantLimit(
            key=found.key,
            tier=found.tier,
            in_force=found.in_force,
            held=found.held,
            waiting=found.waiting_count,
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
    def by_rank(self) -> bool:
        """Whether priorities order the tasks of all tenants of a queue."""
        return self._settings.priority_scope == "queue"

    def tiers(self) -> Mapping[str, Tier]:
        """Return the tiers in force, and under "" the tier for tenants of an unknown tier."""
        tiers = self._limiter.published_tiers()[1] or self._settings.tiers
        default = self._settings.default_tier
        return {"": tiers.get(default) or self._settings.tiers[default], **tiers}

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
