"""A tenant's record that ends: from then on the tenant has the default tier, in every function."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from celery_fairness.config.tenants import tier_key
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.types import Admitted, Rejected
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Bounds, Full, Put
from tests.lua.dispatching import NOW, PREFIX, RULES, Dispatch
from tests.lua.test_functions import ask
from tests.support.tables import findings
from tests.support.tiers import tier_row

#: The time at which the record ends.
END = NOW + 60_000
#: The server's clock is ahead of the frozen one. The record must outlive both.
KEPT_MS = 10**12
ACCOUNT = PREFIX + "tenant_state:tenant:a"


@pytest.fixture
def dispatch(client):
    made = Dispatch(client, replace(RULES, default_tier="free"))
    made.publish_tiers(free=1, pro=3, held=0)
    return made


def pass_to(dispatch, now):
    """Let the time pass, with a worker that renews."""
    while dispatch.now < now:
        dispatch.now = min(now, dispatch.now + 4_000)
        dispatch.renew([])


def starts(dispatch):
    return len(dispatch.claim_all())


@pytest.mark.parametrize(("at", "started"), [(END - 1, 3), (END, 1), (END + 1, 1)])
def test_a_claim_counts_by_the_tier_until_its_end(dispatch, at, started):
    dispatch.publish_tenant("a", "pro", KEPT_MS, END)
    for _ in range(5):
        dispatch.put("a", tier="pro")
    pass_to(dispatch, at)
    assert starts(dispatch) == started


def test_a_tenant_that_waits_at_its_limit_is_free_at_the_end(dispatch, client):
    """Nothing else happens then: no put, no end of a task, no publication."""
    dispatch.publish_tenant("a", "held", KEPT_MS, END)
    dispatch.put("a", tier="held")
    assert starts(dispatch) == 0
    pass_to(dispatch, END - 1)
    assert starts(dispatch) == 0
    pass_to(dispatch, END + 8_000)
    assert starts(dispatch) == 1


def test_the_tier_does_not_come_back_once_the_record_is_gone(dispatch, client):
    dispatch.publish_tenant("a", "pro", KEPT_MS, END)
    for _ in range(5):
        dispatch.put("a", tier="pro")
    pass_to(dispatch, END)
    assert starts(dispatch) == 1
    client.delete(PREFIX + "tenant:a")
    assert client.hget(ACCOUNT, "tier") == "free"
    assert starts(dispatch) == 0


def test_a_put_is_bounded_by_the_default_tier_after_the_end(dispatch, client):
    tiers = {"free": tier_row(9, max_waiting=1), "pro": tier_row(9, max_waiting=2)}
    dispatch.run(calls.PUBLISH_TIERS, calls.tiers_args(tiers, "database"))
    dispatch.publish_tenant("a", "pro", KEPT_MS, END)
    bounds = Bounds("free", None, None)
    assert [dispatch.put("a", tier="pro", bounds=bounds) for _ in range(2)] == [Put.WAITS] * 2
    assert dispatch.put("a", tier="pro", bounds=bounds) == Full("tenant:a", 2, 2)
    dispatch.now = END
    assert dispatch.put("a", tier="pro", bounds=bounds) == Full("tenant:a", 1, 2)


def test_the_check_of_the_tables_only_reads(dispatch, client):
    dispatch.publish_tenant("a", "held", KEPT_MS, END)
    dispatch.put("a", tier="held")
    assert starts(dispatch) == 0
    # Without its time in `ends` nobody would look at the tenant at the end of its tier.
    client.zrem(PREFIX + "ends", " tenant:a")
    rules = replace(RULES, default_tier="free", default_limit=1)
    found = findings(client, PREFIX, rules, END + 1)
    assert {name for name, _, _ in found} == {"tenant_left_at_limit"}
    assert client.hget(ACCOUNT, "tier") == "held"
    findings(client, PREFIX, rules, END + 1, repair=True)
    assert client.hget(ACCOUNT, "tier") == "free"


def test_an_end_that_moves_is_news(dispatch, client):
    def version():
        return int(client.hget(PREFIX + "clock", "version"))

    dispatch.publish_tenant("a", "pro", KEPT_MS, END)
    first = version()
    dispatch.publish_tenant("a", "pro", KEPT_MS, END)
    assert version() == first
    dispatch.publish_tenant("a", "pro", KEPT_MS, END + 1)
    dispatch.publish_tenant("a", "pro", 0)
    assert version() == first + 2
    assert client.hgetall(PREFIX + "tenant:a") == {"tier": "pro", "numbers": ""}
    assert client.pttl(PREFIX + "tenant:a") == -1


def test_news_of_a_tenant_is_an_event_and_the_same_record_again_is_none(dispatch, client):
    def news():
        rows = [row for _, row in client.xrange(PREFIX + "events")]
        return [row for row in rows if row["type"].startswith("fairness.tier_")]

    version = client.hget(PREFIX + "clock", "version")
    dispatch.publish_tenant("b", "", KEPT_MS)
    assert client.hget(PREFIX + "clock", "version") == version
    dispatch.publish_tenant("a", "pro")
    dispatch.publish_tenant("a", "pro")
    # The record ends sooner, which no person needs to see.
    dispatch.publish_tenant("a", "pro", KEPT_MS)
    dispatch.publish_tenant("a", "")
    assert news() == [
        {"type": "fairness.tier_set", "key": "tenant:a", "tier": "pro", "numbers": ""},
        {"type": "fairness.tier_cleared", "key": "tenant:a"},
    ]


def test_a_record_is_kept_for_however_short_a_time_the_caller_says(dispatch, client):
    dispatch.publish_tenant("a", "pro", keep_ms=1)
    assert client.pttl(PREFIX + "tenant:a") != -1


def test_the_limiter_ends_a_tier_and_a_number_of_its_own(make_limiter, clock):
    clock.now_ms = int(time.time() * 1000)
    limiter = make_limiter(frozen=True)
    limiter.publish_tiers([Tier("free", 1), Tier("pro", 3)], "database")
    end = clock.now_ms + 60_000
    limiter.publish_tenant("42", "pro", {"concurrency": 2}, ends_ms=end)

    def seen():
        found = limiter.look(tier_key("42"), "42", "pro")
        return limiter.published_tenant("42"), found["entitled"], found["own_number"]

    assert seen() == ("pro", "C2", True)
    assert isinstance(limiter.acquire(ask("l1", "42", "pro")), Admitted)
    clock.now_ms = end - 1
    assert seen() == ("pro", "C2", True)
    clock.now_ms = end
    assert seen() == ("free", "C1", False)
    answer = limiter.acquire(ask("l2", "42", "pro"))
    assert isinstance(answer, Rejected)
    assert (answer.tier, answer.limit) == ("free", 1)


def test_the_record_is_kept_until_no_cache_has_the_tier(make_limiter, client):
    limiter = make_limiter(tier_cache_seconds=60)
    end = int(time.time() * 1000) + 60_000
    limiter.publish_tenant("42", "pro", {"concurrency": 2}, ends_ms=end)
    assert client.pexpiretime(PREFIX + "tenant:42") == end + 121_000
    limiter.publish_tenant("42", "pro", {"concurrency": 2}, keep=True, ends_ms=end)
    assert client.pexpiretime(PREFIX + "tenant:42") == end + 121_000
    limiter.publish_tenant("42", "pro", keep=True)
    assert client.pttl(PREFIX + "tenant:42") == -1


def test_the_servers_own_time_ends_it_for_a_cache(make_limiter):
    limiter = make_limiter()
    now_ms = int(time.time() * 1000)
    limiter.publish_tenant("42", "pro", ends_ms=now_ms - 10)
    assert limiter.published_tenant("42") == "free"
    limiter.publish_tenant("42", "pro", ends_ms=now_ms + 100_000)
    assert limiter.published_tenant("42") == "pro"


def test_what_people_see_of_waiting_tasks_ends_too(dispatch, make_limiter, clock):
    dispatch.publish_tenant("a", "held", KEPT_MS, END)
    dispatch.put("a", tier="held")
    limiter = make_limiter(frozen=True)

    def seen():
        (row,) = limiter.inspect_queue("q")["tenants"]
        place = limiter.explain("t1", "tasks", "tenant")
        # The last of a turn is how many tasks may still start.
        return row[1], row[7], place["turn"]["mine"][-1]

    clock.now_ms = END - 1
    assert seen() == ("held", "paused", 0)
    clock.now_ms = END
    assert seen() == ("free", "ready", 1)
