"""The cost of a shared limit, and the size at which its home is too busy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.permits import Lending, run

SMALL = Lending(limit=5, partitions=16, task_seconds=1.0)


def test_partitions_with_a_permit_each_only_renew() -> None:
    seen = run(replace(SMALL, limit=32))
    # Each of 16 partitions renews each 5 s with 3 calls, while 160 tasks start.
    assert (seen.used, seen.calls) == (1.0, pytest.approx(16 * 3 / 160))


def test_a_smaller_limit_is_carried_after_each_task() -> None:
    seen = run(SMALL, 20.0)
    assert seen.calls == pytest.approx(5.0, abs=0.3)
    assert seen.used > 0.98


def test_short_tasks_follow_each_other_on_a_permit() -> None:
    assert run(replace(SMALL, task_seconds=0.02)).calls == pytest.approx(1.0, abs=0.1)


def test_a_home_that_is_too_busy_leaves_permits_unused() -> None:
    hot = replace(SMALL, limit=400, partitions=1_000, task_seconds=0.05)
    seen = run(hot, 2.0)
    assert seen.home > 0.99
    assert seen.used < 0.6
