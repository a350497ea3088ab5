"""What is left on the servers when every task has ended, and must not be.

Numbers of the whole installation may stay: the clock, the sequence, tiers, counts, and the last
answer of each claimant for as long as it may be asked for.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from redis import Redis

from tests.support.rabbit import RabbitServer

PREFIX = "{fairness}:"
#: Keys that speak of tasks or of tenants that have some.
OF_TASKS = (
    *(
        "tasks",
        "messages",
        "ids",
        "same_id:*",
        "running",
        "ends",
        "waiting",
        "at_limit",
        "virtual_times",
    ),
    *("outcomes", "leases:*", "lane:*", "names:*", "ready:*", "tenant_state:*"),
    *(
        "active:*",
        "blocked:*",
        "debts:*",
        "scheduled:*",
        "scheduled_of:*",
        "wakeup:*",
        "wakeup_leftover:*",
        "dead:*",
        "expires:*",
    ),
    *("blocked_lanes:*", "blocked_classes:*", "groups:*", "group:*", "groups_at:*", "available:*"),
    *("waiters:*", "timers", "finish_tags:*", "charged", "reserved:*"),
)
#: The same of the stock transport with the queue that the run uses.
OF_STOCK = ("celery*", "unacked", "unacked_index")


def leftovers(client: Redis, *, stock: bool = False) -> dict[str, str]:
    """Return the keys that must not be there, with what they are and how much they hold.

    Args:
        client: A client that decodes.
        stock: Plain Celery used it.
    """
    patterns = OF_STOCK if stock else OF_TASKS
    prefix = "" if stock else PREFIX
    found: dict[str, str] = {}
    for key in sorted(client.scan_iter(count=1000)):
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and any(fnmatchcase(name, pattern) for pattern in patterns):
            found[name] = _describe(client, key)
    return found


def _describe(client: Redis, key: str) -> str:
    kind = str(client.type(key))
    sizes: dict[str, Any] = {
        "zset": lambda: client.zrange(key, 0, 4, withscores=True),
        "hash": lambda: client.hrandfield(key, 5, withvalues=True),
        "set": lambda: client.srandmember(key, 5),
        "list": lambda: client.lrange(key, 0, 4),
        "string": lambda: client.get(key),
    }
    return f"{kind} {str(sizes[kind]())[:300]}" if kind in sizes else kind


def leftover_messages(server: RabbitServer) -> dict[str, str]:
    """Return the queues of RabbitMQ that have messages, with how many."""
    return {f"queue {name}": str(held) for name, held in server.messages().items() if held}
