"""Each rule of ADR 27 is needed: an installation without it is worse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.transport import ring_merge
from tests.simulation.installation import Case, Installation, Result

#: Ten workers of four places, and half of the tenants in a quarter of the partitions.
CASE = Case(partitions=16, servers=4, seconds=1.0)


def run(case: Case) -> Result:
    """Run a case."""
    return Installation(case).run()


def test_tenants_of_all_partitions_take_turns() -> None:
    seen = run(CASE)
    # A tenant is ahead by at most two charges and one more for each worker process.
    assert seen.spread <= CASE.workers + 2
    assert seen.jain(CASE.tenants) > 0.999
    assert seen.rate > 0.9 * CASE.workers * CASE.places / CASE.task_seconds


def test_partitions_that_take_turns_themselves_are_unfair() -> None:
    seen = run(replace(CASE, has_starts=False, has_tills=False))
    assert seen.jain(CASE.tenants) < 0.9


def test_claims_without_a_stop_let_a_tenant_run_ahead() -> None:
    deep = replace(CASE, partitions=4, workers=1, places=32, tenants=12)
    assert run(replace(deep, has_tills=False)).spread > run(deep).spread + 2


def test_a_stop_at_turns_that_are_old_costs_claims_that_find_nothing(monkeypatch) -> None:
    found = run(CASE).calls["look"]
    monkeypatch.setattr(ring_merge, "OLD_AT_MOST", 0.0)
    assert run(CASE).calls["look"] > 3 * found


def test_a_ring_that_does_not_move_on_lets_a_late_tenant_catch_up() -> None:
    late = replace(CASE, partitions=64, has_late=True)
    assert abs(run(late).late_lead) < CASE.workers
    assert run(replace(late, has_floors=False)).late_lead > CASE.workers + 2


def test_quiet_tasks_wait_for_a_look_if_no_bell_rings() -> None:
    quiet = replace(CASE, partitions=64, workers=4, quiet=20, quiet_seconds=0.25)
    with_bells, without = run(quiet), run(replace(quiet, has_bells=False))
    assert without.wait_ms(99) > 2 * with_bells.wait_ms(99)


def test_a_run_repeats_its_figures_and_another_seed_has_others() -> None:
    short = replace(CASE, seconds=0.2)
    assert run(short) == run(short)
    assert run(short) != run(replace(short, seed=2))


def test_servers_are_a_bound_and_more_of_them_a_higher_one() -> None:
    busy = Case(partitions=4, workers=48, places=16, tenants=400, seconds=0.5, is_lopsided=False)
    one, two = (run(replace(busy, servers=servers)) for servers in (1, 2))
    assert one.used == [pytest.approx(1.0, abs=0.01)]
    assert two.rate > 1.5 * one.rate
