"""The one place where the tests wait: an assertion tried again until it holds.

Invariant: what is waited for is an assertion of the test, so a wait that fails says what was
expected and what was there. Nothing waits for time to pass. The seconds of each deadline of the
tests, also those of subprocesses and of the browser, go through `at_most`.

Weakness: it polls; something true only between two looks is missed. Wait for what stays true.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from celery_fairness.errors import NotFound

Answer = TypeVar("Answer")

POLL_SECONDS = 0.02
#: Multiplies every deadline of the tests. A wait that succeeds ends at once, so patience costs time
#: only in a test that fails; a machine with much other work needs more of it.
PATIENCE = float(os.environ.get("TEST_PATIENCE", "3"))


def at_most(seconds: float) -> float:
    """Return the deadline of a wait that takes less than `seconds` on an idle machine."""
    return seconds * PATIENCE


def eventually(
    assertion: Callable[[], Answer],
    timeout_seconds: float = at_most(10.0),
    poll_seconds: float = POLL_SECONDS,
) -> Answer:
    """Call `assertion` until it raises no AssertionError, and give back its answer.

    A `NotFound` counts as not yet true: nothing is known of a key before its first task.

    Args:
        assertion: asserts what must become true, and may return something. A bare `lambda: x == y`
            or `lambda: inbox.received` asserts nothing, so an answer that is false or empty counts
            as not yet true. `None` counts as true.
        timeout_seconds: after this the last AssertionError or NotFound is raised.
        poll_seconds: the pause between two tries.

    Raises:
        AssertionError, NotFound: it never held. Other errors pass through at once.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            answer = assertion()
            if answer is None or answer:
                return answer
            failure: Exception = AssertionError(f"still {answer!r} after {timeout_seconds} s")
        except (AssertionError, NotFound) as error:
            failure = error
        if time.monotonic() >= deadline:
            failure.add_note(f"waited {timeout_seconds} s for it")
            raise failure
        time.sleep(poll_seconds)
