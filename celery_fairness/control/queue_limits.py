"""What people say of queues' limits, and what is known of them."""

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
        limiter: Of the installation.
        named: The queues that the settings name, where only these can have a limit: a gate does not
            ask for those of others.
        known: Returns the queues that are known, also of those without a limit.
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
        """Put numbers in the place of the declared ones; see ``QueuesApi.set_limit``.

        Raises:
            PolicyInvalid: A number cannot be meant, or nobody would obey it.
        """
        policy = read_queue(numbers)
        self._refuse_unasked(_named(queue))
        row = self._limiter.limit_queue(SET, queue, policy.numbers)
        return self._shown(queue, row or QueueRow(queue_key(queue), by_operator=policy.numbers))

    def clear(self, queue: str) -> bool:
        """End what people set; return whether there was something."""
        row = self._limiter.queue_rows().get(_named(queue))
        self._limiter.limit_queue(CLEARED, queue)
        return row is not None and row.by_operator is not None

    def make_known(self, queue: str) -> None:
        """People are about to say something of a queue's key: claims ask for it from now on.

        Raises:
            PolicyInvalid: Nobody would obey it.
        """
        self._refuse_unasked(queue)
        self._limiter.limit_queue(KNOWN, queue)

    def find(self, key: str, is_used: Callable[[str], bool]) -> tuple[str, str]:
        """Return the key of a limit that people mean, and the queue whose it is.

        A colon stands before a partition, and may stand in the name of a queue, whose key is then a
        hash. So what is there is meant, and the first of that is what has the key as it stands.

        Args:
            key: As people say it, ``queue:`` before it.
            is_used: Says whether anything is known of a key.

        Returns:
            The key as the functions write it, and the queue; "" where it is no queue's as a whole.

        Raises:
            ValueError: It may be several things, and none of them is there.
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
        """Return the known queue that is called so, or whose key it is; "" where none is."""
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
