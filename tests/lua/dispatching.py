"""One worker and one producer of the dispatch path, on the scripts themselves."""

from __future__ import annotations

import json

from celery_fairness.control.installation.task_records import TaskHead, read_head
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, SkippedTasks, Verdict, Waiting
from tests.support.library import call, tag_of
from tests.support.tiers import tier_row

PREFIX = "{fairness}:"
RULES = Rules()
NOW = 1_760_000_000_000
#: Where what starts then is counted.
MINUTE = f"stats:{NOW // 60_000}"

#: Of one test in a row, for a mistake must not make it run for ever.
CALLS_AT_MOST = 100_000


class Dispatch:
    """A worker and a producer, with the server's time as they like it."""

    def __init__(self, client, rules=RULES):
        self.client = client
        self.rules = rules
        self.now = NOW
        self.number = 0
        self.tags = 0

    def run(self, verb, args):
        return call(self.client, verb, PREFIX, args)

    def put(self, tenant="", queue="q", tag=None, **fields):
        self.tags += 1
        tag = tag or f"t{self.tags}"
        waiting = Waiting(queue, tag, tenant, **{"message": f"of {tag}", "task_id": tag, **fields})
        return calls.read_put(self.run(calls.PUT, calls.put_args(waiting, str(self.now))))

    def put_from(self, plain, entry, tenant, **fields):
        """Take a message out of a plain list."""
        waiting = Waiting("q", entry, tenant, message=entry, **fields)
        args = calls.put_args(waiting, str(self.now), plain=plain, entry=entry)
        return calls.read_put(self.run(calls.ADOPT, args))

    def claim(self, want=10, queues=("q",), number=None, rules=None, epoch=None, **passing):
        self.number += 1
        args = calls.claim_args(
            *("w1", number or self.number, want, queues, rules or self.rules, str(self.now)),
            *(SkippedTasks(**passing), epoch),
        )
        return calls.read_claim(self.run(calls.CLAIM, args))

    def claim_all(self, want=10, queues=("q",)):
        """Claim until there is nothing more to do."""
        tasks = []
        for _ in range(CALLS_AT_MOST):
            answer = self.claim(want, queues)
            tasks += answer.tasks
            if answer.sleep_ms:
                return tasks
        raise AssertionError("there is always more to do")

    def tags_of(self, claim):
        return [tag_of(task.lease) for task in claim.tasks]

    def find(self, tag) -> tuple[str, TaskHead] | None:
        """Return the state and the head of a task that was put without an id of its own."""
        _, *rows = self.run(calls.FIND, [tag, ""])
        return (rows[0][1], read_head(tag, rows[0][3])) if rows else None

    def letters(self, queue="q"):
        """Return the messages of the dead letters, the newest first."""
        _, *rows = self.run(calls.DEAD_LETTERS, [queue, "0", "100"])
        return [row[4] for row in rows]

    def settle(self, tasks, verdict=Verdict.DONE):
        ends = [Settle(task.lease, verdict) for task in tasks]
        args = calls.settle_args(ends, self.rules, str(self.now))
        return calls.read_settle(self.run(calls.SETTLE, args))

    def renew(self, tasks, epoch=None):
        held = [(task.lease, task.key) for task in tasks]
        args = calls.renew_args(held, self.rules, epoch, str(self.now))
        return calls.read_renew(self.run(calls.RENEW, args))

    def hold(self, lease, keys):
        """Let a lease begin whose task is not here: its worker names another epoch."""
        args = calls.renew_args([(lease, keys)], self.rules, 1, str(self.now))
        self.run(calls.RENEW, args)

    def end(self, lease):
        args = calls.settle_args([Settle(lease, Verdict.DONE)], self.rules, str(self.now))
        (code,) = calls.read_settle(self.run(calls.SETTLE, args))
        return code

    def next_outcome(self, written=""):
        args = calls.next_outcome_args(written, self.rules, str(self.now))
        return calls.read_next_outcome(self.run(calls.NEXT_OUTCOME, args))

    def let_a_lease_pass(self, kept=()):
        for _ in range(4):
            self.now += self.rules.lease_ms // 3
            self.renew(kept)

    def publish_tiers(self, **limits):
        rows = {name: tier_row(limit) for name, limit in limits.items()}
        self.run(calls.PUBLISH_TIERS, calls.tiers_args(rows, "database"))

    def publish_tenant(self, tenant, tier, keep_ms=0, ends_ms=None):
        args = calls.tenant_args(f"tenant:{tenant}", tier, "", keep_ms, ends_ms)
        return json.loads(self.run(calls.PUBLISH_TENANT, args))["version"]
