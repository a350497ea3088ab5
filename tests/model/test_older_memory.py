"""Redis comes back with an older memory, and gives again what somebody holds."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Passing, Verdict
from tests.model.both import LATE

ONE = Limit("api", 1)
FIRST, SECOND = "host:1:a0", "host:2:b0"


@pytest.fixture
def both(pair):
    """Two tasks under a limit of one; the file is from before the first claim."""
    pair.put("a", ONE, times=2)
    pair.both.run(("renew", (), ""))
    pair.both.run(("save",))
    return pair.both


def claim(both, owner, known="now"):
    """Return the leases that were given."""
    given = len(both.granted)
    both.run(("claim", owner, False, 1, ("q",), "on", False, Passing(), False, known, ()))
    return [task.lease for task in both.granted[given:]]


def held(both):
    return set(both.model.leases.get("api", {}))


@pytest.fixture
def given_twice(both):
    assert claim(both, FIRST) == ["tag.1.1.a0"]
    both.run(("restore", True))
    assert claim(both, SECOND) == ["tag.1.1.b0"]
    return both


@pytest.mark.parametrize("verdict", Verdict)
def test_the_end_of_the_first_owner_frees_no_slot_of_the_second(given_twice, verdict):
    given_twice.run(("settle", ((LATE, verdict),), "on"))
    assert held(given_twice) == {"tag.1.1.b0"} == set(given_twice.model.running)
    assert claim(given_twice, FIRST) == []


def test_a_renewal_of_the_first_owner_keeps_no_lease_of_the_second(given_twice):
    both = given_twice
    both.run(("renew", (), ""))
    assert claim(both, FIRST) == []
    for _ in range(4):
        both.run(("advance", both.scene.rules.lease_ms // 3))
        both.run(("renew", (LATE,), ""))
    assert claim(both, FIRST) == ["tag.1.2.a0"]


def test_behind_another_server_nothing_is_leased_before_what_is_held_counts(both):
    assert claim(both, FIRST) == ["tag.1.1.a0"]
    both.run(("restore", True))
    known = both.epoch
    both.run(("renew", (), "now"))
    heard, both.epoch = both.epoch, known
    assert heard > known
    assert claim(both, FIRST) == []
    both.run(("renew", (0,), "now"))
    assert (held(both), both.epoch) == ({"tag.1.1.a0"}, heard)
    assert claim(both, SECOND) == []
    both.run(("settle", ((LATE, Verdict.DONE),), "on"))
    # Its end was forgotten with its beginning: it runs twice.
    assert claim(both, SECOND) == ["tag.1.1.b0"]


def test_a_memory_that_its_own_server_has_again_is_of_the_same_epoch(both):
    known = both.epoch
    both.run(("restore", False))
    both.run(("renew", (), "now"))
    assert both.epoch == known


def test_a_server_is_met_once(both):
    both.run(("restore", True))
    both.run(("renew", (), "now"))
    known = both.epoch
    both.run(("advance", 1_000))
    both.run(("renew", (), "now"))
    assert both.epoch == known
