"""``doctor``: gathers the facts, and runs the checks on them.

Workers run some checks at their start, and Django runs the same ones: those that need no other
worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_fairness.control.health.doctor import fleet, server, settings
from celery_fairness.control.health.doctor.facts import (
    Facts,
    FleetFacts,
    StoredFacts,
    fleet_facts,
    server_facts,
    stored_facts,
)
from celery_fairness.control.health.doctor.symptoms import (
    Diagnosis,
    DoctorCheck,
    FleetCheck,
    Found,
    Symptom,
)
from celery_fairness.control.health.views import Verdict
from celery_fairness.control.installation.installation import Installation
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.store.library import LibraryUnusable
from celery_fairness.store.readiness import ServerNotReady

if TYPE_CHECKING:
    from celery_fairness.control.health.stats_api import StatsApi

#: The checks that need no other worker.
_ALONE: tuple[Callable[[Facts], Iterable[Found]], ...] = (
    *(server.rights, server.version, server.role, server.eviction, server.memory),
    *(server.persistence, server.replicas, server.clock, server.latency),
    *(settings.variables, settings.ignored, settings.visibility, settings.eta_limit),
    *(settings.prefetch, settings.lease, settings.priorities, settings.base),
    *(settings.strategies, settings.tiers, settings.tier_rates, settings.partition_numbers),
    settings.numbers_of_one_path,
)
#: Those of them about a server.
_OF_SERVER = tuple(
    map(
        DoctorCheck,
        (
            *(server.rights, server.version, server.role, server.eviction, server.memory),
            *(server.persistence, server.replicas, server.clock, server.latency),
        ),
    )
)
_OF_FLEET: tuple[Callable[[FleetFacts], Iterable[Found]], ...] = (
    *(
        fleet.missing,
        fleet.workers,
        fleet.enforcement,
        fleet.unannounced,
        fleet.leases,
        fleet.installations,
    ),
    *(fleet.queues, fleet.paused, fleet.tenants, fleet.resolver, fleet.partitions),
    *(fleet.unreached, fleet.letters, fleet.memory_lost, fleet.old_libraries),
)
#: All checks, in the order of their answers.
CHECKS: tuple[DoctorCheck, ...] = (
    *map(DoctorCheck, _ALONE),
    DoctorCheck(server.library, at_start=False),
    DoctorCheck(server.moves, at_start=False),
    *(FleetCheck(each, at_start=False) for each in _OF_FLEET),
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
    found += _of_other_servers(facts)
    found.sort(key=lambda each: each.level != "problem")
    return Diagnosis(at=facts.at, symptoms=tuple(found), verdict=verdict)


def _of_other_servers(facts: Facts) -> Iterator[Symptom]:
    """Yield the symptoms of the servers of partitions that are not the home's."""
    _, *others = facts.installation.limiter.servers.values()
    for its in others:
        theirs = replace(facts, server=server_facts(its[0], with_config=True))
        for check in _OF_SERVER:
            for each in check.symptoms(theirs):
                yield replace(each, what=f"{its[0].there.address}: {each.what}")


def at_start(installation: Installation) -> list[Symptom]:
    """Run the checks that need no other worker. If Redis does not answer, run those of the app."""
    facts = Facts(datetime.now(UTC), installation)
    with contextlib.suppress(LimiterUnavailable):
        stored = stored_facts(installation)
        facts = _with_redis(installation, stored, with_config=False)
    return [symptom for check in CHECKS if check.at_start for symptom in check.symptoms(facts)]


def _with_redis(installation: Installation, stored: StoredFacts, *, with_config: bool) -> Facts:
    return Facts(
        datetime.now(UTC),
        installation,
        server=server_facts(installation.limiter, with_config=with_config),
        stored=stored,
    )
