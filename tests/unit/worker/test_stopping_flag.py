"""A worker that begins to stop: its flag, as pool children see it, and a repeated SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from celery_fairness.worker.stopping_flag import StoppingFlag
from tests.support.waiting import at_most


def test_it_is_down_until_it_is_raised_and_can_be_lowered():
    flag = StoppingFlag()
    assert flag() is False
    flag.raise_it()
    flag.raise_it()
    assert flag() is True
    flag.lower_it()
    assert flag() is False


def test_a_forked_child_sees_what_its_parent_does_later():
    flag = StoppingFlag()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        before = flag()
        os.read(told, 1)
        os._exit(10 * before + flag())
    flag.raise_it()
    os.write(tell, b"x")
    os.close(tell)
    os.close(told)
    # Whether it saw it before it was told is a race; after that it must.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 10 == 1


def test_two_flags_are_two():
    one, other = StoppingFlag(), StoppingFlag()
    one.raise_it()
    assert other() is False


SECOND_SIGTERM = """
{patch}
import signal
from celery import Celery, signals
from celery_fairness import Fairness
Fairness(Celery("shop", broker="redis://localhost"))
stops = signals.worker_shutting_down
signal.signal(signal.SIGTERM, lambda *_: stops.send("worker", sig="SIGTERM", how="Warm"))
with stops.lock:
    signal.raise_signal(signal.SIGTERM)
print("ended")
"""


@pytest.mark.parametrize("patch", ["", "from gevent import monkey; monkey.patch_all()"])
def test_a_second_sigterm_may_come_while_the_handler_of_the_first_holds_celerys_lock(patch):
    # The kernel sends SIGTERM once for each thread of `celery fairness worker` when that is killed.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SECOND_SIGTERM.format(patch=patch)],
        capture_output=True,
        text=True,
        check=False,
        timeout=at_most(20),
    )
    assert done.stdout.strip() == "ended", done.stderr
