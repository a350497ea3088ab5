"""A worker in a thread of the test: bodies wait on events of the test, and nothing is slept for.

Invariant: the worker has ended, and the test process has the Celery apps that it had before.

Weakness: the worker has no main process of its own, and no signals of a real start; what only
those show is in `tests/integration`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import Celery, _state, signals
from celery.backends.redis import ResultConsumer
from celery.contrib.testing.worker import start_worker
from redis import Redis

from celery_fairness import Fairness, FairTask, RateLimitExceeded
from celery_fairness.exporter.otel import span_attributes
from tests.support.redis_server import RedisServer
from tests.support.waiting import at_most, eventually

SNOOZE_SECONDS = 0.05


class Meter:
    """Counts who runs now, and how many ran at once at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.ended: list[str] = []

    @contextlib.contextmanager
    def around(self, who: str) -> Iterator[None]:
        with self._lock:
            self.running[who] = now = self.running.get(who, 0) + 1
            self.most[who] = max(now, self.most.get(who, 0))
        try:
            yield
        finally:
            with self._lock:
                self.running[who] -= 1
                self.ended.append(who)

    def now(self, who: str) -> int:
        return self.running.get(who, 0)


@dataclass
class Yard:
    """An app with a worker in a thread, and what its bodies do."""

    app: Celery
    fairness: Fairness
    redis: Redis
    meter: Meter = field(default_factory=Meter)
    #: Bodies that were told to wait, wait for a permit each.
    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    #: The arguments of `total` and `plain`, and the facts that `carried` and `plainly` saw.
    calls: list[Any] = field(default_factory=list)
    #: The arguments of bodies that had a 429.
    limited: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # Here, because a worker knows the tasks that there were when it started.
        self.task = functools.partial(self.app.task, shared=False)
        yard = self

        @self.task(base=FairTask, tenant="user", bind=True, name="yard.work", max_retries=2)
        def work(self, user=None, wait=False, fail_times=0):
            with yard.meter.around(user):
                if wait:
                    assert yard.permits.acquire(timeout=at_most(20))
                if self.request.retries < fail_times:
                    # Celery publishes a retry before it stores the state RETRY: a retry that ran
                    # soon could be overtaken by that state, and nobody would see its end.
                    raise self.retry(countdown=0.5, exc=ValueError("again"))
                return self.request.retries

        @self.task(base=FairTask, name="yard.total")
        def total(numbers):
            yard.calls.append(numbers)
            return sum(numbers)

        @self.task(name="yard.plain")
        def plain(answer):
            yard.calls.append(answer)

        @self.task(base=FairTask, tenant="user", name="yard.parent")
        def parent(user=None):
            return work.delay(user).id

        def carried(self, how="ok"):
            header, again = self.request.get("fairness") or {}, self.request.retries
            keys = sorted(each["key"] for each in header.get("limits") or ())
            span = span_attributes(self, (), {}, yard.fairness.settings)
            facts = (header.get("tenant"), keys, bool(header.get("scheduled")))
            yard.calls.append((self.name, how, again, *facts, span.get("fairness.tenant")))
            if how == "retry" and not again:
                raise self.retry(countdown=0.05)
            if how == "child":
                yard.carried.delay()
            if how.startswith("429") and how not in yard.limited:
                yard.limited.add(how)
                raise RateLimitExceeded(retry_after=1)

        self.carried = self.task(base=FairTask, bind=True, name="yard.carried")(carried)
        self.plainly = self.task(bind=True, name="yard.plainly")(carried)
        self.work, self.total, self.plain, self.parent = work, total, plain, parent

    def held(self, user: str) -> int:
        return self.fairness.limits.inspect(f"tenant:{user}").held

    def rejected(self) -> int:
        return sum(self.fairness.stats.rejections().tiers.values())


@pytest.fixture
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the worker from setting up the logging of the whole test process."""

    def leave_it_alone(**_: Any) -> None:
        pass

    for name in ("_MP_FORK_LOGLEVEL_", "_MP_FORK_LOGFILE_", "_MP_FORK_LOGFORMAT_"):
        monkeypatch.setenv(name, "")
    signals.setup_logging.connect(leave_it_alone, weak=False)
    yield
    signals.setup_logging.disconnect(leave_it_alone)


@pytest.fixture
def yard(
    request: pytest.FixtureRequest,
    own_logging: None,
    redis_url: str,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Yard]:
    for place, name in ((_state, "default_app"), (_state._tls, "current_app")):
        monkeypatch.setattr(place, name, getattr(place, name, None), raising=False)
    # Nobody subscribes to results: the subscription of a forgotten result outlives the test.
    monkeypatch.setattr(ResultConsumer, "consume_from", lambda self, task_id: None)
    # A test may ask for "fairredis" by an indirect parameter.
    fair = getattr(request, "param", "redis") == "fairredis"
    broker = f"fair{redis_url}" if fair else redis_url
    app = Celery("yard", broker=broker, backend=redis_url, set_as_current=False)
    app.conf.update(
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_transport_options={} if fair else {"polling_interval": 0.05},
        fairness={"snooze_seconds": SNOOZE_SECONDS, "snooze_jitter_seconds": 0},
    )
    fairness = Fairness(app, {})
    with redis_server.client(decode_responses=True) as client:
        made = Yard(app, fairness, client)
        app.finalize()
        with start_worker(
            app,
            pool="threads",
            concurrency=8,
            perform_ping_check=False,
            shutdown_timeout=at_most(20),
        ) as worker:
            try:
                yield made
                eventually(lambda: all(count == 0 for count in made.meter.running.values()))
            finally:
                # Nobody waits for a permit that does not come.
                made.permits.release(10_000)
        # A test's worker is not a process that ends: its pool would stay.
        worker.pool.executor.shutdown(wait=True)
        fairness.close()
        app.close()
