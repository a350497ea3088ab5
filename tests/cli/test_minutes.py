"""What claims and gates did in each minute, counted by themselves and read by people."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from celery_fairness.config.tenants import tier_key
from celery_fairness.control.health import stats_api as stats
from celery_fairness.control.health.stats_api import KEPT, MINUTE_MS
from celery_fairness.control.health.views import MinuteCount, WaitCount
from celery_fairness.limiter.types import Job, Lease, SlotRequest
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Waiting
from tests.support.parts import parts_of

#: Fields of a minute. Claims and gates count more queues as one.
FIELDS_AT_MOST = 1000
RULES = Rules(default_limit=1)


def claim(shop, now_ms, queues=("celery",), rules=RULES):
    shop.number += 1
    args = calls.claim_args("w", shop.number, 100, queues, rules, str(now_ms))
    return calls.read_claim(shop.run(calls.CLAIM, args)).tasks


@pytest.fixture
def now(monkeypatch) -> int:
    """This moment in ms, at which the minutes are read too: the minute does not end between."""
    now = int(time.time()) * 1000
    monkeypatch.setattr(stats, "server_now", lambda _reader: now)
    return now


def test_starts_and_rejections_are_counted_by_minute_tier_and_queue(shop, fairness, now):
    for tenant in ("41", "42", "42", "43"):
        shop.put(tenant, f"{tenant}-{time.monotonic_ns()}", tier="free")
    shop.put("", "system", queue="a b")
    assert len(claim(shop, now - 2 * MINUTE_MS)) == 3
    assert len(claim(shop, now, ("celery", "a b"))) == 1
    first, second = fairness.stats.minutes(5)
    assert first.at == datetime.fromtimestamp(now // MINUTE_MS * 60 - 120, UTC)
    assert first.counts == (MinuteCount("celery", "free", 3, 1, alone=(WaitCount(0.001, 3),)),)
    assert second.counts == (MinuteCount("a b", "", 1, 0, alone=(WaitCount(0.001, 1),)),)
    assert fairness.stats.minutes(1) == (second,)


def test_what_would_be_rejected_is_counted_too(shop, fairness):
    now = int(time.time()) * 1000
    for number in range(2):
        shop.put("42", f"t{number}")
    assert len(claim(shop, now, rules=Rules(default_limit=1, enforcement="observe"))) == 2
    at_once = (WaitCount(0.001, 1),)
    counted = MinuteCount("celery", "free", 2, 1, alone=at_once, behind_own=at_once)
    assert fairness.stats.minutes()[0].counts == (counted,)


def test_waits_are_counted_in_steps_the_quiet_apart(shop, fairness, now):
    for tenant, waited_ms in (("41", 0), ("42", 3), ("42", 4), ("43", 1000), ("42", 1023)):
        waiting = Waiting("celery", f"{tenant}-{waited_ms}", tenant, message="{}")
        shop.run(calls.PUT, calls.put_args(waiting, str(now - waited_ms)))
    assert len(claim(shop, now, rules=Rules(default_limit=None))) == 5
    ((counted,),) = (each.counts for each in fairness.stats.minutes(2))
    assert counted.started == 5
    assert counted.alone == (WaitCount(0.001, 1), WaitCount(0.004, 1), WaitCount(1.024, 1))
    assert counted.behind_own == (WaitCount(0.008, 1), WaitCount(1.024, 1))


def test_a_start_that_was_counted_without_its_wait_is_a_start(shop, fairness, client):
    minute = int(time.time()) // 60
    client.hset(shop.key(f"stats:{minute}"), "started free celery", 7)
    assert fairness.stats.minutes(2)[0].counts == (MinuteCount("celery", "free", 7, 0),)


def test_a_claim_that_takes_nothing_writes_nothing(shop, client):
    claim(shop, 1_760_000_000_000)
    shop.put("42", "t1")
    claim(shop, 1_760_000_000_000, ("other",))
    assert not list(client.scan_iter("*stats:*"))


def test_a_minute_is_kept_until_nobody_asks_for_it(shop, client):
    shop.put("42", "t1")
    claim(shop, 1_760_000_000_000)
    (key,) = client.scan_iter("*stats:*")
    assert 0 <= KEPT * MINUTE_MS + MINUTE_MS - client.pttl(key) < 30_000


def test_of_too_many_queues_the_others_are_one(shop, client):
    now = 1_760_000_000_000
    key = shop.key(f"stats:{now // MINUTE_MS}")
    client.hset(key, mapping={f"alone:0 free q{number}": 1 for number in range(FIELDS_AT_MOST - 1)})
    for queue in ("x", "y", "z"):
        for number in range(2):
            args = calls.put_args(Waiting(queue, f"{queue}{number}", f"t{number}", message="{}"))
            shop.run(calls.PUT, args)
    claim(shop, now, ("x", "y", "z"), Rules(default_limit=None))
    assert client.hmget(key, "alone:0 free x", "alone:0 free y") == ["2", None]
    assert client.hget(key, "alone:0 free _other") == "4"
    assert client.hlen(key) == FIELDS_AT_MOST + 1


@pytest.mark.parametrize("last", [0, KEPT + 1, True, "5", None])
def test_a_number_out_of_range_says_so(fairness, last):
    with pytest.raises(ValueError, match="last: expected a whole number from 1 to 360, got:"):
        fairness.stats.minutes(last)


def gate_asks(gate, lease, tenant, queue="celery"):
    job = Job(lease, "shop.pay", queue)
    asked = SlotRequest(Lease(lease, tier_key(tenant)), tenant, "free", job=job)
    return parts_of(gate).limiter.acquire(asked)


def test_on_the_gate_path_gates_count(redis_url, make_fairness):
    gate = make_fairness(url=redis_url)
    assert gate.stats.minutes() == ()
    for number in range(3):
        gate_asks(gate, f"l{number}", "42")
    gate_asks(gate, "l3", "43", "a b")
    counts = [each for minute in gate.stats.minutes() for each in minute.counts]
    assert {(each.queue, each.tier) for each in counts} == {("celery", "free"), ("a b", "free")}
    assert sum(each.started for each in counts) == 2
    assert sum(each.rejected for each in counts) == 2
    assert {(each.alone, each.behind_own) for each in counts} == {((), ())}


def test_claims_and_gates_of_one_installation_are_counted_together(
    shop, redis_url, fairness, make_fairness
):
    shop.put("42", "t1", tier="free")
    assert len(claim(shop, int(time.time() * 1000))) == 1
    gate_asks(make_fairness(url=redis_url), "l1", "43")
    started = [(each.at, one.started) for each in fairness.stats.minutes() for one in each.counts]
    assert sum(number for _, number in started) == 2
    assert make_fairness(url=redis_url).stats.minutes() == fairness.stats.minutes()
