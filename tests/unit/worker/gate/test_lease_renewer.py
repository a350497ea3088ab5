"""The lease renewer renews leases, releases those of dead processes, and registers lost ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.types import Lease
from celery_fairness.worker.gate import lease_renewer
from celery_fairness.worker.gate.lease_renewer import LeaseRenewer
from celery_fairness.worker.settings_publisher import SettingsPublisher
from tests.support.answering_limiter import AnsweringLimiter
from tests.support.waiting import at_most, eventually


class Said(list):
    """Notices as a list: a log record would make an entry for the native thread that stays."""

    def error(self, kind, text, *args):
        self.append((kind, text % args))

    def about(self, kind):
        return [text for each, text in self if each == kind]


@pytest.fixture
def limiter():
    return AnsweringLimiter()


@pytest.fixture
def said():
    return Said()


@pytest.fixture
def make(limiter, said, monkeypatch):
    """A factory of renewers; with a short lease they renew every 20 ms."""
    made = []
    monkeypatch.setattr(lease_renewer, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(lease_renewer, "AGAIN_SECONDS", 0.02)

    def make_renewer(lease_seconds=0.06, **more):
        made.append(LeaseRenewer(lambda: limiter, lease_seconds, said, **more))
        return made[-1]

    yield make_renewer
    limiter.away = False
    for each in made:
        each.stop(limiter)
    assert all(died for _, died in limiter.called("release"))


@pytest.fixture
def child():
    """A process that lives until it is told to end."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


def take(limiter, lease_id="l1", tenant="42"):
    from celery_fairness.limiter.types import SlotRequest

    lease = Lease(lease_id, tier_key(tenant))
    limiter.acquire(SlotRequest(lease, tenant, "enterprise"))
    return lease


def held(limiter, tenant="42"):
    return [lease.key for lease in limiter.leases.values()].count(tier_key(tenant))


def renewed(limiter):
    """The ids of each renewal, in order."""
    return [[lease.id for lease in leases] for leases, _ in limiter.called("renew")]


def times(limiter, lease_id):
    return sum(lease_id in ids for ids in renewed(limiter))


def test_a_kept_lease_is_renewed_again_and_again_until_it_ended(make, limiter):
    renewer = make()
    lease = take(limiter)
    renewer.accepted(lease, os.getpid())
    eventually(lambda: times(limiter, "l1") >= 3)
    assert renewer.held() == [lease]
    renewer.ended(lease)
    assert renewer.held() == []
    seen = len(renewed(limiter))
    eventually(lambda: len(renewed(limiter)) >= seen + 3)
    # One renewal may have been on its way.
    assert all("l1" not in ids for ids in renewed(limiter)[seen + 1 :])


def test_what_the_bodys_process_released_is_not_released_again(make, limiter):
    renewer = make()
    lease = take(limiter)
    renewer.accepted(lease, os.getpid())
    renewer.ended(lease)
    # The body releases; this renewer must not take that from whoever has the id.
    eventually(lambda: len(renewed(limiter)) >= 3)
    assert held(limiter) == 1


def test_an_idle_renewer_moves_the_clock(make, limiter):
    make().start()
    eventually(lambda: len(renewed(limiter)) >= 3)
    assert set(map(len, renewed(limiter))) == {0}


def test_it_renews_at_a_third_of_the_lease(make, limiter, clock, monkeypatch):
    waits = []

    class Bell:
        def __init__(self):
            self.stopped = threading.Event()

        def ring(self):
            self.stopped.set()

        def wait(self, timeout_seconds):
            waits.append(timeout_seconds)
            return self.stopped.wait(at_most(5))

    monkeypatch.setattr(lease_renewer, "Bell", Bell)
    renewer = make(lease_seconds=15)
    renewer.start()
    eventually(lambda: len(waits) == 1)
    # What it did before the wait is no part of it.
    assert 1.0 < waits[0] <= 5.0


def test_the_lease_of_a_process_that_is_gone_is_released(make, limiter, child):
    renewer = make()
    lease = take(limiter)
    renewer.accepted(lease, child.pid)
    eventually(lambda: times(limiter, "l1") >= 2)
    assert held(limiter) == 1
    child.kill()
    eventually(lambda: held(limiter) == 0)
    assert renewer.held() == []


