"""The keys of queues: the queue that a typed key means, and whether workers check it."""

from __future__ import annotations

from typing import Any

from celery_fairness.config.key_patterns import ANY, is_pattern
from celery_fairness.config.queue_limits import KNOWN, PREFIX
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.key.inspector import typed_key
from celery_fairness.errors import PolicyInvalid, got


def find_key(
    installation: Installation,
    key: Any,
    *,
    tenants: bool = True,
    of_all: bool = True,
    patterns: bool = False,
) -> tuple[str, str]:
    """Return a key in its form in Redis, and the queue that it belongs to, or "".

    Arguments and errors as for :func:`typed_key` and :meth:`QueueKeys.find`.
    """
    queue = ""
    if isinstance(key, str) and key.startswith(PREFIX) and not is_pattern(key):
        key, queue = QueueKeys(installation).find(key)
    name, _ = typed_key(
        key, installation.settings, tenants=tenants, of_all=of_all, patterns=patterns
    )
    if is_pattern(name) and name.startswith(PREFIX):
        QueueKeys(installation).expect_parts(name)
    return name, queue


def override_key(installation: Installation, key: str) -> str:
    """Return a key that an operator overrides in its form in Redis, without a change of Redis.

    Raises:
        PolicyInvalid: No worker would check its queue. Other errors as for :func:`find_key`.
    """
    name, queue = find_key(installation, key, of_all=False, patterns=True)
    if queue:
        QueueKeys(installation).expect_checked(queue)
    return name


class QueueKeys:
    """The keys of the queues of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._limiter = installation.limiter

    def make_known(self, queue: str) -> None:
        """Make claims check a queue's key from now on, before an operator changes the key.

        Raises:
            PolicyInvalid: No worker would check the queue.
        """
        self.expect_checked(queue)
        self._limiter.limit_queue(KNOWN, queue)

    def find(self, key: str) -> tuple[str, str]:
        """Return the key that an operator means, in its form in Redis, and its queue.

        A colon begins a partition if the queue before it is partitioned. Otherwise it belongs to
        the name of a queue, whose key has a hash.

        Args:
            key: The typed key, which begins with ``queue:``.

        Returns:
            The key and the queue. The queue is "" if the key is not of a whole queue.

        Raises:
            ValueError: The text has a colon or a hash, and no queue is known that it may mean.
        """
        name = key.removeprefix(PREFIX)
        if ":" not in name and not name.startswith("h_"):
            return (queue_key(name), name) if name else (key, "")
        rows = self._limiter.queue_rows().values()
        before = [row for row in rows if key.startswith(f"{row.key}:")]
        if any(row.part_limit for row in before):
            return key, ""
        if queue := self.queue_of(key):
            return queue_key(queue), queue
        if before:
            # Tasks may still have partitions of an earlier declaration.
            return key, ""
        raise ValueError(
            "key: expected that of a queue or partition of which anything is known, got: "
            f"{got(key)}; a queue is known once it has a limit: "
            "celery -A APP fairness queue limit QUEUE --global-limit unlimited"
        )

    def expect_parts(self, pattern: str) -> None:
        """Raise ``ValueError`` if a pattern is not that of the partitions of a known queue."""
        key = pattern.removesuffix(ANY)
        rows = self._limiter.queue_rows().values()
        if not any(row.part_limit and key.startswith(f"{row.key}:") for row in rows):
            raise ValueError(
                "key: expected a pattern of the partitions of a queue that has some, such as "
                f"'{PREFIX}emails:*', got: {got(pattern)}"
            )

    def queue_of(self, key: str) -> str:
        """Return the known queue that has this name or this key; "" if there is none."""
        queues = {*self._limiter.queue_rows(), *self._installation.known_queues()}
        name = key.removeprefix(PREFIX)
        if name in queues:
            return name
        return next((each for each in sorted(queues) if queue_key(each) == key), "")

    def expect_partitioned(self, queue: str) -> None:
        """Raise ``PolicyInvalid`` if the tasks of the queue have no partitions."""
        declared = self._installation.settings.queues.get(queue)
        row = self._limiter.queue_rows().get(queue)
        has_partitions = declared is not None and declared.partitioned
        if not has_partitions and (row is None or row.part_limit is None):
            raise PolicyInvalid(
                "partition: expected a queue that the setting queues partitions by by_args or "
                f"by_kind, got: {got(queue)}"
            )

    def expect_checked(self, queue: str) -> None:
        """Raise ``PolicyInvalid`` if no worker would check the queue."""
        # A gate checks only the queues that the settings name.
        if not self._installation.claims and queue not in self._installation.settings.queues:
            raise PolicyInvalid(
                "queue: on a broker that does not claim fairly expected one that the setting "
                f"queues names ({{}} is enough), got: {got(queue)}"
            )
