"""In a real browser: a limit raised in the admin is obeyed by two workers while tasks wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page, sync_playwright

from celery_fairness.testing.server import ReservedPort
from tests.django.conftest import PROJECT
from tests.django.demo_ledger import Ledger
from tests.support.local_process import LocalProcess
from tests.support.servers import NotInstalled, find_chromium
from tests.support.services import missing
from tests.support.waiting import eventually

TASKS = 60
TASK_SECONDS = 0.25
NEW_LIMIT = 4

BROWSER_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
SEND = f"""
from demo_site.load import send
for _ in range({TASKS}):
    send("flood", "analyze", {TASK_SECONDS})
"""


@pytest.fixture
def site_environment(site_environment: dict[str, str], redis_url: str) -> dict[str, str]:
    return {
        **site_environment,
        "CELERY_BROKER_URL": redis_url,
        "FAIRNESS_SNOOZE_DURATION": "500ms",
        "FAIRNESS_SNOOZE_JITTER": "500ms",
        "DJANGO_SUPERUSER_USERNAME": "boss",
        "DJANGO_SUPERUSER_EMAIL": "boss@example.com",
    }


@pytest.fixture
def address(site_environment: dict[str, str], manage: Callable[..., str]) -> Iterator[str]:
    """A live server of the migrated site."""
    manage("migrate", "--verbosity", "0")
    manage("createsuperuser", "--noinput")
    port = ReservedPort()
    command = [sys.executable, "manage.py", "runserver", "--noreload", "--insecure"]
    address = f"127.0.0.1:{port.number}"
    web = LocalProcess("web", [*command, address], env=site_environment, cwd=PROJECT)
    web.start()

    def answers() -> None:
        assert web.alive, web.log_text()
        try:
            urlopen(f"http://{address}/", timeout=5).close()
        except OSError as error:
            raise AssertionError(f"{error}\n{web.log_text()}") from error

    try:
        eventually(answers, timeout_seconds=30)
        yield f"http://{address}"
    finally:
        web.stop()
        web.assert_gone()
        web.discard_log()
        port.release()


@pytest.fixture
def page() -> Iterator[Page]:
    try:
        chromium = find_chromium()
    except NotInstalled as error:
        missing(str(error))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(BROWSER_FLAGS))
        yield browser.new_page()
        browser.close()


@pytest.mark.browser
def test_a_limit_raised_in_the_admin_is_obeyed_by_two_running_workers(
    address: str,
    page: Page,
    manage: Callable[..., str],
    start_worker: Callable[..., object],
    site_environment: dict[str, str],
) -> None:
    """Free tenants may run 1, then 4.

    60 tasks wait with a snooze of 0.5 s + up to 0.5 s; each runs 0.25 s on one of two workers
    with four processes each, so only the limit holds them back.
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

    page.goto(f"{address}/admin/django_celery_fairness/tier/")
    page.fill("#id_username", "boss")
    page.fill("#id_password", site_environment["DJANGO_SUPERUSER_PASSWORD"])
    page.click("input[type=submit]")
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
