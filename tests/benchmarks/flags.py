"""The commands of a task that each flag of the clock and each cache of a claim saves.

Without a flag nobody has used a feature yet, and calls do not look for it. A flag doubles the
states to test. So it stays only if it saves at least 3 % of the commands of a put, a claim and a
settle in one of the scenes.

Commands stand for time here. Most of the time of a call is that of its commands, about a
microsecond each with the Lua around it. The time itself varies by more than 3 % from run to run.

Not measured here:

- ``run_times`` of the clock is a value and no flag.
- ``parked`` saves commands of gates, which no scene runs.
- ``tenant_published`` saves one command of a claim, of 33, and ``doctor`` needs it in any case.
- ``tiers`` of a claim saves 2.0 % of the commands, and the decoding of each tier's row with them.
- ``virtual`` of a claim has the time to which the claim has moved a queue. So it is no cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from redis import Redis

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Bounds, Rules, Settle, Verdict, Waiting
from celery_fairness.store.library import Library, library, load
from tests.benchmarks.harness import PREFIX, Row
from tests.support.redis_server import RedisServer

RULES = Rules(default_limit=None)
#: The least part of all commands that a flag or a cache saves.
LEAST = 0.03
#: Rounds of one scene, and tenants.
ROUNDS, TENANTS = 20, 20
HOUR_MS = 3_600_000
#: The line before which every flag of the clock is known.
READ = "local logical = tonumber(kept[1])\n"
FLAGS = ("limited", "has_overrides", "expiring", "has_backoff", "ranked", "traced")
#: The line of a put before which it knows the only flag that it alone reads.
READ_BY_PUT = "local traced, limited = flags[1], flags[2]\n"
#: The statement that a cache needs, and what stands in its place without the cache.
CACHES = {
    "known": ("budget.known = {", "budget.unknown = {"),
    "held": ("if known then known[key] = held end", ""),
    "limits": ("if known then known[limit.spec] = limit end", ""),
    "windows": ("if known then known[key] = window end", ""),
    "holds": ("if ctx.memo.holds == nil then", "do"),
    "rows": ("local rows = ctx.memo.rows or {}", "local rows = {}"),
    "checked": ("if enforces and rules.checked == rules.version then return 0 end", ""),
}
THREE = (
    Limit("api", concurrency=50),
    Limit("mail", concurrency=40, rate=((100, 1000),)),
    Limit("disk", concurrency=30),
)
#: Keys whose numbers somebody has overridden.
OVERRIDDEN = ("api", "mail", "disk")
#: Limits of each task, tasks of one claim, tasks that wait before, and the overridden keys.
SCENES: tuple[tuple[tuple[Limit, ...], int, int, tuple[str, ...]], ...] = (
    ((), 1, 100, ()),
    ((), 4, 100, ()),
    ((Limit("api", concurrency=50),), 4, 100, ()),
    (THREE, 4, 100, ()),
    ((Limit("api", concurrency=3),), 4, 300, ()),
    ((Limit("api", concurrency=15),), 16, 300, ()),
    (THREE, 4, 100, OVERRIDDEN),
)


def rows(server: RedisServer) -> Iterator[Row]:
    """P3: the commands that each flag and each cache saves."""
    with server.client() as client:
        base = [_commands(client, library(), *scene) for scene in SCENES]
        for name in (*FLAGS, "bounded", *CACHES):
            made = without(name)
            more = [_commands(client, made, *scene) for scene in SCENES]
            saved = max(new / old - 1 for new, old in zip(more, base, strict=True))
            what = "cache" if name in CACHES else "flag"
            yield Row(
                "P3",
                f"commands of a task that the {what} {name} saves at most",
                f">= {LEAST:.0%}",
                f"{saved:.1%}",
                saved >= LEAST,
            )


def without(name: str) -> Library:
    """Return the library as if the flag was always set, or without the cache."""
    code = library().code
    old, new = CACHES.get(name, (READ, f'flags.{name} = flags.{name} or "1"\n{READ}'))
    if name == "bounded":
        old, new = READ_BY_PUT, f'flags[6] = flags[6] or "1"\n{READ_BY_PUT}'
    if code.count(old) != 1:
        raise ValueError(f"{name}: expected one line with {old!r}, got: {code.count(old)}")
    other = "cf_" + hashlib.sha256(name.encode()).hexdigest()[:12]
    return Library(other, code.replace(old, new).replace(library().name, other))


def _commands(
    client: Redis,
    made: Library,
    limits: tuple[Limit, ...],
    want: int,
    backlog: int,
    overridden: tuple[str, ...],
) -> float:
    """Return the commands of one task: its put, its part of a claim and of a settle."""
    client.flushall()
    load(client.execute_command, made)
    text, tags = write_limits(limits), iter(range(10**9))

    def call(function: str, args: list[Any]) -> Any:
        return client.fcall(made.function(function), 1, PREFIX, *args)

    def put(count: int) -> None:
        for tag in (next(tags) for _ in range(count)):
            name, tenant = f"t{tag}", str(tag % TENANTS)
            fields: dict[str, Any] = {"message": "m", "kind": "x", "task_id": name}
            waiting = Waiting("q", name, tenant, limits=text, bounds=Bounds("free"), **fields)
            call(calls.PUT, calls.put_args(waiting))

    for key in overridden:
        args = calls.override_args(key, "C60", HOUR_MS, None, "", RULES.lease_ms, "on")
        call(calls.OVERRIDE, args)
    put(backlog)
    done, begun = 0, _processed(client)
    for number in range(1, ROUNDS + 1):
        put(want)
        args = calls.claim_args("w:1:a1", number, want, ["q"], RULES)
        tasks = calls.read_claim(call(calls.CLAIM, args)).tasks
        ends = [Settle(task.lease, Verdict.DONE) for task in tasks]
        call(calls.SETTLE, calls.settle_args(ends, RULES))
        done += len(tasks)
    return (_processed(client) - begun) / done


def _processed(client: Redis) -> int:
    stats: Any = client.info("commandstats")
    others = ("cmdstat_info", "cmdstat_fcall")
    return sum(each["calls"] for name, each in stats.items() if name not in others)
