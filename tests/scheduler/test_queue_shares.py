"""The queues of a claim: their order, and how much it takes of each by its process's shares."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.tiers import Tier

pytestmark = pytest.mark.redis

A, B = "q", "p q|1"
API = Limit("api", concurrency=1)


@pytest.fixture
def full(shop):
    """1 to 5 wait in A, 6 to 10 in B, each of a tenant of its own."""
    for queue in (A, B):
        for number in range(5):
            shop.put(f"{number}-{queue[0]}", queue=queue)
    return shop


def test_a_claim_takes_no_more_of_a_queue_than_it_has_room_for(full):
    assert full.claim(queues=(A, B), rooms={A: 2, B: 1}) == ([1, 6, 2], 0)
    assert full.claim(queues=(B, A), rooms={A: 0, B: 3})[0] == [7, 8, 9]


def test_of_a_queue_without_room_nothing_is_taken_and_another_process_hears_of_it(full):
    given, sleep_ms = full.claim(queues=(A,), rooms={A: 0})
    assert given == []
    assert sleep_ms > 0
    assert full.is_woken(A)
    assert full.claim(queues=(A,))[0] == [1, 2, 3, 4, 5]


def test_of_a_queue_without_a_share_any_number_is_taken(full):
    assert full.claim(queues=(A, B), rooms={A: 1})[0] == [1, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_what_has_room_goes_before_what_borrows(full, order):
    assert full.claim(1, order, rooms={A: 0, B: 1}, lends=True)[0] == [6]
    assert full.claim(1, order, rooms={A: 2, B: 0}, lends=True)[0] == [1]


def test_places_that_no_queue_with_room_can_use_are_lent(full):
    given, _ = full.claim(8, (A, B), rooms={A: 1, B: 2}, lends=True)
    # One of A and two of B by their own room; the rest in turn.
    assert given == [1, 6, 7, 2, 8, 3, 9, 4]


def test_a_queue_that_waits_for_nothing_lends_all_its_places(shop):
    shop.put("a", queue=B, times=4)
    assert shop.claim(4, (A, B), rooms={A: 3, B: 1}, lends=True)[0] == [1, 2, 3, 4]


def test_strict_places_stay_idle(shop):
    shop.put("a", queue=B, times=4)
    assert shop.claim(4, (A, B), rooms={A: 3, B: 1})[0] == [1]


@pytest.fixture
def next_is_of_b(shop):
    """A limit's next waiter, 2, is of B; 3, of A, comes after it."""
    for tenant, queue in (("a", A), ("b", B), ("a", A)):
        shop.put(tenant, API, queue=queue)
    assert shop.claim(queues=(A, B))[0] == [1]
    shop.end()
    return shop


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_a_shared_limit_whose_next_is_of_a_queue_without_room_is_not_idle(next_is_of_b, order):
    assert next_is_of_b.claim(queues=order, rooms={A: 1, B: 0})[0] == [3]


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_lent_places_go_by_the_time_of_a_shared_limit(next_is_of_b, order):
    assert next_is_of_b.claim(queues=order, rooms={A: 0, B: 0}, lends=True)[0] == [2]


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_what_was_left_to_a_queue_without_room_is_taken_before_anything_is_lent(
    next_is_of_b, order
):
    next_is_of_b.put("c", queue=B)
    assert next_is_of_b.claim(1, order, rooms={A: 1, B: 0}, lends=True)[0] == [3]


#: What may reject a task, and the number of slots that are enough for it.
REJECTS = {"tier": 1, "task": 1, "call": 1, "queue": 1, "local": 1, "share": 1}


@pytest.mark.parametrize("closed", [None, *REJECTS])
def test_s02_s32_every_limit_and_the_share_agree_or_nothing_is_taken(shop, closed):
    room = REJECTS | ({closed: 0} if closed else {})
    shop.tiers(Tier("free", room["tier"]))
    shop.limit_queue(A, concurrency=room["queue"], local_limit=room["local"])
    shop.put("a", Limit("task", concurrency=room["task"]), Limit("call", concurrency=room["call"]))
    given, _ = shop.claim(queues=(A, B), rooms={A: room["share"], B: 3})
    assert given == ([] if closed else [1])
    held = {key: shop.held(key) for key in ("tenant:a", "task", "call", "queue:q")}
    assert held == dict.fromkeys(held, 0 if closed else 1)


def test_a_turned_off_limit_turns_off_no_share(full):
    assert full.claim(queues=(A, B), enforcement="off", rooms={A: 2, B: 1})[0] == [1, 6, 2]


def test_with_what_is_passed_over_a_share_holds_too(shop):
    shop.put("a", kind="never")
    shop.put("b", times=3)
    assert shop.claim(queues=(A,), never=["never"], rooms={A: 2})[0] == [2, 3]


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_a_strict_claim_empties_one_queue_after_the_other(full, order):
    numbers = {A: [1, 2, 3, 4, 5], B: [6, 7, 8, 9, 10]}
    assert full.claim(3, order, strict=True)[0] == numbers[order[0]][:3]
    assert full.claim(3, order, strict=True)[0] == numbers[order[0]][3:] + numbers[order[1]][:1]


def test_a_strict_claim_obeys_shares(full):
    assert full.claim(6, (B, A), rooms={B: 2, A: 2}, strict=True)[0] == [6, 7, 1, 2]
    assert full.claim(4, (B, A), rooms={B: 0, A: 1}, lends=True, strict=True)[0] == [3, 8, 9, 10]


@pytest.mark.parametrize("lends", [False, True])
def test_a_strict_claim_takes_at_a_shared_limit_of_its_first_queue(next_is_of_b, lends):
    rooms = {A: 1, B: 1} if lends else {}
    assert next_is_of_b.claim(queues=(A, B), rooms=rooms, lends=lends, strict=True)[0] == [3]
