"""Answers that look wrong and are right: the least sequence of each that the reference rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis import Redis

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import SkippedTasks, Verdict
from tests.reference.operations import Operation
from tests.reference.scenes import small_scene
from tests.reference.test_reference import objection_to

QUEUE, OTHER = "q_default", "q_priority"
#: A third of it is no whole number of ms, so a lease ends a little after its time.
LEASE_MS = 1_000


def put(
    limits: str = "",
    tenant: str = "",
    number: int | None = None,
    queue: str = QUEUE,
    expires: int | None = None,
    cost: float = 1.0,
    unique: str = "",
    rank: int = 0,
) -> Operation:
    """Put a task, or the task of a number once more."""
    words = ("x", limits, None, expires, unique)
    given = (queue, number, tenant, "", "free", rank, cost, None, *words)
    return ("put", *given)


def claim(
    skipped: SkippedTasks | None = None,
    want: int = 1,
    queues: tuple[str, ...] = (QUEUE,),
    by: str = "tasks",
    scope: str = "tenant",
) -> Operation:
    """One process claims tasks."""
    skipped = skipped or SkippedTasks()
    return ("claim", "w1", False, want, queues, "on", False, skipped, False, "", (), by, scope)


ONE = "y|C1|w"
#: It takes more than half of the rate.
HEAVY = "u|R5/2000;U3|w"
DONE = ("settle", ((0, Verdict.DONE),), "on")
#: The end of the second lease, whose body did not begin.
UNBEGUN = ("settle", ((9, Verdict.DONE),), "on")
#: A worker whose Redis has lost its memory registers its first lease again.
REGISTER = ("renew", (0,), "before")
RENEW = ("renew", (), "")

ACCEPTED: dict[str, list[Operation]] = {
    "a key stays known for a minute after the end of a registered lease": [
        put("x|C1|w"),
        claim(),
        DONE,
        REGISTER,
    ],
    "a cool-down that is over stays over when the clock loses its last short step": [
        ("stop", "cool", "x", 1, "on"),
        ("advance", 1),
        RENEW,
        ("advance", -3),
        put("x|C1|w"),
        claim(),
    ],
    "a worker that has met a cool-down wakes by itself": [
        ("queue", "know", QUEUE, None, False),
        ("stop", "cool", "queue:q_default", 700, "on"),
        put(),
        claim(),
        ("hear", QUEUE),
        ("lapse", (), "now"),
    ],
    "a claim takes over the lease that its worker has registered again": [
        put("x|C1|w"),
        claim(),
        DONE,
        put("y|C1|w", number=1),
        REGISTER,
        claim(),
    ],
    "a claim that passes a tenant over does not know when its limit opens": [
        put("t|T3/1000|w", "a"),
        put("t|T3/1000|w", "b"),
        claim(),
        claim(SkippedTasks(("z",), places={QUEUE: 1})),
    ],
    "a start that did not begin is given back by the numbers that its queue has now": [
        ("queue", "set", QUEUE, Limit("", rate=((2, 700),)), False),
        put(),
        claim(),
        ("advance", 333),
        put(),
        claim(),
        ("queue", "set", QUEUE, Limit("", throttle=((5, 1_000),)), False),
        UNBEGUN,
        put(),
        claim(),
    ],
    "a limit remembers a task that was moved to another queue and back": [
        put("z|R1/5000|r", queue=OTHER),
        put("z|R1/5000|r", queue=OTHER),
        claim(want=2, queues=(OTHER,)),
        ("move", OTHER, (QUEUE,), (1,), ("",)),
        ("move", QUEUE, (OTHER,), (0,), ("",)),
        ("override", "z", None, None, "on"),
    ],
    "a task that expires at its turn uses the turn of its queue": [
        put(queue=OTHER),
        put(queue=OTHER),
        put(expires=1),
        put(expires=1),
        put(),
        ("advance", 50),
        claim(want=3, queues=(OTHER, QUEUE)),
    ],
    "a key saves nothing for a task that a put has replaced": [
        put(HEAVY, "a"),
        claim(),
        put(HEAVY, "a", unique="r|0|v"),
        claim(),
        put("", "b", unique="r|0|v"),
    ],
    "a task that was raised stays so when the clock goes back": [
        put(ONE, "a"),
        claim(scope="aging"),
        put(ONE, "a"),
        ("advance", 500),
        claim(scope="aging"),
        DONE,
        ("advance", -3_600_000),
        put("", "b", rank=8),
        claim(scope="aging"),
    ],
    "a key saves slots within one claim, and a limit puts a task back for that": [
        put("g|C4|w", "b"),
        claim(),
        put("h|C3;S3|r", "a"),
        put("g|C4;S2|w,x|C2|w", "a"),
        put("g|C4;S9|w,h|C3;S2|w"),
        claim(),
    ],
    "a tenant owes a limit what it took of it in another queue": [
        put(ONE, "a"),
        claim(by="cost"),
        *[put(ONE, "b")] * 7,
        put(ONE, "a"),
        claim(by="cost"),
        DONE,
        put(ONE, "a", queue=OTHER, cost=1e6),
        put("", "a", queue=OTHER),
        *[claim(queues=(OTHER,), by="cost")] * 2,
        DONE,
        *[claim(by="cost"), ("settle", ((1, Verdict.DONE),), "on")] * 7,
    ],
}


@pytest.mark.redis
@pytest.mark.parametrize("what", ACCEPTED)
def test_the_reference_accepts_that(redis_url, what):
    scene = small_scene(0)
    # A call does one part of the due work, and the rest is left.
    rules, budget = replace(scene.rules, lease_ms=LEASE_MS), replace(scene.budget, due=1)
    scene = replace(scene, rules=rules, budget=budget)
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        assert objection_to(client, scene, ACCEPTED[what]) is None
