"""The newest numbers of each key, by which all tasks of the key are judged.

Who deploys another number means it for what waits too: else newcomers take every place that opens
by the higher number, and those that came with the lower one never start. So a task says which
numbers it has (a concurrency, rates, a throttle), and the last new task of its key that said such a
number says how large it is.

A task that says no rate is judged by none, whatever others of its key say. A concurrency of 0 stops
the task that says it, and nobody else: one call would stop all others. What was accepted before (a
retry, a copy that a gate has sent back) says older numbers, and declares them only where none are
known.

Weakness: where old and new producers send at once, or calls say numbers of their own for one key on
purpose, the key goes back and forth between them.
"""

from __future__ import annotations

from collections.abc import Iterable

from celery_fairness.config.limit_spec import OF_QUEUE, SIZE, Limit, limit_numbered


class Declared:
    """What the keys of an installation declare.

    Attributes:
        numbers: By key, the newest.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, Limit] = {}

    def declare(self, limits: Iterable[Limit], *, is_new: bool) -> list[str]:
        """A task comes with these limits; return the keys that have other numbers than before."""
        changed = []
        for limit in limits:
            if limit.of or not (limit.concurrency or limit.rates or limit.throttle):
                continue
            known = self.numbers.get(limit.key)
            first, second = (limit, known) if is_new else (known, limit)
            after = Limit(
                limit.key,
                (first and first.concurrency) or (second and second.concurrency) or None,
                (first and first.rates) or (second and second.rates) or (),
                (first and first.throttle) or (second and second.throttle) or None,
            )
            if known is not None and after != known:
                changed.append(limit.key)
            self.numbers[limit.key] = after
        return changed

    def judged(self, limit: Limit) -> Limit:
        """Return a limit with the newest numbers of its key, of those that it says."""
        newest = self.numbers.get(limit.key)
        if limit.of or newest is None:
            return limit
        return limit._replace(
            concurrency=(limit.concurrency and newest.concurrency) or limit.concurrency,
            rates=(limit.rates and newest.rates) or limit.rates,
            throttle=(limit.throttle and newest.throttle) or limit.throttle,
        )

    def at(self, name: str) -> Limit:
        """Return the limit at which tasks wait, by its name."""
        key, concurrency, rates, throttle = name.split("|")
        if concurrency == OF_QUEUE:
            return limit_numbered(name)
        newest = self.numbers.get(key, Limit(key))
        return Limit(
            key,
            newest.concurrency
            if concurrency == SIZE
            else int(concurrency)
            if concurrency
            else None,
            newest.rates if rates else (),
            newest.throttle if throttle else None,
        )
