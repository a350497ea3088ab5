"""A session: one process's leases, connections and renewals for one Redis.

All channels of the process for the same Redis share one session, also channels after a lost
connection. A forked child makes its own.

    claimed --end--> noted --settle--> settled
       ^ renewed (renewals.py) until it ends
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, cast
from weakref import ref

from redis.exceptions import RedisError, ResponseError

from celery_fairness.config.settings import Settings
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import Held, LeaseTable
from celery_fairness.scheduler.types import Claim, Claimed, Outcome, Settle, Verdict
from celery_fairness.store.address import Address
from celery_fairness.store.connection import Connection
from celery_fairness.store.partitions import Partitions, other_number
from celery_fairness.store.servers import PartedConnection, Server, Servers
from celery_fairness.transport.options import rules_of
from celery_fairness.transport.permit_agent import PermitAgent
from celery_fairness.transport.queue_shares import OWN_WAKEUP_MS, QueueShares
from celery_fairness.transport.renewals import Call, Renewals
from celery_fairness.transport.ring_merge import NO_RING
from celery_fairness.transport.suspects import Suspects
from celery_fairness.transport.task_filter import TaskFilter
from celery_fairness.util.threads import native_lock
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: Ends that one call settles.
SETTLE_AT_MOST = 64
#: Tasks that one claim requests.
CLAIM_AT_MOST = 64
#: The same without a worker, whose pool would set a number.
CLAIM_WITHOUT_WORKER = 16


class Claimant:
    """The name under which a channel claims.

    Its claims of each partition are numbered, with one open at a time.

    Attributes:
        process: The id of its process.
        owner: Its name in Redis: host, process, and a random part.
        numbers: By partition, the number of the open or the next claim.
        sent_at: By partition, when that number was first sent (monotonic seconds).
        unanswered: By partition, the tasks that the open claim wants, if there are several
            partitions.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        host = "".join(socket.gethostname().encode("ascii", "replace").decode().split())
        self.owner = f"{host}:{self.process}:{uuid.uuid4().hex[:12]}"
        self.numbers = defaultdict[int, int](lambda: 1)
        self.sent_at = defaultdict[int, float](float)
        self.unanswered: dict[int, int] = {}
        self._sent = dict[int, int]()

    def mark_sent(self, partition: int = 0) -> bool:
        """Note the time of a claim's first send; return whether this is the first one."""
        number = self.numbers[partition]
        is_first = self._sent.get(partition) != number
        if is_first:
            self._sent[partition], self.sent_at[partition] = number, monotonic()
        return is_first

    def mark_answered(self, partition: int = 0) -> None:
        """Note that the open claim of a partition has its answer."""
        self.numbers[partition] += 1
        self.unanswered.pop(partition, None)


