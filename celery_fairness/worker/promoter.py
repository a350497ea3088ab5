"""The promoter: a native thread of a gate's worker that brings parked tasks back to the broker.

Every worker of the app promotes: what a worker parks is promoted by whichever hears first that it
may start. While something is parked a promoter waits for the bell in Redis, and looks at least once
a second; while nothing is, it sleeps and looks once in a third of a lease.

Invariant: a parked task is forgotten only when the broker has confirmed its message, or when its
failure is stored. A promoter that dies before leaves it to the others, which publish it once more
after a lease, as another copy; of all copies one starts.

An error belongs to the task that could not be published: the others go on, and that one is
published again after a pause that grows to one lease. If the broker answers and does not take the
message, the task fails after :data:`TRIES_AT_MOST` tries.

::

    parked ──promote──> given for a lease ──publish, unpark──> on the broker ──> gate
      ^                        │                                                  │
      └── after a lease ───────┘                     refused: parked where it was ┘
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from kombu.exceptions import OperationalError

from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.types import Promoted
from celery_fairness.message.headers import new_serial
from celery_fairness.util.threads import Bell, start_thread
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.resend import NotTaken

#: Tasks that one promoter has in its hands at once.
TOGETHER = 16
#: Longest wait for the bell of Redis, in seconds: shorter than its answers may take.
LISTEN_SECONDS = 1.0
#: Tries of a task whose message the broker does not take: some six leases.
TRIES_AT_MOST = 10
#: Pause after a broker or a Redis that did not answer, in seconds.
AGAIN_SECONDS = 1.0
#: What a promoter says that finds them.
ELSEWHERE = (
    "tasks of another broker are parked in this Redis under this namespace: they go back to that "
    "one alone, and meanwhile those of this broker come again by their snooze; give each broker a "
    "namespace, or all workers of one broker the same address of it"
)


class Promoter:
    """Brings parked tasks back for the life of a worker.

    Args:
        limiter: Makes the limiter, inside the thread: the connection is its own.
        publish: Publishes one task and waits until the broker has it; raises :class:`NotTaken`
            where the broker answers and does not take it.
        fail: Stores that a task has failed, because of an error.
        enforcement: Whether limits keep anything.
        look_seconds: How often it looks whether others have parked something.
        notices: Where trouble is logged.
    """

    def __init__(
        self,
        limiter: Callable[[], Limiter],
        publish: Callable[[Promoted], None],
        fail: Callable[[Promoted, Exception], None],
        enforcement: Enforcement,
        look_seconds: float,
        notices: Notices,
    ) -> None:
        self._make_limiter = limiter
        self.publish = publish
        self._fail = fail
        self._enforcement = enforcement
        self._look_seconds = look_seconds
        self._notices = notices
        self._bell = Bell()
        # As of the keeper: a thread runs for one process and one start.
        self._round = 0
        self._started: tuple[int, int] | None = None

    def start(self) -> None:
        """Start the thread, unless this process has it."""
        now = (os.getpid(), self._round)
        if self._started != now:
            self._started = now
            start_thread(self._run)

    def ring(self) -> None:
        """Look at once: a task of this worker was parked."""
        self._bell.ring()

    def stop(self) -> None:
        """Promote no more; what it has in its hands it publishes, or others do."""
        self._round += 1
        self._bell.ring()

    def promote(self, limiter: Limiter) -> float | None:
        """Bring back what may start now.

        Returns:
            When to look again, in seconds; None where nothing is parked.
        """
        promotion = limiter.promote(TOGETHER, new_serial(), self._enforcement)
        for task in promotion.tasks:
            try:
                self.publish(task)
            except OperationalError:
                raise  # There is no broker to publish to: all come back after a lease.
            except Exception as error:  # noqa: BLE001 - it is this task's
                self._put_off(limiter, task, error)
            else:
                limiter.unpark([task.copy.message])
        if promotion.elsewhere:
            self._notices.warning("elsewhere", "%s", ELSEWHERE)
        return promotion.sleep_seconds

    def _put_off(self, limiter: Limiter, task: Promoted, error: Exception) -> None:
        tag = task.copy.message
        tries = limiter.put_off(tag)
        if not tries:
            return  # A copy that was published before has come to a gate.
        headers = json.loads(task.message)["headers"]
        name = f"{headers.get('task')}[{headers.get('id')}]"
        text = "parked task %s could not be published, it is tried again: %r"
        self._notices.error("publish", text, name, error)
        if isinstance(error, NotTaken) and tries >= TRIES_AT_MOST:
            self._fail(task, error)
            limiter.unpark([tag], "failed")

    def _run(self) -> None:
        started = self._started
        limiter = self._make_limiter()
        while started == (os.getpid(), self._round):
            began = time.monotonic()
            try:
                pause = self.promote(limiter)
                if pause:
                    limiter.await_parked(min(pause, LISTEN_SECONDS))
            except Exception as error:  # noqa: BLE001 - what is parked waits for its return
                self._notices.error("promoter", "parked tasks could not be promoted: %r", error)
                self._bell.wait(max(0.0, began + AGAIN_SECONDS - time.monotonic()))
            else:
                if pause is None:
                    self._bell.wait(self._look_seconds)
