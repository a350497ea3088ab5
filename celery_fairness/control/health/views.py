"""The values about a whole installation that methods of ``Fairness`` return.

An event is in :mod:`.event_types`. The values about keys, queues, tenants, tasks and workers are in
``views.py`` of their own folders.

A result is a :class:`Value`. Its rows are dataclasses, because a result may have many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from celery_fairness.control.installation.views import OwnerStatus, WorkerReplies, WorkerStatus
from celery_fairness.control.queue.views import QueueStatus
from celery_fairness.control.tenant.views import TierStatus, UnresolvedTenant
from celery_fairness.util.value import Value


class KeyRejections(Value):
    """The number of rejections by limits of a key.

    Attributes:
        key: The key. After the first thousand keys, others are counted together as ``_other``.
        strategy: The number that rejected: ``concurrency``, ``rate``, ``throttle``, ``paused`` or
            ``cool-down``.
        total: Rejections since the installation's memory began.
    """

    key: str
    strategy: str
    total: int


@dataclass(frozen=True, slots=True)
class WaitCount:
    """Tasks with a wait in one range.

    Attributes:
        below_seconds: Upper end of the range, exclusive. The lower end is half of it.
        tasks: Number of tasks.
    """

    below_seconds: float
    tasks: int


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """The work of claims and gates in one minute, for one queue and one tier.

    A wait begins with the put, or with the task's eta, and ends with the first claim. A gate cannot
    measure waits. A task is alone if no other task of its tenant waited in the queue at its put.

    Attributes:
        queue: Name of the queue. ``_other`` counts queues above the bound together. "" is a message
            of a gate without a queue's name.
        tier: Name of the tier, or "" for system tasks.
        started: Tasks that were claimed, or that passed a gate.
        rejected: Rejections of tenants by their tier's limit.
        alone: Waits of tasks that were alone and started, the shortest first.
        behind_own: Waits of tasks that started behind their tenant's own tasks.
    """

    queue: str
    tier: str
    started: int
    rejected: int
    alone: tuple[WaitCount, ...] = ()
    behind_own: tuple[WaitCount, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureCount:
    """The attempts of one minute that did not end well, for one queue.

    Attributes:
        queue: Name of the queue. ``_other`` counts queues above the bound together.
        failed: Attempts whose body failed, or whose process or lease ended.
        retried: Attempts that ended with a retry.
    """

    queue: str
    failed: int
    retried: int


class Minute(Value):
    """One minute of the installation.

    Attributes:
        at: Its start by the server's clock.
        counts: A row for each queue and tier.
        ended: Attempts that ended, failed and retried ones among them. At a gate only those of
            tasks with limits.
        failures: A row for each queue with an attempt that failed or was retried.
    """

    at: datetime
    counts: tuple[MinuteCount, ...]
    ended: int = 0
    failures: tuple[FailureCount, ...] = ()

    @property
    def started(self) -> int:
        """Started tasks."""
        return sum(each.started for each in self.counts)

    @property
    def failed(self) -> int:
        """Attempts that failed."""
        return sum(each.failed for each in self.failures)

    @property
    def retried(self) -> int:
        """Attempts that ended with a retry."""
        return sum(each.retried for each in self.failures)


class Rejections(Value):
    """The number of starts that limits rejected, since the installation's memory began.

    Attributes:
        tiers: By the name of the tier.
        keys: By key and number. After a thousand keys of tenants, and a thousand others, further
            keys are counted together as ``_other``.
    """

    tiers: Mapping[str, int]
    keys: tuple[KeyRejections, ...]


class ObservedHour(Value):
    """One hour: its start by the server's clock, and the tasks that started above a limit."""

    at: datetime
    over_limit: int


class ObservedTier(Value):
    """The tasks of one tier that started above its limit.

    Attributes:
        tier: Name of the tier.
        concurrency: Its limit now. None is unlimited, or no tier that is known now.
        over_limit: Tasks that started above the limit.
        tenants: Tenants of these tasks, as far as they are counted by name.
        most_at_once: Most tasks that one of them ran at once.
    """

    tier: str
    concurrency: int | None
    over_limit: int
    tenants: int
    most_at_once: int


