"""The consumer's step that connects a worker to its session with Redis.

It adds the request mixin to every task with any base class, and sets the number of places that
the pool has. When the worker stops, it ends the claims and sends every pending end.

Claims skip tasks that the worker does not have, and tasks at their rate limit. Both wait in Redis,
so they take no place in the worker, and the worker discards none of them. Celery handles messages
that were not claimed as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import bootsteps
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker.state import active_requests, requests, task_ready
from redis.exceptions import RedisError

from celery_fairness.compat.celery_app import is_set
from celery_fairness.config.worker_shares import NO_SHARES
from celery_fairness.scheduler.types import Verdict
from celery_fairness.wiring import find
from celery_fairness.worker.claimed.begin import send_begins
from celery_fairness.worker.claimed.claimed_request import ClaimedRequestMixin
from celery_fairness.worker.claimed.message_guard import MessageGuard
from celery_fairness.worker.claimed.reconnect import reconnect_quickly
from celery_fairness.worker.claimed.unstarted_tasks import take_back, tasks_kept
from celery_fairness.worker.message_check import MessageInvalid
from celery_fairness.worker.outcome_collector import OutcomeCollector

#: How often the pool checks for dead children, in seconds. Celery checks every five seconds, and a
#: dead child's slot would stay taken until then.
MAINTAIN_POOL_SECONDS = 0.5
#: Celery's multiplier if the user sets none. Then a claim takes only tasks that have a free place.
DEFAULT_MULTIPLIER = 4
#: The number of places that Celery's multiplier 0 stands for.
UNLIMITED = 2**31


class ClaimStep(bootsteps.StartStopStep):
    """Part of the consumer of a worker whose broker claims fairly."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        update, discard = consumer.update_strategies, consumer.on_unknown_task
        make_bucket = consumer.bucket_for_task
        guard = MessageGuard(consumer)

        def update_strategies() -> Any:
            for task in consumer.app.tasks.values():
                task.Request = ClaimedRequestMixin.before(task.Request)
            # Celery's request classes, which are made next, keep a function of the pool.
            send_begins(consumer.pool)
            updated = update()
            if self._session is not None:
                self._session.task_filter.take_again(consumer.strategies)
            return updated

        def on_unknown_task(body: Any, message: Any, error: Exception) -> None:
            leave = getattr(message.channel, "leave_to_others", None)
            if leave is not None and leave(message):
                return
            if not guard.takes(message, MessageInvalid("this worker does not have its task")):
                discard(body, message, error)

        def bucket_for_task(task: Any) -> Any:
            bucket = make_bucket(task)
            if self._session is None:
                return bucket
            limited = bucket is not None and not consumer.disable_rate_limits
            self._session.task_filter.limit(task.name, bucket.fill_rate if limited else 0.0)
            # With a bucket, Celery would keep waiting tasks in the worker, and they would take
            # places.
            return None

        close = consumer.on_close

        def on_close(stops: bool) -> None:
            with tasks_kept(consumer.pool if self._session is not None else None, written=stops):
                close()

        consumer.on_close = partial(on_close, stops=False)
        # Celery calls the first one only after a lost connection, and the second one at a stop.
        consumer.blueprint.on_close = partial(on_close, stops=True)
        # Celery calls these two at the start and after a restart of the pool.
        consumer.update_strategies = update_strategies
        consumer.on_unknown_task = on_unknown_task
        # Celery also calls this one for every new rate limit.
        consumer.bucket_for_task = bucket_for_task
        reconnect_quickly(consumer, had_connection=lambda: self._session is not None)

        self._session: Any = None
        self._timer: Any = None
        self._collector: OutcomeCollector | None = None

    def start(self, consumer: Any) -> None:
        """Begin to claim, up to the number of places in the pool."""
        session = self._session = getattr(consumer.connection.default_channel, "session", None)
        consumer.reset_rate_limits()
        if session is None:
            return
        session.task_filter.take_again(consumer.strategies)
        fairness = find(consumer.app)
        if fairness is not None:
            session.renewals.on_memory_lost = fairness.settings_publisher.publish_again
            # A stock producer has no resolver, so its header must not choose the tier.
            session.completed = fairness.stamp.completed
        session.renewals.on_leases_lost = partial(_end_bodies_soon, consumer)
        session.body_blocks_loop = isinstance(consumer.pool, SoloPool)
        consumer.task_consumer.channel.serves_worker = True
        multiplier = _multiplier(consumer)
        shares = NO_SHARES if fairness is None else fairness.shares
        places_by_queue = {queue: each * multiplier for queue, each in shares.slots.items()}
        spare = 0 if fairness is None else fairness.settings.lending_spare
        session.start(_places(consumer, multiplier), places_by_queue, shares.borrow, spare)
        if fairness is not None:
            owner = consumer.task_consumer.channel.claimant.owner
            status = partial(fairness.announcement, consumer.controller, owner)
            session.renewals.announce(status, fairness.installation.declared_words())
        if consumer.hub is not None:

            def maintain() -> None:
                consumer.pool.maintain_pool()
                # The loop may read the begin of a body after the thread found its lease ended.
                _end_bodies(consumer)
                _give_back_without_place(consumer, session)

            self._timer = consumer.hub.call_repeatedly(MAINTAIN_POOL_SECONDS, maintain)
        if self._collector is None:
            self._collector = OutcomeCollector(consumer, session.next_outcome)
            self._collector.start()

    def stop(self, _consumer: Any) -> None:
        """Claim no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session is not None:
            self._session.stop()

    def close(self, parent: Any) -> None:
        """Claim no more, before the worker waits for anything else."""
        self.stop(parent)

    def shutdown(self, consumer: Any) -> None:
        """Reset the session: this process may still consume without a worker."""
        self.stop(consumer)
        if self._collector is not None:
            self._collector.stop()
            self._collector = None
        if self._session is not None:
            # If the call fails, the worker stays listed for one more lease.
            with contextlib.suppress(RedisError, OSError):
                self._session.renewals.withdraw(self._session.call)
            self._session.slots = None
            # `at_once` stays: a body that the pool could not stop ends after this, and then the
            # process ends too soon for the thread that would send its end.
            self._session.stopping = self._session.body_blocks_loop = False
            self._session.task_filter.forget()


def _give_back_without_place(consumer: Any, session: Any) -> None:
    """Give back the newest claimed tasks for which the pool has become too small.

    No process would ever take them, and the worker would renew their leases for ever.
    """
    excess = session.lease_table.places - session.slots()
    for request in reversed(list(requests.values()) if excess > 0 else []):
        held = getattr(request, "_held", None)
        if excess <= 0 or held is None or held.ended or held.begun:
            continue
        if held.in_pool and not take_back(consumer.pool, request):
            continue
        session.lease_table.end(held, Verdict.HEAD, begun=False)
        request.message.channel.acknowledged(request.message)
        task_ready(request)
        excess -= 1


def _end_bodies_soon(consumer: Any) -> None:
    """Let the loop end bodies; from any thread."""
    if consumer.hub is not None:
        consumer.hub.call_soon(_end_bodies, consumer)


def _end_bodies(consumer: Any) -> None:
    """End late-acked bodies whose leases have ended, because another worker runs their tasks."""
    for request in list(active_requests):
        held = getattr(request, "_held", None)
        if held is not None and held.lost and request.task.acks_late:
            # Not every pool supports this, and the process may have ended already.
            with contextlib.suppress(NotImplementedError, OSError):
                request.cancel(consumer.pool, emit_retry=False)


def _multiplier(consumer: Any) -> int:
    """Return the number of tasks to claim for each place of the pool."""
    app, multiplier = consumer.app, int(consumer.prefetch_multiplier)
    given = is_set(app, "worker_prefetch_multiplier") or multiplier != DEFAULT_MULTIPLIER
    if not given or app.conf.get("worker_disable_prefetch"):
        return 1
    return multiplier


def _places(consumer: Any, multiplier: int) -> Callable[[], int]:
    """Return a function for the number of places; claims call it at every turn."""
    scaler = getattr(consumer.controller, "autoscaler", None)

    def places() -> int:
        # An autoscaler grows the pool only when there are more tasks than processes.
        most = 0 if scaler is None else scaler.max_concurrency
        processes = max(int(consumer.pool.num_processes), most)
        if processes <= 0:
            return 0
        return processes * multiplier or UNLIMITED

    return places
