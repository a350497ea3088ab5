"""The operator's pages in a real browser: what a person does there holds, and can be read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.cli.clearing import bury, send
from tests.cli.conftest import Installation
from tests.django.browsing import ADMIN, ROWS, SOON_MS, problems_of
from tests.django.demo_ledger import Ledger
from tests.django.live_site import LiveSite
from tests.support.services import only_in_ci
from tests.support.waiting import at_most, eventually

FLOOD = f"{ADMIN}/limitkey/tenant_3Aflood/change/"
API = "api.stripe.com|C1;R2/3600000|w"


@pytest.mark.browser
def test_a_tenant_is_paused_and_resumed_while_tasks_wait(
    page: Page, start_worker: Callable[..., object], live_site: LiveSite
) -> None:
    start_worker("demo_site", concurrency=2, env=live_site.environment, wait=False)
    live_site.send(60, 0.3)

    def finished(number: int) -> Callable[[], None]:
        def enough() -> None:
            assert Ledger.of(live_site.database, "flood").finished >= number

        return enough

    eventually(finished(2), timeout_seconds=at_most(60))
    page.goto(FLOOD)
    facts = page.locator(".fairness-facts")
    expect(facts).to_contain_text("all places taken", timeout=SOON_MS)
    page.get_by_label("Reason").fill("incident 17")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".messagelist .success")).to_contain_text("paused until it is resumed")
    expect(facts).to_contain_text("by boss since")
    expect(page.get_by_text("No task holds a slot of it.")).to_be_visible(timeout=SOON_MS)
    paused_at = Ledger.of(live_site.database, "flood").finished
    expect(facts).to_contain_text(f"Waiting{60 - paused_at}")
    page.get_by_label("Reason").fill("it is over")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".messagelist .success")).to_contain_text(
        "not stopped: tasks start as its limits allow"
    )
    eventually(finished(paused_at + 3), timeout_seconds=at_most(20))


@pytest.mark.browser
def test_a_button_is_on_while_it_has_something_to_end(
    page_of: Callable[[str], Page], shop: Installation
) -> None:
    send(shop, "flood", "waits")
    page, other = page_of("boss"), page_of("boss")
    page.goto(FLOOD)
    resume = page.get_by_role("button", name="Resume")
    expect(resume).to_be_disabled()
    other.goto(FLOOD)
    other.get_by_label("Reason").fill("incident 17")
    other.get_by_role("button", name="Pause").click()
    expect(resume).to_be_enabled(timeout=SOON_MS)
    expect(page.get_by_role("button", name="End override")).to_be_disabled()


@pytest.mark.browser
def test_a_boost_is_seen_to_end(page: Page, shop: Installation) -> None:
    send(shop, "flood", "waits")
    page.goto(FLOOD)
    page.get_by_label("Reason").fill("a sale")
    page.get_by_label("For how long").fill("4s")
    page.get_by_role("button", name="Boost").click()
    facts = page.locator(".fairness-facts")
    expect(facts).to_contain_text("Limit 2: override until")
    expect(facts).to_contain_text("by boss: a sale")
    expect(facts).to_contain_text("Limit 1: tier free", timeout=SOON_MS)
    expect(facts).not_to_contain_text("override")


@pytest.mark.browser
def test_an_overridden_key_is_seen_to_have_its_own_number_again(
    page: Page, shop: Installation
) -> None:
    """The override is a row with a time. Redis ends it, and tasks are claimed by its number."""
    for number in range(4):
        send(shop, "flood", f"t{number}")
    assert len(shop.claim()) == 1
    page.goto(FLOOD)
    page.get_by_role("link", name="Override its numbers").click()
    expect(page.locator("#id_key")).to_have_value("tenant:flood")
    page.fill("#id_concurrency", "3")
    page.fill("#id_reason", "a sale")
    # The form has whole seconds: it ends six to seven seconds from now.
    ends = datetime.now(UTC) + timedelta(seconds=7)
    page.fill("#id_ends_at_0", f"{ends:%Y-%m-%d}")
    page.fill("#id_ends_at_1", f"{ends:%H:%M:%S}")
    page.click("input[name=_save]")
    expect(page.locator(".messagelist .success")).to_contain_text("tenant:flood")
    page.goto(FLOOD)
    facts = page.locator(".fairness-facts")
    expect(facts).to_contain_text("Limit 3: override until")
    expect(facts).to_contain_text("by boss: a sale")
    assert len(shop.claim()) == 2
    expect(facts).to_contain_text("Limit 1: tier free", timeout=SOON_MS)
    expect(facts).not_to_contain_text("override")
    assert datetime.now(UTC) >= ends.replace(microsecond=0)
    assert shop.claim() == []


@pytest.mark.browser
def test_a_refresh_leaves_the_keyboard_at_its_link(page: Page, shop: Installation) -> None:
    for queue in ("celery", "mail"):
        send(shop, "flood", f"t{queue}", queue=queue)
    page.goto(f"{ADMIN}/queue/")
    page.get_by_role("link", name="mail").focus()
    href = page.evaluate("(window.before = document.activeElement).getAttribute('href')")
    page.wait_for_function("!document.contains(window.before)", timeout=SOON_MS)
    assert page.evaluate("document.activeElement.getAttribute('href')") == href


@pytest.mark.browser
def test_a_dead_letter_is_requeued(page: Page, shop: Installation) -> None:
    for name in ("first", "second"):
        bury(shop, "42", name)
    page.goto(f"{ADMIN}/deadletter/")
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
    page: Page, shop: Installation
) -> None:
    for number in range(2):
        send(shop, "flood", f"t{number}")
    (running,) = shop.claim()
    page.goto(f"{ADMIN}/task/")
    page.get_by_label("Task id").fill("t1")
    page.get_by_role("button", name="Explain").click()
    facts = page.locator("#fairness-live")
    expect(facts).to_contain_text("Blocked by tenant:flood: concurrency, held 1 of 1")
    shop.settle(running)
    expect(facts).to_contain_text("No limit blocks it", timeout=SOON_MS)
    shop.claim()
    expect(facts).to_contain_text("Runs at worker-1", timeout=SOON_MS)


#: The pages about Redis.
PATHS = (
    "tenant/",
    "limitkey/",
    "limitkey/api.stripe.com/change/",
    "limitkey/tenant_3Aflood/change/",
    "limitkey/tenant_3Aflood/purge/",
    "queue/",
    "queue/celery/change/",
    "task/",
    "task/?tenant=flood",
    "task/cancel-all/?tenant=flood",
    "task/?id=t3",
    "task/?id=gone",
    "task/t3/cancel/",
    "deadletter/",
)
#: The lists and forms of rows with an end, a rate or a queue.
ROW_PATHS = (
    "queuelimit/",
    "queuelimit/add/",
    "queuelimit/1/change/",
    "limitoverride/",
    "limitoverride/add/",
    "limitoverride/1/change/",
    "tenanttier/",
    "tenanttier/1/change/",
)


@pytest.mark.browser
@pytest.mark.parametrize(
    "paths",
    [pytest.param(PATHS, id="redis"), pytest.param(ROW_PATHS, id="rows", marks=only_in_ci)],
)
def test_no_page_is_cut_off_and_axe_finds_nothing_serious(
    paths: tuple[str, ...], page: Page, shop: Installation, live_site: LiveSite
) -> None:
    fill(shop)
    live_site.run(ROWS)
    problems = []
    for path in paths:
        page.goto(f"{ADMIN}/{path}")
        expect(page.locator("#content-main")).to_be_visible()
        problems += [f"{path}: {problem}" for problem in problems_of(page)]
    assert problems == []


def fill(shop: Installation) -> None:
    """Something on every page, with long names."""
    bury(shop, "billing.customer-with-a-long-name.example.com", "d" * 36)
    queue = "a_queue_with_quite_a_long_name_default"
    bury(shop, "42", "11fe967b-47c5-4ee3-93b2-2ba4740cbc72", queue=queue)
    for number in range(6):
        send(shop, "flood", f"t{number}", limits=API)
        send(shop, f"tenant-{number}", f"u{number}", limits=API)
    shop.claim()
    send(shop, "42", "x", queue=queue)
