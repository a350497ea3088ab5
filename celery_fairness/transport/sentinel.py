"""The channel of a Sentinel group: whichever of its hosts answers, the master is the same Redis."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as stock

from celery_fairness.transport.channel import FairMixin


class FairSentinelChannel(FairMixin, stock.SentinelChannel):  # type: ignore[misc]  # untyped
    """A channel of a Sentinel group."""

    connection: Any

    def _place(self) -> tuple[str, ...]:
        client = self.connection.client
        hosts = sorted(client.alt) or [client.as_uri(include_password=True)]
        return (*hosts, str(self.master_name), str(client.virtual_host))

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        client = self.connection.client
        given = client.alt
        # kombu reads only those that are called sentinel://.
        client.alt = [url.removeprefix("fair") for url in given]
        try:
            return super()._sentinel_managed_pool(asynchronous)
        finally:
            client.alt = given
