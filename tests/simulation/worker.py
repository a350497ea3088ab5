"""A worker with the decisions of the product, as ``MergedClaims`` sends its requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_fairness.scheduler.types import Claim
from celery_fairness.transport.ring_merge import Look, RingMerge
from celery_fairness.util.durations import Milliseconds
from tests.simulation.ring import Answer

if TYPE_CHECKING:
    from tests.simulation.installation import Installation

QUEUE = "q"
#: The server of the home.
HOME = 0
#: The longest sleep that a claim answers (``claim.lua``).
SLEEP_MS = 1000


def claim_of(answer: Answer, sleep_ms: int = SLEEP_MS) -> Claim:
    """Return an answer as the product reads it."""
    state: dict[str, Any] = {"at": answer.at, "debt": answer.debt}
    if answer.first is not None:
        state["first"] = [answer.first, ""]
    # The merge only counts the tasks.
    tasks: Any = tuple(answer.tasks)
    return Claim(tasks, Milliseconds(sleep_ms), {}, 1, {"rings": {QUEUE: state}})


class Worker:
    """A process that claims for its places, runs tasks, and sleeps at the bells.

    It has a lane to each server. A lane has at most one open request, and waits for no other lane.

    Attributes:
        rings: The merge of the product.
        free: Free places.
    """

    def __init__(self, installation: Installation, places: int, rings: RingMerge) -> None:
        self._of, self.rings, self.free = installation, rings, places
        #: Ended tasks by partition, and bells to ring, which requests carry.
        self._ends: Counter[int] = Counter()
        #: By partition, the taken tasks. They replace the starts in a case without these.
        self._taken: Counter[int] = Counter()
        self._rings: list[tuple[str, int]] = []
        #: By server, the tasks that its open request may bring.
        self._open: dict[int, int] = {}
        #: The number of the sleep. A timer of an older one does nothing.
        self._sleep, self._sleeps = 0, False

    def turn(self) -> None:
        """Send a request on each lane that has something to do and no open one, or sleep."""
        of, now = self._of, self._of.clock.now
        want = 0 if self._sleeps else self.free - sum(self._open.values())
        seconds = self.rings.seconds_to_look([QUEUE], now) if want else 0.0
        planned: list[Look] = []
        if want and seconds <= 0:
            busy = {each for each in range(of.case.partitions) if of.server_of(each) in self._open}
            planned = self.rings.plan([QUEUE], want, now, False, False, busy=busy)
        looks = {look.partition: look for look in planned}
        for partition in self._ends:
            looks.setdefault(partition, Look(partition))
        requests: dict[int, list[Look]] = defaultdict(list)
        if HOME not in self._open and (self._rings or (planned and of.case.has_bells)):
            requests[HOME] = []
        for look in looks.values():
            server = of.server_of(look.partition)
            if server not in self._open:
                requests[server].append(look)
        for server, there in requests.items():
            self._send(server, there, pops=bool(planned) and of.case.has_bells)
        if want and seconds > 0 and not self._open:
            self._fall_asleep(seconds)

    def _send(self, server: int, looks: list[Look], *, pops: bool) -> None:
        of, costs = self._of, self._of.case.costs
        floor = self.rings.floors([QUEUE]).get(QUEUE)
        ends = {look.partition: self._ends.pop(look.partition, 0) for look in looks}
        bells: list[tuple[str, int]] = []
        if server == HOME:
            bells, self._rings = self._rings, []
        self._open[server] = sum(look.want for look in looks)

        def effect() -> tuple[float, Any]:
            us, rung, answers = costs.ring * len(bells), None, []
            for kind, partition in bells:
                of.bells.ring(kind, partition)
            if server == HOME and pops:
                us, rung = us + costs.pop, of.bells.pop("new")
                of.count("pop")
            for look in looks:
                till = look.tills[QUEUE].start if look.tills else None
                answer = of.claim(look, floor, till)
                us += costs.of_claim(len(answer.tasks), ends[look.partition])
                answers.append((look, answer))
            return us, (rung, answers)

        of.count("bell", len(bells))
        of.servers[server].send(effect, partial(self._read, server))

    def _read(self, server: int, answered: tuple[int | None, list[tuple[Look, Answer]]]) -> None:
        rung, answers = answered
        del self._open[server]
        if rung is not None:
            self.rings.look_again(rung, is_woken=False)
        for look, answer in answers:
            if not self._of.case.has_starts and answer.first is not None:
                self._taken[look.partition] += max(1, len(answer.tasks))
                answer.first = float(self._taken[look.partition])
            self.rings.read(look, claim_of(answer), self._of.clock.now)
            if answer.is_left and self._of.case.has_bells:
                self._rings.append(("left", look.partition))
            for task in answer.tasks:
                self.free -= 1
                self._of.begin(self, look.partition, task)
        self.turn()

    def end(self, partition: int) -> None:
        """The body of a task has ended."""
        self.free += 1
        self._ends[partition] += 1
        self.turn()

    # -- sleep ------------------------------------------------------------------------------------

    def _fall_asleep(self, seconds: float) -> None:
        of = self._of
        self._sleep, self._sleeps = self._sleep + 1, True
        of.clock.after(seconds, self._wake, self._sleep, None)
        if of.case.has_bells:
            of.servers[HOME].send(partial(self._listen, self._sleep), self._hear(self._sleep))

    def _listen(self, number: int) -> tuple[float, int | None]:
        """Block on the bells in the home."""
        of = self._of
        of.count("sleep")
        rung = of.bells.pop("new", "left")
        if rung is None and self._sleeps and self._sleep == number:
            half = of.case.round_trip / 2
            hear = self._hear(number)
            of.bells.sleep(self, lambda partition: of.clock.after(half, hear, partition))
        return of.case.costs.pop, rung

    def _hear(self, number: int) -> Callable[[int | None], None]:
        return lambda rung: None if rung is None else self._wake(number, rung)

    def _wake(self, number: int, rung: int | None) -> None:
        if rung is not None:
            self.rings.look_again(rung)
        if self._sleeps and number == self._sleep:
            self._sleeps = False
            self._of.bells.leave(self)
        self.turn()
