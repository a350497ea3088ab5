"""Spinning: an answer that comes in a moment is not slept for; nobody spins in vain for long."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from celery_fairness.store import spin
from celery_fairness.store.spin import REST, SPIN_SECONDS, Spin
from tests.support.waiting import at_most


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def looked(monkeypatch):
    """The sockets that were looked at, one entry for each look; each takes a tenth of the time."""
    looks = []
    clock = [0.0]

    class Poll:
        def __init__(self):
            self._poll = select.poll()

        def register(self, number, events):
            self._number = number
            self._poll.register(number, events)

        def poll(self, timeout):
            assert timeout == 0, "that is to sleep"
            looks.append(self._number)
            clock[0] += SPIN_SECONDS / 10
            return self._poll.poll(timeout)

    monkeypatch.setattr(spin, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    monkeypatch.setattr(spin, "perf_counter", lambda: clock[0])
    return looks


def on(ours):
    return SimpleNamespace(_sock=ours)


def test_what_is_there_is_seen_at_once(pair, looked):
    ours, theirs = pair
    theirs.send(b"x")
    spin = Spin()
    for _ in range(3):
        spin.wait(on(ours))
    assert looked == [ours] * 3
    assert ours.recv(2) == b"x", "it looks and reads nothing"


def test_it_looks_until_something_comes(pair, looked, monkeypatch):
    ours, theirs = pair
    gave_way = []

    def yield_core():
        gave_way.append(len(looked))
        if len(looked) == 5:
            theirs.send(b"x")

    monkeypatch.setattr(spin.os, "sched_yield", yield_core)
    Spin().wait(on(ours))
    assert len(looked) == 6
    assert gave_way == [1, 2, 3, 4, 5], "the core is given away between two looks"


def test_after_an_answer_that_did_not_come_the_next_ones_are_slept_for(pair, looked):
    ours, theirs = pair
    spin = Spin()
    spin.wait(on(ours))
    assert len(looked) == 10, "it looks for its time, and no longer"
    theirs.send(b"x")
    for _ in range(REST):
        spin.wait(on(ours))
    assert len(looked) == 10
    spin.wait(on(ours))
    assert len(looked) == 11


def test_another_socket_is_looked_at_in_the_place_of_one_that_is_closed(pair, looked):
    ours, theirs = pair
    theirs.send(b"x")
    spin = Spin()
    connection = on(ours)
    spin.wait(connection)
    other, far = socket.socketpair()
    with other, far:
        far.send(b"x")
        connection._sock = other
        spin.wait(connection)
        assert looked == [ours, other]


def test_one_that_its_server_closed_is_read_to_hear_it(pair, looked):
    ours, theirs = pair
    theirs.close()
    Spin().wait(on(ours))
    assert looked == [ours]


@pytest.mark.parametrize(
    "nothing", [None, SimpleNamespace(fileno=lambda: 0)], ids=["no socket", "a green one"]
)
def test_what_cannot_be_looked_at_is_slept_for(looked, nothing):
    Spin().wait(on(nothing))
    assert looked == []


def test_where_a_core_cannot_be_given_away_nobody_spins(pair, looked, monkeypatch):
    monkeypatch.delattr(spin.os, "sched_yield")
    Spin().wait(on(pair[0]))
    assert looked == []


GREEN = """
{patch}
import select, socket
from types import SimpleNamespace
from celery_fairness.store.spin import _look_at
print(_look_at(socket.socket()))
"""


@pytest.mark.parametrize(
    "patch",
    [
        "from gevent import monkey; monkey.patch_all()",
        "from gevent import monkey; monkey.patch_socket()",
    ],
)
def test_a_greenlet_does_not_keep_the_others_from_running(patch):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GREEN.format(patch=patch)],
        capture_output=True,
        text=True,
        check=False,
        timeout=at_most(60),
    )
    assert done.stdout.strip() == "None", done.stderr
