"""The events of tasks: types, tasks, keys and order, and which of them occur at most once.

The call that ends or starts a task emits its event. A limit may reject a task often, and emits
`rate_limit.exceeded` for the first time alone. `rate_limit.released` follows once, if the task
starts, and names the same limit.

Weakness: no rule demands a `rate_limit.exceeded`, because a claim stops at its bounds before it has
met every head. Tests of the scheduler demand it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.reference.objection import require

#: The event of a task that ends without a worker, by the state of its outcome.
OF_OUTCOME = {
    "acked": "fairness.abandoned",
    "cancelled": "fairness.cancelled",
    "dead": "fairness.dead_lettered",
    "dropped": "rate_limit.dropped",
    "duplicate": "fairness.duplicate",
    "expired": "fairness.expired",
    "replaced": "fairness.replaced",
    "unpublished": "fairness.unpublished",
    "unreadable": "fairness.dead_lettered",
}
EXCEEDED, RELEASED = "rate_limit.exceeded", "rate_limit.released"
#: Types whose events have the order of the answer. Others of one call have any order.
ORDERED = {RELEASED, "fairness.cancelled", "fairness.lease_expired", "fairness.requeued"}
JUDGED = {*OF_OUTCOME.values(), EXCEEDED, RELEASED, *ORDERED}


class Event(NamedTuple):
    """One event of a task.

    Attributes:
        type: One of `JUDGED`.
        tag: Of the task.
        queue: Of the task.
        fields: The fields that only this type has, in the order of their names.
    """

    type: str
    tag: str
    queue: str
    fields: tuple[tuple[str, str], ...] = ()


def read_events(rows: Sequence[tuple[str, dict[str, str]]]) -> list[Event]:
    """Read the events of tasks among the entries of the stream."""
    found = []
    for _, row in rows:
        if row["type"] in JUDGED:
            # The id in a message names the task as its tag does.
            number = row["job_id"].removeprefix("id-").removeprefix("tag.")
            names = sorted(row.keys() - {"type", "job_id", "job_type", "queue"})
            own = tuple((name, row[name]) for name in names)
            found.append(Event(row["type"], f"tag.{number}", row["queue"], own))
    return found


class Book:
    """The events that one call must emit."""

    def __init__(self) -> None:
        self._expected: list[Event] = []

    def expect(self, kind: str, tag: str, queue: str, **fields: str) -> None:
        """The call emits this event."""
        self._expected.append(Event(kind, tag, queue, tuple(sorted(fields.items()))))

    def check(self, events: Sequence[Event], is_rejected: Callable[[Event], bool]) -> None:
        """Compare the events of a call with those that it must emit.

        Args:
            events: In their order.
            is_rejected: Judges a `rate_limit.exceeded`.
        """
        expected, self._expected = self._expected, []
        for event in events:
            if event.type == EXCEEDED:
                rule = "a task is reported as rejected once, by a limit that rejects it"
                require(is_rejected(event), rule, event=event)
        for kind in sorted(JUDGED - {EXCEEDED}):
            own = [event for event in expected if event.type == kind]
            got = [event for event in events if event.type == kind]
            if kind not in ORDERED:
                own, got = sorted(own), sorted(got)
            require(own == got, "a call emits the events of its tasks", expected=own, got=got)
