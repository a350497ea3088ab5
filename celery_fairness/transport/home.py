"""One Redis as one process sees it: its book, its connections, and the thread that renews.

Every channel of the process that talks to the same Redis shares one home, and so do those that come
after a lost connection. A forked child makes its own.

    claimed --end--> noted --settle--> told
       ^ renewed at a third of a lease, by a native thread, until it ends
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.native import Bell, native_lock, start_thread
from celery_fairness.scheduling.words import Claimed, Obituary, Put, Verdict, Waiting
from celery_fairness.store import verbs
from celery_fairness.store.address import Address
from celery_fairness.store.connection import Connection
from celery_fairness.transport.book import Book, Held
from celery_fairness.transport.kinds import Kinds
from celery_fairness.transport.options import DispatchOptions

logger = logging.getLogger("celery_fairness")

#: Ends that one call tells.
SETTLE_AT_MOST = 64
#: Tasks that one claim asks for.
CLAIM_AT_MOST = 64
#: The same without a worker that says how many places it has.
CLAIM_WITHOUT_WORKER = 16
#: Leases that one call renews.
RENEW_AT_MOST = 250
#: Within what time Redis hears of an end, where no worker's loop turns, in seconds.
TELL_SECONDS = 0.01
#: Pause after a renewal that failed, in seconds.
AGAIN_SECONDS = 0.25


class Claimant:
    """Who claims: requests of one claimant are numbered, and one is open at a time.

    Attributes:
        process: Whose it is.
        owner: Its name in Redis.
        number: Of the open request, or of the next.
        sent_at: When that number was sent first (monotonic seconds).
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.owner = f"{self.process}-{uuid.uuid4().hex[:12]}"
        self.number = 1
        self.sent_at = 0.0
        self._sent = 0

    def sends(self) -> None:
        """The request is sent, for the first time or again."""
        if self._sent != self.number:
            self._sent, self.sent_at = self.number, monotonic()


