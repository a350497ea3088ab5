"""The claims of a channel whose installation has several partitions.

Each server has a lane (lanes.py). At each turn of the loop, each lane without an open request may
send one. It has a claim for each of its partitions that the channel takes tasks of, looks at, or
sends ends to. The lane of the home also takes one partition from the bells of new tasks, so a
channel that never sleeps finds them too. A claim whose answer is lost is sent again under the same
number.

The channel sleeps at the bells of the home, on kombu's own connection, if no partition has
anything to do.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as AnswerLate

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import Held
from celery_fairness.scheduler.types import Claimed, Verdict
from celery_fairness.store.cluster import NotServed
from celery_fairness.store.connection import pack
from celery_fairness.store.library import is_missing
from celery_fairness.store.partitions import other_number
from celery_fairness.store.readiness import ServerNotReady
from celery_fairness.store.servers import Server
from celery_fairness.transport.lanes import (
    LATE_SECONDS,
    LOST_SECONDS,
    Bell,
    Call,
    Claiming,
    Greeting,
    Lane,
    Ring,
)
from celery_fairness.transport.ring_merge import Look, RingMerge

if TYPE_CHECKING:
    from celery_fairness.transport.channel import FairMixin

#: Pause before a partition is tried again whose node does not serve it, in seconds.
PAUSE_SECONDS = 0.5

Entered = list[tuple[Claimed, Held]]


class MergedClaims:
    """The claims of one channel with several partitions."""

    def __init__(self, channel: FairMixin) -> None:
        self._channel = channel
        self._session = session = channel.session
        self.rings = RingMerge(session.partitions.count, session.task_filter)
        self._lanes: dict[Server, Lane] = {}
        #: Partitions whose open claim lost its answer with its connection.
        self._unanswered = set(channel.claimant.unanswered)
        #: Partitions that their nodes do not serve, and when to try again (monotonic seconds).
        self._paused: dict[int | None, float] = {}
        #: By partition, the bells that go to the home with its next request.
        self._rings: dict[int, Ring] = {}

    # -- what is open -----------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether an answer is expected soon."""
        return any(lane.is_open and not lane.is_late for lane in self._lanes.values())

    @property
    def awaited(self) -> Any:
        """The connection of the only open request; None if there is another number of them."""
        opened = [lane for lane in self._lanes.values() if lane.is_open]
        return opened[0].connection if len(opened) == 1 else None

    def want(self) -> int:
        """Return the number of tasks that the next requests may take."""
        channel, want = self._channel, self._channel.want()
        if not (channel.serves_worker and self._session.slots):
            # The session counts the open requests for the places of a worker alone.
            want -= sum(lane.wants for lane in self._lanes.values())
        return max(0, want)

    # -- sending ----------------------------------------------------------------------------------

    def turn(self) -> None:
        """Send a request on each lane that has something to do and no open one."""
        now = monotonic()
        self._look_after_lanes(now)
        want, table = self.want(), self._session.lease_table
        if not (want or table.has_ends or self._rings):
            return
        ended = {self._session.partitions.of_tag(lease) for lease in table.ended(frees=True)}
        ready, unmet = self._ready()
        looks = self._looks(want, now, ready) if want else {}
        takes = bool(looks)
        for each in ended:
            if each in ready and each not in looks:
                looks[each] = Look(each)
        requests: dict[Lane, list[Call]] = defaultdict(list)
        for new, lane in unmet.items():
            requests[lane].append(Greeting(new))
        if home := ready.get(None):
            requests[home] += [Bell()] if takes else []
            requests[home] += self._rings.values()
            self._rings = {}
        for number, look in looks.items():
            requests[ready[number]].append(self._claiming(look))
        for lane, planned in requests.items():
            if lane.server.place and None not in lane.met and Greeting(None) not in planned:
                # Each server of a list has its place.
                planned.insert(0, Greeting(None))
            if planned:
                self._send(lane, planned)

    def _ready(self) -> tuple[dict[int | None, Lane], dict[int | None, Lane]]:
        """Return the lane of each partition that may send to it now, None for the home.

        Returns:
            These, and the lanes of partitions that they have not met. The turn looks for no lane
            again: a thread may move a partition meanwhile to a lane with an open request.
        """
        servers = self._session.servers
        ready: dict[int | None, Lane] = {}
        unmet: dict[int | None, Lane] = {}
        free: dict[Server, Lane | None] = {}
        numbers: list[int | None] = [None, *self._session.partitions]
        for number in numbers:
            if number in self._paused:
                continue
            server = servers.of(number)
            if server not in free:
                free[server] = self._free_lane(server)
            if lane := free[server]:
                (ready if number in lane.met else unmet)[number] = lane
        return ready, unmet

    def _free_lane(self, server: Server) -> Lane | None:
        """Return the lane of a server; None if the server is away, or its request is open."""
        lane = self._lanes.get(server)
        if server.problem or (lane is not None and lane.is_open):
            return None
        return lane if lane is not None and lane.is_connected else self._connected(server)

    def _connected(self, server: Server) -> Lane | None:
        """Connect the lane of a server; return None if the server does not answer."""
        lane = self._lanes.get(server)
        if lane is None:
            lane = self._lanes[server] = Lane(server, self._channel.client_of(server))
        try:
            lane.connect()
        except (ConnectionLost, AnswerLate, OSError) as error:
            self._lost(lane, error)
            return None
        self._channel.connection.cycle.add_lane(self._channel, lane)
        return lane

    def _looks(self, want: int, now: float, ready: dict[int | None, Lane]) -> dict[int, Look]:
        """Return the claims of the next requests, by partition."""
        channel = self._channel
        takes_of_one = channel.takes_of_one_partition
        if takes_of_one and self.is_busy:
            return {}
        queues, _ = channel.queues_in_turn()
        without_room = [each for each in channel.fair_queues if each not in queues]
        looks = {}
        for number in sorted(each for each in self._unanswered if each in ready):
            # There may be fewer free places now.
            looks[number] = Look(number, min(channel.claimant.unanswered.get(number, 0), want))
            want -= looks[number].want
        busy = {each for each in self._session.partitions if each not in ready} | self._unanswered
        if want and queues and not (takes_of_one and looks):
            planned = self.rings.plan(
                *(queues, want, now, channel.is_strict, takes_of_one, without_room, busy)
            )
            looks |= {look.partition: look for look in planned}
        return looks

    def _claiming(self, look: Look) -> Claiming:
        return Claiming(
            look,
            self._session.renewals.epochs[look.partition],
            self._session.take_ends(look.partition),
            look.partition in self._unanswered,
        )

    def _send(self, lane: Lane, planned: list[Call]) -> None:
        queues, _ = self._channel.queues_in_turn()
        packed = [self._packed(lane, call, queues) for call in planned]
        for call in planned:
            if isinstance(call, Claiming):
                number = call.look.partition
                self._unanswered.discard(number)
                self._channel.claimant.unanswered[number] = call.look.want
        try:
            lane.send(planned, packed)
        except (ConnectionLost, AnswerLate, OSError) as error:
            self._lost(lane, error, counted=False)
            return
        self._session.count_open(lane.wants, self._channel.serves_worker)
        if self._session.servers.are_several:
            self._channel.connection.cycle.wake_in(LATE_SECONDS)

    def _packed(self, lane: Lane, call: Call, queues: Sequence[str]) -> bytes:
        session, channel = self._session, self._channel
        match call:
            case Greeting(None):
                args = calls.epoch_args(
                    session.rules.lease_ms, session.partitions.count, place=lane.server.place
                )
                return channel.command(calls.EPOCH, args)
            case Greeting(partition):
                return channel.command(
                    calls.EPOCH, calls.epoch_args(session.rules.lease_ms, None), partition
                )
            case Ring(partition, new, left):
                return channel.command(calls.RING, calls.ring_args(partition, [*new], [*left]))
            case Claiming():
                return self._packed_claim(call, queues)
        # Tasks that a claim has left are for workers that sleep.
        bells = self.bells(queues)[: len(queues)]
        return pack(("LMPOP", len(bells), *bells, "LEFT"))

    def _packed_claim(self, call: Claiming, queues: Sequence[str]) -> bytes:
        session, channel, look = self._session, self._channel, call.look
        claimant, number = channel.claimant, look.partition
        args = calls.claim_args(
            *(claimant.owner, claimant.numbers[number], look.want, queues, session.rules),
            skipped=self.rings.cursor(number).next_skip(
                session.lease_table, channel.queue_shares, channel.is_strict
            ),
            epoch=call.epoch,
            ends=call.ends,
            is_first=claimant.mark_sent(number),
            ring=ring_args(look, self.rings.floors(queues)),
        )
        return channel.command(calls.CLAIM, args, number)

    # -- reading ----------------------------------------------------------------------------------

    def read(self, lane: Lane) -> Entered:
        """Read the answers to the open request of a lane, and return the tasks that it brought."""
        if not lane.is_open:
            # The server has closed an idle connection.
            lane.close()
            return []
        try:
            answers = [_read_or_error(lane.connection) for _ in lane.calls]
        except (ConnectionLost, AnswerLate, OSError) as error:
            self._lost(lane, error)
            return []
        planned, was_late = lane.calls, lane.is_late
        lane.server.is_late = False
        self._session.count_open(-lane.wants, self._channel.serves_worker)
        lane.drop()
        entered: Entered = []
        for position, (call, answer) in enumerate(zip(planned, answers, strict=True)):
            try:
                entered += self._take(lane, call, answer, was_late)
            except BaseException:
                for later in planned[position:]:
                    self._has_no_answer(later)
                raise
        return entered

    def _take(self, lane: Lane, call: Call, answer: Any, was_late: bool) -> Entered:
        """Use one answer."""
        if isinstance(answer, NotServed):
            self._has_no_answer(call)
            self._not_served(lane, call, answer)
            return []
        if isinstance(answer, ResponseError):
            self._has_no_answer(call)
            self._failed(lane, call, answer)
            return []
        match call:
            case Greeting(partition):
                lane.met.add(partition)
                if partition is not None:
                    self._session.renewals.saw_epoch(int(answer), partition)
            case Bell() if isinstance(answer, list):
                self.rings.look_again(int(answer[1][0]), is_woken=False)
            case Claiming():
                return self._take_claim(call, answer, was_late)
        return []

    def _take_claim(self, call: Claiming, answer: Any, was_late: bool) -> Entered:
        session, channel, look = self._session, self._channel, call.look
        claim = calls.read_claim(answer, in_partition=True)
        if call.epoch in (None, claim.epoch):
            channel.claimant.mark_answered(look.partition)
        else:
            # In another epoch Redis neither served the claim nor repeated a lost answer.
            self._unanswered.add(look.partition)
        self.rings.read(look, claim, monotonic())
        new, left = claim.ring.get("new", ()), claim.ring.get("left", ())
        if new or left:
            self._ring(look.partition, new, left)
        session.permit_agent.request(look.partition, claim.ring.get("requests", ()))
        may_be_over = was_late or call.is_again
        room = self.want() if may_be_over else 0
        try:
            entered = session.enter(channel.claimant, claim, channel.serves_worker, look.partition)
        except (RedisError, OSError):
            # Its leases could not be renewed, and go back.
            if not session.servers.are_several:
                raise
            return []
        if may_be_over:
            # Other tasks may have its places by now.
            for _, held in entered[room:]:
                session.lease_table.end(held, Verdict.HEAD, begun=False)
            entered = entered[:room]
        return entered

    def _not_served(self, lane: Lane, call: Call, error: NotServed) -> None:
        """Leave a partition whose slot the node does not serve now."""
        number = _partition_of(call)
        lane.met.discard(number)
        if not error.has_moved:
            self._paused[number] = monotonic() + PAUSE_SECONDS
            self._note_away()
            self._session.notices.error(
                f"slot {number}",
                "partition %s moves between two nodes, and its tenants wait: %s",
                "of the home" if number is None else number,
                error,
            )

    def _failed(self, lane: Lane, call: Call, error: ResponseError) -> None:
        """Handle the error of one call of a request."""
        if is_missing(error):
            try:
                self._channel.load_library(_partition_of(call))
            except (ConnectionLost, AnswerLate, OSError) as problem:
                self._lost(lane, problem)
            return
        count = self._session.partitions.count
        raise other_number(error, count, lane.server.place) or error

    def _has_no_answer(self, call: Call) -> None:
        """Put back what a call carried."""
        if isinstance(call, Claiming):
            self._unanswered.add(call.look.partition)
            self._session.lease_table.give_back(call.ends)

    # -- lanes ------------------------------------------------------------------------------------

    def _look_after_lanes(self, now: float) -> None:
        session, late = self._session, False
        several = session.servers.are_several
        if several and self._channel.waits_too_long:
            session.servers.of(None).is_late = late = True
        for lane in self._lanes.values():
            waited = now - lane.sent_at if lane.is_open else 0.0
            if waited >= LOST_SECONDS:
                error = AnswerLate(f"no answer for {waited:.0f} s")
                self._lost(lane, error, raises=False)
            elif several and waited >= LATE_SECONDS and not lane.is_late:
                session.count_open(-lane.wants, self._channel.serves_worker)
                lane.is_late = lane.server.is_late = True
            late = late or lane.is_late
        if self._paused:
            self._paused = {each: at for each, at in self._paused.items() if at > now}
        if late or self.rings.away or session.servers.any_away:
            self._note_away()

    def _note_away(self) -> None:
        servers, away = self._session.servers, set[int]()
        for number in self._session.partitions:
            server = servers.of(number)
            lane = self._lanes.get(server)
            if server.problem or number in self._paused or (lane is not None and lane.is_late):
                away.add(number)
        for number in self.rings.away - away:
            self.rings.forget(number)
        self.rings.away = away

    def _lost(
        self, lane: Lane, error: BaseException, *, counted: bool = True, raises: bool = True
    ) -> None:
        """Close a lane that does not answer. Its claims are sent again when its server answers."""
        session = self._session
        if counted:
            session.count_open(-lane.wants, self._channel.serves_worker)
        opened = lane.calls
        lane.close()
        lane.server.is_late = False
        for call in opened:
            self._has_no_answer(call)
        if session.servers.are_several:
            session.servers.lost(lane.server, error)
            self._note_away()
        elif raises:
            raise error

    # -- sleeping ---------------------------------------------------------------------------------

    def bells(self, queues: Sequence[str]) -> list[str]:
        """Return the keys of the bells of ``queues``, first those for new tasks."""
        names = self._session.names
        skipped = self.rings.skipped
        left = [queue for queue in queues if queue not in skipped]
        return [names.of("bell", f"new {queue}") for queue in queues] + [
            names.of("bell", f"left {queue}") for queue in left
        ]

    def is_rung(self, partition: int, queue: str) -> None:
        """A bell has woken the channel."""
        self.rings.look_again(partition)
        if not self.want():
            # Its places were taken while it slept, so the bell is for another worker.
            self._ring(partition, [queue])

    def _ring(self, partition: int, new: Iterable[str], left: Iterable[str] = ()) -> None:
        """Ring bells of a partition with the next request of the home, each once."""
        ring = self._rings.setdefault(partition, Ring(partition, set(), set()))
        ring.new.update(new)
        ring.left.update(left)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> Entered:
        """Close the lanes; return the tasks that open requests brought meanwhile."""
        entered: Entered = []
        for lane in self._lanes.values():
            if self._channel.claimant.process != os.getpid():
                # In a forked child, the sockets belong to the parent.
                continue
            if lane.is_open and not lane.is_late:
                # Without an answer, the next channel sends its claims again.
                with contextlib.suppress(RedisError, OSError):
                    entered += self.read(lane)
            if lane.is_open:
                session = self._session
                session.count_open(-lane.wants, self._channel.serves_worker)
                session.lease_table.give_back(lane.ends)
            lane.close()
        self._lanes.clear()
        return entered


def _read_or_error(connection: Any) -> Any:
    """Return the next answer, or the error that Redis answered."""
    try:
        return connection.read_response()
    except ServerNotReady:
        raise
    except (ResponseError, NotServed) as error:
        return error


def _partition_of(call: Call) -> int | None:
    """Return the partition that a call is about, None for the home."""
    if isinstance(call, Claiming):
        return call.look.partition
    return call.partition if isinstance(call, Greeting) else None


def ring_args(look: Look, floors: dict[str, float]) -> dict[str, Any]:
    """Return what a claim carries of the rings, as ``rings.lua`` reads it."""
    tills = {queue: [first.start, str(9 - first.behind)] for queue, first in look.tills.items()}
    return {"floors": floors, "tills": tills, "is_woken": look.is_woken}
