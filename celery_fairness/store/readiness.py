"""Treats a server that answers but runs no commands now as an outage.

redis-py has five error classes for this, and for some codes a plain error with a text. Stock kombu
takes both for an error of the command, and the worker ends. The connections of this module raise
:class:`ServerNotReady` instead, which callers handle as a lost connection. They also close
themselves, because another server may have become the master.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis import exceptions

if TYPE_CHECKING:
    _Connection = Any
else:
    _Connection = object

#: First words of an error after which the same command may succeed later.
NOT_NOW = frozenset(
    (
        "READONLY",  # A replica, such as the master before a failover.
        "UNBLOCKED",  # The server became a replica during a blocking command.
        "NOREPLICAS",  # Fewer replicas than min-replicas-to-write.
        "MISCONF",  # The disk takes no snapshot, with stop-writes-on-bgsave-error.
        "MASTERDOWN",  # A replica without its master, with replica-serve-stale-data no.
        "LOADING",  # The server loads its data from the disk.
        "BUSY",  # A script or function runs for too long.
        "CLUSTERDOWN",  # Slots of the cluster have no master.
        "TRYAGAIN",  # Keys of one command move to another node.
    )
)
#: The words that redis-py leaves out of the texts of these classes.
_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
)


class ServerNotReady(exceptions.ConnectionError):
    """The server does not run such a command now. The text begins with the server's error code."""


def not_ready(error: Exception) -> ServerNotReady | None:
    """Return a ServerNotReady for such an error of the server; None for any other."""
    text = str(error)
    for kind, word in _WORDS:
        if isinstance(error, kind):
            return ServerNotReady(f"{word} {text}")
    return ServerNotReady(text) if text.partition(" ")[0] in NOT_NOW else None


class _Attentive(_Connection):
    """A mixin for connections that distinguishes an outage from a wrong command."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read one answer.

        Raises:
            ServerNotReady: The server does not run such a command now. The connection is closed.
        """
        try:
            answer = super().read_response(*args, **kwargs)
        except (exceptions.ResponseError, exceptions.BusyLoadingError) as error:
            self._raise_outage(error)
            raise
        if type(answer) is list:
            # The answer of a transaction has the errors of its commands.
            for each in answer:
                if isinstance(each, exceptions.ResponseError):
                    self._raise_outage(each)
        return answer

    def _raise_outage(self, error: Exception) -> None:
        outage = not_ready(error)
        if outage is not None:
            self.disconnect()
            raise outage from error


def attentive(connection_class: type[Any]) -> type[Any]:
    """Return a subclass of a connection class that raises :class:`ServerNotReady`."""
    if issubclass(connection_class, _Attentive):
        return connection_class
    return type(connection_class.__name__, (_Attentive, connection_class), {})
