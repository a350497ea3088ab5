"""The permits of queues and their partitions, on the functions (ADR 30)."""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from celery_fairness.config.queue_limits import texts_of_row
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Waiting
from tests.lua.test_permits import LIFE, MARGIN, RULES, Installation, turn

pytestmark = pytest.mark.redis

WHOLE, PART = "queue:q", "queue:q:c1"


class Shop(Installation):
    """An installation whose queue ``q`` has a limit, seen by the permits of one of its keys."""

    def put(self, partition: int, count: int = 1, tenant: str = "", customer: str = "") -> None:
        tenant = tenant or f"t{partition}"
        for _ in range(count):
            self.tags[tenant] += 1
            tag = f"{partition}-{tenant}.{self.tags[tenant]}"
            limits = f"queue:q:{customer}|q|w" if customer else ""
            waiting = Waiting("q", tag, tenant, message="{}", limits=limits)
            self.run(calls.PUT, calls.put_args(waiting, self.time), partition)

    def limit_queue(self, numbers: str, part: str = "", only: tuple[int, ...] = ()) -> None:
        """Set the limit of the queue in all partitions, or only in some."""
        texts = [f"{each}|w" if each else "" for each in (numbers, part)]
        args = calls.queue_args("declare", "q", WHOLE, *texts, RULES.lease_ms, "on", self.time)
        for partition in only or range(self.count):
            self.run(calls.SET_QUEUE_LIMIT, args, partition)

    def override(self, key: str, numbers: str, ends_ms: int | None = None) -> None:
        args = calls.override_args(key, numbers, 0, ends_ms, "", RULES.lease_ms, "on", self.time)
        for partition in range(self.count):
            self.run(calls.OVERRIDE, args, partition)

    def started(self, partition: int, count: int) -> None:
        """Start tasks of a partition without permits, because no number holds yet."""
        self.put(partition, count, customer="c1")
        assert len(self.claim(partition).tasks) == count
        self.requests.clear()

    def serve_all(self) -> None:
        """Do what the agent of a worker does with all keys that claims named."""
        named = list(dict.fromkeys(self.requests))
        for each in named:
            self.key = each[1]
            self.home = zlib.crc32(self.key.encode()) % self.count
            self.requests = deque([each])
            self.serve()

    def look(self, partition: int) -> list[str]:
        """Return the keys that a worker is to request for its running tasks."""
        keys = [key for each in self.running[partition] for key in each.key.split(",")[1:]]
        args = calls.due_permits_args(RULES, dict.fromkeys(keys), self.time)
        found: list[str] = json.loads(self.run(calls.DUE_PERMITS, args, partition)).get("requests")
        return found or []


@pytest.fixture
def make(client: Any) -> Callable[..., Shop]:
    def made(key: str = WHOLE, limit: int = 3, count: int = 4) -> Shop:
        place = Shop(client, count, limit, key)
        # The home has had its memory for long.
        place.grant()
        place.wait(LIFE + MARGIN)
        return place

    return made


@pytest.mark.parametrize(("key", "numbers"), [(WHOLE, ("C3", "")), (PART, ("", "C3"))])
def test_the_limit_of_a_queue_holds_over_all_partitions(make, key, numbers):
    place = make(key)
    place.limit_queue(*numbers)
    for partition in range(4):
        place.put(partition, 60, customer="c1" if key == PART else "")
    started = turn(place)
    assert started.total() >= 0.9 * 3 * 5000 / 250
    assert min(started.values()) >= 8


@pytest.mark.parametrize(("whole", "customers"), [("C1", 5), ("C3", 1), ("C3", 5)])
def test_no_idle_permit_of_a_queue_keeps_its_customers_back_and_none_of_theirs_the_queue(
    make, whole, customers
):
    place, task_ms = make(), 100
    place.limit_queue(whole, "C1")
    for number in range(60):
        place.put(number % 4, customer=f"c{number % customers}")
    ends: list[tuple[int, int]] = []
    began, done = place.now, 0
    while done < 60:
        for _, partition in [each for each in ends if each[0] <= place.now]:
            place.end(partition)
            done += 1
        ends = [each for each in ends if each[0] > place.now]
        for partition in range(4):
            place.serve_all()
            ends += [(place.now + task_ms, partition) for _ in place.claim(partition).tasks]
        assert sum(place.counts()) <= int(whole[1:])
        place.now += 10
    at_once = min(int(whole[1:]), customers)
    assert place.now - began <= 1.6 * 60 * task_ms / at_once


def test_a_whole_queue_asks_for_permits_by_its_tenants(make):
    place = make(limit=8, count=2)
    place.limit_queue("C8")
    for tenant in ("a", "b", "c"):
        place.put(0, 5, tenant=tenant)
    place.put(1, 20)
    for partition in range(2):
        place.claim(partition)
    report = place.request(0)
    assert (report["demand"], report["tenants"]) == (15, 3)


def test_a_queue_in_which_no_tenant_may_start_asks_for_nothing(make):
    place = make()
    place.limit_queue("C3", "C0")
    place.put(1, 5, customer="c1")
    place.claim(1)
    place.serve()
    # The customers of the queue are paused, which a claim sees with the permits of the queue.
    place.claim(1)
    place.now += LIFE
    assert place.request(1)["n"] == 0
    place.requests.clear()
    place.claim(1)
    assert not place.requests


