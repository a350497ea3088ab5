"""The permits of keys that tenants of several partitions have, on the functions (ADR 30)."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claim, Claimed, Rules, Settle, Verdict, Waiting
from tests.reference.permit_shares import Demand, shares_of
from tests.support.library import call as called

pytestmark = pytest.mark.redis

NOW = 1_760_000_000_000
KEY = "api:stripe"
RULES = Rules(default_limit=None)
SECOND = 1000
LIFE = RULES.lease_ms
MARGIN = LIFE // 3 + 2000
#: Most calls of a test in a row.
CALLS_AT_MOST = 100


class Installation:
    """Some partitions on one server, and a worker that carries their messages.

    Attributes:
        now: The time of the server, in ms.
        running: The tasks that run, by partition.
        calls: How many messages it has carried.
        clients: By partition, a client of its server if that is another one.
    """

    def __init__(self, client: Redis, count: int = 4, limit: int = 5, key: str = KEY) -> None:
        self.client, self.count, self.limit, self.key = client, count, limit, key
        self.clients: dict[int, Redis] = {}
        self.now = NOW
        self.numbers: Counter[int] = Counter()
        self.tags: Counter[str] = Counter()
        self.running: dict[int, list[Claimed]] = {number: [] for number in range(count)}
        self.requests: deque[tuple[int, str]] = deque()
        self.calls = 0
        #: The settings of the worker.
        self.rules = RULES
        self.home = zlib.crc32(key.encode()) % count
        #: The field `counts` of the last grant of a home that counts.
        self.counts_by: int | None = None

    def prefix(self, partition: int) -> str:
        return f"{{fairness#{partition}}}:"

    def run(self, verb: str, args: list[Any], partition: int) -> Any:
        client = self.clients.get(partition, self.client)
        return called(client, verb, self.prefix(partition), args)

    @property
    def time(self) -> str:
        return str(self.now)

    # -- tasks ------------------------------------------------------------------------------------

    def put(
        self, partition: int, count: int = 1, tenant: str = "", flags: str = "w", slots: int = 1
    ) -> None:
        tenant = tenant or f"t{partition}"
        numbers = f"C{self.limit}" + (f";S{slots}" if slots > 1 else "")
        for _ in range(count):
            self.tags[tenant] += 1
            waiting = Waiting(
                *("q", f"{partition}-{tenant}.{self.tags[tenant]}", tenant),
                message="{}",
                limits=f"{KEY}|{numbers}|{flags}",
                is_new=True,
            )
            self.run(calls.PUT, calls.put_args(waiting, self.time), partition)

    def want(self, partition: int, count: int = 1, **fields: Any) -> None:
        """Put tasks of a new tenant, and let a claim find that they have no permit."""
        self.put(partition, count, **fields)
        self.claim(partition)
        self.requests.clear()

    def claim(self, partition: int, want: int = 10, ends: tuple[Settle, ...] = ()) -> Claim:
        self.numbers[partition] += 1
        args = calls.claim_args(
            *("owner1", self.numbers[partition], want, ["q"], self.rules, self.time),
            ends=ends,
            is_first=True,
            ring={"floors": {}, "tills": {}, "is_woken": False},
        )
        claim = calls.read_claim(self.run(calls.CLAIM, args, partition), in_partition=True)
        self.running[partition] += claim.tasks
        self.requests += [(partition, key) for key in claim.ring.get("requests", ())]
        return claim

    def end(self, partition: int, count: int = 1) -> None:
        """End the oldest tasks of a partition, and claim nothing."""
        tasks = self.running[partition]
        ends = tuple(Settle(tasks.pop(0).lease, Verdict.DONE) for _ in range(count))
        self.claim(partition, 0, ends)

    def counts(self) -> list[int]:
        return [len(tasks) for tasks in self.running.values()]

    # -- messages ---------------------------------------------------------------------------------

    def request(
        self, partition: int, home: int | None = None, after: int | None = None
    ) -> dict[str, Any]:
        self.calls += 1
        args = calls.request_permits_args(self.key, self.rules, home, after, self.time)
        report = json.loads(self.run(calls.REQUEST_PERMITS, args, partition))
        return report and {"partition": partition, **report}

    def grant(self, *reports: dict[str, Any], counts: int | None = None) -> dict[str, Any]:
        self.calls += 1
        args = calls.grant_permits_args(
            self.key, self.count, reports, self.rules, counts, self.time
        )
        grant = json.loads(self.run(calls.GRANT_PERMITS, args, self.home))
        self.counts_by = grant.get("counts", self.counts_by)
        return dict(grant)

    def accept(self, report: dict[str, Any], grant: dict[str, Any], index: int = 0) -> bool:
        self.calls += 1
        answer = grant["answers"][index]
        args = calls.accept_permits_args(
            self.key, report["run"], grant["home"], answer, self.rules, self.time
        )
        accepted = json.loads(self.run(calls.ACCEPT_PERMITS, args, answer["partition"]))
        return bool(accepted["accepted"])

    def borrow(self, partition: int) -> int:
        """Carry all three messages for one partition, and return how many permits were added."""
        report = self.request(partition)
        grant = self.grant(report)
        self.accept(report, grant)
        return int(grant["answers"][0]["added"])

    def recount(self, home: int | None = None) -> dict[str, Any]:
        """Count the permits of all partitions."""
        home = self.grant(self.request(0))["home"] if home is None else home
        reports = [self.request(partition, home) for partition in range(self.count)]
        grant = self.grant(*reports, counts=self.counts_by)
        for index, report in enumerate(reports):
            self.accept(report, grant, index)
        return grant

    def serve(self) -> None:
        """Do what the agent of a worker does with the keys that claims named."""
        for _ in range(CALLS_AT_MOST):
            if not self.requests:
                return
            todo = deque([self.requests.popleft()[0]])
            for _ in range(4 * self.count):
                if not todo:
                    break
                report = self.request(todo.popleft())
                grant = self.grant(report)
                if grant.get("counts"):
                    self.recount(grant["home"])
                elif grant["answers"][0]["n"]:
                    self.accept(report, grant)
                todo += grant.get("visits", ())
        raise AssertionError("there is always more to request")

    def wait(self, ms: int) -> None:
        """Let time pass while workers look at all partitions, so that logical clocks follow."""
        while ms > 0:
            step = min(ms, LIFE // 3)
            self.now, ms = self.now + step, ms - step
            for partition in range(self.count):
                held = [(each.lease, each.key) for each in self.running[partition]]
                self.run(calls.RENEW, calls.renew_args(held, RULES, None, self.time), partition)

    def valid(self) -> list[int]:
        """Return the permits of each partition, by its own table."""
        found = []
        for partition in range(self.count):
            args = calls.request_permits_args(self.key, self.rules, now_text=self.time)
            found.append(json.loads(self.run(calls.REQUEST_PERMITS, args, partition))["n"])
        return found


@pytest.fixture
def make(client: Redis) -> Callable[..., Installation]:
    def made(count: int = 4, limit: int = 5, counted: bool = True) -> Installation:
        place = Installation(client, count, limit)
        if counted:
            place.recount()
        return place

    return made


@pytest.fixture
def place(make: Callable[..., Installation]) -> Installation:
    return make()


def test_a_task_of_a_shared_key_waits_for_a_permit(place):
    place.put(1, 3)
    assert place.claim(1).tasks == ()
    assert list(place.requests) == [(1, KEY)]
    place.serve()
    assert len(place.claim(1).tasks) == 3


def test_all_partitions_together_never_have_more_than_the_limit(place):
    for partition in range(4):
        place.put(partition, 5)
    for _ in range(10):
        for partition in range(4):
            place.claim(partition)
        place.serve()
        assert sum(place.counts()) <= 5
        place.now += 200
    assert sum(place.counts()) == 5


# -- messages that are lost, late, twice or in another order ---------------------------------------


def test_an_answer_that_is_lost_costs_its_permits_until_the_next_request(place):
    place.want(1, 5)
    assert place.grant(place.request(1))["answers"][0]["added"] == 5
    assert place.grant(place.request(2))["free"] == 0
    assert place.borrow(1) == 5
    assert len(place.claim(1).tasks) == 5


def test_a_late_answer_shortens_the_life_of_its_permits(place):
    place.want(1, 5)
    report = place.request(1)
    grant = place.grant(report)
    place.now += LIFE - 1
    assert place.accept(report, grant)
    place.now += 1
    assert place.claim(1).tasks == ()


def test_an_answer_is_accepted_once(place):
    place.want(1, 2)
    report = place.request(1)
    grant = place.grant(report)
    assert place.accept(report, grant)
    assert not place.accept(report, grant)
    assert place.valid()[1] == 2


def test_an_answer_to_an_older_request_is_not_accepted(place):
    place.want(1, 5)
    older = place.request(1)
    grant = place.grant(older)
    place.request(1)
    assert not place.accept(older, grant)
    assert place.valid()[1] == 0


def test_a_request_that_comes_twice_has_the_same_answer_and_changes_nothing(place):
    place.want(1, 3)
    report = place.request(1)
    first, again = place.grant(report), place.grant(report)
    assert again["answers"] == first["answers"]
    assert again["free"] == first["free"] == 2


def test_an_older_request_is_rejected(place):
    place.want(1, 3)
    older = place.request(1)
    place.borrow(1)
    grant = place.grant(older)
    assert grant["answers"][0]["added"] == -1
    assert grant["free"] == 2


def test_a_number_grows_although_the_partition_has_forgotten_the_last_one(place):
    place.want(1, 1)
    place.borrow(1)
    place.client.hdel(f"{place.prefix(1)}virtual_times", f"permits {KEY}")
    place.now += 1
    assert place.grant(place.request(1))["answers"][0]["added"] == 1


def test_what_goes_back_starts_nothing_from_the_request_on(place):
    place.want(1, 9)
    place.borrow(1)
    place.claim(1)
    place.want(2, 5)
    place.now += 1000
    # Three of the permits are for the other partition, and the first one learns that it owes them.
    assert place.borrow(2) == 0
    place.borrow(1)
    place.end(1, 4)
    assert len(place.claim(1).tasks) == 1
    assert place.request(1)["n"] == 2
    assert place.claim(1).tasks == ()


# -- servers that fail over, and clocks ------------------------------------------------------------


def of_another_server(place, partition):
    """Let the memory of a partition be that of another server, as a copy has it."""
    prefix = place.prefix(partition)
    place.client.hset(f"{prefix}clock", "server", "another")
    if place.client.hexists(f"{prefix}clock", "granter"):
        place.client.hset(f"{prefix}clock", "granter", "another")
    for field, name in (("permits", "run"), ("grants", "counted")):
        if found := read(place, partition, field):
            write(place, partition, field, {**found, name: "another"})


def read(place, partition, field):
    text = place.client.hget(f"{place.prefix(partition)}virtual_times", f"{field} {place.key}")
    return json.loads(text) if text else {}


def write(place, partition, field, found):
    name = f"{place.prefix(partition)}virtual_times"
    place.client.hset(name, f"{field} {place.key}", json.dumps(found))


def forget_ledger(place):
    place.client.hdel(f"{place.prefix(place.home)}virtual_times", f"grants {place.key}")


def test_permits_of_another_server_start_nothing(place):
    place.want(1, 5)
    place.borrow(1)
    of_another_server(place, 1)
    assert place.claim(1).tasks == ()


def test_permits_of_a_server_that_is_gone_are_granted_again_after_their_end(place):
    place.want(1, 5)
    place.borrow(1)
    ledger = read(place, place.home, "grants")
    holder = next(each for each in ledger["entries"] if each.startswith("1 "))
    ledger["entries"]["1 another"] = ledger["entries"].pop(holder)
    write(place, place.home, "grants", ledger)
    place.want(2, 5)
    place.wait(LIFE + MARGIN - 1)
    assert place.borrow(2) == 0
    place.wait(1)
    assert place.borrow(2) == 5


def test_permits_of_a_server_that_is_gone_are_not_added_to_those_of_another_partition(place):
    place.want(1, 2)
    place.borrow(1)
    place.want(3, 3)
    place.borrow(3)
    ledger = read(place, place.home, "grants")
    holder = next(each for each in ledger["entries"] if each.startswith("3 "))
    ledger["entries"]["3 another"] = {**ledger["entries"].pop(holder), "demand": 0}
    write(place, place.home, "grants", ledger)
    place.claim(1)
    place.now += 1000
    place.want(1, 5)
    assert place.request(1)["n"] == 2
    assert place.borrow(1) == 0


@pytest.mark.parametrize("memory", ["none", "older"])
def test_a_home_with_another_memory_adds_nothing_until_all_permits_have_ended(place, memory):
    place.want(1, 3)
    place.borrow(1)
    if memory == "none":
        place.client.delete(*place.client.keys(place.prefix(place.home) + "*"))
    else:
        of_another_server(place, place.home)
        forget_ledger(place)
    place.want(2, 5)
    assert place.borrow(2) == 0
    # The permits go on.
    assert len(place.claim(1).tasks) == 3
    place.wait(LIFE // 3)
    place.borrow(1)
    place.wait(LIFE + MARGIN - LIFE // 3 - 1)
    assert place.borrow(2) == 0
    place.wait(1)
    assert place.borrow(2) == 2


def test_a_home_with_another_memory_adds_nothing_until_the_permits_of_the_longest_lease_have_ended(
    place,
):
    place.rules = replace(RULES, lease_ms=4 * LIFE)
    place.want(1, 3)
    place.borrow(1)
    of_another_server(place, place.home)
    forget_ledger(place)
    place.rules = RULES
    place.want(2, 5)
    assert place.borrow(2) == 0
    place.wait(4 * LIFE - 1)
    assert place.valid()[1] == 3
    place.borrow(1)
    place.wait(4 * LIFE // 3 + 2000)
    assert place.borrow(2) == 0
    place.wait(1)
    assert place.borrow(2) == 2


def test_a_new_home_adds_at_once_after_it_has_counted(place):
    place.want(1, 3)
    place.borrow(1)
    of_another_server(place, place.home)
    forget_ledger(place)
    place.want(2, 5)
    place.borrow(2)
    place.wait(MARGIN + 1)
    grant = place.recount()
    assert [each["n"] for each in grant["answers"]] == [0, 3, 2, 0]


def test_a_home_counts_only_if_no_older_home_goes_on(place):
    # A counted partition that is replaced within that time would accept permits of the older home.
    of_another_server(place, place.home)
    forget_ledger(place)
    place.want(2, 5)
    assert "counts" not in place.grant(place.request(2))
    place.wait(MARGIN)
    assert "counts" not in place.grant(place.request(2))
    place.wait(1)
    assert "counts" in place.grant(place.request(2))


def test_a_partition_without_limits_forgets_that_it_was_counted(place):
    # The second look of a claim comes after the time in which no older home is accepted.
    for _ in range(2):
        place.wait(LIFE + MARGIN)
        for partition in range(4):
            place.claim(partition)
    for partition in range(4):
        assert read(place, partition, "permits") == {}
        assert not place.client.exists(f"{place.prefix(partition)}timers")


def test_a_partition_whose_server_is_new_is_not_counted(place):
    of_another_server(place, place.home)
    of_another_server(place, 3)
    place.want(2, 5)
    place.recount()
    assert place.valid() == [0, 0, 0, 0]
    place.wait(MARGIN + 1)
    place.recount()
    assert place.valid()[2] == 5


def test_a_counted_partition_accepts_nothing_from_an_older_home(place):
    place.want(2, 5)
    report = place.request(2)
    older = place.grant(report)
    of_another_server(place, place.home)
    place.now += MARGIN
    newer = place.grant(place.request(0))["home"]
    assert newer > older["home"]
    report = place.request(2, newer)
    older["answers"][0]["number"] = report["number"]
    assert not place.accept(report, older)


def test_a_clock_that_goes_back_voids_permits(place):
    place.want(1, 5)
    place.borrow(1)
    place.now -= 1
    assert place.claim(1).tasks == ()


def test_an_answer_after_the_clock_went_back_is_not_accepted(place):
    place.want(1, 5)
    report = place.request(1)
    grant = place.grant(report)
    place.now -= 1
    assert not place.accept(report, grant)


def test_a_jump_of_the_homes_clock_ends_no_permit_early(make):
    place = make(count=2)
    other = 1 - place.home
    place.want(other, 5)
    place.borrow(other)
    place.want(place.home, 5)
    place.now += 10 * LIFE
    assert place.borrow(place.home) == 0


def test_a_jump_in_the_call_of_a_worker_with_a_longer_lease_ends_no_permit_early(make):
    place = make(count=2)
    longer, other = replace(RULES, lease_ms=9 * LIFE), 1 - place.home
    place.rules = longer
    place.grant(place.request(place.home))
    place.rules = RULES
    place.want(other, 5)
    place.borrow(other)
    place.want(place.home, 5)
    place.rules = longer
    place.now += 30 * LIFE
    assert place.borrow(place.home) == 0


def test_bodies_whose_permits_have_ended_count_at_the_home(place):
    place.want(1, 3)
    place.borrow(1)
    assert len(place.claim(1).tasks) == 3
    place.wait(LIFE + MARGIN)
    place.want(2, 5)
    # The partition with more tenants has most of the permits as its share.
    reports = {**place.request(2), "tenants": 9}, place.request(1)
    assert [each["n"] for each in place.grant(*reports)["answers"]] == [2, 1]


def test_bodies_whose_permits_have_ended_are_no_permits(place):
    place.want(1, 6)
    place.borrow(1)
    place.claim(1, 3)
    assert len(place.running[1]) == 3
    place.wait(LIFE + MARGIN)
    place.want(2, 5)
    place.now += 1
    assert place.borrow(2) == 5
    place.claim(2, 5)
    # The home does not add what others have, although bodies run.
    place.borrow(1)
    place.end(1)
    assert place.claim(1).tasks == ()


# -- claims ----------------------------------------------------------------------------------------


def test_one_worker_asks_at_a_time(place):
    place.want(1, 3)
    place.claim(1)
    place.now += 199
    place.claim(1)
    assert not place.requests
    place.now += 1
    place.claim(1)
    assert list(place.requests) == [(1, KEY)]


def test_a_full_partition_asks_for_nothing_but_a_renewal(place):
    place.want(1, 7)
    place.borrow(1)
    assert len(place.claim(1).tasks) == 5
    place.now += LIFE // 3 - 1
    place.claim(1)
    assert not place.requests
    place.now += 1
    args = calls.due_permits_args(RULES, (), place.time)
    assert json.loads(place.run(calls.DUE_PERMITS, args, 1))["requests"] == [KEY]


def test_a_larger_task_behind_one_that_had_enough_permits_gets_all_of_them(place):
    place.put(1, slots=3)
    place.put(1, slots=5)
    place.claim(1)
    place.serve()
    assert len(place.claim(1).tasks) == 1
    place.end(1)
    # The last request is so new that this claim names no key.
    assert place.claim(1).tasks == ()
    assert not place.requests
    place.now += 1000
    place.claim(1)
    place.serve()
    assert len(place.claim(1).tasks) == 1


def test_an_answer_that_prolongs_permits_wakes_tasks_that_found_them_ended(place):
    place.want(1, 3)
    place.borrow(1)
    place.now += LIFE - 1
    report = place.request(1)
    place.now += 1
    assert place.claim(1).tasks == ()
    assert place.accept(report, place.grant(report))
    assert len(place.claim(1).tasks) == 3


def test_permits_that_are_owed_go_back_with_the_end_of_a_task(place):
    place.want(1, 9)
    place.borrow(1)
    place.claim(1)
    place.want(2, 5)
    place.now += 1000
    place.borrow(2)
    place.borrow(1)
    assert not place.requests
    place.end(1)
    assert list(place.requests) == [(1, KEY)]


def test_idle_permits_go_back_when_others_want_them(place):
    place.want(1, 5)
    place.borrow(1)
    place.claim(1)
    place.end(1, 5)
    place.want(2, 5)
    place.now += 1000
    place.requests.append((2, KEY))
    place.serve()
    assert len(place.claim(2).tasks) == 5


def test_a_lower_concurrency_is_that_of_the_newest_task_in_any_partition(place):
    place.want(1, 5)
    place.borrow(1)
    place.claim(1)
    place.limit = 2
    place.now += 1
    place.want(2, 1)
    place.borrow(2)
    place.now += LIFE // 3
    report = place.request(1)
    grant = place.grant(report)
    assert (grant["most"], grant["answers"][0]["owed"]) == (2, 4)


@pytest.mark.parametrize("prefix", ["{fairness}:", "{fairness#1}:"])
def test_a_key_of_one_tenant_and_an_installation_with_one_partition_have_no_permits(
    make, client, prefix
):
    place = make(counted=False)
    place.prefix = lambda _: prefix
    place.put(0, 2, flags="w" if prefix == "{fairness}:" else "wp")
    assert len(place.claim(0).tasks) == 2
    assert not [each for each in client.hkeys(f"{prefix}virtual_times") if "permits" in each]


# -- shares


def turn(place, seconds=5.0, task_ms=250):
    """Let tasks run one after the other, and return how many each partition has started."""
    started: Counter[int] = Counter()
    ends: list[tuple[int, int]] = []
    looks: Counter[int] = Counter()
    until = place.now + int(seconds * 1000)
    while place.now < until:
        due = [end for end in sorted(ends) if end[0] <= place.now]
        for end in due:
            ends.remove(end)
            place.end(end[1])
        place.serve()
        for partition in range(place.count):
            if due or looks[partition] <= place.now:
                looks[partition] = place.now + 500
                tasks = place.claim(partition).tasks
                started[partition] += len(tasks)
                ends += [(place.now + task_ms, partition) for _ in tasks]
                place.serve()
        assert sum(place.counts()) <= place.limit
        place.now += 50
    return started


@pytest.mark.parametrize(("limit", "count"), [(1, 4), (5, 4), (2, 8)])
def test_partitions_take_turns_at_the_permits_that_are_left_over(make, limit, count):
    place = make(count=count, limit=limit)
    for partition in range(count):
        place.put(partition, 60)
    started = turn(place)
    assert started.total() >= 0.9 * limit * 5000 / 250
    assert max(started.values()) - min(started.values()) <= limit + 1
    # Request and grant at the partition that returns a permit, and all three at the next one.
    assert place.calls / started.total() <= 8


def test_a_partition_has_permits_by_the_number_of_its_tenants(make):
    place = make(count=2, limit=8)
    for tenant in range(6):
        place.put(0, 5, tenant=f"a{tenant}")
    for tenant in range(2):
        place.put(1, 20, tenant=f"b{tenant}")
    for partition in range(2):
        place.claim(partition)
    place.serve()
    assert place.counts() == [0, 0]
    place.claim(0)
    assert place.counts() == [8, 0]
    place.now += 1000
    place.end(0, 4)
    place.serve()
    for partition in range(2):
        place.claim(partition)
    assert place.counts() == [6, 2]


def test_a_task_that_takes_all_slots_gathers_them_beside_small_ones(make):
    place = make(count=4, limit=4)
    for partition in range(1, 4):
        place.put(partition, 60)
    place.put(0, 3, slots=4)
    started = turn(place)
    assert started[0] >= 1
    assert all(started[partition] for partition in range(1, 4))


def test_a_partition_whose_server_is_replaced_keeps_its_turn(place):
    place.want(3, 5)
    place.borrow(3)
    assert len(place.claim(3).tasks) == 5
    place.want(1, slots=5)
    place.borrow(1)
    place.wait(5 * SECOND)
    # The task of partition 1 waits five seconds longer than these.
    place.want(2, 5)
    place.borrow(2)
    place.wait(SECOND)
    ledger = read(place, place.home, "grants")
    holder = next(each for each in ledger["entries"] if each.startswith("1 "))
    ledger["entries"]["1 another"] = ledger["entries"].pop(holder)
    write(place, place.home, "grants", ledger)
    place.borrow(1)
    place.end(3, 5)
    place.borrow(3)
    assert (place.borrow(2), place.borrow(1)) == (0, 5)


def test_others_go_on_while_a_replaced_server_has_permits_that_a_large_task_needs(place):
    place.want(3, 1)
    place.borrow(3)
    place.want(1, slots=5)
    place.borrow(1)
    place.wait(5 * SECOND)
    ledger = read(place, place.home, "grants")
    holder = next(each for each in ledger["entries"] if each.startswith("3 "))
    ledger["entries"]["3 another"] = {**ledger["entries"].pop(holder), "demand": 0}
    write(place, place.home, "grants", ledger)
    # It has gathered four, which it returns.
    place.borrow(1)
    place.wait(2 * SECOND)
    place.borrow(1)
    place.want(2, 5)
    # Four are left. Its quota is two of them, and it has a turn.
    assert place.borrow(2) == 3


def test_a_large_task_has_its_turns_however_long_permits_idled(make, client):
    def starts(credit):
        client.flushall()
        place = make(limit=4)
        for partition in range(3):
            place.put(partition, 60)
        place.put(3, 20, slots=4)
        for partition in range(4):
            place.claim(partition)
        place.serve()
        ledger = read(place, place.home, "grants")
        for entry in ledger["entries"].values():
            entry["credit"] += credit
        write(place, place.home, "grants", ledger)
        return turn(place, 40, 1000)

    # The first is near the bound of credit.
    assert starts(995)[3] >= starts(0)[3] - 1


def replaced_entry(place, permits):
    numbers = dict.fromkeys(("held", "demand", "credit", "added", "owed", "added_at"), 0)
    numbers |= dict.fromkeys(("need", "tenants", "number"), 1)
    return {**numbers, "partition": 0, "n": permits, "at": place.now, "ends": place.now + LIFE}


@pytest.mark.parametrize("seed", range(24))
def test_shares_are_those_of_the_reference(make, seed):
    chance = random.Random(seed)
    count = chance.choice([2, 4, 8])
    place = make(count=count, limit=chance.randint(1, 12), counted=False)
    demands = [
        Demand(chance.randint(1, 9), chance.choice([1, 1, 1, 3]), chance.randint(1, 4))
        for _ in range(count)
    ]
    fields = ("demand", "need", "tenants")
    reports = [
        {
            "partition": number,
            "run": "one",
            "number": 1,
            "n": 0,
            "held": 0,
            "since": 1,
            "own": f"C{place.limit}",
            "settled": True,
            "numbers": "|",
            **dict(zip(fields, (each.slots, each.piece, each.tenants), strict=True)),
        }
        for number, each in enumerate(demands)
    ]
    counts = place.grant()["counts"]
    # A server that was replaced has some of the permits.
    gone = chance.choice([0, 0, chance.randint(1, place.limit)])
    ledger = read(place, place.home, "grants")
    ledger["entries"] = {"0 another": replaced_entry(place, gone)}
    write(place, place.home, "grants", ledger)
    answers = place.grant(*reports, counts=counts)["answers"]
    shares = shares_of(place.limit, demands, gone)
    assert [each["added"] for each in answers] == shares
    assert sum(shares) <= place.limit - gone
