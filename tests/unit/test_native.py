"""Threads of the operating system, where a green library has patched its own into their place."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from celery_fairness.util.threads import Bell, start_thread

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
        timeout=60,
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
    waiter = threading.Thread(target=lambda: heard.append(bell.wait(20)))
    waiter.start()
    bell.ring()
    waiter.join(timeout=20)
    assert heard == [True]


def test_a_wait_that_is_over_returns_at_once():
    assert Bell().wait(-5.0) is False


def test_a_native_thread_does_not_keep_the_process_alive():
    code = (
        "from celery_fairness.util.threads import Bell, start_thread; "
        "start_thread(lambda: Bell().wait(3600))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
    ran = threading.Event()
    start_thread(ran.set)
    assert ran.wait(20)
