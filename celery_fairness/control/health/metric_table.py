"""The table of metrics: every name with its type, its labels and its meaning.

The values of :mod:`.metrics` and ``docs/reference/metrics.md`` come from it.

Invariant: no label has a tenant, except those of the setting ``metric_tenants``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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


#: All metrics, in the order of the answer.
METRICS: list[Metric] = []


def _metric(kind: Kind, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Metric:
    METRICS.append(Metric(name, kind, meaning, labels))
    return METRICS[-1]


_gauge = partial(_metric, "gauge")
_counter = partial(_metric, "counter")
_histogram = partial(_metric, "histogram")

UP = _gauge("fairness_up", "1 if the last scrape could read Redis, otherwise 0.")
SCRAPE_AGE = _gauge(
    "fairness_scrape_age_seconds", "Time since the numbers of this answer were read."
)
CHECKED = _gauge(
    "fairness_scrape_checked_ratio",
    "Part of the waiting tasks whose tenants the scrape checked; below 1, others are estimated.",
)
WAITING = _gauge(
    "fairness_tasks_waiting",
    "Waiting tasks by the reason for which they wait.",
    ("queue", "tier", "reason"),
)
STARTABLE = _gauge(
    "fairness_tasks_startable", "Waiting tasks that free places could start now.", ("queue",)
)
RUNNING = _gauge("fairness_tasks_running", "Running tasks.", ("queue", "tier"))
PLACES = _gauge(
    "fairness_worker_places", "Places of the live workers that take a queue.", ("queue",)
)
WORKERS = _gauge(
    "fairness_workers",
    "Live workers; those whose enforcement is not on start tasks above their limits.",
    ("path", "enforcement"),
)
ANSWERED = _gauge(
    "fairness_workers_answered",
    "Workers that answered Celery's control bus; missing if the bus did not work.",
)
UNANNOUNCED = _gauge(
    "fairness_workers_unannounced",
    "Those that are not announced, by whether they share a queue; missing if none answered.",
    ("shares",),
)
LOAD = _gauge(
    "fairness_load",
    "Startable and running tasks per place; without a place, the number of these tasks.",
    ("queue",),
)
OLDEST = _gauge(
    "fairness_oldest_wait_seconds",
    "Wait of the oldest task that waits for a reason, among the tenants that were checked.",
    ("queue", "reason"),
)
WAITS = _histogram(
    "fairness_wait_seconds",
    "Waits of claimed tasks: behind tasks of their own tenant, or behind none of its own.",
    ("behind", "tier"),
)
UNRESOLVED = _counter(
    "fairness_tier_resolver_failures",
    "Failures of the tier resolver in any process; the default tier held instead.",
)
UNRESOLVED_TENANTS = _gauge(
    "fairness_tenants_unresolved",
    "Tenants for which the tier resolver failed in the last 15 minutes, at most 100.",
)
STARTS = _counter("fairness_starts", "Started tasks.", ("queue", "tier"))
ENDS = _counter("fairness_ends", "Attempts that ended; failed and retried ones among them.")
FAILURES = _counter(
    "fairness_failures", "Attempts that failed, or whose process or lease ended.", ("queue",)
)
RETRIES = _counter("fairness_retries", "Attempts that ended with a retry.", ("queue",))
REJECTIONS = _counter("fairness_rejections", "Rejections of a task by a limit.", ("strategy",))
LIMIT_HELD = _gauge("fairness_limit_held", "Slots of a limit that tasks hold.", ("key",))
LIMIT_MAXIMUM = _gauge(
    "fairness_limit_maximum", "Slots that a limit has; +Inf is unlimited.", ("key",)
)
LIMIT_SATURATED = _gauge(
    "fairness_limit_saturated", "1 if a limit lets no task start now.", ("key",)
)
LIMIT_SATURATED_SECONDS = _counter(
    "fairness_limit_saturated_seconds",
    "Time in which a limit let no task start; workers look at it each third of a lease.",
    ("key",),
)
SHARE_RECEIVED = _gauge(
    "fairness_share_received_ratio",
    "Part of the slots of competing tenants that the tenants of a tier hold.",
    ("tier",),
)
SHARE_ENTITLED = _gauge(
    "fairness_share_entitled_ratio",
    "Part of these slots to which the tenants of a tier are entitled.",
    ("tier",),
)
JAIN = _gauge(
    "fairness_jain_index",
    "Jain's index of the slots that tenants hold against those to which they are entitled.",
)
EXPIRED = _counter("fairness_leases_expired", "Leases that ended without a renewal.")
DEAD_LETTERS = _gauge("fairness_dead_letters", "Stored dead letters.", ("queue",))
DEAD_LETTERED = _counter("fairness_dead_lettered", "Tasks that became dead letters.")
DROPPED = _counter("fairness_tasks_dropped", "Tasks that a limit dropped.")
DUPLICATES = _counter(
    "fairness_tasks_duplicate",
    "Tasks that ended because another task has their unique key: dropped, or replaced.",
    ("how",),
)
LIBRARY_CALLS = _counter(
    "fairness_library_calls", "Calls of Redis functions that the server counted."
)
LIBRARY_ERRORS = _counter(
    "fairness_library_errors", "Those of these calls that failed or were rejected."
)
MEMORY_USED = _gauge("fairness_redis_memory_used_bytes", "Memory that the Redis server uses.")
MEMORY_MAXIMUM = _gauge("fairness_redis_memory_maximum_bytes", "Its maxmemory; +Inf is none.")
TENANT_WAITING = _gauge("fairness_tenant_tasks_waiting", "Waiting tasks of a tenant.", ("tenant",))
TENANT_HELD = _gauge("fairness_tenant_slots_held", "Slots that a tenant holds.", ("tenant",))
OJS_ACTIVE = _gauge("ojs_rate_limit_active", "Running tasks that hold a slot of a key.", ("key",))
OJS_WAITING = _gauge(
    "ojs_rate_limit_waiting", "Waiting tasks that have a limit of a key.", ("key",)
)
OJS_EXCEEDED = _counter(
    "ojs_rate_limit_exceeded", "Rejections by a limit of a key.", ("key", "strategy")
)
OJS_WAITS = _histogram(
    "ojs_rate_limit_wait_duration_seconds",
    "Waits of tasks that a limit of a key had rejected before.",
    ("key",),
)
