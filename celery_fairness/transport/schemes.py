"""The transports that kombu finds by name.

fairredis://          Redis or Valkey
fairrediss://         the same with TLS, never without
fairredis+socket://   a unix socket
fairsentinel://       the master of a Sentinel group, several hosts with ;
faircluster://        one slot of a cluster, several nodes with ;
fairclusters://       the same with TLS
fairservers://        several Redis servers with ;, each of which has its own partitions
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Mapping
from typing import Any

from celery_fairness.compat import redis_transport
from celery_fairness.store.cluster import SlotPrimary
from celery_fairness.store.servers import ServerAway
from celery_fairness.transport.channel import (
    FairChannel,
    FairClusterChannel,
    FairSentinelChannel,
    FairServersChannel,
)
from celery_fairness.transport.poller import FairPoller

#: Longest wait for messages of stock queues, in seconds. It is kombu's default.
LONGEST_WAIT_SECONDS = 1.0
#: TLS without further settings.
_CHECKED = {"ssl_cert_reqs": ssl.CERT_REQUIRED}


class Transport(redis_transport.Transport):
    """Redis whose queues are claimed fairly."""

    Channel: Any = FairChannel
    brpop_timeout: Any = LONGEST_WAIT_SECONDS

    def __init__(self, client: Any, **kwargs: Any) -> None:
        if client.ssl and not isinstance(client.ssl, Mapping):
            # kombu ignores a plain True.
            client.ssl = _CHECKED
        super().__init__(client, **kwargs)
        # With an interval, kombu would sleep after each empty answer, but an empty claim returns at
        # once. With a longer timeout, a closing channel would wait for the server that long.
        self.brpop_timeout = min(self.brpop_timeout or LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        self.polling_interval = None
        self.cycle: Any = FairPoller()

    def establish_connection(self) -> Any:
        """Connect. If the server accepts no commands now, kombu tries again as for a lost server.

        Raises:
            ServerNotReady: For example, the server is a replica.
            ServerAway: The connection is for the next try of a publish, whose server is away.
        """
        # kombu connects inside its handler of the error of a publish. Between failed connections it
        # pauses by the policy of the publish. Without an error it would publish again at once.
        failed = sys.exc_info()[1]
        if isinstance(failed, ServerAway) and failed.server is not None:
            failed.server.check()
        established: Any = super().establish_connection()
        channel = established._avail_channels[-1]
        try:
            session = channel.session
            if session.partitions.are_several:
                # A producer does not ask for the epochs of all partitions.
                channel.meet_home()
            else:
                session.renewals.sync_epoch(session.call)
        except BaseException:
            established._avail_channels.remove(channel)
            channel.close()
            raise
        return established

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Join Celery's hub, and look for overdue answers as often as the channel asks for."""
        super().register_with_event_loop(connection, loop)
        cycle = self.cycle
        # kombu reads only the option, and its own default would be too long.
        if "health_check_interval" not in (connection.client.transport_options or {}):
            seconds = self.Channel.health_check_interval
            cycle._brpop_health_tref.cancel()
            cycle._brpop_health_tref = loop.call_repeatedly(seconds, cycle.maybe_check_brpop_health)
            cycle._subclient_health_tref.cancel()
            look = cycle.maybe_check_subclient_health
            cycle._subclient_health_tref = loop.call_repeatedly(seconds, look)
        cycle.join_hub(loop, self.on_readable)


class TLSTransport(Transport):
    """The same with TLS, which kombu turns on only for a scheme named ``rediss``."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        if not client.ssl:
            client.ssl = _CHECKED
        super().__init__(client, **kwargs)


class _ListTransport(Transport):
    """A list of addresses, all of which lead to one home."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        # kombu would pause only after as many failed connections as there are addresses.
        client.completes_cycle = lambda _tries: True
        super().__init__(client, **kwargs)


class SentinelTransport(_ListTransport):
    """The master of a Sentinel group."""

    default_port = 26379
    Channel = FairSentinelChannel


class ServersTransport(_ListTransport):
    """Several Redis servers, each of which has its own partitions."""

    Channel = FairServersChannel

    def __init__(self, client: Any, **kwargs: Any) -> None:
        # kombu would go on to another server of the list, but only the first is the home.
        client.cycle = None
        super().__init__(client, **kwargs)


class ClusterTransport(_ListTransport):
    """One slot of a Redis Cluster."""

    Channel = FairClusterChannel
    #: Finds the primary of the slot, for all channels.
    slot_primary: SlotPrimary | None = None


class TLSClusterTransport(ClusterTransport, TLSTransport):
    """The same with TLS."""
