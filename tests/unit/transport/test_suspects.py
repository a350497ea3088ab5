"""Suspects: which task with a death starts next, and when a worker may claim beside it."""

from __future__ import annotations

import pytest

from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Claimed, Rules, Verdict
from celery_fairness.transport.suspects import Suspects

LEASE_SECONDS = 10.0


class Worker:
    """A worker whose pool reports ends, and a clock that a test moves."""

    def __init__(self, max_deliveries=3):
        self.now = 100.0
        self.lease_table = LeaseTable()
        rules = Rules(lease_ms=int(LEASE_SECONDS * 1000), max_deliveries=max_deliveries)
        self.suspects = Suspects(self.lease_table, rules, lambda: self.now)

    def claim(self, *deaths):
        """Claim tasks with these deaths, and return the names of those that start at once."""
        tasks = []
        for number, count in enumerate(deaths):
            lease = f"{len(self.lease_table.held())}.{number}.x"
            task = Claimed(lease, "q", 1, "tenant:a", 0, "{}", deaths=count)
            tasks.append((task, self.lease_table.hold(task, 7, in_place=True)))
        return [task.lease for task, _ in self.suspects.without(tasks)]

    def start(self, **options):
        """Return the lease of the suspect that starts now."""
        found = self.suspects.next(**options)
        return None if found is None else found[1]

    def end(self, held):
        """End a task."""
        self.lease_table.end(held, Verdict.DONE)


def test_tasks_without_a_death_start_at_once():
    worker = Worker()
    assert len(worker.claim(0, 1, 0)) == 2
    assert worker.suspects.are_waiting


def test_suspects_start_one_after_the_other():
    worker = Worker()
    worker.claim(1, 1, 1)
    first = worker.start()
    assert worker.start() is None
    assert worker.suspects.wait_seconds() == LEASE_SECONDS
    assert not worker.suspects.stop_claims
    worker.end(first)
    second = worker.start()
    worker.now += LEASE_SECONDS
    # It runs for a lease already, and nothing waits longer for it.
    third = worker.start()
    assert len({first, second, third}) == 3
    assert not worker.suspects.are_waiting


def test_the_last_delivery_starts_alone_and_stops_the_claims():
    worker = Worker()
    worker.claim(0)
    (other,) = worker.lease_table.held()
    worker.claim(2)
    assert worker.start() is None
    assert worker.suspects.stop_claims
    worker.end(other)
    assert worker.start(may_bring_more=True) is None
    last = worker.start()
    assert last.deaths == 2
    assert worker.suspects.stop_claims
    worker.end(last)
    assert not worker.suspects.stop_claims


def test_the_last_delivery_waits_for_others_at_most_a_lease():
    worker = Worker()
    worker.claim(0, 2)
    assert worker.start() is None
    worker.now += LEASE_SECONDS
    assert worker.start().deaths == 2
    assert worker.suspects.stop_claims


@pytest.mark.parametrize(
    ("max_deliveries", "deaths", "alone"),
    [(0, 100, False), (1, 1, True), (2, 1, True), (3, 1, False), (3, 2, True), (5, 4, True)],
)
def test_which_delivery_is_the_last(max_deliveries, deaths, alone):
    worker = Worker(max_deliveries)
    worker.claim(deaths)
    assert worker.start().deaths == deaths
    assert worker.suspects.stop_claims is alone


def test_a_lost_suspect_is_given_out_at_once_so_that_the_channel_drops_it():
    worker = Worker()
    worker.claim(1, 1)
    first = worker.start()
    (lost,) = [each for each in worker.lease_table.held() if each is not first]
    lost.lost = True
    assert worker.start() is lost


def test_suspects_that_are_drained_start_no_more_and_stop_no_claims():
    worker = Worker()
    worker.claim(0, 2, 2)
    assert worker.start() is None
    for held in worker.suspects.drain():
        worker.lease_table.end(held, Verdict.HEAD)
    assert worker.start() is None
    assert not worker.suspects.stop_claims
