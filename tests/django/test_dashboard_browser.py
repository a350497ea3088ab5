"""The dashboard in a real browser: it stays current, comes back, and can be used by everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.django.browsing import log_in
from tests.support.redis_server import RedisServer

DASHBOARD = "/admin/django_celery_fairness/dashboard/"
SEND = """
from demo_site.load import send
for _ in range({tasks}):
    send("flood", "analyze", {seconds})
"""
#: Longer than a person would wait, for a busy machine.
SOON_MS = 20_000


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis that a test may restart."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def site_redis_url(server: RedisServer) -> str:
    return server.url


@pytest.mark.browser
def test_it_follows_what_happens_without_a_reload(
    address: str,
    page: Page,
    manage: Callable[..., str],
    start_worker: Callable[..., object],
    site_environment: dict[str, str],
    server: RedisServer,
) -> None:
    log_in(page, address + DASHBOARD, site_environment)
    verdict = page.locator(".fairness-verdict")
    expect(verdict).to_contain_text("nothing waits or runs")
    manage("shell", "--verbosity", "0", "--command", SEND.format(tasks=30, seconds=0.5))
    expect(verdict).to_contain_text("no worker takes queue analysis_default", timeout=SOON_MS)
    start_worker("demo_site", concurrency=2, env=site_environment, wait=False)
    expect(verdict).to_contain_text("of them at their tenants' limits", timeout=SOON_MS)
    row = page.get_by_role("row", name="tenant:flood")
    expect(row).to_contain_text("at its tier's limit")
    expect(page.get_by_role("row", name="enforced")).to_contain_text("1 / 2", timeout=SOON_MS)
    # A new Redis has the same address and knows nothing.
    server.kill()
    expect(verdict).to_contain_text("does not answer", timeout=SOON_MS)
    server.restart()
    expect(page.locator("h2#queues")).to_be_visible(timeout=SOON_MS)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off_and_axe_finds_nothing_serious(
    address: str,
    page: Page,
    manage: Callable[..., str],
    site_environment: dict[str, str],
    scheme: str,
    width: int,
) -> None:
    manage("shell", "--verbosity", "0", "--command", SEND.format(tasks=3, seconds=1))
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    log_in(page, address + DASHBOARD, site_environment)
    expect(page.get_by_role("row", name="tenant:flood")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Only our part of the page: the frame is Django's.
    found = Axe().run(page, context="#content-main")
    serious = [
        f"{each['id']}: {each['nodes'][0]['html']}"
        for each in found.response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