class Home:
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
        self._address = address
        self._client, self._client_of_thread = make(), make()
        self.forget()

    def forget(self) -> None:
        """Hold nothing, as in the beginning: in a forked child all of it is the parent's."""
        self.book = Book()
        self.book.changed = self._wake
        #: What this process does not take now.
        self.kinds = Kinds()
        #: Free places are this less what is held; None without a worker.
        self.slots: Callable[[], int] | None = None
        #: No new claims: the worker is stopping.
        self.stopping = False
        #: Ends are told at once: no loop turns any more that would gather them.
        self.at_once = False
        #: The loop stands still while a body runs: it tells Redis nothing meanwhile.
        self.body_blocks_loop = False
        self._tells_soon = False
        #: Wakes the loops that claim.
        self.wakers: list[Callable[[], None]] = []
        #: Called, in a thread, when Redis lost its memory.
        self.on_memory_lost: Callable[[], None] = lambda: None
        #: Called, in a thread, with leases that ended while their tasks are here.
        self.on_leases_lost: Callable[[list[Held]], None] = lambda _lost: None
        #: Queues that expire and are consumed, each with how long it is kept, in ms.
        self.consumed: dict[str, int] = {}
        #: Whether Redis knew the scripts when last asked.
        self.scripts_known = False
        self._connection = Connection(self._address, make=lambda: self._client)
        # The thread that renews shares no lock with the threads or greenlets of the worker.
        self._of_thread = Connection(self._address, make=lambda: self._client_of_thread)
        self._asked = 0
        self._claimants: list[Claimant] = []
        self._lock = native_lock()
        self._bell = Bell()
        self._renewing = False
        self._renewed_at = 0.0
        self._closed = False
        self._epoch: int | None = None

    # -- places -----------------------------------------------------------------------------------

    def free(self) -> int:
        """Return how many tasks may be claimed now."""
        if self.stopping:
            return 0
        if self.slots is None:
            return CLAIM_WITHOUT_WORKER
        return max(0, min(CLAIM_AT_MOST, self.slots() - len(self.book) - self._asked))

    @property
    def claim_is_open(self) -> bool:
        """Whether an answer to a claim is on its way."""
        return self._asked > 0

    def asked(self, amount: int) -> None:
        """Count places that an open request may fill; negative when it is answered."""
        self._asked += amount

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
        """Run a script of the dispatch path and return its answer, with the errors of redis-py."""
        return self._connection.execute(verb, (self.prefix,), args)

    def put(self, waiting: Waiting, bindings: str = "", bound: Sequence[str] = ()) -> Put:
        """Begin to wait."""
        args = verbs.put_args(waiting, "", bindings, bound)
        return verbs.read_put(self.call(verbs.PUT, args))

    def mourn(self, written: str) -> Obituary | None:
        """Say which obituary was written, and take the next one."""
        return verbs.read_mourn(self.call(verbs.MOURN, verbs.mourn_args(written, self.rules)))

    def flush(self) -> None:
        """Tell Redis every end now; what it did not hear is kept."""
        self._tell(self.call)

    def tell_soon(self) -> None:
        """Let the thread tell Redis what no loop takes along within :data:`TELL_SECONDS`."""
        if not self._tells_soon:
            self._tells_soon = True
            self._bell.ring()

    def _tell(self, call: Callable[[str, list[str]], Any]) -> None:
        while ends := self.book.take_ends(SETTLE_AT_MOST):
            try:
                call(verbs.SETTLE, verbs.settle_args(ends, self.rules))
            except (RedisError, OSError, LimiterUnavailable) as error:
                self.book.give_back(ends)
                logger.error(
                    "%d ended tasks could not be told to %s: %s",
                    len(ends),
                    self._address,
                    str(error) or type(error).__name__,
                )
                return

    def hold(self, task: Any) -> Held | None:
        """Enter a claimed task and renew it from now on; None where it is known."""
        held = self.book.hold(task)
        if held is not None and not self._renewing:
            self._renew_from_now_on()
        return held

    def enter(self, claimant: Claimant, tasks: Iterable[Claimed]) -> list[tuple[Claimed, Held]]:
        """Hold what a claim gave, less what is held already and what took too long to get here."""
        entered = [(task, held) for task in tasks if (held := self.hold(task)) is not None]
        if not entered or monotonic() - claimant.sent_at < self.rules.lease_ms / 3000:
            return entered
        all_held = [held for _, held in entered]
        try:
            _, gone = self._renew_batch(self._connection, all_held, None)
        except BaseException:
            for held in all_held:
                self.book.end(held, Verdict.HEAD)
            raise
        for position in gone:
            self.book.drop(all_held[position - 1])
        return [(task, held) for task, held in entered if not held.ended]

    def is_lost(self, held: Held) -> bool:
        """Say whether the lease has ended; asks where nobody has renewed it for its length."""
        if monotonic() - max(held.since, self._renewed_at) >= self.rules.lease_ms / 1000:
            try:
                _, gone = self._renew_batch(self._connection, [held], None)
            except (RedisError, OSError):
                # Nothing ends while nobody can renew.
                return held.lost
            held.lost = bool(gone)
        return held.lost

    def _renew_from_now_on(self) -> None:
        with self._lock:
            if self._renewing:
                return
            self._renewing = True
        start_thread(self._renew_while_held)

    def channel_gone(self, leases: list[str]) -> None:
        """Give back what a closed channel delivered and no pool has."""
        for lease in leases:
            held = self.book.get(lease)
            if held is not None and not held.in_pool:
                self.book.end(held, Verdict.HEAD)
        self.flush()

    def stop(self) -> None:
        """Claim no more, and tell every end at once from now on."""
        self.stopping = True
        self.at_once = True
        self.flush()

    def start(self, slots: Callable[[], int]) -> None:
        """Claim for a worker that has ``slots()`` places."""
        self.slots = slots
        self.stopping = False
        self.at_once = False
        self._wake()

    def close(self) -> None:
        """Renew nothing any more, and close the connections."""
        self._closed = True
        self._bell.ring()
        self._connection.close()

    def _wake(self) -> None:
        if self.at_once:
            self.flush()
            return
        if self.slots is None:
            # Without a worker nobody knows when a loop turns again.
            self.tell_soon()
        for wake in list(self.wakers):
            wake()

    # -- renewal ----------------------------------------------------------------------------------

    def _renew_while_held(self) -> None:
        """Renew at a third of a lease; ends when nothing was held for a whole lease."""
        every = self.rules.lease_ms / 3000
        connection = self._of_thread
        _hurry(self._client_of_thread, every)
        quiet, renew_at = 0, monotonic() + every
        while quiet < 3 and not self._closed:
            self._bell.wait(renew_at - monotonic())
            if self._tells_soon:
                self._bell.wait(min(TELL_SECONDS, every))
                # Before it tells: an end that comes now rings again.
                self._tells_soon = False
                self._tell(lambda verb, args: connection.execute(verb, (self.prefix,), args))
            if monotonic() < renew_at or self._closed:
                continue
            held = self.book.held()
            quiet = 0 if held or self.book.has_ends else quiet + 1
            try:
                begun = monotonic()
                self._renew(connection, held)
                self._renewed_at = begun
                renew_at = monotonic() + every
                self._keep_consumed(connection)
                # While the worker makes a new connection nobody else tells them.
                self._tell(lambda verb, args: connection.execute(verb, (self.prefix,), args))
            except Exception as error:  # noqa: BLE001 - a thread that dies lets leases end
                logger.error("leases could not be renewed: %s", error or type(error).__name__)
                renew_at = monotonic() + min(AGAIN_SECONDS, every)
        connection.close()
        self._renewing = False
        if (self.book.held() or self.book.has_ends) and not self._closed:
            # Claimed just now, by somebody who saw this thread alive.
            self._renew_from_now_on()

    def _renew(self, connection: Connection, held: list[Held]) -> None:
        known = self._epoch
        lost = []
        for start in range(0, max(1, len(held)), RENEW_AT_MOST):
            batch = held[start : start + RENEW_AT_MOST]
            self._epoch, gone = self._renew_batch(connection, batch, known)
            for position in gone:
                each = batch[position - 1]
                if not each.ended and not each.lost:
                    each.lost = True
                    lost.append(each)
                    logger.error(
                        "the lease %s has ended while its task runs: another worker may run it",
                        each.lease,
                    )
        if lost:
            self.on_leases_lost(lost)
        if known is not None and self._epoch != known:
            # The script has entered them again.
            logger.error("Redis lost its memory: %d leases entered again", len(held))
            self.on_memory_lost()

    def _keep_consumed(self, connection: Connection) -> None:
        """Say that queues are in use, for a loop that may stand still while a body runs."""
        if self.consumed:
            args = verbs.unused_args(dict(self.consumed))
            connection.execute(verbs.UNUSED, (self.prefix,), args)

    def _renew_batch(
        self, connection: Connection, batch: list[Held], epoch: int | None
    ) -> tuple[int, list[int]]:
        leases = [(each.lease, each.key) for each in batch]
        args = verbs.renew_args(leases, self.rules.lease_ms, epoch)
        return verbs.read_renew(connection.execute(verbs.RENEW, (self.prefix,), args))


def _hurry(client: Any, seconds: float) -> None:
    """Let ``client`` wait no longer for an answer, unless the user said how long."""
    options = client.connection_pool.connection_kwargs
    for name in ("socket_timeout", "socket_connect_timeout"):
        if options.get(name) is None:
            options[name] = seconds


_homes: dict[tuple[tuple[str, ...], str, DispatchOptions], Home] = {}
_homes_lock = threading.Lock()


def home_of(
    place: tuple[str, ...],
    prefix: str,
    options: DispatchOptions,
    address: Address,
    make: Callable[[], Any],
) -> Home:
    """Return this process's home of a Redis, made at the first call."""
    key = place, prefix, options
    with _homes_lock:
        home = _homes.get(key)
        if home is None:
            home = _homes[key] = Home(address, make, prefix, options)
        return home


def homes() -> list[Home]:
    """Return every home of this process."""
    return list(_homes.values())


def _forget() -> None:
    """A forked child holds nothing of its parent's."""
    global _homes_lock
    _homes_lock = threading.Lock()
    for home in _homes.values():
        home.forget()


os.register_at_fork(after_in_child=_forget)
