"""``doctor``: gathers the facts, and runs the checks on them.

Workers run some checks at their start, and Django runs the same ones: those that need no other
worker.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_fairness.control.doctor import fleet, server, settings
from celery_fairness.control.doctor.facts import (
    Facts,
    StoredFacts,
    fleet_facts,
    server_facts,
    stored_facts,
)
from celery_fairness.control.doctor.finding import Diagnosis, DoctorCheck, FleetCheck, Symptom
from celery_fairness.control.installation import Installation
from celery_fairness.control.views import Verdict
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.store.library import LibraryUnusable
from celery_fairness.store.readiness import ServerNotReady

if TYPE_CHECKING:
    from celery_fairness.control.stats_api import StatsApi

#: All checks, in the order of their answers.
CHECKS = (
    DoctorCheck("rights", "the user of Redis may not run `INFO`", server.rights),
    DoctorCheck("version", "Redis is older than 7.0, or Valkey older than 7.2", server.version),
    DoctorCheck("role", "the server is a replica", server.role),
    DoctorCheck("eviction", "`maxmemory-policy` is not `noeviction`", server.eviction),
    DoctorCheck("memory", "75 % of `maxmemory` are in use; a problem from 90 %", server.memory),
    DoctorCheck(
        "persistence",
        "the server has no append-only file, or could not write to its disk; a problem on "
        "`fairredis` if it has neither snapshots nor a replica",
        server.persistence,
    ),
    DoctorCheck("replicas", "`min-replicas-to-write` is 0 behind Sentinel", server.replicas),
    DoctorCheck(
        "clock",
        "the clocks of the server and of this host differ by 1 s; a problem from 10 s",
        server.clock,
    ),
    DoctorCheck(
        "latency", "a message to Redis and back takes 10 ms; a problem from 100 ms", server.latency
    ),
    DoctorCheck("variables", "a variable `FAIRNESS_…` is not known", settings.variables),
    DoctorCheck("ignored", "a setting or option has no effect on this path", settings.ignored),
    DoctorCheck(
        "visibility",
        "gate: a snooze is longer than the broker's `visibility_timeout` allows",
        settings.visibility,
    ),
    DoctorCheck("eta_limit", "gate: `worker_eta_task_limit` is set", settings.eta_limit),
    DoctorCheck(
        "prefetch",
        "`worker_prefetch_multiplier` lets a worker hold tasks that another could start; a "
        "problem if it is 0",
        settings.prefetch,
    ),
    DoctorCheck(
        "lease",
        "`lease_seconds` is below 3, or above 60 and ten times as long as the tasks take",
        settings.lease,
    ),
    DoctorCheck(
        "priorities",
        "`fairredis`: tasks have priorities, and `priority_order` is not set",
        settings.priorities,
    ),
    DoctorCheck(
        "base",
        "a task has `tenant`, `limits`, `service` or `scheduled`, and its class is not `FairTask`",
        settings.base,
    ),
    DoctorCheck(
        "tiers",
        "tasks have tenants, `tier_resolver` is not set, and no tenant's tier was ever published",
        settings.tiers,
    ),
    DoctorCheck(
        "library", "the server cannot run the function library", server.library, at_start=False
    ),
    FleetCheck("workers", "no worker runs", fleet.workers),
    FleetCheck(
        "enforcement", "workers do not enforce limits; a problem if others do", fleet.enforcement
    ),
    FleetCheck("leases", "workers have different `lease_seconds`", fleet.leases),
    FleetCheck(
        "installations",
        "several apps share the namespace; a problem if their result backends differ",
        fleet.installations,
    ),
    FleetCheck("queues", "no worker takes a queue; a problem if tasks wait", fleet.queues),
    FleetCheck("paused", "tasks wait for a tenant or limit that is paused", fleet.paused),
    FleetCheck(
        "tenants",
        "tasks of the last 15 minutes had no tenant; a problem if tenants were invalid",
        fleet.tenants,
    ),
    FleetCheck(
        "partitions",
        "waiting tasks have no value for the arguments of their queue's partitions",
        fleet.partitions,
    ),
    FleetCheck(
        "unreached", "a declared limit has rejected no task in a week or longer", fleet.unreached
    ),
    FleetCheck("letters", "there are dead letters", fleet.letters),
    FleetCheck("memory_lost", "Redis has lost its memory in the last week", fleet.memory_lost),
    FleetCheck(
        "old_libraries",
        "the server has function libraries that the installation has not used for a day",
        fleet.old_libraries,
    ),
)


def diagnose(installation: Installation, stats: StatsApi) -> Diagnosis:
    """Run all checks.

    Raises:
        LimiterUnavailable: Redis does not answer.
        ValueError: A test has passed a limiter that is not in Redis.
    """
    stored = stored_facts(installation)
    facts = _with_redis(installation, stored, with_config=True)
    try:
        fleet_now = fleet_facts(installation, stats, stored)
        facts, verdict = replace(facts, fleet=fleet_now), fleet_now.status.verdict
    except LimiterUnavailable as error:
        # The server has answered before.
        if not isinstance(error.__cause__, (LibraryUnusable, ResponseError, ServerNotReady)):
            raise
        facts = replace(facts, unusable=error.problem)
        verdict = Verdict(level="trouble", line=error.problem)
    found = [symptom for check in CHECKS for symptom in check.symptoms(facts)]
    found.sort(key=lambda each: each.level != "problem")
    return Diagnosis(at=facts.at, symptoms=tuple(found), verdict=verdict)


def at_start(installation: Installation) -> list[Symptom]:
    """Run the checks that need no other worker. If Redis does not answer, run those of the app."""
    facts = Facts(datetime.now(UTC), installation)
    if isinstance(installation.limiter, RedisLimiter):
        with contextlib.suppress(LimiterUnavailable):
            stored = stored_facts(installation)
            facts = _with_redis(installation, stored, with_config=False)
    return [symptom for check in CHECKS if check.at_start for symptom in check.symptoms(facts)]


def _with_redis(installation: Installation, stored: StoredFacts, *, with_config: bool) -> Facts:
    return Facts(
        datetime.now(UTC),
        installation,
        server=server_facts(installation.redis, with_config=with_config),
        stored=stored,
    )
