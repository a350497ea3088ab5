"""The settings: one frozen table behind ``app.conf.fairness``.

Each field below is one setting with its type, default, range and meaning. The documentation and
the start-up checks are made from it. An unknown key is an error with a suggestion, and an invalid
value is an error that names it. Nothing silently becomes a default.

There are four sources, and a later one replaces an earlier one:

1. the defaults here
2. ``app.conf.fairness``
3. environment variables (:mod:`celery_fairness.config.environment`)
4. the database, if the Django app is installed, through the tier table in Redis
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from celery_fairness.config.fields import (
    Rule,
    expected_of,
    number,
    optional,
    text_of,
    texts_of,
    whole,
)
from celery_fairness.config.numbers import DISPATCH, MAX_CONCURRENCY, UNLIMITED
from celery_fairness.config.queue_policy import QUEUE_NAME, QueuePolicy
from celery_fairness.config.tiers import (
    DEFAULT_TIERS,
    NAME,
    Tier,
    merge_tiers,
    tiers_by_name,
)
from celery_fairness.config.worker_shares import Service
from celery_fairness.errors import SettingsError, got, suggestion

Resolver = Callable[[str], str | None]

#: Longest snooze and jitter, in seconds.
DAY_SECONDS = 86_400.0
#: Most partitions of an installation.
MOST_PARTITIONS = 256

_REDIS_URL = re.compile(r"(?:rediss?|unix|redis\+socket|sentinel|clusters?)://.+", re.DOTALL)
_NAMESPACE = text_of(r"[A-Za-z0-9_.-]{1,64}", "1 to 64 letters, digits, '_', '.' or '-'")
_ServiceName = Annotated[str, BeforeValidator(partial(NAME.read, "service name"))]
_QueueName = Annotated[str, BeforeValidator(partial(QUEUE_NAME.read, "queue name"))]

#: The other path beside `DISPATCH`, for a setting that acts on only one of them.
GATE = "gate"


class Enforcement(enum.Enum):
    """The action for a task above a limit, from the setting ``enabled``."""

    ON = "on"
    #: Count the tasks that would be rejected, and reject none.
    OBSERVE = "observe"
    #: Every limit counts as unlimited; leases and counts go on.
    OFF = "off"


_ENABLED = Rule(
    "true, false or 'observe'", lambda value: isinstance(value, bool) or value == "observe"
)
_ADDRESS = Rule(
    "redis://, rediss://, sentinel://, cluster://, clusters://, redis+socket:// or unix:// and an "
    "address",
    lambda value: (
        isinstance(value, SecretStr) and _REDIS_URL.fullmatch(value.get_secret_value()) is not None
    ),
)
_IMPORT_PATH = text_of(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "'module:name'")
_RESOLVER = Rule(
    "a callable, or 'module:name'",
    lambda value: callable(value) or _IMPORT_PATH.accepts(value),
)


def _mapping_of(what: str) -> Rule:
    """Return the rule of a mapping from names of a ``what``, such as a tier, to their fields."""
    expected = f"a mapping of {what} names to their fields"
    return Rule(expected, lambda value: isinstance(value, Mapping))


_NAMES_OF_HEADERS = Rule(
    "a list of names of headers or properties",
    lambda value: (
        isinstance(value, (list, tuple)) and all(isinstance(each, str) and each for each in value)
    ),
)
_PARTITIONS = Rule(
    f"a power of two from 1 to {MOST_PARTITIONS}",
    lambda value: (
        isinstance(value, int)
        and not isinstance(value, bool)
        and 1 <= value <= MOST_PARTITIONS
        and value & (value - 1) == 0
    ),
)
_TIERS = Rule(
    f"{_mapping_of('tier').expected}, or {UNLIMITED!r}",
    lambda value: isinstance(value, Mapping) or value == UNLIMITED,
)


class Settings(BaseModel):
    """The validated settings of one Celery app."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True
    )

    enabled: Annotated[bool | Literal["observe"], _ENABLED] = Field(
        True,
        description="False: every limit counts as unlimited. `observe`: count the tasks that "
        "would be rejected, and reject none.",
    )
    redis_url: Annotated[SecretStr | None, optional(_ADDRESS)] = Field(
        None,
        description="On the gate: the limiter's Redis. Unset: the broker, if that is Redis.",
        json_schema_extra={"acts_on": GATE},
    )
    namespace: Annotated[str, _NAMESPACE] = Field(
        "fairness",
        description="Prefix of every key in Redis, inside one hash tag. Two installations on "
        "one Redis differ here.",
    )
    tiers: Annotated[Mapping[str, Tier], _TIERS] = Field(
        default_factory=lambda: dict(DEFAULT_TIERS),
        description="`{name: {concurrency, burst, rate, throttle, weight, queue_class, "
        "max_waiting}}`, laid over the defaults by name and field; None removes a tier. "
        "Concurrency 0 pauses. Concurrency, rate, throttle and `max_waiting` None are unlimited, "
        "and `burst` None is no burst. `'unlimited'` sets the concurrency of all default tiers to "
        "None.",
    )
    default_tier: Annotated[str, text_of(".*", "the name of a tier")] = Field(
        "free",
        description="The tier if the resolver returns None, fails, or returns an unknown one.",
    )
    tier_resolver: Annotated[Resolver | str | None, optional(_RESOLVER)] = Field(
        None,
        description="A callable `(tenant) -> str or None`, or `'module:name'`, imported when "
        "a worker starts.",
    )
    tier_cache_seconds: Annotated[float, number("seconds", 0, DAY_SECONDS)] = Field(
        60.0,
        description="How long a process uses a resolved tier before it resolves it again, in "
        "seconds.",
    )
    tier_scope: Literal["global", "service"] = Field(
        "global",
        description="A tenant's limit counts over all its services (`global`), or in each "
        "service separately (`service`).",
    )
    tier_on_limit: Literal["reschedule", "wait"] = Field(
        "reschedule",
        description="On the gate, a task over its tier's limit goes back to the broker with a "
        "countdown (`reschedule`), or is parked in Redis until it may start (`wait`). On "
        "`fairredis` it always waits.",
        json_schema_extra={"acts_on": GATE},
    )
    no_tenant: Literal["bypass", "shared", "error"] = Field(
        "bypass",
        description="Tasks without a tenant have no tier's limit (`bypass`), are all one "
        "tenant of the default tier (`shared`), or `delay()` raises TenantMissing (`error`).",
    )
    tenant_header: Annotated[tuple[str, ...], _NAMES_OF_HEADERS] = Field(
        (),
        strict=False,
        description="Names of message headers or properties, in order. If a message has no "
        "`fairness` header, the first of them with a value names its tenant, before the arguments.",
    )
    redis_lost: Literal["defer", "open", "closed"] = Field(
        "defer",
        description="On the gate, while the limiter's Redis is away, a task goes back to the "
        "broker with the snooze (`defer`), runs without a slot (`open`), or fails with "
        "LimiterUnavailable (`closed`).",
        json_schema_extra={"acts_on": GATE},
    )
    snooze_seconds: Annotated[float, number("seconds", None, DAY_SECONDS)] = Field(
        30.0,
        description="How long a rejected task waits before it is tried again, in seconds.",
    )
    snooze_jitter_seconds: Annotated[float, number("seconds", 0, DAY_SECONDS)] = Field(
        10.0,
        description="On the gate: added to the snooze, uniformly from 0 to this, in seconds.",
        json_schema_extra={"acts_on": GATE},
    )
    lease_seconds: Annotated[float, number("seconds", 1, 3600)] = Field(
        15.0,
        description="How long a slot outlives a worker that died, in seconds. Workers renew "
        "it every third of this.",
    )
    max_deliveries: Annotated[int, whole(0, 1_000_000)] = Field(
        5,
        description="On `fairredis`: how often a task's process may die before the task "
        "becomes a dead letter. With 0 it never does.",
        json_schema_extra={"acts_on": DISPATCH},
    )
    fairness_by: Literal["tasks", "cost", "runtime"] = Field(
        "tasks",
        description="On `fairredis`: what a task costs its tenant, divided by the weight. It "
        "is one unit (`tasks`), the declared number (`cost`), or the seconds that it takes "
        "(`runtime`).",
        json_schema_extra={"acts_on": DISPATCH},
    )
    priority_scope: Literal["tenant", "queue"] = Field(
        "tenant",
        description="On `fairredis`: a priority orders the tasks of one tenant (`tenant`), or "
        "those of all tenants of a queue, which take turns among equal priorities (`queue`).",
        json_schema_extra={"acts_on": DISPATCH},
    )
    priority_aging: Annotated[float | None, optional(number("seconds", 1, DAY_SECONDS))] = Field(
        None,
        description='On `fairredis`, with `priority_scope="queue"`: a task that has waited this '
        "long, in seconds, goes as one of the highest priority. In this time one task of each "
        "tenant and priority does. If it is not set, waiting time does not count.",
        json_schema_extra={"acts_on": DISPATCH},
    )
    priority_order: Literal["high_first", "low_first"] = Field(
        "high_first",
        description="On `fairredis`: which priority goes first. "
        "`low_first` is the order of the stock Redis transport.",
        json_schema_extra={"acts_on": DISPATCH},
    )

    partitions: Annotated[int, _PARTITIONS] = Field(
        1,
        description="On `fairredis`: into how many parts the tenants of an installation are "
        "divided, on one server or several. The first process fixes it.",
        json_schema_extra={"acts_on": DISPATCH},
    )
    lending_spare: Annotated[int, whole(0, MAX_CONCURRENCY)] = Field(
        0,
        description="On `fairredis`: how many free places a worker process keeps back when it "
        "lends places to tenants above their concurrency (`burst` of a tier).",
        json_schema_extra={"acts_on": DISPATCH},
    )

    services: Annotated[Mapping[_ServiceName, Service], _mapping_of("service")] = Field(
        default_factory=dict,
        description="`{name: {env_prefix, priority, default, scheduled, shares}}`: a worker's "
        "slots for each queue of a service, as `celery fairness worker` starts it. `shares`: "
        "`strict`, or `borrow`: other queues may use a queue's idle slots.",
    )
    queues: Annotated[Mapping[_QueueName, QueuePolicy], _mapping_of("queue")] = Field(
        default_factory=dict,
        description="`{name: {global_limit, local_limit, rate, throttle, on_limit, by_args, "
        "by_kind, partition, missing, max_waiting}}`: the limits of a queue as a whole and of "
        "each of its partitions, and on `fairredis` its most waiting tasks, above which `delay()` "
        "raises BacklogFull.",
    )
    metric_tenants: Annotated[int, whole(0, 1000)] = Field(
        0,
        description="How many tenants are labels of metrics, those with the most waiting tasks "
        "first. The others are `_other`. 0: no metric names a tenant.",
    )

    @field_validator("redis_url", mode="before")
    @classmethod
    def _hide_url(cls, value: Any) -> Any:
        return SecretStr(value) if isinstance(value, str) else value

    @field_validator("tiers", mode="before")
    @classmethod
    def _merge_tiers(cls, value: Any) -> Any:
        given = tiers_by_name(value)
        return merge_tiers(given) if isinstance(given, Mapping) else given

    @field_validator("partitions", mode="after")
    @classmethod
    def _expect_no_burst(cls, value: int, info: ValidationInfo) -> int:
        soft = [name for name, tier in info.data.get("tiers", {}).items() if tier.burst is not None]
        if value > 1 and soft:
            raise SettingsError(
                f": expected 1, because tier {soft[0]!r} has a burst and one partition does not "
                f"know what waits in the others, got: {value}"
            )
        return value

    @field_validator("queues", mode="after")
    @classmethod
    def _expect_shared_limits(
        cls, value: Mapping[str, QueuePolicy], info: ValidationInfo
    ) -> Mapping[str, QueuePolicy]:
        count = info.data.get("partitions", 1)
        for name, policy in value.items():
            if problem := policy.problem_of_partitions(count):
                raise SettingsError(f": {name}: {problem}")
        return value

    @field_validator("priority_aging")
    @classmethod
    def _check_scope(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("priority_scope") == "tenant":
            raise SettingsError(
                "expected no value with priority_scope='tenant', because there tenants take turns "
                f"whatever their priorities, got: {value!r}; set priority_scope='queue' for it"
            )
        return value

    @model_validator(mode="after")
    def _check_default_tier(self) -> Settings:
        if self.default_tier not in self.tiers:
            names = ", ".join(sorted(self.tiers))
            hint = suggestion(self.default_tier, self.tiers)
            raise SettingsError(f"expected one of {names}, got: {self.default_tier!r}{hint}")
        return self

    @property
    def enforcement(self) -> Enforcement:
        """The action for a task above a limit."""
        if self.enabled == "observe":
            return Enforcement.OBSERVE
        return Enforcement.ON if self.enabled else Enforcement.OFF


def expected(name: str) -> str:
    """Return the expected values of the setting ``name``, as in its error."""
    return expected_of(Settings.model_fields[name])


def acts_on(name: str) -> str:
    """Return the path on which a setting acts, ``dispatch`` or ``gate``; "" means both."""
    extra: Any = Settings.model_fields[name].json_schema_extra or {}
    return str(extra.get("acts_on", ""))


def without_effect(settings: Settings, claims_fairly: bool) -> list[str]:
    """Return the names of settings that are set and do not act on the path of this process."""
    other = GATE if claims_fairly else DISPATCH
    return sorted(name for name in settings.model_fields_set if acts_on(name) == other)


def build_settings(values: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Settings:
    """Validate ``values`` and return the settings.

    Args:
        values: Settings by name. An absent setting has its default.
        sources: The source of each value, for messages, such as ``{"snooze_seconds":
            "FAIRNESS_SNOOZE_DURATION"}``. The default is ``fairness.NAME``.

    Raises:
        SettingsError: A key is unknown or a value is invalid, with one problem for each.
    """
    if not isinstance(values, Mapping):
        raise SettingsError(f"fairness: expected a mapping of settings, got: {got(values)}")
    origin = sources or {}
    try:
        return Settings.model_validate(dict(values))
    except ValidationError as error:
        problems = [text for item in error.errors() for text in _problems(item, origin)]
    raise SettingsError(*problems)


def _problems(item: Any, origin: Mapping[str, str]) -> Iterator[str]:
    # Only the check of the default tier is about the settings as a whole.
    name = str(item["loc"][0]) if item["loc"] else "default_tier"
    where = origin.get(name, f"fairness.{name}")
    if item["type"] == "invalid_key":
        yield f"fairness: expected settings whose names are text, got: {item['input']!r}"
    elif item["type"] == "extra_forbidden":
        hint = suggestion(name, Settings.model_fields)
        yield f"{where}: expected a known setting, got: {name!r}{hint}"
    elif name == "redis_url":
        yield f"{where}: expected {expected(name)}, got: '(hidden)'"
    else:
        yield from (where + text for text in texts_of(item, Settings))
