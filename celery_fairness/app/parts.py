"""The composition root of one app: it makes all parts and connects them.

The settings are read at the first use. A connection is opened at its first use, too.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from celery_fairness import wiring
from celery_fairness.app import broker_setup, signals
from celery_fairness.app.publish_settings import publish_queues, publish_tiers
from celery_fairness.app.purge import purge_parked_too
from celery_fairness.app.worker_setup import (
    broker_name,
    enforcement_text,
    prepare_reconnect,
    prepare_worker,
)
from celery_fairness.compat.celery_app import mark_successors
from celery_fairness.config.environment import load_settings
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.worker_shares import NO_SHARES
from celery_fairness.control.health.doctor.diagnosis import at_start
from celery_fairness.control.health.doctor.facts import backend_name
from celery_fairness.control.health.events_api import EventsApi, source_of
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.views import WorkerStatus
from celery_fairness.control.key.shared_changes import SharedChanges
from celery_fairness.control.tenant.rerouting import Rerouting
from celery_fairness.errors import SettingsError, got, misspelled
from celery_fairness.limiter.partitioned import connect
from celery_fairness.limiter.put_trace import PutTrace
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.message.redelivery import longest_countdown_seconds, visibility_seconds
from celery_fairness.message.router import TierRouter
from celery_fairness.message.stamp import Stamp
from celery_fairness.store.address import Address, address_from_broker, address_from_url
from celery_fairness.store.library import LibraryUnusable
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport.options import key_prefixes
from celery_fairness.util.ids import new_id
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.claimed.begin import Begins
from celery_fairness.worker.event_forwarder import EventForwarder
from celery_fairness.worker.gate.celery_counts import PoolChild
from celery_fairness.worker.gate.gate import Gate
from celery_fairness.worker.gate.lease_renewer import LeaseRenewer
from celery_fairness.worker.gate.promoter import Promoter
from celery_fairness.worker.gate.resender import Resender
from celery_fairness.worker.looking_thread import LookingThread
from celery_fairness.worker.outcome_collector import OutcomeCollector
from celery_fairness.worker.parts_step import WorkerParts
from celery_fairness.worker.repair import Repairer
from celery_fairness.worker.settings_publisher import SettingsPublisher
from celery_fairness.worker.stopping_flag import StoppingFlag

logger = logging.getLogger("celery_fairness")

#: Longest wait of a producer for a connection, and for an answer, in seconds. A Redis that hangs
#: costs one of the two.
PRODUCER_SECONDS = 0.08
#: The same in workers, in seconds.
WORKER_SECONDS = 2.0
#: How long Redis remembers deliveries if the broker redelivers at once, in seconds.
FORGET_COPIES_SECONDS = 600.0
#: EX_UNAVAILABLE of sysexits.h: the server cannot serve this version.
UNAVAILABLE = 69


class Parts:
    """The parts that tasks, workers and operators of one app use.

    The arguments are those of :class:`~celery_fairness.Fairness`. A former ``Fairness`` of the app
    is closed.
    """

    def __init__(self, app: Any, environ: Mapping[str, str]) -> None:
        self.app = app
        self.fairness: Any = None
        self.notices = Notices(logger)
        self.environ = environ
        self._lock = threading.RLock()
        # Ids of leases begin with it.
        self.worker = new_id(6)
        self.router = TierRouter(self)
        self._stopping = StoppingFlag()
        self._limiters: list[Limiter] = []
        self._resenders: list[Resender] = []
        #: The threads of the worker that read Redis.
        self._threads: list[LookingThread] = []
        # Whether ``celery worker`` has already prepared the worker that is made next.
        self._prepared = False
        self._pool_child = PoolChild()
        self._worker_started: datetime | None = None
        self.consumer: Any = None
        self.shares = NO_SHARES
        self.settings_publisher = SettingsPublisher(self.notices)
        before = wiring.find(app)
        if before is not None:
            before.close()
        wiring.wire(app, self)
        mark_successors(app)
        self._disconnect = signals.connect(self)
        app.on_after_configure.connect(self._on_configured, weak=False)
        app.on_after_finalize.connect(self._on_finalised, weak=False)
        if app.configured:
            self._on_configured()
        if app.finalized:
            self._on_finalised()

    def close(self) -> None:
        """Undo the wiring and close the connections."""
        self._disconnect()
        wiring.wire(self.app, None)
        self._stop_threads()
        if "installation" in vars(self):
            self.installation.close()
        for resender in self._resenders:
            resender.close()
        if "tier_cache" in vars(self):
            self.tier_cache.close()
        for limiter in self._limiters:
            limiter.close()

    @cached_property
    def settings(self) -> Settings:
        """The settings in force in this process."""
        with self._lock:
            return load_settings(self._configured(), self.environ)

    def _configured(self) -> Any:
        """Return ``app.conf.fairness``, with its password hidden from a ``repr`` of the app."""
        from pydantic import SecretStr

        values: Any = self.app.conf.get("fairness")
        if values is None:
            names = (name for name in self.app.conf if misspelled(name, ("fairness",)))
            if (name := next(names, None)) is not None:
                raise SettingsError(f"fairness: expected this name, got: {name!r}")
            values = {}
        values = values or {}
        if not isinstance(values, Mapping):
            raise SettingsError(f"fairness: expected a mapping of settings, got: {got(values)}")
        url = values.get("redis_url")
        if not isinstance(url, str):
            return values
        if isinstance(values, dict):
            # In place, because a Django settings module holds the same object.
            values["redis_url"] = SecretStr(url)
            return values
        self.app.conf.fairness = {**values, "redis_url": SecretStr(url)}
        return self.app.conf.fairness

    @cached_property
    def address(self) -> Address:
        """The address of the limiter's Redis.

        Raises:
            SettingsError: No address is set and the broker is not Redis.
        """
        url = self.settings.redis_url
        if url is not None and not self.claims_fairly:
            return address_from_url(url.get_secret_value())
        return replace(address_from_broker(self.app), of_broker=self.claims_fairly)

    @cached_property
    def claims_fairly(self) -> bool:
        """Whether the app's broker claims fairly, so that no gate is needed."""
        return broker_setup.claims_fairly(self.app)

    def make_limiter(self, timeout_seconds: float = WORKER_SECONDS, retries: int = 1) -> Limiter:
        """Make a limiter with connections of its own."""
        before = ""
        if self.claims_fairly:
            options = self.app.conf.broker_transport_options or {}
            given = str(options.get("global_keyprefix") or "")
            before = key_prefixes(self.settings, given, self.address.is_cluster).ours
        count = self.settings.partitions if self.claims_fairly else 1
        partitions = Partitions(self.settings.namespace, before, count)
        connection = connect(self.address, partitions, self.settings, timeout_seconds, retries)
        connection.check()
        redelivery = visibility_seconds(self.app) or FORGET_COPIES_SECONDS
        limiter = Limiter(
            connection,
            self.settings,
            redelivery_seconds=redelivery,
            key_prefix=before,
            broker=broker_name(self.app),
            partitions=count,
        )
        self._limiters.append(limiter)
        return limiter

    @cached_property
    def limiter(self) -> Limiter:
        """The limiter of this process."""
        return self.make_limiter()

    @cached_property
    def tier_cache(self) -> TierCache:
        """Tiers in force and tiers of tenants."""
        quick = self.make_limiter(PRODUCER_SECONDS, retries=0)
        return TierCache(self.settings, lambda: quick, self.notices)

    @cached_property
    def stamp(self) -> Stamp:
        """Makes message headers."""
        return Stamp(self.settings, self.tier_cache, self.notices)

    @cached_property
    def puts(self) -> PutTrace:
        """Records the tasks that this app sends to another broker."""
        return PutTrace(self.settings, self.tier_cache)

    @cached_property
    def lease_renewer(self) -> LeaseRenewer:
        """Renews a worker's leases."""
        return LeaseRenewer(
            self.make_limiter,
            self.settings.lease_seconds,
            self.notices,
            self.settings_publisher.publish_again,
        )

    @cached_property
    def promoter(self) -> Promoter:
        """Sends parked tasks back to the broker."""
        # It needs connections of its own, because it runs in a thread of its own.
        return Promoter(
            self.make_limiter,
            self._make_resender().promote,
            self.settings.enforcement,
            self.notices,
        )

    @cached_property
    def resender(self) -> Resender:
        """Sends the messages of tasks again."""
        return self._make_resender()

    def _make_resender(self) -> Resender:
        made = Resender(self.app, self.limiter, self._stopping, self.router.again)
        self._resenders.append(made)
        return made

    @cached_property
    def gate(self) -> Gate:
        """Checks the limits before a task's body runs."""
        return Gate(
            self.settings,
            self.limiter,
            self.tier_cache,
            self.resender,
            self.notices,
            self.lease_renewer.ended,
            longest_countdown_seconds(self.app),
            self._pool_child.not_begun,
        )

    @cached_property
    def begins(self) -> Begins:
        """Sends the begins of claimed tasks."""
        return Begins(self.limiter, self._stopping, self.notices)

    @cached_property
    def installation(self) -> Installation:
        """The installation that operators look at and change."""
        return Installation(
            self.app,
            self.settings,
            self.claims_fairly,
            self.limiter,
            self.tier_cache,
            self.environ,
        )

    @cached_property
    def events(self) -> EventsApi:
        """The history of limits, tasks and operators' changes."""
        return EventsApi(self.installation.reader, self._event_source)

    @cached_property
    def _event_source(self) -> str:
        address = self.installation.limiter.connection.address
        return source_of(self.app.main or "celery", address)

    def _on_configured(self, **_: Any) -> None:
        self._configured()
        self.install_router()
        self.app.steps["worker"].add(WorkerParts)
        broker_setup.prepare_app(self.app, lambda: self.settings)
        if not self.claims_fairly:
            purge_parked_too(self.app)

    def install_router(self) -> None:
        """Put the router before the user's own routes, which may be newer than the last call."""
        conf = self.app.conf
        routes = conf.task_routes
        given = routes if isinstance(routes, (list, tuple)) else [routes] if routes else []
        if not (given and given[0] is self.router):
            others = [route for route in given if not isinstance(route, TierRouter)]
            conf.task_routes = [self.router, *others]

    def _on_finalised(self, **_: Any) -> None:
        # The settings are not read here: Celery's signal would swallow their error.
        self._configured()
        self.install_router()

    def on_worker_init(self) -> None:
        """Prepare a worker before it reads its options; signal ``celeryd_init``.

        Raises:
            SystemExit: A setting is invalid, or the server cannot load the function library.
                Celery would log any other error and continue.
        """
        try:
            self._prepare_worker()
        except SettingsError as error:
            print(f"celery_fairness: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        except LibraryUnusable as error:
            print(f"celery_fairness: {error}", file=sys.stderr)
            raise SystemExit(UNAVAILABLE) from None
        self._prepared = True

    def on_worker_made(self) -> None:
        """Prepare a worker that the program ``celery worker`` did not make.

        Raises:
            SettingsError: A setting is invalid.
            LibraryUnusable: The server cannot load the function library.
        """
        if not self._prepared:
            self._prepare_worker()
        self._prepared = False

    def _prepare_worker(self) -> None:
        self._stopping.lower_it()
        # Several workers may be forks of the process that made the app.
        self.worker = new_id(6)
        # A missing or wrong address is an error now, not at the first task.
        self.make_limiter().load_library()
        prepare_worker(self.app)
        if self.claims_fairly:
            broker_setup.prepare_worker(self.app)
        self.tier_cache.prepare()

    def on_worker_start(self, worker: Any) -> None:
        """Start the threads and publish the tiers; ``WorkerParts``."""
        self._worker_started = datetime.now(UTC)
        prepare_reconnect(self.app, worker.pool)
        logger.info("the limiter's Redis is %s", self.address)
        for symptom in at_start(self.installation):
            logger.warning("%s", symptom)
        enforces = self.settings.enforcement is Enforcement.ON
        level = logging.INFO if enforces else logging.WARNING
        logger.log(level, "%s", enforcement_text(self.settings, self.claims_fairly))
        if not self.claims_fairly:
            self.lease_renewer.worker = partial(self.announcement, worker, self.worker)
            self.lease_renewer.limits = self.installation.declared_words()
            self.lease_renewer.start()
            self.promoter.start()
        if not self._threads:
            self._threads = [self._make_forwarder(worker)]
            if self.limiter.partitions.are_several:
                changes = SharedChanges(self.installation)
                self._threads.append(Repairer(changes.repair))
                # The memory of a partition may be lost alone.
                self.settings_publisher.add("operators", changes.repair_again)
            if not self.claims_fairly:
                # Its connection is its own, because it runs in a thread of its own.
                own = self.make_limiter()
                self._threads.append(OutcomeCollector(worker.consumer, own.next_outcome))
            for thread in self._threads:
                thread.start()
        self.settings_publisher.add("settings", self._publish_settings)
        self.settings_publisher.start()

    def announcement(self, worker: Any, owner: str) -> str:
        """Return the status of this process's worker, as it is stored in Redis.

        ``owner`` is its name as the owner of leases.
        """
        consumed = getattr(worker.consumer, "task_consumer", None) or self.app.amqp
        queues = (getattr(each, "name", each) for each in consumed.queues)
        return WorkerStatus(
            name=worker.hostname,
            pid=os.getpid(),
            path="dispatch" if self.claims_fairly else "gate",
            enforcement=self.settings.enforcement.value,
            owner=owner,
            places=worker.pool.num_processes,
            queues=tuple(sorted(queues)),
            shares=dict(self.shares.slots),
            lends=self.shares.borrow,
            app=self.app.main or "",
            backend=backend_name(self.app),
            lease_seconds=self.settings.lease_seconds,
            started_at=self._worker_started,
        ).model_dump_json()

    def on_worker_stopping(self) -> None:
        """Let rejected tasks that wait to be sent back stop; signal ``worker_shutting_down``."""
        self._stopping.raise_it()
        if self.claims_fairly:
            broker_setup.stop_claiming()

    def on_worker_stopped(self) -> None:
        """Stop the threads and end the remaining leases; ``WorkerParts``."""
        self.lease_renewer.stop(self.limiter)
        if self.claims_fairly:
            broker_setup.worker_stopped()
        else:
            self.promoter.stop()
        self._stop_threads()

    def _make_forwarder(self, worker: Any) -> EventForwarder:
        def sends_events() -> bool:
            dispatcher = getattr(worker.consumer, "event_dispatcher", None)
            return dispatcher is not None and dispatcher.enabled

        def dispatcher() -> Any:
            return self.app.events.default_dispatcher(hostname=worker.hostname)

        reader = self.installation.reader
        return EventForwarder(sends_events, dispatcher, reader, self._event_source)

    def _stop_threads(self) -> None:
        self.settings_publisher.stop()
        for thread in self._threads:
            thread.stop()
        self._threads = []

    def on_pool_child(self) -> None:
        """Drop the connections of the parent process; signal ``worker_process_init``."""
        self.resender.forget_connections()
        self._pool_child.begin()

    def _publish_settings(self) -> None:
        before = publish_tiers(self.limiter, self.settings.tiers)
        publish_queues(self.limiter, self.settings.queues)
        Rerouting(self.installation).of_changed_tiers(before)
