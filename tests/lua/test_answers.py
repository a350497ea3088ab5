"""What the limiter's scripts answer, number by number, and what is left of it in Redis."""

from __future__ import annotations

import json

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.store.keys import Names
from tests.lua.test_functions import fill_leases
from tests.support.lifetimes import run_and_look
from tests.support.tiers import tier_row

NAMES = Names("fairness")
LEASES = NAMES.of("leases", "tenant:42")
NOW = 1_760_000_000_000
LEASE_MS = 15_000
KEEP_MS = 1_200_000
RULES = (LEASE_MS, "on", "free", "C0", 5)
#: Leases that one call ends, because nobody renewed them.
ENDED_AT_MOST = 64


class Limiter:
    """The scripts of the limiter for tenant 42, on a time that the test sets."""

    def __init__(self, client):
        self.client = client
        self.now = NOW

    def run(self, function, keys, *args):
        """Return the answer, and how long each of some keys lives."""
        return run_and_look(self.client, function, NAMES.prefix, args, keys)

    def acquire(self, lease, enforcement="on", limit=1, message="", serial="", next_serial=""):
        rules = (LEASE_MS, enforcement, *RULES[2:])
        known = ("tenant:42", "tenant:42", "basic", f"C{limit}")
        copies = (message, serial, next_serial, KEEP_MS)
        answer, lives = self.run(
            calls.ACQUIRE,
            (LEASES, NAMES.of("copy", message)),
            *(lease, *rules, *known, "", *copies),
            *("", LEASE_MS, "", "", self.now),
        )
        numbers, (tier, *rest) = calls.read_acquire(answer)
        assert rest == ["", "w"]
        return [*numbers, tier], lives

    def inspect(self):
        args = calls.json_args(
            key="tenant:42",
            tenant_key="tenant:42",
            tier="basic",
            lease_ms=LEASE_MS,
            default_tier="free",
            tiers={"basic": "C1;W1", "free": "C0;W1"},
            enforcement="on",
            frozen_ms=str(self.now),
            app="",
            first=0,
        )
        return json.loads(self.run(calls.INSPECT, (), *args)[0])


@pytest.fixture
def limiter(redis_url, client):
    return Limiter(client)


def test_an_acquire_answers_with_its_code_and_five_facts(limiter, client):
    client.hset(NAMES.clock, "version", 7)
    copy = {"message": "_", "next_serial": "s1"}

    def answer(*args, **fields):
        return limiter.acquire(*args, **fields)[0]

    assert answer("l1") == [1, 1, 1, -1, 7, "basic"]
    limiter.now += 1_000
    assert answer("l1") == [1, 1, 1, -1, 7, "basic"]
    assert answer("l2", **copy) == [0, 1, 1, -1, 7, "basic"]
    assert answer("l2", limit=0) == [-1, 1, 0, -1, 7, "basic"]
    assert answer("l2", message="_", serial="s9") == [-2, 1, 1, -1, 7, "basic"]
    assert answer("l2", "observe") == [2, 2, 1, -1, 7, "basic"]
    assert answer("l3", "off") == [1, 3, 1, -1, 7, "basic"]
    assert answer("l4", limit="unlimited") == [1, 4, -1, -1, 7, "basic"]


def test_a_lease_counts_until_a_call_ends_it(limiter, client):
    fill_leases(client, "tenant:42", ENDED_AT_MOST + 1, NOW)
    assert limiter.acquire("l1")[0] == [0, 1, 1, -1, 0, "basic"]
    assert limiter.acquire("l1")[0] == [1, 1, 1, -1, 0, "basic"]
    assert client.zrange(LEASES, 0, -1) == ["l1"]


def test_what_is_written_is_kept_as_long_as_the_table_of_keys_says(limiter):
    _, lives = limiter.acquire("l1")
    assert lives[LEASES] == -1
    _, lives = limiter.acquire("l2", message="_", next_serial="s1")
    assert lives[NAMES.of("copy", "_")] == KEEP_MS
    limiter.client.pexpire(NAMES.of("copy", "_"), 1_000)
    _, lives = limiter.acquire("l2", limit=2, message="_", serial="s1")
    assert lives[NAMES.of("copy", "_")] == KEEP_MS


