"""The transports that kombu knows by name.

fairredis://          Redis or Valkey
fairrediss://         the same with TLS, never without
fairredis+socket://   a unix socket
fairsentinel://       the master of a Sentinel group, several hosts with ;
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from kombu.transport import redis as stock

from celery_fairness.transport.channel import FairChannel
from celery_fairness.transport.poller import FairPoller
from celery_fairness.transport.sentinel import FairSentinelChannel

#: Longest wait for messages of a queue that is not claimed from: kombu's own default, in seconds.
LONGEST_WAIT_SECONDS = 1.0
#: TLS where nothing else is said of it.
_CHECKED = {"ssl_cert_reqs": ssl.CERT_REQUIRED}


class Transport(stock.Transport):
    """Redis whose queues are claimed fairly."""

    Channel: Any = FairChannel
    brpop_timeout: Any = LONGEST_WAIT_SECONDS

    def __init__(self, client: Any, **kwargs: Any) -> None:
        if client.ssl and not isinstance(client.ssl, Mapping):
            # kombu takes no notice of a plain True.
            client.ssl = _CHECKED
        super().__init__(client, **kwargs)
        # kombu would sleep for it after each empty answer, and an empty claim is answered at once.
        # It would also wait on the server for so long, and a channel that closes waits with it.
        self.brpop_timeout = min(self.brpop_timeout or LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        self.polling_interval = None
        self.cycle: Any = FairPoller()

    def establish_connection(self) -> Any:
        """Connect; where the server takes no commands now it is tried again like one that is away.

        Raises:
            ServerNotReady: It is a replica, for instance.
        """
        established: Any = super().establish_connection()
        channel = established._avail_channels[-1]
        try:
            channel.home.renewals.meet(channel.home.call)
        except BaseException:
            established._avail_channels.remove(channel)
            channel.close()
            raise
        return established

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Join Celery's hub."""
        super().register_with_event_loop(connection, loop)
        self.cycle.join_hub(loop, self.on_readable)


class TLSTransport(Transport):
    """The same with TLS: kombu turns it on only for a scheme that is called ``rediss``."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        if not client.ssl:
            client.ssl = _CHECKED
        super().__init__(client, **kwargs)


class SentinelTransport(Transport):
    """The master of a Sentinel group."""

    default_port = 26379
    Channel = FairSentinelChannel
