"""Many threads and many tasks on one Redis: no limit is exceeded, and nobody else has to wait."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_fairness.config.settings import build_settings
from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Lease, SlotRequest
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from tests.support.waiting import at_most, eventually
from tests.thread_worker.conftest import Meter


@pytest.fixture
def make_limiter(redis_url):
    made = []

    def make(**settings):
        # A connection may wait for its turn on a machine where a hundred threads run.
        connection = Connection(address_from_url(redis_url), timeout_seconds=at_most(10.0))
        made.append(Limiter(connection, build_settings(settings)))
        made[-1].renew([])
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_hundred_threads_with_five_jobs_each_never_exceed_the_limit(make_limiter):
    tier, cap = "pro", 3
    limiter, meter = make_limiter(), Meter()
    begin = threading.Barrier(100)
    rejections = Counter()

    def work(number):
        rejected = 0
        begin.wait(timeout=at_most(20))
        for job in range(5):
            lease = Lease(f"{number}.{job}", tier_key("crowd"))
            while not isinstance(limiter.acquire(SlotRequest(lease, "crowd", tier)), Admitted):
                rejected += 1
            with meter.around("crowd"):
                pass
            assert limiter.release([lease]) == 1
        rejections[number] = rejected

    with ThreadPoolExecutor(100) as pool:
        for done in [pool.submit(work, number) for number in range(100)]:
            done.result(timeout=at_most(60))
    assert len(meter.ended) == 500
    # Measured inside of what holds a slot, so it is at most what Redis let through.
    assert 1 <= meter.most["crowd"] <= cap
    assert limiter.leases_of(tier_key("crowd")).held == 0
    # A thread that is not interrupted in its slot rejects nobody.
    told = {f"rejected:{tier}": rejections.total()} if rejections.total() else {}
    assert limiter.counts() == told


def test_the_most_at_once_is_reached_and_not_passed(make_limiter):
    limiter, meter = make_limiter(), Meter()
    inside = threading.Semaphore(0)
    go = threading.Event()

    def work(number):
        lease = Lease(str(number), tier_key("crowd"))
        answer = limiter.acquire(SlotRequest(lease, "crowd", "enterprise"))
        if isinstance(answer, Admitted):
            with meter.around("crowd"):
                inside.release()
                go.wait(timeout=at_most(20))
            limiter.release([lease])
        return isinstance(answer, Admitted)

    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(work, number) for number in range(50)]
        eventually(lambda: sum(each.done() for each in asked) == 45, timeout_seconds=at_most(20))
        go.set()
        assert sum(each.result() for each in asked) == 5
    assert meter.most == {"crowd": 5}