def test_a_message_that_says_nothing_of_copies_leaves_no_memory_of_them(limiter, client):
    limiter.acquire("l1")
    assert limiter.acquire("l2", next_serial="s1")[0][0] == 0
    limiter.acquire("l2", limit=2, serial="s1")
    assert set(client.keys(NAMES.prefix + "*")) == {
        NAMES.clock,
        NAMES.counters,
        LEASES,
        f"{NAMES.prefix}ends",
        f"{NAMES.prefix}running",
    }


def test_a_tenant_may_have_a_tier_and_no_number_or_a_number_and_no_tier(limiter, client):
    client.hset(NAMES.tiers, "pro", tier_row(3))
    client.hset(NAMES.tenant("42"), "tier", "pro")
    client.hset(NAMES.clock, "tenant_published", 1)
    assert limiter.acquire("l1")[0] == [1, 1, 3, -1, 0, "pro"]
    client.hset(NAMES.tenant("42"), mapping={"tier": "", "numbers": "C7"})
    assert limiter.acquire("l1")[0] == [1, 1, 7, -1, 0, "basic"]
    client.hdel(NAMES.tenant("42"), "tier")
    assert limiter.acquire("l1")[0] == [1, 1, 7, -1, 0, "basic"]


def test_leases_are_shown_with_their_ends_and_the_oldest_first(limiter, client):
    client.zadd(
        f"{NAMES.prefix}ends", {"gate": NOW + 5_000, "t1.1.1": NOW + 7_000, "late": NOW - 1}
    )
    client.zadd(LEASES, {"gate": NOW - 2, "t1.1.1": NOW - 3, "late": NOW - 4, "lost": NOW - 1})
    found = limiter.inspect()
    shown = [(each["id"], each["ends_ms"]) for each in found["leases"]]
    assert shown == [("t1.1.1", 7_000), ("gate", 5_000), ("lost", 0)]
    # The call that removes a lease that has ended frees its slot.
    assert (found["held"], found["ended_unswept"]) == (3, 1)
    assert (found["tier"], found["entitled"]) == ("basic", "C1")


def test_a_publication_of_tiers_answers_with_its_code_and_the_version(limiter, client):
    def tiers(source, concurrency=1):
        row = tier_row(concurrency)
        args = calls.tiers_args({"free": row}, source, force=source == "database")
        answer = json.loads(limiter.run(calls.PUBLISH_TIERS, (), *args)[0])
        return answer["is_written"], answer["version"]

    assert tiers("settings") == (True, 1)
    assert tiers("settings") == (True, 1)
    assert tiers("database") == (True, 2)
    assert tiers("database") == (True, 2)
    assert tiers("settings", 2) == (False, 2)


def test_a_publication_of_a_tenant_answers_with_the_version_that_news_raise(limiter, client):
    def tenant(tier, numbers, keep_ms):
        keys = (NAMES.tenant("42"), NAMES.clock)
        args = calls.tenant_args("tenant:42", tier, numbers, keep_ms)
        answer, lifetimes = limiter.run(calls.PUBLISH_TENANT, keys, *args)
        version = json.loads(answer)["version"]
        assert version == int(client.hget(NAMES.clock, "version") or 0)
        return version, lifetimes

    assert tenant("pro", "", 5_000) == (1, {NAMES.tenant("42"): 5_000, NAMES.clock: -1})
    assert tenant("pro", "C7", 5_000) == (2, {NAMES.tenant("42"): -1, NAMES.clock: -1})
    client.hset(NAMES.tenant("42"), "numbers", "")
    # It had no end before.
    assert tenant("pro", "", 4_000) == (3, {NAMES.tenant("42"): 4_000, NAMES.clock: -1})
    client.delete(NAMES.clock, NAMES.tenant("42"))
    assert tenant("", "C7", 0)[0] == 0


def test_a_supersession_answers_with_its_code(limiter, client):
    copy = NAMES.of("copy", "_")
    assert limiter.run(calls.SUPERSEDE, [copy], "_", "s1", "s2") == (1, {copy: -2})
    client.hset(copy, mapping={"current": "s1", "next": "s2"})
    assert limiter.run(calls.SUPERSEDE, [copy], "_", "s1", "s3")[0] == 1
    assert client.hgetall(copy) == {"current": "s1", "next": "s3"}
    assert limiter.run(calls.SUPERSEDE, [copy], "_", "s3", "s4")[0] == 0
    client.hset(copy, "admitted", "s1")
    assert limiter.run(calls.SUPERSEDE, [copy], "_", "s1", "s4")[0] == 0
    assert client.hget(copy, "next") == "s3"
