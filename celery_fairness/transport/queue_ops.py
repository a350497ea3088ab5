"""Operations of a channel on one queue: take a message, count, purge, declare, delete.

A queue declared with ``x-expires`` ends after this time without use: a declaration, a put, a claim
or a consumer. A use only moves the end later, so a shorter time applies after an earlier, longer
one is over. A queue declared without ``x-expires`` does not end. Tasks of an ended queue never come
back: a use ends the queue first, and claims and counts skip it.

A consumer keeps its queue for at least a lease. It reports the use while its loop turns. While it
holds a task, the thread that renews the lease reports it. Every use of a queue that expires, and
every consumer of fair queues, looks for an expired queue and ends a bounded part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from redis import Redis
from redis.exceptions import OutOfMemoryError as MemoryLimit

from celery_fairness.config.queue_policy import QUEUE_NAME
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import Held
from celery_fairness.scheduler.types import Claim, Claimed, Verdict
from celery_fairness.transport.envelope import message_of
from celery_fairness.transport.ring_merge import NO_RING, first_of
from celery_fairness.transport.session import Claimant
from celery_fairness.util.log_fields import about

logger = logging.getLogger("celery_fairness")

#: Longest time between two looks at expiring queues, in seconds.
LOOK_SECONDS = 60.0
#: How long a queue with a consumer is kept at least, in ms. The loop turns once a second.
CONSUMED_KEPT_MS = 5000
#: How often a claim is sent again while leases are registered again.
ENTERED_AT_MOST = 100

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object


class QueueOperationsMixin(_Channel):
    """The part of a fair channel that sends no request of its own on the polled connection."""

    claimed: set[str]
    fair_queues: list[str]
    acknowledged: Callable[[Any], None]
    home_is_away: Any
    #: The time of the next look at expiring queues (monotonic seconds).
    _look_at = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Fair queues that this channel has declared without ``x-expires``.
        self._endless: set[str] = set()
        #: The epoch of Redis that has this channel's bindings.
        self._bound_in: int | None = None
        super().__init__(*args, **kwargs)

    def _end(self, held: Held, verdict: Verdict) -> None:
        self.claimed.discard(held.lease)
        self.session.lease_table.end(held, verdict, begun=verdict is Verdict.DONE)

    def _read_message(self, task: Claimed, held: Held) -> Any:
        """Return the message of a claimed task; without a readable message, dead-letter it."""
        try:
            return self.Message(message_of(task), channel=self)
        except Exception as error:  # noqa: BLE001 - a user's type may raise anything
            # The error's text may contain parts of the message, so only its type is logged.
            self._make_dead_letter(held, type(error).__name__)
            return None

    def _make_dead_letter(self, held: Held, reason: str) -> None:
        logger.error(
            "the task of lease %s is a dead letter of queue %s: its message cannot be read: %s",
            held.lease,
            held.queue,
            reason,
            extra=about(queue=held.queue),
        )
        self._end(held, Verdict.UNREADABLE)

    def dead_letter(self, message: Any, held: Held, reason: str) -> None:
        """Make a delivered message a dead letter; a worker could not read it."""
        self._make_dead_letter(held, reason)
        self.acknowledged(message)

    def _take(self, queue: str) -> Any:
        """Claim one message and return it, or None."""
        self._use([queue])
        claimant = self.session.borrow_claimant()
        found = None
        try:
            for partition in self._in_turn(claimant, queue):
                while (
                    found is None and (claim := self._claim_now(claimant, queue, partition)).tasks
                ):
                    for task, held in self.session.enter(claimant, claim, partition=partition):
                        if found is None and task.queue == queue:
                            self.claimed.add(held.lease)
                            found = self._read_message(task, held)
                        else:
                            # It belongs to the lost answer of an earlier channel.
                            self.session.lease_table.end(held, Verdict.HEAD, begun=False)
        finally:
            self.session.return_claimant(claimant)
        return found

    def _get(self, queue: str) -> Any:
        if not self.is_fair(queue):
            return super()._get(queue)
        message = self._take(queue)
        if message is None:
            raise Empty
        return message._raw

    def _in_turn(self, claimant: Claimant, queue: str) -> Sequence[int]:
        """Return the partitions that have a task of ``queue`` to start, in their order."""
        session, rings = self.session, {}
        if not session.partitions.are_several:
            return (0,)
        session.flush()
        args = calls.claim_args(
            *(claimant.owner, 0, 0, [queue], session.rules), is_first=True, ring=NO_RING
        )
        for partition in session.partitions:
            with session.passes_over_away():
                answer = session.call(calls.CLAIM, args, partition)
                claim = calls.read_claim(answer, in_partition=True)
                rings[partition] = claim.ring["rings"][queue]
        firsts = {partition: first_of(ring) for partition, ring in rings.items()}
        there = {partition: first for partition, first in firsts.items() if first is not None}
        return sorted(there, key=lambda partition: there[partition])

    def _claim_now(self, claimant: Claimant, queue: str, partition: int) -> Claim:
        # A message that was acknowledged just now may hold the slot.
        self.session.flush()
        self.session.sync_epoch(partition)
        claimant.mark_sent(partition)
        for _ in range(ENTERED_AT_MOST):
            epoch = self.session.renewals.epochs[partition]
            args = calls.claim_args(
                *(claimant.owner, claimant.numbers[partition], 1, [queue], self.session.rules),
                epoch=epoch,
            )
            claim = calls.read_claim(self.session.call(calls.CLAIM, args, partition))
            if epoch in (None, claim.epoch):
                claimant.mark_answered(partition)
                break
            # The leases are registered again before the next try.
            self.session.renewals.saw_epoch(claim.epoch, partition)
            sleep(claim.sleep_ms / 1000)
        return claim

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Take one message; without acks, a delivery is the end."""
        if not self.is_fair(queue):
            return super().basic_get(queue, no_ack=no_ack, **kwargs)
        message = self._take(queue)
        if message is not None and not no_ack:
            self.qos.append(message, message.delivery_tag)
        elif message is not None:
            held = self.session.lease_table.get(message.delivery_tag)
            if held is not None:
                self._end(held, Verdict.DONE)
                self.session.flush()
        return message

    # -- queues -----------------------------------------------------------------------------------

    def _size(self, queue: str) -> int:
        plain = int(self.at_home(partial(super()._size, queue)) or 0)
        if not self.is_fair(queue):
            return plain
        return plain + self._waiting(queue)

    def _waiting(self, queue: str) -> int:
        """Return how many tasks wait in a fair queue, including delayed tasks.

        Those of a server that is away do not count, because each declaration of a queue counts.
        """
        args, session, waiting = calls.size_args(queue), self.session, 0
        for partition in session.partitions:
            with session.passes_over_away():
                waiting += sum(map(int, session.call(calls.SIZE, args, partition)))
        return waiting

    def _purge(self, queue: str) -> int:
        purged = int(super()._purge(queue))
        if self.is_fair(queue):
            for partition in self.session.partitions:
                while gone := int(self.session.call(calls.PURGE, [queue], partition)):
                    purged += gone
        return purged

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> Any:
        if self.is_fair(queue):
            self._purge(queue)
        return super()._delete(queue, exchange, *args, **kwargs)

    # -- queues that expire -----------------------------------------------------------------------

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        if self.is_fair(queue):
            QUEUE_NAME.read("queue", queue)
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        if not self.is_fair(queue):
            return
        if queue in self._expires:
            self._endless.discard(queue)
            self._report_use({queue: self._expires[queue]}, declared=True)
        elif queue not in self._endless:
            # Another process may have declared it with ``x-expires``. Producers declare often.
            self._report_use({queue: 0}, declared=True)
            self._endless.add(queue)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kw: Any) -> Any:
        """Declare a queue; a passive declaration counts its tasks, and is not a use.

        Raises:
            ChannelError: A passive declaration of a missing queue.
        """
        if not passive or queue is None or not self.is_fair(queue):
            return super().queue_declare(queue, passive=passive, **kw)
        if not self._has_queue(queue, **kw):
            raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "queue_declare", 404)
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def _use(self, queues: Iterable[str]) -> None:
        """Report the use of ``queues`` if they expire."""
        if self._expires:
            kept_ms = {name: self._expires[name] for name in queues if name in self._expires}
            fair = {name: kept for name, kept in kept_ms.items() if self.is_fair(name)}
            if fair:
                self._report_use(fair)

    def _look(self, kept_ms: dict[str, int], declared: bool = False) -> float:
        """Report the queues in use, and end a bounded part of an expired one.

        Returns:
            The time of the next look, which is now if there is more to end.
        """
        wait_ms = self.session.use(self.session.call, kept_ms, declared)
        waits = [kept / 3000 for kept in kept_ms.values() if kept]
        if wait_ms >= 0:
            waits.append(wait_ms / 1000)
        return monotonic() + min([LOOK_SECONDS, *waits])

    def _report_use(self, kept_ms: dict[str, int], declared: bool = False) -> None:
        # Consumed queues may need an earlier report than these.
        self._look_at = min(self._look_at, self._look(kept_ms, declared))

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Consume from ``queue``, and keep it."""
        consumer = super().basic_consume(queue, *args, **kwargs)
        kept_ms = self._note_consumed().get(queue)
        if kept_ms:
            self._report_use({queue: kept_ms})
        return consumer

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        cancelled = super()._basic_cancel(consumer_tag)
        if queue in self._expires and queue not in self._active_queues:
            self.session.consumed.pop(queue, None)
        return cancelled

    def _note_consumed(self) -> dict[str, int]:
        """Return the ms to keep each consumed queue, 0 for no end; store them in the session."""
        fair = self.fair_queues
        kept_ms = {
            name: max(self._expires[name], CONSUMED_KEPT_MS, self.session.rules.lease_ms)
            for name in fair
            if name in self._expires
        }
        if kept_ms:
            self.session.consumed.update(kept_ms)
        return kept_ms | {name: 0 for name in fair if name in self._endless}

    def maybe_refresh_binding_expiry(self) -> None:
        """Keep consumed queues and end expired ones; kombu calls it once a second."""
        try:
            if not self.home_is_away:
                super().maybe_refresh_binding_expiry()
        except MemoryLimit as error:
            # kombu would log a traceback every second.
            self.session.notices.error(
                "full",
                "%s is full: new tasks are rejected, and waiting ones start; raise its maxmemory: "
                "%s",
                self.session.address,
                error,
            )
        if self.fair_queues:
            self._bind_in_new_memory()
        if self.fair_queues and monotonic() >= self._look_at:
            self._look_at = self._look(self._note_consumed())

    def _bind_in_new_memory(self) -> None:
        epoch = self.session.renewals.epoch
        if self._bound_in not in (None, epoch):
            self.restore_bindings()
        self._bound_in = epoch

    def restore_bindings(self, exchange: str | None = None) -> bool:
        """Restore the bindings of this connection's fair queues, because Redis may have lost them.

        kombu does not restore them, because it has declared them before.

        Args:
            exchange: Restore only bindings to this exchange.

        Returns:
            Whether there was a binding to restore.
        """
        found = False
        for (queue, name, routing_key), arguments in list(self.state.bindings.items()):
            kind = self.typeof(name)
            if exchange in (None, name) and kind.type != "fanout" and self.is_fair(queue):
                meta = kind.prepare_bind(queue, name, routing_key, arguments)
                self._queue_bind(name, *meta)
                found = True
        return found

    def _has_queue(self, queue: str, **_: Any) -> bool:
        # kombu's own client adds no prefix to the names of this command.
        names = [
            self.global_keyprefix + self._q_for_pri(queue, each) for each in self.priority_steps
        ]
        if Redis(connection_pool=self.pool).exists(*names):
            return True
        return self.is_fair(queue) and self._waiting(queue) > 0
