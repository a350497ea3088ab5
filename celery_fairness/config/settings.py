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
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from celery_fairness.config.fields import either, read_each
from celery_fairness.config.queue_policy import QUEUE_NAME, QueuePolicy, read_queue
from celery_fairness.config.tiers import DEFAULT_TIERS, NAME, Tier, merge_tiers
from celery_fairness.config.worker_shares import Service, read_service
from celery_fairness.errors import SettingsError, got, suggestion

Resolver = Callable[[str], str | None]

#: Longest snooze and jitter, in seconds.
DAY_SECONDS = 86_400.0

_ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
_REDIS_URL = re.compile(r"(?:rediss?|unix|redis\+socket|sentinel)://.+", re.DOTALL)

#: The readers of settings that are mappings by name. A reader raises SettingsError.
_READERS: Mapping[str, Callable[[Mapping[Any, Any]], Mapping[str, Any]]] = {
    "tiers": merge_tiers,
    "services": partial(read_each, "service", NAME, read_service),
    "queues": partial(read_each, "queue", QUEUE_NAME, read_queue),
}


#: The two paths, for a setting that acts on only one of them.
DISPATCH, GATE = "dispatch", "gate"


class Enforcement(enum.Enum):
    """The action for a task above a limit, from the setting ``enabled``."""

    ON = "on"
    #: Count the tasks that would be rejected, and reject none.
    OBSERVE = "observe"
    #: Every limit counts as unlimited; leases and counts go on.
    OFF = "off"


def _expected(text: str, acts_on: str = "") -> dict[str, Any]:
    """Return a setting's expected values, and the only path on which it acts; "" means both.

    A Literal needs no text.
    """
    return {"expected": text, "acts_on": acts_on}


