"""The limiter's connection to an installation, whose partitions may be on several servers."""

from __future__ import annotations

from dataclasses import replace

from redis.exceptions import ResponseError

from celery_fairness.config.settings import Settings
from celery_fairness.scheduler import calls
from celery_fairness.store.address import Address
from celery_fairness.store.connection import Connection
from celery_fairness.store.partitions import Partitions, other_number
from celery_fairness.store.servers import PartedConnection, Server, Servers
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
    if not (address.is_divided and partitions.are_several):
        address.check_partitions(partitions.count)
        return Connection(address, timeout_seconds, retries, prefix=partitions.home.prefix)
    address.check_partitions(partitions.count)
    servers = Servers(address.nodes())
    lease_ms = milliseconds(settings.lease_seconds)

    def connection_to(server: Server) -> Connection:
        there = replace(address, urls=(address.url(server.number),), is_divided=False)
        return Connection(there, timeout_seconds, retries, is_one_of=True)

    def meet(server: Server, connection: Connection) -> None:
        args = calls.epoch_args(lease_ms, partitions.count, place=server.place)
        try:
            connection.execute(calls.EPOCH, partitions.home.prefix, args)
        except ResponseError as error:
            raise other_number(error, partitions.count, server.place) or error from None

    def ask(server: Server) -> None:
        connection = connection_to(server)
        try:
            connection.client().ping()
        finally:
            connection.close()

    servers.ask = ask
    return PartedConnection(
        *(address, partitions, servers, connection_to, meet, timeout_seconds, retries)
    )
