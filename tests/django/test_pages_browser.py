"""The operator's pages in a real browser: what a person does there holds, and can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from redis import Redis

from tests.cli.clearing import bury, send
from tests.cli.conftest import Installation
from tests.django.browsing import log_in
from tests.django.demo_ledger import Ledger
from tests.django.test_dashboard_browser import SEND, SOON_MS
from tests.support.waiting import eventually

ADMIN = "/admin/django_celery_fairness"
FLOOD = f"{ADMIN}/limitkey/tenant_3Aflood/change/"
API = "api.stripe.com|1|2/3600000||w"


@pytest.fixture
def shop(site_redis_url: str) -> Iterator[Installation]:
    """What a producer and a worker of the site do, without either."""
    with Redis.from_url(site_redis_url, decode_responses=True) as client:
        yield Installation(client)


@pytest.mark.browser
def test_a_tenant_is_paused_and_resumed_while_tasks_wait(
    address: str,
    page: Page,
    manage: Callable[..., str],
    start_worker: Callable[..., object],
    site_environment: dict[str, str],
) -> None:
    start_worker("demo_site", concurrency=2, env=site_environment, wait=False)
    manage("shell", "--verbosity", "0", "--command", SEND.format(tasks=60, seconds=0.3))
    database = Path(site_environment["DEMO_SITE_DIR"]) / "site.sqlite3"

    def finished(number: int) -> Callable[[], None]:
        def enough() -> None:
            assert Ledger.of(database, "flood").finished >= number

        return enough

    eventually(finished(2), timeout_seconds=60)
    log_in(page, address + FLOOD, site_environment)
    facts = page.locator(".fairness-facts")
    expect(facts).to_contain_text("all places taken", timeout=SOON_MS)
    page.get_by_label("Reason").fill("incident 17")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".messagelist .success")).to_contain_text("paused until it is resumed")
    expect(facts).to_contain_text("by boss since")
    expect(page.get_by_text("No task holds a slot of it.")).to_be_visible(timeout=SOON_MS)
    paused_at = Ledger.of(database, "flood").finished
    expect(facts).to_contain_text(f"Waiting{60 - paused_at}")
    page.get_by_label("Reason").fill("it is over")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".messagelist .success")).to_contain_text("nothing stops it")
    eventually(finished(paused_at + 3), timeout_seconds=20)


@pytest.mark.browser
def test_a_boost_is_seen_to_end(
    address: str, page: Page, site_environment: dict[str, str], shop: Installation
) -> None:
    send(shop, "flood", "waits")
    log_in(page, address + FLOOD, site_environment)
    page.get_by_label("Reason").fill("a sale")
    page.get_by_label("For how long").fill("4s")
    page.get_by_role("button", name="Boost").click()
    facts = page.locator(".fairness-facts")
    expect(facts).to_contain_text("Limit 2: override until")
    expect(facts).to_contain_text("by boss: a sale")
    expect(facts).to_contain_text("Limit 1: tier free", timeout=SOON_MS)
    expect(facts).not_to_contain_text("override")


@pytest.mark.browser
def test_a_dead_letter_is_requeued(
    address: str, page: Page, site_environment: dict[str, str], shop: Installation
) -> None:
    for name in ("first", "second"):
        bury(shop, "42", name)
    log_in(page, f"{address}{ADMIN}/deadletter/", site_environment)
    page.get_by_label("first").check()
    page.get_by_label("Reason").fill("fixed in 2.1")
    page.get_by_role("button", name="Requeue selected").click()
    expect(page.get_by_text("task first waits again in queue celery")).to_be_visible()
    expect(page.get_by_role("row", name="second")).to_be_visible()
    expect(page.get_by_role("row", name="first")).to_have_count(0)
    page.get_by_label("all of this page").check()
    expect(page.get_by_label("second")).to_be_checked()
    assert shop.find("first")[0][1] == "waiting"


@pytest.mark.browser
def test_a_task_is_found_by_its_id_and_starts_while_the_page_is_open(
    address: str, page: Page, site_environment: dict[str, str], shop: Installation
) -> None:
    for number in range(2):
        send(shop, "flood", f"t{number}")
    (running,) = shop.claim()
    log_in(page, f"{address}{ADMIN}/task/", site_environment)
    page.get_by_label("Task id").fill("t1")
    page.get_by_role("button", name="Explain").click()
    facts = page.locator("#fairness-live")
    expect(facts).to_contain_text("Blocked by tenant:flood: concurrency, held 1 of 1")
    shop.settle(running)
    expect(facts).to_contain_text("No limit blocks it", timeout=SOON_MS)
    shop.claim()
    expect(facts).to_contain_text("Runs at worker-1", timeout=SOON_MS)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_cut_off_and_axe_finds_nothing_serious(
    address: str,
    page: Page,
    site_environment: dict[str, str],
    shop: Installation,
    scheme: str,
    width: int,
) -> None:
    fill(shop)
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    log_in(page, f"{address}{ADMIN}/limitkey/", site_environment)
    problems = []
    for path in PATHS:
        page.goto(f"{address}{ADMIN}/{path}")
        expect(page.locator("#content-main")).to_be_visible()
        if page.evaluate("document.documentElement.scrollWidth") > width:
            problems.append(f"{path} is wider than the window")
        # Only our part of the page: the frame is Django's.
        found = Axe().run(page, context="#content-main")
        problems += [
            f"{path}: {each['id']}: {each['nodes'][0]['html']}"
            for each in found.response["violations"]
            if each["impact"] in ("serious", "critical")
        ]
    assert problems == []


#: Every page, with something on it.
PATHS = (
    "limitkey/",
    "limitkey/api.stripe.com/change/",
    "limitkey/tenant_3Aflood/change/",
    "limitkey/tenant_3Aflood/purge/",
    "queue/",
    "queue/celery/change/",
    "task/?id=t3",
    "task/?id=gone",
    "task/t3/cancel/",
    "deadletter/",
)


def fill(shop: Installation) -> None:
    """Something on every page, with long names."""
    bury(shop, "billing.customer-with-a-long-name.example.com", "d" * 36)
    for number in range(6):
        send(shop, "flood", f"t{number}", limits=API)
        send(shop, f"tenant-{number}", f"u{number}", limits=API)
    shop.claim()
    send(shop, "42", "x", queue="a_queue_with_quite_a_long_name_default")
