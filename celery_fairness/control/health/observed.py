"""What workers that only observe would have rejected in the last hours, by tier and tenant.

Invariant: the number of commands does not grow with the tenants.

Weakness: of each hour at most five hundred tenants are counted by name, those that came first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime

from celery_fairness.config.settings import Enforcement
from celery_fairness.control.health.views import (
    Observed,
    ObservedHour,
    ObservedTenant,
    ObservedTier,
)
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.control.installation.workers import living
from celery_fairness.util.timestamps import at_ms

#: The fields of a minute with these counts. The first minute of an hour has those of the hour.
OBSERVED = "observed "
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
#: Hours whose numbers the function library keeps.
HOURS_KEPT = 24
#: Most tenants in an answer.
TENANTS_AT_MOST = 1000
#: The key of the tenants that have no field of their own.
OTHERS = "_other"

#: Tasks above the limit, and the most tasks at once, by tier and key.
Counts = Mapping[tuple[str, str], tuple[int, int]]


def read_observed(installation: Installation, hours: int, top: int) -> Observed:
    """Return the tasks above the limits of the last hours.

    Args:
        installation: The installation.
        hours: How many hours, 1 to :data:`HOURS_KEPT`.
        top: How many tenants, 1 to :data:`TENANTS_AT_MOST`.

    Raises:
        LimiterUnavailable: Redis does not answer.
    """
    read = _read(installation.reader, hours)
    tasks: Counter[tuple[str, str]] = Counter()
    most: defaultdict[tuple[str, str], int] = defaultdict(int)
    for counts in read.values():
        for who, (over_limit, at_once) in counts.items():
            tasks[who] += over_limit
            most[who] = max(most[who], at_once)
    ranked = sorted(tasks, key=lambda who: (-tasks[who], who))
    named = [who for who in ranked if who[1] != OTHERS][:top]
    workers = living(installation.reader)
    observing = [each for each in workers if each.enforcement == Enforcement.OBSERVE.value]
    begins = [each.started_at for each in observing if each.started_at is not None]
    begins += [at for at, counts in read.items() if counts]
    return Observed(
        observing=len(observing),
        workers=len(workers),
        since=min(begins, default=None),
        hours=tuple(
            ObservedHour(at=at, over_limit=sum(number for number, _ in counts.values()))
            for at, counts in read.items()
        ),
        tiers=_tiers(installation, tasks, most),
        tenants=tuple(
            ObservedTenant(key=who[1], tier=who[0], over_limit=tasks[who], most_at_once=most[who])
            for who in named
        ),
        others=tasks.total() - sum(tasks[who] for who in named),
    )


def _read(reader: Reader, hours: int) -> Mapping[datetime, Counts]:
    """Return the counts of each hour, the oldest first."""
    now = server_now(reader) // HOUR_MS
    numbers = range(now - hours + 1, now + 1)
    minutes = [str(number * (HOUR_MS // MINUTE_MS)) for number in numbers]
    found: dict[datetime, dict[tuple[str, str], tuple[int, int]]] = {
        at_ms(number * HOUR_MS): {} for number in numbers
    }
    for store in reader.stores:
        rows = store.together([("HGETALL", store.keys.of("stats", each)) for each in minutes])
        for counts, fields in zip(found.values(), rows, strict=True):
            for name, value in fields.items():
                if name.startswith(OBSERVED):
                    who, (over_limit, at_once) = _count(name.removeprefix(OBSERVED), value)
                    before, most = counts.get(who, (0, 0))
                    counts[who] = (before + over_limit, max(most, at_once))
    return found


def _count(name: str, value: str) -> tuple[tuple[str, str], tuple[int, int]]:
    tier, key = name.split(" ", 1)
    over_limit, at_once = value.split(" ")
    return (tier, key), (int(over_limit), int(at_once))


def _tiers(
    installation: Installation,
    tasks: Mapping[tuple[str, str], int],
    most: Mapping[tuple[str, str], int],
) -> tuple[ObservedTier, ...]:
    known = installation.limiter.published_tiers()[1] or installation.settings.tiers
    rows = []
    for tier in {tier for tier, _ in tasks}:
        its = [who for who in tasks if who[0] == tier]
        rows.append(
            ObservedTier(
                tier=tier,
                concurrency=known[tier].concurrency if tier in known else None,
                over_limit=sum(tasks[who] for who in its),
                tenants=sum(who[1] != OTHERS for who in its),
                most_at_once=max(most[who] for who in its),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.over_limit, row.tier)))
