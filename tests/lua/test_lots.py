"""The lots of rates and throttles that tenants of several partitions share (ADR 32)."""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from redis import Redis

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Settle, Verdict, Waiting
from tests.lua.test_permits import KEY, LIFE, MARGIN, RULES, Installation, read, write
from tests.lua.test_permits import of_another_server as replaced

pytestmark = pytest.mark.redis

#: A worker makes its next call after this time, in ms.
CALL_MS = 2
#: A ledger that a home has lost.
EMPTY = {"since": 0, "at": 0, "count_at": 0, "entries": {}}


class Rated(Installation):
    """Partitions with tasks of a key with some numbers, such as ``R10/1000``."""

    def __init__(self, client: Redis, count: int, numbers: str) -> None:
        super().__init__(client, count)
        self.numbers_text = numbers
        #: The time, partition and request of each turn.
        self.turns: list[tuple[int, int, int]] = []
        #: The time and the partition of each start, with its units.
        self.starts: list[tuple[int, int, int]] = []
        self.visits = 0

    def put(  # type: ignore[override]
        self, partition: int, count: int = 1, tenant: str = "", units: int = 1
    ) -> None:
        tenant = tenant or f"t{partition}"
        numbers = self.numbers_text + (f";U{units}" if units > 1 else "")
        for _ in range(count):
            self.tags[tenant] += 1
            waiting = Waiting(
                *("q", f"{partition}-{tenant}.{self.tags[tenant]}", tenant),
                message="{}",
                limits=f"{KEY}|{numbers}|w",
                is_new=True,
            )
            self.run(calls.PUT, calls.put_args(waiting, self.time), partition)

    def start(self, partition: int, want: int = 10) -> int:
        """Start what may start, and end it."""
        tasks = self.claim(partition, want).tasks
        for task in tasks:
            units = int(task.key.partition("*U")[2] or 1)
            self.starts.append((self.now, partition, units))
        self.end(partition, len(tasks))
        return len(tasks)

    def visit(self, partition: int, after: int | None = None) -> list[int]:
        """Carry the messages for one partition; return where the worker goes next."""
        self.visits += 1
        report = self.request(partition, after=after)
        if not report:
            return []
        grant = self.grant(report)
        answer = grant["answers"][0]
        if "lot" in answer or "again_ms" in answer or "number" in report.get("lot", ()):
            self.accept(report, grant)
        if "again_ms" in answer:
            turn = (self.now + answer["again_ms"], partition, report["number"])
            heapq.heappush(self.turns, turn)
        return list(grant.get("visits", ()))

    def lot(self, partition: int) -> dict[str, Any] | None:
        """Borrow, and return the lot that the partition has then."""
        self.visit(partition)
        return read(self, partition, "permits").get("lot")

    def go_on(self, ms: int, step: int = CALL_MS) -> None:
        """Let workers start what they may for some time."""
        until, looks = self.now + ms, Counter[int]()
        while self.now < until:
            while self.turns and self.turns[0][0] <= self.now:
                _, partition, number = heapq.heappop(self.turns)
                self.requests += [(each, KEY) for each in self.visit(partition, number)]
            served = set[int]()
            for _ in range(4 * self.count):
                if not self.requests:
                    break
                partition = self.requests.popleft()[0]
                served.add(partition)
                self.requests += [(each, KEY) for each in self.visit(partition)]
            for partition in range(self.count):
                if partition in served or looks[partition] <= self.now:
                    looks[partition] = self.now + 20
                    self.start(partition)
            self.now += step

    def most_in(self, period: int) -> int:
        """Return the most units that started in any window of ``period`` ms."""
        most = 0
        for index, (since, *_) in enumerate(self.starts):
            inside = [units for at, _, units in self.starts[index:] if at < since + period]
            most = max(most, sum(inside))
        return most


@pytest.fixture
def make(client: Redis) -> Callable[..., Rated]:
    def made(numbers: str, count: int = 4) -> Rated:
        place = Rated(client, count, numbers)
        place.recount()
        return place

    return made


