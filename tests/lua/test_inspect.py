"""The snapshot of a key: the same answers as the next claim has, and no write."""

from __future__ import annotations

import json
import random
from functools import partial

import pytest
from redis.exceptions import ReadOnlyError

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.types import Lease, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Verdict, Waiting
from celery_fairness.store.library import build, check_library, library
from tests.support.library import call
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

PREFIX = "{fairness}:"
NOW = 1_760_000_000_000
LEASE_MS = 15_000
RULES = Rules(default_limit=None, lease_ms=LEASE_MS)
API = "api|C2|w"


class World:
    """One queue at a time that stands, and the tasks that wait in it, as they were put."""

    def __init__(self, client):
        self.client, self.now, self.number, self.waits = client, NOW, 0, {}

    def run(self, function, args, made=None):
        return call(self.client, function, PREFIX, args, made)

    def put(self, tag, tenant="42", limits=API, queue="celery", **fields):
        waiting = Waiting(queue, tag, tenant, limits=limits, message="{}", **fields)
        self.run(calls.PUT, calls.put_args(waiting, str(self.now)))
        self.waits[tag] = [limit.partition("|")[0] for limit in limits.split(",") if limit]

    def claim(self, want=1, queue="celery"):
        self.number += 1
        args = calls.claim_args("w", self.number, want, [queue], RULES, now_text=str(self.now))
        tasks = list(calls.read_claim(self.run(calls.CLAIM, args)).tasks)
        return [(task, self.waits.pop(task.lease.rsplit(".", 2)[0])) for task in tasks]

    def settle(self, claimed, verdict=Verdict.DONE):
        task, keys = claimed
        args = calls.settle_args([Settle(task.lease, verdict)], RULES, str(self.now))
        self.run(calls.SETTLE, args)
        if verdict is Verdict.HEAD:
            self.waits[task.lease.rsplit(".", 2)[0]] = keys

    def checking(self):
        """Return the arguments by which a function checks limits."""
        return {
            "lease_ms": LEASE_MS,
            "default_tier": "free",
            "tiers": {"free": "W1"},
            "enforcement": "on",
            "frozen_ms": str(self.now),
        }

    def look(self, key, first=0, made=None):
        tenant = key if key.startswith("tenant:") else ""
        args = calls.json_args(
            key=key, tenant_key=tenant, tier="free", app="", first=first, **self.checking()
        )
        return json.loads(self.run(calls.INSPECT, args, made))

    def explain(self, tag):
        args = calls.json_args(tag=tag, fairness_by="tasks", scope="tenant", **self.checking())
        return json.loads(self.run(calls.EXPLAIN, args))

    def counted(self, key):
        return sum(key in keys for keys in self.waits.values())


@pytest.fixture
def world(redis_url, client):
    return World(client)


def everything(client):
    return {key: client.dump(key) for key in client.scan_iter("*")}


def test_a_look_writes_nothing_and_leaves_the_clock_where_it_is(world, redis_server):
    world.put("t1")
    world.claim()
    with redis_server.client() as raw:
        before = everything(raw)
        # All of these have ended, but no call has noticed it.
        world.now += 3 * LEASE_MS
        world.run(calls.RENEW, calls.renew_args([], RULES, None, str(NOW)))
        world.look("api")
        world.look("tenant:42")
        assert everything(raw) == before


def test_the_clock_takes_no_longer_step_than_a_third_of_a_lease(world):
    world.put("t1")
    world.claim()
    world.now += 3 * LEASE_MS
    (lease,) = world.look("api")["leases"]
    assert lease["ends_ms"] == LEASE_MS - LEASE_MS / 3


API_ASKED = {"key": "api", "tenant_key": "", "tier": "", "app": "", "first": 0}
T2_ASKED = {"tag": "t2", "fairness_by": "tasks", "scope": "tenant"}


def value_of(answer):
    """Return the value in an answer of JSON: the fields of an object have no order."""
    return json.loads(answer) if isinstance(answer, str) else answer


@pytest.mark.parametrize(
    ("function", "args", "made"),
    [
        (calls.INSPECT, calls.json_args(**API_ASKED, **World(None).checking()), library()),
        (calls.EXPLAIN, calls.json_args(**T2_ASKED, **World(None).checking()), library()),
        ("check", (LEASE_MS, "free", "C1", NOW, "leases:api", "0"), check_library()),
    ],
    ids=["inspect", "explain", "check"],
)
def test_a_replica_answers(world, redis_server, function, args, made):
    world.put("t1")
    world.put("t2")
    world.claim()
    # The lease has no task any more, so that a check has a finding.
    world.client.hdel(f"{PREFIX}running", "t1")
    answer = world.run(function, args, made)
    assert answer
    world.client.config_set("repl-diskless-sync-delay", 0)
    with RedisServer() as other, other.client(decode_responses=True) as replica:
        replica.replicaof("127.0.0.1", redis_server.port)
        # A replica gets the libraries with the tables.
        eventually(lambda: replica.exists(f"{PREFIX}leases:api"))
        for command in ("FCALL", "FCALL_RO"):
            found = replica.execute_command(command, made.function(function), 1, PREFIX, *args)
            assert value_of(found) == value_of(answer)
        with pytest.raises(ReadOnlyError):
            replica.execute_command("FUNCTION", "LOAD", "REPLACE", made.code)