def test_a_process_that_nobody_waited_for_is_gone(make, limiter, child):
    renewer = make()
    renewer.accepted(take(limiter), child.pid)
    child.kill()
    # A zombie: it still has its number, and runs nothing.
    eventually(lambda: held(limiter) == 0)
    assert child.returncode is None


def test_the_lease_of_a_process_that_lives_is_not_released(make, limiter, child):
    renewer = make()
    lease = take(limiter)
    renewer.accepted(lease, child.pid)
    # The pool says that it ended; the body may still run for a moment.
    renewer.lost(lease)
    seen = times(limiter, "l1")
    eventually(lambda: times(limiter, "l1") >= seen + 3)
    assert (held(limiter), renewer.held()) == (1, [lease])
    child.kill()
    eventually(lambda: held(limiter) == 0)


def test_a_lost_lease_of_a_body_in_this_process_is_released_at_once(make, limiter):
    renewer = make()
    lease = take(limiter)
    renewer.accepted(lease, os.getpid())
    renewer.lost(lease)
    eventually(lambda: held(limiter) == 0)


def test_others_of_the_same_worker_keep_theirs(make, limiter, child):
    renewer = make()
    dead, alive = take(limiter, "dead", "a"), take(limiter, "alive", "b")
    renewer.accepted(dead, child.pid)
    renewer.accepted(alive, os.getpid())
    child.kill()
    eventually(lambda: held(limiter, "a") == 0)
    seen = times(limiter, "alive")
    eventually(lambda: times(limiter, "alive") >= seen + 2)
    assert held(limiter, "b") == 1


def test_an_unknown_lease_ends_without_harm(make, limiter):
    renewer = make()
    stranger = Lease("stranger", "tenant:42")
    renewer.ended(stranger)
    renewer.lost(stranger)
    assert renewer.held() == []


def test_after_a_lost_memory_what_is_held_is_entered_again(make, limiter, said):
    renewer = make()
    lease = take(limiter)
    renewer.accepted(lease, os.getpid())
    eventually(lambda: times(limiter, "l1") >= 1)
    limiter.lose_memory()
    assert held(limiter) == 0
    eventually(lambda: held(limiter) == 1 and said.about("memory") != [])
    (text,) = said.about("memory")
    assert "lost its memory" in text
    assert text.endswith("leases registered again: 1")
    # Who released it before cannot have: from now on the renewer does.
    renewer.ended(lease)
    eventually(lambda: held(limiter) == 0)
    assert renewer.held() == []


def test_nothing_is_entered_for_a_task_that_still_asks_for_its_slot(make, limiter, said):
    renewer = make(lease_seconds=60)
    holds = take(limiter)
    renewer.accepted(holds, os.getpid())
    eventually(lambda: times(limiter, "l1") >= 1)
    limiter.lose_memory()
    asks = Lease("l2", holds.key)
    renewer.accepted(asks, os.getpid())
    renewer._leases["l1"].since -= 10
    renewer._renew(limiter)
    (text,) = said.about("memory")
    assert "lost its memory" in text
    assert text.endswith("leases registered again: 1")
    assert set(limiter.leases) == {"l1"}


def test_a_young_lease_is_entered_again_once_its_task_has_its_slot(make, limiter):
    renewer = make(lease_seconds=60)
    renewer.accepted(take(limiter, "l0"), os.getpid())
    eventually(lambda: times(limiter, "l0") >= 1)
    lease = take(limiter)
    renewer.accepted(lease, os.getpid())
    limiter.lose_memory()
    renewer._renew(limiter)
    assert "l1" not in limiter.leases
    renewer._leases["l1"].since -= 10
    renewer._renew(limiter)
    assert "l1" in limiter.leases


def test_after_a_lost_memory_the_tiers_are_published_again_and_leases_do_not_wait(
    make, limiter, said
):
    begun, goes_on = threading.Event(), threading.Event()

    def publish():
        if held(limiter):
            begun.set()
            goes_on.wait(at_most(10))

    publisher = SettingsPublisher(said)
    publisher.add("database", publish)
    renewer = make(on_memory_lost=publisher.publish_again)
    renewer.accepted(take(limiter), os.getpid())
    eventually(lambda: times(limiter, "l1") >= 1)
    assert not begun.is_set()
    limiter.lose_memory()
    assert begun.wait(at_most(10))
    seen = times(limiter, "l1")
    try:
        eventually(lambda: times(limiter, "l1") >= seen + 2)
    finally:
        goes_on.set()
        publisher.stop()


