"""A server that answers and takes no command now: an outage like any other.

redis-py reports it by five classes and, for some codes, by a plain error with a text. Stock kombu
takes both for a fault of the command, and a worker ends with them. Here one kind of connection
raises :class:`ServerNotReady`, a lost connection to every caller, and closes itself: behind the
name of the server, or in its Sentinel group, another one may be the master by now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis import exceptions

if TYPE_CHECKING:
    _Connection = Any
else:
    _Connection = object

#: What the first word of an answer means: the same command may succeed when it is sent again.
NOT_NOW = frozenset(
    (
        "READONLY",  # A replica, such as the master before a failover.
        "UNBLOCKED",  # It became one while it was waited on.
        "NOREPLICAS",  # Fewer replicas than min-replicas-to-write.
        "MISCONF",  # The disk takes no snapshot, with stop-writes-on-bgsave-error.
        "MASTERDOWN",  # A replica without its master, with replica-serve-stale-data no.
        "LOADING",  # It reads its memory from the disk.
        "BUSY",  # Somebody's script runs.
        "CLUSTERDOWN",  # Slots of the cluster have no master.
        "TRYAGAIN",  # Keys of one command move to another node.
    )
)
#: The same words where redis-py leaves them out of the text.
_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
)


class ServerNotReady(exceptions.ConnectionError):
    """The server takes no such command now; its text begins with the server's word for it."""


def not_ready(error: Exception) -> ServerNotReady | None:
    """Return what an answer of the server is where it says "not now", None for any other."""
    text = str(error)
    for kind, word in _WORDS:
        if isinstance(error, kind):
            return ServerNotReady(f"{word} {text}")
    return ServerNotReady(text) if text.partition(" ")[0] in NOT_NOW else None


class _Attentive(_Connection):  # type: ignore[misc]  # it stands before a class of redis-py's
    """The part of a connection that tells an outage from a wrong command."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read one answer.

        Raises:
            ServerNotReady: The server takes no such command now; the connection is closed.
        """
        try:
            return super().read_response(*args, **kwargs)
        except (exceptions.ResponseError, exceptions.BusyLoadingError) as error:
            outage = not_ready(error)
            if outage is None:
                raise
            self.disconnect()
            raise outage from error


def attentive(connection_class: type[Any]) -> type[Any]:
    """Return a connection class of redis-py, or of kombu's, that raises :class:`ServerNotReady`."""
    if issubclass(connection_class, _Attentive):
        return connection_class
    return type(connection_class.__name__, (_Attentive, connection_class), {})
