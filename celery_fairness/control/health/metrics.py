"""The metrics of an installation, read from Redis at the moment of the question.

Every counter is a total since the memory of Redis began, so a lost scrape loses nothing.

Invariant: the number of calls and of labels does not grow with tenants and tasks.

Weakness: a scrape takes several calls while tasks come and go, so its numbers are from slightly
different moments.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.control.health import metric_table as table
from celery_fairness.control.health.metric_table import Metric
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import Command, batches, server_now
from celery_fairness.control.installation.views import WorkerStatus
from celery_fairness.control.installation.workers import living
from celery_fairness.control.queue.backlog import QueueBacklog, backlogs
from celery_fairness.control.queue.queue_status import fairness_index
from celery_fairness.control.tenant.unresolved_tiers import lately, unresolved
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.scheduler.types import SYSTEM
from celery_fairness.store.connection import Connection
from celery_fairness.store.keys import Names
from celery_fairness.util.durations import seconds
from celery_fairness.util.timestamps import at_ms
from celery_fairness.util.value import Value

#: The labels of names that have none of their own, and of parked tasks.
OTHER, PARKED = "_other", "_parked"
#: Queues that have a label of their own, and the longest label.
QUEUES, LABEL_LENGTH = 1000, 120
#: Queues whose delayed tasks and dead letters one transaction counts.
BATCH = 250
#: The histograms count the waits below so many powers of two, in ms.
POWERS = (3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22)
#: Part of the upper end of its power that a wait counts in the sum of a histogram.
MIDDLE = 0.75

#: The metrics of ends that are counted by queue.
_BY_QUEUE = {"failed": table.FAILURES, "retried": table.RETRIES}
_BEHIND = {"alone": "none", "behind_own": "own"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a metric.

    Attributes:
        labels: The values of its labels, in the order of the metric.
        value: The number. The sum of all waits in seconds, of a histogram.
        buckets: Of a histogram: upper bounds in seconds, each with the waits below it.
    """

    labels: tuple[str, ...]
    value: float
    buckets: tuple[tuple[float, int], ...] = ()


class Family(Value):
    """The samples of one metric."""

    metric: Metric
    samples: tuple[Sample, ...]


class QueueLoad(Value):
    """How busy the workers of a queue are, for an autoscaler.

    Attributes:
        queue: The queue.
        startable: Waiting tasks that free places could start now. Tasks that a limit holds back
            are none of them.
        running: Its running tasks.
        tasks: Startable and running tasks. A scaler divides them by the places of one worker.
        places: Places of the live workers that take it. A worker counts for each of its queues.
        load: Startable and running tasks per place. Without a place, the number of these tasks.
        is_estimated: Whether it has more tenants, or the installation more running tasks, than
            were looked at.
    """

    queue: str
    startable: int
    running: int
    tasks: int
    places: int
    load: float
    is_estimated: bool = False


def read_metrics(installation: Installation) -> tuple[Family, ...]:
    """Return all metrics of an installation that come from Redis.

    Raises:
        LimiterUnavailable: Redis does not answer.
    """
    return _Scrape(installation).families()


def read_load(installation: Installation, queue: str) -> QueueLoad:
    """Return how busy the workers of one queue are. ``_parked`` is the name of all parked tasks.

    Raises:
        LimiterUnavailable: Redis does not answer.
    """
    if queue == PARKED:
        parked = [each for each in read_loads(installation) if each.queue == PARKED]
        return parked[0] if parked else _load(PARKED, 0, 0, 0, False)
    (tasks,) = installation.reader.sums(lambda keys: [("HGET", keys.waiting, queue)])
    waiting = int(tasks or 0)
    checked = backlogs(installation, {queue: waiting}).get(queue, QueueBacklog(0, True, True))
    running = _Running(installation, queue)
    places = worker_places(living(installation.reader))[queue]
    is_estimated = running.is_estimated or not checked.is_complete
    return _load(queue, checked.startable, running.by_queue()[queue], places, is_estimated)


def read_loads(installation: Installation) -> tuple[QueueLoad, ...]:
    """Return how busy the workers of each queue are that was checked, by queue.

    Raises:
        LimiterUnavailable: Redis does not answer.
    """
    return tuple(_Scrape(installation, only_loads=True).loads())


def worker_places(workers: Iterable[WorkerStatus]) -> Counter[str]:
    """Return the places of workers by queue. Parked tasks are claimed for all gates."""
    places: Counter[str] = Counter()
    for worker in workers:
        for queue in worker.queues:
            places[queue] += worker.places
        if worker.path == "gate":
            places[PARKED] += worker.places
    return places


