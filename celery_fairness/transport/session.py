"""One Redis as one process sees it: its book, its connections, and what renews its leases.

Every channel of the process that talks to the same Redis shares one home, and so do those that come
after a lost connection. A forked child makes its own.

    claimed --end--> noted --settle--> told
       ^ renewed (renewing.py) until it ends
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any
from weakref import ref

from redis.exceptions import RedisError

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claim, Claimed, Full, Outcome, Put, Verdict, Waiting
from celery_fairness.store.address import Address
from celery_fairness.store.connection import Connection
from celery_fairness.transport.book import Held, LeaseTable
from celery_fairness.transport.options import DispatchOptions
from celery_fairness.transport.queue_shares import ROOM_BELL_MS, QueueShares, room_bell
from celery_fairness.transport.renewing import Call, Renewals
from celery_fairness.transport.task_filter import TaskFilter
from celery_fairness.util.threads import native_lock
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: Ends that one call tells.
SETTLE_AT_MOST = 64
#: Tasks that one claim asks for.
CLAIM_AT_MOST = 64
#: The same without a worker that says how many places it has.
CLAIM_WITHOUT_WORKER = 16


class Claimant:
    """Who claims: requests of one claimant are numbered, and one is open at a time.

    Attributes:
        process: Whose it is.
        owner: Its name in Redis: host, process, and a random part.
        number: Of the open request, or of the next.
        sent_at: When that number was sent first (monotonic seconds).
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        host = "".join(socket.gethostname().encode("ascii", "replace").decode().split())
        self.owner = f"{host}:{self.process}:{uuid.uuid4().hex[:12]}"
        self.number = 1
        self.sent_at = 0.0
        self._sent = 0

    def sends(self) -> None:
        """The request is sent, for the first time or again."""
        if self._sent != self.number:
            self._sent, self.sent_at = self.number, monotonic()


