"""The set-up of an app, its producers and workers for the broker ``fairredis://``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery_fairness.config.settings import Settings
from celery_fairness.transport import TRANSPORTS, register
from celery_fairness.transport.options import OPTION, SettingsOption
from celery_fairness.transport.session import sessions

logger = logging.getLogger("celery_fairness")

#: The start of our schemes in broker URLs.
SCHEME = "fair"
#: The start of ``broker_transport`` if it names one of our transports.
_TRANSPORT = "celery_fairness.transport"


def claims_fairly(app: Any) -> bool:
    """Return whether the broker that the app's workers read is ours, without connecting."""
    return _is_ours(app, app.conf.broker_read_url)


def _is_ours(app: Any, url: Any) -> bool:
    if str(app.conf.broker_transport or "").startswith(_TRANSPORT):
        return True
    return _first(url).startswith(SCHEME)


def _first(url: Any) -> str:
    """Return the first of the broker's addresses, which stand in a list or in one text."""
    return url if isinstance(url, str) else next(iter(url or ()), "")


def prepare_app(app: Any, settings: Callable[[], Settings]) -> None:
    """Pass the settings to the app's connections, and make its workers claim.

    Args:
        app: The Celery app. It may read our broker, or write to it, or both.
        settings: Returns the settings; called at the first connection.
    """
    # A program may have taken away the finder that does it, or have a loader of an older form.
    register()
    conf = app.conf
    if conf.broker_transport == f"{_TRANSPORT}:Transport":
        # kombu does not pass the scheme to a transport that ``broker_transport`` names.
        for scheme, name in TRANSPORTS.items():
            if _first(conf.broker_read_url).startswith(f"{scheme.removeprefix(SCHEME)}://"):
                conf.broker_transport = f"{_TRANSPORT}:{name}"
    if claims_fairly(app) or _is_ours(app, conf.broker_write_url):
        options = conf.broker_transport_options or {}
        conf.broker_transport_options = {**options, OPTION: SettingsOption(settings)}
    if claims_fairly(app):
        from celery_fairness.worker.claimed.claim_step import ClaimStep

        app.steps["consumer"].add(ClaimStep)


def prepare_worker(app: Any) -> None:
    """Correct a setting that would lose tasks on this broker."""
    name = "worker_cancel_long_running_tasks_on_connection_loss"
    if app.conf.get(name):
        logger.warning(
            "%s is on and is ignored: a claimed task settles over the next connection, and "
            "cancelling it would only lose it",
            name,
        )
        app.conf[name] = False


def stop_claiming() -> None:
    """Claim nothing more in this process, because its worker is stopping."""
    for session in sessions():
        session.stopping = True


def worker_stopped() -> None:
    """Put back the tasks that the worker's pool, which has ended, did not begin."""
    for session in sessions():
        session.pool_gone()
