"""One worker and its producers on the function library, with a frozen clock.

Tests compare answers: which tasks a claim gives and how long it lets the worker sleep, outcomes,
events and times. Facts that no answer names come from `Observer`, so no test here names a table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis import Redis

from celery_fairness.config.limit_spec import Limit, keys_of_lease, write_limits
from celery_fairness.config.numbers import write_numbers
from celery_fairness.config.queue_limits import write_queue
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.tiers import Tier, write_tier
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import (
    Claim,
    Claimed,
    Full,
    Put,
    Rules,
    Settle,
    Settled,
    SkippedTasks,
    Verdict,
    Waiting,
)
from celery_fairness.store.library import Library, library
from tests.reference.budget import Budget
from tests.reference.observed import Observed, Observer
from tests.reference.walk import library_of
from tests.support.library import call
from tests.support.tables import findings

START_MS = 1_760_000_000_000
RULES = Rules(default_limit=None)
PREFIX = "{fairness}:"


def message_of(number: int) -> str:
    """Return the message of a task as kombu writes it."""
    headers = {"lang": "py", "task": "shop.send", "id": f"id-{number}"}
    return json.dumps({"body": "eyI=" * 9, "headers": headers, "properties": {}})


def number_of(task: Claimed | str) -> int:
    """Return the number of a task, by the task or by the name of its lease or tag."""
    return int((task if isinstance(task, str) else task.lease).split(".")[1])


class Shop:
    """One worker and its producers. A task has the number of its put, from 1.

    Args:
        client: Of an empty server. It decodes answers.
        rules: Those of the worker.
        budget: The bounds of one call. None: those of production.
        prefix: Of all keys.
    """

    def __init__(
        self,
        client: Redis,
        rules: Rules = RULES,
        budget: Budget | None = None,
        prefix: str = PREFIX,
    ) -> None:
        self.client, self.rules, self.prefix = client, rules, prefix
        self.library: Library = library_of(budget) if budget else library()
        self.now = START_MS
        self.granted: list[Claimed] = []
        self.queues = {"q"}
        self.tags = 0
        self.numbers: Counter[str] = Counter()
        self.answer: Claim | None = None
        self.epoch: int | None = None
        self.told = 0
        self.saved: dict[str, bytes] = {}

    def run(self, function: str, args: Sequence[Any]) -> Any:
        return call(self.client, function, self.prefix, args, self.library)

    def at(self, milliseconds: int) -> None:
        """Set the clock to so long after the start."""
        self.now = START_MS + milliseconds

    # -- producers --------------------------------------------------------------------------------

    def put(self, tenant: str, *limits: Limit, times: int = 1, **fields: Any) -> Put | Full:
        """Put tasks with these limits. Return the answer to the last of these puts."""
        for _ in range(times):
            answer = self.put_task(tenant, limits=write_limits(limits), **fields)
        return answer

    def put_task(
        self,
        tenant: str,
        queue: str = "q",
        number: int | None = None,
        *,
        kind: str = "x",
        later: int | None = None,
        expires: int | None = None,
        **fields: Any,
    ) -> Put | Full:
        """Put one task.

        Args:
            tenant: Its tenant.
            queue: Its queue.
            number: That of an earlier task, to send its put again.
            kind: The task's name.
            later: Milliseconds from now until its time.
            expires: Milliseconds from now until its expiry.
            fields: More fields of `Waiting`.
        """
        self.queues.add(queue)
        if number is None:
            self.tags += 1
            number = self.tags
        waiting = Waiting(
            queue,
            f"tag.{number}",
            tenant,
            message=message_of(number),
            kind=kind,
            task_id=f"id-{number}",
            eta_ms=0 if later is None else self.now + later,
            expires_ms=0 if expires is None else self.now + expires,
            **fields,
        )
        return calls.read_put(self.run(calls.PUT, calls.put_args(waiting, str(self.now))))

    # -- the worker -------------------------------------------------------------------------------

    def claim(
        self,
        want: int = 10,
        queues: Sequence[str] = ("q",),
        enforcement: str = "on",
        never: Sequence[str] = (),
        scope: str = "tenant",
        *,
        owner: str = "w",
        epoch: int | None = None,
        **passing: Any,
    ) -> tuple[list[int], int]:
        """Claim. Return the numbers of the tasks that were given, and how long to sleep."""
        self.queues.update(queues)
        self.numbers[owner] += 1
        rules = self.rules_of(enforcement, scope)
        args = calls.claim_args(
            owner,
            self.numbers[owner],
            want,
            queues,
            rules,
            str(self.now),
            SkippedTasks(tuple(never), **passing),
            epoch,
        )
        self.answer = calls.read_claim(self.run(calls.CLAIM, args))
        self.granted += self.answer.tasks
        return [number_of(task) for task in self.answer.tasks], self.answer.sleep_ms

    def rules_of(self, enforcement: str = "on", scope: str = "tenant") -> Rules:
        return replace(self.rules, enforcement=enforcement, priority_scope=scope)

    def running(self) -> list[Claimed]:
        """Return the tasks that run, in the order in which they began."""
        leases = self.seen().leases
        # A restored memory gives a lease of the same name once more.
        given = {task.lease: task for task in self.granted}
        return [task for name, task in given.items() if name in leases]

    def settle(
        self, tasks: Sequence[Claimed], verdict: Verdict = Verdict.DONE, begun: bool = True
    ) -> list[Settled]:
        ends = [Settle(task.lease, verdict, begun) for task in tasks]
        args = calls.settle_args(ends, self.rules, str(self.now))
        return calls.read_settle(self.run(calls.SETTLE, args))

    def end(self, verdict: Verdict = Verdict.DONE) -> None:
        """End all that run, one after the other."""
        for task in self.running():
            self.settle([task], verdict)

    def end_one(self, position: int, verdict: Verdict = Verdict.DONE, begun: bool = True) -> None:
        """End one of those that run, in the order in which they began."""
        self.settle([self.running()[position]], verdict, begun)

    def end_late(self, position: int, verdict: Verdict = Verdict.DONE) -> None:
        """End one of all that have begun, whether or not its lease lives."""
        self.settle([self.granted[position]], verdict)

    def renew(self, *tasks: Claimed, epoch: int | None = None) -> list[int]:
        """Renew leases, and let the clock go on. Return the positions of those that are gone."""
        held = [(task.lease, task.key) for task in tasks]
        args = calls.renew_args(held, self.rules, epoch, str(self.now))
        self.epoch, missing = calls.read_renew(self.run(calls.RENEW, args))
        return missing

    def lapse(self, *kept: Claimed) -> None:
        """A lease's time passes, in which the worker keeps some leases."""
        for _ in range(4):
            self.now += self.rules.lease_ms // 3
            self.renew(*kept)

    def next_outcome(self, written: str = "") -> Any:
        args = calls.next_outcome_args(written, self.rules, str(self.now))
        return calls.read_next_outcome(self.run(calls.NEXT_OUTCOME, args))

    # -- operators --------------------------------------------------------------------------------

    def stop(
        self, how: str, key: str, wait_ms: int = 0, enforcement: str = "on"
    ) -> tuple[bool, int]:
        """Change a key's holds. Return whether it is paused, and for how long it cools down."""
        args = calls.stop_args(
            *(how, key, wait_ms, self.rules.lease_ms, enforcement, str(self.now)),
            "a reason",
            "an operator",
        )
        answer = calls.read_stop(self.run(calls.STOP, args))
        return answer.pause_ms is None or answer.pause_ms > 0, answer.cool_ms

    def override(
        self, key: str, lasts_ms: int | None = None, enforcement: str = "on", **numbers: Any
    ) -> Any:
        """Set numbers of a key for ``lasts_ms``, or without an end; without any, clear them."""
        ends_ms = None if lasts_ms is None else self.now + lasts_ms
        text = write_numbers(numbers)
        args = calls.override_args(
            key, text, 0, ends_ms, "{}", self.rules.lease_ms, enforcement, str(self.now)
        )
        return calls.read_override(self.run(calls.OVERRIDE, args))

    def limit_queue(
        self,
        queue: str = "q",
        how: str = "set",
        part: dict[str, Any] | None = None,
        **numbers: Any,
    ) -> None:
        """Set or declare numbers of the whole queue, and in ``part`` those of each partition."""
        self.queues.add(queue)
        of_part = "" if part is None else write_queue(Limit("", **part))
        is_whole = how in ("set", "declare") and (numbers or part is None)
        whole = write_queue(Limit("", **numbers)) if is_whole else ""
        args = calls.queue_args(
            *(how, queue, queue_key(queue), whole, of_part, self.rules.lease_ms, "on"),
            str(self.now),
        )
        self.run(calls.SET_QUEUE_LIMIT, args)

    def tiers(self, *tiers: Tier) -> None:
        rows = {tier.name: write_tier(tier) for tier in tiers}
        self.run(calls.PUBLISH_TIERS, calls.tiers_args(rows, "database"))

    def tenant(self, tenant: str, tier: str, concurrency: int | None = None, **rates: Any) -> None:
        numbers = rates if concurrency is None else {"concurrency": concurrency, **rates}
        text = write_numbers(numbers)
        self.run(calls.PUBLISH_TENANT, calls.tenant_args(f"tenant:{tenant}", tier, text))

    def cancel(self, *numbers: int) -> list[bool]:
        tags = [f"tag.{number}" for number in numbers]
        args = calls.cancel_args(tags, self.rules.lease_ms, str(self.now))
        return calls.read_done(self.run(calls.CANCEL, args))

    def move(self, parts: Mapping[int, str], target: str) -> list[bool]:
        """Move tasks to another queue, each with its partition there or ""."""
        self.queues.add(target)
        tasks = [(f"tag.{number}", part) for number, part in parts.items()]
        args = calls.reroute_args(target, tasks)
        return calls.read_done(self.run(calls.REROUTE, args))

    def purge(self, queue: str = "q") -> int:
        return int(self.run(calls.PURGE, [queue]))

    def size(self, queue: str = "q") -> tuple[int, int]:
        """Return how many tasks could start, and how many wait for a time."""
        waiting, later = self.run(calls.SIZE, calls.size_args(queue, str(self.now)))
        return waiting, later

    # -- the server -------------------------------------------------------------------------------

    def save(self) -> None:
        """Redis writes a file."""
        keys = self.client.keys(f"{self.prefix}*")
        self.saved = {key: self.client.dump(key) for key in keys}

    def restore(self, by_another: bool = True) -> None:
        """Redis comes back with the file, in another process or in the same."""
        self.lose()
        for key, value in self.saved.items():
            self.client.restore(key, 0, value)
        if by_another:
            self.client.hset(f"{self.prefix}clock", "server", "0")

    def lose(self) -> None:
        """Redis comes back empty."""
        keys = self.client.keys(f"{self.prefix}*")
        if keys:
            self.client.delete(*keys)

    def check(self) -> None:
        """Compare the tables with each other, as ``celery fairness check`` does."""
        assert findings(self.client, self.prefix, self.rules, self.now) == []

    # -- what is seen -----------------------------------------------------------------------------

    def seen(self) -> Observed:
        observer = Observer(self.prefix, sorted(self.queues))
        with self.client.pipeline(transaction=False) as pipeline:
            observer.ask(pipeline)
            return observer.read(pipeline.execute())

    def exists(self) -> list[int]:
        """Return the numbers of all tasks that wait, run or are dead letters."""
        return sorted(map(number_of, self.seen().tasks))

    def is_woken(self, queue: str = "q") -> bool:
        """Say whether a wake-up is set for a queue's workers."""
        return queue in self.seen().bells

    def hear(self, queue: str = "q") -> None:
        """A worker takes the wake-ups of a queue, and claims nothing."""
        for bell in ("wakeup", "wakeup_leftover"):
            self.client.delete(f"{self.prefix}{bell}:{queue}")

    def held(self, key: str) -> int:
        """Return how many running tasks count for a key."""
        return sum(key in keys_of_lease(task.key) for task in self.running())

    def later(self, queue: str = "q") -> list[int]:
        """Return the times at which tasks of a queue come, in the order of their puts."""
        delayed = self.seen().delayed.get(queue, {})
        return [delayed[tag] - START_MS for tag in sorted(delayed, key=number_of)]

    def dropped(self) -> list[tuple[int, str]]:
        """Return the tasks that limits dropped, each with the key of its limit."""
        outcomes = self.seen().outcomes.values()
        return sorted(
            (number_of(each.tag), each.owner) for each in outcomes if each.state == "dropped"
        )

    def counts(self) -> dict[str, int]:
        """Return how many tasks were dropped and rescheduled until now."""
        names = ("dropped", "rescheduled")
        found = self.client.hmget(f"{self.prefix}counters", names)
        return {name: int(number or 0) for name, number in zip(names, found, strict=True)}

    def events(self) -> list[tuple[str, dict[str, str]]]:
        """Return type and data of the events since the last call."""
        rows = [dict(fields) for _, fields in self.client.xrange(f"{self.prefix}events")]
        new, self.told = rows[self.told :], len(rows)
        return [(row.pop("type"), row) for row in new]
