"""What the order of a whole queue by rank costs: the same for more of what waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler.types import Rules
from tests.lua.dispatching import PREFIX, Dispatch

BY_QUEUE = Rules(default_limit=None, priority_scope="queue")
AGING_MS = 10_000
AGED = replace(BY_QUEUE, priority_aging_ms=AGING_MS)
RULES = {"tenant": replace(BY_QUEUE, priority_scope="tenant"), "queue": BY_QUEUE, "aging": AGED}
API = write_limits((Limit("api", concurrency=1),))
#: Members of a ring that one claim looks at when the scope has changed.
MOVES = 64


def waiting(dispatch, tenants):
    for number in range(tenants):
        for rank in (number % 3, 5 + number % 4):
            dispatch.put(f"t{number}", rank=rank)


def full(dispatch, tenants):
    """As many that have what they may, and others that have not."""
    dispatch.publish_tiers(free=1)
    for number in range(tenants):
        dispatch.put(f"f{number}", rank=9)
        dispatch.put(f"f{number}", rank=8)
    while dispatch.claim(want=50).sleep_ms == 0:
        pass
    waiting(dispatch, 20)


def blocked(dispatch, tenants):
    """As many that wait for a limit, and others that do not."""
    dispatch.put("holds", limits=API)
    assert dispatch.claim(want=1).tasks
    for number in range(tenants):
        dispatch.put(f"p{number}", rank=number % 10, limits=API)
    dispatch.claim_all()
    waiting(dispatch, 20)


def cost(dispatch, commands):
    """How many commands a claim of five makes, its settle, and a put."""
    dispatch.claim(want=1)
    with commands() as of_claim:
        tasks = dispatch.claim(want=5).tasks
    with commands() as of_settle:
        dispatch.settle(tasks)
    with commands() as of_put:
        dispatch.put("t1", rank=9)
    assert len(tasks) == 5
    return [sum(ran.values()) for ran in (of_claim, of_settle, of_put)]


@pytest.mark.parametrize("crowd", [waiting, full, blocked])
@pytest.mark.parametrize("scope", RULES)
def test_a_claim_and_an_end_cost_no_more_with_many_tenants(
    redis_url, client, commands, scope, crowd
):
    spent = []
    for tenants in (MOVES // 2 - 2, 8 * MOVES):
        client.flushall()
        dispatch = Dispatch(client, RULES[scope])
        # The scope is known before anything waits.
        dispatch.put("first")
        dispatch.settle(dispatch.claim_all())
        crowd(dispatch, tenants)
        spent.append(cost(dispatch, commands))
    assert spent[0] == spent[1]
    assert max(spent[0]) < 5 * 60


def test_a_change_of_the_scope_looks_at_a_bounded_number_at_each_claim(redis_url, client, commands):
    spent = []
    for tenants in (4 * MOVES, 40 * MOVES):
        client.flushall()
        dispatch = Dispatch(client, replace(BY_QUEUE, priority_scope="tenant"))
        waiting(dispatch, tenants)
        dispatch.rules = BY_QUEUE
        with commands() as ran:
            assert dispatch.claim(want=1).sleep_ms == 0
        spent.append(sum(ran.values()))
        assert client.zcard(PREFIX + "ages:q") == tenants - MOVES
    assert spent[0] == spent[1]
    assert spent[0] < 6 * MOVES


def test_a_claim_looks_at_a_bounded_number_of_tasks_that_have_waited_long(
    redis_url, client, commands
):
    spent = []
    for tenants in (4 * MOVES, 40 * MOVES):
        client.flushall()
        dispatch = Dispatch(client, AGED)
        dispatch.put("first")
        dispatch.settle(dispatch.claim_all())
        for number in range(tenants):
            dispatch.put(f"t{number}", rank=number % 9)
        dispatch.now += AGING_MS
        with commands() as ran:
            assert dispatch.claim(want=1).sleep_ms == 0
        spent.append(sum(ran.values()))
        # The one that has started stands there no more.
        assert client.zcount(PREFIX + "ages:q", dispatch.now, "inf") == MOVES - 1
    assert spent[0] == spent[1]
    assert spent[0] < 16 * MOVES
    rest = dispatch.claim_all(want=1)
    assert len(rest) == tenants - 1


def test_a_change_to_aging_looks_at_a_bounded_number_at_each_claim(redis_url, client, commands):
    spent = []
    for tenants in (4 * MOVES, 40 * MOVES):
        client.flushall()
        dispatch = Dispatch(client, BY_QUEUE)
        waiting(dispatch, tenants)
        dispatch.claim_all(want=1)
        waiting(dispatch, tenants)
        dispatch.rules = AGED
        with commands() as ran:
            assert dispatch.claim(want=1).sleep_ms == 0
        spent.append(sum(ran.values()))
        assert client.zcount(PREFIX + "ages:q", 0, 0) == tenants - MOVES
    assert spent[0] == spent[1]
    assert spent[0] < 16 * MOVES


def test_only_tenants_and_ranks_that_may_rise_have_an_age(redis_url, client):
    dispatch = Dispatch(client, AGED)
    dispatch.claim(want=0)
    for rank in (9, 9, 3):
        dispatch.put("a", rank=rank)
    dispatch.put("b", rank=2)
    dispatch.put("c", rank=1)
    assert client.zrange(PREFIX + "ages:q", 0, -1) == ["1 tenant:c", "2 tenant:b", "3 tenant:a"]
    # One of the highest rank is left.
    assert dispatch.tags_of(dispatch.claim(want=1)) == ["t1"]
    assert client.zcard(PREFIX + "ages:q") == 3
    assert dispatch.tags_of(dispatch.claim(want=3)) == ["t2", "t3", "t4"]
    assert client.zrange(PREFIX + "ages:q", 0, -1) == ["1 tenant:c"]
