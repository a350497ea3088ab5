"""Reads and writes the limits of queues, by name or by key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from celery_fairness.config.queue_limits import CLEARED, KNOWN, PREFIX, SET, QueueRow
from celery_fairness.config.queue_policy import queue_key, read_queue
from celery_fairness.config.rates import Rate
from celery_fairness.control.views import QueueLimit
from celery_fairness.errors import PolicyInvalid, got
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.util.durations import seconds


class QueueLimits:
    """The limits of the queues of one installation.

    Args:
        limiter: The limiter of the installation.
        named: The queues that the settings name, if only these can have a limit. A gate checks no
            others. None if any queue can have one.
        known: Returns the known queues, with and without a limit.
    """

    def __init__(
        self,
        limiter: Limiter,
        named: Collection[str] | None = None,
        known: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._limiter, self._named, self._known = limiter, named, known

    def all(self) -> list[QueueLimit]:
        """Return the limits of all queues that have one."""
        return [self._shown(queue, row) for queue, row in self._limiter.queue_rows().items()]

    def find_limit(self, queue: str) -> QueueLimit | None:
        """Return a queue's limit, None if it has none."""
        row = self._limiter.queue_rows().get(_named(queue))
        return None if row is None else self._shown(queue, row)

    def set(self, queue: str, numbers: Mapping[str, Any]) -> QueueLimit:
        """Replace the declared numbers of a queue; see ``QueuesApi.set_limit``.

        Raises:
            PolicyInvalid: A number is invalid, or no worker would check the queue.
        """
        policy = read_queue(numbers)
        self._refuse_unasked(_named(queue))
        row = self._limiter.limit_queue(SET, queue, policy.numbers)
        return self._shown(queue, row or QueueRow(queue_key(queue), by_operator=policy.numbers))

    def clear(self, queue: str) -> bool:
        """End an operator's limit; return whether there was one."""
        row = self._limiter.queue_rows().get(_named(queue))
        self._limiter.limit_queue(CLEARED, queue)
        return row is not None and row.by_operator is not None

    def make_known(self, queue: str) -> None:
        """Make claims check a queue's key from now on, before an operator changes the key.

        Raises:
            PolicyInvalid: No worker would check the queue.
        """
        self._refuse_unasked(queue)
        self._limiter.limit_queue(KNOWN, queue)

    def find(self, key: str, is_used: Callable[[str], bool]) -> tuple[str, str]:
        """Return the key that an operator means, in its form in Redis, and its queue.

        A colon begins a partition, but it may also occur in a queue's name, and then the key has a
        hash. So the text may have several meanings. The first one that exists is used. A key in
        exactly this form comes before a queue of this name.

        Args:
            key: The typed key, which begins with ``queue:``.
            is_used: Returns whether anything is known of a key.

        Returns:
            The key and the queue. The queue is "" if the key is not of a whole queue.

        Raises:
            ValueError: The text has several meanings, and none of them exists.
        """
        name = key.removeprefix(PREFIX)
        if ":" not in name and not name.startswith("h_"):
            return (queue_key(name), name) if name else (key, "")
        queue = self.queue_of(key)
        if queue and (queue_key(queue) == key or not is_used(key)):
            return queue_key(queue), queue
        rows = self._limiter.queue_rows().values()
        if is_used(key) or any(row.parts and key.startswith(f"{row.key}:") for row in rows):
            return key, ""
        raise ValueError(
            "key: expected that of a queue or partition of which anything is known, got: "
            f"{got(key)}; a queue is known once it has a limit: "
            "celery -A APP fairness queue limit QUEUE --global-limit unlimited"
        )

    def queue_of(self, key: str) -> str:
        """Return the known queue that has this name or this key; "" if there is none."""
        queues = {*self._limiter.queue_rows(), *self._known()}
        name = key.removeprefix(PREFIX)
        if name in queues:
            return name
        return next((each for each in sorted(queues) if queue_key(each) == key), "")

    def _refuse_unasked(self, queue: str) -> None:
        if self._named is not None and queue not in self._named:
            raise PolicyInvalid(
                "queue: on a broker that does not claim fairly expected one that the setting "
                f"queues names ({{}} is enough), got: {got(queue)}"
            )

    def _shown(self, queue: str, row: QueueRow) -> QueueLimit:
        numbers = row.numbers
        source = "people" if row.by_operator else "settings" if row.declared else ""
        return QueueLimit(
            queue=queue,
            key=row.key,
            source=source,
            partitioned=row.parts,
            global_limit=numbers.concurrency,
            local_limit=numbers.local,
            rate=_rate(numbers.rates[0] if numbers.rates else None),
            throttle=_rate(numbers.throttle),
            on_limit=numbers.on_limit,
            held=self._limiter.inspect(row.key, "", "").held,
        )


def _rate(window: tuple[int, int] | None) -> Mapping[str, Any] | None:
    return None if window is None else Rate(window[0], seconds(window[1])).to_ojs()


def _named(queue: Any) -> str:
    if not isinstance(queue, str) or not queue:
        raise PolicyInvalid(f"queue: expected its name, got: {got(queue)}")
    try:
        queue.encode()
    except UnicodeEncodeError:
        raise PolicyInvalid("queue: expected text that is valid UTF-8") from None
    return queue
