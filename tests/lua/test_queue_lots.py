"""The lots of the rates of queues and their partitions, on the functions (ADR 32)."""

from __future__ import annotations

import heapq
import json
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Settle, Verdict
from tests.lua.test_lots import CALL_MS
from tests.lua.test_permits import LIFE, MARGIN, RULES, read
from tests.lua.test_queue_permits import PART, WHOLE, Shop

pytestmark = pytest.mark.redis

#: A worker whose claim finds nothing looks at a partition again after this time, in ms.
LOOK_MS = 20


class Rated(Shop):
    """A queue ``q`` with rates, and a worker that serves all of its keys."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: The time, partition, key and request of each turn.
        self.turns: list[tuple[int, int, str, int]] = []
        #: The time, the partition and the customer of each start.
        self.starts: list[tuple[int, int, str]] = []
        self.looks: Counter[int] = Counter()
        self.visits = 0

    def start(self, partition: int, want: int = 10) -> int:
        """Start what may start, and end it."""
        tasks = self.claim(partition, want).tasks
        for task in tasks:
            part = next((each for each in task.key.split(",") if each.startswith("queue:q:")), "")
            self.starts.append((self.now, partition, part))
        self.end(partition, len(tasks))
        return len(tasks)

    def visit(self, partition: int, key: str = WHOLE, after: int | None = None) -> list[int]:
        """Carry the messages of a key for one partition; return where the worker goes next."""
        self.key, self.home = key, zlib.crc32(key.encode()) % self.count
        self.visits += 1
        report = self.request(partition, after=after)
        if not report:
            return []
        grant = self.grant(report)
        answer = grant["answers"][0]
        has_lots = {"lot", "again_ms"} & answer.keys() or "number" in report.get("lot", ())
        if answer["n"] or has_lots:
            self.accept(report, grant)
        if "again_ms" in answer:
            turn = (self.now + answer["again_ms"], partition, key, report["number"])
            heapq.heappush(self.turns, turn)
        if "counts" in grant:
            self.recount(grant["home"])
        return list(grant.get("visits", ()))

    def lot(self, partition: int, key: str = WHOLE) -> dict[str, Any] | None:
        """Borrow, and return the lot that the partition has then."""
        self.visit(partition, key)
        found: dict[str, Any] | None = read(self, partition, "permits").get("lot")
        return found

    def go_on(self, ms: int) -> None:
        """Let workers start what they may for some time."""
        until = self.now + ms
        while self.now < until:
            while self.turns and self.turns[0][0] <= self.now:
                _, partition, key, number = heapq.heappop(self.turns)
                self.requests += [(each, key) for each in self.visit(partition, key, number)]
            served = set[int]()
            for _ in range(4 * self.count):
                if not self.requests:
                    break
                partition, key = self.requests.popleft()
                served.add(partition)
                self.requests += [(each, key) for each in self.visit(partition, key)]
            for partition in range(self.count):
                if partition in served or self.looks[partition] <= self.now:
                    self.looks[partition] = self.now + LOOK_MS
                    self.start(partition)
            self.now += CALL_MS

    def most_in(self, period: int, part: str = "") -> int:
        """Return the most starts in any window of ``period`` ms, also of one customer."""
        times = [at for at, _, its in self.starts if not part or its == part]
        counts = (
            sum(1 for at in times[index:] if at < since + period)
            for index, since in enumerate(times)
        )
        return max(counts, default=0)


@pytest.fixture
def make(client: Any) -> Callable[..., Rated]:
    def made(numbers: str = "", part: str = "", count: int = 4) -> Rated:
        place = Rated(client, count, 0, WHOLE if numbers else PART)
        place.limit_queue(numbers, part)
        # The home has counted all partitions after the change.
        place.now += 1
        place.recount()
        return place

    return made


@pytest.mark.parametrize(
    ("key", "rate", "count", "seconds"),
    [(WHOLE, 1, 4, 6), (WHOLE, 10, 16, 4), (WHOLE, 100, 4, 2), (PART, 10, 4, 4)],
)
def test_the_rate_of_a_queue_is_used_and_never_exceeded(make, key, rate, count, seconds):
    numbers, customer = f"R{rate}/1000", "c1" if key == PART else ""
    place = make("" if customer else numbers, numbers if customer else "", count)
    for partition in range(count):
        place.put(partition, 2 * rate * seconds // count + 20, customer=customer)
    place.go_on(seconds * 1000)
    assert place.most_in(1000) <= rate
    assert len(place.starts) >= 0.9 * rate * seconds
    assert len({partition for _, partition, _ in place.starts}) == min(count, rate * seconds)


@pytest.mark.parametrize(("key", "rate"), [(WHOLE, 10), (WHOLE, 50), (PART, 10)])
def test_the_throttle_of_a_queue_spaces_the_starts_of_all_partitions(make, key, rate):
    numbers, customer = f"T{rate}/1000", "c1" if key == PART else ""
    place = make("" if customer else numbers, numbers if customer else "")
    for partition in range(4):
        place.put(partition, 100, customer=customer)
    place.go_on(4000)
    times = [at for at, *_ in place.starts]
    assert all(later - at >= 0.9 * 1000 / rate - 1 for at, later in pairwise(times))
    assert len(times) >= 0.9 * 4 * rate
    assert len({partition for _, partition, _ in place.starts}) == 4


@pytest.mark.parametrize(
    ("whole", "part", "customers"),
    [("R20/1000", "R2/1000", 10), ("R5/1000", "R1/1000", 20), ("C3", "R5/1000", 5)],
)
def test_the_rates_of_a_queue_and_of_its_customers_hold_together(make, whole, part, customers):
    place = make(whole, part)
    rate = int(part[1:].partition("/")[0])
    for number in range(400):
        place.put(number % 4, tenant=f"t{number % 97}", customer=f"c{number % customers}")
    place.go_on(3000)
    most = rate * customers if whole[0] == "C" else int(whole[1:].partition("/")[0])
    assert place.most_in(1000) <= most
    for number in range(customers):
        assert place.most_in(1000, f"queue:q:c{number}") <= rate
    assert len(place.starts) >= 0.9 * 3 * min(most, rate * customers)


def test_a_rate_beside_the_concurrency_of_customers_is_used(make):
    place = make("R10/1000", "C1")
    for number in range(100):
        place.put(number % 4, tenant=f"t{number}", customer=f"c{number % 5}")
    place.go_on(3000)
    assert place.most_in(1000) <= 10
    assert len(place.starts) >= 0.9 * 30


def test_a_queue_in_which_no_tenant_may_start_asks_for_no_lot(make):
    place = make("R3/60000", "C0")
    place.put(1, 5, customer="c1")
    place.claim(1)
    place.lot(1)
    # The customers of the queue are paused, which a claim sees with the lot of the queue.
    place.claim(1)
    assert place.lot(1) is None
    place.requests.clear()
    for _ in range(3):
        place.now += 1000
        place.claim(1)
        assert not place.requests


def test_a_lot_wakes_a_worker_for_the_queue(make):
    place = make("R3/60000")
    place.put(1, 5)
    place.claim(1)
    report = place.request(1)
    grant = place.grant(report)
    args = calls.accept_permits_args(
        WHOLE, report["run"], grant["home"], grant["answers"][0], RULES, place.time
    )
    assert json.loads(place.run(calls.ACCEPT_PERMITS, args, 1))["new"] == ["q"]
    assert place.start(1) == 3


@pytest.mark.parametrize("key", [WHOLE, PART])
def test_a_task_whose_body_did_not_begin_gives_the_start_of_its_queue_back(make, key):
    place = make("R4/60000" if key == WHOLE else "", "R4/60000" if key == PART else "L9")
    place.put(1, 3, customer="c1")
    place.claim(1)
    place.lot(1, key)
    assert len(place.claim(1).tasks) == 3
    place.visit(1, key)
    place.now += 10
    place.claim(1, 0, (Settle(place.running[1].pop().lease, Verdict.HEAD, begun=False),))
    place.visit(1, key)
    place.put(2, 9, customer="c1")
    place.claim(2)
    # The first partition may have a lot for its task, which waits again.
    units = [(place.lot(each, key) or {"units": 0})["units"] for each in (2, 1)]
    assert sum(units) == 2


# -- changes of numbers ----------------------------------------------------------------------------


@pytest.fixture
def place(make: Callable[..., Rated]) -> Rated:
    """An installation in which partition 1 has started two of nine."""
    made = make("R9/60000")
    made.put(1, 2)
    made.claim(1)
    made.lot(1)
    assert made.start(1) == 2
    made.visit(1)
    made.now += 1
    return made


def left_of(place, partition):
    """Return the units that a partition is lent which wants more than there are."""
    place.put(partition, 50)
    place.claim(partition)
    # A home counts once a second.
    place.now += 1000
    lot = place.lot(partition)
    return lot["units"] if lot else 0


def test_other_numbers_count_what_has_started(place):
    place.limit_queue("R5/60000")
    assert left_of(place, 2) == 3


def test_starts_count_that_came_while_an_override_lifted_the_rate(place):
    place.override(WHOLE, "R-", place.now + LIFE)
    place.put(1, 4)
    assert place.start(1) == 4
    place.wait(LIFE)
    assert left_of(place, 2) == 3


def test_an_override_of_the_rate_holds_for_all_partitions(place):
    place.override(WHOLE, "R3/60000")
    assert left_of(place, 2) == 1


def test_a_home_lends_nothing_while_a_partition_lacks_the_rate(place):
    place.limit_queue("R20/60000", only=(0, 1, place.home))
    late = next(each for each in (2, 3) if each != place.home)
    assert left_of(place, 0) == 0
    place.limit_queue("R20/60000", only=(2, 3))
    place.start(late)
    place.now += 1000
    assert left_of(place, 0) == 18


def test_a_pause_stops_a_queue_whose_partition_has_a_lot(place):
    place.put(2, 5)
    place.claim(2)
    assert place.lot(2)["units"] == 5
    args = calls.stop_args("pause", WHOLE, 0, RULES.lease_ms, "on", place.time)
    for partition in range(4):
        place.run(calls.STOP, args, partition)
    assert place.start(2) == 0


def test_a_queue_whose_rate_is_lifted_is_forgotten(place, client):
    place.put(2, 3)
    place.limit_queue("")
    assert place.start(2) == 3
    for _ in range(12):
        place.wait(LIFE + MARGIN)
        for partition in range(4):
            place.look(partition)
    for partition in range(4):
        times = client.hkeys(f"{place.prefix(partition)}virtual_times")
        assert [each for each in times if "queue:" in each] == []
