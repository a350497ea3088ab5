"""The keeper: one native thread of a worker's main process that renews its leases.

Invariant: a lease whose attempt runs is renewed at every third of its time, from the moment the
pool accepted the attempt until its end was seen; so it can miss two renewals and live. A lease
whose pool child is gone is released, whatever the pool says or does not say about it: billiard
reports a death up to two seconds late, and a hard time limit up to 0.1 s before the child dies.

Every renewal moves the limiter's clock, so an idle worker renews an empty list.

Weakness: a C extension that keeps the interpreter lock stops this thread too, on the pools that run
bodies in the main process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.types import Lease
from celery_fairness.util.threads import Bell, start_thread
from celery_fairness.util.throttled_log import Notices

#: How often the children that hold leases are looked at, in seconds.
LOOK_SECONDS = 0.2
#: The same for children that should be gone any moment, in seconds.
LOOK_SOON_SECONDS = 0.02
#: Pause after a renewal or release that failed, in seconds.
AGAIN_SECONDS = 0.5
#: Longest wait of a stopping worker for its children to be gone, in seconds.
STOP_SECONDS = 2.0
#: In which an accepted task has got its slot, or was refused.
YOUNG_SECONDS = 1.0


@dataclass(slots=True)
class _Kept:
    """One lease that is kept.

    Attributes:
        lease: The lease.
        process_id: Whose death ends the attempt; our own where bodies run here.
        ending: The pool says that it ended without its body having been able to say so.
        epoch: Of the limiter's memory in which it is known; None: nobody has asked yet.
        since: When the pool accepted it.
        ending: The pool says that it ended without its body having been able to say so.
        entered_again: The limiter lost its memory while it ran; nobody else releases it then.
    """

    lease: Lease
    process_id: int
    epoch: int | None = None
    since: float = field(default_factory=time.monotonic)
    ending: bool = False
    entered_again: bool = False


class LeaseRenewer:
    """Keeps the leases of one worker.

    Args:
        limiter: Makes the limiter, inside the thread: the connection is its own.
        lease_seconds: How long a lease lives.
        notices: Where trouble is logged.
        republish: Called when the limiter lost its memory, to publish what it must know.
    """

    def __init__(
        self,
        limiter: Callable[[], Limiter],
        lease_seconds: float,
        notices: Notices,
        republish: Callable[[], None] = lambda: None,
    ) -> None:
        self._make_limiter = limiter
        self._every_seconds = lease_seconds / 3
        self._notices = notices
        self._republish = republish
        self._bell = Bell()
        self._kept: dict[str, _Kept] = {}
        # A thread runs for one process and one start; both change what it compares with.
        self._round = 0
        self._started: tuple[int, int] | None = None
        self._epoch: int | None = None
        #: The worker, as it announces itself; "" if it does not.
        self.worker = ""
        # Whether the thread looks after children; where it does not, it sleeps until it renews.
        self._looks = False
        # Bodies that began in children: while some do, the thread looks and need not be woken.
        self._accepted = 0

    def start(self) -> None:
        """Start the thread, unless this process has it."""
        now = (os.getpid(), self._round)
        if self._started != now:
            self._started = now
            start_thread(self._run)

    def accepted(self, lease: Lease, process_id: int) -> None:
        """Keep ``lease`` from now on; its body runs in the process ``process_id``."""
        self._kept[lease.id] = _Kept(lease, process_id, self._epoch)
        self.start()
        if process_id != os.getpid():
            self._accepted += 1
            if not self._looks:
                self._bell.ring()

    def ended(self, lease: Lease) -> None:
        """Stop keeping a lease that the body's own process has released."""
        kept = self._kept.get(lease.id)
        if kept is not None and kept.entered_again:
            self.lost(lease)
        else:
            self._kept.pop(lease.id, None)

    def lost(self, lease: Lease, *, process_is_gone: bool = True) -> None:
        """Release a lease that its body's process has not released.

        Args:
            lease: Of the attempt.
            process_is_gone: The process is gone or going: the lease is released when it is gone,
                and not before. False: the process lives and its attempt has ended.
        """
        kept = self._kept.get(lease.id)
        if kept is not None:
            if not process_is_gone:
                kept.process_id = os.getpid()
            kept.ending = True
            self._bell.ring()

    def held(self) -> list[Lease]:
        """Return the leases that are kept now."""
        return [kept.lease for kept in list(self._kept.values())]

    def stop(self, limiter: Limiter) -> None:
        """Stop the thread and release what dead children still hold."""
        self._round += 1
        self._bell.ring()
        self._withdraw(limiter)
        ends_at = time.monotonic() + STOP_SECONDS
        while self._release_dead(limiter) and time.monotonic() < ends_at:
            self._bell.wait(LOOK_SOON_SECONDS)

    def _withdraw(self, limiter: Limiter) -> None:
        worker, self.worker = self.worker, ""
        if worker:
            # Without an answer it is listed for one more lease.
            with contextlib.suppress(LimiterUnavailable):
                limiter.announce(worker, ends=True)

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
            except Exception as error:  # noqa: BLE001 - a keeper that dies lets leases end
                self._notices.error("keeper", "leases could not be looked after: %r", error)
                renew_at = max(renew_at, time.monotonic() + AGAIN_SECONDS)
            if self._accepted != seen:
                seen = self._accepted
                look_again = look_again or LOOK_SECONDS
            self._looks = look_again is not None
            if look_again is None and self._accepted != seen:
                continue  # Accepted since it looked, by somebody who saw it look.
            pause = renew_at - time.monotonic()
            self._bell.wait(pause if look_again is None else min(pause, look_again))

    def _renew(self, limiter: Limiter) -> float:
        """Renew everything that is kept; returns the seconds until the next time."""
        groups: dict[int | None, list[_Kept]] = {}
        for each in list(self._kept.values()):
            # An accepted task asks for its slot in a moment: what is entered for it meanwhile would
            # be the slot that it is to be refused.
            is_young = time.monotonic() - each.since < min(YOUNG_SECONDS, self._every_seconds)
            groups.setdefault(None if is_young else each.epoch, []).append(each)
        try:
            entered = 0
            for epoch, kept in (groups or {None: []}).items():
                seen, amount = self._renew_known(limiter, kept, epoch)
                entered += amount
            # Before the new epoch is taken over: a call that fails here is repeated.
            lost = limiter.announce(self.worker, self._epoch)
        except LimiterUnavailable as error:
            self._notices.error("renewal", "leases could not be renewed: %s", error)
            return min(AGAIN_SECONDS, self._every_seconds)
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
            try:
                self._republish()
            except Exception as error:  # noqa: BLE001 - leases go on whatever it is
                self._notices.error("republish", "tiers could not be published: %r", error)
        self._epoch = seen
        return self._every_seconds

    def _renew_known(
        self, limiter: Limiter, kept: Sequence[_Kept], epoch: int | None
    ) -> tuple[int, int]:
        """Renew leases that are known in one epoch, and enter again what is lost since.

        Returns:
            The epoch that there is, and the number of leases that were registered again.
        """
        answer = limiter.renew([each.lease for each in kept], epoch)
        missing = set(answer.entered)
        entered = [each for each in kept if each.lease in missing]
        for each in kept:
            if epoch is not None or each.epoch is None:
                each.epoch = answer.epoch
        for each in entered:
            each.entered_again = True
            if each.lease.id not in self._kept:
                # It ended while it was entered again.
                self._kept[each.lease.id] = _Kept(each.lease, os.getpid(), ending=True)
        return answer.epoch, len(entered)

    def _release_dead(self, limiter: Limiter) -> float | None:
        """Release the leases of processes that are gone.

        Returns:
            In how many seconds to look again; None where only our own process holds leases.
        """
        own = os.getpid()
        look_again: float | None = None
        dead = []
        for each in list(self._kept.values()):
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
                self._kept.pop(lease.id, None)
        return look_again


def _is_alive(process_id: int) -> bool:
    """Say whether a process still runs; one that has only not been waited for does not."""
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