@pytest.mark.parametrize("seed", range(8))
def test_a_window_is_counted_as_the_rule_closes_it(make_limiter, clock, seed):
    chance, times = random.Random(seed), []
    starts, period_ms = chance.choice([(1, 10), (5, 1000), (40, 20_000), (7, 60_000)])
    words = write_limits((Limit("api", rate=((starts, period_ms),)),))
    limiter = make_limiter(frozen=True)
    for number in range(300):
        clock.advance(chance.choice([0, 0, 0.001, 0.007, 0.04, 1.2]))
        limiter.renew([])
        found = limiter.look("api")
        logical = clock.now_ms
        inside = [at for at in times if at + period_ms + 1 > logical]
        if times:
            # If the window is full, so many starts must leave it that one more fits.
            leaves = inside[max(0, len(inside) - starts)] if inside else logical - period_ms - 1
            expected = [starts, period_ms, len(inside), leaves + period_ms + 1 - logical]
            assert found["rates"] == [expected]
            assert (found.get("blocked_by") == "rate") == (len(inside) >= starts)
        if len(inside) < starts or chance.random() < 0.05:
            request = SlotRequest(Lease(f"l{number}", "api"), "", "", limits=words)
            limiter.acquire(request, Enforcement.OFF)
            limiter.release([request.lease])
            times.append(logical)


def test_starts_that_share_an_entry_are_all_counted(make_limiter, clock):
    limiter = make_limiter(frozen=True)
    words = write_limits((Limit("api", rate=((4000, 3_600_000),)),))
    for number in range(1300):
        request = SlotRequest(Lease(f"l{number}", "api"), "", "", limits=words)
        limiter.acquire(request)
        limiter.release([request.lease])
    assert limiter.look("api")["rates"] == [[4000, 3_600_000, 1300, 3_600_001]]


HOUR = 3_600_000


@pytest.mark.parametrize(
    ("limits", "stop", "expected"),
    [
        ("api|C1|w", None, ("concurrency", None)),
        (f"api|R1/{HOUR}|w", None, ("rate", HOUR + 1)),
        # A start that comes early leaves a tenth of the interval.
        (f"api|T2/{HOUR}|w", None, ("throttle", 0.9 * HOUR / 2)),
        ("api|C5|w", None, (None, None)),
        ("api|C5|w", ("pause", 0), ("paused", None)),
        ("api|C5|w", ("pause", 60_000), ("paused", 60_000)),
        ("api|C1|w", ("cool", 60_000), ("cool-down", 60_000)),
        # A promotion reserves the second start.
        (f"api|R2/{HOUR}|w", ("reserve", 60_000), ("rate", HOUR + 1)),
        (f"api|T2/{HOUR}|w", ("reserve", 60_000), ("throttle", 1.9 * HOUR / 2)),
    ],
)
def test_what_keeps_the_next_start_away_and_until_when(world, limits, stop, expected):
    world.put("t1", limits=limits)
    assert len(world.claim()) == 1
    if stop is not None and stop[0] == "reserve":
        world.client.hset(f"{PREFIX}clock", "parked", "1")
        world.client.zadd(f"{PREFIX}reserved:api", {"promotion": world.now + stop[1]})
    elif stop is not None:
        how, wait_ms = stop
        args = calls.stop_args(how, "api", wait_ms, LEASE_MS, "on", now_text=str(world.now))
        world.run(calls.STOP, args)
    found = world.look("api")
    assert (found.get("blocked_by"), found.get("opens_ms")) == expected
    # A task that waits shows its limit alike.
    world.put("t2", limits=limits)
    _, shown = world.explain("t2")["limits"]
    assert (shown["key"], shown.get("blocked_by"), shown.get("opens_ms")) == ("api", *expected)


def test_an_override_of_0_opens_with_its_end(world):
    world.put("t1")
    text, rules = "C0", (LEASE_MS, "on", str(world.now))
    world.run(calls.OVERRIDE, calls.override_args("api", text, 9_000, None, "", *rules))
    found = world.look("api")
    assert (found["blocked_by"], found["opens_ms"]) == ("paused", 9_000)


def test_slots_that_ended_and_no_call_has_freed_are_apart(world):
    for number in range(3):
        world.put(f"t{number}", limits="api|C3|w")
    (ended, _), *_ = world.claim(3)
    world.client.zadd(f"{PREFIX}ends", {ended.lease: NOW - 1})
    found = world.look("api")
    assert (found["held"], found["ended_unswept"], len(found["leases"])) == (2, 1, 2)
    # The next claim frees the slot, so the limit lets a task start.
    assert "blocked_by" not in found


