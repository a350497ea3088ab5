"""The answers of several partitions about a key make one answer."""

from __future__ import annotations

from typing import Any

import pytest

from celery_fairness.limiter.merged_answers import merge_totals


def row(held: int, why: str = "", rate: int | None = None, throttle_ms: int = 0) -> list[Any]:
    """Return a limit of 5 at once and 9 starts a minute, with what one partition has."""
    rates = [] if rate is None else [[9, 60_000, rate, 100 if rate else 0]]
    return ["api", held, 5, 2, why, 0, rates, [1, 1000, throttle_ms] if throttle_ms else []]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([row(0), row(0)], ""),
        ([row(2), row(2)], ""),
        ([row(2), row(3)], "full"),
        ([row(0, rate=4), row(0, rate=4)], ""),
        ([row(0, rate=4), row(0, rate=5)], "rate"),
        ([row(0, throttle_ms=3), row(0)], "throttle"),
        ([row(0, "paused"), row(0, "paused")], "paused"),
        ([row(0, "cools"), row(0)], ""),
    ],
)
def test_a_limit_is_closed_by_what_all_partitions_have(rows: list[list[Any]], why: str) -> None:
    answers = [{"now": 1, "totals": {}, "counts": {}, "limits": [each]} for each in rows]
    held = sum(each[1] for each in rows)
    assert merge_totals(answers)["limits"] == [["api", held, 5, 4, why, 0]]
    observed = "" if why not in ("paused", "cools") else why
    assert merge_totals(answers, enforced=False)["limits"][0][4] == observed
