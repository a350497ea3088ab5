"""Workers that do not enforce limits, on both paths: what starts, and who can see it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from celery.bin.base import CLIContext
from celery.result import AsyncResult
from click.testing import CliRunner

from celery_fairness import RateLimitPolicy
from celery_fairness.cli.commands import fairness as group
from tests.behaviour.conftest import PATHS
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs/how-to/turn-off.md"

#: What a worker logs when it starts, and at which level.
STARTS = {
    ("fairredis", "true"): ("INFO", "enabled is true: this worker enforces limits"),
    ("redis", "true"): ("INFO", "enabled is true: this worker enforces limits"),
    ("fairredis", "false"): ("WARNING", "enforces no limit; pauses, cool-downs and limits of 0"),
    ("redis", "false"): ("WARNING", "limits of 0 do not hold either"),
    ("fairredis", "observe"): ("WARNING", "rejects none; pauses, cool-downs and limits of 0 still"),
    ("redis", "observe"): ("WARNING", "limits of 0 do not hold either"),
}

STOPPED = RateLimitPolicy("stopped", concurrency=5)
COOLED = RateLimitPolicy("cooled", concurrency=5)
OVERRIDDEN = RateLimitPolicy("overridden", concurrency=5)


def two(shop: Shop, user: str, *limits: RateLimitPolicy) -> list[AsyncResult[str]]:
    return [one(shop, user, *limits) for _ in range(2)]


def one(shop: Shop, user: str, *limits: RateLimitPolicy, **options: str) -> AsyncResult[str]:
    gate = str(shop.folder / "go")
    return shop.send("work", user=user, gate=gate, options={"limits": list(limits), **options})


def paused_tenant(shop: Shop) -> list[AsyncResult[str]]:
    shop.fairness.tenants.pause("paused")
    return [one(shop, "paused")]


def paused_key(shop: Shop) -> list[AsyncResult[str]]:
    shop.fairness.limits.pause(STOPPED.key)
    return [one(shop, "a", STOPPED)]


def cool_down(shop: Shop) -> list[AsyncResult[str]]:
    shop.fairness.limits.cool_down(COOLED.key, for_seconds=3600.0, reason="a test")
    return [one(shop, "b", COOLED)]


def override_of_tenant(shop: Shop) -> list[AsyncResult[str]]:
    shop.fairness.limits.override("tenant:overridden", concurrency=0)
    return [one(shop, "overridden")]


def override_of_key(shop: Shop) -> list[AsyncResult[str]]:
    shop.fairness.limits.override(OVERRIDDEN.key, concurrency=0)
    return [one(shop, "c", OVERRIDDEN)]


def tier_of_0(shop: Shop) -> list[AsyncResult[str]]:
    shop.fairness.tenants.set_tier("nothing", "none")
    return [one(shop, "nothing")]


#: Each row of the page's table, and the tasks whose start it is about.
ROWS: dict[str, Callable[[Shop], list[AsyncResult[str]]]] = {
    "its tenant is at the limit of its tier": lambda shop: two(shop, "full"),
    "a limit of its own has no free slot": lambda shop: [
        one(shop, user, RateLimitPolicy("slots", concurrency=1)) for user in ("d", "e")
    ],
    "a limit has reached its rate or throttle": lambda shop: [
        one(shop, user, RateLimitPolicy("rated", rate="1/PT1H", throttle="1/PT1H"))
        for user in ("f", "g")
    ],
    "its queue is at its `global_limit`": lambda shop: [
        one(shop, user, queue="narrow") for user in ("h", "i")
    ],
    "its tenant is paused": paused_tenant,
    "the key of a limit is paused": paused_key,
    "the key of a limit cools down": cool_down,
    "its tenant has an override of 0": override_of_tenant,
    "the key of a limit has an override of 0": override_of_key,
    "its tier has a limit of 0": tier_of_0,
    "a limit of its own is 0": lambda shop: [
        one(shop, "j", RateLimitPolicy("zero", concurrency=0))
    ],
    "its queue has a `global_limit` of 0": lambda shop: [one(shop, "k", queue="shut")],
}
SETTINGS = {
    "tiers": {"none": {"concurrency": 0}},
    "queues": {"narrow": {"global_limit": 1}, "shut": {"global_limit": 0}},
    "lease_seconds": 1,
}


def table() -> dict[str, dict[str, str]]:
    """Return the page's table: what a task does by row and path."""
    text = PAGE.read_text().partition("| a task that would wait because |")[2]
    rows = re.findall(r"^\| ([^|]+) \| (starts|waits) \| (starts|waits) \|$", text, re.MULTILINE)
    return {row: dict(zip(PATHS, cells, strict=True)) for row, *cells in rows}


def test_the_page_has_every_row():
    assert list(table()) == list(ROWS)


