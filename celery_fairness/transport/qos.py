"""Tracks delivered messages without an ack, for kombu.

The lease table has every claimed message, and a delivery writes nothing to Redis. If a worker's
request ends the message, an ack here only changes kombu's count. Otherwise the ack ends the lease.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as stock
from kombu.transport import virtual

from celery_fairness.scheduler.types import Verdict


class FairQoS(stock.QoS):
    """Settles claimed messages; the stock transport handles those of stock queues."""

    channel: Any
    _quick_ack: Any
    _flush: Any

    def append(self, message: Any, delivery_tag: str) -> None:
        """Add a delivered message."""
        if self.channel.session.lease_table.get(delivery_tag) is None:
            super().append(message, delivery_tag)
        else:
            virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self._end(delivery_tag, Verdict.DONE, lambda: super(FairQoS, self).ack(delivery_tag))

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject a message, or put it at the end of its lane."""
        verdict = Verdict.TAIL if requeue else Verdict.DONE
        self._end(delivery_tag, verdict, lambda: super(FairQoS, self).reject(delivery_tag, requeue))

    def _end(self, delivery_tag: str, verdict: Verdict, of_stock: Any) -> None:
        session = self.channel.session
        held = session.lease_table.get(delivery_tag)
        if held is not None:
            if not held.attended:
                session.lease_table.end(held, verdict)
        elif delivery_tag not in self.channel.claimed:
            # An ack may come after the channel has closed and the lease ended.
            if delivery_tag in (self._delivered or ()):
                of_stock()
            return
        self.channel.claimed.discard(delivery_tag)
        self._quick_ack(delivery_tag)

    def can_consume(self) -> bool:
        """Return whether there is a place for a message, or an answer to read."""
        channel = self.channel
        if channel._in_poll and channel._is_ours:
            return True
        if not channel.fair_queues or channel.stock_queues:
            return bool(super().can_consume())
        return bool(channel.want() > 0)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give back messages without a pool. The others run, and settle on the next connection."""
        claimed, self.channel.claimed = self.channel.claimed, set()
        delivered: Any = self._delivered
        for lease in claimed:
            delivered.pop(lease, None)
        if claimed:
            self.channel.session.channel_gone(sorted(claimed))
        super().restore_unacked_once(stderr)

    def restore_unacked(self, client: Any = None) -> Any:
        """Give back every delivered message to its place: ``basic_recover``."""
        for lease in sorted(self.channel.claimed):
            self._end(lease, Verdict.HEAD, lambda: None)
        self._flush()
        return super().restore_unacked(client)
