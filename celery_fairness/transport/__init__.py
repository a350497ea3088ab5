"""The broker transport that claims fairly.

A process that reaches a broker at ``fairredis://`` calls ``Fairness(app)``, or :func:`register`
where it uses kombu alone, or sets ``broker_transport = "celery_fairness.transport:Transport"``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SentinelTransport", "TLSTransport", "Transport", "register"]

#: Our transport for each of our schemes.
TRANSPORTS = {
    "fairredis": "Transport",
    "fairrediss": "TLSTransport",
    "fairsentinel": "SentinelTransport",
}


def register() -> None:
    """Make kombu know ``fairredis``, ``fairrediss`` and ``fairsentinel`` in this process."""
    from kombu.transport import TRANSPORT_ALIASES

    for scheme, name in TRANSPORTS.items():
        TRANSPORT_ALIASES[scheme] = f"celery_fairness.transport.schemes:{name}"


def __getattr__(name: str) -> Any:
    if name in TRANSPORTS.values():
        from celery_fairness.transport import schemes

        return getattr(schemes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
