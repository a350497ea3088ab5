"""Many threads and many tasks on one Redis: no limit is exceeded, and nobody else has to wait."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_fairness.config.settings import build_settings
from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.limiter.types import Admitted, Lease, SlotRequest
from celery_fairness.message.headers import HEADER
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.gate import Gate, new_lease_id
from tests.support.waiting import at_most, eventually
from tests.thread_worker.conftest import Meter


@pytest.fixture
def make_limiter(redis_url):
    made = []

    def make(**settings):
        # A connection may wait for its turn on a machine where a hundred threads run.
        connection = Connection(address_from_url(redis_url), timeout_seconds=at_most(10.0))
        made.append(RedisLimiter(connection, build_settings(settings)))
        made[-1].renew([])
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_hundred_threads_with_five_jobs_each_never_exceed_the_limit(make_limiter):
    tier, cap = "pro", 3
    limiter, meter = make_limiter(), Meter()
    begin = threading.Barrier(100)
    refusals = Counter()

    def work(number):
        refused = 0
        begin.wait(timeout=at_most(20))
        for job in range(5):
            lease = Lease(f"{number}.{job}", tier_key("crowd"))
            while not isinstance(limiter.acquire(SlotRequest(lease, "crowd", tier)), Admitted):
                refused += 1
            with meter.around("crowd"):
                pass
            assert limiter.release([lease]) == 1
        refusals[number] = refused

    with ThreadPoolExecutor(100) as pool:
        for done in [pool.submit(work, number) for number in range(100)]:
            done.result(timeout=at_most(60))
    assert len(meter.ended) == 500
    # Measured inside of what holds a slot, so it is at most what Redis let through.
    assert 1 <= meter.most["crowd"] <= cap
    assert limiter.leases_of(tier_key("crowd")).held == 0
    # A thread that is not interrupted in its slot refuses nobody.
    told = {f"rejected:{tier}": refusals.total()} if refusals.total() else {}
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


def test_tenants_of_all_tiers_at_once_each_have_their_own_limit(make_limiter):
    limiter, meter = make_limiter(), Meter()
    caps = {"free": 1, "pro": 3, "pro_plus": 3, "enterprise": 5}

    def work(number):
        tier = list(caps)[number % 4]
        for job in range(10):
            lease = Lease(f"{number}.{job}", tier_key(tier))
            while not isinstance(limiter.acquire(SlotRequest(lease, tier, tier)), Admitted):
                pass
            with meter.around(tier):
                pass
            limiter.release([lease])

    with ThreadPoolExecutor(32) as pool:
        for done in [pool.submit(work, number) for number in range(32)]:
            done.result(timeout=at_most(60))
    assert Counter(meter.ended) == dict.fromkeys(caps, 80)
    assert all(meter.most[tier] <= cap for tier, cap in caps.items()), meter.most


class Broker:
    """First in, first out; what was sent back comes again when it is due, before the rest."""

    def __init__(self):
        self._lock = threading.Lock()
        self._queue = deque()
        self._due = []
        self._turn = 0
        self.delivered = Counter()

    def put(self, message):
        self._queue.append(message)

    def send(self, task, request, refused, serial, countdown_seconds, content_type):
        """In the place of the resender: time is counted in deliveries."""
        with self._lock:
            due = self._turn + countdown_seconds
            heapq.heappush(self._due, (due, self._turn, dict(request.headers[HEADER])))
        return True

    def take(self):
        with self._lock:
            if self._due and self._due[0][0] <= self._turn:
                header = heapq.heappop(self._due)[2]
            elif self._queue:
                header = self._queue.popleft()
            else:
                return None
            self._turn += 1
            self.delivered[header["tenant"]] += 1
            return header


class Host:
    """One worker: a pool of threads that deliver the broker's messages to a gate."""

    def __init__(self, broker, limiter, settings, body):
        notices = Notices(logging.getLogger("celery_fairness"))
        tier_cache = TierCache(settings, lambda: limiter, notices)
        task = type("Task", (), {"name": "t", "service": None, "acks_late": False})
        gate = Gate(settings, limiter, tier_cache, broker, notices, lambda lease: None)
        self._trace = gate.wrap(task, body)
        self._broker = broker

    def run(self, stop):
        while not stop.is_set():
            header = self._broker.take()
            if header is not None:
                request = {"id": new_lease_id(), HEADER: header, "headers": {HEADER: header}}
                self._trace(request["id"], (), {}, request)


def test_a_thousand_jobs_with_pools_as_large_as_the_limit_starve_nobody(make_limiter):
    """Two hosts with pools of five; the flood's limit is five.

    ::

        flood  5 bodies hold all slots of the tenant ............................ until the end
        quiet  behind 1,000 messages: each is passed over once, its five tasks run at once
    """
    # Longer than it takes to pass over the flood: counted in deliveries here.
    settings = {"snooze_seconds": 8_000.0, "snooze_jitter_seconds": 0}
    limiter = make_limiter(**settings)
    broker, meter = Broker(), Meter()
    quiet_is_done, stop = threading.Event(), threading.Event()

    def body(uuid, args, kwargs, request):
        tenant = request[HEADER]["tenant"]
        with meter.around(tenant):
            if tenant == "flood":
                quiet_is_done.wait(timeout=at_most(120))
        if tenant == "quiet" and meter.ended.count("quiet") == 5:
            stop.set()

    for _ in range(1_000):
        broker.put({"v": 1, "tenant": "flood", "tier": "enterprise"})
    for _ in range(5):
        broker.put({"v": 1, "tenant": "quiet", "tier": "enterprise"})

    hosts = [Host(broker, limiter, build_settings(settings), body) for _ in range(2)]
    with ThreadPoolExecutor(10) as pool:
        running = [pool.submit(host.run, stop) for host in hosts for _ in range(5)]
        try:
            assert stop.wait(timeout=at_most(120))
            # The flood has run nothing but its first five, which still hold their slots.
            assert meter.ended.count("flood") == 0
            assert meter.now("flood") == 5
            assert limiter.leases_of(tier_key("flood")).held == 5
        finally:
            stop.set()
            quiet_is_done.set()
        for each in running:
            each.result(timeout=at_most(30))
    assert meter.most["flood"] == 5
    # The limit is the tenant's and not the pool's: nothing of the quiet one was refused.
    assert broker.delivered == {"flood": 1_000, "quiet": 5}
    assert limiter.counts() == {"rejected:enterprise": 995}