# -- tasks that started without permits ------------------------------------------------------------


@pytest.mark.parametrize("how", ["limit", "override", "pattern"])
def test_tasks_from_before_a_limit_count_in_all_partitions(make, how):
    place = make(PART)
    place.limit_queue("", "L9")
    # The home is quiet after this change too.
    place.wait(LIFE + MARGIN)
    place.started(1, 2)
    place.started(2, 2)
    place.now += 1
    if how == "limit":
        place.limit_queue("", "C3")
    else:
        place.override(PART if how == "override" else "queue:q:*", "C3")
    place.put(0, 5, customer="c1")
    place.claim(0)
    place.serve()
    assert place.claim(0).tasks == ()
    place.end(1, 2)
    place.serve()
    place.now += 1000
    place.claim(0)
    place.serve()
    assert len(place.claim(0).tasks) == 1


def test_tasks_count_that_started_while_an_override_lifted_the_limit(make):
    place = make(PART)
    place.limit_queue("", "C3")
    lasts = 2 * (LIFE + MARGIN)
    place.override(PART, "C-", place.now + lasts)
    place.wait(lasts - 1)
    one, other = (each for each in range(3) if each != place.home)
    place.started(one, 3)
    # No call of the home has ended the override yet.
    place.now += 1
    place.put(other, 5, customer="c1")
    place.claim(other)
    place.serve()
    assert place.claim(other).tasks == ()


def test_a_home_adds_nothing_while_a_partition_lacks_the_limit(make):
    place = make(PART)
    place.limit_queue("", "L9")
    place.limit_queue("", "C3", only=(0, 1, place.home))
    late = next(each for each in (2, 3) if each != place.home)
    place.put(0, 5, customer="c1")
    place.claim(0)
    place.serve()
    assert place.claim(0).tasks == ()
    place.started(late, 2)
    place.limit_queue("", "C3", only=(2, 3))
    place.now += 1000
    place.claim(0)
    place.serve()
    assert len(place.claim(0).tasks) == 1


def test_a_count_from_before_the_change_is_none(make):
    place = make(PART)
    place.limit_queue("", "C3")
    place.want(0, 5, customer="c1")
    counts = place.grant(place.request(0))["counts"]
    reports = [place.request(each) for each in range(4)]
    place.now += 1
    place.limit_queue("", "L9")
    place.started(1, 3)
    place.limit_queue("", "C3")
    grant = place.grant(*reports, counts=counts)
    assert [each["added"] for each in grant["answers"]] == [0, 0, 0, 0]


def test_without_a_count_a_home_goes_on_after_a_lease_and_the_margin(make):
    place = make(PART)
    place.limit_queue("", "C3")
    place.want(0, 5, customer="c1")
    assert place.borrow(0) == 0
    place.wait(LIFE + MARGIN)
    assert place.borrow(0) == 3


def test_a_worker_requests_permits_of_what_it_runs_without_any(make):
    place = make(PART)
    place.limit_queue("", "L9")
    place.started(1, 2)
    assert place.look(1) == []
    place.limit_queue("", "C3")
    assert place.look(1) == [PART]
    # One worker requests at a time.
    assert place.look(1) == []
    place.borrow(1)
    place.now += LIFE // 3
    assert place.look(1) == [PART]


def test_a_lower_limit_and_none_give_permits_back(make):
    place = make()
    place.limit_queue("C3")
    place.put(1, 9)
    place.claim(1)
    place.serve()
    assert len(place.claim(1).tasks) == 3
    place.now += 1
    place.limit_queue("C1")
    assert place.grant(place.request(1))["most"] == 1
    place.put(2, 9)
    place.now += 1000
    place.claim(2)
    place.serve()
    place.end(1, 2)
    place.serve()
    assert [len(place.claim(each).tasks) for each in (1, 2)] == [0, 0]
    place.limit_queue("")
    assert len(place.claim(2).tasks) == 9


def test_a_queue_whose_limit_is_lifted_is_forgotten(make, client):
    place = make()
    place.limit_queue("C3")
    place.put(1, 1)
    place.claim(1)
    place.serve()
    place.claim(1)
    place.limit_queue("")
    place.end(1)
    # A look at what has ended comes with the calls of workers.
    for _ in range(4):
        place.wait(LIFE + MARGIN)
        for partition in range(4):
            place.look(partition)
    for partition in range(4):
        assert not client.exists(f"{place.prefix(partition)}timers")
        times = client.hkeys(f"{place.prefix(partition)}virtual_times")
        assert [each for each in times if "queue:" in each] == []


# -- copies of rows --------------------------------------------------------------------------------


def test_a_copy_that_comes_late_changes_nothing(make, client):
    place = make()
    place.limit_queue("C3")
    name = f"{place.prefix(1)}queue_limits"
    before = client.hget(name, "queue q")
    place.limit_queue("C5")
    args = calls.copy_queue_args(
        *("q", WHOLE, "queue:q 7 C9|w   ", before, RULES.lease_ms, "on", place.time)
    )
    place.run(calls.SET_QUEUE_LIMIT, args, 1)
    assert texts_of_row(client.hget(name, "queue q")) == ["C5|w", "", "", ""]
