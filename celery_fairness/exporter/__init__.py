"""Metrics for Prometheus and OpenTelemetry, and the load of queues for an autoscaler.

The package needs prometheus-client and opentelemetry-api only here. Import ``collector`` and
``server`` after :func:`expect_client`.
"""

from __future__ import annotations

from importlib.util import find_spec

from celery_fairness.errors import SettingsError
from celery_fairness.util.extras import install_command


def expect_client() -> None:
    """Raise if prometheus-client is not installed.

    Raises:
        SettingsError: It is not. The text has the command that installs it.
    """
    if find_spec("prometheus_client") is None:
        raise SettingsError(
            "metrics: expected prometheus-client, got: none installed; "
            f"run: {install_command('metrics')}"
        )