class ObservedTenant(Value):
    """The tasks of one tenant that started above the limit of its tier.

    Attributes:
        key: Key of the tenant.
        tier: Name of its tier then. A tenant with two tiers in this time occurs twice.
        over_limit: Tasks that started above the limit.
        most_at_once: Most tasks that it ran at once.
    """

    key: str
    tier: str
    over_limit: int
    most_at_once: int


class Observed(Value):
    """The tasks that workers started above a tier's limit, because these workers only observe.

    A worker that enforces limits would have rejected each of them at that moment.

    Attributes:
        observing: Live workers that only observe.
        workers: All live workers.
        since: Since when workers observe, as far as it is known: the start of the oldest of them,
            or the first hour with such a task. None if there is neither.
        hours: The last hours, the oldest first. The last one still counts.
        tiers: A row for each tier with such a task, the most tasks first.
        tenants: The tenants with the most of these tasks, the most first.
        others: Tasks of all other tenants. An hour has at most five hundred by name.
    """

    observing: int
    workers: int
    since: datetime | None
    hours: tuple[ObservedHour, ...]
    tiers: tuple[ObservedTier, ...]
    tenants: tuple[ObservedTenant, ...]
    others: int

    @property
    def over_limit(self) -> int:
        """All tasks that started above a limit."""
        return sum(each.over_limit for each in self.hours)


class Verdict(Value):
    """How an installation is, in one sentence, with the causes.

    Attributes:
        level: ``trouble`` if somebody must act. ``busy`` if tasks wait for a place, or for a limit
            that somebody has set. Otherwise ``ok``.
        line: The sentence.
        causes: Further sentences, the most important first.
        ruled_out: What was checked and is not a cause, a sentence each.
        unchecked: What could not be checked, a sentence each.
        at: When the tables of Redis were read. None if they could not be read.
    """

    level: Literal["ok", "busy", "trouble"]
    line: str
    causes: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    at: datetime | None = None


class Status(Value):
    """The status of an installation.

    Attributes:
        at: Time of the look, by the server's clock.
        path: ``dispatch`` or ``gate``.
        redis: Address of its Redis, without a password.
        namespace: The setting ``namespace``.
        config_version: Version of the published tiers and limits.
        tiers_from: ``database``, ``settings``, or "" if nothing is published yet.
        tiers: Tiers in force.
        counts: Every other counter.
        queues: The hundred queues with the most waiting tasks. The first of them have
            tenants.
        queue_count: Number of all queues.
        running: Number of all running tasks.
        owners: Processes that run tasks, the most leases first: of 500 tasks, if more run.
        workers: The first thousand live worker processes that are announced, by name.
        replies: The workers that answered Celery, compared with these.
        unresolved: The hundred tenants for which the tier resolver failed last, in the last day.
            The newest is first.
        fairness_index: Jain's index of the slots that tenants hold against those to which they are
            entitled: 1 if each has its share. None if no two tenants compete.
        verdict: How the installation is.
        missing: The partitions that did not answer. No number has their tasks.
    """

    at: datetime
    path: str
    redis: str
    namespace: str
    config_version: int
    tiers_from: str
    tiers: tuple[TierStatus, ...]
    counts: Mapping[str, int]
    queues: tuple[QueueStatus, ...]
    queue_count: int
    running: int
    owners: tuple[OwnerStatus, ...]
    workers: tuple[WorkerStatus, ...]
    replies: WorkerReplies
    unresolved: tuple[UnresolvedTenant, ...]
    fairness_index: float | None
    verdict: Verdict
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between tables in Redis that must agree.

    Attributes:
        check: The name of the check that found it, such as ``slot_without_task``.
        key: The key in Redis, without the prefix of the installation. With several partitions it
            has the prefix of its partition.
        row: The row in it, such as a lease or a queue. "" is the whole key.
        problem: What is wrong and what follows from it.
        repaired: What a repair did. "" if nothing was repaired.
        advice: What an operator does next. "" if nothing is left to do.
    """

    check: str
    key: str
    row: str
    problem: str
    repaired: str
    advice: str


class Check(Value):
    """The findings of a check of an installation.

    Attributes:
        findings: Every difference, each once.
        keys: How many keys were compared.
    """

    findings: tuple[Finding, ...]
    keys: int
