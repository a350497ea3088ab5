"""What one worker runs behind a gate: kept where a number is said, bounded, gone by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.queue_limits import SET, QueueNumbers
from celery_fairness.limiter.types import Admitted, Job, Lease, Reason, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.message.partition import queue_limits_text
from celery_fairness.store.keys import Names
from tests.lua.test_scripts import fill_leases

NAMES = Names("fairness")
KEY = "queue:emails"
HERE = f"{NAMES.prefix}here:{KEY} w1"
DAY_MS = 86_400_000
#: Commands of the dearest call of a task of a queue, its own FCALL included.
MOST_COMMANDS = 30


def ask(lease, word=""):
    words = ",".join(filter(None, (word, queue_limits_text("emails", None))))
    keys = dict.fromkeys(each.partition("|")[0] for each in words.split(","))
    return SlotRequest(Lease(lease, ",".join(keys)), "", "", limits=words)


@pytest.fixture
def limiter(make_limiter):
    return make_limiter(frozen=True)


def limit(limiter, local, most=None):
    limiter.limit_queue(SET, "emails", QueueNumbers(most, local=local))


def start(limiter, *leases):
    for lease in leases:
        assert isinstance(limiter.acquire(ask(lease)), Admitted)


def leases_here(client):
    return {name for name in client.zrange(HERE, 0, -1) if not name.startswith(" ")}


def test_a_queue_without_a_number_for_one_worker_pays_nothing(limiter, client, commands):
    limit(limiter, None, 5)
    epoch, costs = limiter.renew([]).epoch, []
    for lease in ("warm", "other", "w1@l1"):
        with commands() as ran:
            start(limiter, lease)
            limiter.renew([ask(lease).lease], epoch)
            limiter.release([ask(lease).lease])
        costs.append(ran)
    assert costs[1] == costs[2]
    assert client.keys(f"{NAMES.prefix}here:*") == []


def test_only_what_is_entered_again_has_it_looked_for_anew(limiter, client):
    limit(limiter, 2)
    start(limiter, "w1@a")
    epoch, kept = limiter.renew([]).epoch, ask("w1@a").lease
    for known in (None, epoch, epoch - 1):
        limiter.renew([kept], known)
    limiter.renew([], epoch - 1)
    assert not client.hexists(NAMES.clock, "entered")
    limiter.renew([ask("w1@b").lease], epoch - 1)
    limiter.renew([ask("w1@c").lease], epoch - 1)
    assert client.hget(NAMES.clock, "entered") == "2"
    assert isinstance(limiter.acquire(ask("w1@d")), Rejected)
    assert leases_here(client) == {"w1@a", "w1@b", "w1@c"}


def test_what_is_known_of_a_worker_is_gone_by_itself(limiter, client):
    limit(limiter, 1)
    for lease in ("w1@a", "w1@b"):
        limiter.acquire(ask(lease))
        assert DAY_MS - 5_000 < client.pttl(HERE) <= DAY_MS
        client.persist(HERE)
        limiter.release([ask("w1@a").lease])
    # Of one that runs nothing too.
    limit(limiter, 0)
    limiter.acquire(ask("w9@a"))
    assert client.pttl(f"{NAMES.prefix}here:{KEY} w9") > 0


def test_that_it_is_known_is_noted_once_for_each_version(limiter, client):
    for number in (3, 4, 5):
        limit(limiter, number)
        start(limiter, f"w1@{number}")
    assert leases_here(client) == {"w1@3", "w1@4", "w1@5"}
    assert client.zcard(HERE) == 4


def test_who_looks_for_what_runs_reads_a_bounded_number(limiter, client, clock):
    limit(limiter, None)
    # The first thousand by their end; those of claims have none.
    ends = clock.now_ms + 9_000
    fill_leases(client, KEY, 998, ends)
    own = {"w1@claim": "inf", "w1@in": ends + 1, "w1@out": ends + 2, "w1@over": clock.now_ms}
    client.zadd(NAMES.of("leases", KEY), {**own, "w11@other": ends})
    limit(limiter, 9)
    start(limiter, "w1@new")
    assert leases_here(client) == {"w1@in", "w1@new"}


def test_leases_that_have_ended_are_looked_for_a_bounded_number_at_a_time(
    limiter, client, clock, commands
):
    limit(limiter, 300)
    start(limiter, "w1@a")
    client.zadd(HERE, {f"w1@gone{n}": clock.now_ms - 9_000 for n in range(400)})
    start(limiter, "w1@b")
    assert client.zcard(HERE) == 1 + 1 + 400 - 256 + 1
    # Nobody looks while there is room.
    with commands() as ran:
        start(limiter, "w1@c")
    assert "zmscore" not in ran
    assert sum(ran.values()) <= MOST_COMMANDS


def test_a_lease_that_has_ended_is_over_though_nobody_has_cleared_it_away(limiter, client, clock):
    limit(limiter, 1)
    start(limiter, "w1@a")
    client.zadd(NAMES.of("leases", KEY), {"w1@a": clock.now_ms})
    # One call clears so many away, and these ended before.
    fill_leases(client, KEY, 64, clock.now_ms - 5)
    start(limiter, "w1@b")
    assert leases_here(client) == {"w1@b"}


def test_those_that_were_looked_at_last_are_looked_at_last_again(limiter, client, clock):
    limit(limiter, 300)
    start(limiter, "w1@a")
    alive = {f"w1@l{n:03}": clock.now_ms + 9_000 for n in range(256)}
    client.zadd(NAMES.of("leases", KEY), alive)
    client.zadd(HERE, dict.fromkeys(alive, clock.now_ms - 9_000))
    client.zadd(HERE, {f"w1@gone{n}": clock.now_ms - 8_000 for n in range(50)})
    clock.advance(1)
    assert isinstance(limiter.acquire(ask("w1@b")), Rejected)
    assert client.zscore(HERE, "w1@l000") == clock.now_ms
    start(limiter, "w1@b")


def test_a_call_costs_as_much_however_much_runs(limiter, client, clock, commands):
    limit(limiter, 2)
    start(limiter, "w1@a", "w1@b")
    limiter.acquire(ask("w1@c"))

    def cost(lease):
        with commands() as ran:
            assert isinstance(limiter.acquire(ask(lease)), Rejected)
        return ran

    few = cost("w1@d")
    fill_leases(client, KEY, 10_000, clock.now_ms + 60_000)
    assert cost("w1@e") == few
    assert sum(few.values()) <= MOST_COMMANDS


def test_it_is_told_and_counted_as_a_limit_of_leases(limiter, client):
    limit(limiter, 2, 9)
    start(limiter, "w1@a", "w1@b", "w2@a")
    job = Job("t1", "shop.pay", "emails")
    answer = limiter.acquire(replace(ask("w1@c"), job=job, copy=Copy("m1"), next_serial="n"))
    assert answer.reason is Reason.AT_LOCAL_LIMIT
    ((_, told),) = [
        each for each in client.xrange(NAMES.events) if each[1]["type"] == "rate_limit.exceeded"
    ]
    said = {name: told[name] for name in ("key", "strategy", "limit", "current", "job_id")}
    assert said == {
        "key": KEY,
        "strategy": "concurrency",
        "limit": "2",
        "current": "2",
        "job_id": "t1",
    }
    assert client.hgetall(NAMES.exceeded) == {f"concurrency {KEY}": "1"}
    pace = client.keys(f"{NAMES.prefix}pace:*")
    assert set(pace) == {f"{NAMES.prefix}pace:{KEY}", f"{NAMES.prefix}pace:{KEY} w1"}
