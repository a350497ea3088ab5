"""The keeper: one native thread of a worker's main process that renews its leases.

Invariant: a lease whose attempt runs is renewed at every third of its time, from the moment the
pool accepted the attempt until its end was seen; so it can miss two renewals and live. The thread
also releases what a dead pool child could not, once that child is really gone: the pool reports a
hard time limit up to 0.1 s before the child dies.

Every renewal moves the limiter's clock, so an idle worker renews an empty list.

Weakness: a C extension that keeps the interpreter lock stops this thread too, on the pools that run
bodies in the main process.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

from celery_fairness.decision import Lease
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.notice import Notices
from celery_fairness.worker.native import Bell, start_thread

#: Longest wait for a pool child to be gone before its slot is freed, in seconds.
DEATH_SECONDS = 2.0
#: How often a child that should be dead is looked at, in seconds.
DEATH_POLL_SECONDS = 0.02
#: Pause after a renewal that failed, in seconds.
AGAIN_SECONDS = 0.5


class Keeper:
    """Keeps the leases of one worker.

    Args:
        limiter: Makes the limiter, inside the thread: the connection is its own.
        lease_seconds: How long a lease lives.
        notices: Where trouble is logged.
    """

    def __init__(
        self, limiter: Callable[[], Limiter], lease_seconds: float, notices: Notices
    ) -> None:
        self._make_limiter = limiter
        self._every_seconds = lease_seconds / 3
        self._notices = notices
        self._bell = Bell()
        self._running: dict[str, Lease] = {}
        self._entered_again: set[str] = set()
        self._ended: deque[tuple[float, int, Lease]] = deque()
        # A thread runs for one process and one start; both change what it compares with.
        self._round = 0
        self._started: tuple[int, int] | None = None
        self._epoch: int | None = None

    def start(self) -> None:
        """Start the thread, unless this process has it."""
        now = (os.getpid(), self._round)
        if self._started != now:
            self._started = now
            start_thread(self._run)

    def accepted(self, lease: Lease) -> None:
        """Keep ``lease`` from now on."""
        self._running[lease.id] = lease
        self.start()

    def ended(self, lease: Lease, child: int | None = None) -> None:
        """Stop keeping ``lease``.

        Args:
            lease: Of the attempt that ended.
            child: The pool child that could not release it itself; None where it could.
        """
        self._running.pop(lease.id, None)
        again = lease.id in self._entered_again
        self._entered_again.discard(lease.id)
        if child is not None or again:
            self._ended.append((time.monotonic() + DEATH_SECONDS, child or os.getpid(), lease))
            self._bell.ring()

    def held(self) -> list[Lease]:
        """Return the leases that are kept now."""
        return list(self._running.values())

    def discard(self, lease: Lease) -> None:
        """Stop keeping a lease that the body's own process has released."""
        self._running.pop(lease.id, None)

    def stop(self, limiter: Limiter) -> None:
        """Stop the thread and release what dead children still hold."""
        self._round += 1
        self._bell.ring()
        self._settle(limiter, patient=True)

    def _run(self) -> None:
        started = self._started
        limiter = self._make_limiter()
        renew_at = time.monotonic()
        while started == (os.getpid(), self._round):
            settled = self._settle(limiter)
            if time.monotonic() >= renew_at:
                renew_at = time.monotonic() + self._renew(limiter)
            pause = renew_at - time.monotonic()
            self._bell.wait(pause if settled else min(pause, DEATH_POLL_SECONDS))

    def _renew(self, limiter: Limiter) -> float:
        """Renew everything that is kept; returns the seconds until the next time."""
        leases = self.held()
        try:
            answer = limiter.renew(leases, self._epoch)
        except LimiterUnavailable as error:
            self._notices.error("renewal", "leases could not be renewed: %s", error)
            return min(AGAIN_SECONDS, self._every_seconds)
        if self._epoch is not None and answer.epoch != self._epoch:
            self._notices.error(
                "memory",
                "the limiter's Redis lost its memory; %d leases entered again",
                len(leases),
            )
            # The pool may have released some of these a moment before: whatever ends from now on is
            # released from here as well.
            self._entered_again.update(lease.id for lease in leases)
            gone_meanwhile = [lease for lease in leases if lease.id not in self._running]
            self._entered_again.difference_update(lease.id for lease in gone_meanwhile)
            self._ended.extend((time.monotonic(), os.getpid(), lease) for lease in gone_meanwhile)
        self._epoch = answer.epoch
        return self._every_seconds

    def _settle(self, limiter: Limiter, *, patient: bool = False) -> bool:
        """Release the leases of children that are gone; returns whether none is left to do."""
        waiting = []
        ready = []
        while self._ended:
            item = self._ended.popleft()
            until, child, lease = item
            while patient and _is_alive(child) and time.monotonic() < until:
                self._bell.wait(DEATH_POLL_SECONDS)
            if _is_alive(child) and time.monotonic() < until:
                waiting.append(item)
            else:
                ready.append(lease)
        if ready:
            try:
                limiter.release(ready)
            except LimiterUnavailable as error:
                # They are no longer renewed, so they end by themselves.
                self._notices.error("release", "slots are freed a lease later: %s", error)
        self._ended.extend(waiting)
        return not waiting


def _is_alive(process_id: int) -> bool:
    """Say whether another process still runs; our own does not count: its bodies have ended."""
    if process_id == os.getpid():
        return False
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{process_id}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return True
