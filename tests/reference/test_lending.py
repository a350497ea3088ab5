"""Every rule of lending is needed, and together they are enough (ADR 26)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reference.lending import Rules, violations_of

LENT, LOST = "lent although another waited", "lost wake-up"


def test_no_state_violates_the_rules_of_lending():
    states: list[int] = []
    assert violations_of(Rules(), states.append) == set()
    assert sum(states) > 6_000


@pytest.mark.parametrize(
    ("left_out", "found"),
    [
        ("second_order", LENT),
        ("all_queues", LENT),
        ("put_wakes", LOST),
        ("end_returns", LOST),
        ("spare_wakes", LOST),
    ],
)
def test_without_a_rule_some_state_violates_it(left_out, found):
    assert found in violations_of(replace(Rules(), **{left_out: False}))
