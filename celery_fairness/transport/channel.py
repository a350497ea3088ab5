"""The channel: kombu's Redis channel whose queues are claimed fairly.

Fanout queues, and the queues for replies to remote control, stay stock. For other queues the
channel sends one of two commands on the connection that kombu polls:

    claim    while there may be tasks to start. One round trip requests a task for each free place,
             and carries the ends of earlier tasks. The queue that was served longest ago goes
             first, unless the transport option ``queue_order_strategy`` sets another order
    BRPOP    on the queues' wake-up lists, after a claim without tasks. One list is for new tasks.
             If the claim skipped no task, the other list is for tasks that other workers left

A worker without free places for a queue does not wait on that queue's lists, which are for workers
with room. If it gets room while it sleeps, it wakes itself through a list of its own.

If a connection breaks before its answer, the channel sends the request again under the same number.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from queue import Empty
from time import monotonic, sleep
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from kombu.utils.scheduling import priority_cycle, round_robin_cycle, sorted_cycle
from redis import ConnectionPool, Redis
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as AnswerLate

from celery_fairness.compat import redis_transport
from celery_fairness.errors import SettingsError
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import Held, LeaseTable
from celery_fairness.scheduler.types import Claim, Claimed, Settle, Verdict
from celery_fairness.store.address import Address, address_from_url
from celery_fairness.store.cluster import (
    PAUSE_SECONDS,
    Node,
    SlotAway,
    SlotMoved,
    SlotPrimary,
    leading_to,
    of_one_redis,
    slot_of,
)
from celery_fairness.store.connection import pack
from celery_fairness.store.library import LibraryUnusable, is_missing, library
from celery_fairness.store.partitions import Partitions
from celery_fairness.store.readiness import ServerNotReady
from celery_fairness.store.servers import ClusterServers, Server, Servers
from celery_fairness.store.spin import Spin
from celery_fairness.transport.envelope import FairMessage, task_name_of
from celery_fairness.transport.lanes import Lane
from celery_fairness.transport.merged_claims import MergedClaims
from celery_fairness.transport.migration import adopt
from celery_fairness.transport.options import key_prefixes, settings_of
from celery_fairness.transport.publish import PublishMixin
from celery_fairness.transport.qos import FairQoS
from celery_fairness.transport.queue_ops import QueueOperationsMixin
from celery_fairness.transport.queue_shares import QueueShares
from celery_fairness.transport.scan_cursor import ScanCursor
from celery_fairness.transport.session import SETTLE_AT_MOST, Claimant, Session, session_of
from celery_fairness.util.log_fields import about

logger = logging.getLogger("celery_fairness")

#: Suffix of the queues on which Celery's remote control gets its replies.
REPLY_SUFFIX = ".reply.celery.pidbox"
#: Shortest BRPOP, in seconds. 0 would wait without an end.
SHORTEST_WAIT_SECONDS = 0.001
#: How late a server may end a BRPOP, in seconds: it checks ten times a second.
LATE_SECONDS = 0.1
#: How often the channel looks for messages in plain lists of stock producers, in seconds.
ADOPT_SECONDS = 1.0
#: Pause before the next claim if a task is due sooner than LATE_SECONDS, in seconds.
NAP_SECONDS = 0.01
#: Pause before the next try on a server that accepts no commands, in seconds.
NOT_READY_SECONDS = 0.5
#: For a channel that does not serve a worker.
_NO_SHARES = QueueShares(LeaseTable(), {})


class FairMixin(PublishMixin, QueueOperationsMixin):
    """Makes kombu's Redis channel fair; stands before it in the bases."""

    QoS = FairQoS
    Message = FairMessage
    _claim: list[Settle] | None = None
    _sentinel_manager: Any
    #: Whether its claims fill places of the worker's pool: it has the consumer of the tasks.
    serves_worker = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Leases that this channel has delivered.
        self.claimed: set[str] = set()
        self._claimant: Claimant | None = None
        self._spin = Spin()
        self._claim_wants = 0
        self._claim_epoch: int | None = None
        #: The socket on which the channel last read Redis's epoch.
        self._synced_on: Any = None
        self._asleep_until = 0.0
        #: Places that were free when the last claim kept back some of them, or None.
        self._kept_back: int | None = None
        #: Whether the channel sends no request for a while.
        self.is_napping = False
        self._adopt_at = 0.0
        #: While the home takes no commands, when to try again (monotonic seconds).
        self._home_paused_until = 0.0
        #: When the open wait ends at the latest (monotonic seconds).
        self._wait_ends_at = 0.0
        #: Consumed queues: those that are claimed from, and those of the stock transport.
        self.fair_queues: list[str] = []
        self.stock_queues: list[str] = []
        #: Queues that the open wait leaves out, because the worker has no room for their tasks.
        self.queues_without_room: list[str] = []
        #: Whether the open request is a claim or a wait of this class.
        self._is_ours = False
        #: With so many free places, a delivery sends the next request. With None, it sends none.
        self._claims_next_from: int | None = None
        #: For each queue: whether it has no acks, and the callback for its messages.
        self._takers: dict[str, tuple[bool, Callable[[Any], None]]] = {}
        super().__init__(*args, **kwargs)

    # -- its Redis --------------------------------------------------------------------------------

    @cached_property
    def session(self) -> Session:
        """This process's session with the channel's Redis."""
        client = self.connection.client
        settings = settings_of(client.transport_options)
        partitions = Partitions(settings.namespace, self._own_prefix, settings.partitions)
        session = session_of(
            *(self._connection_key(), partitions, settings, self._address, self._own_client),
            **self._server_parts(),
        )
        self.connection.cycle.serve(session)
        return session

    @property
    def _address(self) -> Address:
        """The address for error texts."""
        uri = self.connection.client.as_uri()
        return Address((uri,), setting="broker_url", of_broker=True)

    def _server_parts(self) -> dict[str, Any]:
        """Return what a session has for several servers."""
        return {}

    @property
    def _own_prefix(self) -> str:
        """The beginning of our keys, before the namespace."""
        return str(self.global_keyprefix)

    def _connection_key(self) -> tuple[str, ...]:
        """Return a key that differs for every Redis."""
        client = self.connection.client
        # The address of a socket has neither the user nor the database.
        where = client.as_uri(include_password=True), client.userid, client.virtual_host
        return tuple(str(part or "") for part in where)

    def _connparams(self, asynchronous: bool = False) -> Any:
        return self._params(asynchronous, self._managed)

    def _params(self, asynchronous: bool, managed: Callable[[type[Any]], type[Any]]) -> Any:
        params = super()._connparams(asynchronous)
        made = managed(params["connection_class"])
        params["connection_class"] = _polled(self, made) if asynchronous else made
        return params

    def _managed(self, connection_class: type[Any]) -> type[Any]:
        """Return the class of this channel's connections."""
        return of_one_redis(connection_class, self.connection.client.as_uri())

    def _own_client(self) -> Any:
        """Return a client without a bound on connections, which outlive the channel."""
        kept = self._sentinel_manager
        pool = self._get_pool()
        # Otherwise the channel would close the Sentinel connections with its own.
        self._sentinel_manager = kept
        pool.max_connections = 2**31
        return Redis(connection_pool=pool)

    # -- which queues, and how many tasks ---------------------------------------------------------

    @cached_property
    def scan_cursor(self) -> ScanCursor:
        """The position of the next claim, and the tasks that it skips."""
        return ScanCursor(self.session.task_filter)

    @cached_property
    def merged(self) -> MergedClaims | None:
        """The claims of several partitions; None if the installation has one."""
        return MergedClaims(self) if self.session.partitions.are_several else None

    @property
    def takes_of_one_partition(self) -> bool:
        """Whether one request takes tasks of one partition alone, because they share a bound."""
        left, task_filter = self.queue_shares.left(), self.session.task_filter
        return bool(
            left or task_filter.are_limited or self.session.lease_table.slots_by_queue_key()
        )

    def is_fair(self, queue: str) -> bool:
        """Return whether a queue is claimed from."""
        return queue not in self._fanout_queues and not queue.endswith(REPLY_SUFFIX)

    @cached_property
    def is_strict(self) -> bool:
        """Whether a queue is served only if the queues before it have no task to start."""
        return type(self._queue_cycle) in (priority_cycle, sorted_cycle)

    @cached_property
    def _gives_one(self) -> bool:
        """Whether a claim takes one task, because only a user's class has the next queue."""
        return not self.is_strict and type(self._queue_cycle) is not round_robin_cycle

    def want(self) -> int:
        """Return the number of tasks that this channel may claim now."""
        free: int = 0 if self._closing else self.session.free(self.serves_worker)
        if not (self.serves_worker and self.session.slots) and self.qos.prefetch_count:
            free = min(free, self.qos.prefetch_count - len(self.claimed))
        wanted = max(0, self.queue_shares.bound(free, self.fair_queues))
        return min(wanted, 1) if self._gives_one else wanted

    @property
    def queue_shares(self) -> QueueShares:
        """The shares that bound this channel's claims."""
        return self.session.queue_shares if self.serves_worker else _NO_SHARES

    def _update_queue_cycle(self) -> None:
        super()._update_queue_cycle()
        queues = self.active_queues
        self.fair_queues = [queue for queue in queues if self.is_fair(queue)]
        if self.fair_queues:
            self.session.claimed_queues = self.fair_queues
        self.stock_queues = [queue for queue in queues if not self.is_fair(queue)]

    # -- claiming ---------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, *args: Any, **kw: Any) -> Any:
        """Consume from ``queue``; without acks, a delivery is the end."""
        self._takers[queue] = no_ack, callback
        self._asleep_until = 0.0
        if self.merged is not None:
            self.merged.rings.look_again()
        return super().basic_consume(queue, no_ack, callback, *args, **kw)

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Cancel a consumer; it gets no further message, not even a delivered one."""
        self._takers.pop(self._tag_to_queue.get(consumer_tag, ""), None)
        if self._closing:
            # kombu would wait for the end of a read, but the channel has no connection.
            return self._basic_cancel(consumer_tag)
        return super().basic_cancel(consumer_tag)

    def _brpop_start(self, timeout: float | None = None) -> None:
        if not self.fair_queues:
            self._is_ours = False
            super()._brpop_start(timeout)
        else:
            self._send_request(self.want(), timeout)

    def queues_in_turn(self) -> tuple[list[str], list[str]]:
        """Return the queues that may be claimed from, in turn, and the others."""
        queues = self._queue_cycle.consume(len(self.fair_queues) + len(self.stock_queues))
        return self.queue_shares.divide([each for each in queues if each in self.fair_queues])

    def _send_request(self, want: int, timeout: float | None = None) -> None:
        fair, without_room = self.queues_in_turn()
        now = monotonic()
        if self.is_napping or not (want or self.stock_queues):
            # A signal may have stopped the claims since kombu's look for a place.
            return
        if want and now >= self._adopt_at:
            self._adopt(fair)
        asleep = self._asleep_until - now
        if self.merged is not None:
            # The lanes have what there is to do.
            asleep, without_room = self.merged.rings.seconds_to_look(fair, now), []
            if self.merged.is_busy or asleep <= 0:
                fair, asleep = [], 2 * LATE_SECONDS
            if not (fair or self.stock_queues):
                return
        self.queues_without_room = []
        connection = self.client.connection
        if want and asleep <= 0:
            self._send_claim(connection, fair, want)
        else:
            longest = (self.brpop_timeout if timeout is None else timeout) or 1.0
            wait = min(longest, max(asleep - LATE_SECONDS, SHORTEST_WAIT_SECONDS))
            self._send_wait(connection, fair if want else [], without_room, wait)
            self._wait_ends_at = now + wait
        self._in_poll = connection
        self._is_ours = True
        self._brpop_sent_at = now

    def _send_wait(
        self, connection: Any, fair: list[str], queues_without_room: list[str], seconds: float
    ) -> None:
        """Wait for wake-ups of queues that may be claimed from, and for messages of stock ones."""
        names = self.session.names
        if self.merged is not None:
            keys = self.merged.bells(fair)
        else:
            keys = [names.of("wakeup", queue) for queue in fair]
            keys += [
                names.of("wakeup_leftover", queue)
                for queue in fair
                if queue not in self.scan_cursor.skipped_tenants
            ]
        if queues_without_room or self._kept_back is not None:
            keys.append(self._own_bell)
        keys += [
            self.global_keyprefix + self._q_for_pri(queue, priority)
            for priority in self.priority_steps
            for queue in self.stock_queues
        ]
        self.queues_without_room = queues_without_room
        connection.send_packed_command([pack(("BRPOP", *keys, f"{seconds:.3f}"))])

    @property
    def _own_bell(self) -> str:
        return self.session.names.of("wakeup_worker", self.claimant.owner)

    def wake_if_room(self) -> None:
        """Wake from a wait that leaves out a queue which has room again.

        It also wakes if more places are free than when it kept back the last ones.
        """
        if not self._in_poll or self._claim is not None:
            return
        may_lend = self._kept_back is not None and self.session.free_places > self._kept_back
        without = self.queues_without_room
        if may_lend or (without and self.queue_shares.divide(without)[0]):
            self.queues_without_room, self._kept_back = [], None
            self.session.ring(self.claimant.owner)

    @property
    def claimant(self) -> Claimant:
        """The name under which it claims."""
        self._claimant = self._claimant or self.session.borrow_claimant()
        return self._claimant

    def _adopt(self, queues: list[str]) -> None:
        """Take over messages that stock producers have sent."""
        if not self.session.servers.are_several and adopt(self, queues):
            self._asleep_until = 0.0
        else:
            self._adopt_at = monotonic() + ADOPT_SECONDS

    def _sleep(self, claim: Claim) -> None:
        """Delay the next claim for a time, or until a wake-up."""
        seconds = self.scan_cursor.read_answer(claim)
        keeps_back = self.session.lending_spare and claim.passed and self.serves_worker
        self._kept_back = self.session.free_places if keeps_back else None
        if seconds and (seconds < LATE_SECONDS or claim.passed) and not self.stock_queues:
            # The hub reads its timers before it sends requests, so the nap starts here. After a
            # claim that skipped tasks, the nap bounds how often tasks for other workers wake this
            # one.
            short = min(seconds, NAP_SECONDS)
            self.is_napping = not self.connection.cycle.nap(short, self._wake_up)
            if seconds < LATE_SECONDS:
                seconds = 0.0
        self._asleep_until = monotonic() + seconds if seconds else 0.0

    def _wake_up(self) -> None:
        self.is_napping = False

    def waits_for_server(self) -> _WaitsForServer:
        """Pause if the server accepts no commands now, instead of making a new consumer.

        The process keeps its claimed tasks, and their bodies run on.
        """
        return _WaitsForServer(self)

    def pauses_for(self, error: ServerNotReady) -> bool:
        """Pause after ``error``; return whether the channel does. A closing one does not."""
        if self._closing or not self.fair_queues:
            return False
        self.session.notices.error(
            "not ready",
            "%s takes no commands now, tasks wait until it does: %s",
            self.session.address,
            error,
        )
        self.is_napping = not self.connection.cycle.nap(NOT_READY_SECONDS, self._wake_up)
        return True

    def _sync_epoch(self, connection: Any) -> None:
        """Read Redis's epoch: a new connection may lead to an older memory."""
        if self._synced_on is not None and self._synced_on is connection._sock:
            return

        def call(verb: str, args: list[str], partition: int | None = None) -> Any:
            connection.send_packed_command([self.command(verb, args, partition)])
            return self._read()

        try:
            self.session.renewals.sync_epoch(call)
        except ResponseError as error:
            if not is_missing(error):
                raise
            self.load_library()
            self.session.renewals.sync_epoch(call)
        self._synced_on = connection._sock

    def _send_claim(self, connection: Any, queues: list[str], want: int) -> None:
        self._sync_epoch(connection)
        session = self.session
        ends = session.lease_table.take_ends(SETTLE_AT_MOST)
        self._claim, self._claim_wants = ends, want
        session.count_open(want, self.serves_worker)
        try:
            self._send_one_claim(connection, queues, want, ends)
        except BaseException:
            self._claim_over()
            raise

    def _send_one_claim(
        self, connection: Any, queues: list[str], want: int, ends: list[Settle]
    ) -> None:
        session, claimant = self.session, self.claimant
        owner, number, epoch = claimant.owner, claimant.numbers[0], session.renewals.epoch
        claim = calls.claim_args(
            *(owner, number, want, queues, session.rules),
            skipped=self.scan_cursor.next_skip(
                session.lease_table,
                self.queue_shares,
                self.is_strict,
                session.spare(self.serves_worker),
            ),
            epoch=epoch,
            ends=ends,
            is_first=claimant.mark_sent(),
        )
        self._claim_epoch = epoch
        connection.send_packed_command([self.command(calls.CLAIM, claim)])

    def load_library(self, partition: int | None = None) -> None:
        """Load the library after it was deleted.

        Raises:
            ServerNotReady: The server cannot load it now. A running worker waits until it can.
        """
        try:
            self.session.load_library(partition)
        except LibraryUnusable as error:
            raise ServerNotReady(str(error)) from None

    def command(self, verb: str, args: list[str], partition: int | None = None) -> bytes:
        """Return a call of a function as it is sent, in a partition or in the home."""
        session = self.session
        prefix = session.prefix if partition is None else session.partitions.prefix(partition)
        return pack(("FCALL", library().function(verb), "1", prefix, *args))

    def _claim_over(self) -> None:
        """Close the open request, and put back the ends that Redis did not get."""
        ends, self._claim = self._claim or [], None
        wanted, self._claim_wants = self._claim_wants, 0
        self.session.lease_table.give_back(ends)
        self.session.count_open(-wanted, self.serves_worker)

    def spin(self) -> None:
        """Wait a short time for the answer to an open claim if the loop has no other work."""
        if self.merged is not None:
            awaited = self.merged.awaited
        else:
            awaited = self._in_poll if self._claim is not None else None
        if awaited is not None and self.session.body_blocks_loop:
            self._spin.wait(awaited)

    # -- several partitions -----------------------------------------------------------------------

    def has_lanes_for(self, session: Session) -> bool:
        """Return whether its lanes send the ends of ``session``."""
        return bool(self.fair_queues and self.session is session and session.partitions.are_several)

    def send_on_lanes(self) -> None:
        """Send the requests of several partitions; nothing with one."""
        if not self.fair_queues or self.merged is None or self.is_napping or self._closing:
            return
        with self.waits_for_server():
            self.merged.turn()

    def read_lane(self, lane: Lane) -> bool:
        """Read the answers of a lane, and deliver their tasks."""
        merged, waiting = self.merged, list[tuple[Claimed, Held]]()
        with self.waits_for_server():
            waiting = merged.read(lane) if merged is not None else []
        for task, _ in waiting:
            self._queue_cycle.rotate(task.queue)
        self._nap_after_skipped()
        if not waiting:
            raise Empty
        self._deliver_all(waiting)
        return True

    def _nap_after_skipped(self) -> None:
        """Bound how often tasks for other workers wake this one."""
        merged = self.merged
        if merged is None or merged.is_busy or self.stock_queues:
            return
        seconds = merged.rings.seconds_to_look(self.fair_queues, monotonic())
        if seconds and (seconds < LATE_SECONDS or merged.rings.skipped):
            short = min(seconds, NAP_SECONDS)
            self.is_napping = not self.connection.cycle.nap(short, self._wake_up)

    def _poll_error(self, kind: Any, **options: Any) -> Any:
        if isinstance(kind, Lane):
            return self.read_lane(kind)
        return super()._poll_error(kind, **options)

    def client_of(self, server: Server) -> Any:
        """Return a client of a server whose connection the loop polls."""
        managed = self.session.servers.class_of
        params = self._params(True, managed) | self._params_of(server)
        return Redis(connection_pool=ConnectionPool(**params))

    def _params_of(self, _server: Server) -> dict[str, Any]:
        """Return the parameters of connections to one of several servers."""
        return {}

    # -- a home that is away ----------------------------------------------------------------------

    def _create_client(self, asynchronous: bool = False) -> Any:
        client = super()._create_client(asynchronous)
        # kombu pings the home for each new channel.
        client.ping = partial(self.at_home, client.ping)
        return client

    def meet_home(self) -> None:
        """Check the number of partitions and the place of the home, unless it is away."""
        session = self.session
        self.at_home(lambda: session.renewals.meet_home(session.call))
        session.has_met_home = True

    def at_home(self, call: Callable[[], Any]) -> Any:
        """Make a call to the home and return its answer.

        A process that has met the home before goes on without it, with None.
        """
        session = self.session
        if not session.has_met_home:
            return call()
        if not self.home_is_away:
            with self.may_lose_home():
                return call()
        return None

    @property
    def home_is_away(self) -> bool:
        """Whether the home does not answer, and other servers have partitions."""
        if self._home_paused_until and monotonic() < self._home_paused_until:
            return True
        home = self.session.servers.of(None)
        return bool(home.is_late or home.problem)

    @property
    def waits_too_long(self) -> bool:
        """Whether the answer to its wait at the bells is late."""
        return bool(self._in_poll) and monotonic() > self._wait_ends_at + 2 * LATE_SECONDS

    @contextlib.contextmanager
    def may_lose_home(self) -> Iterator[None]:
        """Go on without the home if it does not answer, because other servers have partitions.

        Until it answers, no bell, no event and no command of remote control arrives.
        """
        try:
            yield
        except (ConnectionLost, AnswerLate, OSError) as error:
            if not self._loses_home(error):
                raise

    def _loses_home(self, error: BaseException) -> bool:
        servers = self.session.servers
        if self._closing or not servers.are_several or isinstance(error, SlotMoved):
            return False
        if isinstance(error, ServerNotReady):
            # Its node may serve other partitions.
            self._home_paused_until = monotonic() + NOT_READY_SECONDS
            return True
        servers.lost(servers.of(None), error)
        for client in (vars(self).get("client"), vars(self).get("subclient")):
            if client is not None and client.connection is not None:
                client.connection.disconnect()
        return True

    def _receive(self) -> Any:
        with self.may_lose_home():
            return super()._receive()
        raise Empty

    def _put_fanout(self, *args: Any, **options: Any) -> Any:
        # After an error, kombu connects again and again, and the loop would stop with it. An event
        # that nobody hears is lost in any case.
        if self.home_is_away:
            return None
        with self.may_lose_home():
            return super()._put_fanout(*args, **options)
        return None

    # -- answers ----------------------------------------------------------------------------------

    def _brpop_read(self, **options: Any) -> Any:
        # A home that ends also closes a connection without a request.
        with self.may_lose_home():
            return self._read_home(**options)
        raise Empty

    def _read_home(self, **options: Any) -> Any:
        if not self._is_ours:
            return self._read_stock(**options)
        if not self._in_poll and not self.client.connection.can_read(0):
            # No request is open, so a read would wait without an end.
            raise Empty
        waiting = None
        try:
            if self._claim is None or self._claimant is None:
                return self._read_wait()
            with self.waits_for_server():
                waiting = self._read_claim(self._claimant)
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        if not waiting:
            raise Empty
        self._deliver_all(waiting)
        return True

    def _read_stock(self, **options: Any) -> Any:
        return super()._brpop_read(**options)

    def claim_next(self) -> None:
        """Send the next request if this delivery may, so that Redis answers during it.

        If bodies block the loop, the request goes after the last body of an answer, before Celery
        counts its task. Under a green library, it goes when half of an answer's places are free.
        """
        least = self._claims_next_from
        if self.merged is not None and least is not None and not self.merged.is_busy:
            if self.merged.want() >= least:
                self.send_on_lanes()
            return
        if least is None or self._in_poll or not self.fair_queues:
            return
        if (want := self.want()) >= least:
            with self.waits_for_server():
                self._send_request(want)

    def _read_wait(self) -> bool:
        answer = None
        with self.waits_for_server(), self.may_lose_home():
            answer = self._read()
        self._asleep_until = 0.0
        if not answer:
            raise Empty
        key = bytes_to_str(answer[0])
        if key.startswith(self.session.prefix):
            if self.merged is not None and key != self._own_bell:
                self.merged.is_rung(int(answer[1]), key.partition(" ")[2])
            raise Empty
        queue = key.removeprefix(self.global_keyprefix).rsplit(self.sep, 1)[0]
        self._queue_cycle.rotate(queue)
        self.connection._deliver(loads(bytes_to_str(answer[1])), queue)
        return True

    def _read_claim(self, claimant: Claimant) -> list[tuple[Claimed, Held]]:
        session = self.session
        try:
            answer = self._read()
            # Redis has the claim's ends.
            self._claim = []
        except ResponseError as error:
            if not is_missing(error):
                raise
            self.load_library()
            raise Empty from None
        finally:
            self._claim_over()
        claim = calls.read_claim(answer)
        # In another epoch Redis neither served the claim nor repeated a lost answer. So the number
        # stays.
        if self._claim_epoch in (None, claim.epoch):
            claimant.mark_answered()
        self._sleep(claim)
        for task in claim.tasks:
            # A queue without a task keeps its turn. Otherwise empty queues would use up turns.
            self._queue_cycle.rotate(task.queue)
        # All leases are stored before the first delivery, because a body may run inside it.
        return session.enter(claimant, claim, self.serves_worker)

    def _deliver_all(self, waiting: list[tuple[Claimed, Held]]) -> None:
        self.claimed.update(held.lease for _, held in waiting)
        if self.serves_worker:
            waiting = self.session.suspects.without(waiting)
        left = deque(waiting)
        try:
            while left:
                task, held = left.popleft()
                if self.session.body_blocks_loop and not left:
                    self._claims_next_from = 1
                self._deliver(task, held)
                if left and self.serves_worker and self.connection.cycle.let_bodies_run():
                    self._claims_next_from = (len(waiting) + 1) // 2
                self.claim_next()
        except Exception:
            # The consumer has the delivered message, even if the delivery failed.
            for _, held in left:
                self._end(held, Verdict.HEAD)
            raise
        finally:
            self._claims_next_from = None
        self.start_suspects()

    def start_suspects(self) -> None:
        """Start the suspects whose turn it is, and wake the loop for the next one."""
        session = self.session
        suspects = session.suspects
        if not self.serves_worker:
            return
        while suspects.are_waiting and not session.stopping:
            # The answer to an open claim may bring bodies that would run beside it.
            found = suspects.next(session.claim_is_open)
            if found is None:
                self.connection.cycle.wake_in(suspects.wait_seconds(session.claim_is_open))
                break
            # It may kill the worker, together with ends that Redis does not have yet.
            session.flush()
            self._deliver(*found)

    def _deliver(self, task: Claimed, held: Held) -> None:
        unwanted = self._closing or self.session.stopping or task.queue not in self._takers
        if held.ended or held.lost or unwanted:
            self._end(held, Verdict.HEAD)
            return
        no_ack, callback = self._takers[task.queue]
        message = self._read_message(task, held)
        if message is None:
            return
        task_filter = self.session.task_filter
        cursor = self.scan_cursor
        if self.merged is not None:
            cursor = self.merged.rings.cursor(held.partition)
        reads_name = task_filter.are_limited or cursor.found_nothing
        task_name = task_name_of(message.headers) if reads_name else ""
        if not task_filter.take(task_name):
            self._end(held, Verdict.HEAD)
            return
        cursor.count_taken(task_name)
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
        """Acknowledge a claimed message for a worker's request; from any thread."""
        message._state = "ACK"
        self.claimed.discard(message.delivery_tag)
        self.qos._quick_ack(message.delivery_tag)

    def leave_to_others(self, message: Any) -> bool:
        """Give back a claimed task that this worker does not have, and skip its name from now on.

        Returns:
            Whether it was given back. False if the message has no readable task name, because its
            task would come again at once, and False if the message was not claimed.
        """
        session, task_name = self.session, task_name_of(message.headers)
        held = session.lease_table.get(message.delivery_tag) if task_name else None
        if held is None:
            return False
        if session.task_filter.skip(task_name):
            logger.error(
                "this worker does not have the task %s: its messages in queue %s wait for a worker "
                "that has it; import its module here, or correct the name in its producer",
                message.headers["task"],
                held.queue,
                extra=about(task_name=message.headers["task"], queue=held.queue),
            )
        session.lease_table.end(held, Verdict.HEAD, begun=False)
        self.acknowledged(message)
        return True

    def _read(self) -> Any:
        try:
            return self.client.connection.read_response()
        except self.connection_errors:
            self.client.connection.disconnect()
            raise

    def close(self) -> None:
        """Close the channel. An open request is answered here, or in the next channel.

        Tasks of that answer go back to their places, and the channel sends no further request.
        """
        self._closing = True
        if self.serves_worker:
            # Another channel does not have their messages.
            self.session.give_back_suspects()
        if self._claimant is not None and self._claimant.process != os.getpid():
            # In a forked child, the socket and the answer on it belong to the parent.
            self._claim = self._claimant = self._in_poll = None
            self.__dict__.pop("merged", None)
        if "merged" in vars(self) and self.merged is not None:
            for _, held in self.merged.close():
                self.session.lease_table.end(held, Verdict.HEAD, begun=False)
        if self._claim is not None:
            with contextlib.suppress(Empty, ResponseError, *self.connection_errors):
                self._brpop_read()
            # If the read failed, the ends are sent again.
            self._claim_over()
        elif self._is_ours:
            # The only possible answer is a wake-up.
            self._in_poll = None
        claimant, self._claimant = self._claimant, None
        if claimant is not None:
            self.session.return_claimant(claimant)
        super().close()
        if "session" in vars(self):
            self.session.flush()


