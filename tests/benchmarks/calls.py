"""How long an acquire and a release take, with Redis on the same host."""

from __future__ import annotations

import statistics
import time

from celery_fairness.config.settings import build_settings
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Lease, SlotRequest
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from tests.support.redis_server import RedisServer

AT_MOST_SECONDS = 0.001


def percentiles(server: RedisServer, calls: int) -> dict[str, tuple[float, float]]:
    """Return median and p99 of each call, in seconds."""
    limiter = Limiter(Connection(address_from_url(server.url)), build_settings({}))
    acquire, release = [], []
    for number in range(calls):
        tenant = f"t{number % 200}"
        lease = Lease(f"lease{number}", f"tenant:{tenant}")
        begun = time.perf_counter()
        limiter.acquire(SlotRequest(lease, tenant, "free"))
        acquired = time.perf_counter()
        limiter.release((lease,))
        acquire.append(acquired - begun)
        release.append(time.perf_counter() - acquired)
    limiter.close()
    return {"acquire": _summary(acquire), "release": _summary(release)}


def _summary(seconds: list[float]) -> tuple[float, float]:
    return statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
