"""Which Redis a channel talks to, and so which home of the process it shares; its connections."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis import Redis

from celery_fairness.store.address import Address
from celery_fairness.store.readiness import attentive
from celery_fairness.transport.options import DispatchOptions
from celery_fairness.transport.session import Session, home_of

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object


class PlaceMixin(_Channel):  # type: ignore[misc]  # it stands before a class of kombu's
    """The part of a fair channel that finds its home."""

    @cached_property
    def home(self) -> Session:
        """This process's home of the channel's Redis."""
        client = self.connection.client
        options = DispatchOptions.of(client.transport_options)
        prefix = f"{self.global_keyprefix}{{{options.namespace}}}:"
        address = Address((client.as_uri(),), setting="broker_url", of_broker=True)
        home = home_of(self._place(), prefix, options, address, self._own_client)
        self.connection.cycle.serve(home)
        return home

    def _place(self) -> tuple[str, ...]:
        """Return what tells this Redis from others."""
        client = self.connection.client
        # Of a socket the address has neither the user nor the database.
        where = client.as_uri(include_password=True), client.userid, client.virtual_host
        return tuple(str(part or "") for part in where)

    def _connparams(self, asynchronous: bool = False) -> Any:
        params = super()._connparams(asynchronous)
        made = attentive(params["connection_class"])
        params["connection_class"] = _polled(self, made) if asynchronous else made
        return params

    def _own_client(self) -> Any:
        """Return a client whose connections outlive the channel, as many as there are callers."""
        kept = vars(self)["_sentinel_manager"]
        pool = self._get_pool()
        # Else the channel would close the Sentinel connections with its own.
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
