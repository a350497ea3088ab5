"""What must agree with what: one class for each kind of thing that an audit looks at.

Each says which commands read everything that it compares, and what their answers show. The commands
run as one, so what is found did not agree at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from celery_fairness.control.keys import Keys, read_row, tag_of
from celery_fairness.control.scan import Command
from celery_fairness.control.views import Finding

_INFINITE = float("inf")
#: TaskFilter of keys that a queue has only while something waits in its lanes.
_OF_QUEUE = ("ring", "full", "out", "groups", "candidates", "ranked")


class Check(Protocol):
    """One thing that is looked at."""

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        ...

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseOfTask:
    """A claimed task has an end, counts for each of its keys and for no other; its tag is known.

    Attributes:
        lease: Its name.
        keys: Where it may count: those of its row, or that of the count that has it.
    """

    lease: str
    keys: tuple[str, ...] = ()

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HGET", keys.running, self.lease),
            ("ZSCORE", keys.ends, self.lease),
            ("SISMEMBER", keys.known, tag_of(self.lease)),
            ("HEXISTS", keys.charged, self.lease),
            *(("ZSCORE", keys.of("leases", key), self.lease) for key in self.keys),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        text, end, known, charged, *scores = answers
        if text and end is None:
            yield Finding("running has an end", self.lease, "its end in ends", "none")
        if text and not known:
            yield Finding("running is known", self.lease, "its tag in known", "none")
        if not text and end is not None:
            yield Finding("an end is of a running", self.lease, "its row in running", "only an end")
        if not text and charged:
            yield Finding("a charge is of a running", self.lease, "its row in running", "a charge")
        row = read_row(text) if text else None
        for key, score in zip(self.keys, scores, strict=True):
            counted = score is not None and float(score) == _INFINITE
            if row and key in row.task.keys and not counted:
                found = "none" if score is None else "one that ends by itself"
                yield Finding("running is counted", self.lease, f"a lease of {key}", found)
            if row and key not in row.task.keys and counted:
                found = f"a lease of {key}"
                yield Finding("counted is running", self.lease, "of its own keys only", found)
            if not text and counted:
                found = f"a lease of {key}"
                yield Finding("counted is running", self.lease, "its row in running", found)


@dataclass(frozen=True, slots=True)
class BeganLease:
    """A lease of which a key knows when it began runs, under that key.

    Attributes:
        lease: Its name.
        key: Of the limit.
    """

    lease: str
    key: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("ZSCORE", keys.of("began", self.key), self.lease),
            ("ZSCORE", keys.of("leases", self.key), self.lease),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        began, counted = answers
        if began is not None and counted is None:
            expected, found = f"a lease of {self.key}", "when it began"
            yield Finding("what began is counted", self.lease, expected, found)


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant with something waiting somewhere, and whether it is closed."""

    key: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        account = keys.of("account", self.key)
        return [
            ("HKEYS", account),
            ("HGET", account, "closed"),
            ("ZSCORE", keys.closed, self.key),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        fields, closed, judged = answers
        if fields and not any(field.startswith("q:") for field in fields):
            found = "nothing waits"
            yield Finding("a key has an owner", f"account:{self.key}", "a queue in it", found)
        if closed is not None and judged is None:
            yield Finding("closed agrees", self.key, "its key in closed", "none")
        if closed is None and judged is not None:
            yield Finding("closed agrees", self.key, "closed in its account", "not closed")


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """Keys of a queue that are there only while something waits in its lanes."""

    queue: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HGET", keys.waiting, self.queue),
            ("HGET", keys.virtual, self.queue),
            *(("EXISTS", keys.of(kind, self.queue)) for kind in _OF_QUEUE),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        waiting, virtual, *others = answers
        if waiting is not None:
            return
        names = ("virtual", *_OF_QUEUE)
        for name, there in zip(names, (virtual is not None, *others), strict=True):
            if there:
                text = f"{name}:{self.queue}"
                yield Finding("a key has an owner", text, "something waiting", "nothing waits")


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that waits, or is a dead letter, is known; one that came back has its record.

    Attributes:
        tag: Its delivery tag.
        kind: ``lane``, ``back``, ``later`` or ``dead``.
        name: Behind the kind in the key.
        member: What stands there.
    """

    tag: str
    kind: str
    name: str
    member: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        there = "LPOS" if self.kind in ("lane", "dead") else "ZSCORE"
        return [
            (there, keys.of(self.kind, self.name), self.member),
            ("SISMEMBER", keys.known, self.tag),
            ("HEXISTS", keys.returned, self.tag),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        there, known, returned = answers
        if there is None:
            return
        if not known:
            found = f"only in {self.kind}:{self.name}"
            yield Finding("waiting is known", self.tag, "its tag in known", found)
        if self.kind == "back" and not returned:
            found = f"only in back:{self.name}"
            yield Finding("what came back is kept", self.tag, "its record in returned", found)


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """The record of a task that came back has its tag in a lane of its tenant.

    Attributes:
        tag: Its delivery tag.
        key: Who is charged.
        lane: Where it waits.
        kind: What it is.
        queues: Where something of that tenant waits.
    """

    tag: str
    key: str
    lane: str
    kind: str
    queues: tuple[str, ...]

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        lanes = (f"{self.key} {self.lane} {self.kind} {queue}" for queue in self.queues)
        return [
            ("HEXISTS", keys.returned, self.tag),
            ("HKEYS", keys.of("account", self.key)),
            *(("ZSCORE", keys.of("back", lane), self.tag) for lane in lanes),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        kept, fields, *scores = answers
        asked = {f"q:{queue}" for queue in self.queues}
        # A queue that came between may be where it is.
        came = any(field.startswith("q:") and field not in asked for field in fields)
        if kept and not came and all(score is None for score in scores):
            yield Finding("what came back is kept", self.tag, "its tag in back", "only its record")


@dataclass(frozen=True, slots=True)
class NumberKnown:
    """As many tags are known as tasks wait, run or are dead letters.

    Attributes:
        later: Queues in which tasks wait for their time.
        dead: Queues with dead letters.
    """

    later: tuple[str, ...]
    dead: tuple[str, ...]

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("SCARD", keys.known),
            ("HLEN", keys.running),
            ("HVALS", keys.waiting),
            *(("ZCARD", keys.of("later", queue)) for queue in self.later),
            *(("LLEN", keys.of("dead", queue)) for queue in self.dead),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        known, running, waiting, *rest = answers
        later, dead = sum(rest[: len(self.later)]), sum(rest[len(self.later) :])
        wait = sum(map(int, waiting))
        if known != wait + later + running + dead:
            expected = f"{wait} waiting + {later} later + {running} running + {dead} dead"
            yield Finding("number of tasks", "known", expected, str(known))


@dataclass(frozen=True, slots=True)
class KeyOfNobody:
    """A key that no table of the package has."""

    key: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [("EXISTS", keys.prefix + self.key)]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        if answers[0]:
            yield Finding("a key has an owner", self.key, "a key of the package", "another")