@pytest.mark.parametrize("enabled", ["false", "observe"])
@pytest.mark.parametrize("path", PATHS)
def test_a_task_starts_or_waits_as_the_page_says(
    make_shop: Callable[..., Shop], path: str, enabled: str
) -> None:
    shop = make_shop(path, fairness=SETTINGS, variables={"FAIRNESS_ENABLED": enabled})
    sent = {row: send(shop) for row, send in ROWS.items()}
    starts, waits = set[str](), set[str]()
    for row, results in sent.items():
        ids = {result.id for result in results}
        (starts if table()[row][path] == "starts" else waits).update(ids)
    shop.worker(pool="threads", concurrency=24, queues=["celery", "narrow", "shut"])
    # All that starts runs at once: each body waits for the file.
    eventually(lambda: starts <= set(shop.runs()), RESULT_SECONDS)
    last = one(shop, "last")
    eventually(lambda: last.id in shop.runs(), RESULT_SECONDS)
    assert set(shop.runs()) == starts | {last.id}
    for task_id in waits:
        found = shop.fairness.tasks.explain(task_id)
        assert found.state == "waiting"
        assert {each.reason for each in found.blocked_by} <= {"paused", "cool-down"}
    (shop.folder / "go").touch()
    for results in sent.values():
        for result in results:
            assert result.id in waits or result.get(timeout=RESULT_SECONDS) == "done"


def command(shop: Shop, *args: str) -> str:
    context = CLIContext(app=shop.app, no_color=True, workdir=None)
    result = CliRunner().invoke(group, list(args), obj=context)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(("path", "enabled"), STARTS)
def test_a_worker_that_starts_logs_what_it_enforces(
    make_shop: Callable[..., Shop], path: str, enabled: str
) -> None:
    shop = make_shop(path, variables={"FAIRNESS_ENABLED": enabled})
    log = shop.worker(pool="solo", concurrency=1).log_text().splitlines()
    (line,) = (each for each in log if "enabled is " in each)
    level, text = STARTS[path, enabled]
    assert f"{level}/MainProcess]" in line
    assert text in line


@pytest.mark.parametrize("path", PATHS)
def test_status_names_the_workers_that_do_not_enforce_while_they_live(
    make_shop: Callable[..., Shop], path: str
) -> None:
    shop = make_shop(path, fairness={"lease_seconds": 1})
    assert shop.fairness.stats.status().workers == ()
    on, off, observing = (
        shop.worker(pool="solo", concurrency=1, env={"FAIRNESS_ENABLED": enabled})
        for enabled in ("true", "false", "observe")
    )
    eventually(lambda: len(shop.fairness.stats.status().workers) == 3, RESULT_SECONDS)
    text = command(shop, "status")
    assert "2 of 3 workers do not enforce limits:" in text
    kind = "gate" if path == "redis" else "dispatch"
    for worker, enabled in ((off, "false"), (observing, "'observe'")):
        pid = worker.process.pid
        assert f"  {worker.hostname()}, pid {pid}, {kind} path: enabled is {enabled}\n" in text
    assert on.hostname() not in text.partition("\nqueue ")[0]
    workers = json.loads(command(shop, "status", "--json"))["workers"]
    assert {each["name"]: each["enforcement"] for each in workers} == {
        on.hostname(): "on",
        off.hostname(): "off",
        observing.hostname(): "observe",
    }
    # One ends in order, one is killed.
    off.process.ask_to_end()
    observing.process.kill()
    eventually(
        lambda: [each.name for each in shop.fairness.stats.status().workers] == [on.hostname()],
        RESULT_SECONDS,
    )
    assert "1 worker enforces limits" in command(shop, "status")


def test_explain_names_the_workers_that_may_start_a_task_above_its_limits(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop("fairredis", fairness={"lease_seconds": 1})
    off = shop.worker(pool="solo", concurrency=1, env={"FAIRNESS_ENABLED": "false"})
    eventually(lambda: len(shop.fairness.stats.status().workers) == 1, RESULT_SECONDS)
    (waiting,) = paused_tenant(shop)
    said = f"worker {off.hostname()}, pid {off.process.pid} does not enforce limits"
    assert f"{said} (enabled is false): it may start" in command(
        shop, "task", "explain", waiting.id
    )
    shop.fairness.tenants.resume("paused")
    (shop.folder / "go").touch()
    assert waiting.get(timeout=RESULT_SECONDS) == "done"


@pytest.mark.parametrize("path", PATHS)
def test_a_worker_that_observes_shows_whom_limits_would_have_rejected(
    make_shop: Callable[..., Shop], path: str
) -> None:
    shop = make_shop(path, fairness={"lease_seconds": 1}, variables={"FAIRNESS_ENABLED": "observe"})
    began = datetime.now(UTC)
    shop.worker(pool="threads", concurrency=8)
    results = [one(shop, "flood") for _ in range(5)] + [one(shop, "calm")]
    eventually(lambda: len(shop.runs()) == 6, RESULT_SECONDS)
    (shop.folder / "go").touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 6
    (worker,) = shop.fairness.stats.status().workers
    assert worker.started_at is not None
    assert began <= worker.started_at <= datetime.now(UTC)
    text = command(shop, "observed")
    assert text.startswith("1 of 1 worker only observes; counted since ")
    assert re.search(r"^\d\d-\d\d \d\d:00  4  #{40}$", text, re.MULTILINE)
    assert re.search(r"^free +1 +4 +1 +5$", text, re.MULTILINE)
    assert re.search(r"^tenant:flood +free +4 +5$", text, re.MULTILINE)
    assert "calm" not in text
