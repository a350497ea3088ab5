"""The channel: kombu's Redis channel whose queues are claimed fairly.

Fanout queues, and the queues of replies to remote control, stay stock. For the others it sends on
the connection that kombu polls, in turn:

    claim    while it may find something: one round trip for many tasks, and with it the ends of
             those that ran; it asks for as many as there are free places. Of the queues that have
             tasks the one that was served longest ago goes first, unless the transport option
             ``queue_order_strategy`` says otherwise
    BRPOP    of the queues' bells, when a claim found nothing: of what comes, and where nothing was
             passed over also of what others leave

An answer that is lost with its connection is asked for again under the same number.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from queue import Empty
from time import monotonic
from typing import Any

from kombu.transport import redis as stock
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from kombu.utils.scheduling import priority_cycle, round_robin_cycle, sorted_cycle
from redis.exceptions import ResponseError

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claim, Claimed, Settle, Verdict
from celery_fairness.store.connection import pack
from celery_fairness.store.library import LibraryUnusable, is_missing, library
from celery_fairness.store.readiness import ServerNotReady
from celery_fairness.store.spin import Spin
from celery_fairness.transport.book import Held
from celery_fairness.transport.connection_key import PlaceMixin
from celery_fairness.transport.envelope import kind_of
from celery_fairness.transport.migration import adopt
from celery_fairness.transport.publish import PublishMixin
from celery_fairness.transport.qos import FairQoS
from celery_fairness.transport.queue_ops import QueueOperationsMixin
from celery_fairness.transport.scan_cursor import ScanCursor
from celery_fairness.transport.session import SETTLE_AT_MOST, Claimant
from celery_fairness.transport.wakeups import WakeupsMixin

logger = logging.getLogger("celery_fairness")

#: How the queues end that Celery's remote control is answered on.
REPLY_SUFFIX = ".reply.celery.pidbox"
#: Shortest wait for a bell, in seconds: 0 would be for ever.
SHORTEST_WAIT_SECONDS = 0.001
#: A server ends a BRPOP so much after its time, in seconds: it looks ten times a second.
LATE_SECONDS = 0.1
#: How often the plain lists of stock producers are looked at, in seconds.
ADOPT_SECONDS = 1.0
#: When something is due sooner than that, it is asked for so often, in seconds.
NAP_SECONDS = 0.01
#: A server that takes no commands now is asked again so often, in seconds.
NOT_READY_SECONDS = 0.5


class FairMixin(PlaceMixin, PublishMixin, QueueOperationsMixin, WakeupsMixin):
    """What makes a Redis channel of kombu fair; stands before it in the bases."""

    QoS = FairQoS
    _claim: list[Settle] | None = None
    #: What it claims fills the places of the worker's pool: its consumer is that of the tasks.
    serves_worker = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Leases that this channel delivered.
        self.claimed: set[str] = set()
        self._claimant: Claimant | None = None
        self._spin = Spin()
        self._claim_wants = 0
        self._claim_epoch: int | None = None
        #: The socket on which Redis was last asked for its epoch.
        self._met: Any = None
        self._asleep_until = 0.0
        self._napping = False
        self._adopt_at = 0.0
        #: What is consumed: queues that are claimed from, and those of the stock transport.
        self.fair_queues: list[str] = []
        self.stock_queues: list[str] = []
        #: Of which the open wait hears nothing: there is no room for them.
        self.deaf_to: list[str] = []
        #: The open request is no stock one.
        self._is_ours = False
        #: By queue, whether without acks, and who takes its messages.
        self._takers: dict[str, tuple[bool, Callable[[Any], None]]] = {}
        super().__init__(*args, **kwargs)

    # -- which queues -----------------------------------------------------------------------------

    @cached_property
    def looks(self) -> ScanCursor:
        """What its claims pass over."""
        return ScanCursor(self.home.kinds)

    def is_fair(self, queue: str) -> bool:
        """Say whether a queue is claimed from."""
        return queue not in self._fanout_queues and not queue.endswith(REPLY_SUFFIX)

    @property
    def _is_strict(self) -> bool:
        """Whether a queue is served only if nothing may start in the queues before it."""
        return type(self._queue_cycle) in (priority_cycle, sorted_cycle)

    def want(self) -> int:
        """Return how many tasks this channel may claim now."""
        wanted = super().want()
        if self._is_strict or type(self._queue_cycle) is round_robin_cycle:
            return wanted
        # A class of the user's: only its code knows which queue comes after the one served.
        return min(wanted, 1)

    def _update_queue_cycle(self) -> None:
        super()._update_queue_cycle()
        queues = self.active_queues
        self.fair_queues = [queue for queue in queues if self.is_fair(queue)]
        self.stock_queues = [queue for queue in queues if not self.is_fair(queue)]

    # -- claiming ---------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, *args: Any, **kw: Any) -> Any:
        """Consume from ``queue``; without acks, a delivery is the end."""
        self._takers[queue] = no_ack, callback
        self._asleep_until = 0.0
        return super().basic_consume(queue, no_ack, callback, *args, **kw)

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Cancel a consumer: it gets nothing more, also of what is here already."""
        self._takers.pop(self._tag_to_queue.get(consumer_tag, ""), None)
        if self._closing:
            # kombu would wait for the end of a read, and the channel has no connection then.
            return self._basic_cancel(consumer_tag)
        return super().basic_cancel(consumer_tag)

    def _brpop_start(self, timeout: float | None = None) -> None:
        if not self.fair_queues:
            self._is_ours = False
            super()._brpop_start(timeout)
            return
        queues = self._queue_cycle.consume(len(self.fair_queues) + len(self.stock_queues))
        fair, deaf_to = self.rooms.divide([each for each in queues if each in self.fair_queues])
        want = self.want()
        now = monotonic()
        if self._napping or not (want or self.stock_queues):
            # A signal may have stopped the claims since kombu asked whether there is a place.
            return
        if want and now >= self._adopt_at:
            self._adopt(fair)
        asleep = self._asleep_until - now
        self.deaf_to = []
        if want and asleep <= 0:
            self._send_claim(fair, want)
        else:
            longest = (self.brpop_timeout if timeout is None else timeout) or 1.0
            wait = min(longest, max(asleep - LATE_SECONDS, SHORTEST_WAIT_SECONDS))
            self.send_wait(fair if want else [], deaf_to, wait)
        self._in_poll = self.client.connection
        self._is_ours = True
        self._brpop_sent_at = now

    def _adopt(self, queues: list[str]) -> None:
        """Take over what producers on the stock transport have sent."""
        if adopt(self, queues):
            self._asleep_until = 0.0
        else:
            self._adopt_at = monotonic() + ADOPT_SECONDS

    def _sleep(self, claim: Claim) -> None:
        """Ask again after a time, or when a bell rings."""
        seconds = self.looks.hear(claim)
        if seconds and (seconds < LATE_SECONDS or claim.passed) and not self.stock_queues:
            # Here and not where requests are sent: the hub reads its timers before. After it has
            # passed something over it does not hear every bell that rings for others.
            short = min(seconds, NAP_SECONDS)
            self._napping = not self.connection.cycle.nap(short, self._wake_up)
            if seconds < LATE_SECONDS:
                seconds = 0.0
        self._asleep_until = monotonic() + seconds if seconds else 0.0

    def _wake_up(self) -> None:
        self._napping = False

    @property
    def is_napping(self) -> bool:
        """Whether nothing is sent for a while."""
        return self._napping

    @contextlib.contextmanager
    def waits_for_server(self) -> Iterator[None]:
        """Ask later, in place of a new consumer, where the server takes no commands now.

        What was claimed stays with this process, and its bodies run on.
        """
        try:
            yield
        except ServerNotReady as error:
            if self._closing or not self.fair_queues:
                raise
            self.home.notices.error(
                "not ready",
                "%s takes no commands now, tasks wait until it does: %s",
                self.home.address,
                error,
            )
            self._napping = not self.connection.cycle.nap(NOT_READY_SECONDS, self._wake_up)

    def _meet(self) -> None:
        """Hear in which epoch Redis is: behind a new connection may be an older memory."""
        connection = self.client.connection
        if self._met is not None and self._met is connection._sock:
            return

        def call(verb: str, args: list[str]) -> Any:
            connection.send_packed_command([self._command(verb, args)])
            return self._read()

        try:
            self.home.renewals.meet(call)
        except ResponseError as error:
            if not is_missing(error):
                raise
            self._load_library()
            self.home.renewals.meet(call)
        self._met = connection._sock

    def _send_claim(self, queues: list[str], want: int) -> None:
        self._meet()
        home = self.home
        claimant = self.claimant()
        ends = home.book.take_ends(SETTLE_AT_MOST)
        owner, number, epoch = claimant.owner, claimant.number, home.renewals.epoch
        claim = calls.claim_args(
            *(owner, number, want, queues, home.rules),
            passing=self.looks.ask(home.book, self.rooms, self._is_strict),
            epoch=epoch,
            ends=ends,
        )
        self._claim, self._claim_wants, self._claim_epoch = ends, want, epoch
        home.asked(want, self.serves_worker)
        claimant.sends()
        try:
            self.client.connection.send_packed_command([self._command(calls.CLAIM, claim)])
        except BaseException:
            self._claim_over()
            raise

    def _load_library(self) -> None:
        """Load the library that somebody deleted.

        Raises:
            ServerNotReady: The server cannot have it now; a running worker waits until it can.
        """
        try:
            self.home.load_library()
        except LibraryUnusable as error:
            raise ServerNotReady(str(error)) from None

    def _command(self, verb: str, args: list[str]) -> bytes:
        return pack(("FCALL", library().function(verb), "1", self.home.prefix, *args))

    def _claim_over(self) -> None:
        """The open request is answered or lost; what it told and was not heard is told again."""
        ends, self._claim = self._claim or [], None
        wanted, self._claim_wants = self._claim_wants, 0
        self.home.book.give_back(ends)
        self.home.asked(-wanted, self.serves_worker)

    def spin(self) -> None:
        """Wait a moment for the answer to an open claim, where nothing else is to be done."""
        if self._in_poll is not None and self._claim is not None and self.home.body_blocks_loop:
            self._spin.wait(self._in_poll)

    def _brpop_read(self, **options: Any) -> Any:
        if not self._is_ours:
            return super()._brpop_read(**options)
        if not self._in_poll and not self.client.connection.can_read(0):
            # Nobody is asked, and nobody has said anything: a read would wait for ever.
            raise Empty
        try:
            if self._claim is None or self._claimant is None:
                return self._read_wait()
            waiting = None
            with self.waits_for_server():
                waiting = self._read_claim(self._claimant)
            if not waiting:
                raise Empty
            self._deliver_all(waiting)
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        if self.home.body_blocks_loop and self.want():
            # Its body is over: Redis answers while the loop turns.
            with self.waits_for_server():
                self._brpop_start()
        return True

    def _read_wait(self) -> bool:
        answer = None
        with self.waits_for_server():
            answer = self._read()
        self._asleep_until = 0.0
        if not answer:
            raise Empty
        key = bytes_to_str(answer[0])
        if key.startswith(self.home.prefix):
            raise Empty
        queue = key.removeprefix(self.global_keyprefix).rsplit(self.sep, 1)[0]
        self._queue_cycle.rotate(queue)
        self.connection._deliver(loads(bytes_to_str(answer[1])), queue)
        return True

    def _read_claim(self, claimant: Claimant) -> list[tuple[Claimed, Held]]:
        home = self.home
        try:
            answer = self._read()
            # Its ends were heard.
            self._claim = []
        except ResponseError as error:
            if not is_missing(error):
                raise
            self._load_library()
            raise Empty from None
        finally:
            self._claim_over()
        claim = calls.read_claim(answer)
        # In another epoch it was not served, nor the answer told that was lost with a connection.
        claimant.number += self._claim_epoch in (None, claim.epoch)
        self._sleep(claim)
        for task in claim.tasks:
            # A queue that was asked in vain keeps its turn: else empty queues would use up turns.
            self._queue_cycle.rotate(task.queue)
        # All are held before one is delivered: a body may run here and take its time.
        return home.enter(claimant, claim, self.serves_worker)

    def _deliver_all(self, waiting: list[tuple[Claimed, Held]]) -> None:
        self.claimed.update(held.lease for _, held in waiting)
        for position, (task, held) in enumerate(waiting):
            try:
                self._deliver(task, held)
            except Exception:
                # What was delivered is its consumer's, also where that failed.
                for _, left in waiting[position + 1 :]:
                    self._end(left, Verdict.HEAD)
                raise

    def _deliver(self, task: Claimed, held: Held) -> None:
        unwanted = self._closing or self.home.stopping or task.queue not in self._takers
        if held.ended or held.lost or unwanted:
            self._end(held, Verdict.HEAD)
            return
        no_ack, callback = self._takers[task.queue]
        message = self._read_message(task, held)
        if message is None:
            return
        kinds = self.home.kinds
        kind = kind_of(message.headers) if kinds.are_limited or self.looks.in_vain else ""
        if not kinds.take(kind):
            self._end(held, Verdict.HEAD)
            return
        self.looks.found(kind)
        if no_ack:
            self._end(held, Verdict.DONE)
        else:
            self.qos.append(message, held.lease)
        callback(message)

    def _on_connection_disconnect(self, connection: Any) -> None:
        if self._in_poll is connection and self._claim is not None:
            self._claim_over()
        super()._on_connection_disconnect(connection)

    def acknowledged(self, message: Any) -> None:
        """A worker's request has acknowledged a claimed message; from any thread."""
        message._state = "ACK"
        self.claimed.discard(message.delivery_tag)
        self.qos._quick_ack(message.delivery_tag)

    def leave_to_others(self, message: Any) -> bool:
        """Give back a claimed task that this process does not know, and claim no more of its kind.

        Returns:
            Whether it was given back. A message that does not say its kind where Redis reads it
            would come again at once, and one that was not claimed is not ours.
        """
        home, kind = self.home, kind_of(message.headers)
        held = home.book.get(message.delivery_tag) if kind else None
        if held is None:
            return False
        if home.kinds.pass_over(kind):
            logger.error(
                "tasks %s are not known to this worker: those in queue %s wait for a worker that "
                "knows them; import their module here, or correct their name where they are sent",
                message.headers["task"],
                held.queue,
            )
        home.book.end(held, Verdict.HEAD, begun=False)
        self.acknowledged(message)
        return True

    def _read(self) -> Any:
        try:
            return self.client.connection.read_response()
        except self.connection_errors:
            self.client.connection.disconnect()
            raise

    def close(self) -> None:
        """Close the channel; an open request is answered, to it or to the next under its number.

        What is answered here goes back to its place, and nothing more is asked.
        """
        self._closing = True
        if self._claimant is not None and self._claimant.process != os.getpid():
            # A forked child: the socket and the answer on it are its parent's.
            self._claim = self._claimant = self._in_poll = None
        if self._claim is not None:
            with contextlib.suppress(Empty, ResponseError, *self.connection_errors):
                self._brpop_read()
            # Where nobody could read it: its ends are told again.
            self._claim_over()
        elif self._is_ours:
            # Nothing but a bell can come.
            self._in_poll = None
        claimant, self._claimant = self._claimant, None
        if claimant is not None:
            self.home.return_claimant(claimant)
        super().close()
        if "home" in vars(self):
            self.home.flush()


class FairChannel(FairMixin, stock.Channel):  # type: ignore[misc]  # as kombu does: untyped
    """A channel of one Redis."""
