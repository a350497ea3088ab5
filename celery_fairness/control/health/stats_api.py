"""``fairness.stats``: the installation at a glance, and what it counted.

Weakness: a status takes several calls while tasks come and go, so its numbers are from slightly
different moments.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from celery_fairness.config.fields import whole
from celery_fairness.config.numbers import NUMBERS
from celery_fairness.control.health.doctor.diagnosis import diagnose
from celery_fairness.control.health.doctor.symptoms import Diagnosis
from celery_fairness.control.health.metrics import (
    Family,
    QueueLoad,
    read_load,
    read_loads,
    read_metrics,
)
from celery_fairness.control.health.observed import (
    HOURS_KEPT,
    OBSERVED,
    TENANTS_AT_MOST,
    read_observed,
)
from celery_fairness.control.health.verdict import verdict_of
from celery_fairness.control.health.views import (
    FailureCount,
    KeyRejections,
    Minute,
    MinuteCount,
    Observed,
    Rejections,
    Status,
    WaitCount,
)
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import Command, Reader, batches, server_now
from celery_fairness.control.installation.workers import living
from celery_fairness.control.queue.queue_status import fairness_index, owners_of, queues_of
from celery_fairness.control.tenant.unresolved_tiers import lately, unresolved
from celery_fairness.control.tenant.views import TierStatus
from celery_fairness.store.keys import Names
from celery_fairness.util.durations import seconds
from celery_fairness.util.timestamps import at_ms

MINUTE_MS = 60_000
#: Minutes whose numbers the function library keeps.
KEPT = 360
#: The kinds of starts: of a task without an older task of its tenant before it, or with one.
ALONE, BEHIND_OWN = "alone", "behind_own"
#: The waits of tasks that a limit has rejected before, by the key of the limit.
LIMITED = "limited:"
#: How attempts end. Only the last two are counted by queue.
ENDS = DONE, FAILED, RETRIED = "done", "failed", "retried"
#: Minutes that are read at once.
BATCH = 20
_REJECTED = "rejected:"

_RATE = NUMBERS["rate"].kind


class StatsApi:
    """Status and statistics of one installation.

    Every method raises ``LimiterUnavailable`` if Redis does not answer.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    def status(self) -> Status:
        """Return the installation at a glance: queues, who holds leases, tiers, counters.

        It also collects the replies of all workers on Celery's control bus. The first call of a
        process waits for them, at most 2 s. Later calls use those of the last minute, and a thread
        collects new ones every ten seconds.

        If partitions do not answer, the status has those that do, and names the others in
        ``missing``.
        """
        return self._installation.of_those_that_answer(_status)

    def metrics(self) -> tuple[Family, ...]:
        """Return the metrics, as the exporter and the Django app show them.

        The cost is bounded: neither the calls nor the labels grow with tenants and tasks.
        """
        return read_metrics(self._installation)

    def load(self, queue: str) -> QueueLoad:
        """Return how busy the workers of a queue are, for an autoscaler."""
        return read_load(self._installation, queue)

    def loads(self) -> tuple[QueueLoad, ...]:
        """Return the same of each queue whose tenants a scrape checks, by queue."""
        return read_loads(self._installation)

    def doctor(self) -> Diagnosis:
        """Check Redis, settings, workers, queues and limits; return what is wrong, and its fix.

        Nothing is written. The number of calls does not grow with the tenants or tasks.
        """
        return self._installation.of_those_that_answer(lambda its: diagnose(its, StatsApi(its)))

    def minutes(self, last: int = 60) -> tuple[Minute, ...]:
        """Return what claims and gates did in each of the last minutes, the oldest first.

        A minute has, for each queue and tier, how many tasks started and how long they had waited.
        Tasks behind none of their own tenant's are counted apart. A minute also has how often a
        tenant was found at its tier's limit. A gate
        counts each rejected attempt, and does not measure the waiting time. A minute also has how
        many attempts ended, and by queue how many failed or were retried. A minute without
        entries is left out; the last minute still counts.

        Args:
            last: How many minutes, 1 to 360: they are stored for six hours.

        Raises:
            ValueError: The number is out of range.
        """
        whole(1, KEPT).read("last", last)
        return tuple(_minutes(self._installation.reader, last))

    def rejections(self) -> Rejections:
        """Return how often limits rejected a start, by tier and by key, all workers together.

        - A gate counts each attempt that it rejects.
        - A claim counts a tenant at its limit once, until the tenant may start a task again.
        - At any other limit, a claim counts the first task of a lane.
        """
        totals: Counter[str] = Counter()
        for store in self._installation.reader.stores:
            counted = dict(store.pairs("HSCAN", store.keys.counters))
            totals.update({field: int(total) for field, total in counted.items()})
        tiers, keys = {}, []
        for field, total in sorted(totals.items()):
            if field.startswith(_REJECTED):
                tiers[field.removeprefix(_REJECTED)] = total
            elif field.startswith("rejections "):
                _, strategy, key = field.split(" ", 2)
                keys.append(KeyRejections(key=key, strategy=strategy, total=total))
        return Rejections(tiers=tiers, keys=tuple(keys))

    def observed(self, hours: int = HOURS_KEPT, top: int = 20) -> Observed:
        """Return the tasks that workers with ``enabled="observe"`` started above a tier's limit.

        Args:
            hours: How many hours, 1 to 24: they are stored for a day. The last one still counts.
            top: How many tenants, those with the most tasks first, 1 to 1,000.

        Raises:
            ValueError: A number is out of range.
        """
        whole(1, HOURS_KEPT).read("hours", hours)
        whole(1, TENANTS_AT_MOST).read("top", top)
        return read_observed(self._installation, hours, top)

    def counters(self) -> dict[str, int]:
        """Return the other counters.

        =================== ========================================================================
        superseded          copies of a message that were dropped
        opened              tasks that ran without a slot while Redis was away
        invalid             tasks attributed to ``_invalid``
        unresolved          failures of the tier resolver, so that the default tier held
        memory_lost         1 if workers found that the memory before this one was lost
        expired             leases that ended without a renewal
        abandoned           acknowledged tasks that were lost with their worker (fairredis)
        dead_lettered       tasks that became dead letters (fairredis)
        requeued            dead letters that an operator put back (fairredis)
        cancelled           tasks that an operator cancelled
        dropped             tasks that a limit rejected and that were not run
        rescheduled         tasks that a limit rejected, once for each later try
        duplicates          tasks that were dropped, as another has their unique key (fairredis)
        replaced            waiting tasks that a newer one with their key replaced (fairredis)
        expired_waiting     tasks that expired while they waited
        quarantined         entries of plain lists that were quarantined (fairredis)
        lost_entries        entries in tables whose record or place somebody had deleted
        =================== ========================================================================
        """
        return {
            counter: amount
            for counter, amount in self._installation.limiter.counts().items()
            if not counter.startswith(_REJECTED)
        }


