"""What must agree with what: one class for each kind of thing that an audit looks at.

Each says which commands read everything that it compares, and what their answers show. The commands
run as one, so what is found did not agree at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from celery_fairness.looking.keys import RANKS, Keys, is_back, lane_key, lane_length
from celery_fairness.looking.reading import Command
from celery_fairness.looking.values import Finding

_INFINITE = float("inf")
#: More than any sequence number; what stands before one in the order of lanes is a rank.
AFTER_ALL = 2**49


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
    """The lease of a claimed task is in three tables; its tag is known.

    Attributes:
        lease: Its name.
        key: Who is charged; "" where only the lease is known.
    """

    lease: str
    key: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HEXISTS", keys.running, self.lease),
            ("ZSCORE", keys.ends, self.lease),
            ("ZSCORE", keys.of("leases", self.key), self.lease),
            ("SISMEMBER", keys.known, self.lease.rpartition(".")[0]),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        runs, end, score, known = answers
        counted = score is not None and float(score) == _INFINITE
        if runs and end is None:
            yield Finding("running has an end", self.lease, "its end in ends", "none")
        if runs and self.key and not counted:
            found = "none" if score is None else "one that ends by itself"
            yield Finding("running is counted", self.lease, f"a lease of {self.key}", found)
        if runs and not known:
            yield Finding("running is known", self.lease, "its tag in known", "none")
        if not runs and counted:
            found = f"a lease of {self.key}"
            yield Finding("counted is running", self.lease, "its row in running", found)
        if not runs and end is not None:
            yield Finding("an end is of a running", self.lease, "its row in running", "only an end")


@dataclass(frozen=True, slots=True)
class Place:
    """A tenant in a queue: its count, its lanes, its place in ring or full.

    Attributes:
        key: Who is charged.
        queue: Where.
        back: Its lanes of what came back, as ``ready`` named them just now.
    """

    key: str
    queue: str
    back: tuple[str, ...]

    @property
    def name(self) -> str:
        """How it is called in a finding."""
        return f"{self.key} {self.queue}"

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        account = keys.of("account", self.key)
        return [
            ("HGET", account, f"q:{self.queue}"),
            ("HGET", account, "closed"),
            ("ZSCORE", keys.closed, self.key),
            ("ZSCORE", keys.of("ring", self.queue), self.key),
            ("ZSCORE", keys.of("full", self.queue), self.key),
            ("ZRANGE", keys.of("ready", f"{self.key} {self.queue}"), 0, -1),
            *(lane_length(keys, self.key, lane, self.queue) for lane in (*RANKS, *self.back)),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        count, closed, judged, ring, full, ready, *lengths = answers
        if not set(filter(is_back, ready)) <= set(self.back):
            # One came between, and was not counted.
            return
        counted = int(count or 0)
        lanes = sum(lengths)
        if counted != lanes:
            yield Finding(
                "waiting of a tenant", self.name, f"{lanes} (its lanes)", f"{counted} (its account)"
            )
        places = [kind for kind, start in (("ring", ring), ("full", full)) if start is not None]
        found = " and ".join(places) or "neither"
        if lanes and len(places) != 1:
            yield Finding("place of a tenant", self.name, "ring or full", found)
        if not lanes and places:
            yield Finding("place of a tenant", self.name, "neither: nothing waits", found)
        if full is not None and closed is None:
            yield Finding("full is closed", self.name, "closed in its account", "not closed")
        if full is not None and judged is None:
            yield Finding("full is closed", self.name, "its key in closed", "none")
        named = zip((*RANKS, *self.back), lengths, strict=True)
        filled = sorted(lane for lane, length in named if length)
        if sorted(ready) != filled:
            yield Finding("lanes of a tenant", self.name, _names(filled), _names(sorted(ready)))


@dataclass(frozen=True, slots=True)
class BackLane:
    """A lane of what came back stands in its tenant's order where its first task does."""

    key: str
    lane: str
    queue: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("ZRANGE", lane_key(keys, self.key, self.lane, self.queue), 0, 0, "WITHSCORES"),
            ("ZSCORE", keys.of("ready", f"{self.key} {self.queue}"), self.lane),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        first, order = answers
        expected = None if not first else str(int(first[1]))
        found = None if order is None else str(int(float(order)) % AFTER_ALL)
        if expected != found:
            name = f"{self.key} {self.lane} {self.queue}"
            yield Finding("order of lanes", name, expected or "none", found or "none")


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
            *(("EXISTS", keys.of(kind, self.queue)) for kind in ("ring", "full", "out")),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        waiting, virtual, *others = answers
        if waiting is not None:
            return
        names = ("virtual", "ring", "full", "out")
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
        kind: What it is.
        queues: Where something of that tenant waits.
    """

    tag: str
    key: str
    kind: str
    queues: tuple[str, ...]

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        lanes = (
            f"{self.key} {rank} {self.kind} {queue}" for queue in self.queues for rank in RANKS
        )
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


def _names(lanes: list[str]) -> str:
    return " ".join(lanes) or "none"
