"""What kombu asks of a channel about messages that were delivered and not acknowledged.

A claimed message is in the book; nothing is written for it. Where a worker's request attends to it,
the request says when it ends and an ack here is only kombu's own count; else the ack is the end.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as stock
from kombu.transport import virtual

from celery_fairness.scheduler.types import Verdict


class FairQoS(stock.QoS):
    """Acks of claimed messages settle; those of stock queues are the stock transport's."""

    channel: Any
    _quick_ack: Any
    _flush: Any

    def append(self, message: Any, delivery_tag: str) -> None:
        """Remember a delivered message."""
        if self.channel.home.book.get(delivery_tag) is None:
            super().append(message, delivery_tag)
        else:
            virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge."""
        self._end(delivery_tag, Verdict.DONE, lambda: super(FairQoS, self).ack(delivery_tag))

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Refuse a message: forget it, or let it wait behind all others of its lane."""
        verdict = Verdict.TAIL if requeue else Verdict.DONE
        self._end(delivery_tag, verdict, lambda: super(FairQoS, self).reject(delivery_tag, requeue))

    def _end(self, delivery_tag: str, verdict: Verdict, of_stock: Any) -> None:
        home = self.channel.home
        held = home.book.get(delivery_tag)
        if held is not None:
            if not held.attended:
                home.book.end(held, verdict)
        elif delivery_tag not in self.channel.claimed:
            # An ack may come when its channel is closed and its lease has ended long since.
            if delivery_tag in (self._delivered or ()):
                of_stock()
            return
        self.channel.claimed.discard(delivery_tag)
        self._quick_ack(delivery_tag)

    def can_consume(self) -> bool:
        """Say whether there is a place for a message, or an answer to be read."""
        channel = self.channel
        if channel._in_poll and channel._is_ours:
            return True
        if not channel.fair_queues or channel.stock_queues:
            return bool(super().can_consume())
        return bool(channel.want() > 0)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give back what no pool has; the rest runs on and settles over the next connection."""
        claimed, self.channel.claimed = self.channel.claimed, set()
        delivered: Any = self._delivered
        for lease in claimed:
            delivered.pop(lease, None)
        if claimed:
            self.channel.home.channel_gone(sorted(claimed))
        super().restore_unacked_once(stderr)

    def restore_unacked(self, client: Any = None) -> Any:
        """Give back every delivered message, in its place: ``basic_recover``."""
        for lease in sorted(self.channel.claimed):
            self._end(lease, Verdict.HEAD, lambda: None)
        self._flush()
        return super().restore_unacked(client)