def _status(installation: Installation) -> Status:
    limiter = installation.limiter
    source, published = limiter.published_tiers()
    counts = dict(limiter.counts())
    tiers = tuple(
        TierStatus(
            tier.name,
            tier.concurrency,
            tier.weight,
            tier.queue_class,
            counts.pop(_REJECTED + tier.name, 0),
            tier.max_waiting,
            rate=_RATE.to_ojs(tier.rate),
            throttle=_RATE.to_ojs(tier.throttle),
            burst=tier.burst,
        )
        for tier in (published or installation.settings.tiers).values()
    )
    answer = limiter.overview(installation.app_queues() if installation.claims else ())
    queues, workers = queues_of(answer, limiter), living(installation.reader)
    known = {*installation.task_queues(), *(each.queue for each in queues)}
    replies = installation.control_bus.compare(workers, known)
    owners, at = owners_of(answer), at_ms(answer["now"])
    without_tier = unresolved(installation.reader)
    index = fairness_index(each for queue in queues for each in queue.tenants)
    return Status(
        at=at,
        path="dispatch" if installation.claims else "gate",
        redis=str(limiter.connection.address),
        namespace=installation.settings.namespace,
        config_version=limiter.config_version(),
        tiers_from=source,
        tiers=tiers,
        counts=counts,
        queues=queues,
        queue_count=answer["queue_count"],
        running=answer["running"],
        owners=owners,
        workers=workers,
        replies=replies,
        unresolved=without_tier,
        fairness_index=index,
        missing=installation.missing,
        verdict=verdict_of(
            *(queues, workers, owners, index, replies),
            at=at,
            claims=installation.claims,
            unresolved=lately(without_tier, at),
            default_tier=installation.settings.default_tier,
            missing=installation.missing,
        ),
    )


def _minutes(reader: Reader, last: int) -> Iterator[Minute]:
    now = server_now(reader) // MINUTE_MS
    for some in batches(range(now - last + 1, now + 1), BATCH):
        for number, fields in zip(some, reader.sums(partial(_stats_of, some)), strict=True):
            counts, ends = tuple(_counts(fields)), _ends(fields)
            # The first minute of an hour may have nothing but what workers observed in the hour.
            if counts or ends:
                yield Minute(
                    at=at_ms(number * MINUTE_MS),
                    counts=counts,
                    ended=ends.total(),
                    failures=_failures(ends),
                )


def _stats_of(minutes: Iterable[int], keys: Names) -> list[Command]:
    return [("HGETALL", keys.of("stats", str(each))) for each in minutes]


def _counts(fields: Mapping[str, str]) -> Iterator[MinuteCount]:
    found: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for field, count in fields.items():
        what, tier, queue = field.split(" ", 2)
        if what not in ENDS and not what.startswith((LIMITED, OBSERVED.strip())):
            found[queue, tier][what] = int(count)
    for (queue, tier), counts in sorted(found.items()):
        rejected = counts.pop("rejected", 0)
        started = sum(counts.values())
        yield MinuteCount(
            *(queue, tier, started, rejected), _waits(counts, ALONE), _waits(counts, BEHIND_OWN)
        )


def _ends(fields: Mapping[str, str]) -> Counter[tuple[str, str]]:
    """Return how many attempts ended, by outcome and queue."""
    found: Counter[tuple[str, str]] = Counter()
    for field, count in fields.items():
        what, _, queue = field.split(" ", 2)
        if what in ENDS:
            found[what, queue] += int(count)
    return found


def _failures(ends: Counter[tuple[str, str]]) -> tuple[FailureCount, ...]:
    queues = sorted({queue for what, queue in ends if what != DONE})
    return tuple(FailureCount(each, ends[FAILED, each], ends[RETRIED, each]) for each in queues)


def _waits(counts: Mapping[str, int], word: str) -> tuple[WaitCount, ...]:
    found = {}
    for what, tasks in counts.items():
        of, _, bits = what.partition(":")
        if of == word:
            found[int(bits)] = tasks
    return tuple(WaitCount(seconds(1 << bits), tasks) for bits, tasks in sorted(found.items()))
