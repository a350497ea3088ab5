"""The redirections of a node of a cluster, in the form of redis-py 6.

Before that, only redis-py's client of a whole cluster has classes for them. Any other client raises
a plain error with the server's text.
"""

from __future__ import annotations

from typing import NamedTuple

from redis.exceptions import AskError, ClusterCrossSlotError, MovedError, ResponseError


class Redirect(NamedTuple):
    """Another node, to which a node sends a client.

    Attributes:
        is_moved: Whether the slot is there. Otherwise it moves there key by key.
        slot: The slot.
        host: The other node, "" for the host of the node that answered.
        port: Its port.
    """

    is_moved: bool
    slot: int
    host: str
    port: int


def redirect_of(error: Exception) -> Redirect | None:
    """Return where a node redirects a command, None for any other error."""
    if isinstance(error, AskError):
        return Redirect(isinstance(error, MovedError), error.slot_id, error.host, int(error.port))
    word, _, rest = str(error).partition(" ")
    if not isinstance(error, ResponseError) or word not in ("MOVED", "ASK"):
        return None
    slot, _, node = rest.partition(" ")
    host, _, port = node.rpartition(":")
    return Redirect(word == "MOVED", int(slot), host, int(port))


def is_cross_slot(error: Exception) -> bool:
    """Return whether the keys of a command are in several slots."""
    return isinstance(error, ClusterCrossSlotError) or str(error).startswith("CROSSSLOT ")
