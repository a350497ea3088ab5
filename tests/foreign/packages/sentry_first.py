"""A plugin of pytest that starts Sentry before Celery's worker is imported, as programs do.

Sentry patches Celery's tracer, and the worker's modules keep what they find at their import.
"""

from __future__ import annotations

from typing import Any

import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration

#: What Sentry's client would send: errors and transactions.
SEEN: list[dict[str, Any]] = []


def _keep(event: dict[str, Any], _hint: Any) -> None:
    SEEN.append(event)


sentry_sdk.init(
    "http://public@127.0.0.1:1/1",
    integrations=[CeleryIntegration()],
    before_send=_keep,
    before_send_transaction=_keep,
    traces_sample_rate=1.0,
    auto_session_tracking=False,
    default_integrations=False,
)
