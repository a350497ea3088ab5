"""The lease renewer: one native thread of a worker's main process that renews its leases.

Invariant: the thread renews the lease of a running attempt at every third of its length, from the
moment the pool accepted the attempt until its end. A lease can thus miss two renewals. If the pool
child of a lease is gone, the thread releases the lease without the pool's report. billiard reports
a death up to two seconds late, and a hard time limit up to 0.1 s before the child dies.

Every renewal moves the limiter's clock, so an idle worker renews an empty list.

Weakness: on pools that run bodies in the main process, a C extension that keeps the interpreter
lock stops this thread too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Lease
from celery_fairness.util.threads import Bell, start_thread
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: How often the thread checks the processes that hold leases, in seconds.
LOOK_SECONDS = 0.2
#: The same for processes that are about to end, in seconds.
LOOK_SOON_SECONDS = 0.02
#: Pause after a renewal or release that failed, in seconds.
AGAIN_SECONDS = 0.5
#: Longest wait of a stopping worker for the end of its pool children, in seconds.
STOP_SECONDS = 2.0
#: Within this time the gate gets an accepted task's slot or a rejection, in seconds.
YOUNG_SECONDS = 1.0


@dataclass(slots=True)
class _Renewed:
    """One lease that the thread renews.

    Attributes:
        lease: The lease.
        process_id: The process that runs the body, or the main process on pools without children.
        epoch: The epoch of the limiter that has the lease, or None before the first renewal.
        since: When the pool accepted the attempt (monotonic seconds).
        ending: The pool reported an end that the body's process did not report.
        re_registered: The limiter lost its memory during the attempt. The renewer then releases the
        lease, because the body's release may have come before.
    """

    lease: Lease
    process_id: int
    epoch: int | None = None
    since: float = field(default_factory=time.monotonic)
    ending: bool = False
    re_registered: bool = False


class LeaseRenewer:
    """Renews the leases of one worker.

    Args:
        limiter: Makes the limiter, inside the thread, with a connection of its own.
        on_memory_lost: Called in the thread when the limiter may have lost its memory.
    """

    def __init__(
        self,
        limiter: Callable[[], Limiter],
        lease_seconds: float,
        notices: Notices,
        on_memory_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._make_limiter = limiter
        self._every_seconds = lease_seconds / 3
        self._notices = notices
        self._on_memory_lost = on_memory_lost
        self._bell = Bell()
        self._leases: dict[str, _Renewed] = {}
        # A thread runs for one process and one start. It ends when either number changes.
        self._round = 0
        self._started: tuple[int, int] | None = None
        self._epoch: int | None = None
        #: Returns the worker's announcement; None for no announcement.
        self.worker: Callable[[], str] | None = None
        #: The limits that the worker's app declares, as text.
        self.limits: Sequence[str] = ()
        self._announced = ""
        # Whether the thread checks pool children. Otherwise it sleeps until the next renewal.
        self._looks = False
        # Whether the last renewal failed.
        self._fails = False
        # Attempts that children have accepted. A change keeps the thread checking, without a bell.
        self._accepted = 0

    def start(self) -> None:
        """Start the thread, unless this process has it."""
        now = (os.getpid(), self._round)
        if self._started != now:
            self._started = now
            start_thread(self._run)

    def accepted(self, lease: Lease, process_id: int) -> None:
        """Renew ``lease`` from now on; its body runs in the process ``process_id``."""
        self._leases[lease.id] = _Renewed(lease, process_id, self._epoch)
        self.start()
        if process_id != os.getpid():
            self._accepted += 1
            if not self._looks:
                self._bell.ring()

    def ended(self, lease: Lease) -> None:
        """Stop renewing a lease that the body's own process has released."""
        kept = self._leases.get(lease.id)
        if kept is not None and kept.re_registered:
            self.lost(lease)
        else:
            self._leases.pop(lease.id, None)

    def lost(self, lease: Lease, *, process_is_gone: bool = True) -> None:
        """Release a lease that its body's process has not released.

        If the process has ended or is about to, the thread releases the lease after its end.
        Otherwise the process lives, and its attempt has ended.
        """
        kept = self._leases.get(lease.id)
        if kept is not None:
            if not process_is_gone:
                kept.process_id = os.getpid()
            kept.ending = True
            self._bell.ring()

    def held(self) -> list[Lease]:
        """Return the leases that the thread renews now."""
        return [kept.lease for kept in list(self._leases.values())]

    def stop(self, limiter: Limiter) -> None:
        """Stop the thread, end the worker's announcement, and release leases of dead children."""
        self._round += 1
        self._bell.ring()
        worker, self._announced, self.worker = self._announced, "", None
        if worker:
            # If the call fails, the worker stays listed for one more lease.
            with contextlib.suppress(LimiterUnavailable):
                limiter.announce(worker, ends=True)
        ends_at = time.monotonic() + STOP_SECONDS
        while self._release_dead(limiter) and time.monotonic() < ends_at:
            self._bell.wait(LOOK_SOON_SECONDS)

    def _run(self) -> None:
        started = self._started
        limiter = self._make_limiter()
        renew_at = time.monotonic()
        seen = self._accepted
        while started == (os.getpid(), self._round):
            look_again: float | None = AGAIN_SECONDS
            try:
                look_again = self._release_dead(limiter)
                if time.monotonic() >= renew_at:
                    renew_at = time.monotonic() + self._renew(limiter)
            except Exception as error:  # noqa: BLE001 - leases would end
                self._notices.error("renewer", "leases could not be renewed or released: %r", error)
                renew_at = max(renew_at, time.monotonic() + AGAIN_SECONDS)
            if self._accepted != seen:
                seen = self._accepted
                look_again = look_again or LOOK_SECONDS
            self._looks = look_again is not None
            if look_again is None and self._accepted != seen:
                continue  # The pool accepted an attempt after the check, without a bell.
            pause = renew_at - time.monotonic()
            self._bell.wait(pause if look_again is None else min(pause, look_again))

    def _renew(self, limiter: Limiter) -> float:
        """Renew all leases; return the seconds until the next renewal."""
        groups: dict[int | None, list[_Renewed]] = {}
        for each in list(self._leases.values()):
            # The gate takes the slot of an accepted task soon. A lease that a renewal registers
            # before that takes the slot, even if the gate is about to be rejected.
            is_young = time.monotonic() - each.since < min(YOUNG_SECONDS, self._every_seconds)
            groups.setdefault(None if is_young else each.epoch, []).append(each)
        try:
            entered = 0
            for epoch, kept in (groups or {None: []}).items():
                seen, amount = self._renew_epoch(limiter, kept, epoch)
                entered += amount
            # The new epoch is stored only after this call, so that a failed call runs again.
            self._announced = self.worker() if self.worker else ""
            lost = limiter.announce(self._announced, self._epoch, limits=self.limits)
        except LimiterUnavailable as error:
            self._notices.error("renewal", "leases could not be renewed: %s", error)
            self._fails = True
            return min(AGAIN_SECONDS, self._every_seconds)
        if self._fails:
            self._fails = False
            logger.info("leases are renewed again")
        if lost:
            self._notices.error(
                "memory",
                "the limiter's Redis lost its memory: the parked tasks, pauses, overrides and "
                "counts that it held are gone; leases registered again: %d",
                entered,
            )
        elif entered:
            self._notices.error(
                "missing",
                "the limiter's Redis did not have all leases of this worker; registered again: %d",
                entered,
            )
        if self._epoch is not None and seen != self._epoch:
            self._on_memory_lost()
        self._epoch = seen
        return self._every_seconds

    def _renew_epoch(
        self, limiter: Limiter, kept: Sequence[_Renewed], epoch: int | None
    ) -> tuple[int, int]:
        """Renew the leases of one epoch, and register again those that the limiter lost since.

        Returns:
            The current epoch, and the number of leases that were registered again.
        """
        answer = limiter.renew([each.lease for each in kept], epoch)
        missing = set(answer.entered)
        entered = [each for each in kept if each.lease in missing]
        for each in kept:
            if epoch is not None or each.epoch is None:
                each.epoch = answer.epoch
        for each in entered:
            each.re_registered = True
            if each.lease.id not in self._leases:
                # The attempt ended during the call.
                self._leases[each.lease.id] = _Renewed(each.lease, os.getpid(), ending=True)
        return answer.epoch, len(entered)

    def _release_dead(self, limiter: Limiter) -> float | None:
        """Release the leases of processes that have ended.

        Returns:
            The seconds until the next check, or None if only the main process holds leases.
        """
        own = os.getpid()
        look_again: float | None = None
        dead = []
        for each in list(self._leases.values()):
            if each.process_id == own:
                gone = each.ending
            else:
                gone = not _is_alive(each.process_id)
            if gone:
                dead.append(each.lease)
            elif each.process_id != own:
                soon = LOOK_SOON_SECONDS if each.ending else LOOK_SECONDS
                look_again = soon if look_again is None else min(look_again, soon)
        if dead:
            try:
                limiter.release(dead, died=True)
            except LimiterUnavailable as error:
                self._notices.error("release", "slots of dead processes stay taken: %s", error)
                return AGAIN_SECONDS
            for lease in dead:
                self._leases.pop(lease.id, None)
        return look_again


def _is_alive(process_id: int) -> bool:
    """Return whether a process still runs. A zombie does not."""
    try:
        with open(f"/proc/{process_id}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        pass
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
