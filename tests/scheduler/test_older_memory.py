"""Redis comes back with an older memory, and gives again what somebody holds."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Verdict

ONE = Limit("api", concurrency=1)
FIRST, SECOND = "host:1:a0", "host:2:b0"


@pytest.fixture
def saved(shop):
    """Two tasks under a limit of one; the file is from before the first claim."""
    shop.put("a", ONE, times=2)
    shop.renew()
    shop.save()
    return shop


def claim(shop, owner):
    """Return the leases that were given to a process that knows the current epoch."""
    shop.claim(1, owner=owner, epoch=shop.epoch)
    return [task.lease for task in shop.answer.tasks]


def held(shop):
    return [task.lease for task in shop.running()]


@pytest.fixture
def given_twice(saved):
    assert claim(saved, FIRST) == ["tag.1.1.a0"]
    saved.restore()
    saved.epoch = None
    assert claim(saved, SECOND) == ["tag.1.1.b0"]
    return saved


@pytest.mark.parametrize("verdict", Verdict)
def test_the_end_of_the_first_owner_frees_no_slot_of_the_second(given_twice, verdict):
    given_twice.end_late(0, verdict)
    assert held(given_twice) == ["tag.1.1.b0"]
    assert claim(given_twice, FIRST) == []


def test_a_renewal_of_the_first_owner_keeps_no_lease_of_the_second(given_twice):
    shop = given_twice
    shop.renew()
    assert claim(shop, FIRST) == []
    for _ in range(4):
        shop.now += shop.rules.lease_ms // 3
        shop.renew(shop.granted[0])
    assert claim(shop, FIRST) == ["tag.1.2.a0"]


def test_behind_another_server_nothing_is_leased_before_what_is_held_counts(saved):
    assert claim(saved, FIRST) == ["tag.1.1.a0"]
    saved.restore()
    known = saved.epoch
    saved.renew(epoch=known)
    heard, saved.epoch = saved.epoch, known
    assert heard > known
    assert claim(saved, FIRST) == []
    saved.renew(saved.granted[0], epoch=known)
    assert saved.epoch == heard
    assert claim(saved, SECOND) == []
    saved.end_late(0)
    # Its start was forgotten, and its end says that it must not run again.
    assert claim(saved, SECOND) == ["tag.2.1.b0"]
    assert saved.exists() == [2]


def test_a_memory_that_its_own_server_has_again_is_of_the_same_epoch(saved):
    known = saved.epoch
    saved.restore(by_another=False)
    saved.renew(epoch=known)
    assert saved.epoch == known


def test_a_server_is_met_once(saved):
    before = saved.epoch
    saved.restore()
    saved.renew(epoch=before)
    known = saved.epoch
    assert known != before
    saved.now += 1_000
    saved.renew(epoch=known)
    assert saved.epoch == known