@pytest.mark.parametrize(
    ("numbers", "count", "seconds", "visits"),
    [
        ("R1/1000", 4, 6, 5),
        ("R1/1000", 16, 20, 9),
        ("R10/1000", 4, 4, 5),
        ("R10/1000", 16, 6, 5),
        ("R100/1000", 4, 2, 0.6),
        ("R100/1000", 16, 3, 0.6),
    ],
)
def test_a_rate_is_used_and_never_exceeded_in_few_visits(make, numbers, count, seconds, visits):
    period, place = 1000, make(numbers, count)
    rate = int(numbers[1:].partition("/")[0])
    for partition in range(count):
        place.put(partition, 2 * rate * seconds // count + 20)
    place.go_on(seconds * 1000)
    assert place.most_in(period) <= rate
    # The first window may begin at once.
    due = rate * seconds
    assert len(place.starts) >= 0.9 * due
    assert place.visits <= visits * len(place.starts)
    assert len({partition for _, partition, _ in place.starts}) >= min(count, due)


# -- messages that are lost, late, twice or in another order ---------------------------------------


@pytest.fixture
def place(make: Callable[..., Rated]) -> Rated:
    return make("R3/60000")


def test_a_task_of_a_shared_rate_waits_for_a_lot(place):
    place.put(1, 5)
    assert place.start(1) == 0
    assert list(place.requests) == [(1, KEY)]
    lot = place.lot(1)
    assert (lot["units"], lot["starts"]) == (3, 3)
    assert place.start(1) == 3
    place.want(2)
    assert place.lot(2) is None


def test_a_lot_counts_although_its_answer_is_lost_until_the_next_request(place):
    place.want(1, 5)
    assert place.grant(place.request(1))["answers"][0]["lot"]["units"] == 3
    place.want(2)
    assert "lot" not in place.grant(place.request(2))["answers"][0]
    # The other partition wants one.
    assert place.lot(1)["units"] == 2
    assert place.start(1) == 2


def test_a_start_counts_until_its_period_is_over_beside_a_lot_that_counts_later(make):
    place = make("R4/1000")
    place.want(1, 2)
    place.lot(1)
    place.start(1)
    place.visit(1)
    place.now += 900
    place.want(1, 2)
    assert place.lot(1)["units"] == 2
    # This lot counts until later than the first starts do, but those still count.
    place.now += 50
    place.want(2, 2)
    assert place.lot(2) is None
    place.now += 51
    assert place.lot(2) is not None


def test_a_lot_that_nobody_reports_counts_for_its_whole_period(make):
    place = make("R4/3600000")
    place.want(1, 2)
    place.lot(1)
    assert place.start(1, 1) == 1
    # Nobody calls this partition again. Two minutes later the home still counts its lot.
    for _ in range(40):
        place.now += 3_000
        place.visit(3)
        place.claim(2)
    place.want(2, 4)
    lent = place.lot(2)
    assert lent
    assert lent["units"] == 2


def test_a_late_answer_shortens_the_life_of_a_lot(place):
    place.want(1, 5)
    report = place.request(1)
    grant = place.grant(report)
    life = grant["answers"][0]["lot"]["life_ms"]
    assert life == 1000
    place.now += life - 1
    assert place.accept(report, grant)
    place.now += 1
    assert place.start(1) == 0


def test_a_lot_starts_nothing_from_the_next_request_on(place):
    place.want(1, 5)
    place.lot(1)
    place.request(1)
    assert place.start(1) == 0


def test_starts_that_are_not_used_go_back(place):
    place.want(1, 5)
    place.lot(1)
    place.start(1, want=1)
    place.want(2, 5)
    assert place.lot(2) is None
    place.grant(place.request(1))
    # Two are free, and both partitions want them.
    assert place.lot(2)["units"] == 1
    assert place.lot(1)["units"] == 1


def test_a_lot_whose_end_comes_goes_back_by_itself(place):
    place.put(1, 1)
    place.claim(1)
    place.requests.clear()
    place.lot(1)
    place.now += 1000
    args = calls.due_permits_args(RULES, place.time)
    assert json.loads(place.run(calls.DUE_PERMITS, args, 1))["requests"] == [KEY]


def test_a_turn_ends_if_another_worker_has_made_a_request_since(place):
    place.want(1, 5)
    place.lot(1)
    place.want(2, 1)
    told = place.request(2)
    assert place.grant(told)["answers"][0]["again_ms"] > 0
    assert place.request(2, after=told["number"])["number"] > told["number"]
    assert place.request(2, after=told["number"]) == {}


def test_a_claim_names_a_key_again_if_its_worker_does_not_come(place):
    place.want(1, 5)
    place.lot(1)
    place.want(2, 1)
    again = place.grant(report := place.request(2))
    place.accept(report, again)
    place.requests.clear()
    place.now += again["answers"][0]["again_ms"]
    place.claim(2)
    assert not place.requests
    place.now += 500
    place.claim(2)
    assert list(place.requests) == [(2, KEY)]


def test_a_request_that_comes_twice_counts_its_starts_once(place):
    place.want(1, 1)
    place.lot(1)
    place.start(1)
    report = place.request(1)
    place.grant(report)
    place.grant(report)
    place.want(2, 5)
    assert place.lot(2)["units"] == 2


def test_a_report_whose_answer_is_lost_comes_again_and_counts_once(place):
    place.want(1, 1)
    place.lot(1)
    place.start(1)
    place.grant(place.request(1))
    place.visit(1)
    place.want(2, 5)
    assert place.lot(2)["units"] == 2


def test_an_older_request_is_rejected(place):
    place.want(1, 2)
    older = place.request(1)
    place.visit(1)
    place.start(1)
    assert place.grant(older)["answers"][0]["added"] == -1
    place.visit(1)
    place.want(2, 5)
    assert place.lot(2)["units"] == 1


def test_a_start_whose_report_never_comes_leaves_the_window_a_life_and_a_margin_later(place):
    place.want(1, 3)
    place.lot(1)
    place.start(1)
    place.want(2, 3)
    place.wait(60_000 + 2 * 1000)
    assert place.lot(2) is None
    place.wait(1)
    assert place.lot(2)["units"] == 3


# -- servers that fail over, and clocks ------------------------------------------------------------


def test_a_lot_of_another_server_starts_nothing(place):
    place.want(1, 5)
    place.lot(1)
    replaced(place, 1)
    assert place.start(1) == 0


def test_a_clock_that_goes_back_voids_a_lot(place):
    place.want(1, 5)
    place.lot(1)
    place.now -= 1
    assert place.start(1) == 0


@pytest.mark.parametrize("memory", ["none", "older"])
def test_a_home_with_another_memory_counts_the_starts_of_all_partitions(place, memory):
    place.want(1, 2)
    older = read(place, place.home, "grants")
    place.lot(1)
    place.start(1)
    place.visit(1)
    replaced(place, place.home)
    ledger = {} if memory == "none" else older
    write(place, place.home, "grants", ledger | {"counted": "another"} if ledger else EMPTY)
    place.want(2, 5)
    assert place.lot(2) is None
    place.wait(MARGIN + 1)
    assert place.lot(2) is None
    place.recount()
    # Two of three have started.
    assert read(place, 2, "permits")["lot"]["units"] == 1


def test_a_home_that_cannot_count_goes_on_with_what_it_has(place):
    place.want(1, 2)
    place.lot(1)
    place.start(1)
    place.visit(1)
    replaced(place, place.home)
    place.want(2, 5)
    assert place.lot(2) is None
    place.wait(LIFE + MARGIN)
    place.visit(2)
    place.wait(LIFE + MARGIN)
    assert place.lot(2)["units"] == 1


# -- units, corrections, numbers -------------------------------------------------------------------


def test_a_task_gathers_its_units_beside_small_ones(make):
    place = make("R6/1000", count=2)
    place.put(0, 60)
    place.put(1, 4, units=5)
    place.go_on(8000)
    assert place.most_in(1000) <= 6
    heavy = [units for _, partition, units in place.starts if partition == 1]
    assert heavy == [5] * 4


def used(place, partition, units):
    lease = place.running[partition][0].lease
    args = calls.used_args(lease, KEY, units, RULES, place.time)
    return place.run(calls.USED, args, partition)


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize(("units", "left"), [(1, 3), (4, 0)])
def test_a_body_that_reports_its_units_changes_what_others_get(make, units, left, reported):
    place = make("R4/60000")
    place.put(1, units=2)
    place.claim(1)
    place.lot(1)
    place.claim(1)
    if reported:
        place.visit(1)
    used(place, 1, units)
    place.visit(1)
    place.want(2, 9)
    lot = place.lot(2)
    assert (lot["units"] if lot else 0) == left


def test_a_body_that_used_more_leaves_less_of_its_lot(make):
    place = make("R6/60000")
    place.put(2, 1, units=2)
    place.claim(2)
    place.lot(2)
    place.start(2)
    place.visit(2)
    place.put(1, 2, units=2)
    place.claim(1)
    assert place.lot(1)["units"] == 4
    assert len(place.claim(1, 1).tasks) == 1
    used(place, 1, 4)
    assert place.claim(1).tasks == ()


def test_a_body_that_outlives_its_window_gives_back_no_starts_of_others(make):
    place = make("R4/1000")
    place.put(1, units=4)
    place.claim(1)
    place.lot(1)
    place.claim(1)
    place.visit(1)
    place.now += 1500
    place.put(2, 4)
    place.claim(2)
    place.lot(2)
    assert place.start(2) == 4
    place.visit(2)
    used(place, 1, 1)
    place.visit(1)
    place.want(3, 4)
    assert place.lot(3) is None


@pytest.mark.parametrize("later", [3_000, 120_000])
def test_a_body_in_an_idle_partition_reports_its_units(make, later):
    place = make("R4/300000")
    place.put(1, units=2)
    place.claim(1)
    place.lot(1)
    assert len(place.claim(1).tasks) == 1
    place.visit(1)
    # Nothing waits for the key anywhere. Claims look at it, and its lease is renewed.
    for _ in range(40):
        place.wait(later // 40)
        place.claim(1)
    place.requests.clear()
    used(place, 1, 4)
    place.claim(1)
    assert list(place.requests) == [(1, KEY)]
    place.visit(1)
    place.want(2, 4)
    assert place.lot(2) is None


def test_what_a_body_used_is_reported_before_the_next_turn(make):
    place = make("R2/60000")
    place.put(1, 2, units=2)
    place.claim(1)
    place.lot(1)
    place.claim(1)
    # The second task waits for the window.
    place.visit(1)
    place.requests.clear()
    place.claim(1)
    assert not place.requests
    used(place, 1, 3)
    place.claim(1)
    assert list(place.requests) == [(1, KEY)]


class Budget(Rated):
    """Bodies that last for some time and then report other units than their tasks had."""

    def __init__(self, client: Redis, rate: int, period: int, seed: int) -> None:
        super().__init__(client, 3, f"R{rate}/{period}")
        self.period, self.random = period, random.Random(seed)
        #: The end of each body, its number, its partition, its lease and what it will have used.
        self.bodies: list[tuple[int, int, int, str, int]] = []
        #: When each body began, and its units so far.
        self.counted: list[tuple[int, int]] = []
        self.most = 0

    def start(self, partition: int, want: int = 10) -> int:
        tasks = self.claim(partition, want).tasks
        for task in tasks:
            units = int(task.key.partition("*U")[2] or 1)
            longest = self.random.choice((300, 2 * self.period))
            ends, used = self.now + self.random.randint(0, longest), self.random.randint(0, units)
            heapq.heappush(self.bodies, (ends, len(self.counted), partition, task.lease, used))
            self.counted.append((self.now, units))
        inside = (units for at, units in self.counted if at > self.now - self.period)
        self.most = max(self.most, sum(inside))
        return len(tasks)

    def end_bodies(self) -> None:
        while self.bodies and self.bodies[0][0] <= self.now:
            _, number, partition, lease, used = heapq.heappop(self.bodies)
            args = calls.used_args(lease, KEY, used, RULES, self.time)
            self.run(calls.USED, args, partition)
            self.counted[number] = (self.counted[number][0], used)
            self.claim(partition, 0, (Settle(lease, Verdict.DONE),))
            self.running[partition] = [
                each for each in self.running[partition] if each.lease != lease
            ]


@pytest.mark.parametrize("seed", range(4))
def test_a_budget_of_units_holds_with_what_bodies_have_used(client, seed):
    place = Budget(client, 60, 2000, seed)
    place.recount()
    for partition in range(3):
        for _ in range(60):
            place.put(partition, units=place.random.choice((5, 8, 12, 15, 50)))
    for _ in range(300):
        place.go_on(50)
        place.end_bodies()
    assert place.most <= 60
    assert sum(units for _, units in place.counted) >= 0.5 * 60 * 15_000 / 2000


def test_a_task_whose_body_did_not_begin_gives_its_start_back(place):
    place.want(1, 1)
    place.lot(1)
    place.claim(1)
    place.visit(1)
    place.now += 10
    place.claim(1, 0, (Settle(place.running[1].pop().lease, Verdict.HEAD, begun=False),))
    place.visit(1)
    place.want(2, 9)
    assert place.lot(2)["units"] == 3


def test_starts_of_a_worker_that_only_observes_count_for_others(make):
    place = make("R5/60000")
    place.want(1, 3)
    place.visit(1)
    place.now += 1001
    place.rules = replace(RULES, enforcement="observe")
    assert place.start(1) == 3
    place.rules = RULES
    place.visit(1)
    place.want(2, 9)
    assert place.lot(2)["units"] == 2


@pytest.mark.parametrize(("numbers", "count"), [("T10/1000", 4), ("T50/1000", 4), ("T2/1000", 4)])
def test_a_throttle_is_used_and_spaces_the_starts_of_all_partitions(make, numbers, count):
    place = make(numbers, count)
    interval = 1000 / int(numbers[1:].partition("/")[0])
    for partition in range(count):
        place.put(partition, 200)
    place.go_on(4000)
    times = [at for at, *_ in place.starts]
    assert all(later - at >= 0.9 * interval - 1 for at, later in pairwise(times))
    assert len(times) >= 0.9 * 4000 / interval
    assert len({partition for _, partition, _ in place.starts}) == count


def test_other_numbers_of_a_key_are_requested_before_the_turn(make):
    place = make("R1/3600000")
    place.put(1, 9)
    place.go_on(500)
    assert len(place.starts) == 1
    args = calls.override_args(KEY, "R3/3600000", 0, None, "", RULES.lease_ms, "on", place.time)
    for partition in range(4):
        place.run(calls.OVERRIDE, args, partition)
    place.now += 200
    place.claim(1)
    assert list(place.requests) == [(1, KEY)]
    # A home counts after a change of numbers, and once a second.
    place.now += 1000
    place.recount()
    place.go_on(500)
    assert len(place.starts) == 3


def test_a_partition_that_has_a_lot_is_not_visited(make):
    place = make("R10/60000")
    for partition in range(4):
        place.want(partition, 25)
    place.recount()
    todo, visited = [0, 1, 2, 3], 0
    while todo and visited < 40:
        todo += place.visit(todo.pop(0))
        visited += 1
    # Each has a lot that it has not used, and more is free.
    assert visited < 10


def test_a_key_without_a_home_of_its_rate_is_lent_nothing(place):
    """The home knows no number, so it does not take the key for an unlimited one."""
    place.want(1, 2)
    report = place.request(1)
    del report["own"]
    write(place, place.home, "grants", EMPTY)
    assert "lot" not in place.grant(report)["answers"][0]