def _load(queue: str, startable: int, running: int, places: int, is_estimated: bool) -> QueueLoad:
    tasks = startable + running
    load = tasks / places if places else float(tasks)
    return QueueLoad(
        queue=queue,
        startable=startable,
        running=running,
        tasks=tasks,
        places=places,
        load=round(load, 4),
        is_estimated=is_estimated,
    )


class _Running:
    """The running tasks by queue and tier: all of them, or estimates of a sample."""

    def __init__(self, installation: Installation, only: str = PARKED_QUEUES) -> None:
        # A queue that is named spares the function the order of all queues.
        answer = installation.limiter.overview((), only=only)
        self._known = set(installation.limiter.published_tiers()[1] or installation.settings.tiers)
        self._default = installation.settings.default_tier
        self._places = answer.get("tiers", ())
        running, sampled = int(answer["running"]), int(answer["sampled"])
        self._scale = running / max(1, sampled)
        self.is_estimated = sampled < running

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yield queue, tier and tasks."""
        for place, tasks in self._places:
            tier, _, queue = place.partition(" ")
            yield queue, self._tier(tier), round(tasks * self._scale)

    def by_queue(self) -> Counter[str]:
        """Return the running tasks by queue."""
        found: Counter[str] = Counter()
        for queue, _, tasks in self:
            found[queue] += tasks
        return found

    def _tier(self, tier: str) -> str:
        return tier if not tier or tier in self._known else self._default


class _Scrape:
    def __init__(self, installation: Installation, *, only_loads: bool = False) -> None:
        self._installation = installation
        reader = installation.reader
        waiting, noted = reader.sums(
            lambda keys: [("HGETALL", keys.waiting), ("SMEMBERS", keys.queues)]
        )
        self._backlogs = backlogs(installation, {each: int(waiting[each]) for each in waiting})
        self._running = _Running(installation)
        self._workers = living(reader)
        self._places = worker_places(self._workers)
        self._noted: list[str] = [] if only_loads else sorted(set(noted))
        self._samples: dict[Metric, dict[tuple[str, ...], float]] = {
            each: {} for each in table.METRICS
        }
        self._histograms: dict[Metric, dict[tuple[str, ...], Counter[int]]] = {
            table.WAITS: defaultdict(Counter),
            table.OJS_WAITS: defaultdict(Counter),
        }
        running = self._running.by_queue()
        app = installation.app_queues() if installation.claims else ()
        named = dict.fromkeys((*self._backlogs, *running, *self._noted, *app, *self._places))
        self._labels = {
            queue: _queue_label(queue) if index < QUEUES else OTHER
            for index, queue in enumerate(each for each in named if each)
        }

    def families(self) -> tuple[Family, ...]:
        """Return the metrics, in the order of the table."""
        self._add_backlogs()
        self._add_replies()
        reader = self._installation.reader
        failing = lately(unresolved(reader), at_ms(server_now(reader)))
        self._add(table.UNRESOLVED_TENANTS, len(failing))
        self._add_stored()
        self._add_running()
        self._add_shares()
        self._add_totals()
        self._add_server()
        return tuple(self._family(metric) for metric in table.METRICS)

    def loads(self) -> Iterator[QueueLoad]:
        """Yield the loads of the queues that have a label of their own and were checked."""
        startable: Counter[str] = Counter()
        running: Counter[str] = Counter()
        places: Counter[str] = Counter()
        estimated, unknown = set(), {OTHER}
        for queue, checked in self._backlogs.items():
            label = self._label(queue)
            startable[label] += checked.startable
            if not checked.is_checked:
                unknown.add(label)
            if not checked.is_complete:
                estimated.add(label)
        for queue, tasks in self._running.by_queue().items():
            running[self._label(queue)] += tasks
        for queue, amount in self._places.items():
            places[self._label(queue)] += amount
        for label in sorted({*self._labels.values()} - unknown):
            numbers = (startable[label], running[label], places[label])
            yield _load(label, *numbers, self._running.is_estimated or label in estimated)

    def _label(self, queue: str) -> str:
        return self._labels.get(queue, OTHER)

    def _add(self, metric: Metric, value: float, *labels: str) -> None:
        known = self._samples[metric]
        known[labels] = known.get(labels, 0) + value

    def _family(self, metric: Metric) -> Family:
        samples = [Sample(labels, value) for labels, value in self._samples[metric].items()]
        for labels, waits in self._histograms.get(metric, {}).items():
            samples.append(_histogram(labels, waits))
        return Family(metric=metric, samples=tuple(samples))

    def _add_backlogs(self) -> None:
        checked = sum(each.waiting for each in self._backlogs.values() if each.is_complete)
        waiting = sum(each.waiting for each in self._backlogs.values())
        # If a queue has more tenants, only those that were checked count.
        checked += sum(
            min(each.waiting, sum(tenant.waiting for tenant in each.tenants))
            for each in self._backlogs.values()
            if not each.is_complete
        )
        self._add(table.CHECKED, checked / waiting if waiting else 1.0)
        for queue, backlog in self._backlogs.items():
            label = self._label(queue)
            for (tier, reason), tasks in backlog.reasons.items():
                self._add(table.WAITING, tasks, label, _label(tier), reason)
            if backlog.is_checked:
                self._add(table.STARTABLE, backlog.startable, label)
            for reason, waits in backlog.oldest_seconds.items():
                oldest = self._samples[table.OLDEST]
                oldest[label, reason] = max(waits, oldest.get((label, reason), 0.0))
        for load in self.loads():
            self._samples[table.STARTABLE].setdefault((load.queue,), 0)
            self._add(table.LOAD, load.load, load.queue)
        for queue, places in self._places.items():
            self._add(table.PLACES, places, self._label(queue))
        for worker in self._workers:
            self._add(table.WORKERS, 1, worker.path, worker.enforcement)
        self._add_tenants(waiting)

    def _add_replies(self) -> None:
        """Add the workers that answer Celery."""
        known = {*self._installation.task_queues(), *self._noted, *self._backlogs}
        replies = self._installation.control_bus.compare(self._workers, known)
        if not replies.problem:
            self._add(table.ANSWERED, replies.answered)
        if replies.answered:
            sharing = len(replies.sharing)
            self._add(table.UNANNOUNCED, sharing, "yes")
            self._add(table.UNANNOUNCED, len(replies.unannounced) - sharing, "no")

    def _add_stored(self) -> None:
        """Add the delayed tasks and the dead letters."""
        reader = self._installation.reader
        for some in batches(self._noted, BATCH):
            counts = iter(reader.sums(partial(_stored_of, some)))
            for queue in some:
                later, dead, label = int(next(counts)), int(next(counts)), self._label(queue)
                if later:
                    self._add(table.WAITING, later, label, "", "scheduled")
                if dead:
                    self._add(table.DEAD_LETTERS, dead, label)

    def _add_running(self) -> None:
        for queue, tier, tasks in self._running:
            self._add(table.RUNNING, tasks, self._label(queue), _label(tier))

    def _add_tenants(self, waiting: int) -> None:
        """Add the tenants with the most waiting tasks, as far as they may be labels."""
        most = self._installation.settings.metric_tenants
        if not most:
            return
        tasks: Counter[str] = Counter()
        held: dict[str, int] = {}
        for backlog in self._backlogs.values():
            for each in backlog.tenants:
                if each.key != SYSTEM:
                    tasks[each.key] += each.waiting
                    held[each.key] = each.held
        first = [key for key, _ in tasks.most_common(most)]
        for key in first:
            label = _label(key.removeprefix("tenant:"))
            self._add(table.TENANT_WAITING, tasks[key], label)
            self._add(table.TENANT_HELD, held[key], label)
        rest = max(0, waiting - sum(tasks[key] for key in first))
        self._add(table.TENANT_WAITING, rest, OTHER)
        self._add(table.TENANT_HELD, sum(held.values()) - sum(held[key] for key in first), OTHER)

    def _add_shares(self) -> None:
        received: dict[str, float] = defaultdict(float)
        entitled: dict[str, float] = defaultdict(float)
        for backlog in self._backlogs.values():
            for each in backlog.tenants:
                received[each.tier] += each.held
                entitled[each.tier] += each.entitled
        for metric, shares in (
            (table.SHARE_RECEIVED, received),
            (table.SHARE_ENTITLED, entitled),
        ):
            whole = sum(shares.values())
            for tier, slots in shares.items():
                if whole:
                    self._add(metric, slots / whole, _label(tier))
        index = fairness_index(
            each for backlog in self._backlogs.values() for each in backlog.tenants
        )
        if index is not None:
            self._add(table.JAIN, index)

    def _add_totals(self) -> None:
        limits = self._installation.declared_words()
        answer = self._installation.limiter.totals(limits)
        keys = {each.partition("|")[0] for each in limits}
        self._add_limits(answer)
        for field, count in answer["totals"].items():
            what, tier, name = field.split(" ", 2)
            of, _, bits = what.partition(":")
            if of in _BEHIND:
                self._histograms[table.WAITS][_BEHIND[of], _label(tier)][int(bits)] += count
            elif of == "limited":
                key = name if name in keys else OTHER
                self._histograms[table.OJS_WAITS][(key,)][int(bits)] += count
            elif of == "started":
                # Redis bounds these names. The queues with a label of their own change with the
                # waiting tasks, and with them the count of `_other` would go down.
                self._add(table.STARTS, count, _queue_label(name), _label(tier))
            elif of in ("done", *_BY_QUEUE):
                self._add(table.ENDS, count)
                if of in _BY_QUEUE:
                    self._add(_BY_QUEUE[of], count, _queue_label(name))
        counts: Mapping[str, Any] = answer["counts"]
        for field, count in counts.items():
            if field.startswith("rejections "):
                _, strategy, key = field.split(" ", 2)
                self._add(table.REJECTIONS, count, strategy)
                self._add(table.OJS_EXCEEDED, count, key if key in keys else OTHER, strategy)
        for metric, counter in (
            (table.EXPIRED, "expired"),
            (table.DEAD_LETTERED, "dead_lettered"),
            (table.DROPPED, "dropped"),
            (table.UNRESOLVED, "unresolved"),
        ):
            self._add(metric, counts.get(counter, 0))
        self._add(table.DUPLICATES, counts.get("duplicates", 0), "dropped")
        self._add(table.DUPLICATES, counts.get("replaced", 0), "replaced")

    def _add_limits(self, answer: Mapping[str, Any]) -> None:
        for key, held, maximum, waiting, why, saturated_ms in answer["limits"]:
            self._add(table.LIMIT_HELD, held, key)
            self._add(table.LIMIT_MAXIMUM, math.inf if maximum < 0 else maximum, key)
            self._add(table.LIMIT_SATURATED, int(bool(why)), key)
            self._add(table.LIMIT_SATURATED_SECONDS, seconds(saturated_ms), key)
            self._add(table.OJS_ACTIVE, held, key)
            self._add(table.OJS_WAITING, waiting, key)
        # The keys of tenants: each task waits for the slot of its tenant, and holds it.
        self._add(table.OJS_ACTIVE, self._running.by_queue().total(), OTHER)
        self._add(table.OJS_WAITING, sum(each.waiting for each in self._backlogs.values()), OTHER)

    def _add_server(self) -> None:
        for there, its in self._installation.limiter.servers.items():
            facts = _server_facts(there, its[0].prefix)
            for name in ("cmdstat_fcall", "cmdstat_fcall_ro"):
                if numbers := facts.get(name):
                    errors = numbers.get("failed_calls", 0) + numbers.get("rejected_calls", 0)
                    self._add(table.LIBRARY_CALLS, numbers["calls"])
                    self._add(table.LIBRARY_ERRORS, errors)
            if "used_memory" in facts:
                self._add(table.MEMORY_USED, int(facts["used_memory"]))
                self._add(table.MEMORY_MAXIMUM, int(facts.get("maxmemory", 0)) or math.inf)


def _stored_of(queues: Iterable[str], keys: Names) -> list[Command]:
    return [("ZCARD", keys.of(kind, queue)) for queue in queues for kind in ("scheduled", "dead")]


def _server_facts(there: Connection, prefix: str) -> Mapping[str, Any]:
    """Return the calls of functions and the memory; nothing if the user may not ask."""
    try:
        # A cluster has other nodes, which hold nothing of the installation.
        answer = there.read_there(prefix, "INFO", "commandstats", "memory")
    except LimiterUnavailable:
        return {}
    return answer if isinstance(answer, Mapping) else _parsed(str(answer))


def _parsed(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.startswith("cmdstat_fcall"):
            pairs = (each.partition("=")[::2] for each in value.split(","))
            found[name] = {field: int(float(number)) for field, number in pairs}
        elif name in ("used_memory", "maxmemory"):
            found[name] = int(value)
    return found


def _histogram(labels: tuple[str, ...], waits: Mapping[int, int]) -> Sample:
    buckets = [
        ((1 << power) / 1000, sum(tasks for bits, tasks in waits.items() if bits <= power))
        for power in POWERS
    ]
    buckets.append((math.inf, sum(waits.values())))
    # The library keeps only the power of two of a wait.
    total = sum((1 << bits) / 1000 * MIDDLE * tasks for bits, tasks in waits.items())
    return Sample(labels, total, tuple(buckets))


def _queue_label(queue: str) -> str:
    return PARKED if queue.startswith(PARKED_QUEUES) else _label(queue)


def _label(text: str) -> str:
    """Return a name as a label. A long name ends with a digest of all of it."""
    encoded = text.encode(errors="replace")
    if len(text) <= LABEL_LENGTH:
        return encoded.decode()
    digest = hashlib.sha256(encoded).hexdigest()[:8]
    return f"{encoded.decode()[: LABEL_LENGTH - 9]}~{digest}"
