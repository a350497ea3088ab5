"""What is left on the servers when every task has ended, and must not be.

Numbers of the whole installation may stay: the clock, the sequence, tiers, counts, and the last
answer of each claimant for as long as it may be asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from celery import Celery
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.store.partitions import Partitions
from tests.support.rabbit import RabbitServer

NAMESPACE, PREFIX = "fairness", "{fairness}:"
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
        "expires:*",
    ),
    *("blocked_lanes:*", "blocked_classes:*", "groups:*", "group:*", "groups_at:*", "available:*"),
    *("waiters:*", "timers", "finish_tags:*", "charged", "reserved:*", "unique"),
)
#: Those of them that dead letters have too, beside `same_id:*`: hashes by tag or by id of a task.
OF_LETTERS = ("tasks", "messages", "ids")
#: The same of the stock transport with the queue that the run uses.
OF_STOCK = ("celery*", "unacked", "unacked_index")


def prefixes_of(partitions: int) -> tuple[str, ...]:
    """Return how the keys of the home and of each partition begin."""
    made = Partitions(NAMESPACE, count=partitions)
    return tuple(dict.fromkeys(names.prefix for names in (made.home, *made.names)))


def lenders_of(partitions: int, key: str, tenants: Iterable[str]) -> frozenset[str]:
    """Return how the keys begin that lend the slots of a key, and those of its tenants' tasks.

    There are none without partitions.
    """
    if partitions == 1:
        return frozenset()
    made = Partitions(NAMESPACE, count=partitions)
    numbers = [made.of_key(key), *(made.of_tenant(tenant, "") for tenant in tenants)]
    return frozenset(made.names[number].prefix for number in numbers)


def leftovers(client: Redis, prefix: str = PREFIX, *, stock: bool = False) -> dict[str, str]:
    """Return the keys that must not be there, with what they are and how much they hold.

    Args:
        client: A client that decodes.
        prefix: How the keys of the partition begin.
        stock: Plain Celery used it.
    """
    patterns = OF_STOCK if stock else OF_TASKS
    prefix = "" if stock else prefix
    found: dict[str, str] = {}
    letters = _letters(client, prefix)
    for key in sorted(client.scan_iter(count=1000)):
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or not any(fnmatchcase(name, each) for each in patterns):
            continue
        if name.startswith("same_id:"):
            others = set(client.zrange(key, 0, -1)) - letters
        elif name == "timers":
            # A home forgets a lot a minute after it, and an idle partition reports its last lot
            # with its next claim (ADR 32).
            names = client.zrange(key, 0, -1)
            others = {each for each in names if not each.startswith(("grants ", "permits "))}
        else:
            others = set(client.hkeys(key)) - letters if name in OF_LETTERS else {key}
        if others:
            found[name] = _describe(client, key)
    return found


def _letters(client: Redis, prefix: str) -> set[str]:
    """Return the tags of all dead letters, and the ids of their tasks."""
    tags: set[str] = set()
    for key in client.scan_iter(f"{prefix}dead:*", count=1000):
        tags |= set(client.zrange(key, 0, -1))
    of_id = client.hgetall(f"{prefix}ids")
    return tags | {name for name, tag in of_id.items() if tag in tags}


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


def dead_letters(url: str, partitions: int = 1) -> dict[str, int]:
    """Return the deaths of every dead letter by the id of its task, or by its tag without an id.

    Args:
        url: Address of the broker.
        partitions: The setting of that name.
    """
    app = Celery("chaos", broker=url, set_as_current=False)
    app.conf.fairness = {"partitions": partitions}
    app.conf.broker_connection_retry_on_startup = True
    fairness = Fairness(app)
    found: dict[str, int] = {}
    try:
        for page in itertools.count(1):
            letters = fairness.tasks.dead_letters(page=page, per_page=100).items
            found |= {letter.task_id: letter.deaths for letter in letters}
            if not letters:
                return found
    finally:
        fairness.close()
        app.close()


def take_quarantined(client: Redis, prefix: str) -> int:
    """Delete every message in quarantine, and return how many there were."""
    taken = 0
    for key in client.scan_iter(f"{prefix}quarantined:*", count=1000):
        taken += int(client.llen(key))
        client.delete(key)
    return taken


def leftover_messages(server: RabbitServer) -> dict[str, str]:
    """Return the queues of RabbitMQ that have messages, with how many."""
    return {f"queue {name}": str(held) for name, held in server.messages().items() if held}
