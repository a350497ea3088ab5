"""What must agree of limits beside the tiers': groups that wait, candidates, and what was started.

As in ``checks``: the commands of one run as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_fairness.config.limit_spec import OF_QUEUE, SIZE
from celery_fairness.config.queue_limits import read_row
from celery_fairness.control.keys import CLOSED, PAUSED, Keys, key_of_limit, may_wait_at
from celery_fairness.control.scan import Command
from celery_fairness.control.views import Finding


@dataclass(frozen=True, slots=True)
class Group:
    """A group waits at one of its limits, by the least of its tenants' tags.

    Attributes:
        group: Its name.
        queue: Where its lanes are.
        limit: Where it waits, as some table says; "" where none does.
    """

    group: str
    queue: str
    limit: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HGET", keys.of("groups", self.queue), self.group),
            ("ZRANGE", keys.of("group", f"{self.group} {self.queue}"), 0, 0, "WITHSCORES"),
            ("ZSCORE", keys.of("wait", f"{self.limit} {self.queue}"), self.group),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        limit, first, tag = answers
        name = f"{self.group} {self.queue}"
        if (limit or "") != self.limit:
            # It moved since, or waits at two.
            if tag is not None:
                expected = f"in wait only at {limit or 'no limit'}"
                yield Finding("a group waits once", name, expected, f"at {self.limit}")
            return
        if not limit and first:
            yield Finding("a group waits somewhere", name, "its limit in groups", "none")
        if not limit:
            return
        if limit not in may_wait_at(self.group):
            yield Finding("a group waits at its own", name, "one of its limits", limit)
        if not first:
            yield Finding("a group has tenants", name, "one with a parked lane", "nobody")
        elif tag is None or float(tag) != float(first[1]):
            found = "none" if tag is None else tag
            yield Finding("order of groups", name, f"{first[1]} in wait, as {first[0]}", found)


@dataclass(frozen=True, slots=True)
class WaitingLimit:
    """A limit at which groups of a queue wait; what is closed will be looked at again."""

    limit: str
    queue: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        key = key_of_limit(self.limit)
        name = f"{self.limit} {self.queue}"
        return [
            ("EXISTS", keys.of("wait", name)),
            ("ZSCORE", keys.of("candidates", self.queue), self.limit),
            ("LPOS", keys.of("waited", key), name, "COUNT", 0),
            ("ZCARD", keys.of("leases", key)),
            ("ZMSCORE", keys.opens, key, f" {key}"),
            ("SISMEMBER", keys.paused, key),
            ("ZSCORE", keys.cooled, key),
            ("ZSCORE", keys.paused_until, key),
            ("HGET", keys.overrides, key),
            ("HGET", keys.queue_limits, self.queue),
            ("GET", keys.of("declared", key)),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        waits, looked, places, leases, opens, paused, cooled, until, override, *told = answers
        name = f"{self.limit} {self.queue}"
        if waits and looked is None:
            yield Finding("candidates of a queue", name, "a row in candidates", "none")
        if waits and len(places) != 1:
            found = f"{len(places)} times"
            yield Finding("waited is looked at", name, "once in the list of its key", found)
        if not waits and looked is not None:
            yield Finding("candidates of a queue", name, "a group that waits", "only a candidate")
        if not waits and places:
            yield Finding("waited is looked at", name, "a group that waits", "only in the list")
        # With other numbers than its name says it may be open or closed.
        if looked is not None and override is None:
            stopped = bool(paused) or cooled is not None or until is not None
            numbers = self._concurrency(*told)
            opens_alone = any(at is not None for at in opens)
            yield from self._opens(name, float(looked), numbers, leases, opens_alone, stopped)

    def _concurrency(self, row: str | None, declared: str | None) -> str:
        """Return its concurrency as text: the newest of its key, of a partition its queue's."""
        word = self.limit.split("|")[1] if "|" in self.limit else ""
        if word == SIZE:
            return declared.partition("|")[0] if declared else ""
        if word != OF_QUEUE:
            return word
        numbers = read_row(row).numbers if row else None
        return "" if numbers is None or numbers.concurrency is None else str(numbers.concurrency)

    def _opens(
        self,
        name: str,
        looked: float,
        concurrency: str,
        leases: int,
        opens_alone: bool,
        stopped: bool,
    ) -> Iterator[Finding]:
        older = looked != int(looked) and looked < 0
        if older:
            # By which numbers a partition was found closed: others may hold since.
            return
        # A queue's numbers may be 0 since its partition was found open: the next look sees it.
        is_news = looked >= 0 and f"|{OF_QUEUE}|" in self.limit
        if concurrency == "0" and looked != PAUSED and not is_news:
            yield Finding("candidates of a queue", name, "paused", f"{looked:.0f}")
        if looked == PAUSED and concurrency != "0" and not stopped and not opens_alone:
            yield Finding("candidates of a queue", name, "not paused", f"{looked:.0f}")
        full = bool(concurrency) and leases >= int(concurrency)
        if looked == CLOSED and not full and not opens_alone:
            expected = "a time in opens, or as many leases"
            yield Finding("a closed limit opens", name, expected, f"{leases} leases and no time")


