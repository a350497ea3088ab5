"""Threads of the operating system, where a green library has patched its own into their place."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from celery_fairness.util.threads import Bell, start_thread
from tests.support.waiting import at_most

COMPUTES = """
{patch}
import os, sys, time, threading
from celery_fairness.util.threads import Bell, start_thread
heard, bell = [], Bell()
main = threading.get_ident()

def renew():
    while len(heard) < 3:
        bell.wait(0.02)
        heard.append(1)

start_thread(renew)
# A body that computes and never gives way: a greenlet would not run beside it.
ends_at = time.monotonic() + 20
while len(heard) < 3 and time.monotonic() < ends_at:
    sum(range(1000))
print("renewed" if len(heard) >= 3 else "starved")
"""


@pytest.mark.parametrize("patch", ["", "from gevent import monkey; monkey.patch_all()"])
def test_it_runs_beside_a_body_that_computes(patch):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPUTES.format(patch=patch)],
        capture_output=True,
        text=True,
        check=False,
        timeout=at_most(60),
    )
    assert done.stdout.strip() == "renewed", done.stderr


def test_a_bell_is_heard_once_however_often_it_was_rung():
    bell = Bell()
    assert bell.wait(0) is False
    for _ in range(3):
        bell.ring()
    assert bell.wait(0) is True
    assert bell.wait(0) is False


def test_a_bell_wakes_who_waits_for_it():
    bell, heard = Bell(), []
    waiter = threading.Thread(target=lambda: heard.append(bell.wait(at_most(20))))
    waiter.start()
    bell.ring()
    waiter.join(timeout=at_most(20))
    assert heard == [True]


def test_a_wait_that_is_over_returns_at_once():
    assert Bell().wait(-5.0) is False


def test_a_native_thread_does_not_keep_the_process_alive():
    code = (
        "from celery_fairness.util.threads import Bell, start_thread; "
        "start_thread(lambda: Bell().wait(3600))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, timeout=at_most(60)).returncode
        == 0
    )
    ran = threading.Event()
    start_thread(ran.set)
    assert ran.wait(at_most(20))


SHARES = """
from gevent import monkey; monkey.patch_all()
import sys, gevent
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.util.threads import Bell, start_thread
redis, bell, said = Connection(address_from_url(sys.argv[1])), Bell(), []

def ask():
    for _ in range(2):
        said.append(redis.read("ECHO", "heard"))
        said.extend(redis.read_together([("ECHO", "heard")]))

def ask_beside():
    try:
        ask()
    except BaseException as error:
        said.append(repr(error))
    bell.ring()

gevent.spawn(ask).get()
start_thread(ask_beside)
assert bell.wait(20)
gevent.spawn(ask).get()
print(*said)
"""


def test_greenlets_and_a_native_thread_share_a_connection(redis_url):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARES, redis_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=at_most(60),
    )
    assert done.stdout.split() == ["heard"] * 12, (done.stdout, done.stderr)
