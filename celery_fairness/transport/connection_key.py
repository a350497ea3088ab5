"""The Redis of a channel: the process's session for it, and the channel's connections."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis import Redis

from celery_fairness.store.address import Address
from celery_fairness.store.readiness import attentive
from celery_fairness.transport.options import DispatchOptions
from celery_fairness.transport.session import Session, session_of

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object


class SessionMixin(_Channel):  # type: ignore[misc]  # it stands before a class of kombu's
    """The part of a fair channel that finds its session."""

    @cached_property
    def session(self) -> Session:
        """This process's session with the channel's Redis."""
        client = self.connection.client
        options = DispatchOptions.of(client.transport_options)
        prefix = f"{self.global_keyprefix}{{{options.namespace}}}:"
        address = Address((client.as_uri(),), setting="broker_url", of_broker=True)
        session = session_of(self._connection_key(), prefix, options, address, self._own_client)
        self.connection.cycle.serve(session)
        return session

    def _connection_key(self) -> tuple[str, ...]:
        """Return a key that differs for every Redis."""
        client = self.connection.client
        # The address of a socket has neither the user nor the database.
        where = client.as_uri(include_password=True), client.userid, client.virtual_host
        return tuple(str(part or "") for part in where)

    def _connparams(self, asynchronous: bool = False) -> Any:
        params = super()._connparams(asynchronous)
        made = attentive(params["connection_class"])
        params["connection_class"] = _polled(self, made) if asynchronous else made
        return params

    def _own_client(self) -> Any:
        """Return a client without a bound on connections, which outlive the channel."""
        kept = vars(self)["_sentinel_manager"]
        pool = self._get_pool()
        # Otherwise the channel would close the Sentinel connections with its own.
        self._sentinel_manager = kept
        pool.max_connections = 2**31
        return Redis(connection_pool=pool)


def _polled(channel: Any, connection_class: Any) -> Any:
    """Return the class of the connections that are polled for ``channel``."""

    class Connection(connection_class):  # type: ignore[misc]  # chosen at run time
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            transport = channel.connection
            if transport is not None and transport.cycle is not None:
                transport.cycle.leave(self)
            super().disconnect(*args, **kwargs)

    return Connection