class _WaitsForServer:
    """A ``with`` block of :meth:`FairMixin.waits_for_server`.

    Each claim enters three of them, and a generator would take several times as long.
    """

    __slots__ = ("_channel",)

    def __init__(self, channel: FairMixin) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, ServerNotReady) and self._channel.pauses_for(error)


class _Timed:
    """The default times of a channel. The transport options of the same names replace them.

    If the host of Redis vanishes, or a firewall forgets a connection, nothing closes it. Without a
    timeout a producer, or a worker that publishes an event, would wait until the system gives up,
    which takes a quarter of an hour. No read is cut that waits for a task: the loop polls the
    socket of a claim, and reads from it only when the answer is there.
    """

    socket_timeout: float | None = 2.0
    socket_connect_timeout: float | None = 2.0
    #: The system also looks at connections that nobody uses.
    socket_keepalive: bool | None = True
    #: An answer that is overdue by so many seconds ends the connection of the worker's loop.
    health_check_interval = 2


class FairChannel(_Timed, FairMixin, redis_transport.Channel):  # type: ignore[misc]  # QoS and _get differ
    """A channel of one Redis."""


class FairSentinelChannel(_Timed, FairMixin, redis_transport.SentinelChannel):  # type: ignore[misc]  # as above
    """A channel of a Sentinel group. All of its hosts lead to the same master."""

    connection: Any

    def _connection_key(self) -> tuple[str, ...]:
        client = self.connection.client
        hosts = sorted(client.alt) or [client.as_uri(include_password=True)]
        return (*hosts, str(self.master_name), str(client.virtual_host))

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        client = self.connection.client
        given = client.alt
        # kombu reads only addresses with the scheme ``sentinel://``.
        client.alt = [url.removeprefix("fair") for url in given]
        try:
            return super()._sentinel_managed_pool(asynchronous)
        finally:
            client.alt = given


