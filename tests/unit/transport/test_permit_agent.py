"""The agent of a worker that carries permits."""

from __future__ import annotations

import json
import threading
from typing import Any

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Rules
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport.permit_agent import PermitAgent
from tests.support.waiting import eventually


def test_a_key_that_claims_name_again_and_again_is_requested_once() -> None:
    answers, requested = threading.Event(), list[tuple[int, str]]()
    report = {"run": "run1", "number": 1}
    grant = {"home": 1, "answers": [{"added": 0, "n": 0}]}

    def call(verb: str, args: list[str], partition: int) -> Any:
        answers.wait()
        if verb == calls.REQUEST_PERMITS:
            requested.append((partition, args[-2]))
        return json.dumps(report if verb == calls.REQUEST_PERMITS else grant)

    agent = PermitAgent(
        call,
        lambda *_: None,
        Partitions("fairness", count=4),
        Rules(default_limit=None),
        LeaseTable(),
    )
    agent.request(1, ["api:first"])
    for _ in range(100):
        agent.request(1, ["api:one", "api:other"])
        agent.request(2, ["api:one"])
    answers.set()
    last = [(1, "api:one"), (1, "api:other"), (2, "api:one")]
    eventually(lambda: requested[-3:] == last)
    # The first one may be on its way before the others are named.
    assert requested == [(1, "api:first"), *last]
    agent.close()
