"""One read of the metrics at a time, with the two metrics about the read itself.

Invariant: an error of Redis is an answer with ``fairness_up`` 0, and never an error of the scrape.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from celery_fairness.control.health import metric_table as table
from celery_fairness.control.health.metrics import Family, Sample
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")


class Scraper:
    """Reads the metrics of one installation. Several threads may use it.

    Args:
        read: Returns the metrics.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[Family]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._notices = Notices(logger)
        self._read_at: float | None = None

    def families(self) -> list[Family]:
        """Return the metrics. If Redis does not answer, these are only the two of the read."""
        with self._lock:
            read: Sequence[Family] = ()
            try:
                read = self._read()
                self._read_at = self._clock()
            except LimiterUnavailable as error:
                # The answer has no other metrics, so Prometheus marks these as stale. Sums without
                # a partition would be false.
                self._notices.error("scrape", "a scrape could not read Redis: %s", error)
            read_at = self._read_at
        found = [_single(table.UP, float(bool(read)))]
        if read_at is not None:
            found.append(_single(table.SCRAPE_AGE, max(0.0, self._clock() - read_at)))
        return [*found, *(family for family in read if family.samples)]


def _single(metric: table.Metric, value: float) -> Family:
    return Family(metric=metric, samples=(Sample((), value),))