class Session:
    """A Redis, and what this process holds there.

    Args:
        address: For messages to people.
        make: Makes a client of redis-py; called while the home is made, and not later.
        prefix: What every key begins with.
        options: Settings.
    """

    def __init__(
        self, address: Address, make: Callable[[], Any], prefix: str, options: DispatchOptions
    ) -> None:
        self.options = options
        self.rules = options.rules
        self.prefix = prefix
        self.address = address
        self._client, self._client_of_thread = make(), make()
        self.forget()

    def forget(self) -> None:
        """Hold nothing, as in the beginning: in a forked child all of it is the parent's."""
        self.book = LeaseTable()
        self.book.changed = self._wake
        #: Lines of an outage, which comes with every try.
        self.notices = Notices(logger)
        #: What this process does not take now.
        self.kinds = TaskFilter()
        #: Free places are this less what is held in them; None without a worker.
        self.slots: Callable[[], int] | None = None
        #: The shares of the worker's queues in its places.
        self.rooms = QueueShares(self.book, {})
        #: No new claims: the worker is stopping.
        self.stopping = False
        #: Ends are told at once: no loop turns any more that would gather them.
        self.at_once = False
        #: Whether a worker has logged which priority goes first.
        self.order_logged = False
        #: The loop stands still while a body runs: it tells Redis nothing meanwhile.
        self.body_blocks_loop = False
        #: Pollers, whose loops claim; each leaves with its last user.
        self.wakers: list[ref[Any]] = []
        #: Queues that expire and are consumed, each with how long it is kept, in ms.
        self.consumed: dict[str, int] = {}
        self._connection = Connection(self.address, make=lambda: self._client)
        #: How many of its connections there were when Redis was last asked for its epoch.
        self._met: int | None = None
        of_thread = self._client_of_thread
        self.renewals = Renewals(
            self.book,
            of_thread,
            Connection(self.address, make=lambda: of_thread),
            self.prefix,
            self.rules.lease_ms,
            self._tell,
            self._keep_consumed,
        )
        #: Of open requests: all that they ask for, and what of it would fill the worker's places.
        self._asked = self._asked_for_places = 0
        self._claimants: list[Claimant] = []
        self._lock = native_lock()

    # -- places -----------------------------------------------------------------------------------

    def free(self, for_places: bool) -> int:
        """Return how many tasks may be claimed now, for the worker's places or for others."""
        if self.stopping:
            return 0
        if self.slots is None or not for_places:
            return CLAIM_WITHOUT_WORKER
        taken = self.book.places + self._asked_for_places
        return max(0, min(CLAIM_AT_MOST, self.slots() - taken))

    @property
    def claim_is_open(self) -> bool:
        """Whether an answer to a claim is on its way."""
        return self._asked > 0

    def asked(self, amount: int, for_places: bool) -> None:
        """Count what an open request may bring; negative when it is answered."""
        self._asked += amount
        if for_places:
            self._asked_for_places += amount

    def borrow_claimant(self) -> Claimant:
        """Return a claimant for one channel: that of a channel that is gone, where there is one."""
        with self._lock:
            return self._claimants.pop() if self._claimants else Claimant()

    def return_claimant(self, claimant: Claimant) -> None:
        """Keep the claimant of a closed channel: its open request may be unanswered."""
        with self._lock:
            self._claimants.append(claimant)

    # -- calls ------------------------------------------------------------------------------------

    def call(self, verb: str, args: list[str]) -> Any:
        """Call a function of the library and return its answer, with the errors of redis-py."""
        return self._connection.execute(verb, self.prefix, args)

    def load_library(self) -> None:
        """Load the function library where Redis does not have it.

        Raises:
            LibraryUnusable: It cannot; the text says why.
        """
        self._connection.load_library(self.prefix)

    def meet(self) -> None:
        """Hear in which epoch Redis is, once for each connection that was opened."""
        if self._met != self._connection.opened:
            self.renewals.meet(self.call)
            self._met = self._connection.opened

    def put(self, waiting: Waiting, bindings: str = "", bound: Sequence[str] = ()) -> Put | Full:
        """Begin to wait, unless too many do."""
        args = calls.put_args(waiting, "", bindings, bound)
        return calls.read_put(self.call(calls.PUT, args))

    def next_outcome(self, written: str) -> Outcome | None:
        """Say which outcome was written, and take the next one."""
        return calls.read_next_outcome(
            self.call(calls.NEXT_OUTCOME, calls.next_outcome_args(written, self.rules))
        )

    def ring(self, owner: str) -> None:
        """Ring the bell that one claimant alone hears; whoever does not hear it sleeps on."""
        bell = room_bell(self.prefix, owner)
        with contextlib.suppress(RedisError, OSError), self._client.pipeline() as pipe:
            pipe.rpush(bell, 1).pexpire(bell, ROOM_BELL_MS).execute()

    def flush(self) -> None:
        """Tell Redis every end now; what it did not hear is kept."""
        self._tell(self.call)
        if self.at_once:
            # The process may end now, and its thread would die with the ends in its hands.
            self.renewals.await_told()

    def tell_soon(self) -> None:
        """Let the thread that renews tell Redis what no loop takes along."""
        self.renewals.tell_soon()

    def _tell(self, call: Call) -> None:
        while ends := self.book.take_ends(SETTLE_AT_MOST):
            try:
                call(calls.SETTLE, calls.settle_args(ends, self.rules))
            except (RedisError, OSError, LimiterUnavailable) as error:
                self.book.give_back(ends)
                self.notices.error(
                    "settle",
                    "%d ended tasks could not be told to %s: %s",
                    len(ends),
                    self.address,
                    str(error) or type(error).__name__,
                )
                return

    def _keep_consumed(self, call: Call) -> None:
        """Say that queues are in use, for a loop that may stand still while a body runs."""
        if self.consumed:
            self.use(call, dict(self.consumed))

    def use(self, call: Call, kept_ms: Mapping[str, int], declared: bool = False) -> int:
        """Say which queues are in use now, each with how long it is kept without; 0: for ever.

        If the time of one is over, it ends first, with all that waits in it.

        Returns:
            In how many ms to look again: 0 if another queue is ending, -1 if none will.
        """
        args = calls.expire_queues_args(kept_ms, declared)
        while (wait_ms := int(call(calls.EXPIRE_QUEUES, args))) == calls.ENDS_FIRST:
            pass
        return wait_ms

    def enter(
        self, claimant: Claimant, claim: Claim, for_places: bool = False
    ) -> list[tuple[Claimed, Held]]:
        """Hold what a claim gave, less what is held already and what took too long to get here."""
        entered = [
            (task, held)
            for task in claim.tasks
            if (held := self.book.hold(task, claim.epoch, for_places)) is not None
        ]
        if entered:
            self.renewals.begin()
        # Only now: what was given before Redis lost its memory is entered again with the rest.
        self.renewals.hears(claim.epoch)
        if not entered or monotonic() - claimant.sent_at < self.rules.lease_ms / 3000:
            return entered
        all_held = [held for _, held in entered]
        try:
            gone = self.renewals.renew_batch(self.call, all_held, claim.epoch).gone
        except BaseException:
            for held in all_held:
                self.book.end(held, Verdict.HEAD, begun=False)
            raise
        for held in gone:
            self.book.drop(held)
        return [(task, held) for task, held in entered if not held.ended]

    def is_lost(self, held: Held) -> bool:
        """Say whether the lease has ended; asks where nobody has renewed it for its length."""
        if monotonic() - max(held.since, self.renewals.renewed_at) >= self.rules.lease_ms / 1000:
            try:
                gone = self.renewals.renew_batch(self.call, [held], held.epoch).gone
            except (RedisError, OSError):
                # Nothing ends while nobody can renew.
                return held.lost
            held.lost = bool(gone)
        return held.lost

    def channel_gone(self, leases: list[str]) -> None:
        """Give back what a closed channel delivered and no pool has."""
        for lease in leases:
            held = self.book.get(lease)
            if held is not None and not held.in_pool:
                self.book.end(held, Verdict.HEAD, begun=not held.attended)
        self.flush()

    def pool_gone(self) -> None:
        """Give back what the worker's pool had and has not begun."""
        for held in self.book.held():
            if held.attended and not held.begun:
                # What a pool has may have begun unheard.
                self.book.end(held, Verdict.HEAD, begun=held.in_pool)
        self.flush()

    def stop(self) -> None:
        """Claim no more, and tell every end at once from now on."""
        self.stopping = True
        self.at_once = True
        self.flush()

    def start(
        self,
        slots: Callable[[], int],
        shares: Mapping[str, int] | None = None,
        lends: bool = False,
    ) -> None:
        """Claim for a worker that has ``slots()`` places, of which queues have shares."""
        self.slots = slots
        self.rooms = QueueShares(self.book, shares or {}, lends)
        self.stopping = False
        self.at_once = False
        self._wake()

    def close(self) -> None:
        """Renew nothing any more, and close the connections."""
        self.renewals.close()
        self._connection.close()

    def _wake(self) -> None:
        if self.at_once:
            self.flush()
            return
        if self.slots is None:
            # Without a worker nobody knows when a loop turns again.
            self.tell_soon()
        for waker in list(self.wakers):
            poller = waker()
            if poller is not None:
                poller.wake()


_homes: dict[tuple[tuple[str, ...], str, DispatchOptions], Session] = {}
_homes_lock = threading.Lock()


def home_of(
    place: tuple[str, ...],
    prefix: str,
    options: DispatchOptions,
    address: Address,
    make: Callable[[], Any],
) -> Session:
    """Return this process's home of a Redis, made at the first call."""
    key = place, prefix, options
    with _homes_lock:
        home = _homes.get(key)
        if home is None:
            home = _homes[key] = Session(address, make, prefix, options)
        return home


def homes() -> list[Session]:
    """Return every home of this process."""
    return list(_homes.values())


def _forget() -> None:
    """A forked child holds nothing of its parent's."""
    global _homes_lock
    _homes_lock = threading.Lock()
    for home in _homes.values():
        home.forget()


os.register_at_fork(after_in_child=_forget)