class Session:
    """One Redis, and this process's state there.

    Args:
        address: The address for error texts.
        make: Makes a client of redis-py. Only the constructor calls it.
        make_servers: Makes the servers of the partitions, again in a forked child.
        client_of: Makes a client of one of several servers.
    """

    def __init__(
        self,
        address: Address,
        make: Callable[[], Any],
        partitions: Partitions,
        settings: Settings,
        make_servers: Callable[[], Servers] = Servers,
        client_of: Callable[[Server], Any] = lambda _server: None,
    ) -> None:
        self.settings = settings
        self.rules = rules_of(settings)
        self.partitions = partitions
        #: The names of the home.
        self.names, self.prefix = partitions.home, partitions.home.prefix
        self.address = address
        self._client, self._client_of_thread = make(), make()
        self._client_of_agent = make() if partitions.are_several else None
        self._make_servers, self._client_of = make_servers, client_of
        #: Whether the home has answered to a channel of this process, or of its parent.
        self.has_met_home = False
        #: The bindings that it has stored there: exchange, routing key, pattern and queue.
        self.bound = set[tuple[str, ...]]()
        self.forget()

    def forget(self) -> None:
        """Reset all state. In a forked child everything here belongs to the parent."""
        self.lease_table = LeaseTable()
        self.lease_table.changed = self._wake
        #: Throttles the log lines of an outage, which repeat with every try.
        self.notices = Notices(logger)
        #: The tasks that this process does not take now.
        self.task_filter = TaskFilter()
        #: Returns the number of the worker's places; None without a worker.
        self.slots: Callable[[], int] | None = None
        #: The shares of the worker's queues in its places.
        self.queue_shares = QueueShares(self.lease_table, {})
        #: The setting of the worker.
        self.lending_spare = 0
        #: The tasks whose worker has died before.
        self.suspects = Suspects(self.lease_table, self.rules)
        #: Whether the worker is stopping, and claims no more.
        self.stopping = False
        #: Whether every end is sent at once, because no loop collects ends any more.
        self.at_once = False
        #: Returns a message's header with its tenant's tier, from the task's name and the header.
        self.completed: Callable[[str, Any], Any] = lambda _name, header: header
        #: Whether a worker has logged which priority goes first.
        self.order_logged = False
        #: Whether the loop stands still, and sends nothing, while a body runs.
        self.body_blocks_loop = False
        #: Pollers of the loops that claim. Each entry leaves with its poller.
        self.wakers: list[ref[Any]] = []
        #: Consumed queues that expire, each with the time to keep it, in ms.
        self.consumed: dict[str, int] = {}
        #: The queues that a channel of this process claims from.
        self.claimed_queues: list[str] = []
        #: The name under which ends are sent without a claim, if there are several partitions.
        self._settler = Claimant()
        #: The partition of the last outcome.
        self._outcomes_of = 0
        #: The servers of the partitions.
        self.servers = self._make_servers()
        self.servers.connect = self._connection_to
        self.servers.on_away.append(self._server_is_away)
        self.servers.on_back.append(self._server_is_back)
        self._connection = self._connected(self._client)
        #: By partition, the number of opened connections when its epoch was last read.
        self._synced_on: dict[int, int] = {}
        of_thread = self._client_of_thread
        self.renewals = Renewals(
            self.lease_table,
            of_thread,
            self._connected(of_thread),
            self.partitions,
            self.servers,
            self.rules,
            self._settle,
            self._keep_consumed,
        )
        self._connection_of_agent = self._connected(self._client_of_agent)
        #: Carries permits, if there are several partitions.
        self.permit_agent = PermitAgent(
            self._call_of_agent, self._ring_of_agent, self.partitions, self.rules, self.lease_table
        )
        #: Tasks that open requests may bring, and the part of them for the worker's places.
        self._open = self._open_for_places = 0
        self._claimants: list[Claimant] = []
        self._lock = native_lock()

    # -- places -----------------------------------------------------------------------------------

    def free(self, for_places: bool) -> int:
        """Return how many tasks may be claimed now, with or without the worker's places."""
        if self.stopping:
            return 0
        if self.slots is None or not for_places:
            return CLAIM_WITHOUT_WORKER
        # A body that blocks the loop keeps the answer to a claim unread, and its leases would end.
        blocked = self.body_blocks_loop and self.suspects.are_waiting
        if blocked or self.suspects.stop_claims:
            return 0
        return max(0, min(CLAIM_AT_MOST, self.free_places))

    @property
    def free_places(self) -> int:
        """How many places no task has, and no open request may fill."""
        if self.slots is None:
            return 0
        return self.slots() - self.lease_table.places - self._open_for_places

    def spare(self, for_places: bool) -> int:
        """Return how many places of the claim that is open now are not lent.

        A claim may want fewer places than are free. The others are kept back first.
        """
        if not (for_places and self.lending_spare):
            return 0
        return max(0, self.lending_spare - self.free_places)

    @property
    def claim_is_open(self) -> bool:
        """Whether a claim has no answer yet."""
        return self._open > 0

    def count_open(self, amount: int, for_places: bool) -> None:
        """Add the tasks that an open request may bring; subtract them after its answer."""
        self._open += amount
        if for_places:
            self._open_for_places += amount

    def borrow_claimant(self) -> Claimant:
        """Return a claimant for a channel, if possible one from a closed channel."""
        with self._lock:
            return self._claimants.pop() if self._claimants else Claimant()

    def return_claimant(self, claimant: Claimant) -> None:
        """Keep the claimant of a closed channel, because its open request may have no answer."""
        with self._lock:
            self._claimants.append(claimant)

    # -- servers ----------------------------------------------------------------------------------

    def _connected(self, client: Any) -> Connection:
        """Return a connection whose home is at ``client``."""
        if not self.servers.are_several:
            return Connection(self.address, make=lambda: client)
        return PartedConnection(
            *(self.address, self.partitions, self.servers, self._meet),
            make=lambda: client,
        )

    def _connection_to(self, server: Server) -> Connection:
        client = self._client_of(server)
        options = client.connection_pool.connection_kwargs
        for name in ("socket_timeout", "socket_connect_timeout"):
            # While a renewal waits for one server, no lease on the others ends.
            longest = self.rules.lease_ms / 6000
            options[name] = min(options.get(name) or longest, longest)
        connection = Connection(self.address, make=lambda: client, is_one_of=True)
        connection.class_of = self.servers.class_of
        return connection

    def _meet(self, server: Server, connection: Connection) -> None:
        """Compare the place of a server in the list with that of the installation."""
        if not server.place:
            return
        args = calls.epoch_args(self.rules.lease_ms, self.partitions.count, place=server.place)
        try:
            connection.execute(calls.EPOCH, self.prefix, args)
        except ResponseError as error:
            raise other_number(error, self.partitions.count, server.place) or error from None

    def _server_is_back(self) -> None:
        # This thread has no connection. The one that renews also sends the ends.
        self.renewals.renew_at_once()
        self._wake_pollers()

    def _server_is_away(self, server: Server) -> None:
        if self.slots is None:
            # The caller of a producer gets the error.
            return
        theirs = [str(each) for each in self.partitions if self.servers.of(each) is server]
        self.notices.error(
            f"away {server}",
            "a server does not answer, and the tenants of its partitions wait: %s (%s): %s",
            *(server, f"partitions {', '.join(theirs)}" if theirs else "the home", server.problem),
        )

    # -- calls ------------------------------------------------------------------------------------

    def call(self, verb: str, args: list[str], partition: int | None = None) -> Any:
        """Call a function of the library and return its answer, with the errors of redis-py.

        ``partition`` is the partition whose keys it has; None is the home.
        """
        prefix = self.prefix if partition is None else self.partitions.prefix(partition)
        return self._connection.execute(verb, prefix, args)

    def _call_of_agent(self, verb: str, args: list[str], partition: int) -> Any:
        prefix = self.partitions.prefix(partition)
        return self._connection_of_agent.execute(verb, prefix, args)

    def _ring_of_agent(self, partition: int, new: Sequence[str], left: Sequence[str]) -> None:
        args = calls.ring_args(partition, new, left)
        self._connection_of_agent.execute(calls.RING, self.prefix, args)

    def put_together(self, puts: Sequence[tuple[str, Sequence[str]]]) -> list[Any]:
        """Put tasks on several servers; each has the prefix of its partition and its arguments.

        Returns:
            The answers, in order. An error stands in the place of its answer.
        """
        connection = cast("PartedConnection", self._connection)
        return connection.run_together(calls.PUT, puts)

    def load_library(self, partition: int | None = None) -> None:
        """Load the function library if the server of a partition, or of the home, lacks it.

        Raises:
            LibraryUnusable: It cannot be loaded. The text has the reason.
        """
        prefix = self.prefix if partition is None else self.partitions.prefix(partition)
        self._connection.load_library(prefix)

    def sync_epoch(self, partition: int) -> None:
        """Read the epoch of a partition, once for each opened connection."""
        opened = self._connection.at(self.partitions.prefix(partition)).opened
        if self._synced_on.get(partition) != opened:
            self.renewals.sync_epoch(self.call, partition)
            self._synced_on[partition] = opened

    def next_outcome(self, written: str) -> Outcome | None:
        """Delete the outcome that was stored, and return the next one of any partition."""
        for _ in self.partitions:
            args = calls.next_outcome_args(written, self.rules)
            # The outcomes of a server that is away wait there.
            with self.passes_over_away():
                answer = self.call(calls.NEXT_OUTCOME, args, self._outcomes_of)
                if (outcome := calls.read_next_outcome(answer)) is not None:
                    return outcome
            written = ""
            self._outcomes_of = (self._outcomes_of + 1) % self.partitions.count
        return None

    def ring_bell(self, partition: int, new: Sequence[str]) -> None:
        """Wake workers for queues of a partition. If it fails, they look within a second."""
        with contextlib.suppress(LimiterUnavailable):
            self._connection.post(calls.RING, self.prefix, calls.ring_args(partition, new))

    def ring(self, owner: str) -> None:
        """Wake one claimant of this process. If the call fails, it sleeps on."""
        bell = self.names.of("wakeup_worker", owner)
        with contextlib.suppress(RedisError, OSError), self._client.pipeline() as pipe:
            pipe.rpush(bell, 1).pexpire(bell, OWN_WAKEUP_MS).execute()

    def flush(self) -> None:
        """Send every end to Redis now; ends that fail stay in the table."""
        self._settle(self.call)
        if self.at_once or self.slots is None:
            # The process may end now, together with the ends that the thread has taken. A worker
            # that goes on does not wait: under a green library the lock would stop all bodies.
            self.renewals.await_settled()

    def _settle(self, call: Call) -> None:
        if not self.partitions.are_several:
            self._settle_all(call, None)
            return
        for partition in {self.partitions.of_tag(each) for each in self.lease_table.ended()}:
            self._settle_all(call, partition)

    def _settle_all(self, call: Call, partition: int | None) -> None:
        """Send all ends of a partition. If it fails, they stay in the table."""
        while ends := self.take_ends(partition):
            try:
                self._settle_each(call, ends, partition)
            except Exception as error:  # noqa: BLE001 - the thread also renews leases
                self.lease_table.give_back(ends)
                self.notices.error(
                    "settle",
                    "%d ended tasks could not be sent to %s: %s",
                    len(ends),
                    self.address if partition is None else f"partition {partition}",
                    str(error) or type(error).__name__,
                )
                return

    def take_ends(self, partition: int | None = None) -> list[Settle]:
        """Take the oldest ends of one partition, or of the only one, to send them."""
        if partition is None:
            return self.lease_table.take_ends(SETTLE_AT_MOST)
        of_tag = self.partitions.of_tag
        return self.lease_table.take_ends(SETTLE_AT_MOST, lambda lease: of_tag(lease) == partition)

    def _settle_each(self, call: Call, ends: list[Settle], partition: int | None) -> None:
        if partition is None or not self.claimed_queues:
            there = () if partition is None else (partition,)
            call(calls.SETTLE, calls.settle_args(ends, self.rules), *there)
            return
        # A claim of no task answers which bells to ring.
        args = calls.claim_args(
            *(self._settler.owner, 0, 0, self.claimed_queues, self.rules),
            ends=ends,
            is_first=True,
            ring=NO_RING,
        )
        answer = call(calls.CLAIM, args, partition)
        claim = calls.read_claim(answer, in_partition=True)
        new, left = claim.ring.get("new", ()), claim.ring.get("left", ())
        if new or left:
            # The connection of the loop may have sockets that a native thread cannot wait for.
            with contextlib.suppress(RedisError, OSError, LimiterUnavailable):
                call(calls.RING, calls.ring_args(partition, new, left))
        self.permit_agent.request(partition, claim.ring.get("requests", ()))

    def _keep_consumed(self, call: Call) -> None:
        """Report the queues in use, because the loop may stand still while a body runs."""
        if self.consumed:
            self.use(call, dict(self.consumed))

    def use(self, call: Call, kept_ms: Mapping[str, int], declared: bool = False) -> int:
        """Report the queues in use, each with the time to keep it in ms, 0 for no end.

        If the time of such a queue is over, the queue ends first, with its waiting tasks.

        Returns:
            The ms until the next look: 0 if another queue is ending, -1 if none will end.
        """
        args, waits = calls.expire_queues_args(kept_ms, declared), []
        for partition in self.partitions:
            with self.passes_over_away():
                waits.append(calls.ENDS_FIRST)
                while waits[-1] == calls.ENDS_FIRST:
                    waits[-1] = int(call(calls.EXPIRE_QUEUES, args, partition))
        return min((wait_ms for wait_ms in waits if wait_ms >= 0), default=-1)

    @contextlib.contextmanager
    def passes_over_away(self) -> Iterator[None]:
        """Pass over a partition whose server does not answer, if others have their own servers."""
        try:
            yield
        except (RedisError, OSError):
            if not self.servers.are_several:
                raise

    def enter(
        self, claimant: Claimant, claim: Claim, for_places: bool = False, partition: int = 0
    ) -> list[tuple[Claimed, Held]]:
        """Add a claim's tasks to the table, except known tasks and tasks whose lease has ended."""
        entered = [
            (task, held)
            for task in claim.tasks
            if (held := self.lease_table.hold(task, claim.epoch, for_places, partition)) is not None
        ]
        if entered:
            self.renewals.begin()
            if self.partitions.are_several:
                self.permit_agent.begin()
        # Only after that: a lease from before a lost memory is registered again with the rest.
        self.renewals.saw_epoch(claim.epoch, partition)
        if not entered or monotonic() - claimant.sent_at[partition] < self.rules.lease_ms / 3000:
            return entered
        all_held = [held for _, held in entered]
        try:
            gone = self.renewals.renew_batch(self.call, all_held, claim.epoch, partition).gone
        except BaseException:
            for held in all_held:
                self.lease_table.end(held, Verdict.HEAD, begun=False)
            raise
        for held in gone:
            self.lease_table.drop(held)
        return [(task, held) for task, held in entered if not held.ended]

    def is_lost(self, held: Held) -> bool:
        """Return whether the lease has ended; ask Redis if no renewal came for a whole lease."""
        renewed_at = self.renewals.renewed_at[held.partition]
        if monotonic() - max(held.since, renewed_at) >= self.rules.lease_ms / 1000:
            try:
                gone = self.renewals.renew_batch(self.call, [held], held.epoch, held.partition).gone
            except (RedisError, OSError):
                # While no process can renew, no lease ends.
                return held.lost
            held.lost = bool(gone)
        return held.lost

    def channel_gone(self, leases: list[str]) -> None:
        """Give back the tasks of a closed channel that no pool has."""
        for lease in leases:
            held = self.lease_table.get(lease)
            if held is not None and not held.in_pool:
                self.lease_table.end(held, Verdict.HEAD, begun=not held.attended)
        self.flush()

    def give_back_suspects(self) -> None:
        """Give back the suspects that wait for their start."""
        for held in self.suspects.drain():
            self.lease_table.end(held, Verdict.HEAD, begun=False)

    def pool_gone(self) -> None:
        """Give back the tasks that the worker's pool has not started."""
        for held in self.lease_table.held():
            if held.attended and not held.begun:
                # The pool may have started it without a report.
                self.lease_table.end(held, Verdict.HEAD, begun=held.in_pool)
        self.flush()

    def stop(self) -> None:
        """Claim no more, and send every end at once from now on."""
        self.stopping = True
        self.at_once = True
        self.give_back_suspects()
        self.flush()

    def start(
        self,
        slots: Callable[[], int],
        shares: Mapping[str, int] | None = None,
        lends: bool = False,
        spare: int = 0,
    ) -> None:
        """Claim for a worker with ``slots()`` places, in which queues may have shares.

        ``spare`` is how many free places it keeps back for others than lent tasks.
        """
        self.slots = slots
        self.lending_spare = spare
        self.queue_shares = QueueShares(self.lease_table, shares or {}, lends)
        self.stopping = False
        self.at_once = False
        self.renewals.read_clock(self._client)
        if self.servers.any_away:
            for server in dict.fromkeys(map(self.servers.of, [None, *self.partitions])):
                if server.problem:
                    self._server_is_away(server)
        self._wake()

    def close(self) -> None:
        """End the renewals, and close the connections."""
        self.renewals.close()
        self.permit_agent.close()
        self._connection.close()

    def _wake(self) -> None:
        if self.at_once:
            self.flush()
            return
        if self.slots is None:
            # Without a worker, the next turn of a loop may be far away.
            self.renewals.settle_soon()
        self._wake_pollers()

    def _wake_pollers(self) -> None:
        for waker in list(self.wakers):
            poller = waker()
            if poller is not None:
                poller.wake()


#: By place, prefix and settings.
_sessions: dict[tuple[tuple[str, ...], str, str], Session] = {}
_sessions_lock = threading.Lock()


def session_of(
    place: tuple[str, ...],
    partitions: Partitions,
    settings: Settings,
    address: Address,
    make: Callable[[], Any],
    **servers: Any,
) -> Session:
    """Return this process's session with a Redis, made at the first call."""
    key = place, partitions.home.prefix, repr(settings)
    with _sessions_lock:
        session = _sessions.get(key)
        if session is None:
            session = _sessions[key] = Session(address, make, partitions, settings, **servers)
        return session


def sessions() -> list[Session]:
    """Return every session of this process."""
    return list(_sessions.values())


def _forget() -> None:
    """Reset all sessions in a forked child, because they belong to its parent."""
    global _sessions_lock
    _sessions_lock = threading.Lock()
    for session in _sessions.values():
        session.forget()


os.register_at_fork(after_in_child=_forget)
