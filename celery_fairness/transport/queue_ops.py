"""What a channel does with one queue at once: take a message, count, purge, delete.

A queue declared with ``x-expires`` ends when for so long nobody has declared it, put into it, taken
from it or consumed it. A use only moves the end away, so a shorter time holds when a longer one of
before is over; a queue that is declared without ``x-expires`` ends no more. What waited in a queue
that has ended does not come back: a use ends it first, and claims and counts pass it over.

Who consumes a queue keeps it for a lease at least, and says so while its loop turns or while it
holds a task, whose lease is renewed by a thread. Whoever uses a queue that expires, and every
consumer of fair queues, looks for one whose time is over, and ends a bounded part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from queue import Empty
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claim, Claimed, Verdict
from celery_fairness.transport.book import Held
from celery_fairness.transport.envelope import message_of
from celery_fairness.transport.session import Claimant

logger = logging.getLogger("celery_fairness")

#: Longest time between two looks at the queues that expire, in seconds.
LOOK_SECONDS = 60.0
#: How long a queue with a consumer is kept at least, as a lease is: the loop turns once a second.
CONSUMED_KEPT_MS = 5000
#: How often a claim is sent again while what is held is entered again.
ENTERED_AT_MOST = 100

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object


class QueueOperationsMixin(_Channel):  # type: ignore[misc]  # it stands before a class of kombu's
    """The part of a fair channel that sends no request of its own on the polled connection."""

    claimed: set[str]
    fair_queues: list[str]
    #: When to look at the queues that expire.
    _look_at = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Fair queues that this channel has declared without an end.
        self._endless: set[str] = set()
        #: In which memory of Redis lies what this channel has bound.
        self._bound_in: int | None = None
        super().__init__(*args, **kwargs)

    def _end(self, held: Held, verdict: Verdict) -> None:
        self.claimed.discard(held.lease)
        self.home.book.end(held, verdict, begun=verdict is Verdict.DONE)

    def _read_message(self, task: Claimed, held: Held) -> Any:
        """Return the message of a claimed task; where it cannot be read, a dead letter and None."""
        try:
            return self.Message(message_of(task), channel=self)
        except Exception as error:  # noqa: BLE001 - types that users register may raise anything
            # Its text may tell what is in the message.
            logger.error(
                "the task of lease %s is a dead letter of queue %s: its message cannot be read: %s",
                held.lease,
                held.queue,
                type(error).__name__,
            )
            self._end(held, Verdict.UNREADABLE)
            return None

    def _take(self, queue: str) -> Any:
        """Claim one message and return it, None where there is none."""
        self._use([queue])
        claimant = self.home.borrow_claimant()
        found = None
        try:
            while found is None and (claim := self._claim_now(claimant, queue)).tasks:
                for task, held in self.home.enter(claimant, claim):
                    if found is None and task.queue == queue:
                        self.claimed.add(held.lease)
                        found = self._read_message(task, held)
                    else:
                        # Of an answer that a channel before this one has lost.
                        self.home.book.end(held, Verdict.HEAD, begun=False)
        finally:
            self.home.return_claimant(claimant)
        return found

    def _get(self, queue: str) -> Any:
        if not self.is_fair(queue):
            return super()._get(queue)
        message = self._take(queue)
        if message is None:
            raise Empty
        return message._raw

    def _claim_now(self, claimant: Claimant, queue: str) -> Claim:
        # What was acknowledged just now may hold the slot.
        self.home.flush()
        self.home.meet()
        claimant.sends()
        for _ in range(ENTERED_AT_MOST):
            epoch = self.home.renewals.epoch
            args = calls.claim_args(
                *(claimant.owner, claimant.number, 1, [queue], self.home.rules), epoch=epoch
            )
            claim = calls.read_claim(self.home.call(calls.CLAIM, args))
            if epoch in (None, claim.epoch):
                claimant.number += 1
                break
            # What is held is entered again first.
            self.home.renewals.hears(claim.epoch)
            sleep(claim.sleep_ms / 1000)
        return claim

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Take one message; without acks, taking it is the end."""
        if not self.is_fair(queue):
            return super().basic_get(queue, no_ack=no_ack, **kwargs)
        message = self._take(queue)
        if message is not None and not no_ack:
            self.qos.append(message, message.delivery_tag)
        elif message is not None:
            held = self.home.book.get(message.delivery_tag)
            if held is not None:
                self._end(held, Verdict.DONE)
                self.home.flush()
        return message

    # -- queues -----------------------------------------------------------------------------------

    def _size(self, queue: str) -> int:
        plain = int(super()._size(queue))
        if not self.is_fair(queue):
            return plain
        return plain + self._waiting(queue)

    def _waiting(self, queue: str) -> int:
        """Return how many tasks wait in a fair queue, those for their time included."""
        return sum(map(int, self.home.call(calls.SIZE, calls.size_args(queue))))

    def _purge(self, queue: str) -> int:
        purged = int(super()._purge(queue))
        if self.is_fair(queue):
            while gone := int(self.home.call(calls.PURGE, [queue])):
                purged += gone
        return purged

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> Any:
        if self.is_fair(queue):
            self._purge(queue)
        return super()._delete(queue, exchange, *args, **kwargs)

    # -- queues that expire -----------------------------------------------------------------------

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        if not self.is_fair(queue):
            return
        if queue in self._expires:
            self._endless.discard(queue)
            self._tell({queue: self._expires[queue]}, declared=True)
        elif queue not in self._endless:
            # Another process may have declared it with an end; producers declare often.
            self._tell({queue: 0}, declared=True)
            self._endless.add(queue)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kw: Any) -> Any:
        """Declare a queue; a passive declaration counts what waits, and is no use of the queue.

        Raises:
            ChannelError: A passive declaration of a queue that is not there.
        """
        if not passive or queue is None or not self.is_fair(queue):
            return super().queue_declare(queue, passive=passive, **kw)
        if not self._has_queue(queue, **kw):
            raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "queue_declare", 404)
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def _use(self, queues: Iterable[str]) -> None:
        """Say that ``queues`` are in use, where they expire."""
        if self._expires:
            kept_ms = {name: self._expires[name] for name in queues if name in self._expires}
            fair = {name: kept for name, kept in kept_ms.items() if self.is_fair(name)}
            if fair:
                self._tell(fair)

    def _look(self, kept_ms: dict[str, int], declared: bool = False) -> float:
        """Say what is in use, and end a bounded part of what is not.

        Returns:
            When to look again, now where there is more to end.
        """
        wait_ms = self.home.use(self.home.call, kept_ms, declared)
        waits = [kept / 3000 for kept in kept_ms.values() if kept]
        if wait_ms >= 0:
            waits.append(wait_ms / 1000)
        return monotonic() + min([LOOK_SECONDS, *waits])

    def _tell(self, kept_ms: dict[str, int], declared: bool = False) -> None:
        # What is consumed may have to be told sooner than what is used here.
        self._look_at = min(self._look_at, self._look(kept_ms, declared))

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Consume from ``queue``, and keep it."""
        consumer = super().basic_consume(queue, *args, **kwargs)
        kept_ms = self._note_consumed().get(queue)
        if kept_ms:
            self._tell({queue: kept_ms})
        return consumer

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        cancelled = super()._basic_cancel(consumer_tag)
        if queue in self._expires and queue not in self._active_queues:
            self.home.consumed.pop(queue, None)
        return cancelled

    def _note_consumed(self) -> dict[str, int]:
        """Return for how long each queue that is consumed is kept, 0 for ever; tell the home."""
        fair = self.fair_queues
        kept_ms = {
            name: max(self._expires[name], CONSUMED_KEPT_MS, self.home.rules.lease_ms)
            for name in fair
            if name in self._expires
        }
        if kept_ms:
            self.home.consumed.update(kept_ms)
        return kept_ms | {name: 0 for name in fair if name in self._endless}

    def maybe_refresh_binding_expiry(self) -> None:
        """Keep what is consumed and end what nobody uses; kombu calls it once a second."""
        super().maybe_refresh_binding_expiry()
        if self.fair_queues:
            self._bind_in_new_memory()
        if self.fair_queues and monotonic() >= self._look_at:
            self._look_at = self._look(self._note_consumed())

    def _bind_in_new_memory(self) -> None:
        epoch = self.home.renewals.epoch
        if self._bound_in not in (None, epoch):
            self.bind_again()
        self._bound_in = epoch

    def bind_again(self, exchange: str | None = None) -> bool:
        """Bind fair queues as this connection has bound them, for Redis may have lost it.

        kombu does not: it remembers what it has declared.

        Args:
            exchange: To this one alone.

        Returns:
            Whether there was something to bind.
        """
        found = False
        for (queue, name, routing_key), arguments in list(self.state.bindings.items()):
            kind = self.typeof(name)
            if exchange in (None, name) and kind.type != "fanout" and self.is_fair(queue):
                meta = kind.prepare_bind(queue, name, routing_key, arguments)
                self._queue_bind(name, *meta)
                found = True
        return found

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        if super()._has_queue(queue, **kwargs):
            return True
        return self.is_fair(queue) and self._waiting(queue) > 0
