"""All interleavings of the protocol, up to a number of troubles.

A trouble is the death of a process, the early end of a lease, a second delivery, a lost answer, a
hold, a cancellation or an expiry.

`INTERLEAVINGS_TROUBLES=1` allows one more trouble in each search. That takes minutes.
"""

from __future__ import annotations

import os

import pytest

from tests.interleavings.rules import NAMES, Rules
from tests.interleavings.search import search
from tests.interleavings.world import (
    ONE_TASK,
    OTHER_LIMITS,
    SAME_LIMITS,
    SAME_RATE,
    SAME_SLOT,
    Scenario,
)

MORE_TROUBLES = int(os.environ.get("INTERLEAVINGS_TROUBLES", "0"))

SCENARIOS = {
    "one task": Scenario(keys=ONE_TASK, troubles=2),
    "one task, acknowledged early": Scenario(keys=ONE_TASK, troubles=2, early_ack=True),
    "two tasks with the same limits": Scenario(keys=SAME_LIMITS, troubles=1),
    "two tasks of one slot": Scenario(keys=SAME_SLOT, troubles=1),
    "two tasks of one rate": Scenario(keys=SAME_RATE, troubles=1),
    "two tasks, one with a second limit": Scenario(keys=OTHER_LIMITS, troubles=1),
}

OWN_LIMIT = "a promoted task is rejected by its own limit"

#: By rule: where its absence shows, and what is broken then.
BROKEN = {
    "names_never_repeat": ("one task", "a task is lost"),
    "copies_are_checked": ("one task", "a body starts twice"),
    "a_start_makes_others_stale": ("one task", "a body starts twice"),
    "late_sent_is_a_no_op": ("one task", "a task is lost"),
    "promotions_are_checked_again": ("one task", "a body starts during a hold"),
    "arrival_ends_the_promotion": ("one task", OWN_LIMIT),
    "arrival_ends_the_record": ("one task", "a task waits at open limits"),
    "park_asks_limits_again": ("one task", "a task waits at open limits"),
    "an_outcome_makes_serials_stale": ("one task", "a body starts after its outcome"),
    "promotion_is_no_start": ("one task", "an expired task waits"),
    "promotions_count_as_slots": ("two tasks of one slot", OWN_LIMIT),
    "promotions_are_not_renewed": ("one task", "a slot is held for nothing"),
    "rates_count_at_arrival": ("one task", OWN_LIMIT),
    "reservations_count": ("two tasks of one rate", OWN_LIMIT),
    "reservations_end_with_the_lease": ("one task", "a slot is held for nothing"),
    "each_end_wakes": ("one task", "a task waits at open limits"),
    "a_reservation_is_timed": ("two tasks of one rate", "a task waits at open limits"),
    "own_lease_first": ("one task", OWN_LIMIT),
    "done_withdraws_nothing": ("one task", "a task is lost"),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interleaving_breaks_an_invariant(name):
    scenario = SCENARIOS[name]
    found = search(scenario._replace(troubles=scenario.troubles + MORE_TROUBLES))
    assert not found.problem, "\n".join((found.problem, *found.events))
    assert found.states > 1000


@pytest.mark.parametrize("rule", NAMES)
def test_without_a_rule_an_invariant_is_broken(rule):
    name, problem = BROKEN[rule]
    without = SCENARIOS[name]._replace(rules=Rules().without(rule))
    # The fewest troubles give the simplest sequence.
    searches = (search(without._replace(troubles=most)) for most in range(without.troubles + 1))
    found = next((each for each in searches if each.problem), None)
    assert found is not None
    assert found.problem == problem, "\n".join(found.events)
