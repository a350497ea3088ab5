"""The limiter's connection to an installation, whose partitions may be on several servers."""

from __future__ import annotations

from dataclasses import replace

from redis.exceptions import ResponseError

from celery_fairness.config.settings import Settings
from celery_fairness.scheduler import calls
from celery_fairness.store.address import Address
from celery_fairness.store.connection import Connection
from celery_fairness.store.partitions import Partitions, other_number
from celery_fairness.store.servers import ClusterServers, PartedConnection, Server, Servers
from celery_fairness.util.durations import milliseconds


def connect(
    address: Address,
    partitions: Partitions,
    settings: Settings,
    timeout_seconds: float,
    retries: int,
) -> Connection:
    """Return a connection that makes each call at the server that has its keys.

    Raises:
        SettingsError: There are more servers than partitions.
    """
    address.check_partitions(partitions.count)
    if not (partitions.are_several and (address.is_divided or address.is_cluster)):
        return Connection(address, timeout_seconds, retries, prefix=partitions.home.prefix)
    servers = (
        ClusterServers(address.nodes(), partitions)
        if address.is_cluster
        else Servers(address.nodes())
    )
    lease_ms = milliseconds(settings.lease_seconds)

    def connection_to(server: Server) -> Connection:
        there = replace(
            address, urls=(_url_of(address, server),), is_divided=False, is_cluster=False
        )
        connection = Connection(there, timeout_seconds, retries, is_one_of=True)
        connection.class_of = servers.class_of
        return connection

    def meet(server: Server, connection: Connection) -> None:
        if not server.place and server is not servers.of(None):
            # In a cluster the home is on one server alone.
            return
        args = calls.epoch_args(lease_ms, partitions.count, place=server.place)
        try:
            connection.execute(calls.EPOCH, partitions.home.prefix, args)
        except ResponseError as error:
            raise other_number(error, partitions.count, server.place) or error from None

    servers.connect = connection_to
    return PartedConnection(*(address, partitions, servers, meet, timeout_seconds, retries))


def _url_of(address: Address, server: Server) -> str:
    """Return the URL for redis-py of one server."""
    if address.is_cluster and server.node is not None:
        return address.url_of_node(server.node)
    return address.url(server.number)
