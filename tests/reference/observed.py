"""The facts that a server shows after a call, beside its answer.

A call does only a bounded part of the work that is due, and no answer names this part. So the
reference observes which tasks exist, run or wait for a time, which have ended without a worker,
and whether a wake-up is set. A person gets the same from `inspect`, `explain` and `find`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import Redis
from redis.client import Pipeline

_OUTCOME = re.compile(r"(?P<owner>\S+) (?P<state>[a-z]+) (?P<length>\d+) (?P<rest>.*)", re.DOTALL)


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
        delayed: By queue, the tasks that wait for a time, and this time (server time in ms).
        outcomes: Outcomes that no worker has written, by the text that names them.
        bells: Queues for which a wake-up is set.
    """

    tasks: frozenset[str]
    leases: frozenset[str]
    delayed: dict[str, dict[str, int]]
    outcomes: dict[str, Outcome]
    bells: frozenset[str]


def read_outcome(text: str) -> Outcome:
    """Read an outcome."""
    match = _OUTCOME.fullmatch(text)
    assert match, text
    length = int(match["length"])
    # The length of the queue is one of bytes.
    rest = match["rest"].encode()
    words = rest[length:].decode().split(" ", 4)
    queue = rest[:length].decode()
    return Outcome(words[1], match["state"], queue, match["owner"], int(words[3]))


class Observer:
    """Reads what a server shows, in the same round trip as the call before."""

    def __init__(self, prefix: str, queues: Sequence[str]) -> None:
        self.prefix, self.queues = prefix, queues

    def ask(self, pipeline: Pipeline) -> None:
        """Add the commands to a pipeline."""
        pipeline.smembers(f"{self.prefix}known")
        pipeline.hkeys(f"{self.prefix}running")
        pipeline.zrange(f"{self.prefix}outcomes", 0, -1)
        for queue in self.queues:
            pipeline.zrange(f"{self.prefix}later:{queue}", 0, -1, withscores=True)
            pipeline.exists(f"{self.prefix}bell:{queue}", f"{self.prefix}left:{queue}")

    def read(self, answers: Sequence[Any]) -> Observed:
        """Read the answers to these commands."""
        tasks, leases, outcomes, *rest = answers
        delayed = {
            queue: {member.split(" ", 3)[2]: int(at) for member, at in rows}
            for queue, rows in zip(self.queues, rest[::2], strict=True)
        }
        bells = [queue for queue, there in zip(self.queues, rest[1::2], strict=True) if there]
        return Observed(
            frozenset(tasks),
            frozenset(leases),
            delayed,
            {text: read_outcome(text) for text in outcomes},
            frozenset(bells),
        )


def records(client: Redis, prefix: str, queue: str) -> dict[str, str]:
    """Return the record of each task of a queue by its tag, wherever it is."""
    found = [member[17:] for member in client.zrange(f"{prefix}later:{queue}", 0, -1)]
    found += client.hvals(f"{prefix}returned")
    found += client.lrange(f"{prefix}dead:{queue}", 0, -1)
    for key in client.keys(f"{prefix}lane:*"):
        # A queue may contain any character of a pattern.
        if key.endswith(f" {queue}"):
            found += client.lrange(key, 0, -1)
    return {record.split(" ", 2)[1]: record for record in found}
