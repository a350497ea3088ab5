"""The channel of a Sentinel group. All of its hosts lead to the same master."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as stock

from celery_fairness.transport.channel import FairMixin


class FairSentinelChannel(FairMixin, stock.SentinelChannel):  # type: ignore[misc]  # untyped
    """A channel of a Sentinel group."""

    connection: Any

    def _connection_key(self) -> tuple[str, ...]:
        client = self.connection.client
        hosts = sorted(client.alt) or [client.as_uri(include_password=True)]
        return (*hosts, str(self.master_name), str(client.virtual_host))

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        client = self.connection.client
        given = client.alt
        # kombu reads only addresses with the scheme ``sentinel://``.
        client.alt = [url.removeprefix("fair") for url in given]
        try:
            return super()._sentinel_managed_pool(asynchronous)
        finally:
            client.alt = given
