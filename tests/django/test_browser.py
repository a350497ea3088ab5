"""In a real browser: a limit raised in the admin is obeyed by two workers while tasks wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.django.browsing import log_in
from tests.django.demo_ledger import Ledger
from tests.support.waiting import eventually

TASKS = 60
TASK_SECONDS = 0.25
#: More than the processes of one worker.
NEW_LIMIT = 6

SEND = f"""
from demo_site.load import send
for _ in range({TASKS}):
    send("flood", "analyze", {TASK_SECONDS})
"""


TENANTS = """
from django_celery_fairness.models import TenantTier, Tier
from demo_site.celery import fairness
pro = Tier.objects.get(name="pro")
for name in ("acme", "billing@customer.example.com"):
    TenantTier.objects.create(tenant=name, tier=pro, note="pays for more until the end of the year")
fairness.tenants.override("acme", concurrency=7, reason="a sale", author="ada")
fairness.tenants.pause("acme", by="grace", for_seconds=3600)
"""


@pytest.mark.browser
def test_the_tenants_list_shows_all_its_columns_at_1280_pixels(
    address: str, page: Page, manage: Callable[..., str], site_environment: dict[str, str]
) -> None:
    """The sidebars of the admin stand on both sides of it."""
    manage("shell", "--verbosity", "0", "--command", TENANTS)
    page.set_viewport_size({"width": 1280, "height": 800})
    log_in(page, f"{address}/admin/django_celery_fairness/tenanttier/", site_environment)
    page.locator("#changelist-filter").wait_for()
    assert page.locator("#nav-sidebar").is_visible()
    heads = [
        head.strip().lower() for head in page.locator("#result_list thead th").all_inner_texts()
    ]
    assert [head for head in heads if head][-3:] == ["running now", "waiting now", "note"]
    assert page.get_by_text("paused until").is_visible()
    room = page.evaluate(
        "(({left, right}) => [left, right])(results.getBoundingClientRect())".replace(
            "results", "document.querySelector('#changelist .results')"
        )
    )
    for cell in page.locator("#result_list th, #result_list td").all():
        box = cell.bounding_box()
        assert box is not None
        assert room[0] <= box["x"], cell.inner_text()
        assert box["x"] + box["width"] <= room[1] + 1, f"cut: {cell.inner_text()!r}"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.browser
def test_a_limit_raised_in_the_admin_is_obeyed_by_two_running_workers(
    address: str,
    page: Page,
    manage: Callable[..., str],
    start_worker: Callable[..., object],
    site_environment: dict[str, str],
) -> None:
    """Free tenants may run 1, then 6.

    60 tasks wait in Redis; each runs 0.25 s on one of two workers with four processes each, so
    only the limit holds them back.
    """
    for _ in range(2):
        start_worker("demo_site", concurrency=4, env=site_environment, wait=False)
    manage("shell", "--verbosity", "0", "--command", SEND)
    database = Path(site_environment["DEMO_SITE_DIR"]) / "site.sqlite3"

    def ledger() -> Ledger:
        return Ledger.of(database, "flood")

    def some_have_run() -> None:
        assert ledger().finished >= 5

    eventually(some_have_run, timeout_seconds=60)

    log_in(page, f"{address}/admin/django_celery_fairness/tier/", site_environment)
    row = page.locator(
        "#result_list tbody tr", has=page.get_by_role("link", name="free", exact=True)
    )
    number = row.locator("input[name$=-concurrency]")
    assert number.input_value() == "1"
    number.fill(str(NEW_LIMIT))
    before = ledger()
    assert before.waiting > 3 * NEW_LIMIT, "too few tasks are left to show anything"
    assert before.most_at_once() == 1
    saving = datetime.now(UTC)
    page.click("input[name=_save]")
    page.get_by_text("1 tier was changed successfully").wait_for()

    def more_run_at_once_on_both_workers() -> None:
        now = ledger()
        assert now.most_at_once(since=saving) == NEW_LIMIT
        assert len({run.worker for run in now.runs if run.started >= saving}) == 2

    eventually(more_run_at_once_on_both_workers, timeout_seconds=10)

    def all_have_run() -> None:
        assert ledger().finished == TASKS

    eventually(all_have_run, timeout_seconds=60)
    done = ledger()
    assert done.most_at_once() == NEW_LIMIT
    assert done.most_at_once(until=saving) == 1