def test_leases_and_limits_come_in_pages(make_limiter):
    limiter = make_limiter(frozen=True)
    words = write_limits((Limit("api", concurrency=500),))
    for number in range(230):
        limiter.acquire(SlotRequest(Lease(f"l{number:03}", "api"), "", "", limits=words))
    pages = [limiter.look("api", first=first).get("leases", ()) for first in (0, 100, 200, 300)]
    assert [len(page) for page in pages] == [100, 100, 30, 0]
    assert sorted(each["id"] for page in pages for each in page) == [
        f"l{number:03}" for number in range(230)
    ]


@pytest.fixture
def crowded(world):
    """A hundred tenants wait at one limit, each with two lanes."""
    for number in range(100):
        world.put(f"t{number}", f"u{number}")
        world.put(f"high{number}", f"u{number}", rank=5)
    for _ in range(20):
        world.claim(8)
    assert world.client.zcard(f"{PREFIX}active:celery") == 0
    return world


def test_more_waiting_tenants_than_a_call_counts_have_no_number_of_tasks(crowded):
    waits = len(crowded.waits)
    look = partial(crowded.look, "api")
    (row,) = look()["waited"]
    assert (row["tenants"], row["tasks"], row["state"]) == (100, waits, "exhausted")
    (row,) = look(made=build({"COUNTED_AT_MOST": 99}))["waited"]
    assert (row["tenants"], row.get("tasks")) == (100, None)
    (row,) = look(made=build({"GROUPS_AT_MOST": 0}))["waited"]
    assert (row["tenants"], row.get("tasks")) == (1, None)
    assert look(made=build({"GROUPS_AT_MOST": 0}))["waiting_count"] == waits


def test_a_tenant_with_many_lanes_is_counted_to_a_bound(crowded):
    assert crowded.look("tenant:u99")["waiting"] == [["celery", 5, 1], ["celery", 0, 1]]
    few = crowded.look("tenant:u99", made=build({"LANES_AT_MOST": 1}))
    assert few["waiting"] == [["celery", 5, 1]]
    assert few["waiting_count"] == 2


BOTH = f"{API},db|C1|w"


@pytest.mark.parametrize("seed", range(5))
def test_tasks_are_counted_at_their_limits_whatever_becomes_of_them(world, seed):
    chance, running = random.Random(seed), []
    for number in range(150):
        act = chance.choice(["put", "put", "claim", "done", "head", "purge"])
        if act == "put":
            limits = chance.choice([API, BOTH, "db|C1|w", f"own:{number % 3}|C1|wp,{API}", ""])
            world.put(f"t{number}", f"u{number % 4}", limits)
        elif act == "claim":
            running += world.claim(chance.randint(1, 3))
        elif act in ("done", "head") and running:
            verdict = Verdict.DONE if act == "done" else Verdict.HEAD
            world.settle(running.pop(chance.randrange(len(running))), verdict)
        elif act == "purge" and chance.random() < 0.1:
            world.run(calls.PURGE, ("celery",))
            world.waits.clear()
        for key in ("api", "db", "own:1"):
            assert world.look(key)["waiting_count"] == world.counted(key), (number, act, key)
    world.run(calls.PURGE, ("celery",))
    assert not world.client.exists(f"{PREFIX}waiting_at")


def test_a_dropped_and_a_rescheduled_task_wait_no_longer(world):
    for tag, limits in (
        ("a", "db|C1|d"),
        ("b", "db|C1|d"),
        ("c", "late|C1|r"),
        ("d", "late|C1|r"),
    ):
        world.put(tag, tag, limits)
    assert world.look("db")["waiting_count"] == world.look("late")["waiting_count"] == 2
    assert len(world.claim(8)) == 2
    assert world.look("db")["waiting_count"] == world.look("late")["waiting_count"] == 0


def test_what_a_gate_parks_is_counted_until_it_is_on_its_broker_again(make_limiter, client):
    limiter = make_limiter(frozen=True)
    words = write_limits((Limit("api", concurrency=1), Limit("db", concurrency=5)))

    def ask(tag, serial=""):
        slot = Lease(f"l{tag}{serial}", "tenant:42,api,db")
        return SlotRequest(slot, "42", "pro", Copy(tag, serial), f"{tag}-next", words)

    def counted():
        return [limiter.look(key)["waiting_count"] for key in ("api", "db")]

    limiter.acquire(ask("held"))
    limiter.acquire(ask("t1"))
    limiter.park(ask("t1"), "{}")
    assert counted() == [1, 1]
    tenant = limiter.look("tenant:42", "42")
    assert (tenant["waiting_count"], tenant["waiting"]) == (1, [["", 0, 1]])
    limiter.release([ask("held").lease])
    (promoted,) = limiter.promote(1).tasks
    assert counted() == [0, 0]
    limiter.end_promotion(promoted, "sent")
    assert not client.exists(f"{PREFIX}waiting_at")
