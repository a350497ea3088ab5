"""P16: what each number costs a task that has it: Redis commands and server time.

Twenty tenants have a hundred tasks waiting. One task is put, one is claimed, and it is settled,
again and again. No number ever closes. The first row is a task that has its tenant's tier alone.
Each scene has a server that is empty before, and scenes take turns. The commands are those of one
task in the mean. The time is what Redis reports for its functions, as the median of the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.queue_limits import write_queue
from celery_fairness.config.tiers import Tier, write_tier
from celery_fairness.message.unique import Unique
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Bounds, Rules, Settle, Verdict, Waiting
from celery_fairness.store.library import library, load
from tests.benchmarks.harness import PREFIX, Row
from tests.support.redis_server import RedisServer

QUEUE, RULES = "bench", Rules(default_limit=None)
#: Tenants, tasks that wait all the time, and tasks that are measured in one round.
TENANTS, BACKLOG, TASKS = 20, 100, 300
HOUR_MS = 3_600_000
MINUTE = 60_000
#: A rate that is never reached.
RATE = ((1_000_000, MINUTE),)

Call = Callable[[str, list[Any]], Any]


@dataclass(frozen=True)
class Scene:
    """Tasks with a number.

    Attributes:
        what: As the table names it.
        limits: Limits beside the tier.
        before: What an operator or a worker has declared.
        unique: Whether each task has a unique key of its own.
        part: Whether each tenant is a partition of the queue.
        uses: What the body reports for each claimed task: a key and units. None: nothing.
    """

    what: str
    limits: tuple[Limit, ...] = ()
    before: tuple[tuple[str, list[Any]], ...] = ()
    unique: bool = False
    part: bool = False
    uses: tuple[str, int] | None = None


@dataclass
class Costs:
    """Commands and microseconds of one task: of its put, its claim and its settle."""

    commands: list[float] = field(default_factory=list)
    us: list[float] = field(default_factory=list)


def _queue(part: Limit | None) -> tuple[str, list[Any]]:
    of_part = "" if part is None else write_queue(part)
    texts = (write_queue(Limit("", concurrency=1_000, rate=RATE)), of_part)
    key = f"queue:{QUEUE}"
    args = calls.queue_args("declare", QUEUE, key, *texts, RULES.lease_ms, "on")
    return calls.SET_QUEUE_LIMIT, args


def _tier(**numbers: Any) -> tuple[str, list[Any]]:
    row = write_tier(Tier("free", concurrency=1_000, **numbers))
    return calls.PUBLISH_TIERS, calls.tiers_args({"free": row}, "database")


def _override(key: str) -> tuple[str, list[Any]]:
    args = calls.override_args(key, "C900", HOUR_MS, None, "", RULES.lease_ms, "on")
    return calls.OVERRIDE, args


API = Limit("api", concurrency=1_000)
RATED = Limit("api", rate=RATE)
SLOTS = Limit("api", concurrency=1_000, slots=3)
UNITS = Limit("api", rate=RATE, units=500)
PART = Limit("", concurrency=100, rate=RATE)
SCENES = (
    Scene("a tenant's tier alone", before=(_tier(),)),
    Scene("a tier with a burst", before=(_tier(burst=2_000),)),
    Scene("a tier with a rate", before=(_tier(rate="1000000/m"),)),
    Scene("a limit's concurrency", (API,), (_tier(),)),
    Scene("the same, overridden by its key", (API,), (_tier(), _override("api"))),
    Scene("the same, overridden by a pattern", (API,), (_tier(), _override("a*"))),
    Scene("the same, 3 slots a task", (SLOTS,), (_tier(),)),
    Scene("a limit's rate, or bursts", (RATED,), (_tier(),)),
    Scene("the same, 500 units a task", (UNITS,), (_tier(),)),
    Scene("the same, and a report of its use", (UNITS,), (_tier(),), uses=("api", 400)),
    Scene("a queue's concurrency and rate", (), (_tier(), _queue(None))),
    Scene("the same, and those of its partitions", (), (_tier(), _queue(PART)), part=True),
    Scene("a unique key", before=(_tier(),), unique=True),
)


def rows(server: RedisServer, rounds: int) -> Iterator[Row]:
    """P16."""
    costs = {scene.what: Costs() for scene in SCENES}
    with server.client() as client:
        for number in range(rounds):
            for scene in SCENES if number % 2 == 0 else SCENES[::-1]:
                commands, us = of_task(client, scene)
                costs[scene.what].commands = commands
                costs[scene.what].us.append(us)
    base = costs[SCENES[0].what]
    for what, its in costs.items():
        us = statistics.median(its.us)
        put, claim, settle = its.commands
        yield Row(
            "P16",
            f"Redis commands of a put, a claim and a settle; server time of a task with {what}",
            "to compare",
            f"{put:.1f} + {claim:.1f} + {settle:.1f} = {sum(its.commands):.1f} commands; "
            f"{us:.0f} us: {us / statistics.median(base.us):.2f} x",
            holds=True,
        )


def of_task(client: Redis, scene: Scene, tasks: int = TASKS) -> tuple[list[float], float]:
    """Return the commands of a task in each of its calls, and the server's time for all of them."""
    client.flushall()
    load(client.execute_command)
    tags = iter(range(10**9))
    ran = [0, 0, 0]

    def call(function: str, args: list[Any], phase: int | None = None) -> Any:
        before = _processed(client) if phase is not None else 0
        answer = client.fcall(library().function(function), 1, PREFIX, *args)
        if phase is not None:
            ran[phase] += _processed(client) - before
        return answer

    def put(phase: int | None = None) -> None:
        tag = next(tags)
        tenant = str(tag % TENANTS)
        limits = scene.limits
        if scene.part:
            limits = (Limit(f"queue:{QUEUE}:{tenant}", of="q"), *limits)
        waiting = Waiting(
            QUEUE,
            f"t{tag}",
            tenant,
            message="m",
            kind="x",
            task_id=f"t{tag}",
            limits=write_limits(limits),
            bounds=Bounds("free"),
            unique=Unique(f"sync:{tag}").text if scene.unique else "",
        )
        call(calls.PUT, calls.put_args(waiting), phase)

    for function, args in scene.before:
        call(function, args)
    for _ in range(BACKLOG):
        put()
    client.config_resetstat()
    for number in range(1, tasks + 1):
        put(0)
        args = calls.claim_args("w:1:a1", number, 1, [QUEUE], RULES)
        (task,) = calls.read_claim(call(calls.CLAIM, args, 1)).tasks
        if scene.uses:
            call(calls.USED, calls.used_args(task.lease, *scene.uses, RULES), 1)
        ends = [Settle(task.lease, Verdict.DONE)]
        call(calls.SETTLE, calls.settle_args(ends, RULES), 2)
    stats: Any = client.info("commandstats")
    return [each / tasks for each in ran], stats["cmdstat_fcall"]["usec"] / tasks


def _processed(client: Redis) -> int:
    stats: Any = client.info("commandstats")
    others = ("cmdstat_info", "cmdstat_fcall", "cmdstat_config")
    return sum(each["calls"] for name, each in stats.items() if not name.startswith(others))
