"""The facts that a server shows after a call, beside its answer.

A call does only a bounded part of the work that is due, and no answer names this part. So the
reference observes which tasks exist, run or wait for a time, which have ended without a worker,
and whether a wake-up is set. A person gets the same from `inspect`, `explain` and `find`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.client import Pipeline

from celery_fairness.control.installation.task_records import read_head
from tests.reference.events import Event, read_events
from tests.support.tables import exceeded_in

MINUTE_MS = 60_000
#: The states of dead letters.
LETTERS = ("dead", "unreadable")


class Outcome(NamedTuple):
    """The end of a task that no worker ran.

    Attributes:
        tag: Of the task.
        state: How it ended.
        queue: Where it was.
        owner: The process that held it last. For a dropped task it is the key of the limit.
        deaths: How often its process died.
    """

    tag: str
    state: str
    queue: str
    owner: str
    deaths: int


class Observed(NamedTuple):
    """The facts that a server shows.

    Attributes:
        tasks: Tags of the tasks that exist.
        leases: Names of the leases of claimed tasks.
        others: Names of the other leases.
        delayed: By queue, the tasks that wait for a time, and this time (server time in ms).
        outcomes: Outcomes that no worker has written, by the tag of the task.
        bells: Queues for which a wake-up is set.
        cooled: Keys of the cool-downs that are stored.
        saving: What keys save for a task, by key.
        events: The events of tasks since the last look, if they are observed.
        rejections: What was added since to the counts of rejections, by strategy and key.
        minute: What was added since to the counts of the minute.
    """

    tasks: frozenset[str]
    leases: frozenset[str]
    others: frozenset[str]
    delayed: dict[str, dict[str, int]]
    outcomes: dict[str, Outcome]
    bells: frozenset[str]
    cooled: frozenset[str] = frozenset()
    saving: Mapping[str, str] = {}
    events: tuple[Event, ...] = ()
    rejections: Mapping[str, int] = {}
    minute: Mapping[str, int] = {}


class Observer:
    """Reads what a server shows, in the same round trip as the call before.

    Args:
        prefix: Of all keys.
        queues: The queues that are observed.
        has_events: Events and statistics are observed too.
    """

    def __init__(self, prefix: str, queues: Sequence[str], has_events: bool = False) -> None:
        self.prefix, self.queues, self.has_events = prefix, queues, has_events
        self.forget()

    def forget(self) -> None:
        """The server has lost its memory."""
        #: The last event that was read, and the counts by their keys.
        self.last = "0"
        self.counts: dict[str, dict[str, int]] = {}
        self._minute = ""

    def ask(self, pipeline: Pipeline, now_ms: int = 0) -> None:
        """Add the commands to a pipeline."""
        pipeline.hgetall(f"{self.prefix}tasks")
        pipeline.hgetall(f"{self.prefix}running")
        pipeline.zrange(f"{self.prefix}outcomes", 0, -1)
        pipeline.zrange(f"{self.prefix}cool_downs", 0, -1)
        pipeline.hgetall(f"{self.prefix}virtual_times")
        for queue in self.queues:
            pipeline.zrange(f"{self.prefix}scheduled:{queue}", 0, -1, withscores=True)
            pipeline.exists(f"{self.prefix}wakeup:{queue}", f"{self.prefix}wakeup_leftover:{queue}")
        if self.has_events:
            self._minute = f"{self.prefix}stats:{now_ms // MINUTE_MS}"
            pipeline.hgetall(f"{self.prefix}counters")
            pipeline.hgetall(self._minute)
            pipeline.xrange(f"{self.prefix}events", f"({self.last}")

    def read(self, answers: Sequence[Any]) -> Observed:
        """Read the answers to these commands."""
        heads, running, ended, cooled, times, *rest = answers
        saving = {name[7:]: text for name, text in times.items() if name.startswith("saving ")}
        rows, minute, rejections = [], {}, {}
        others = {name for name, row in running.items() if row.split(" ")[2].startswith("held")}
        claimed = [(tag, row) for tag, row in running.items() if tag not in others]
        if self.has_events:
            *rest, counts, minute, rows = rest
            rejections = exceeded_in(counts)
        self.last = rows[-1][0] if rows else self.last
        delayed = {
            queue: {member.split(" ", 1)[1]: int(at) for member, at in members}
            for queue, members in zip(self.queues, rest[::2], strict=True)
        }
        outcomes = {tag: _outcome(tag, heads[tag]) for tag in ended}
        # The record of a task that has ended stays until its result is written.
        gone = {tag for tag, each in outcomes.items() if each.state not in LETTERS}
        bells = [queue for queue, there in zip(self.queues, rest[1::2], strict=True) if there]
        return Observed(
            frozenset(heads.keys() - gone),
            frozenset(f"{tag}.{row.partition(' ')[0]}" for tag, row in claimed),
            frozenset(others),
            delayed,
            outcomes,
            frozenset(bells),
            frozenset(cooled),
            saving,
            tuple(read_events(rows)),
            self._added("rejections", rejections),
            self._added(self._minute, minute),
        )

    def _added(self, name: str, fields: Mapping[str, str]) -> dict[str, int]:
        """Return what was added to the counts of a key since they were read last."""
        before = self.counts.get(name, {})
        now = self.counts[name] = {
            field: int(number)
            for field, number in fields.items()
            # Two numbers, of the whole hour.
            if not field.startswith("observed ")
        }
        added = {field: number - before.get(field, 0) for field, number in now.items()}
        return {field: number for field, number in added.items() if number}


def _outcome(tag: str, head: str) -> Outcome:
    task = read_head(tag, head)
    assert task is not None
    state, owner = task.rejected_by.split("|")
    return Outcome(tag, state, task.queue, owner, task.deaths)
