"""The start of a worker: it sets queues and Celery's options, and logs what is enforced."""

from __future__ import annotations

from typing import Any

from celery.concurrency.thread import TaskPool as ThreadPool
from kombu import Connection

from celery_fairness.compat.celery_app import is_set
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.config.tenants import key_hash
from celery_fairness.message.task_options import service_queues

#: ``worker_lost_wait`` unless the user sets it, in seconds. With billiard's ten seconds a killed
#: child would keep its slot that long.
WORKER_LOST_WAIT_SECONDS = 0.5


def broker_name(app: Any) -> str:
    """Return the identity of the app's broker: a hash of its addresses, without their secrets.

    Weakness: if workers use two names for one broker, it counts as two brokers.
    """
    broker = app.connection_for_write()
    options = broker.transport_options or {}
    places = {
        f"{str(one.hostname).lower()} {one.port or one.get_transport_cls().default_port} "
        f"{'' if one.virtual_host in (None, '/', '0') else one.virtual_host}"
        for one in (map(Connection, broker.alt) if broker.alt else [broker])
    }
    within = (options.get("master_name", ""), options.get("global_keyprefix", ""))
    return key_hash(repr((sorted(places), *within)))


def enforcement_text(settings: Settings, claims_fairly: bool) -> str:
    """Return a sentence about the limits that a worker enforces."""
    if settings.enforcement is Enforcement.ON:
        text = "enabled is true: this worker enforces limits"
        if claims_fairly or settings.tier_on_limit == "wait":
            return text
        least = settings.snooze_seconds
        return (
            f"{text}; a task that its tier rejects comes back after {least:g} to "
            f"{least + settings.snooze_jitter_seconds:g} s, even if a slot is free before: "
            'tier_on_limit = "wait" starts it at once'
        )
    stays = (
        "pauses, cool-downs and limits of 0 still hold"
        if claims_fairly
        else "pauses, cool-downs and limits of 0 do not hold either"
    )
    if settings.enforcement is Enforcement.OBSERVE:
        return (
            "enabled is 'observe': this worker counts the tasks that limits would reject, and "
            f"rejects none; {stays}; celery -A APP fairness observed shows the counts"
        )
    return f"enabled is false: this worker enforces no limit; {stays}"


def prepare_worker(app: Any) -> None:
    """Make a worker consume the queues of the app's services and notice dead children soon.

    With ``-Q`` it consumes exactly the queues of that option.
    """
    if not is_set(app, "worker_lost_wait"):
        app.conf.worker_lost_wait = WORKER_LOST_WAIT_SECONDS
    app.loader.import_default_modules()
    app.finalize()
    queues = app.amqp.queues
    # A worker that is made without ``celery worker`` has its queues already.
    if getattr(queues, "_consume_from", None) is not None:
        return
    for name in service_queues(app):
        # By lookup: it makes a missing queue of the type that the settings name.
        known = name in queues or queues.create_missing
        queues.select_add(queues[name] if known else name)


def prepare_reconnect(app: Any, pool: Any) -> None:
    """Make a worker keep its tasks when the connection to its broker is cut.

    After a cut Celery lowers the prefetch count, and raises it again with each ack. It sends that
    request from the code that acknowledges, and waits there for the answer. With threads and
    greenlets this code and the worker's loop read one connection at the same time, and each takes
    bytes of the other's answers. The worker hangs, loses the connection again, and loses tasks
    that were acknowledged early.
    """
    name = "worker_enable_prefetch_count_reduction"
    if (pool.is_green or isinstance(pool, ThreadPool)) and not is_set(app, name):
        app.conf[name] = False
