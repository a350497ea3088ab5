"""Channels of kombu in the process of a test, which end soon.

A channel that waits for replies ends with the ``BRPOP`` that it has sent, which takes a second.
Workers are other processes, and keep that second.
"""

from __future__ import annotations

import pytest
from kombu.transport.redis import Transport as StockTransport

from celery_fairness.transport.schemes import Transport

BRPOP_SECONDS = 0.05


def close_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the channels of this process wait for a short time with each command."""
    for transport in (StockTransport, Transport):
        # kombu before 5.7 has no such attribute.
        monkeypatch.setattr(transport, "brpop_timeout", BRPOP_SECONDS, raising=False)
