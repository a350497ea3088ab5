"""``celery fairness top``: its rows, its text, and its keys on a real Redis."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from textual.widgets import DataTable, Input, Static
from textual.worker import WorkerCancelled

from celery_fairness import RateLimitPolicy, SettingsError
from celery_fairness.cli import top
from celery_fairness.cli.top_screen import KEYS, Ask, Box, TopScreen
from celery_fairness.config.limit_spec import write_limits
from celery_fairness.control.health.views import Status, Verdict
from celery_fairness.control.installation.views import (
    OwnerStatus,
    UnannouncedWorker,
    WorkerReplies,
    WorkerStatus,
)
from celery_fairness.control.queue.views import BlockingLimit, QueueStatus, TenantShare
from tests.support.waiting import at_most, eventually

API = "api.stripe.com"
AT = datetime(2026, 11, 26, 9, 0, tzinfo=UTC)
OLD = UnannouncedWorker("celery@old", ("mail",), shares=True)


def share(key, waiting, **others):
    facts = {
        "tier": "free",
        "weight": 1.0,
        "limit": 2,
        "held": 1,
        "entitled": 1.0,
        "startable": 0,
        "state": "tier",
        "waits_seconds": 3.0,
        **others,
    }
    return TenantShare(key=key, waiting=waiting, **facts)


def a_queue(name, waiting, **others):
    counts = {"delayed": 1, "running": 2, "dead": 0, "active": 1, "blocked": 1}
    return QueueStatus(name, waiting, **counts, **others)


@pytest.fixture
def status():
    queues = (
        a_queue(
            "mail",
            9,
            startable=1,
            blocked_tasks={"tier": 5, "paused": 3},
            oldest_wait_seconds=3.0,
            tenants=(share("tenant:42", 6), share("tenant:Bo", 3, state="paused", limit=None)),
            limits=(BlockingLimit(API, "rate", 4), BlockingLimit("ocr", "", 1)),
        ),
        a_queue(
            "",
            20,
            tenants=(share("tenant:42", 2, state="ready", startable=2, waits_seconds=None),),
            limits=(BlockingLimit(API, "rate", 4),),
        ),
    )
    workers = tuple(
        WorkerStatus(
            name=f"celery@{name}",
            pid=number,
            path="dispatch",
            enforcement="on",
            owner=f"w{number}",
            places=4,
            queues=("mail", "celery"),
        )
        for number, name in enumerate(("web", "app"))
    )
    return Status(
        at=AT,
        path="dispatch",
        redis="redis://127.0.0.1:6379/0",
        namespace="fairness",
        config_version=1,
        tiers_from="",
        tiers=(),
        counts={},
        queues=queues,
        queue_count=2,
        running=2,
        owners=(OwnerStatus("w0", 3),),
        workers=workers,
        replies=WorkerReplies(at=AT, answered=3, unannounced=(OLD,)),
        unresolved=(),
        fairness_index=None,
        verdict=Verdict(level="busy", line="queue mail: 9 tasks wait"),
    )


def values(key, status, by="", words=""):
    table = top.TABLES[key]
    return [row.values for row in top.arranged(table, status, by or table.by, words)]


def test_a_row_for_each_queue_tenant_limit_and_worker(status):
    assert values("u", status) == [
        ("(parked)", 20, None, None, None, None, None, 2, 1, 0),
        ("mail", 9, 1, 5, 0, 3, 3.0, 2, 1, 0),
    ]
    assert values("t", status) == [
        ("42", "free", "tier", 1, 2, 8, 2, 3.0, "mail, (parked)"),
        ("Bo", "free", "paused", 1, None, 3, 0, 3.0, "mail"),
    ]
    assert values("l", status) == [
        (API, "rate", 4, "mail, (parked)"),
        ("ocr", "open", 1, "mail"),
    ]
    assert values("w", status) == [
        ("celery@app", 0, 4, "on", "dispatch", 1, "mail, celery"),
        ("celery@old", None, None, "not announced", "", None, "mail"),
        ("celery@web", 3, 4, "on", "dispatch", 0, "mail, celery"),
    ]


@pytest.mark.parametrize(
    ("key", "by", "first"),
    [("u", "startable", "mail"), ("u", "queue", "(parked)"), ("w", "running", "celery@web")],
)
def test_the_largest_number_or_the_first_text_is_above_and_nothing_is_below(key, by, first, status):
    assert values(key, status, by)[0][0] == first


@pytest.mark.parametrize(("words", "found"), [("bo", ["Bo"]), ("PARKED", ["42"]), ("zzz", [])])
def test_a_filter_finds_a_text_in_any_column(words, found, status):
    assert [row[0] for row in values("t", status, words=words)] == found


@pytest.mark.parametrize("key", top.TABLES)
@pytest.mark.parametrize("width", [78, 198])
def test_a_table_fits_into_the_terminal(key, width, status):
    long = {"queue": "analysis_of_everything_priority" * 3}
    queue = a_queue(long["queue"], 1_000_000, startable=100_000, oldest_wait_seconds=99_999.0)
    status = status.model_copy(update={"queues": (*status.queues, queue)})
    table = top.TABLES[key]
    rows = top.arranged(table, status, table.by)
    heads, texts = top.fitting(table, rows, width)
    columns = zip(heads, *texts, strict=True)
    assert sum(top.GAP + max(map(len, column)) for column in columns) <= width
    assert heads[0] == table.columns[0].head
    assert table.by in heads
    if width == 198:
        assert heads == [each.head for each in table.columns]


def test_once_has_the_verdict_and_all_tables(installation, run):
    for arguments in (("top", "--once"), ("top",)):
        done = run(*arguments)
        assert done.exit_code == 0, done.output
        lines = [" ".join(line.split()) for line in done.output.splitlines()]
        assert lines[0] == "no worker takes queue celery, queue other: 4 tasks wait"
        assert any(line.startswith("celery 3 1 2 0 0 ") for line in lines)
        assert any(line.startswith("42 free tier 1 1 2 0 ") for line in lines)
        assert "no task waits at a limit" in lines
        assert "no worker is alive" in lines


def test_once_without_redis_is_the_code_of_every_command(make_fairness, run):
    done = run("top", "--once", of=make_fairness("fairredis://127.0.0.1:1/0"))
    assert done.exit_code == 69


@pytest.mark.parametrize("every", ["0.1", "2d", "soon"])
def test_an_impossible_time_is_wrong_usage(every, run):
    assert run("top", "--every", every).exit_code == 2


def test_without_textual_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(top, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'textual[<>=\d.,]+', or"):
        top.expect_textual()


def text_of(screen, name):
    return str(screen.screen_stack[0].query_one(name, Static).content)


def first_cells(screen):
    table = screen.screen_stack[0].query_one(DataTable)
    return [str(table.get_row_at(place)[0]) for place in range(table.row_count)]


async def seen(assertion):
    """Wait for an assertion while the screen goes on. Its widgets are read between its steps."""
    loop = asyncio.get_running_loop()

    def look():
        async def between():
            return assertion()

        return asyncio.run_coroutine_threadsafe(between(), loop).result()

    await asyncio.to_thread(eventually, look)


@asynccontextmanager
async def showing(fairness, width=80, every_seconds=0.05):
    screen = TopScreen(fairness, every_seconds)
    async with screen.run_test(size=(width, 24)) as pilot:
        await seen(lambda: first_cells(screen))
        yield screen, pilot


async def answer(screen, pilot, question):
    await seen(lambda: isinstance(screen.screen, Ask))
    assert question in str(screen.screen.query_one(Static).content)
    await pilot.press("y", *"sale", "enter")
    await seen(lambda: not isinstance(screen.screen, Ask))


def test_keys_choose_sort_and_filter(installation, fairness):
    async def use():
        async with showing(fairness) as (screen, pilot):
            assert "no worker takes queue celery" in text_of(screen, "#verdict")
            assert first_cells(screen)[:2] == ["celery", "other"]
            await pilot.press("t")
            assert set(first_cells(screen)) >= {"42", "back"}
            assert first_cells(screen)[0] == "42"
            await pilot.press("s")
            assert ", by startable" in text_of(screen, "#facts")
            await pilot.press("slash", *"bac")
            assert first_cells(screen) == ["back"]
            await pilot.press("enter")
            assert "with “bac”" in text_of(screen, "#facts")
            await pilot.press("escape")
            assert "42" in first_cells(screen)
            await pilot.press("w")
            assert "no worker is alive" in text_of(screen, "#facts")
            await pilot.press("question_mark")
            assert isinstance(screen.screen, Box)
            await pilot.press("x")
            assert not isinstance(screen.screen, Box)
            await pilot.press("p")
            await seen(lambda: "select a tenant (t) or a limit (l) first" in said(screen))

    asyncio.run(use())


def said(screen):
    return text_of(screen, "#message")


def test_a_tenant_is_paused_resumed_and_boosted_after_a_question(installation, fairness):
    async def use():
        async with showing(fairness) as (screen, pilot):
            await pilot.press("t")
            assert first_cells(screen)[0] == "42"
            await pilot.press("p")
            await seen(lambda: isinstance(screen.screen, Ask))
            await pilot.press("n")
            await seen(lambda: said(screen) == "nothing was changed")
            assert not fairness.tenants.inspect("42").holds.paused
            await pilot.press("p")
            await answer(screen, pilot, "Pause tenant:42?")
            await seen(lambda: "ada: sale" in said(screen))
            assert fairness.tenants.inspect("42").holds.paused_by == "ada: sale"
            await pilot.press("p")
            await answer(screen, pilot, "Resume tenant:42?")
            await seen(
                lambda: said(screen) == "tenant:42: not stopped: tasks start as its limits allow"
            )
            assert not fairness.tenants.inspect("42").holds.paused
            for _ in range(2):
                await pilot.press("b")
                await answer(screen, pilot, "Boost tenant:42")
                await seen(lambda: "tenant:42: concurrency 2 until" in said(screen))
            override = fairness.tenants.inspect("42").override
            assert (override.concurrency, override.reason, override.by) == (2, "sale", "ada")
            left = (override.expires_at - fairness.stats.status().at).total_seconds()
            assert 3590 < left <= 3600

    asyncio.run(use())


def test_a_limit_is_paused_and_resumed_and_takes_no_boost(installation, fairness):
    limits = write_limits([RateLimitPolicy(API, concurrency=1).limit()])
    for number in range(3):
        installation.put(f"customer-{number}", f"a{number}", queue="calls", limits=limits)
    installation.claim(queue="calls")

    async def use():
        async with showing(fairness) as (screen, pilot):
            await pilot.press("l")
            await seen(lambda: first_cells(screen) == [API])
            await pilot.press("b")
            await seen(lambda: said(screen) == "select a tenant (t) first")
            await pilot.press("p")
            await answer(screen, pilot, f"Pause {API}?")
            await seen(lambda: fairness.limits.inspect(API).holds.paused)
            await pilot.press("p")
            await answer(screen, pilot, f"Resume {API}?")
            await seen(lambda: not fairness.limits.inspect(API).holds.paused)

    asyncio.run(use())


def test_redis_goes_away_and_comes_back(installation, fairness, redis_server):
    async def use():
        async with showing(fairness) as (screen, pilot):
            redis_server.kill()
            await seen(lambda: "does not answer, trying again" in text_of(screen, "#verdict"))
            assert first_cells(screen)[:2] == ["celery", "other"]
            await pilot.press("t", "p")
            await seen(lambda: said(screen).startswith("not done: "))
            redis_server.restart()
            await seen(lambda: "does not answer" not in text_of(screen, "#verdict"))

    asyncio.run(use())


@pytest.mark.parametrize("key", ["q", "escape", "ctrl+c"])
def test_q_escape_and_an_interrupt_end_it_with_0(key, installation, fairness):
    async def use():
        async with showing(fairness) as (screen, pilot):
            await pilot.press("slash", "x", "escape")
            assert not screen.query_one(Input).display
            await pilot.press(key)
            await seen(lambda: not screen.is_running)
            return screen.return_code

    assert asyncio.run(use()) == 0


class Held:
    """Stands in for ``Fairness``: the second reading takes until ``go_on`` is set."""

    def __init__(self, status):
        self.found, self.readings = status, 0
        self.reads_again, self.go_on = threading.Event(), threading.Event()
        self.stats = self

    def status(self):
        self.readings += 1
        if self.readings > 1:
            self.reads_again.set()
            assert self.go_on.wait(at_most(30))
        return self.found


def test_a_reading_that_outlives_its_screen_is_the_last_and_shows_nothing(status):
    held = Held(status)

    async def use():
        async with showing(held) as (screen, _):
            await seen(held.reads_again.is_set)
            (reading,) = screen.workers
        with pytest.raises(WorkerCancelled):
            await reading.wait()
        held.go_on.set()
        # What the reading's worker calls, after its widgets are gone.
        screen.action_table("t")
        screen.action_sort()
        await screen.action_pause().wait()
        return screen

    screen = asyncio.run(use())
    assert (held.readings, screen.screen_stack) == (2, [])


def test_the_keys_fit_into_a_line_of_80():
    assert len(KEYS) <= 80


def test_the_selected_row_stays_selected(installation, fairness):
    async def use():
        async with showing(fairness) as (screen, pilot):
            await pilot.press("down")
            for number in range(9):
                installation.put("42", f"more{number}", queue="other")
            await seen(lambda: first_cells(screen)[0] == "other")
            assert screen.query_one(DataTable).cursor_row == 0

    asyncio.run(use())


def test_the_keys_of_the_tables_are_those_of_the_screen():
    words = KEYS.split()
    assert [key for key, other in pairwise(words) if key in top.TABLES or other == "table"] == [
        *top.TABLES
    ]
