"""The promoter: a native thread of a gate's worker that brings parked tasks back to the broker.

Every worker of the app promotes: any of them may publish a task that another one parked. While
tasks are parked, a promoter waits for a wake-up in Redis, and looks at least once a second. While
none is parked, it sleeps, and looks once in a third of a lease.

Invariant: Redis deletes a parked task only after the broker has confirmed its message. If a
promoter dies before that, another one publishes the task after a lease, as another copy. The gates
start one of all the copies.

An error delays only the task that could not be published: the pause before its next try grows to
one lease. A task that the broker rejects ten times has failed.

::

    parked ──promote──> leased to a promoter ──publish, "sent"──> on the broker ──> gate
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
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Promoted
from celery_fairness.util.log_fields import about
from celery_fairness.util.threads import Bell, start_thread
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.gate.resender import NotAccepted

#: Tasks that one promoter takes at once.
BATCH_SIZE = 16
#: Longest wait for a wake-up in Redis, in seconds. Redis's answer must be allowed to take longer.
LISTEN_SECONDS = 1.0
#: Pause after a broker or a Redis that did not answer, in seconds.
AGAIN_SECONDS = 1.0


class Promoter:
    """Brings parked tasks back for the life of a worker.

    Args:
        limiter: Makes the limiter, inside the thread, with a connection of its own.
        publish: Publishes one task and waits for the broker's confirmation. It raises
            :class:`NotAccepted` if the broker answers and rejects the message.
    """

    def __init__(
        self,
        limiter: Callable[[], Limiter],
        publish: Callable[[Promoted], None],
        enforcement: Enforcement,
        notices: Notices,
    ) -> None:
        self._make_limiter = limiter
        self.publish = publish
        self._enforcement = enforcement
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

    def promote(self, limiter: Limiter) -> float:
        """Publish the parked tasks that may start now; return the seconds until the next look."""
        promotion = limiter.promote(BATCH_SIZE, self._enforcement)
        for task in promotion.tasks:
            try:
                self.publish(task)
            except OperationalError:
                raise  # The broker does not answer: all tasks come back after a lease.
            except Exception as error:  # noqa: BLE001 - an error of one task must not stop the others
                headers = json.loads(task.message)["headers"]
                name = f"{headers.get('task')}[{headers.get('id')}]"
                text = "parked task %s could not be published, it is tried again: %r"
                fields = about(task_name=headers.get("task"), task_id=headers.get("id"))
                self._notices.error("publish", text, name, error, extra=fields)
                limiter.end_promotion(
                    task, "rejected" if isinstance(error, NotAccepted) else "unsent"
                )
            else:
                limiter.end_promotion(task, "sent")
        return promotion.sleep_seconds

    def _run(self) -> None:
        started = self._started
        limiter = self._make_limiter()
        while started == (os.getpid(), self._round):
            began = time.monotonic()
            try:
                pause = self.promote(limiter)
                if pause <= LISTEN_SECONDS:
                    limiter.await_parked(pause)
            except Exception as error:  # noqa: BLE001 - parked tasks wait for a later try
                self._notices.error("promoter", "parked tasks could not be promoted: %r", error)
                self._bell.wait(max(0.0, began + AGAIN_SECONDS - time.monotonic()))
            else:
                if pause > LISTEN_SECONDS:
                    self._bell.wait(pause)
