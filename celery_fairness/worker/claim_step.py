"""The consumer's step that ties a worker to the book of its claims.

It puts the request mixin on every task, whatever its base class, says how many places the pool has,
and sees that nothing is claimed, and nothing that ended stays untold, once the worker stops.

What the worker does not know, and what is at its rate limit, its claims pass over: neither waits in
the worker, nor is discarded by it. Messages that were not claimed are Celery's matter as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import bootsteps
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.worker.state import active_requests
from redis.exceptions import RedisError

from celery_fairness.config.worker_shares import NO_SHARES
from celery_fairness.wiring import find
from celery_fairness.worker.claimed_request import claimed_request
from celery_fairness.worker.outcome_reporter import OutcomeReporter
from celery_fairness.worker.pool_handoff import tasks_kept

#: So often the pool is asked whether a child is gone, in seconds. Celery asks every five seconds,
#: and a dead child's slot would stay taken so long.
LOOK_FOR_THE_LOST_SECONDS = 0.5
#: Celery's multiplier where the user sets none: then nothing is claimed before its place is free.
DEFAULT_MULTIPLIER = 4
#: What Celery's multiplier 0 means.
WITHOUT_END = 2**31


class ClaimStep(bootsteps.StartStopStep):
    """Part of the consumer of a worker whose broker claims fairly."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        update, discard = consumer.update_strategies, consumer.on_unknown_task
        make_bucket = consumer.bucket_for_task

        def update_strategies() -> Any:
            for task in consumer.app.tasks.values():
                task.Request = claimed_request(task.Request)
            updated = update()
            if self._home is not None:
                self._home.kinds.know(consumer.strategies)
            return updated

        def on_unknown_task(body: Any, message: Any, error: Exception) -> None:
            leave = getattr(message.channel, "leave_to_others", None)
            if leave is None or not leave(message):
                discard(body, message, error)

        def bucket_for_task(task: Any) -> Any:
            bucket = make_bucket(task)
            if self._home is None:
                return bucket
            limited = bucket is not None and not consumer.disable_rate_limits
            self._home.kinds.limit(task.name, bucket.fill_rate if limited else 0.0)
            # There, tasks would hold places.
            return None

        close = consumer.on_close

        def on_close(stops: bool) -> None:
            with tasks_kept(consumer.pool if self._home is not None else None, written=stops):
                close()

        consumer.on_close = partial(on_close, stops=False)
        # Celery calls the one after a lost connection, and only then; the other when it stops.
        consumer.blueprint.on_close = partial(on_close, stops=True)
        # Celery calls it at the start, and again when the pool is restarted.
        consumer.update_strategies = update_strategies
        consumer.on_unknown_task = on_unknown_task
        # This one with every new rate limit too.
        consumer.bucket_for_task = bucket_for_task

        self._home: Any = None
        self._timer: Any = None
        self._reporter: OutcomeReporter | None = None

    def start(self, consumer: Any) -> None:
        """Claim as many tasks as the pool has places."""
        home = self._home = getattr(consumer.connection.default_channel, "home", None)
        consumer.reset_rate_limits()
        if home is None:
            return
        home.kinds.know(consumer.strategies)
        fairness = find(consumer.app)
        if fairness is not None:
            home.renewals.on_memory_lost = fairness.republish
        home.renewals.on_leases_lost = partial(_end_bodies, consumer)
        home.body_blocks_loop = isinstance(consumer.pool, SoloPool)
        # Bodies of threads begin behind the loop's back.
        home.book.noted = home.book.changed if isinstance(consumer.pool, ThreadPool) else _nothing
        consumer.task_consumer.channel.serves_worker = True
        multiplier = _multiplier(consumer)
        shares = NO_SHARES if fairness is None else fairness.shares
        parts = {queue: each * multiplier for queue, each in shares.slots.items()}
        home.start(_places(consumer, multiplier), parts, shares.borrow)
        if fairness is not None:
            home.renewals.announce(fairness.announcement(consumer.hostname))
        if consumer.hub is not None:
            maintain = consumer.pool.maintain_pool
            self._timer = consumer.hub.call_repeatedly(LOOK_FOR_THE_LOST_SECONDS, maintain)
        if self._reporter is None:
            self._reporter = OutcomeReporter(consumer, home.next_outcome)
            self._reporter.start()

    def stop(self, _consumer: Any) -> None:
        """Claim no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._home is not None:
            self._home.stop()

    def close(self, parent: Any) -> None:
        """Claim no more, before the worker waits for anything else."""
        self.stop(parent)

    def shutdown(self, consumer: Any) -> None:
        """Leave the process as it was before the worker: it may consume by itself."""
        self.stop(consumer)
        if self._reporter is not None:
            self._reporter.stop()
            self._reporter = None
        if self._home is not None:
            # Without an answer the worker is listed for one more lease.
            with contextlib.suppress(RedisError, OSError):
                self._home.renewals.withdraw(self._home.call)
            self._home.slots = None
            self._home.stopping = self._home.at_once = self._home.body_blocks_loop = False
            self._home.kinds.forget()


def _end_bodies(consumer: Any, lost: list[Any]) -> None:
    """End late-acked bodies whose leases have ended, where the pool can: they run elsewhere."""

    def end() -> None:
        for request in list(active_requests):
            if getattr(request, "_held", None) in lost and request.task.acks_late:
                # Not every pool can, and its process may be gone by itself.
                with contextlib.suppress(NotImplementedError, OSError):
                    request.cancel(consumer.pool, emit_retry=False)

    if consumer.hub is not None:
        consumer.hub.call_soon(end)


def _nothing() -> None:
    """The loop turns anyway."""


def _multiplier(consumer: Any) -> int:
    """Return how many tasks may be claimed for each place of the pool."""
    conf, multiplier = consumer.app.conf, int(consumer.prefetch_multiplier)
    asked = conf.value_set_for("worker_prefetch_multiplier") or multiplier != DEFAULT_MULTIPLIER
    if not asked or conf.worker_disable_prefetch:
        return 1
    return multiplier


def _places(consumer: Any, multiplier: int) -> Callable[[], int]:
    """Return what says how many tasks may be claimed at once; it is asked at every turn."""
    scaler = getattr(consumer.controller, "autoscaler", None)

    def places() -> int:
        # A scaler grows the pool when more tasks are there than processes.
        most = 0 if scaler is None else scaler.max_concurrency
        return max(int(consumer.pool.num_processes), most) * multiplier or WITHOUT_END

    return places
