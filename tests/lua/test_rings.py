"""The rings of a partition, as claims and puts keep them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claim, Rules, Settle, Verdict, Waiting
from tests.support.library import call as called

pytestmark = pytest.mark.redis

PREFIX, HOME = "{fairness#3}:", "{fairness}:"
RULES = Rules(default_limit=None)
NOW = "1000000"


def call(client: Redis, verb: str, args: list[Any], prefix: str = PREFIX) -> Any:
    return called(client, verb, prefix, args)


def put(client: Redis, tag: str, tenant: str, prefix: str = PREFIX, **fields: Any) -> int:
    waiting = Waiting("q", tag, tenant, message="{}", **fields)
    return int(call(client, calls.PUT, calls.put_args(waiting, NOW), prefix))


def claim(client: Redis, want: int, number: int = 1, **ring: Any) -> Claim:
    state = {"floors": {}, "tills": {}, "is_woken": False, **ring}
    ends = state.pop("ends", ())
    args = calls.claim_args(
        *("owner1", number, want, ["q"], RULES, NOW), ends=ends, is_first=True, ring=state
    )
    return calls.read_claim(call(client, calls.CLAIM, args), in_partition=True)


def ring_of(claim: Claim) -> dict[str, Any]:
    return dict(claim.ring["rings"]["q"])


def test_a_put_rings_once_until_the_wake_up_is_answered(client: Redis) -> None:
    assert [put(client, "1", "a"), put(client, "2", "b")] == [-1, 1]
    claim(client, 0, is_woken=True)
    # The claim left tasks, so another bell rings for them.
    assert put(client, "3", "c") == -1
    # With one partition nothing changes.
    assert put(client, "1", "a", HOME) == 1


def test_a_delayed_task_rings_if_it_is_the_first(client: Redis) -> None:
    later = int(NOW) + 60_000
    assert put(client, "1", "a", eta_ms=later + 1000) == -2
    client.delete(f"{PREFIX}wakeup:q")
    assert put(client, "2", "a", eta_ms=later + 2000) == 2
    assert put(client, "3", "a", eta_ms=later) == -2


def test_a_claim_that_leaves_tasks_names_their_queue(client: Redis) -> None:
    for number in range(3):
        put(client, f"{number}", f"t{number}")
    answer = claim(client, 1)
    assert answer.ring["left"] == ["q"]
    assert "left" not in claim(client, 1, 2).ring
    assert "left" not in claim(client, 5, 3).ring
    assert client.exists(f"{PREFIX}wakeup:q", f"{PREFIX}wakeup_leftover:q") == 0


def test_a_claim_stops_behind_the_turn_of_another_ring(client: Redis) -> None:
    for number in range(4):
        put(client, f"a{number}", "a")
    assert len(claim(client, 4, tills={"q": [1, ""]}).tasks) == 2
    assert ring_of(claim(client, 4, 2, tills={"q": [1, ""]}))["first"][0] == "2"
    assert len(claim(client, 4, 3).tasks) == 2


def test_ranks_stop_a_claim_before_starts_do(client: Redis) -> None:
    put(client, "1", "a", rank=3)
    put(client, "2", "b", rank=7)
    ranked = Rules(default_limit=None, priority_scope="queue")
    args = calls.claim_args(
        *("owner1", 1, 4, ["q"], ranked, NOW),
        is_first=True,
        ring={"floors": {}, "tills": {"q": [100, "5"]}, "is_woken": False},
    )
    answer = calls.read_claim(call(client, calls.CLAIM, args), in_partition=True)
    assert [task.rank for task in answer.tasks] == [7]
    assert ring_of(answer)["first"] == ["0", "3"]


def test_a_task_that_has_waited_long_goes_before_lower_ranks_of_other_rings(
    client: Redis,
) -> None:
    put(client, "1", "a", rank=3)
    put(client, "2", "a", rank=3)
    aged = Rules(default_limit=None, priority_scope="queue", priority_aging_ms=1000)
    state = {"floors": {}, "tills": {"q": [0, "8"]}, "is_woken": False}
    args = calls.claim_args(
        *("owner1", 1, 4, ["q"], aged, str(int(NOW) + 1000)), is_first=True, ring=state
    )
    answer = calls.read_claim(call(client, calls.CLAIM, args), in_partition=True)
    assert [task.lease.split(".")[0] for task in answer.tasks] == ["1"]
    assert ring_of(answer)["first"][1] == "3"


def test_a_ring_that_had_no_turn_moves_on_and_gives_no_credit(client: Redis) -> None:
    put(client, "1", "a")
    (task,) = claim(client, 1).tasks
    claim(client, 0, 2, ends=[Settle(task.lease, Verdict.DONE)])
    for number in range(3):
        put(client, f"b{number}", "b")
    # The tenant came at the older time. It has one turn early, and then stands behind the others.
    answer = claim(client, 1, 3, floors={"q": 50}, tills={"q": [51, ""]})
    assert len(answer.tasks) == 1
    assert ring_of(answer) == {"at": "50", "first": ["51", ""]}


def test_a_ring_moves_on_once_for_each_time_without_a_turn(client: Redis) -> None:
    claim(client, 0)
    for number in range(3):
        put(client, f"a{number}", "a")
    assert ring_of(claim(client, 1, 1, floors={"q": 50}))["at"] == "50"
    assert ring_of(claim(client, 1, 2, floors={"q": 90}))["at"] == "51"


def test_a_ring_that_a_person_emptied_moves_on_too(client: Redis) -> None:
    put(client, "1", "a")
    assert ring_of(claim(client, 0))["first"] == ["0", ""]
    call(client, calls.PURGE, ["q"])
    put(client, "2", "b")
    assert ring_of(claim(client, 0, 2, floors={"q": 50}))["at"] == "50"


def test_a_ring_with_a_turn_does_not_move_on(client: Redis) -> None:
    for number in range(3):
        put(client, f"a{number}", "a")
    claim(client, 1)
    assert ring_of(claim(client, 1, 2, floors={"q": 50})) == {"at": "1", "first": ["2", ""]}


def test_a_queue_that_was_emptied_keeps_its_virtual_time(client: Redis) -> None:
    for number in range(3):
        put(client, f"a{number}", "a")
    claim(client, 3)
    put(client, "b", "b")
    assert ring_of(claim(client, 0, 2))["first"] == ["2", ""]
    call(client, calls.PURGE, ["q"])
    put(client, "c", "c")
    assert ring_of(claim(client, 0, 3))["first"] == ["2", ""]


def test_debts_stay_until_the_virtual_time_has_passed_them(client: Redis) -> None:
    put(client, "1", "a")
    answer = claim(client, 5)
    assert ring_of(answer) == {"at": "0", "debt": "1"}
    put(client, "2", "a")
    assert ring_of(claim(client, 0, 2))["first"] == ["1", ""]
    call(client, calls.PURGE, ["q"])
    claim(client, 0, 3, floors={"q": 9})
    assert client.zcard(f"{PREFIX}debts:q") == 0


def test_a_bell_has_each_partition_once(client: Redis) -> None:
    def ring(partition: int, **queues: Any) -> int:
        args = calls.ring_args(partition, queues.get("new", ()), queues.get("left", ()))
        return int(json.loads(call(client, calls.RING, args, HOME)))

    assert [ring(3, new=["q"]), ring(3, new=["q"]), ring(5, new=["q"], left=["q", "r"])] == [
        1,
        0,
        3,
    ]
    assert client.lrange(f"{HOME}bell:new q", 0, -1) == ["3", "5"]
    assert client.lrange(f"{HOME}bell:left r", 0, -1) == ["5"]
