"""The table of metrics: every name with its type, its labels and its meaning.

The values of :mod:`celery_fairness.control.metrics` and ``docs/reference/metrics.md`` come from it.

Invariant: no label has a tenant, except those of the setting ``metric_tenants``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: Its name. A counter's samples have ``_total`` at the end too.
        kind: Its type.
        help: Its meaning, as one sentence.
        labels: The names of its labels.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


UP = Metric("fairness_up", "gauge", "1 if the last scrape could read Redis, otherwise 0.")
SCRAPE_AGE = Metric(
    "fairness_scrape_age_seconds", "gauge", "Time since the numbers of this answer were read."
)
JUDGED = Metric(
    "fairness_scrape_judged_ratio",
    "gauge",
    "Part of the waiting tasks whose tenants the scrape judged; below 1, others are estimated.",
)
WAITING = Metric(
    "fairness_tasks_waiting",
    "gauge",
    "Waiting tasks by the reason for which they wait.",
    ("queue", "tier", "reason"),
)
STARTABLE = Metric(
    "fairness_tasks_startable",
    "gauge",
    "Waiting tasks that free places could start now.",
    ("queue",),
)
RUNNING = Metric("fairness_tasks_running", "gauge", "Running tasks.", ("queue", "tier"))
PLACES = Metric(
    "fairness_worker_places", "gauge", "Places of the live workers that take a queue.", ("queue",)
)
WORKERS = Metric(
    "fairness_workers",
    "gauge",
    "Live workers; those whose enforcement is not on start tasks above their limits.",
    ("path", "enforcement"),
)
LOAD = Metric(
    "fairness_load",
    "gauge",
    "Startable and running tasks per place; without a place, the number of these tasks.",
    ("queue",),
)
OLDEST = Metric(
    "fairness_oldest_wait_seconds",
    "gauge",
    "Wait of the oldest task that waits for a reason, among the tenants that were judged.",
    ("queue", "reason"),
)
WAITS = Metric(
    "fairness_wait_seconds",
    "histogram",
    "Waits of claimed tasks: behind tasks of their own tenant, or behind none of its own.",
    ("behind", "tier"),
)
STARTS = Metric("fairness_starts", "counter", "Started tasks.", ("queue", "tier"))
REJECTIONS = Metric(
    "fairness_rejections", "counter", "Rejections of a task by a limit.", ("strategy",)
)
LIMIT_HELD = Metric("fairness_limit_held", "gauge", "Slots of a limit that tasks hold.", ("key",))
LIMIT_MAXIMUM = Metric(
    "fairness_limit_maximum", "gauge", "Slots that a limit has; +Inf is unlimited.", ("key",)
)
LIMIT_SATURATED = Metric(
    "fairness_limit_saturated", "gauge", "1 if a limit lets no task start now.", ("key",)
)
LIMIT_SATURATED_SECONDS = Metric(
    "fairness_limit_saturated_seconds",
    "counter",
    "Time in which a limit let no task start; workers look at it each third of a lease.",
    ("key",),
)
SHARE_RECEIVED = Metric(
    "fairness_share_received_ratio",
    "gauge",
    "Part of the slots of competing tenants that the tenants of a tier hold.",
    ("tier",),
)
SHARE_ENTITLED = Metric(
    "fairness_share_entitled_ratio",
    "gauge",
    "Part of these slots to which the tenants of a tier are entitled.",
    ("tier",),
)
JAIN = Metric(
    "fairness_jain_index",
    "gauge",
    "Jain's index of the slots that tenants hold against those to which they are entitled.",
)
EXPIRED = Metric("fairness_leases_expired", "counter", "Leases that ended without a renewal.")
DEAD_LETTERS = Metric("fairness_dead_letters", "gauge", "Stored dead letters.", ("queue",))
DEAD_LETTERED = Metric("fairness_dead_lettered", "counter", "Tasks that became dead letters.")
DROPPED = Metric("fairness_tasks_dropped", "counter", "Tasks that a limit dropped.")
LIBRARY_CALLS = Metric(
    "fairness_library_calls", "counter", "Calls of Redis functions that the server counted."
)
LIBRARY_ERRORS = Metric(
    "fairness_library_errors", "counter", "Those of these calls that failed or were rejected."
)
MEMORY_USED = Metric(
    "fairness_redis_memory_used_bytes", "gauge", "Memory that the Redis server uses."
)
MEMORY_MAXIMUM = Metric(
    "fairness_redis_memory_maximum_bytes", "gauge", "Its maxmemory; +Inf is none."
)
TENANT_WAITING = Metric(
    "fairness_tenant_tasks_waiting", "gauge", "Waiting tasks of a tenant.", ("tenant",)
)
TENANT_HELD = Metric(
    "fairness_tenant_slots_held", "gauge", "Slots that a tenant holds.", ("tenant",)
)
OJS_ACTIVE = Metric(
    "ojs_rate_limit_active", "gauge", "Running tasks that hold a slot of a key.", ("key",)
)
OJS_WAITING = Metric(
    "ojs_rate_limit_waiting", "gauge", "Waiting tasks that have a limit of a key.", ("key",)
)
OJS_EXCEEDED = Metric(
    "ojs_rate_limit_exceeded", "counter", "Rejections by a limit of a key.", ("key", "strategy")
)
OJS_WAITS = Metric(
    "ojs_rate_limit_wait_duration_seconds",
    "histogram",
    "Waits of claimed tasks that a limit of a key had rejected before.",
    ("key",),
)

#: All metrics, in the order of the answer.
METRICS = (
    *(UP, SCRAPE_AGE, JUDGED, WAITING, STARTABLE, RUNNING, PLACES, WORKERS, LOAD, OLDEST, WAITS),
    *(STARTS, REJECTIONS, LIMIT_HELD, LIMIT_MAXIMUM, LIMIT_SATURATED, LIMIT_SATURATED_SECONDS),
    *(SHARE_RECEIVED, SHARE_ENTITLED, JAIN, EXPIRED, DEAD_LETTERS, DEAD_LETTERED, DROPPED),
    *(LIBRARY_CALLS, LIBRARY_ERRORS, MEMORY_USED, MEMORY_MAXIMUM, TENANT_WAITING, TENANT_HELD),
    *(OJS_ACTIVE, OJS_WAITING, OJS_EXCEEDED, OJS_WAITS),
)
