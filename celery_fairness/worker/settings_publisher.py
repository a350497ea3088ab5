"""Publishes the tiers and limits of a worker's settings and database, until Redis has them.

Invariant: a publication that failed is owed, and is tried again until it succeeds. A worker that
starts while Redis is away thus publishes later.

    add --published--> done --Redis lost its memory--> owed --published--> done
    add --failed--> owed

The first try runs in the thread that starts the worker, so that its tiers are in force before its
first task. All others run in a native thread, which ends when nothing is owed. The thread that
renews the leases does not publish, because a database may block for longer than a lease.

Weakness: the thread of a worker that stops ends after the try that it is in.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.util.threads import Bell, native_lock, start_thread
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: Pause after the first try that failed, in seconds. Each further one is twice as long, up to the
#: last number. Up to half of a pause is random, so that workers do not publish in step.
AGAIN_SECONDS, AGAIN_SECONDS_AT_MOST = 5.0, 60.0


class SettingsPublisher:
    """Publishes the settings of one worker, and what other sources add."""

    def __init__(self, notices: Notices, again_seconds: float = AGAIN_SECONDS) -> None:
        self._notices, self._again_seconds = notices, again_seconds
        self._publish: dict[str, Callable[[], None]] = {}
        self._owed: set[str] = set()
        self._lock, self._bell = native_lock(), Bell()
        #: Whether the thread is alive.
        self._runs = False

    def add(self, source: str, publish: Callable[[], None]) -> None:
        """Publish now, in this thread, and again after Redis lost its memory.

        If ``publish`` raises, it is owed: :meth:`start` tries it again.

        Args:
            source: The name of the source in the log. It replaces an earlier one of the same name.
            publish: Publishes all that the source has.
        """
        with self._lock:
            self._publish[source] = publish
        if not self._is_published(source, publish):
            with self._lock:
                self._owed.add(source)

    def start(self) -> None:
        """Start the thread if something is owed. A pool must have forked its processes before."""
        with self._lock:
            starts = bool(self._owed) and not self._runs
            self._runs = self._runs or starts
        if starts:
            start_thread(self._run)

    def publish_again(self) -> None:
        """Let the thread publish everything: Redis has lost its memory."""
        with self._lock:
            self._owed.update(self._publish)
        self.start()
        self._bell.ring()

    def stop(self) -> None:
        """Forget all sources; the thread ends."""
        with self._lock:
            self._publish.clear()
            self._owed.clear()
        self._bell.ring()

    def _run(self) -> None:
        pause = self._again_seconds
        while True:
            with self._lock:
                owed = [each for each in self._publish.items() if each[0] in self._owed]
                self._owed.clear()
                if not owed:
                    self._runs = False
                    return
            failed = set()
            for source, publish in owed:
                if self._is_published(source, publish):
                    logger.info("the tiers and limits of the %s are published again", source)
                else:
                    failed.add(source)
            if failed:
                with self._lock:
                    self._owed |= failed
                self._bell.wait(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, AGAIN_SECONDS_AT_MOST)
            else:
                pause = self._again_seconds

    def _is_published(self, source: str, publish: Callable[[], None]) -> bool:
        try:
            publish()
        except Exception as error:  # noqa: BLE001 - a later try may succeed
            self._notices.error(
                f"publish:{source}",
                "the tiers and limits of the %s could not be published, it is tried again: %s",
                source,
                error if isinstance(error, LimiterUnavailable) else repr(error),
            )
            return False
        return True
