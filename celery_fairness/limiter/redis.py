"""The limiter in Redis. Every decision is one call and uses the server's clock.

Invariant: a key never gets more live leases than its limit. A lease of several keys is granted for
all of them or for none. A lease that is not renewed ends by itself. Acquire, renew and release take
a lease's id, and a second call with the same id changes nothing.

Weakness: if Redis loses data, it loses leases too. Workers register theirs again at the next
renewal. Until then more tasks may start than the limit allows.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, cast

from redis.exceptions import NoPermissionError, ResponseError

from celery_fairness.config.limit_spec import ACTION_BY_LETTER, Limit
from celery_fairness.config.numbers import NO_NUMBERS, write_numbers
from celery_fairness.config.queue_limits import (
    PARKED_QUEUES,
    How,
    QueueRow,
    read_row,
    texts_of_row,
    write_queue,
)
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import id_part, key_part, read_tier_key
from celery_fairness.config.tiers import Tier, read_tier, tier_numbers, write_tier
from celery_fairness.errors import LimiterUnavailable, NotWithPartitions
from celery_fairness.limiter.merged_answers import (
    merge_keys,
    merge_overviews,
    merge_totals,
    whole_overview,
)
from celery_fairness.limiter.types import (
    Admitted,
    Counted,
    HeldLease,
    Job,
    KeyLeases,
    Lease,
    Parking,
    Promoted,
    Promotion,
    PromotionEnd,
    Reason,
    Rejected,
    SlotRequest,
    Unresolved,
)
from celery_fairness.message.attribution import Attribution
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Outcome, Renewal, Rules, Settle, Settled, Verdict
from celery_fairness.store.connection import REDIS_ERRORS, Connection, mapping_of, time_ms
from celery_fairness.store.library import LibraryUnusable
from celery_fairness.store.note_sender import NoteSender
from celery_fairness.store.partitions import Partitions, number_error, other_number
from celery_fairness.store.wakeups import Listener
from celery_fairness.util.durations import Milliseconds, milliseconds, seconds
from celery_fairness.util.ids import new_id

#: Most leases that one call renews or releases, so that its time in Redis is bounded.
BATCH = 250

#: Functions whose tables are in the home of several partitions.
_OF_HOME = {
    *(calls.PUBLISH_TIERS, calls.PUBLISH_TENANT, calls.UNRESOLVED, calls.ANNOUNCE, calls.EPOCH),
    *(calls.SET_QUEUE_LIMIT, calls.RING),
}

_REJECTIONS = {
    0: Reason.AT_CONCURRENCY_LIMIT,
    -1: Reason.PAUSED,
    -2: Reason.SUPERSEDED,
    -3: Reason.COOLING_DOWN,
    -4: Reason.AT_RATE_LIMIT,
    -5: Reason.AT_THROTTLE,
    -7: Reason.BEHIND_OTHERS,
    -8: Reason.AT_LOCAL_LIMIT,
}


class Limiter:
    """Takes, renews and ends leases, parks tasks, and stores the tiers in force.

    All processes and hosts share it. Every method raises
    :class:`~celery_fairness.errors.LimiterUnavailable` if Redis does not answer.

    Args:
        frozen_clock: Only for tests: returns the server's time in ms.
        redelivery_seconds: Time after which the broker redelivers an unacknowledged message.
        key_prefix: A prefix of every key.
        broker: The broker of the tasks. Its parked tasks return to it.
        partitions: The number of partitions of the installation.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        frozen_clock: Callable[[], Milliseconds] | None = None,
        redelivery_seconds: float = 600.0,
        key_prefix: str = "",
        broker: str = "",
        partitions: int = 1,
    ) -> None:
        #: The connection to its Redis.
        self.connection = connection
        #: The connection for plain reads of its tables.
        self.there = connection
        self.partitions = Partitions(settings.namespace, key_prefix, partitions)
        #: The names of the keys of its home, and their beginning.
        self.names = self.partitions.home
        self.prefix = self.names.prefix
        self._listener, self._broker = Listener(connection), broker
        #: By server, what sends begins there.
        self._notes: dict[Connection, NoteSender] = {}
        self._promoter, self._promotions = f"promoter:{new_id(6)}", 1
        self._tiers = settings.tiers
        default = tier_numbers(settings.tiers[settings.default_tier], "tenant")
        self._rules = Rules(
            milliseconds(settings.lease_seconds),
            settings.enforcement.value,
            settings.default_tier,
            default.pop("concurrency", None),
            settings.max_deliveries,
            snooze_ms=milliseconds(settings.snooze_seconds),
            default_numbers=default,
        )
        self._rules_args = {
            each: calls.rules_args(replace(self._rules, enforcement=each.value))
            for each in Enforcement
        }
        self._cache_ms = milliseconds(settings.tier_cache_seconds)
        snooze_seconds = settings.snooze_seconds + settings.snooze_jitter_seconds
        self._copy_keep_ms = milliseconds(2 * max(redelivery_seconds, snooze_seconds))
        self._frozen_clock = frozen_clock
        self._has_met = False
        self._by_service = settings.tier_scope == "service"
        #: The name of the partition in errors. "" for the whole installation.
        self.place = ""

    @cached_property
    def parts(self) -> tuple[Limiter, ...]:
        """Each partition as an installation that has nothing else. A lone one is itself.

        Raises:
            SettingsError: The installation has another number of partitions.
        """
        if not self.partitions.are_several:
            return (self,)
        return tuple(map(self._alone, self.partitions))

    @cached_property
    def stores(self) -> tuple[Limiter, ...]:
        """The home and each partition, likewise. A lone one is itself."""
        if not self.partitions.are_several:
            return self.parts
        return (self._alone(None), *self.parts)

    def _alone(self, partition: int | None) -> Limiter:
        # Its own number would be 1.
        self.expect_number()
        made = copy(self)
        made.partitions = self.partitions.alone(partition)
        made.names = made.partitions.home
        made.prefix = made.names.prefix
        made.there = self.connection.at(made.prefix)
        count = self.partitions.count
        made.place = "the home" if partition is None else f"partition {partition} of {count}"
        made.parts = made.stores = (made,)
        return made

    @property
    def servers(self) -> dict[Connection, list[Limiter]]:
        """The home and the partitions of each server."""
        found = defaultdict[Connection, list[Limiter]](list)
        for each in self.stores:
            found[each.there].append(each)
        return found

    def missing(self) -> list[Limiter]:
        """Return the partitions whose servers do not answer now. Nothing works without the home."""
        found = list[Limiter]()
        for there, its in self.servers.items():
            try:
                there.read("EXISTS", its[0].prefix)
            except LimiterUnavailable:
                found += its
        return found

    def without(self, missing: Sequence[Limiter]) -> Limiter:
        """Return the installation without some of its partitions, for sums of the others."""
        made = copy(self)
        made.parts = tuple(each for each in self.parts if each not in missing)
        made.stores = (self.stores[0], *made.parts)
        return made

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Let the errors of Redis name the partition, if this is one."""
        try:
            yield
        except LimiterUnavailable as error:
            if not self.place or self.place in error.address:
                raise
            raise replace(error, address=f"{error.address} ({self.place})") from error.__cause__

    @property
    def lease_ms(self) -> Milliseconds:
        """The length of a lease."""
        return Milliseconds(self._rules.lease_ms)

    @property
    def parked_queue(self) -> str:
        """The queue in which the parked tasks of its broker wait."""
        return PARKED_QUEUES + self._broker

    def load_library(self) -> None:
        """Load the function library if it is absent. If the server is away, do nothing.

        Raises:
            LibraryUnusable: The server cannot load it, the user may not call it, or its tables
                have another schema. The text has the cause and the next step.
            SettingsError: The installation has another number of partitions.
        """
        try:
            self.connection.load_library(self.prefix)
            # This call writes nothing and checks the schema.
            wanted = {"key": "", "tenant_key": "", "tier": "", "app": "", "first": 0}
            args = calls.json_args(**wanted, **self._checking())
            self.connection.execute(calls.INSPECT, self.prefix, args)
            self._fix_number()
        except LibraryUnusable:
            raise
        except NoPermissionError as error:
            raise LibraryUnusable(
                f"{self.connection.address}: the user may not call functions on the keys "
                f"{self.prefix}*, grant +fcall ~{self.prefix}*: {error}"
            ) from None
        except ResponseError as error:
            if str(error).startswith("SCHEMA"):
                raise LibraryUnusable(f"{self.connection.address}: {error}") from None
            if other := other_number(error, self.partitions.count, self.connection.place):
                raise other from None
        except REDIS_ERRORS:
            return

    def _fix_number(self) -> None:
        if self.partitions.are_several:
            args = calls.epoch_args(
                self._rules.lease_ms, self.partitions.count, place=self.connection.place
            )
            self.connection.execute(calls.EPOCH, self.prefix, args)

    def meet_home(self) -> None:
        """Fix the number of partitions, before a write in the home of several.

        A new or lost memory has no number. After another write it would have one partition.

        Raises:
            SettingsError: The installation has another number of partitions.
        """
        try:
            self._fix_number()
        except REDIS_ERRORS as error:
            other = other_number(error, self.partitions.count, self.connection.place)
            raise other or self.connection.unavailable(error) from error

    def expect_number(self) -> None:
        """Compare the number of partitions with that of the installation, once.

        Without it, a pause would be written where no worker looks.

        Raises:
            SettingsError: The installation has another number of partitions.
        """
        if self._has_met:
            return
        fixed, schema = self.there.read("HMGET", self.names.clock, "partitions", "schema")
        fixed = fixed or (schema and "1")
        if fixed not in (None, str(self.partitions.count)):
            raise number_error(fixed, self.partitions.count)
        self._has_met = True

    def acquire(
        self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON
    ) -> Admitted | Rejected:
        """Take a slot of the tier and of each other limit, or none.

        A lease that is already held is admitted again without a change.
        """
        known = self._tiers.get(request.tier)
        args = (
            request.lease.id,
            *self._rules_args[enforcement],
            request.tier_key,
            self._tenant_key(request.tenant),
            request.tier,
            write_numbers({"concurrency": known.concurrency} | tier_numbers(known, "tenant"))
            if known
            else "",
            request.limits,
            *self._copies(request),
            job_text(request.job),
            self._rules.snooze_ms,
            *(self._broker, "1" if request.is_new else "", self._now_text()),
        )
        answer = self._call(calls.ACQUIRE, args)
        numbers, (tier, key, action) = calls.read_acquire(answer)
        code, held, limit, retry_after_ms, version = numbers
        number = None if limit < 0 else limit
        if code > 0:
            return Admitted(request.lease, tier, number, held, code == 2, version)
        wait = None if retry_after_ms < 0 else seconds(retry_after_ms)
        return Rejected(
            _REJECTIONS[code], wait, tier, number, held, version, key, ACTION_BY_LETTER[action]
        )

    def renew(self, leases: Sequence[Lease], epoch: int | None = None) -> Renewal[Lease]:
        """Renew ``leases`` for one lease time, and move the limiter's clock.

        Args:
            leases: The leases. An empty list only moves the clock.
            epoch: The epoch of the last renewal. If the limiter has lost its memory since, missing
                leases are registered again.
        """
        answers = []
        for batch in _batches(leases) if leases else ((),):
            held = [(lease.id, lease.key) for lease in batch]
            args = calls.renew_args(held, self._rules, epoch, self._now_text())
            answer = self._call(calls.RENEW, args)
            answers.append(calls.renewal_of(batch, answer, epoch))
        gone = tuple(lease for each in answers for lease in each.gone)
        entered = tuple(lease for each in answers for lease in each.entered)
        # If the epoch changed between two calls, the next renewal registers the rest.
        return Renewal(gone, answers[0].epoch, entered)

    def announce(
        self,
        worker: str,
        epoch: int | None = None,
        *,
        ends: bool = False,
        limits: Sequence[str] = (),
    ) -> bool:
        """Report that a worker lives, for one more lease time.

        Args:
            worker: The worker's ``WorkerStatus`` as JSON. "" only checks the memory.
            epoch: The epoch of the last renewal. None if there was none.
            ends: The worker ends, and its entry is removed.
            limits: The limits that the worker's app declares, as text. The limiter looks whether
                they are used up.

        Returns:
            Whether the limiter has lost its memory since that epoch.
        """
        lives_ms = 0 if ends else self._rules.lease_ms
        now_text = self._now_text()
        args = calls.announce_args(self._rules, worker, lives_ms, epoch, now_text, limits)
        return calls.read_announce(self._call(calls.ANNOUNCE, args))

    def release(self, leases: Sequence[Lease], *, died: bool = False) -> int:
        """End ``leases`` and return how many of them were held. A second call returns 0.

        ``died`` is whether their processes died. A trace reports this.
        """
        verdict = Verdict.DIED if died else Verdict.DONE
        held = 0
        for batch in _batches(leases):
            answer = self._call(calls.SETTLE, self._settle_args(batch, verdict))
            held += calls.read_settle(answer).count(Settled.SETTLED)
        return held

    def release_soon(self, lease: Lease, outcome: Verdict = Verdict.DONE) -> None:
        """End the lease of an attempt whose body has ended, without waiting for the answer.

        ``outcome`` is DONE, FAILED or RETRIED.
        """
        args = self._settle_args([lease], outcome)
        self.connection.post(calls.SETTLE, self.prefix, args)

    def begin(self, lease: str, verdict: Verdict, epoch: int) -> bool:
        """Store that the body of a claimed task begins; return whether it may.

        It may not if the lease, which was held in ``epoch``, has ended.
        """
        args = calls.begin_args(lease, verdict, epoch, self._now_text())
        return bool(self.connection.run(calls.BEGIN, self._prefix_of(lease), args))

    def begin_soon(self, lease: str, verdict: Verdict, epoch: int) -> None:
        """Store that the body of a claimed task begins, without waiting for the answer."""
        args = calls.begin_args(lease, verdict, epoch, self._now_text())
        prefix = self._prefix_of(lease)
        there = self.connection.at(prefix)
        notes = self._notes.get(there)
        if notes is None:
            notes = self._notes.setdefault(there, NoteSender(there, self.connection))
        notes.send(calls.BEGIN, prefix, args)

    def used(self, lease: str, key: str, units: int) -> Counted:
        """Correct the start of a task by the units of a rate that its body has used."""
        args = calls.used_args(lease, key, units, self._rules, self._now_text())
        return Counted(int(self.connection.run(calls.USED, self._prefix_of(lease), args)))

    def supersede(self, rejected: Copy, next_serial: str) -> bool:
        """Replace the successor of ``rejected`` by a copy with ``next_serial``.

        A caller uses this if a publish failed and may have arrived. From now on a gate drops the
        message of the first try.

        Returns:
            False if the first try arrived, or another copy started. Then nothing must be published.
        """
        args = (rejected.message, rejected.serial, next_serial)
        return bool(self._call(calls.SUPERSEDE, args))

    def park(
        self, request: SlotRequest, message: str, expires_ms: int = 0, rank: int = 0
    ) -> Parking:
        """Store the message of a task that was just rejected until its limits are available.

        A lease that ends between the rejection and this call is not missed. A copy that was parked
        before gets its old place.

        Args:
            request: The rejected request, with a copy. ``next_serial`` is never published.
            message: The message to publish again.
            expires_ms: The server time from which the task must not start. 0 for none.
            rank: The priority, 0 to 9. Rank 9 goes first.
        """
        if request.copy is None:
            raise ValueError("copy: expected one that names the message, got: None")
        tenant = request.tenant
        part = key_part(tenant) if tenant else ""
        service = request.tier_key.removeprefix(f"tenant:{part}").removeprefix(":")
        args = (
            *(self._rules.lease_ms, self._broker),
            *self._copies(request),
            *(part, service, request.tier, rank, request.limits, job_text(request.job)),
            *(expires_ms or "", message, self._now_text()),
        )
        return Parking(self._call(calls.PARK, args))

    def promote(self, want: int, enforcement: Enforcement = Enforcement.ON) -> Promotion:
        """Lease parked tasks that may start now, in their fair order.

        If the caller does not report within one lease that a task is published, the task waits
        again in its place, and is promoted again as another copy.

        Args:
            want: Most tasks, at least 1.
            enforcement: If it is not ``ON``, all parked tasks may start.
        """
        rules = replace(self._rules, enforcement=enforcement.value, copies_ms=self._copy_keep_ms)
        args = calls.claim_args(
            self._promoter, self._promotions, want, [self.parked_queue], rules, self._now_text()
        )
        claim = calls.read_claim(self._call(calls.CLAIM, args))
        # If the answer is lost, the next call repeats the number, and gets the same tasks.
        self._promotions += 1
        tasks = (
            Promoted(Copy(task.tag, task.lease), task.message, task.waited_ms, task.limit)
            for task in claim.tasks
        )
        return Promotion(tuple(tasks), seconds(claim.sleep_ms))

    def end_promotion(self, promoted: Promoted, how: PromotionEnd) -> None:
        """Store what became of the copy of a promoted task.

        A task that was not published is promoted again after a pause. The pause doubles with each
        try, from a sixteenth of a lease to a whole one. A task that its broker has rejected ten
        times has failed.
        """
        ends = [Settle(promoted.copy.serial, Verdict(how))]
        args = calls.settle_args(ends, self._rules, self._now_text())
        self._call(calls.SETTLE, args)

    def await_parked(self, timeout_seconds: float) -> None:
        """Wait until parked tasks may start, or the timeout. Each wake-up wakes one caller."""
        self._listener.wait(self.names.of("wakeup", self.parked_queue), timeout_seconds)

    def next_outcome(self, written: str) -> Outcome | None:
        """Delete the outcome that was stored, and return the next one."""
        args = calls.next_outcome_args(written, self._rules, self._now_text())
        answer = self._call(calls.NEXT_OUTCOME, args)
        return calls.read_next_outcome(answer)

    def trace_put(self, job: Job, attribution: Attribution, start_ms: int) -> bool:
        """Emit ``task.put`` of a task if a trace is on, and return whether it is.

        ``start_ms`` is the Unix time from which the task may start, in ms. 0 for now.
        """
        cost = f"{attribution.cost:.17g}"
        args = (job_text(job), attribution.key, attribution.tier or "", cost, start_ms, "")
        return bool(self._call(calls.TRACE_PUT, args))

    def leases_of(self, key: str) -> KeyLeases:
        """Return the live leases of ``key`` without changing it."""
        found = self.look(key)
        first = tuple(
            HeldLease(each["id"], seconds(each["ends_ms"]), task_id=each.get("task_id", ""))
            for each in found.get("leases", ())
        )
        return KeyLeases(found["held"], first)

    def look(
        self,
        key: str,
        tenant: str = "",
        tier: str = "",
        app: str = "",
        first: int = 0,
    ) -> Mapping[str, Any]:
        """Return the snapshot of a key: the answer of ``inspect``.

        Args:
            key: The key.
            tenant: The tenant whose key it is. "" if it is no tenant's.
            tier: The tenant's tier, by the cache of this process. "" if unknown.
            app: The numbers that this app declares for the key, as text.
            first: Index of the first lease in the answer.
        """
        if self.partitions.are_several:
            its = self.parts_of_key(key)
            answers = [each.look(key, tenant, tier, app, first) for each in its]
            return merge_keys(answers, self._rules.enforcement == "on")
        tenant_key = self._tenant_key(tenant) if tenant else ""
        wanted = {"key": key, "tenant_key": tenant_key, "tier": tier, "app": app, "first": first}
        return self._ask(calls.INSPECT, **wanted, **self._checking())

    def overview(self, queues: Iterable[str], only: str = "", first: int = 0) -> Mapping[str, Any]:
        """Return the queues and the processes that run tasks: the answer of ``overview``.

        Args:
            queues: Queues that are shown even if nothing is known of them.
            only: The only queue of the answer. "" for all.
            first: Index of the first queue.
        """
        if self.partitions.are_several:
            names = list(queues)
            answers = [
                whole_overview(partial(each.overview, names, only), only) for each in self.parts
            ]
            return merge_overviews(answers, first)
        wanted = {"queues": list(queues), "only": only, "first": first}
        return self._ask(calls.OVERVIEW, **wanted, **self._checking())

    def inspect_queue(
        self, queue: str, page: Sequence[int] = (0, 0), taken: Mapping[str, int] | None = None
    ) -> Mapping[str, Any]:
        """Return why the tasks of a queue wait: the answer of ``inspect_queue``.

        Args:
            queue: The queue.
            page: Indexes of the first active and of the first blocked tenant.
            taken: Slots that the tenants of earlier pages use up, by key.
        """
        active, blocked = page
        wanted = {"queue": queue, "active": active, "blocked": blocked, "taken": taken or {}}
        return self._ask(calls.INSPECT_QUEUE, **wanted, **self._checking())

    def backlog(self, most: Mapping[str, int]) -> Mapping[str, Any]:
        """Return why the tasks of queues wait, as the function ``backlog`` has it.

        Args:
            most: How many tenants of each queue are checked.
        """
        return self._ask(calls.BACKLOG, queues=list(most.items()), **self._checking())

    def _checking(self) -> dict[str, Any]:
        """Return the settings by which a function checks limits and tenants."""
        tiers = {name: write_numbers(tier_numbers(each)) for name, each in self._tiers.items()}
        return {
            "lease_ms": self._rules.lease_ms,
            "default_tier": self._rules.default_tier,
            "tiers": tiers,
            "enforcement": self._rules.enforcement,
            "frozen_ms": self._now_text(),
        }

    def totals(self, limits: Iterable[str] = ()) -> Mapping[str, Any]:
        """Return what claims and gates have counted, as the function ``totals`` has it.

        Args:
            limits: Texts of limits whose state is returned too.
        """
        declared = list(limits)
        if self.partitions.are_several:
            # The home counts too, and no task has a limit there.
            its = ((each, declared if each in self.parts else ()) for each in self.stores)
            answers = [each.totals(here) for each, here in its]
            return merge_totals(answers, self._rules.enforcement == "on")
        return self._ask(calls.TOTALS, limits=declared, **self._checking())

    def explain(self, tag: str, fairness_by: str, scope: str) -> Mapping[str, Any] | None:
        """Return the snapshot of a task; None if its tag is not known.

        The function ``explain`` describes it and the arguments.
        """
        if self.partitions.are_several:
            return self.part_of_tag(tag).explain(tag, fairness_by, scope)
        wanted = {"tag": tag, "fairness_by": fairness_by, "scope": scope}
        return self._ask(calls.EXPLAIN, **wanted, **self._checking()) or None

    def list_tasks(
        self,
        wanted: Mapping[str, Any],
        position: Mapping[str, Any] | None,
        most: int,
        *,
        detailed: bool,
    ) -> Mapping[str, Any]:
        """Return a page of tasks: the answer of ``list``.

        Args:
            wanted: The states, and the tenant, queue and key, as the function takes them.
            position: Where the page before ends. None for the first page.
            most: Most tasks on the page.
            detailed: Whether the rows have more than tag and head.
        """
        request = {**wanted, "most": most, "detailed": detailed, "from": position}
        return self._ask(calls.LIST, **request, **self._checking())

    def publish_tiers(self, tiers: Iterable[Tier], source: str, *, force: bool = True) -> bool:
        """Put a whole tier table in force.

        Args:
            tiers: All tiers.
            source: ``database`` or ``settings``.
            force: False does not replace a table from the database.

        Returns:
            Whether the table is now in force.
        """
        rows = {tier.name: write_tier(tier) for tier in tiers}
        args = calls.tiers_args(rows, source, force=force)
        self.meet_home()
        # The home comes first, because caches read it. A worker publishes again what is missing.
        answer = self._call(calls.PUBLISH_TIERS, args)
        self._call_parts(calls.PUBLISH_TIERS, args)
        return bool(json.loads(answer)["is_written"])

    def published_tiers(self) -> tuple[str, Mapping[str, Tier]]:
        """Return the source of the table in force, "" if there is none, and its tiers."""
        flat = self.there.read("HGETALL", self.names.tiers)
        tiers = {name: read_tier(name, row) for name, row in mapping_of(flat).items()}
        source = self.there.read("HGET", self.names.clock, "tiers_source") if tiers else None
        return source or "", tiers

    def publish_tenant(
        self,
        tenant: str,
        tier: str | None,
        numbers: Mapping[str, Any] = NO_NUMBERS,
        *,
        keep: bool = False,
        ends_ms: int | None = None,
    ) -> int:
        """Publish one tenant's tier.

        Args:
            tenant: The tenant.
            tier: Its tier. None removes the record.
            numbers: Its own numbers by name, in place of its tier's. None is unlimited.
            keep: Keep the record until it is removed. Otherwise a record without own numbers
                expires when the caches of all resolvers have expired.
            ends_ms: Server time from which the tenant has the default tier, in Unix ms. None for no
                end.

        Returns:
            The config version.
        """
        keep_ms = 0 if keep and ends_ms is None else 2 * self._cache_ms + 1000
        own = write_numbers(numbers)
        args = calls.tenant_args(self._tenant_key(tenant), tier or "", own, keep_ms, ends_ms)
        self.expect_number()
        self.meet_home()
        answer = self._call(calls.PUBLISH_TENANT, args)
        if self.partitions.are_several:
            there = self.part_of_tenant(key_part(tenant))
            with there.naming():
                self.connection.run(calls.PUBLISH_TENANT, there.prefix, args)
        return int(json.loads(answer)["version"])

    def published_tenant(self, tenant: str) -> str | None:
        """Return the tier that was published for ``tenant``; None if none was."""
        record = self.there.read("HMGET", self.names.tenant(tenant), "tier", "ends_ms")
        tier, ends_ms = cast("tuple[str | None, str | None]", record)
        if ends_ms is not None and int(ends_ms) <= self._server_ms():
            return self._rules.default_tier
        return tier

    def limit_queue(
        self, how: How, queue: str, limit: Limit | None = None, part: Limit | None = None
    ) -> QueueRow | None:
        """Change the limit of a queue, or only make its row.

        Args:
            how: ``declare``, ``set``, ``clear`` or ``know``
                (:mod:`celery_fairness.config.queue_limits`).
            queue: The queue.
            limit: The new limit of the whole queue. None for none.
            part: That of each partition, likewise.

        Returns:
            The queue's row; None if it has none.
        """
        whole, each = (write_queue(one) if one else "" for one in (limit, part))
        args = calls.queue_args(
            *(how, queue, queue_key(queue), whole, each),
            *(self._rules.lease_ms, self._rules.enforcement, self._now_text()),
        )
        self.meet_home()
        answer = self._call(calls.SET_QUEUE_LIMIT, args)
        for store in self.parts if self.partitions.are_several else ():
            self.copy_queue_rows(store, queue)
        row = json.loads(answer).get("row")
        return read_row(row) if row else None

    def copy_queue_rows(self, part: Limiter, queue: str | None = None) -> int:
        """Give a partition the limits of queues that the home has; return how many it lacked.

        The partition is read first. If its row changes meanwhile, another process has copied it,
        and its row stays, which is not older.

        Args:
            part: The partition.
            queue: The only queue. None for all.
        """
        has, copied = part.queue_texts(), 0
        home = self.stores[0].queue_texts()
        for name in [queue] if queue is not None else sorted({*home, *has}):
            row, before = home.get(name, ""), has.get(name, "")
            if texts_of_row(row) == texts_of_row(before) and (before or not row):
                continue
            args = calls.copy_queue_args(
                *(name, queue_key(name), row, before),
                *(self._rules.lease_ms, self._rules.enforcement, self._now_text()),
            )
            with part.naming():
                self.connection.run(calls.SET_QUEUE_LIMIT, part.prefix, args)
            copied += 1
        return copied

    def queue_texts(self) -> Mapping[str, str]:
        """Return the rows of queues by name, as Redis has them."""
        with self.naming():
            flat = self.there.read("HGETALL", self.names.queue_limits)
        rows = ((field.partition(" ")[::2], row) for field, row in mapping_of(flat).items())
        return {queue: row for (kind, queue), row in rows if kind == "queue"}

    def queue_rows(self) -> Mapping[str, QueueRow]:
        """Return the rows of queues by name."""
        return {queue: read_row(row) for queue, row in self.queue_texts().items()}

    def config_version(self) -> int:
        """Return the config version. It grows with each publication."""
        return int(self.there.read("HGET", self.names.clock, "version") or 0)

    def report_unresolved(self, failed: int, tenants: Mapping[str, Unresolved]) -> int:
        """Count failures of the tier resolver, and return the config version.

        Args:
            failed: All failures since the last report.
            tenants: Those of the first tenants.
        """
        rows = (
            (self._tenant_key(tenant), str(each.failures), each.error, str(each.age_ms))
            for tenant, each in tenants.items()
        )
        args = [str(failed), self._now_text(), *chain.from_iterable(rows)]
        return int(self._call(calls.UNRESOLVED, args))

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.there.read("HINCRBY", self.names.counters, counter, amount)

    def counts(self) -> Mapping[str, int]:
        """Return every counter: ``rejected:TIER``, ``superseded``, ``opened``, ``invalid``.

        Limits other than tiers have ``limited`` (rejections), ``dropped`` and ``rescheduled``.
        """
        found: Counter[str] = Counter()
        for each in self.stores:
            with each.naming():
                rows = mapping_of(each.there.read("HGETALL", each.names.counters)).items()
            # The others are the rejections by key.
            for name, total in rows:
                if not name.startswith("rejections "):
                    found[name] += int(total)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._listener.close()
        self.connection.close()

    def _tenant_key(self, tenant: str) -> str:
        return self.names.tenant(tenant).removeprefix(self.prefix)

    def _server_ms(self) -> int:
        if self._frozen_clock is not None:
            return self._frozen_clock()
        return time_ms(self.there.read("TIME"))

    def _settle_args(self, leases: Iterable[Lease], verdict: Verdict) -> list[str]:
        ends = [Settle(lease.id, verdict) for lease in leases]
        return calls.settle_args(ends, self._rules, self._now_text())

    def _copies(self, request: SlotRequest) -> tuple[str, str, str, Milliseconds]:
        copy = request.copy or Copy("")
        return copy.message, copy.serial, request.next_serial, self._copy_keep_ms

    def _ask(self, function: str, **wanted: Any) -> Mapping[str, Any]:
        """Return the answer of a function that takes and returns a JSON object."""
        with self.naming():
            answer = self._call(function, calls.json_args(**wanted))
        return cast("Mapping[str, Any]", json.loads(answer))

    def _call(self, function: str, args: Sequence[Any]) -> Any:
        return self.connection.run(function, self.prefix_for(function), args)

    def prefix_for(self, function: str) -> str:
        """Return the beginning of the keys that a function reads and writes.

        Raises:
            NotWithPartitions: The function is called for each partition on its own.
        """
        if not self.partitions.are_several or function in _OF_HOME:
            return self.prefix
        raise NotWithPartitions.of(str(self.connection.address), function)

    def expect_one_partition(self, what: str) -> None:
        """Raise if the installation has several partitions.

        Raises:
            NotWithPartitions: It has. ``what`` holds for all of them together.
        """
        if self.partitions.are_several:
            raise NotWithPartitions.of(str(self.connection.address), what)

    def part_of_tenant(self, tenant: str) -> Limiter:
        """Return the partition of a tenant, in its form in keys."""
        return self.parts[self.partitions.of_tenant(tenant)]

    def part_of_tag(self, tag: str) -> Limiter:
        """Return the partition of a delivery tag or a lease, whose form may be any."""
        number = tag.partition("-")[0]
        is_known = number.isdecimal() and int(number) < self.partitions.count
        return self.parts[self.partitions.of_tag(tag) if is_known else 0]

    def parts_of_key(self, key: str) -> tuple[Limiter, ...]:
        """Return the partitions whose tasks count in a key: that of its tenant, or all."""
        found = read_tier_key(key, self._by_service) if self.partitions.are_several else None
        return self.parts if found is None else (self.part_of_tenant(found[0]),)

    def _prefix_of(self, lease: str) -> str:
        """Return the beginning of the keys of the partition that has a lease."""
        return self.partitions.prefix(self.partitions.of_tag(lease))

    def _call_parts(self, function: str, args: Sequence[Any]) -> None:
        """Call a function in each of several partitions, after the home."""
        for part in self.parts if self.partitions.are_several else ():
            with part.naming():
                self.connection.run(function, part.prefix, args)

    def _now_text(self) -> str:
        return "" if self._frozen_clock is None else str(self._frozen_clock())


def job_text(job: Job | None) -> str:
    """Return a job as ``ID NAME QUEUE``, "" for none.

    Characters without a UTF-8 form become question marks.
    """
    if job is None:
        return ""
    queue = job.queue.encode(errors="replace").decode()
    return f"{id_part(job.id)} {id_part(job.type)} {queue}"


def _batches(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    for start in range(0, len(leases), BATCH):
        yield leases[start : start + BATCH]
