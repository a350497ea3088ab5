"""The start of a worker: it sets queues and Celery's options, and warns about risky settings."""

from __future__ import annotations

from typing import Any

from celery.concurrency.thread import TaskPool as ThreadPool
from kombu import Connection

from celery_fairness.config.settings import Enforcement, Settings, without_effect
from celery_fairness.config.tenants import key_hash
from celery_fairness.message.task_options import service_queues

#: ``worker_lost_wait`` unless the user sets it, in seconds. With billiard's ten seconds a killed
#: child would keep its slot that long.
WORKER_LOST_WAIT_SECONDS = 0.5
#: kombu's default on Redis, in seconds.
REDIS_VISIBILITY_SECONDS = 3600.0
#: The part of the visibility timeout that a countdown may take.
VISIBILITY_SHARE = 0.9


def visibility_seconds(app: Any) -> float | None:
    """Return the time after which the broker delivers an unacknowledged message again.

    None is never.
    """
    options = app.conf.broker_transport_options or {}
    value = options.get("visibility_timeout")
    if value is None:
        driver = app.connection_for_write().get_transport_cls().driver_type
        value = {"redis": REDIS_VISIBILITY_SECONDS, "sqs": 1800.0}.get(driver)
    return None if value is None else float(value)


def longest_countdown_seconds(app: Any) -> float | None:
    """Return the longest countdown whose message is not delivered twice; None is no bound."""
    visibility = visibility_seconds(app)
    return None if visibility is None else visibility * VISIBILITY_SHARE


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


def startup_warnings(app: Any, settings: Settings) -> list[str]:
    """Return a sentence for each legal setting that causes trouble."""
    warnings = []
    longest = longest_countdown_seconds(app)
    snooze = settings.snooze_seconds + settings.snooze_jitter_seconds
    if longest is not None and snooze > longest:
        warnings.append(
            f"snooze_seconds + snooze_jitter_seconds is {snooze:g} s, and the broker delivers a "
            f"waiting message again after {longest / VISIBILITY_SHARE:g} s (visibility_timeout): "
            f"countdowns are cut to {longest:g} s"
        )
    if app.conf.get("worker_eta_task_limit"):
        warnings.append(
            f"worker_eta_task_limit is {app.conf.worker_eta_task_limit}: rejected tasks wait in "
            "the worker with a countdown, and when that many wait the worker takes no other task; "
            "unset it"
        )
    return warnings


def effect_warnings(settings: Settings, claims_fairly: bool) -> list[str]:
    """Return a sentence for each setting that is set and has no effect on this worker's path.

    ``broker_setup.prepare_worker`` warns about ``redis_url`` and ``tier_on_limit``.
    """
    own_warning = {"redis_url", "tier_on_limit"}
    names = [name for name in without_effect(settings, claims_fairly) if name not in own_warning]
    path = "on fairredis" if claims_fairly else "at a gate"
    return [f"{name} is set and has no effect {path}; unset it" for name in names]


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
            f"rejects none; {stays}"
        )
    return f"enabled is false: this worker enforces no limit; {stays}"


def prepare_worker(app: Any) -> None:
    """Make a worker consume the queues of the app's services and notice dead children soon.

    With ``-Q`` it consumes exactly the queues of that option.
    """
    if not app.conf.value_set_for("worker_lost_wait"):
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
    if (pool.is_green or isinstance(pool, ThreadPool)) and not app.conf.value_set_for(name):
        app.conf[name] = False
