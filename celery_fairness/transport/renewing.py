"""Renewals: what keeps the leases of one process alive, and its claims honest about lost memory.

Invariant: ``epoch`` changes to another only after all that is held was entered there. A claim names
it, and is given nothing where Redis is in another one: so what is held counts before it is served.
A renewal is where Redis notices that its memory is not what it was; before the first claim on a new
connection somebody asks with an empty one.

    held --a third of a lease, or a claim that heard of another epoch--> renewed

A native thread renews. It sleeps while nothing is held, and lives as long as its home: a connection
and, under gevent, a loop of its own are made once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from celery_fairness.scheduler import calls
from celery_fairness.store.connection import Connection
from celery_fairness.transport.book import Held, LeaseTable
from celery_fairness.util.threads import Bell, native_lock, start_thread
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: Leases that one call renews.
RENEW_AT_MOST = 250
#: Within what time Redis hears of an end, where no worker's loop turns, in seconds.
TELL_SECONDS = 0.01
#: Pause after a renewal that failed, in seconds.
AGAIN_SECONDS = 0.25
#: The thread sleeps when nothing was held at so many renewals in a row: for a whole lease.
QUIET_AT_MOST = 3
#: How long it sleeps at most, in seconds.
SLEEP_SECONDS = 3600.0

#: Runs a function and returns its answer.
Call = Callable[[str, list[str]], Any]


class Renewed(NamedTuple):
    """What a renewal found.

    Attributes:
        epoch: In which all of it is known now.
        gone: Leases that had ended.
        entered: Leases that the memory had lost.
    """

    epoch: int
    gone: list[Held]
    entered: list[Held]


class Renewals:
    """Of one home.

    Args:
        book: What is held.
        client: Of redis-py, for the thread alone.
        connection: On that client: the thread shares no lock with threads or greenlets.
        prefix: What every key begins with.
        lease_ms: How long a lease lives without a renewal.
        tell: Tells Redis the ends in the book.
        keep: Tells Redis what else is kept while something is held.
    """

    def __init__(
        self,
        book: LeaseTable,
        client: Any,
        connection: Connection,
        prefix: str,
        lease_ms: int,
        tell: Callable[[Call], None],
        keep: Callable[[Call], None],
    ) -> None:
        self._book, self._client, self._connection = book, client, connection
        self._prefix, self._lease_ms, self._tell, self._keep = prefix, lease_ms, tell, keep
        #: That of the memory in which all that is held is known; None before the first answer.
        self.epoch: int | None = None
        #: When all that was held then was renewed last (monotonic seconds).
        self.renewed_at = 0.0
        #: Whether the thread lives.
        self.runs = False
        #: The worker of this process, as it announces itself; "" if it has none.
        self.worker = ""
        #: Called, in the thread, when Redis may have lost its memory.
        self.on_memory_lost: Callable[[], None] = lambda: None
        #: Called, in the thread, with leases that ended while their tasks are here.
        self.on_leases_lost: Callable[[list[Held]], None] = lambda _lost: None
        self._notices = Notices(logger)
        self._lock = native_lock()
        #: Held while the thread has taken ends out of the book and Redis has not answered.
        self._telling = native_lock()
        self._bell = Bell()
        self._sleeps = self._tells_soon = self._at_once = self._closed = False

    # -- from anywhere ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Renew from now on: something is held."""
        if not self.runs:
            with self._lock:
                starts, self.runs = not self.runs, True
            if starts:
                start_thread(self._run)
        elif self._sleeps:
            self._bell.ring()

    def hears(self, epoch: int) -> None:
        """An answer was given in ``epoch``: in another than ours all is renewed now."""
        if self.epoch is None:
            self.epoch = epoch
        elif epoch != self.epoch:
            self._at_once = True
            self.begin()
            self._bell.ring()

    def tell_soon(self) -> None:
        """Let the thread tell Redis what no loop takes along within :data:`TELL_SECONDS`."""
        if not self._tells_soon:
            self._tells_soon = True
            self._bell.ring()

    def announce(self, worker: str) -> None:
        """Announce ``worker`` now and with each renewal, which go on while nothing is held."""
        self.worker, self._at_once = worker, True
        self.begin()
        self._bell.ring()

    def withdraw(self, call: Call) -> None:
        """Announce the worker no more: it ends."""
        worker, self.worker = self.worker, ""
        if worker:
            call(calls.ANNOUNCE, calls.announce_args(self._lease_ms, worker, 0, None))

    def await_told(self) -> None:
        """Wait until Redis has the ends that the thread has taken out of the book."""
        with self._telling:
            pass

    def close(self) -> None:
        """Renew nothing any more."""
        self._closed = True
        self._bell.ring()

    def renew_batch(self, call: Call, batch: list[Held], epoch: int | None) -> Renewed:
        """Renew what is known in ``epoch``."""
        leases = [(each.lease, each.key) for each in batch]
        args = calls.renew_args(leases, self._lease_ms, epoch)
        answered, positions = calls.read_renew(call(calls.RENEW, args))
        for each in batch:
            each.epoch = answered
        missing = [batch[position - 1] for position in positions]
        lost = epoch not in (None, answered)
        return Renewed(answered, [] if lost else missing, missing if lost else [])

    def meet(self, call: Call) -> None:
        """Ask in which epoch Redis is, before anything is claimed on a new connection."""
        self.hears(self.renew_batch(call, [], None).epoch)

    def renew(self, call: Call) -> None:
        """Renew all that is held; where Redis lost its memory the function enters it again."""
        known, held, answers = self.epoch, self._book.held(), list[Renewed]()
        by_epoch: dict[int | None, list[Held]] = defaultdict(list)
        for each in held:
            by_epoch[each.epoch].append(each)
        # With nothing held it moves the clock.
        for epoch, known_there in (by_epoch or {known: []}).items():
            for start in range(0, max(1, len(known_there)), RENEW_AT_MOST):
                batch = known_there[start : start + RENEW_AT_MOST]
                answers.append(self.renew_batch(call, batch, epoch))
        gone = [each for answer in answers for each in answer.gone]
        self._say_lost([each for each in gone if not each.ended and not each.lost])
        epoch = answers[0].epoch
        changed, lost = known not in (None, epoch), False
        if self.worker or changed:
            # Before the new epoch is taken over: a call that fails here is repeated.
            args = calls.announce_args(self._lease_ms, self.worker, self._lease_ms, known)
            lost = calls.read_announce(call(calls.ANNOUNCE, args))
        # Where it changed meanwhile the first one is refused, and the rest is entered then.
        self.epoch = epoch
        if any(each.epoch != self.epoch for each in self._book.held()):
            self._at_once = True
        if changed:
            entered = [each for answer in answers for each in answer.entered if not each.ended]
            self._say_changed(lost, len(entered), len(held))
            # What lies there beside leases may be older all the same.
            self.on_memory_lost()

    def _say_changed(self, lost: bool, entered: int, held: int) -> None:
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

    def _say_lost(self, lost: list[Held]) -> None:
        for each in lost:
            each.lost = True
            logger.error(
                "the lease %s has ended while its task runs: another worker may run it", each.lease
            )
        if lost:
            self.on_leases_lost(lost)

    # -- in the thread ----------------------------------------------------------------------------

    def _call(self, verb: str, args: list[str]) -> Any:
        return self._connection.execute(verb, self._prefix, args)

    def _run(self) -> None:
        every = self._lease_ms / 3000
        _hurry(self._client, every)
        quiet, renew_at, not_before = 0, monotonic() + every, 0.0
        while not self._closed:
            self._sleeps = quiet >= QUIET_AT_MOST
            # Who holds something now has not seen that it sleeps, or rings.
            sleeps = self._sleeps and not self._has_work
            if sleeps:
                self._bell.wait(SLEEP_SECONDS)
                quiet, renew_at = 0, monotonic() + every
            elif not self._at_once or monotonic() < not_before:
                self._bell.wait(renew_at - monotonic())
            if self._tells_soon:
                self._bell.wait(min(TELL_SECONDS, every))
                # Before it tells: an end that comes now rings again.
                self._tells_soon = False
                with self._telling:
                    self._tell(self._call)
            if self._closed or monotonic() < (not_before if self._at_once else renew_at):
                continue
            if not (self._at_once or self._has_work):
                quiet, renew_at = quiet + 1, monotonic() + every
                continue
            self._at_once, quiet = False, 0
            try:
                begun = monotonic()
                self.renew(self._call)
                self.renewed_at = begun
                renew_at = monotonic() + every
                self._keep(self._call)
                # While the worker makes a new connection nobody else tells them.
                with self._telling:
                    self._tell(self._call)
            except Exception as error:  # noqa: BLE001 - a thread that dies lets leases end
                text = error or type(error).__name__
                self._notices.error("renew", "leases could not be renewed: %s", text)
                renew_at = not_before = monotonic() + min(AGAIN_SECONDS, every)
        self._connection.close()
        self.runs = False

    @property
    def _has_work(self) -> bool:
        return bool(self.worker) or bool(self._book.held()) or self._book.has_ends


def _hurry(client: Any, seconds: float) -> None:
    """Let ``client`` wait no longer for an answer, unless the user said how long."""
    options = client.connection_pool.connection_kwargs
    for name in ("socket_timeout", "socket_connect_timeout"):
        if options.get(name) is None:
            options[name] = seconds
