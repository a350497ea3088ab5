"""Renewals: keep the leases of one process alive, and detect lost memory before a claim.

Invariant: ``epoch`` changes only after Redis has registered all leases in the new epoch. A claim
carries the epoch, and gets no task if Redis is in another one. So the process's leases count before
it gets more. Redis detects a lost memory in a renewal. Before the first claim on a new connection,
the channel sends an empty renewal.

    held --after a third of a lease, or a claim's answer from another epoch--> renewed

A native thread renews. It sleeps while there is no lease, and lives as long as its session, so that
its connection and its loop under gevent are made once.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

from redis.exceptions import RedisError, ResponseError

from celery_fairness.errors import SettingsError
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import Held, LeaseTable
from celery_fairness.scheduler.types import Renewal, Rules
from celery_fairness.store.connection import Connection
from celery_fairness.store.partitions import Partitions, other_number
from celery_fairness.store.servers import Server, Servers
from celery_fairness.util.log_fields import about
from celery_fairness.util.threads import Bell, native_lock, start_thread
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: Leases that one call renews.
RENEW_AT_MOST = 250
#: Longest delay of an end to Redis without a worker's loop, in seconds.
SETTLE_SOON_SECONDS = 0.01
#: Pause after a renewal that failed, in seconds.
AGAIN_SECONDS = 0.25
#: The thread sleeps after this number of renewals without a lease, which is one lease in all.
IDLE_RENEWALS_AT_MOST = 3
#: The thread's longest sleep, in seconds.
SLEEP_SECONDS = 3600.0

#: Calls a function of the library with arguments, in a partition or in the home, and returns its
#: answer.
Call = Callable[..., Any]


class Renewals:
    """The renewals of one session.

    Args:
        client: A client of redis-py for the thread alone.
        connection: A connection of that client, so that the thread shares no lock.
        settle: Sends the table's ends to Redis.
        keep: Reports the queues in use, after each renewal.
    """

    def __init__(
        self,
        lease_table: LeaseTable,
        client: Any,
        connection: Connection,
        partitions: Partitions,
        servers: Servers,
        rules: Rules,
        settle: Callable[[Call], None],
        keep: Callable[[Call], None],
    ) -> None:
        self._lease_table, self._client, self._connection = lease_table, client, connection
        self._partitions, self._servers = partitions, servers
        self._rules, self._settle, self._keep = rules, settle, keep
        self._lease_ms = rules.lease_ms
        #: By partition, the epoch that has all leases of this process there; None before the first
        #: answer.
        self.epochs: list[int | None] = [None] * partitions.count
        #: Partitions whose epoch has changed.
        self._changed = set[int]()
        #: By partition, the time of the last complete renewal (monotonic seconds).
        self.renewed_at = [0.0] * partitions.count
        #: The time of Redis less the monotonic time of this host, in seconds.
        self._ahead_seconds = time.time() - time.monotonic()
        #: Whether the thread is alive.
        self.runs = False
        #: Returns the announcement of this process's worker; None without a worker.
        self.worker: Callable[[], str] | None = None
        #: The limits that the worker's app declares, as text.
        self.limits: Sequence[str] = ()
        self._announced = ""
        #: Called in the thread when Redis may have lost its memory.
        self.on_memory_lost: Callable[[], None] = lambda: None
        #: Called in the thread after leases ended while this process has their tasks.
        self.on_leases_lost: Callable[[], None] = lambda: None
        self._notices = Notices(logger)
        self._lock = native_lock()
        #: Held while the thread has taken ends from the table and Redis has not answered.
        self._settling = native_lock()
        self._bell = Bell()
        self._sleeps = self._settles_soon = self._at_once = self._closed = False
        #: Whether the thread looks for notes and ends by itself, without a wake-up.
        self._looks = False

    # -- from anywhere ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start to renew: the process has a lease."""
        if not self.runs:
            with self._lock:
                starts, self.runs = not self.runs, True
            if starts:
                start_thread(self._run)
        elif self._sleeps:
            self._bell.ring()

    @property
    def epoch(self) -> int | None:
        """The epoch of the first partition, which is in the memory that has the bindings."""
        return self.epochs[0]

    def saw_epoch(self, epoch: int, partition: int = 0) -> None:
        """Compare an answer's epoch with the stored one; renew all leases now if it differs."""
        if self.epochs[partition] is None:
            self.epochs[partition] = epoch
        elif epoch != self.epochs[partition]:
            self._changed.add(partition)
            self._at_once = True
            self.begin()
            self._bell.ring()

    def renew_at_once(self) -> None:
        """Renew now, because a server answers again."""
        self._at_once = True
        self._bell.ring()

    def settle_soon(self) -> None:
        """Let the thread send notes and ends within :data:`SETTLE_SOON_SECONDS`."""
        if not self._settles_soon:
            self._settles_soon = True
            if not self._looks:
                self._bell.ring()

    def announce(self, worker: Callable[[], str], limits: Sequence[str] = ()) -> None:
        """Announce what ``worker`` returns now and with each renewal, even without a lease.

        Args:
            worker: Returns the status of this process's worker.
            limits: The limits that its app declares, as text.
        """
        self.worker, self.limits, self._at_once = worker, limits, True
        self.begin()
        self._bell.ring()

    def read_clock(self, client: Any) -> None:
        """Compare the clock of Redis with this host's; if Redis does not answer, keep the last."""
        with contextlib.suppress(RedisError, OSError):
            seconds, microseconds = client.time()
            # A late answer makes this time earlier, so that no task expires too soon.
            self._ahead_seconds = seconds + microseconds / 1e6 - time.monotonic()

    def now(self) -> float:
        """Return the time of Redis by the last comparison, in seconds since 1970."""
        # Not by this host's clock: somebody may set it between two comparisons.
        return time.monotonic() + self._ahead_seconds

    def withdraw(self, call: Call) -> None:
        """End the worker's announcement."""
        worker, self._announced, self.worker = self._announced, "", None
        if worker:
            if self._partitions.are_several:
                # An installation that has another number by now does not change.
                with contextlib.suppress(SettingsError):
                    self.meet_home(call)
            call(calls.ANNOUNCE, calls.announce_args(self._rules, worker, 0, None))

    def await_settled(self) -> None:
        """Wait until Redis has the ends that the thread has taken from the table."""
        with self._settling:
            pass

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._bell.ring()

    def renew_batch(
        self, call: Call, batch: list[Held], epoch: int | None, partition: int
    ) -> Renewal[Held]:
        """Renew leases of one epoch of a partition."""
        leases = [(each.lease, each.key) for each in batch]
        args = calls.renew_args(leases, self._rules, epoch)
        answer = calls.renewal_of(batch, call(calls.RENEW, args, partition), epoch)
        for each in batch:
            each.epoch = answer.epoch
        return answer

    def sync_epoch(self, call: Call, partition: int = 0) -> None:
        """Read the epoch of a partition, before the first claim on a new connection.

        A producer connects too, and its user may not have the rights of a renewal.

        Raises:
            SettingsError: The installation has another number of partitions.
        """
        if not self._partitions.are_several:
            self.saw_epoch(self.meet_home(call))
            return
        args = calls.epoch_args(self._rules.lease_ms, None)
        self.saw_epoch(int(call(calls.EPOCH, args, partition)), partition)

    def meet_home(self, call: Call) -> int:
        """Return the epoch of the home, and check the number of partitions.

        Raises:
            SettingsError: The installation has another number of partitions.
        """
        place = self._servers.of(None).place
        args = calls.epoch_args(self._rules.lease_ms, self._partitions.count, place=place)
        try:
            return int(call(calls.EPOCH, args))
        except ResponseError as error:
            raise other_number(error, self._partitions.count, place) or error from None

    def renew(self, call: Call) -> None:
        """Renew all leases; if Redis lost its memory, the call registers them again."""
        held_there = defaultdict[int, list[Held]](list)
        for each in self._lease_table.held():
            held_there[each.partition].append(each)
        # Without a lease, only a changed epoch is read. Claims move the clock of a partition.
        first = self._changed | set(held_there) if self._partitions.are_several else {0}
        changes: list[tuple[bool, int, int]] = []
        changed_servers = set[Server]()
        try:
            for partition in sorted(self._partitions, key=lambda each: each not in first):
                server = self._servers.of(partition)
                # A server loses its memory as a whole, so it is reported once for its partitions.
                if partition not in first and server not in changed_servers:
                    continue
                with self._passes_over(partition):
                    begun = monotonic()
                    change = self._renew_partition(call, partition, held_there[partition])
                    if change:
                        changes.append(change)
                        changed_servers.add(server)
                    self._note_renewed(partition, begun)
        finally:
            if changes:
                self._report_changed_memory(changes)
        if self._partitions.are_several and self.worker:
            with self._passes_over(None):
                # A lost memory has no number. An announcement alone would make it one of one
                # partition.
                self.meet_home(call)
                self._announced = self.worker()
                self._announce(call, self._announced, None, None)

    @contextlib.contextmanager
    def _passes_over(self, partition: int | None) -> Iterator[None]:
        """Go on if the server of a partition does not answer, because the others have theirs.

        The leases of the partition are renewed as soon as its server answers.
        """
        try:
            yield
        except (RedisError, OSError) as error:
            if not self._servers.are_several:
                raise
            server = self._servers.of(partition)
            what = "the home" if partition is None else f"partition {partition}"
            text = str(error) or type(error).__name__
            self._notices.error(
                f"renew {server}", "leases of %s on %s wait: %s", what, server, text
            )

    def _note_renewed(self, partition: int, at: float) -> None:
        renewed_at = list(self.renewed_at)
        renewed_at[partition] = at
        self.renewed_at = renewed_at

    def _announce(self, call: Call, worker: str, epoch: int | None, partition: int | None) -> bool:
        """Report that the worker lives; return whether Redis lost its memory since ``epoch``."""
        limits = self.limits if worker else ()
        args = calls.announce_args(self._rules, worker, self._lease_ms, epoch, limits=limits)
        return calls.read_announce(call(calls.ANNOUNCE, args, partition))

    def _renew_partition(
        self, call: Call, partition: int, held: list[Held]
    ) -> tuple[bool, int, int] | None:
        """Renew the leases of a partition.

        Returns:
            None if its epoch has not changed. Otherwise whether its memory was lost, and how many
            leases were registered again and how many are held.
        """
        known, answers = self.epochs[partition], list[Renewal[Held]]()
        self._changed.discard(partition)
        by_epoch: dict[int | None, list[Held]] = defaultdict(list)
        for each in held:
            by_epoch[each.epoch].append(each)
        # Without a lease, the call only moves the clock.
        for epoch, known_there in (by_epoch or {known: []}).items():
            for start in range(0, max(1, len(known_there)), RENEW_AT_MOST):
                batch = known_there[start : start + RENEW_AT_MOST]
                answers.append(self.renew_batch(call, batch, epoch, partition))
        gone = [each for answer in answers for each in answer.gone]
        self._mark_lost([each for each in gone if not each.ended and not each.lost])
        epoch = answers[0].epoch
        changed, lost = known not in (None, epoch), False
        worker = ""
        if not self._partitions.are_several:
            worker = self._announced = self.worker() if self.worker else ""
        if worker or changed:
            # The new epoch is stored only after this call, so that a failed call runs again.
            lost = self._announce(call, worker, known, partition)
        # If the epoch changed between two calls, the next renewal registers the rest.
        self.epochs[partition] = epoch
        there = (each for each in self._lease_table.held() if each.partition == partition)
        if any(each.epoch != epoch for each in there):
            self._changed.add(partition)
            self._at_once = True
        if not changed:
            return None
        entered = [each for answer in answers for each in answer.entered if not each.ended]
        return lost, len(entered), len(held)

    def _report_changed_memory(self, changes: Sequence[tuple[bool, int, int]]) -> None:
        """Log what the partitions have lost, and report the change to the worker."""
        lost = any(each[0] for each in changes)
        self._log_changed_memory(lost, sum(e for _, e, _ in changes), sum(h for *_, h in changes))
        # Data other than leases may be older in any case.
        self.on_memory_lost()

    def _log_changed_memory(self, lost: bool, entered: int, held: int) -> None:
        if lost:
            logger.error(
                "Redis lost its memory: the waiting tasks, the delayed tasks and the dead letters "
                "that it held are gone; leases registered again: %d",
                entered,
            )
        elif entered:
            logger.error(
                "Redis has an older memory without all leases held here; registered again: %d",
                entered,
            )
        else:
            logger.info("Redis was restarted and kept its memory; leases held here: %d", held)

    def _mark_lost(self, lost: list[Held]) -> None:
        for each in lost:
            each.lost = True
            logger.error(
                "the lease %s has ended while its task runs: another worker may run it",
                each.lease,
                extra=about(queue=each.queue),
            )
        if lost:
            self.on_leases_lost()

    # -- in the thread ----------------------------------------------------------------------------

    def _call(self, verb: str, args: list[str], partition: int | None = None) -> Any:
        names = self._partitions.home if partition is None else self._partitions.names[partition]
        return self._connection.execute(verb, names.prefix, args)

    def _run(self) -> None:
        every = self._lease_ms / 3000
        _set_timeouts(self._client, every)
        idle_renewals, renew_at, not_before = 0, monotonic() + every, 0.0
        fails = False
        while not self._closed:
            self._sleeps = not self._looks and idle_renewals >= IDLE_RENEWALS_AT_MOST
            # A new lease either finds the thread awake or rings the bell.
            sleeps = self._sleeps and not self._has_work
            if self._looks:
                self._bell.wait(min(SETTLE_SOON_SECONDS, every))
                self._settle_what_is_new()
            elif sleeps:
                self._bell.wait(SLEEP_SECONDS)
                idle_renewals, renew_at = 0, monotonic() + every
            elif not self._at_once or monotonic() < not_before:
                self._bell.wait(renew_at - monotonic())
            # After the thread has stopped to look, settle_soon rings again.
            self._looks = self._looks or self._settles_soon
            if self._closed or monotonic() < (not_before if self._at_once else renew_at):
                continue
            if not (self._at_once or self._has_work):
                idle_renewals, renew_at = idle_renewals + 1, monotonic() + every
                continue
            self._at_once, idle_renewals = False, 0
            try:
                self.renew(self._call)
                renew_at = monotonic() + every
                if self.worker is not None and not self._servers.of(None).problem:
                    self.read_clock(self._client)
                self._keep(self._call)
                # While the worker makes a new connection, only this thread sends ends.
                with self._settling:
                    self._settle(self._call)
                if fails:
                    fails = False
                    logger.info("leases are renewed again")
            except Exception as error:  # noqa: BLE001 - leases would end
                fails = True
                text = error or type(error).__name__
                self._notices.error("renew", "leases could not be renewed: %s", text)
                renew_at = not_before = monotonic() + min(AGAIN_SECONDS, every)
        self._settle_what_is_new()
        self._connection.close()
        self.runs = False

    def _settle_what_is_new(self) -> None:
        """Send what came since the last look. If nothing came, the thread looks no more.

        While one short body follows another, a wake-up for each would cost the loop more time than
        the call itself.
        """
        if not self._settles_soon:
            self._looks = False
            return
        # This comes before the call, so that an end during the call is seen by the next look.
        self._settles_soon = False
        with self._settling:
            self._settle(self._call)

    @property
    def _has_work(self) -> bool:
        return (
            self.worker is not None or bool(self._lease_table.held()) or self._lease_table.has_ends
        )


def _set_timeouts(client: Any, seconds: float) -> None:
    """Limit the time that ``client`` waits for an answer, unless the user has set a limit."""
    options = client.connection_pool.connection_kwargs
    for name in ("socket_timeout", "socket_connect_timeout"):
        if options.get(name) is None:
            options[name] = seconds
