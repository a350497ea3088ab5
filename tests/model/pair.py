"""One worker and its tenants, on the model and the scripts at once.

Their tables are compared after every call.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from celery_fairness.config.limit_spec import write_limits
from celery_fairness.config.queue_limits import QueueNumbers
from celery_fairness.scheduler.types import Passing, Verdict
from tests.model.both import LATE, REMEMBERED, START_MS, Both
from tests.model.budget import Budget
from tests.model.operations import scene

_numbers = itertools.count()
WHOLE = Budget()


class Pair:
    """The model and the scripts with one worker."""

    def __init__(self, client, budget=WHOLE):
        place = scene(0)
        rules = replace(place.rules, default_limit=None, max_deliveries=5, lease_ms=15_000)
        place = replace(place, budget=budget, rules=rules, queues=("q", "p q|1"))
        self.both = Both(client, f"{{a{next(_numbers)}}}:", place)
        self.model = self.both.model

    def put(self, tenant, *limits, queue="q", kind="x", rank=0, times=1):
        for _ in range(times):
            word = write_limits(limits)
            self.both.run(
                ("put", queue, None, tenant, "", "", rank, 1.0, None, kind, word),
            )

    def claim(self, want=10, queues=("q",), enforcement="on", never=(), scope="tenant", **told):
        """Return the numbers of the tasks that were given, and how long to sleep."""
        given = len(self.both.granted)
        passing = Passing(tuple(never), **told)
        self.answer = None
        claim = self.model.claim

        def remembered(*args):
            self.answer = claim(*args)
            return self.answer

        self.model.claim = remembered
        how = (enforcement, False, passing, False, "", (), "", scope)
        self.both.run(("claim", "w", False, want, queues, *how))
        self.model.claim = claim
        tags = [task.lease.split(".")[1] for task in self.both.granted[given:]]
        return [int(tag) for tag in tags], self.answer.sleep_ms

    def limit_queue(self, queue="q", how="set", parts=False, **numbers):
        said = QueueNumbers(**numbers) if how in ("set", "declare") else None
        self.both.run(("queue", how, queue, said, parts))

    def end(self, verdict=Verdict.DONE):
        for _ in list(self.model.running):
            self.both.run(("settle", ((0, verdict),), "on"))

    def end_one(self, position, verdict=Verdict.DONE):
        """Settle one of those that run, in the order in which they began."""
        self.both.run(("settle", ((position, verdict),), "on"))

    def end_late(self, position, verdict=Verdict.DONE):
        """Settle a lease of those that there were, whether or not it lives."""
        known = len(self.both.granted[-REMEMBERED:])
        number = LATE + (position - LATE) % known
        self.both.run(("settle", ((number, verdict),), "on"))

    def at(self, milliseconds):
        self.both.now = START_MS + milliseconds

    def counts(self):
        return {name: self.model.counts.get(name, 0) for name in ("dropped", "rescheduled")}

    def dropped(self):
        return [(row.task.tag, row.owner, row.state) for row in self.model.outcomes]

    def later(self, queue="q"):
        return [eta - START_MS for eta, _, _ in self.model.later[queue]]
