"""The tasks of a queue that one worker runs behind a gate: counted, bounded, then forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_limits import SET
from celery_fairness.limiter.types import Admitted, Job, Lease, Reason, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.message.partition import queue_limits_text
from celery_fairness.store.keys import Names
from tests.lua.test_functions import fill_leases
from tests.support.tables import exceeded_in

NAMES = Names("fairness")
KEY = "queue:emails"
HERE = f"{NAMES.prefix}local_leases:{KEY}"
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
    limiter.limit_queue(SET, "emails", Limit("", concurrency=most, local_limit=local))


def start(limiter, *leases):
    for lease in leases:
        assert isinstance(limiter.acquire(ask(lease)), Admitted)


def test_the_count_of_a_worker_follows_what_it_runs(limiter, client, clock):
    start(limiter, "w1@a", "w1@a", "w1@b", "w2@a", "nobodys")
    assert client.hgetall(HERE) == {"w1": "2", "w2": "1"}
    for _ in range(2):
        limiter.release([ask("w1@a").lease, ask("nobodys").lease])
        assert client.hgetall(HERE) == {"w1": "1", "w2": "1"}
    epoch, kept = limiter.renew([]).epoch, ask("w1@b").lease
    for _ in range(3):
        clock.advance(5)
        limiter.renew([kept])
    # The lease of the other worker has ended by itself.
    assert client.hgetall(HERE) == {"w1": "1"}
    client.flushdb()
    for _ in range(2):
        limiter.renew([kept, ask("w1@c").lease, ask("w3@a").lease], epoch)
        assert client.hgetall(HERE) == {"w1": "2", "w3": "1"}
    for _ in range(3):
        clock.advance(5)
        limiter.renew([])
    assert not client.exists(HERE)


def test_a_number_counts_what_a_worker_ran_before_it_was_set(limiter):
    start(limiter, "w1@a", "w1@b")
    limit(limiter, 2)
    assert isinstance(limiter.acquire(ask("w1@c")), Rejected)
    start(limiter, "w2@a")
    limiter.release([ask("w1@a").lease])
    start(limiter, "w1@c")


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
    assert exceeded_in(client.hgetall(NAMES.counters)) == {f"concurrency {KEY}": "1"}
    assert client.keys(f"{NAMES.prefix}backoff:*") == [f"{NAMES.prefix}backoff:{KEY} w1"]