@dataclass(frozen=True, slots=True)
class LimitOfQueue:
    """A queue's limit is found by its queue and by its key, and claims ask for it."""

    queue: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HGET", keys.queue_limits, self.queue),
            ("HGETALL", keys.queue_keys),
            ("HMGET", keys.clock, "limited", "queued"),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        row, owners, flags = answers
        found = {key for key, queue in owners.items() if queue == self.queue}
        expected = {read_row(row).key} if row else set()
        if found != expected:
            names = " and ".join(sorted(found)) or "none"
            wanted = " and ".join(expected) or "no key of it"
            yield Finding("a queue's limit has a key", self.queue, wanted, names)
        if row and not all(flags):
            yield Finding("claims look at limits", self.queue, "queued in the clock", "none")


@dataclass(frozen=True, slots=True)
class LimitKey:
    """A key at whose limits something waits, and what is kept only meanwhile."""

    key: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("EXISTS", keys.of("waited", self.key)),
            ("HGET", keys.clock, "limited"),
            ("HEXISTS", keys.shared, self.key),
            ("EXISTS", keys.of("tags", self.key)),
            ("HEXISTS", keys.looks, self.key),
            ("ZMSCORE", keys.opens, self.key, f" {self.key}"),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        waited, limited, shared, tags, looks, opens = answers
        if waited and not limited:
            yield Finding("claims look at limits", self.key, "limited in the clock", "none")
        if waited and not shared:
            yield Finding("a key is waited for", self.key, "its virtual time in shared", "none")
        at, goes_on = opens
        if bool(looks) != (goes_on is not None):
            found = "only left looks" if looks else "only a time"
            yield Finding("a closed limit opens", self.key, "left looks and a time", found)
        if waited:
            return
        kept = {"shared": shared, "tags": tags, "looks": looks, "opens": at is not None}
        if any(kept.values()):
            found = " and ".join(table for table, there in kept.items() if there)
            yield Finding("a key is waited for", self.key, "something in waited", f"only {found}")


@dataclass(frozen=True, slots=True)
class StartsOfKey:
    """What a key remembers of its starts, until it is idle."""

    key: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HMGET", keys.of("window", self.key), "count", "kept"),
            ("ZRANGE", keys.of("starts", self.key), -1, -1),
            ("ZSCORE", keys.idle, self.key),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        (count, kept_ms), last, idle = answers
        tables = {"window": bool(count and kept_ms), "starts": bool(last), "idle": idle is not None}
        if not any(tables.values()):
            return
        if not all(tables.values()):
            found = " and ".join(table for table, there in tables.items() if there)
            yield Finding("starts of a key", self.key, "window, starts and idle", f"only {found}")
            return
        number, _, at = last[0].partition(" ")
        if number != count:
            yield Finding(
                "starts of a key", self.key, f"{count} (its window)", f"{number} (starts)"
            )
        elif float(idle) != int(at) + int(kept_ms):
            expected = f"idle at {int(at) + int(kept_ms)}"
            yield Finding("starts of a key", self.key, expected, f"{float(idle):.0f}")
