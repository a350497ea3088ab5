"""The agent of a worker that carries permits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Rules
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport.permit_agent import PermitAgent
from tests.support.waiting import eventually

#: The place of the key among the arguments of a request. The last one is the request before.
KEY_AT = 6


def agent_of(call: Callable[[str, list[str], int], Any]) -> PermitAgent:
    partitions, rules = Partitions("fairness", count=4), Rules(default_limit=None)
    return PermitAgent(call, lambda *_: None, partitions, rules, LeaseTable())


def test_a_key_that_claims_name_again_and_again_is_requested_once() -> None:
    answers, requested = threading.Event(), list[tuple[int, str]]()
    report = {"run": "run1", "number": 1}
    grant = {"home": 1, "answers": [{"added": 0, "n": 0}]}

    def call(verb: str, args: list[str], partition: int) -> Any:
        answers.wait()
        if verb == calls.REQUEST_PERMITS:
            requested.append((partition, args[KEY_AT]))
        return json.dumps(report if verb == calls.REQUEST_PERMITS else grant)

    agent = agent_of(call)
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


def test_an_agent_comes_again_unless_another_one_has_made_a_request() -> None:
    requested = list[str]()
    grant = {"home": 1, "answers": [{"added": 0, "n": 0, "again_ms": 1}]}

    def call(verb: str, args: list[str], partition: int) -> Any:
        if verb == calls.GRANT_PERMITS:
            return json.dumps(grant)
        if verb == calls.REQUEST_PERMITS:
            requested.append(args[-1])
            if len(requested) < 3:
                return json.dumps({"run": "run1", "number": len(requested)})
        return "{}"

    agent = agent_of(call)
    agent.request(1, ["api:one"])
    eventually(lambda: len(requested) == 3)
    agent.request(2, ["api:one"])
    eventually(lambda: len(requested) == 4)
    assert requested == ["", "1", "2", ""]
    agent.close()
