"""kombu's Redis transport, in the form of kombu 5.7."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any

import kombu
from kombu.transport import base
from kombu.transport import redis as stock
from kombu.utils.eventio import READ, poll

#: kombu 5.7 itself logs these lines.
kombu_logger = logging.getLogger("kombu.transport.redis")

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object

_VERSION: tuple[int, int] = vars(kombu)["VERSION"][:2]
#: Pings of a connection of fanout queues after which it counts as lost.
UNANSWERED_PINGS = 2
#: How often a worker looks for messages of stock queues whose worker is gone, in seconds.
RESTORE_SECONDS = 10


class _Poller(stock.MultiChannelPoller):
    """kombu's poller, whose looks at connections log a lost one at DEBUG, as in kombu 5.7.

    The loop itself handles a lost connection. Before kombu 5.7 these looks raise, and the loop
    logs each error with its traceback.
    """

    _channels: Any
    _fd_to_chan: Any

    def maybe_restore_messages(self) -> None:
        self._quietly(super().maybe_restore_messages)

    def maybe_refresh_binding_expiry(self) -> None:
        for channel in self._channels:
            self._quietly(channel.maybe_refresh_binding_expiry)

    def maybe_check_subclient_health(self) -> None:
        """Ping the connections of fanout queues, and close those that left two pings unanswered."""
        for channel in self._channels:
            client = vars(channel).get("subclient")
            if client is None or client.connection is None:
                continue
            if client.health_check_response_counter >= UNANSWERED_PINGS:
                client.health_check_response_counter = 0
                kombu_logger.warning(
                    "a connection of fanout queues does not answer; connecting again"
                )
                self._quietly(client.connection.disconnect)
            else:
                self._quietly(client.check_health)

    def maybe_check_brpop_health(self) -> None:
        """Close the connections whose answer is overdue. The next turn of the loop connects."""
        for channel in self._channels:
            connection, sent_at = channel._in_poll, channel._brpop_sent_at
            if not connection or sent_at is None or not channel.health_check_interval:
                continue
            overdue = channel.brpop_timeout + channel.health_check_interval
            socket = connection._sock
            if monotonic() - sent_at >= overdue and socket and not _is_readable(socket):
                kombu_logger.warning(
                    "Redis got no reply for %.0f s on a worker's connection; connecting again",
                    overdue,
                )
                connection.disconnect()

    def _quietly(self, look: Callable[[], Any]) -> None:
        try:
            look()
        except stock.Transport.connection_errors:
            kombu_logger.debug("a connection to Redis was lost", exc_info=True)

    def handle_event(self, fileno: int, event: int) -> Any:
        return super().handle_event(fileno, event) if fileno in self._fd_to_chan else None

    def on_readable(self, fileno: int) -> Any:
        return super().on_readable(fileno) if fileno in self._fd_to_chan else None

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Wait for one event without a hub, after the same start of a turn as with a hub."""
        self._in_protected_read = True
        try:
            self.maybe_refresh_binding_expiry()
            self.on_poll_start()
            events = self.poller.poll(timeout)
            if any(self.handle_event(*event) for event in events or ()):
                return
            if not events:
                self.maybe_check_brpop_health()
            self.maybe_restore_messages()
            raise Empty
        finally:
            self._in_protected_read = False
            while self.after_read:
                self.after_read.pop()()

    def _unregister_from_poll(self, fileno: int) -> None:
        self.poller.unregister(fileno)

    def _discard_paused_connection(self, connection: Any) -> None:
        """Nothing is paused: an answer that the worker has no place for stays unread."""


def _is_readable(socket: Any) -> bool:
    poller = poll()
    try:
        poller.register(socket, READ)
        return bool(poller.poll(0))
    finally:
        poller.close()


class _ChannelParts(_Channel):
    """The part of kombu's Redis channel that came with kombu 5.7, without its effect on keys.

    A queue with ``x-expires`` ends only if it is claimed fairly: stock queues do not end before
    kombu 5.7. Bindings are never swept, as there.
    """

    _brpop_sent_at: float | None = None
    _sentinel_manager = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._expires: dict[str, int] = {}
        super().__init__(*args, **kwargs)
        self.brpop_timeout = self.connection.brpop_timeout

    @property
    def active_queues(self) -> list[str]:
        """The consumed queues without fanout queues, in the order of their consumers."""
        fanout = self.active_fanout_queues
        return list(dict.fromkeys(each for each in self._active_queues if each not in fanout))

    def _brpop_start(self, timeout: float | None = None) -> None:
        super()._brpop_start(self.brpop_timeout if timeout is None else timeout)
        self._brpop_sent_at = monotonic()

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """Return the arguments of a queue's declaration, ``x-expires`` for ``expires``."""
        return vars(base)["to_rabbitmq_queue_arguments"](arguments, **options)

    def _new_queue(self, queue: str, auto_delete: bool = False, **options: Any) -> None:
        super()._new_queue(queue, auto_delete=auto_delete, **options)
        expires_ms = (options.get("arguments") or {}).get("x-expires")
        if expires_ms is None:
            self._expires.pop(queue, None)
        else:
            self._expires[queue] = int(expires_ms)

    def maybe_refresh_binding_expiry(self) -> None:
        """Nothing: a binding does not expire."""

    def _flush_brpop_reauth(self) -> None:
        """Nothing: no credential is renewed on an open connection."""


class _Transport(stock.Transport):
    """kombu's Redis transport, with the timers of kombu 5.7."""

    brpop_timeout: Any = 1

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Poll in a hub, and look at the connections from time to time."""
        cycle: Any = self.cycle
        cycle.on_poll_init(loop.poller)
        cycle._unregister_from_poll = loop.remove_reader

        def on_poll_start() -> None:
            cycle.on_poll_start()
            for fileno in cycle.fds:
                loop.add_reader(fileno, self.on_readable, fileno)

        loop.on_tick.add(on_poll_start)
        seconds = stock.DEFAULT_HEALTH_CHECK_INTERVAL
        given = connection.client.transport_options.get("health_check_interval", seconds)
        every = loop.call_repeatedly
        every(RESTORE_SECONDS, cycle.maybe_restore_messages)
        every(1, cycle.maybe_refresh_binding_expiry)
        cycle._subclient_health_tref = every(given, cycle.maybe_check_subclient_health)
        cycle._brpop_health_tref = every(given, cycle.maybe_check_brpop_health)


class _NoBatch:
    """Stands for the batch of publishes, which no producer of kombu before 5.7 begins."""


if TYPE_CHECKING:
    Poller: Any
    PublishBatch: Any
    from kombu.transport.redis import Channel as Channel
    from kombu.transport.redis import SentinelChannel as SentinelChannel
    from kombu.transport.redis import Transport as Transport
elif _VERSION >= (5, 7):
    Poller = stock.MultiChannelPoller
    PublishBatch = stock.PublishBatch
    Channel, SentinelChannel, Transport = stock.Channel, stock.SentinelChannel, stock.Transport
else:
    Poller = _Poller
    PublishBatch = _NoBatch
    Transport = _Transport

    class Channel(_ChannelParts, stock.Channel):
        """kombu's Redis channel."""

    class SentinelChannel(_ChannelParts, stock.SentinelChannel):
        """kombu's channel of a Sentinel group."""
