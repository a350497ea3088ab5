"""In a real browser: a limit raised in the admin is obeyed by two workers while tasks wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.django.browsing import ADMIN, DASHBOARD, ROWS, SOON_MS, log_in
from tests.django.demo_ledger import Ledger
from tests.django.live_site import PASSWORD, LiveSite
from tests.support.nodes import WorkerNode
from tests.support.waiting import at_most, eventually

#: Short tasks that wait, and tasks that run while a person clicks and looks.
SHORT_TASKS, SHORT_SECONDS = 50, 0.1
LONG_TASKS, LONG_SECONDS = 3, 6.0
#: More than the processes of one worker.
NEW_LIMIT = 3


@pytest.mark.browser
def test_an_operator_logs_in(page_of: Callable[[str], Page]) -> None:
    page = page_of("")
    log_in(page, DASHBOARD, "not the password")
    expect(page.locator(".errornote")).to_contain_text("enter the correct username and password")
    expect(page.locator(".fairness-verdict")).to_have_count(0)
    log_in(page, DASHBOARD, PASSWORD)
    expect(page.locator(".fairness-verdict")).to_contain_text("nothing waits or runs")
    expect(page.locator("#user-tools")).to_contain_text("boss")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("kind", "last_columns"),
    [
        ("tenanttier", ["running now", "waiting now", "note"]),
        ("queuelimit", ["over the limit", "in force", "note"]),
        ("limitoverride", ["in force", "reason", "author"]),
        ("tier", ["queue class", "tenants", "rejections so far"]),
    ],
)
def test_a_list_shows_all_its_columns_at_1280_pixels(
    kind: str, last_columns: list[str], page: Page, live_site: LiveSite
) -> None:
    """The sidebar of the admin stands beside it, and the filter below."""
    live_site.run(ROWS)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{ADMIN}/{kind}/")
    assert page.locator("#nav-sidebar").is_visible()
    heads = [
        head.strip().lower() for head in page.locator("#result_list thead th").all_inner_texts()
    ]
    assert [head for head in heads if head][-3:] == last_columns
    assert page.get_by_text("paused until").count() == (kind == "tenanttier")
    room = page.evaluate(
        "(({left, right}) => [left, right])(results.getBoundingClientRect())".replace(
            "results", "document.querySelector('#changelist .results')"
        )
    )
    cells = page.locator("#result_list th, #result_list td").all()
    assert len(cells) > len(heads)
    for cell in cells:
        box = cell.bounding_box()
        assert box is not None
        assert room[0] <= box["x"], cell.inner_text()
        assert box["x"] + box["width"] <= room[1] + 1, f"cut: {cell.inner_text()!r}"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.browser
def test_a_limit_raised_in_the_admin_is_obeyed_within_a_second_by_two_running_workers(
    page_of: Callable[[str], Page],
    start_worker: Callable[..., WorkerNode],
    live_site: LiveSite,
) -> None:
    """Free tenants may run 1, then 3.

    Two workers have two processes each, so only the limit holds the tasks back. Long tasks run at
    the change: the second and third start because a worker is woken, and not because a task ends.
    """
    workers = [
        start_worker("demo_site", concurrency=2, env=live_site.environment, wait=False)
        for _ in range(2)
    ]
    watching = page_of("boss")
    page = page_of("boss")
    page.goto(f"{ADMIN}/tier/")
    row = page.locator(
        "#result_list tbody tr", has=page.get_by_role("link", name="free", exact=True)
    )
    number = row.locator("input[name$=-concurrency]")
    assert number.input_value() == "1"
    number.fill(str(NEW_LIMIT))

    def ledger() -> Ledger:
        return Ledger.of(live_site.database, "flood")

    for worker in workers:
        worker.wait_ready()
    live_site.send(LONG_TASKS, LONG_SECONDS)
    live_site.send(SHORT_TASKS, SHORT_SECONDS)
    watching.goto(f"{ADMIN}/limitkey/tenant_3Aflood/change/")
    held = watching.locator(".fairness-facts")

    expect(held).to_contain_text("1 of 1", timeout=SOON_MS)
    before = ledger()
    assert before.most_at_once() == 1
    assert before.waiting >= SHORT_TASKS
    saving = datetime.now(UTC)
    page.click("input[name=_save]")
    page.get_by_text("1 tier was changed successfully").wait_for()
    saved = datetime.now(UTC)
    expect(held).to_contain_text(f"{NEW_LIMIT} of {NEW_LIMIT}", timeout=SOON_MS)
    now = ledger()
    assert now.running_at(saved + timedelta(seconds=1)) == NEW_LIMIT
    assert len({run.worker for run in now.runs}) == 2

    def all_have_run() -> None:
        assert ledger().finished == LONG_TASKS + SHORT_TASKS

    eventually(all_have_run, timeout_seconds=at_most(60))
    done = ledger()
    assert done.most_at_once() == NEW_LIMIT
    assert done.most_at_once(until=saving) == 1
