"""What an app's worker and producers need so that its broker claims fairly."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from celery_fairness.config.settings import Settings
from celery_fairness.errors import SettingsError
from celery_fairness.store.address import address_from_broker, address_from_url
from celery_fairness.transport import register
from celery_fairness.transport.session import homes

logger = logging.getLogger("celery_fairness")

#: Schemes of broker URLs that are ours begin so.
SCHEME = "fair"
#: What ``broker_transport`` begins with where it is ours.
_TRANSPORT = "celery_fairness.transport"
#: Which of our transports a stock scheme asks for.
_BY_SCHEME = {"rediss": "TLSTransport", "sentinel": "SentinelTransport"}


def claims_fairly(app: Any) -> bool:
    """Say whether the app's broker is ours, without connecting."""
    if str(app.conf.broker_transport or "").startswith(_TRANSPORT):
        return True
    return _broker_url(app).startswith(SCHEME)


def _broker_url(app: Any) -> str:
    url = app.conf.broker_read_url or app.conf.broker_url
    return url if isinstance(url, str) else ";".join(url or ())


def prepare_app(app: Any, settings: Callable[[], Settings]) -> None:
    """Make the app's connections know the settings, and its workers claim.

    Args:
        app: The Celery app.
        settings: Reads the settings, at the first connection.
    """
    from celery_fairness.worker.claim_step import ClaimStep

    register()
    if app.conf.broker_transport == f"{_TRANSPORT}:Transport":
        # kombu does not tell a transport that is named so what the scheme was.
        for scheme, name in _BY_SCHEME.items():
            if _broker_url(app).startswith(f"{scheme}://"):
                app.conf.broker_transport = f"{_TRANSPORT}:{name}"
    options = dict(app.conf.broker_transport_options or {})
    given = options.get("fairness")
    if not isinstance(given, SettingsOption):
        options["fairness"] = SettingsOption(settings, given or {})
        app.conf.broker_transport_options = options
    app.steps["consumer"].add(ClaimStep)


def prepare_worker(app: Any, settings: Settings) -> None:
    """Put right what would lose tasks on this broker, and say what is ignored."""
    name = "worker_cancel_long_running_tasks_on_connection_loss"
    if app.conf.get(name):
        logger.warning(
            "%s is on and is ignored: a claimed task settles over the next connection, and "
            "cancelling it would only lose it",
            name,
        )
        app.conf[name] = False
    if "visibility_timeout" in (app.conf.broker_transport_options or {}):
        logger.warning(
            "visibility_timeout of broker_transport_options is set and is ignored: on this broker "
            "the tasks of a worker that is gone come back when its leases end, after lease_seconds"
        )
    given = settings.redis_url
    if given is not None and address_from_url(given.get_secret_value()) != address_from_broker(app):
        logger.warning(
            "redis_url or FAIRNESS_REDIS_URL is set to another Redis than the broker's and is "
            "ignored: limits lie beside the queues on this broker"
        )
    if "tier_on_limit" in settings.model_fields_set and settings.tier_on_limit == "reschedule":
        logger.warning(
            "tier_on_limit is 'reschedule' and is ignored: on this broker a task over its tier's "
            "limit waits in Redis, where that costs nothing"
        )


def stop_claiming() -> None:
    """Claim nothing more in this process: its worker was told to stop."""
    for home in homes():
        home.stopping = True


def worker_stopped() -> None:
    """Give back what the pool of this process's worker, which is gone, has not begun."""
    for home in homes():
        home.pool_gone()


class SettingsOption(Mapping[str, Any]):
    """The transport option ``fairness``: the settings, read when a channel asks for them."""

    def __init__(self, settings: Callable[[], Settings], given: Mapping[str, Any]) -> None:
        self._settings = settings
        self._given = given

    def _values(self) -> dict[str, Any]:
        settings = self._settings()
        return {
            "namespace": settings.namespace,
            "lease_seconds": settings.lease_seconds,
            "enforcement": settings.enforcement.value,
            "default_tier": settings.default_tier,
            "default_limit": settings.tiers[settings.default_tier].concurrency,
            "max_deliveries": settings.max_deliveries,
            "fairness_by": settings.fairness_by,
            "snooze_seconds": settings.snooze_seconds,
            "tier_scope": settings.tier_scope,
            "no_tenant": settings.no_tenant,
            "priority_scope": settings.priority_scope,
            "priority_order": settings.priority_order,
            "waiting_of_tiers": tuple((n, t.max_waiting) for n, t in settings.tiers.items()),
            "waiting_of_queues": tuple((n, q.max_waiting) for n, q in settings.queues.items()),
            "partitions": tuple((n, q) for n, q in settings.queues.items() if q.partitioned),
            **self._given,
        }

    def __getitem__(self, key: str) -> Any:
        return self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        # By it kombu says whether two connections are one: apps of other settings have their own.
        try:
            values = repr(self._values())
        except SettingsError:
            values = ""
        digest = hashlib.sha256(values.encode(errors="replace")).hexdigest()
        return f"<settings of celery_fairness, {digest[:16]}>"

    def __json__(self) -> dict[str, Any]:
        # kombu's word for what remote control sends of it.
        values = self._values()
        return {**values, "partitions": [(n, asdict(q)) for n, q in values["partitions"]]}

    def __reduce__(self) -> Any:
        # A copy of the app's configuration holds what the settings were.
        return dict, (self._values(),)
