"""What people say of queues' limits, and what is known of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from celery_fairness.errors import NotFound, PolicyInvalid, got
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.looking.values import QueueLimit
from celery_fairness.queues import queue_key, read_queue
from celery_fairness.rates import Rate
from celery_fairness.scheduling.queues import CLEARED, KNOWN, PREFIX, SET, QueueRow
from celery_fairness.units import seconds


class Limiting:
    """The limits of the queues of one installation.

    Args:
        limiter: Of the installation.
        named: The queues that the settings name, where only these can have a limit: a gate does not
            ask for those of others.
    """

    def __init__(self, limiter: Limiter, named: Collection[str] | None = None) -> None:
        self._limiter, self._named = limiter, named

    def of(self, queue: str) -> QueueLimit:
        """Return a queue's limit.

        Raises:
            NotFound: It has none.
        """
        row = self._limiter.queue_rows().get(_named(queue))
        if row is None:
            raise NotFound("queue", queue, "has no limit: neither the settings nor people say one")
        return self._shown(queue, row)

    def set(self, queue: str, numbers: Mapping[str, Any]) -> QueueLimit:
        """Put numbers in the place of the declared ones; see ``Fairness.set_queue_limit``.

        Raises:
            PolicyInvalid: A number cannot be meant, or nobody would obey it.
        """
        policy = read_queue(numbers)
        self._refuse_unasked(_named(queue))
        row = self._limiter.limit_queue(SET, queue, policy.numbers)
        return self._shown(queue, row or QueueRow(queue_key(queue), said=policy.numbers))

    def clear(self, queue: str) -> bool:
        """End what people set; return whether there was something."""
        row = self._limiter.queue_rows().get(_named(queue))
        self._limiter.limit_queue(CLEARED, queue)
        return row is not None and row.said is not None

    def make_known(self, key: str) -> None:
        """People are about to say something of a key: where it is a queue's, claims ask for it.

        Raises:
            PolicyInvalid: Nobody would obey it.
        """
        queue = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and not queue.startswith("h_") and ":" not in queue:
            self._refuse_unasked(queue)
            self._limiter.limit_queue(KNOWN, queue)

    def _refuse_unasked(self, queue: str) -> None:
        if self._named is not None and queue not in self._named:
            raise PolicyInvalid(
                "queue: on a broker that does not claim fairly expected one that the setting "
                f"queues names ({{}} is enough), got: {got(queue)}"
            )

    def _shown(self, queue: str, row: QueueRow) -> QueueLimit:
        numbers = row.numbers
        source = "people" if row.said else "settings" if row.declared else ""
        return QueueLimit(
            queue,
            row.key,
            source,
            row.parts,
            numbers.concurrency,
            numbers.local,
            _rate(numbers.rates[0] if numbers.rates else None),
            _rate(numbers.throttle),
            numbers.on_limit,
            self._limiter.inspect(row.key, "", "").held,
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