class FairServersChannel(_Timed, FairMixin, redis_transport.Channel):  # type: ignore[misc]  # as above
    """A channel of a list of servers, of which each has its own partitions.

    kombu's own keys and the home are on the first server.
    """

    connection: Any

    @cached_property
    def _address(self) -> Address:
        client = self.connection.client
        text = ";".join(url.removeprefix("fair") for url in client.alt or [client.as_uri(True)])
        address = replace(address_from_url(text, setting="broker_url"), of_broker=True)
        settings = settings_of(client.transport_options)
        address.check_partitions(settings.partitions)
        return address

    def _connection_key(self) -> tuple[str, ...]:
        return self._address.urls

    def _connparams(self, asynchronous: bool = False) -> Any:
        # After a lost connection, kombu goes on to the next address.
        return super()._connparams(asynchronous) | self._address.params(0)

    def _server_parts(self) -> dict[str, Any]:
        address = self._address
        given = self._connparams()

        def client_of(server: Server) -> Any:
            params = given | address.params(server.number)
            return Redis(connection_pool=ConnectionPool(**params))

        return {"make_servers": lambda: Servers(address.nodes()), "client_of": client_of}

    def _params_of(self, server: Server) -> dict[str, Any]:
        return self._address.params(server.number)


class FairClusterChannel(_Timed, FairMixin, redis_transport.Channel):  # type: ignore[misc]  # as above
    """A channel of one slot of a cluster: all its connections lead to the slot's primary."""

    connection: Any
    _own_prefix = ""

    def _get_client(self) -> Any:
        settings = settings_of(self.connection.client.transport_options)
        if settings.partitions > 1 and self.global_keyprefix:
            raise SettingsError(
                "broker_transport_options['global_keyprefix']: expected none with several "
                "fairness.partitions, whose keys have hash tags of their own, got: "
                f"{self.global_keyprefix!r}"
            )
        self.global_keyprefix, self._own_prefix = key_prefixes(
            settings, self.global_keyprefix or "", is_cluster=True
        )
        return super()._get_client()

    def _connection_key(self) -> tuple[str, ...]:
        client = self.connection.client
        nodes = sorted(client.alt) or [client.as_uri(include_password=True)]
        return (*nodes, str(client.userid or ""), self.global_keyprefix)

    def _managed(self, connection_class: type[Any]) -> type[Any]:
        plain = self.connection_class_ssl if self.connection.client.ssl else self.connection_class
        return leading_to(self._primary, connection_class, plain)

    @property
    def _nodes(self) -> list[Node]:
        client = self.connection.client
        text = ";".join(url.removeprefix("fair") for url in client.alt or [client.as_uri()])
        return address_from_url(text, setting="broker_url").nodes()

    @cached_property
    def _primary(self) -> SlotPrimary:
        # One for each connection of kombu, so that its next channel does not look again.
        found = getattr(self.connection, "slot_primary", None)
        if found is None:
            found = SlotPrimary(self._nodes, slot_of(self.global_keyprefix))
            self.connection.slot_primary = found
        return found

    def _server_parts(self) -> dict[str, Any]:
        settings = settings_of(self.connection.client.transport_options)
        if settings.partitions == 1:
            return {}
        nodes = self._nodes
        partitions = Partitions(settings.namespace, self._own_prefix, settings.partitions)
        given = self._params(False, lambda plain: plain)

        def client_of(server: Server) -> Any:
            params = given | _params_of_node(server)
            return Redis(connection_pool=ConnectionPool(**params))

        return {
            "make_servers": lambda: ClusterServers(nodes, partitions),
            "client_of": client_of,
        }

    def _params_of(self, server: Server) -> dict[str, Any]:
        return _params_of_node(server)

    def _read_stock(self, **options: Any) -> Any:
        try:
            return super()._read_stock(**options)
        except SlotMoved:
            raise Empty from None
        except SlotAway:
            sleep(PAUSE_SECONDS)
            raise Empty from None

    def pauses_for(self, error: ServerNotReady) -> bool:
        """Pause after ``error``. If only the slot has moved, the next request goes at once."""
        if isinstance(error, SlotMoved) and not self._closing and self.fair_queues:
            return True
        return super().pauses_for(error)


def _params_of_node(server: Server) -> dict[str, Any]:
    host, port = server.node or ("", 0)
    return {"host": host, "port": port}


def _polled(channel: Any, connection_class: Any) -> Any:
    """Return the class of the connections that are polled for ``channel``."""

    class Connection(connection_class):
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            transport = channel.connection
            if transport is not None and transport.cycle is not None:
                transport.cycle.leave(self)
            super().disconnect(*args, **kwargs)

        def _ping_failed(self, error: Exception, *details: Any) -> None:
            super()._ping_failed(error, *details)
            # redis-py may connect again and send the request. The loop does not poll the new
            # socket, and the claim would go before the channel has read Redis's epoch.
            raise error

    return Connection
