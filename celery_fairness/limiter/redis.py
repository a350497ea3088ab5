"""The limiter in Redis. Every decision is one call and uses the server's clock.

Weakness: if Redis loses data, it loses leases too. Workers register theirs again at the next
renewal. Until then more tasks may start than the limit allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from redis.exceptions import NoPermissionError, ResponseError

from celery_fairness.config.limit_spec import BY_LETTER
from celery_fairness.config.queue_limits import (
    PARKED_QUEUES,
    How,
    QueueNumbers,
    QueueRow,
    read_row,
)
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import id_part, key_part
from celery_fairness.config.tiers import QueueClass, Tier
from celery_fairness.limiter.types import (
    Admitted,
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
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Outcome, Renewal, Rules, Settle, Settled, Verdict
from celery_fairness.store.connection import REDIS_ERRORS, Connection, mapping_of, time_ms
from celery_fairness.store.keys import Names
from celery_fairness.store.library import LibraryUnusable
from celery_fairness.store.note_sender import NoteSender
from celery_fairness.store.wakeups import Listener
from celery_fairness.util.durations import Milliseconds, milliseconds, seconds
from celery_fairness.util.ids import new_id

#: Most leases that one call renews or releases, so that its time in Redis is bounded.
BATCH = 250

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


class RedisLimiter:
    """A :class:`~celery_fairness.limiter.protocol.Limiter` that all processes and hosts share.

    The protocol describes its methods. Those that only this limiter has are described here.

    Args:
        frozen_clock: Only for tests: returns the server's time in ms.
        redelivery_seconds: Time after which the broker redelivers an unacknowledged message.
        key_prefix: A prefix of every key.
        broker: The broker of the tasks. Its parked tasks return to it.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        frozen_clock: Callable[[], Milliseconds] | None = None,
        redelivery_seconds: float = 600.0,
        key_prefix: str = "",
        broker: str = "",
    ) -> None:
        #: The connection to its Redis.
        self.connection = connection
        #: The names of its keys, and their beginning.
        self.names = Names(settings.namespace, key_prefix)
        self.prefix = self.names.prefix
        self._listener, self._broker = Listener(connection), broker
        self._notes = NoteSender(connection, self.prefix)
        self._promoter, self._promotions = f"promoter:{new_id(6)}", 1
        self._tiers = settings.tiers
        self._rules = Rules(
            milliseconds(settings.lease_seconds),
            settings.enforcement.value,
            settings.default_tier,
            settings.tiers[settings.default_tier].concurrency,
            settings.max_deliveries,
            snooze_ms=milliseconds(settings.snooze_seconds),
        )
        self._rules_args = {
            each: calls.rules_args(replace(self._rules, enforcement=each.value))
            for each in Enforcement
        }
        self._cache_ms = milliseconds(settings.tier_cache_seconds)
        snooze_seconds = settings.snooze_seconds + settings.snooze_jitter_seconds
        self._copy_keep_ms = milliseconds(2 * max(redelivery_seconds, snooze_seconds))
        self._frozen_clock = frozen_clock

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
        """
        try:
            self.connection.load_library(self.prefix)
            # This call writes nothing and checks the schema.
            args = ("", "", "", *self._checking(), "", 0)
            self.connection.execute(calls.INSPECT, self.prefix, args)
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
        except REDIS_ERRORS:
            return

    def acquire(
        self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON
    ) -> Admitted | Rejected:
        known = self._tiers.get(request.tier)
        args = (
            request.lease.id,
            *self._rules_args[enforcement],
            request.tier_key,
            self._tenant_key(request.tenant),
            request.tier,
            calls.limit_text(known.concurrency) if known else "",
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
            _REJECTIONS[code], wait, tier, number, held, version, key, BY_LETTER[action]
        )

    def renew(self, leases: Sequence[Lease], epoch: int | None = None) -> Renewal[Lease]:
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
        lives_ms = 0 if ends else self._rules.lease_ms
        now_text = self._now_text()
        args = calls.announce_args(self._rules, worker, lives_ms, epoch, now_text, limits)
        return calls.read_announce(self._call(calls.ANNOUNCE, args))

    def release(self, leases: Sequence[Lease], *, died: bool = False) -> int:
        verdict = Verdict.DIED if died else Verdict.DONE
        held = 0
        for batch in _batches(leases):
            answer = self._call(calls.SETTLE, self._settle_args(batch, verdict))
            held += calls.read_settle(answer).count(Settled.SETTLED)
        return held

    def release_soon(self, lease: Lease) -> None:
        args = self._settle_args([lease], Verdict.DONE)
        self.connection.post(calls.SETTLE, self.prefix, args)

    def begin(self, lease: str, verdict: Verdict, epoch: int) -> bool:
        """Store that the body of a claimed task begins; return whether it may.

        It may not if the lease, which was held in ``epoch``, has ended.
        """
        args = calls.begin_args(lease, verdict, epoch, self._now_text())
        return bool(self._call(calls.BEGIN, args))

    def begin_soon(self, lease: str, verdict: Verdict, epoch: int) -> None:
        """Store that the body of a claimed task begins, without waiting for the answer."""
        self._notes.send(calls.BEGIN, calls.begin_args(lease, verdict, epoch, self._now_text()))

    def supersede(self, rejected: Copy, next_serial: str) -> bool:
        args = (rejected.message, rejected.serial, next_serial)
        return bool(self._call(calls.SUPERSEDE, args))

    def park(
        self, request: SlotRequest, message: str, expires_ms: int = 0, rank: int = 0
    ) -> Parking:
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
        ends = [Settle(promoted.copy.serial, Verdict(how))]
        args = calls.settle_args(ends, self._rules, self._now_text())
        self._call(calls.SETTLE, args)

    def await_parked(self, timeout_seconds: float) -> None:
        self._listener.wait(self.names.of("wakeup", self.parked_queue), timeout_seconds)

    def next_outcome(self, written: str) -> Outcome | None:
        """Delete the outcome that was stored, and return the next one."""
        args = calls.next_outcome_args(written, self._rules, self._now_text())
        answer = self._call(calls.NEXT_OUTCOME, args)
        return calls.read_next_outcome(answer)

    def leases_of(self, key: str) -> KeyLeases:
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
        tenant_key = self._tenant_key(tenant) if tenant else ""
        args = (key, tenant_key, tier, *self._checking(), app, first)
        return self._ask(calls.INSPECT, *args)

    def _tiers_text(self) -> str:
        return json.dumps(
            {
                name: (calls.limit_text(each.concurrency), float(each.weight))
                for name, each in self._tiers.items()
            }
        )

    def overview(self, queues: Iterable[str], only: str = "", first: int = 0) -> Mapping[str, Any]:
        """Return the queues and the processes that run tasks: the answer of ``overview``.

        Args:
            queues: Queues that are shown even if nothing is known of them.
            only: The only queue of the answer. "" for all.
            first: Index of the first queue.
        """
        begin = (self._rules.lease_ms, self._now_text(), only, first, self._rules.default_tier)
        return self._ask(calls.OVERVIEW, *begin, *queues)

    def inspect_queue(
        self, queue: str, page: Sequence[int] = (0, 0), taken: Mapping[str, int] | None = None
    ) -> Mapping[str, Any]:
        """Return why the tasks of a queue wait: the answer of ``inspect_queue``.

        Args:
            queue: The queue.
            page: Indexes of the first active and of the first blocked tenant.
            taken: Slots that the tenants of earlier pages use up, by key.
        """
        args = (*self._checking(), *page, json.dumps(taken or {}))
        return self._ask(calls.INSPECT_QUEUE, queue, *args)

    def backlog(self, most: Mapping[str, int]) -> Mapping[str, Any]:
        """Return why the tasks of queues wait, as the function ``backlog`` has it.

        Args:
            most: How many tenants of each queue are checked.
        """
        return self._ask(calls.BACKLOG, *self._checking(), *chain.from_iterable(most.items()))

    def _checking(self) -> tuple[Any, ...]:
        """Return the arguments by which a function checks limits and tenants."""
        rules = self._rules
        tiers = (rules.default_tier, self._tiers_text(), rules.enforcement)
        return rules.lease_ms, *tiers, self._now_text()

    def totals(self, limits: Iterable[str] = ()) -> Mapping[str, Any]:
        """Return what claims and gates have counted, as the function ``totals`` has it.

        Args:
            limits: Texts of limits whose state is returned too.
        """
        begin = (self._rules.lease_ms, self._now_text(), self._rules.enforcement)
        return self._ask(calls.TOTALS, *begin, *limits)

    def explain(self, tag: str, fairness_by: str, scope: str) -> Mapping[str, Any] | None:
        """Return the snapshot of a task; None if its tag is not known.

        The function ``explain`` describes it and the arguments.
        """
        args = (tag, fairness_by, scope, *self._checking())
        return self._ask(calls.EXPLAIN, *args) or None

    def publish_tiers(self, tiers: Iterable[Tier], source: str, *, force: bool = True) -> bool:
        rows: list[str] = []
        for tier in sorted(tiers, key=lambda tier: tier.name):
            row = {
                "concurrency": tier.concurrency,
                "weight": float(tier.weight),
                "queue_class": tier.queue_class,
            }
            if tier.max_waiting is not None:
                row["max_waiting"] = tier.max_waiting
            rows += (tier.name, json.dumps(row, sort_keys=True))
        args = (source, int(force), *rows)
        return bool(self._call(calls.PUBLISH_TIERS, args)[0])

    def published_tiers(self) -> tuple[str, Mapping[str, Tier]]:
        flat = self.connection.read("HGETALL", self.names.tiers)
        table = {name: json.loads(row) for name, row in mapping_of(flat).items()}
        tiers = {
            name: Tier(
                name,
                row["concurrency"],
                row["weight"],
                cast(QueueClass, row["queue_class"]),
                row.get("max_waiting"),
            )
            for name, row in table.items()
        }
        source = self.connection.read("HGET", self.names.clock, "tiers_source") if tiers else None
        return source or "", tiers

    def publish_tenant(
        self,
        tenant: str,
        tier: str | None,
        concurrency: int | str | None,
        *,
        keep: bool = False,
        ends_ms: int | None = None,
    ) -> int:
        number = concurrency if isinstance(concurrency, str) else calls.limit_text(concurrency)
        keep_ms = 0 if keep and ends_ms is None else 2 * self._cache_ms + 1000
        ends = "" if ends_ms is None else ends_ms
        args = (self._tenant_key(tenant), tier or "", number, keep_ms, ends)
        return int(self._call(calls.PUBLISH_TENANT, args))

    def published_tenant(self, tenant: str) -> str | None:
        record = self.connection.read("HMGET", self.names.tenant(tenant), "tier", "ends_ms")
        tier, ends_ms = cast("tuple[str | None, str | None]", record)
        if ends_ms is not None and int(ends_ms) <= self._server_ms():
            return self._rules.default_tier
        return tier

    def limit_queue(
        self, how: How, queue: str, numbers: QueueNumbers | None = None, parts: bool = False
    ) -> QueueRow | None:
        text = numbers.text if numbers else ""
        args = calls.queue_args(
            *(how, queue, queue_key(queue), parts, text),
            *(self._rules.lease_ms, self._rules.enforcement, self._now_text()),
        )
        row = self._call(calls.SET_QUEUE_LIMIT, args)
        return read_row(row) if row else None

    def queue_rows(self) -> Mapping[str, QueueRow]:
        flat = self.connection.read("HGETALL", self.names.queue_limits)
        rows = ((field.partition(" ")[::2], row) for field, row in mapping_of(flat).items())
        return {queue: read_row(row) for (kind, queue), row in rows if kind == "queue"}

    def config_version(self) -> int:
        return int(self.connection.read("HGET", self.names.clock, "version") or 0)

    def report_unresolved(self, failed: int, tenants: Mapping[str, Unresolved]) -> int:
        rows = (
            (self._tenant_key(tenant), str(each.failures), each.error, str(each.age_ms))
            for tenant, each in tenants.items()
        )
        args = [str(failed), self._now_text(), *chain.from_iterable(rows)]
        return int(self._call(calls.UNRESOLVED, args))

    def count(self, counter: str, amount: int = 1) -> None:
        self.connection.read("HINCRBY", self.names.counters, counter, amount)

    def counts(self) -> Mapping[str, int]:
        rows = mapping_of(self.connection.read("HGETALL", self.names.counters)).items()
        # The others are the rejections by key.
        return {name: int(total) for name, total in rows if not name.startswith("rejections ")}

    def close(self) -> None:
        """Close the connections."""
        self._listener.close()
        self.connection.close()

    def _tenant_key(self, tenant: str) -> str:
        return self.names.tenant(tenant).removeprefix(self.prefix)

    def _server_ms(self) -> int:
        if self._frozen_clock is not None:
            return self._frozen_clock()
        return time_ms(self.connection.read("TIME"))

    def _settle_args(self, leases: Iterable[Lease], verdict: Verdict) -> list[str]:
        ends = [Settle(lease.id, verdict) for lease in leases]
        return calls.settle_args(ends, self._rules, self._now_text())

    def _copies(self, request: SlotRequest) -> tuple[str, str, str, Milliseconds]:
        copy = request.copy or Copy("")
        return copy.message, copy.serial, request.next_serial, self._copy_keep_ms

    def _ask(self, function: str, *args: Any) -> Mapping[str, Any]:
        """Return the answer of a function that answers in JSON; empty if there is none."""
        answer = self._call(function, args)
        return cast("Mapping[str, Any]", json.loads(answer)) if answer else {}

    def _call(self, function: str, args: Sequence[Any]) -> Any:
        return self.connection.run(function, self.prefix, args)

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
