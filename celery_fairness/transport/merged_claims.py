"""The claims of a channel whose installation has several partitions.

One request has a claim for each partition that it takes tasks of, looks at, or sends ends to. It
also takes one partition from the bells of new tasks, so a channel that never sleeps finds them
too. All go in one write, and their answers come in the same order. A request whose answer is lost
is sent again under the same number to the same partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import Held
from celery_fairness.scheduler.types import Claimed, Settle
from celery_fairness.store.connection import pack
from celery_fairness.store.library import is_missing
from celery_fairness.transport.ring_merge import Look, RingMerge

if TYPE_CHECKING:
    from celery_fairness.transport.channel import FairMixin
    from celery_fairness.transport.session import Claimant


class MergedClaims:
    """The claims of one channel with several partitions."""

    def __init__(self, channel: FairMixin) -> None:
        self._channel = channel
        session = channel.session
        self.rings = RingMerge(session.partitions.count, session.task_filter)
        #: The claims of the open request, and the epochs that they carry.
        self._open: list[tuple[Look, int | None]] = []

    def bells(self, queues: Sequence[str]) -> list[str]:
        """Return the keys of the bells of ``queues``, first those for new tasks."""
        names = self._channel.session.names
        skipped = self.rings.skipped
        left = [queue for queue in queues if queue not in skipped]
        return [names.of("bell", f"new {queue}") for queue in queues] + [
            names.of("bell", f"left {queue}") for queue in left
        ]

    def send(self, connection: Any, queues: Sequence[str], want: int, ends: list[Settle]) -> None:
        """Send a request for ``want`` tasks of ``queues``, which carries ``ends``."""
        channel = self._channel
        session, claimant = channel.session, channel.claimant
        ends_of: dict[int, list[Settle]] = defaultdict(list)
        for end in ends:
            ends_of[session.partitions.of_tag(end.lease)].append(end)
        if claimant.unanswered:
            looks = _again(claimant.unanswered, want)
        else:
            without_room = [each for each in channel.fair_queues if each not in queues]
            looks = self.rings.plan(
                *(queues, want, monotonic(), channel.is_strict, channel.takes_of_one_partition),
                without_room,
            )
        planned = {look.partition for look in looks}
        looks += [Look(number) for number in ends_of if number not in planned]
        is_first = claimant.mark_sent()
        floors = self.rings.floors(queues)
        # Tasks that a claim has left are for workers that sleep.
        bells = self.bells(queues)[: len(queues)]
        packed = [pack(("LMPOP", len(bells), *bells, "LEFT"))]
        self._open = []
        for look in looks:
            number = look.partition
            epoch = session.renewals.epochs[number]
            args = calls.claim_args(
                *(claimant.owner, claimant.number, look.want, queues, session.rules),
                skipped=self.rings.cursor(number).next_skip(
                    session.lease_table, channel.queue_shares, channel.is_strict
                ),
                epoch=epoch,
                ends=ends_of[number],
                is_first=is_first,
                ring=ring_args(look, floors),
            )
            packed.append(channel.command(calls.CLAIM, args, number))
            self._open.append((look, epoch))
        claimant.unanswered = {look.partition: look.want for look, _ in self._open}
        connection.send_packed_command([b"".join(packed)])

    def read(self, claimant: Claimant) -> list[tuple[Claimed, Held]]:
        """Read the answers of the open request, and return the tasks that it brought."""
        channel = self._channel
        session, opened = channel.session, self._open
        bell, *answers = [channel.read_or_error() for _ in range(len(opened) + 1)]
        for answer in answers:
            if isinstance(answer, ResponseError):
                if not is_missing(answer):
                    raise answer
                channel.load_library()
                return []
        # Redis has the ends of the request.
        channel.ends_arrived()
        claims = [calls.read_claim(answer, in_partition=True) for answer in answers]
        # In another epoch Redis neither served a claim nor repeated a lost answer.
        if all(
            epoch in (None, claim.epoch) for (_, epoch), claim in zip(opened, claims, strict=True)
        ):
            claimant.number += 1
            claimant.unanswered = {}
        if isinstance(bell, list):
            self.rings.look_again(int(bell[1][0]), is_woken=False)
        entered, now = [], monotonic()
        for (look, _), claim in zip(opened, claims, strict=True):
            self.rings.read(look, claim, now)
            session.ring_bells(look.partition, claim)
            entered += session.enter(claimant, claim, channel.serves_worker, look.partition)
        return entered


def _again(unanswered: Mapping[int, int], want: int) -> list[Look]:
    """Return the claims of an unanswered request, which may find fewer free places now."""
    looks = []
    for number, most in unanswered.items():
        looks.append(Look(number, min(most, want)))
        want -= looks[-1].want
    return looks


def ring_args(look: Look, floors: dict[str, float]) -> dict[str, Any]:
    """Return what a claim carries of the rings, as ``rings.lua`` reads it."""
    tills = {queue: [first.start, str(9 - first.behind)] for queue, first in look.tills.items()}
    return {"floors": floors, "tills": tills, "is_woken": look.is_woken}
