"""Every rule of permits is needed, and together they are enough (ADR 30)."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.reference.permits import TROUBLES, Rules, Search

#: ``REFERENCE_PERMITS=1`` also visits the states with one trouble, in up to an hour.
LONG = bool(os.environ.get("REFERENCE_PERMITS"))
ABOVE = "above the limit"


def search(
    permits: int, troubles: str = "", without: str = "", *, has_counts: bool = False
) -> Search:
    """Visit all states with troubles of some kinds, one of each."""
    kinds = frozenset(troubles.split())
    rules = replace(Rules(), **({without: False} if without else {}))
    return Search(permits, len(kinds), rules, has_counts=has_counts, kinds=kinds)


@pytest.mark.parametrize(("permits", "states"), [(1, 5_000), (2, 13_000)])
def test_no_state_violates_the_rules(permits: int, states: int) -> None:
    found = search(permits)
    assert (found.violation, found.events) == ("", ())
    assert found.states > states


@pytest.mark.skipif(not LONG, reason="takes up to an hour: set REFERENCE_PERMITS=1")
@pytest.mark.parametrize("has_counts", [False, True])
@pytest.mark.parametrize("trouble", [*sorted(TROUBLES)])
def test_no_state_with_a_trouble_violates_the_rules(trouble: str, has_counts: bool) -> None:
    found = search(1, trouble, has_counts=has_counts)
    assert (found.violation, found.events) == ("", ())


@pytest.mark.skipif(not LONG, reason="takes hours without PyPy: set REFERENCE_PERMITS=1")
@pytest.mark.parametrize(
    "troubles", ["clock twice", "partition twice", "clock partition", "home twice", "clock home"]
)
def test_no_state_with_two_troubles_violates_the_rules(troubles: str) -> None:
    """Each of them happens once, or one of them happens twice."""
    found = search(1, troubles)
    assert (found.violation, found.events) == ("", ())


@pytest.mark.skipif(not LONG, reason="takes an hour without PyPy: set REFERENCE_PERMITS=1")
def test_a_home_that_counts_beside_an_older_one_leads_above_the_limit() -> None:
    found = search(1, "home partition", "settled_home_counts", has_counts=True)
    assert found.violation == ABOVE


@pytest.mark.parametrize(
    ("rule", "permits", "troubles"),
    [
        ("life_from_stamp", 1, "clock"),
        ("home_has_margin", 1, "clock"),
        ("new_home_waits", 1, "home"),
        ("home_clock_is_logical", 1, "clock"),
        ("home_rejects_old", 2, ""),
        ("accepts_last_only", 1, ""),
        ("stops_before_it_returns", 1, ""),
        ("holder_names_server", 1, "partition"),
        ("new_server_has_none", 1, "partition"),
        ("back_is_another", 1, "same-partition"),
        ("back_is_another", 1, "same-home"),
        ("same_request_same_answer", 2, "twice"),
    ],
)
def test_without_a_rule_some_state_is_above_the_limit(
    rule: str, permits: int, troubles: str
) -> None:
    assert search(permits, troubles, rule).violation == ABOVE
