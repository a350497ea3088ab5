"""Every rule of the lots of a rate is needed, and together they are enough (ADR 32)."""

from __future__ import annotations

import os

import pytest

from tests.reference import lots
from tests.reference.lots import Search

#: ``REFERENCE_PERMITS=1`` visits the states with one more request too.
LONG = bool(os.environ.get("REFERENCE_PERMITS"))
TROUBLES = ["", *sorted(lots.TROUBLES)]


def search(limit: int, requests: int, trouble: str, **without: bool) -> Search:
    return Search(limit, requests, frozenset(trouble.split()), **without)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_no_state_is_above_the_rate(limit: int, trouble: str) -> None:
    found = search(limit, 2, trouble)
    assert found.violation == ()
    assert found.most == limit


@pytest.mark.skipif(not LONG, reason="takes minutes: set REFERENCE_PERMITS=1")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_no_state_with_more_requests_is_above_the_rate(trouble: str) -> None:
    assert search(1, 3, trouble).violation == ()


@pytest.mark.parametrize(
    ("rule", "requests", "trouble"),
    [
        ("counts_at_the_end", 2, ""),
        ("home_has_margin", 2, "clock"),
        ("life_from_stamp", 2, ""),
        ("request_ends_the_lot", 2, ""),
        ("report_counts_starts", 2, ""),
        ("home_rejects_old", 3, ""),
        ("accepts_last_only", 3, ""),
        ("new_home_counts", 2, "home"),
        pytest.param(
            *("count_has_all_starts", 3, "home"),
            marks=pytest.mark.skipif(not LONG, reason="takes minutes: set REFERENCE_PERMITS=1"),
        ),
        ("new_server_has_none", 2, "partition"),
        ("back_is_another", 2, "same-partition"),
        ("back_is_another", 2, "same-home"),
        ("holder_names_server", 2, "partition"),
    ],
)
def test_without_a_rule_some_state_is_above_the_rate(
    rule: str, requests: int, trouble: str
) -> None:
    assert search(1, requests, trouble, **{rule: False}).violation
