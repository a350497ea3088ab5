"""The transports that kombu knows by name.

fairredis://          Redis or Valkey
fairrediss://         the same with TLS, never without
fairredis+socket://   a unix socket
fairsentinel://       the master of a Sentinel group, several hosts with ;
"""

from __future__ import annotations

import ssl
from typing import Any

from kombu.transport import redis as stock

from celery_fairness.transport.channel import FairChannel, FairSentinelChannel
from celery_fairness.transport.poller import FairPoller


class Transport(stock.Transport):
    """Redis whose queues are claimed fairly."""

    Channel: Any = FairChannel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle: Any = FairPoller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Join Celery's hub."""
        super().register_with_event_loop(connection, loop)
        self.cycle.join_hub(loop)


class TLSTransport(Transport):
    """The same with TLS: kombu turns it on only for a scheme that is called ``rediss``."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        given = client.ssl
        if not isinstance(given, dict):
            client.ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
        super().__init__(client, **kwargs)


class SentinelTransport(Transport):
    """The master of a Sentinel group."""

    default_port = 26379
    Channel = FairSentinelChannel
