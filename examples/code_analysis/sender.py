"""The process that plays the users: sends every order at its time.

It is run by the demo, which speaks to it in lines of JSON:

    demo → [order, …]           sender → {"ready": settings in force}
    demo → "go"                 (the sender sends every order at its time)
    demo → end of input         sender → {"refusals": {tier: count}}

Invariant: every job is written into the ledger as planned before the first is sent, and no user
waits for another user's order.

Weakness: on a busy machine orders may be sent late. A job's wait begins when it was really sent.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from celery import chain

from celery_fairness.wiring import wired
from examples.code_analysis import app as platform
from examples.code_analysis.ledger import now_seconds
from examples.code_analysis.load import Order
from examples.code_analysis.tasks import analyze, write_view


def say(**facts: Any) -> None:
    """Send a line to the demo."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def plan(orders: Sequence[Order]) -> list[tuple[Order, Any]]:
    """Make the messages of all orders and write their jobs into the ledger."""
    planned = []
    for order in orders:
        work = analyze.s(order.package, user_id=order.user).set(task_id=str(uuid4()))
        steps = [work]
        if order.with_view:
            steps.append(write_view.s(user_id=order.user).set(task_id=str(uuid4())))
        for step in steps:
            platform.ledger.write(
                "planned",
                job=step.options["task_id"],
                user=order.user,
                kind=str(step.task).rpartition(".")[2],
            )
        planned.append((order, chain(*steps) if len(steps) > 1 else work))
    return planned


def send(planned: Sequence[tuple[Order, Any]]) -> None:
    """Send every order at its time after now."""
    began_seconds = now_seconds()
    for order, message in planned:
        time.sleep(max(0.0, began_seconds + order.at_seconds - now_seconds()))
        message.apply_async()


def facts() -> dict[str, Any]:
    """The settings in force, as the package read them."""
    if platform.MODE == "plain":
        return {}
    settings = platform.fairness.settings
    return {
        "limits": {name: tier.concurrency for name, tier in settings.tiers.items()},
        "claims": wired(platform.app).claims_fairly,
        "snooze_seconds": settings.snooze_seconds,
        "snooze_jitter_seconds": settings.snooze_jitter_seconds,
    }


def main() -> None:
    """Read the load, wait for "go", send it, and report at the end of input."""
    planned = plan([Order(**order) for order in json.loads(sys.stdin.readline())])
    say(ready=facts())
    if not sys.stdin.readline():
        return
    send(planned)
    sys.stdin.read()
    plain = platform.MODE == "plain"
    say(refusals={} if plain else dict(platform.fairness.stats.rejections().tiers))


if __name__ == "__main__":
    main()
