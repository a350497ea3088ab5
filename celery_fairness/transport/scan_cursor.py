"""How a channel looks for what it takes, where it passes tasks over.

A look goes over all tenants, by as many claims as that needs. One that comes after a look in vain
rests whenever some claims have gone on with it, so that a crowd whose tasks this process does not
take costs it little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from celery_fairness.scheduler.types import Claim, Passing
from celery_fairness.transport.book import LeaseTable
from celery_fairness.transport.queue_shares import QueueShares
from celery_fairness.transport.task_filter import NOTHING, TaskFilter

#: A look that comes after one in vain rests for so many seconds whenever so many claims have gone
#: on with it.
LOOKS_AT_ONCE = 8
LOOK_SECONDS = 0.5


class ScanCursor:
    """Of one channel.

    Args:
        kinds: What its process does not take.
    """

    def __init__(self, kinds: TaskFilter) -> None:
        self._kinds = kinds
        #: By queue, how many tenants the last claim has passed over; and where the next goes on.
        self.passed: Mapping[str, int] = {}
        self._places: Mapping[str, int] = {}
        #: The last whole look found nothing that is taken, or tasks of limited kinds alone; and how
        #: many claims have gone on with the next one since it rested.
        self.in_vain = False
        self._claims = 0
        self._asked = NOTHING

    def ask(self, book: LeaseTable, rooms: QueueShares, is_strict: bool) -> Passing:
        """Return what the next claim passes over, of a process with this book and these shares.

        Args:
            book: What the process holds.
            rooms: Its shares.
            is_strict: The claim serves its queues one after the other.
        """
        passing, held, left = self._kinds.passing(self._places), book.of_queues(), rooms.left()
        if passing is self._asked is NOTHING and not (held or left or self._places or is_strict):
            return NOTHING
        # What may be taken again is taken from the front, and then the look goes on.
        opened = set(self._asked.never).difference(passing.never)
        places = {} if opened else self._places
        self._asked = replace(
            passing, places=places, held=held, rooms=left, lends=rooms.lends, strict=is_strict
        )
        return self._asked

    def hear(self, claim: Claim) -> float:
        """A claim was answered; return the seconds to sleep, 0 where the next is sent at once."""
        seconds = claim.sleep_ms / 1000
        self.passed = claim.passed
        if seconds:
            self.in_vain, self._places, self._claims = bool(claim.passed), {}, 0
        elif claim.tasks:
            self._places = self._places if self.in_vain else {}
        elif any(at > self._places.get(queue, 0) for queue, at in claim.passed.items()):
            # A look that one claim could not finish goes on; it found nothing yet.
            self._places = claim.passed
            self._claims += 1
            if self.in_vain and self._claims >= LOOKS_AT_ONCE:
                self._claims, seconds = 0, LOOK_SECONDS
        return min(seconds, self._kinds.opens_in(self._asked)) if claim.passed else seconds

    def found(self, kind: str) -> None:
        """A task was taken; one of a kind without a rate limit says that the look is worth it."""
        if not self._kinds.is_limited(kind):
            self.in_vain, self._places = False, {}
