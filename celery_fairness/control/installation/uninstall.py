"""The last step of the way back: delete all that an installation has stored in its Redis.

Invariant: no key outside of the prefix is deleted, so kombu's keys, results and other installations
stay. Weakness: a worker that is not announced, or a producer, may write a key again.
"""

from __future__ import annotations

from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import batches
from celery_fairness.control.installation.workers import living
from celery_fairness.util.value import Value

#: Keys that one UNLINK removes.
KEYS = 500


class Leftovers(Value):
    """What an installation has in Redis.

    Attributes:
        namespace: Its namespace.
        redis: Address of the Redis, without a password.
        keys: Keys of its prefix.
        tasks: Tasks that wait or run, dead letters, and tasks whose result no worker has stored.
        workers: Names of announced workers.
        deleted: Whether the keys are deleted. If not, nothing is.
    """

    namespace: str
    redis: str
    keys: int
    tasks: int
    workers: tuple[str, ...]
    deleted: bool


def uninstall(installation: Installation, *, yes: bool, with_tasks: bool) -> Leftovers:
    """Count the keys of an installation, and delete them if nothing uses them.

    Args:
        installation: The installation.
        yes: Delete them, unless a worker is announced.
        with_tasks: Delete them also if there are tasks among them.

    Raises:
        LimiterUnavailable: Redis does not answer.
    """
    reader = installation.reader
    workers = tuple(each.name for each in living(reader))
    tasks = int(reader.sums(lambda keys: [("HLEN", keys.tasks)])[0])
    delete = yes and not workers and (with_tasks or not tasks)
    keys = 0
    # The home goes last, because it has the number of partitions.
    for store in reversed(reader.stores):
        for batch in batches(store.scan(), KEYS):
            names = [store.keys.prefix + name for name in batch]
            keys += int(store.read("UNLINK", *names)) if delete else len(names)
    if delete:
        # A server of a list has the number of partitions too.
        for server in installation.limiter.servers:
            server.read("UNLINK", reader.keys.clock)
    return Leftovers(
        namespace=installation.settings.namespace,
        redis=str(installation.limiter.connection.address),
        keys=keys,
        tasks=tasks,
        workers=workers,
        deleted=delete,
    )
