"""How a channel divides its places among the rings of its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from celery_fairness.scheduler.types import Claim, Claimed
from celery_fairness.transport.ring_merge import First, Look, RingMerge
from celery_fairness.transport.task_filter import TaskFilter
from celery_fairness.util.durations import Milliseconds

TASK = Claimed("1-a.1.b", "q", 1, "tenant:a", 0, "{}")


def answer(
    rings: Mapping[str, Any], *tasks: Claimed, sleep_ms: int = 1000, passed: Any = None
) -> Claim:
    """Return the answer to a claim: ``rings`` is by queue the first start, or None."""
    state = {
        queue: {"at": "0", "first": [str(first), ""]} if first is not None else {"at": "0"}
        for queue, first in rings.items()
    }
    return Claim(tasks, Milliseconds(sleep_ms), passed or {}, 1, {"rings": state})


def merge_of(*firsts: float | None, queue: str = "q") -> RingMerge:
    """Return the rings of a queue after a look at each partition."""
    rings = RingMerge(len(firsts), TaskFilter())
    for number, first in enumerate(firsts):
        rings.read(Look(number), answer({queue: first}), 0.0)
    return rings


def wants(rings: RingMerge, want: int, *queues: str, now: float = 0.5, **options: Any) -> Any:
    """Return by partition how many tasks the next request takes."""
    given = {"is_strict": False, "takes_of_one": False, **options}
    return {look.partition: look.want for look in rings.plan(queues or ("q",), want, now, **given)}


def test_the_first_request_takes_one_task_of_each_partition_while_places_are_free() -> None:
    rings = RingMerge(4, TaskFilter())
    assert wants(rings, 2) == {0: 1, 1: 1, 2: 0, 3: 0}


def test_the_ring_with_the_least_start_goes_first() -> None:
    rings = merge_of(5, 3, None, 9)
    assert wants(rings, 1) == {1: 1}
    assert wants(rings, 4) == {1: 3, 0: 1}
    assert rings.seconds_to_look(["q"], 0.5) == 0


def test_a_claim_stops_one_charge_after_the_start_of_the_next_ring() -> None:
    look, other = merge_of(5, 3).plan(["q"], 6, 0.5, False, False)
    assert (look.partition, look.tills) == (1, {"q": First(9, 6.0)})
    assert (other.partition, other.tills) == (0, {"q": First(9, 4.0)})


def test_a_ring_without_rivals_has_no_stop() -> None:
    (look,) = merge_of(5, None).plan(["q"], 6, 0.5, False, False)
    assert (look.want, look.tills) == (6, {})


def test_ranks_go_before_starts() -> None:
    rings = RingMerge(2, TaskFilter())
    for number, (start, rank) in enumerate([("1", "3"), ("9", "7")]):
        state = {"rings": {"q": {"at": "0", "first": [start, rank]}}}
        rings.read(Look(number), Claim((), Milliseconds(1000), {}, 1, state), 0.0)
    assert wants(rings, 1) == {1: 1}


def test_queues_take_turns_and_strict_queues_do_not() -> None:
    rings = RingMerge(2, TaskFilter())
    rings.read(Look(0), answer({"a": 1, "b": None}), 0.0)
    rings.read(Look(1), answer({"a": None, "b": 50}), 0.0)
    assert wants(rings, 4, "a", "b") == {0: 2, 1: 2}
    assert wants(rings, 4, "a", "b", is_strict=True) == {0: 4}


def test_a_bound_that_claims_share_is_given_to_one_partition() -> None:
    rings = merge_of(5, 3)
    assert wants(rings, 4, takes_of_one=True) == {1: 4}
    fresh = RingMerge(3, TaskFilter())
    assert wants(fresh, 4, takes_of_one=True) == {0: 1, 1: 0, 2: 0}


def test_a_partition_is_looked_at_when_its_time_has_come_or_its_bell_rings() -> None:
    rings = merge_of(None, None)
    assert rings.seconds_to_look(["q"], 0.4) == pytest.approx(0.6)
    assert wants(rings, 4) == {}
    rings.look_again(1)
    assert wants(rings, 4) == {1: 1}
    assert [look.is_woken for look in rings.plan(["q"], 4, 0.5, False, False)] == [True]
    rings.look_again(1, is_woken=False)
    assert [look.is_woken for look in rings.plan(["q"], 4, 0.5, False, False)] == [False]


def test_what_the_process_skips_is_not_asked_for_again_at_once() -> None:
    rings = merge_of(4, None)
    look = Look(0, 2)
    rings.read(look, answer({"q": 4}, passed={"q": 1}, sleep_ms=0), 0.5)
    assert "q" not in {
        queue for queue in rings.floors(["q"]) if rings.seconds_to_look([queue], 0.5)
    }
    # What is behind the stop is only later.
    behind = Look(0, 2, tills={"q": First(9, 3.0)})
    rings.read(behind, answer({"q": 4}), 0.5)
    assert wants(rings, 1) == {0: 1}


def test_debts_end_when_no_ring_has_a_turn() -> None:
    rings = merge_of(2, None)
    state = {"rings": {"q": {"at": "2", "debt": "7.5"}}}
    rings.read(Look(0, 1), Claim((TASK,), Milliseconds(1000), {}, 1, state), 0.0)
    assert rings.floors(["q"]) == {"q": 7.5}


def test_a_look_without_a_queue_is_made_again_when_the_queue_has_room() -> None:
    rings = RingMerge(1, TaskFilter())
    (look,) = rings.plan(["b"], 1, 0.0, False, True, ["a"])
    rings.read(look, Claim((), Milliseconds(1000), {}, 1, {"rings": {"b": {"at": "0"}}}), 0.0)
    assert rings.seconds_to_look(["b"], 0.1) > 0.5
    assert rings.seconds_to_look(["a", "b"], 0.1) == 0.0
    assert [each.partition for each in rings.plan(["a", "b"], 1, 0.1, False, True)] == [0]
    assert rings.seconds_to_look(["a", "b"], 0.1) > 0.5