def test_of_a_memory_in_which_nothing_is_missing_nobody_says_that_it_was_lost(make, limiter, said):
    published = []
    renewer = make(on_memory_lost=lambda: published.append(1))
    lease = take(limiter)
    renewer.accepted(lease, os.getpid())
    eventually(lambda: times(limiter, "l1") >= 1)
    limiter.epoch += 1
    eventually(lambda: published == [1])
    assert said.about("memory") == []
    # Its body's process has released it, as ever.
    renewer.ended(lease)
    assert renewer.held() == []


def test_a_lease_that_ended_while_it_was_entered_again_is_released(make, limiter):
    renewer = make()
    lease = take(limiter)
    renewer.accepted(lease, os.getpid())
    eventually(lambda: times(limiter, "l1") >= 1)
    real = limiter.renew

    def renew(leases, epoch=None):
        answer = real(leases, epoch)
        if answer.epoch != epoch:
            # The body ends between the renewal and its answer, having released nothing.
            renewer.ended(lease)
        return answer

    limiter.renew = renew
    limiter.lose_memory()
    eventually(lambda: limiter.epoch == renewer._epoch)
    eventually(lambda: held(limiter) == 0)
    assert renewer.held() == []


def test_a_limiter_that_is_away_is_asked_again_soon(make, limiter, said):
    renewer = make(lease_seconds=3600)
    lease = take(limiter)
    limiter.away = True
    renewer.accepted(lease, os.getpid())
    eventually(lambda: said.about("renewal") != [])
    seen = times(limiter, "l1")
    limiter.away = False
    # Not at the next third, which is twenty minutes away.
    eventually(lambda: times(limiter, "l1") > seen)


def test_a_dead_processs_lease_is_released_when_the_limiter_is_back(make, limiter, child, said):
    renewer = make()
    renewer.accepted(take(limiter), child.pid)
    eventually(lambda: times(limiter, "l1") >= 1)
    limiter.away = True
    child.kill()
    eventually(lambda: said.about("release") != [])
    assert len(renewer.held()) == 1
    limiter.away = False
    eventually(lambda: held(limiter) == 0)


def test_stopping_releases_what_the_dead_held_and_leaves_the_living_theirs(make, limiter, child):
    renewer = make(lease_seconds=3600)
    dead, alive = take(limiter, "dead", "a"), take(limiter, "alive", "b")
    # The first one starts the thread, whose first renewal is for now the only one.
    renewer.accepted(dead, child.pid)
    renewer.accepted(alive, os.getpid())
    eventually(lambda: times(limiter, "dead") >= 1)
    child.kill()
    renewer.stop(limiter)
    assert held(limiter, "a") == 0
    # Threads finish their bodies after a cold shutdown; the lease outlives the renewer.
    assert held(limiter, "b") == 1


def test_a_stopped_renewer_renews_no_more_and_can_start_again(make, limiter):
    renewer = make()
    lease = take(limiter)
    renewer.accepted(lease, os.getpid())
    eventually(lambda: times(limiter, "l1") >= 1)
    renewer.stop(limiter)
    seen = len(renewed(limiter))
    renewer.start()
    eventually(lambda: len(renewed(limiter)) >= seen + 2)
    assert "l1" in renewed(limiter)[-1]


def test_starting_twice_makes_one_thread(make, limiter, monkeypatch):
    started = []
    monkeypatch.setattr(lease_renewer, "start_thread", started.append)
    renewer = make()
    renewer.start()
    renewer.start()
    renewer.accepted(take(limiter), os.getpid())
    assert len(started) == 1


def test_a_forked_child_makes_a_thread_of_its_own(make, limiter, monkeypatch):
    started = []
    monkeypatch.setattr(lease_renewer, "start_thread", started.append)
    renewer = make()
    renewer.start()
    real = os.getpid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: real + 1)
        renewer.start()
    assert len(started) == 2