class Settings(BaseModel):
    """The validated settings of one Celery app."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True
    )

    enabled: bool | Literal["observe"] = Field(
        True,
        description="False: every limit counts as unlimited. `observe`: count the tasks that "
        "would be rejected, and reject none.",
        json_schema_extra=_expected("true, false or 'observe'"),
    )
    redis_url: SecretStr | None = Field(
        None,
        description="On the gate: the limiter's Redis. Unset: the broker, if that is Redis.",
        json_schema_extra=_expected(
            "redis://, rediss://, sentinel://, redis+socket:// or unix:// and an address", GATE
        ),
    )
    namespace: str = Field(
        "fairness",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="Prefix of every key in Redis, inside one hash tag. Two installations on "
        "one Redis differ here.",
        json_schema_extra=_expected("1 to 64 letters, digits, '_', '.' or '-'"),
    )
    tiers: Mapping[str, Tier] = Field(
        default_factory=lambda: dict(DEFAULT_TIERS),
        description="`{name: {concurrency, weight, queue_class, max_waiting}}`, laid over the "
        "defaults by name and field; None removes a tier. Concurrency None is unlimited, 0 "
        "pauses; `max_waiting` None is unlimited.",
        json_schema_extra=_expected("a mapping of tier names to their fields"),
    )
    default_tier: str = Field(
        "free",
        description="The tier if the resolver returns None, fails, or returns an unknown one.",
        json_schema_extra=_expected("the name of a tier"),
    )
    tier_resolver: Resolver | _ImportPath | None = Field(
        None,
        description="A callable `(tenant) -> str or None`, or `'module:name'`, imported when "
        "a worker starts.",
        json_schema_extra=_expected("a callable, or 'module:name'"),
    )
    tier_cache_seconds: float = Field(
        60.0,
        ge=0,
        le=DAY_SECONDS,
        description="How long a process uses a resolved tier before it resolves it again, in "
        "seconds.",
        json_schema_extra=_expected("seconds from 0 to 86400"),
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
    redis_lost: Literal["defer", "open", "closed"] = Field(
        "defer",
        description="On the gate, while the limiter's Redis is away, a task goes back to the "
        "broker with the snooze (`defer`), runs without a slot (`open`), or fails with "
        "LimiterUnavailable (`closed`).",
        json_schema_extra={"acts_on": GATE},
    )
    snooze_seconds: float = Field(
        30.0,
        gt=0,
        le=DAY_SECONDS,
        description="How long a rejected task waits before it is tried again, in seconds.",
        json_schema_extra=_expected("seconds above 0, up to 86400"),
    )
    snooze_jitter_seconds: float = Field(
        10.0,
        ge=0,
        le=DAY_SECONDS,
        description="On the gate: added to the snooze, uniformly from 0 to this, in seconds.",
        json_schema_extra=_expected("seconds from 0 to 86400", GATE),
    )
    lease_seconds: float = Field(
        15.0,
        ge=1,
        le=3600,
        description="How long a slot outlives a worker that died, in seconds. Workers renew "
        "it every third of this.",
        json_schema_extra=_expected("seconds from 1 to 3600"),
    )
    max_deliveries: int = Field(
        5,
        ge=0,
        le=1_000_000,
        description="On `fairredis`: how often a task's process may die before the task "
        "becomes a dead letter. With 0 it never does.",
        json_schema_extra=_expected("a whole number from 0 to 1000000", DISPATCH),
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
    priority_order: Literal["high_first", "low_first"] = Field(
        "high_first",
        description="On `fairredis`: which priority goes first. "
        "`low_first` is the order of the stock Redis transport.",
        json_schema_extra={"acts_on": DISPATCH},
    )

    services: Mapping[str, Service] = Field(
        default_factory=dict,
        description="`{name: {env_prefix, priority, default, scheduled, shares}}`: a worker's "
        "slots for each queue of a service, as `celery fairness worker` starts it. `shares`: "
        "`strict`, or `borrow`: other queues may use a queue's idle slots.",
        json_schema_extra=_expected("a mapping of service names to their fields"),
    )
    queues: Mapping[str, QueuePolicy] = Field(
        default_factory=dict,
        description="`{name: {global_limit, local_limit, rate, throttle, on_limit, by_args, "
        "by_kind, missing, max_waiting}}`: the limit of a queue, or of each partition of it, "
        "and on `fairredis` its most waiting tasks, above which `delay()` raises BacklogFull.",
        json_schema_extra=_expected("a mapping of queue names to their fields"),
    )

    @field_validator("redis_url", mode="before")
    @classmethod
    def _hide_url(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = SecretStr(value)
        if isinstance(value, SecretStr) and not _REDIS_URL.fullmatch(value.get_secret_value()):
            raise ValueError("redis_url")
        return value

    @field_validator(*_READERS, mode="before")
    @classmethod
    def _read_by_name(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if not isinstance(value, Mapping):
            raise ValueError(name)
        return _READERS[name](value)

    @model_validator(mode="after")
    def _check_default_tier(self) -> Settings:
        if self.default_tier not in self.tiers:
            raise SettingsError(
                f"default_tier: expected one of {', '.join(sorted(self.tiers))}, "
                f"got: {self.default_tier!r}"
            )
        return self

    @property
    def enforcement(self) -> Enforcement:
        """The action for a task above a limit."""
        if self.enabled == "observe":
            return Enforcement.OBSERVE
        return Enforcement.ON if self.enabled else Enforcement.OFF


def expected(name: str) -> str:
    """Return the expected values of the setting ``name``, as in its error."""
    field = Settings.model_fields[name]
    extra: Any = field.json_schema_extra or {}
    return str(extra.get("expected") or either(get_args(field.annotation)))


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
        problems = [_problem(item, values, origin) for item in error.errors()]
    raise SettingsError(*dict.fromkeys(problems))


def _problem(item: Any, values: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    cause = item.get("ctx", {}).get("error")
    name = str(item["loc"][0]) if item["loc"] else ""
    where = origin.get(name, f"fairness.{name}")
    if item["type"] == "invalid_key":
        return f"fairness: expected settings whose names are text, got: {item['input']!r}"
    if isinstance(cause, SettingsError):
        prefix = f"{where}: " if name else f"{origin.get('default_tier', 'fairness')}: "
        return "; ".join(prefix + problem for problem in cause.problems)
    if item["type"] == "extra_forbidden":
        hint = suggestion(name, Settings.model_fields)
        return f"{where}: expected a known setting, got: {name!r}{hint}"
    value = values[name] if name != "redis_url" else "(hidden)"
    return f"{where}: expected {expected(name)}, got: {got(value)}"
