"""The promoter: a native thread of a gate's worker that brings parked tasks back to the broker.

Every worker of the app promotes: any of them may publish a task that another one parked. While
tasks are parked, a promoter waits for a wake-up in Redis, and looks at least once a second. While
none is parked, it sleeps, and looks once in a third of a lease.

Invariant: Redis deletes a parked task only after the broker has confirmed its message, or after its
failure is stored. If a promoter dies before that, another one publishes the task after a lease, as
another copy. The gates start one of all the copies.

An error delays only the task that could not be published: the pause before its next try grows to
one lease. If the broker answers and rejects the message, the task fails after :data:`TRIES_AT_MOST`
tries.

::

    parked ──promote──> leased to a promoter ──publish, unpark──> on the broker ──> gate
      ^                        │                                                     │
      └── after a lease ───────┘                       rejected: parked where it was ┘
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
from celery_fairness.worker.resend import NotAccepted

#: Tasks that one promoter takes at once.
BATCH_SIZE = 16
#: Longest wait for a wake-up in Redis, in seconds. Redis's answer must be allowed to take longer.
LISTEN_SECONDS = 1.0
#: Tries of a task whose message the broker rejects: about six leases.
TRIES_AT_MOST = 10
#: Pause after a broker or a Redis that did not answer, in seconds.
AGAIN_SECONDS = 1.0
#: Logged by a promoter that finds such tasks.
OTHER_BROKER_TEXT = (
    "tasks of another broker are parked in this Redis under this namespace: they go back to that "
    "broker only, and until then tasks of this broker come back after their snooze; give each "
    "broker its own namespace, or give all workers of one broker the same address"
)


class Promoter:
    """Brings parked tasks back for the life of a worker.

    Args:
        limiter: Makes the limiter, inside the thread, with a connection of its own.
        publish: Publishes one task and waits for the broker's confirmation. It raises
        :class:`NotAccepted` if the broker answers and rejects the message.
        fail: Stores that a task has failed, with its error.
        enforcement: Whether limits are enforced.
        look_seconds: How often it looks for tasks that other workers have parked.
        notices: Receives throttled log lines.
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
        # As in the lease renewer: a thread runs for one process and one start.
        self._round = 0
        self._started: tuple[int, int] | None = None

    def start(self) -> None:
        """Start the thread, unless this process has it."""
        now = (os.getpid(), self._round)
        if self._started != now:
            self._started = now
            start_thread(self._run)

    def ring(self) -> None:
        """Look now: this worker has parked a task."""
        self._bell.ring()

    def stop(self) -> None:
        """Stop the thread. It publishes the tasks that it has, or other promoters do."""
        self._round += 1
        self._bell.ring()

    def promote(self, limiter: Limiter) -> float | None:
        """Publish the parked tasks that may start now.

        Returns:
            The seconds until the next look, or None if no task is parked.
        """
        promotion = limiter.promote(BATCH_SIZE, new_serial(), self._enforcement)
        for task in promotion.tasks:
            try:
                self.publish(task)
            except OperationalError:
                raise  # The broker does not answer: all tasks come back after a lease.
            except Exception as error:  # noqa: BLE001 - an error of one task must not stop the others
                self._put_off(limiter, task, error)
            else:
                limiter.unpark([task.copy.message])
        if promotion.elsewhere:
            self._notices.warning("elsewhere", "%s", OTHER_BROKER_TEXT)
        return promotion.sleep_seconds

    def _put_off(self, limiter: Limiter, task: Promoted, error: Exception) -> None:
        tag = task.copy.message
        tries = limiter.put_off(tag)
        if not tries:
            return  # An earlier copy has come to a gate.
        headers = json.loads(task.message)["headers"]
        name = f"{headers.get('task')}[{headers.get('id')}]"
        text = "parked task %s could not be published, it is tried again: %r"
        self._notices.error("publish", text, name, error)
        if isinstance(error, NotAccepted) and tries >= TRIES_AT_MOST:
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
            except Exception as error:  # noqa: BLE001 - parked tasks wait for a later try
                self._notices.error("promoter", "parked tasks could not be promoted: %r", error)
                self._bell.wait(max(0.0, began + AGAIN_SECONDS - time.monotonic()))
            else:
                if pause is None:
                    self._bell.wait(self._look_seconds)
