"""The dashboard in a real browser: it stays current, comes back, and can be used by everybody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.cli.conftest import Installation
from tests.django.browsing import DASHBOARD, SOON_MS, problems_of
from tests.django.live_site import LiveSite
from tests.support.redis_server import RedisServer


@pytest.mark.browser
def test_it_follows_what_happens_without_a_reload(
    page: Page,
    start_worker: Callable[..., object],
    live_site: LiveSite,
    redis_server: RedisServer,
) -> None:
    page.goto(DASHBOARD)
    # A page that is loaded again forgets it.
    page.evaluate("window.isTheFirst = true")
    verdict = page.locator(".fairness-verdict")
    expect(verdict).to_contain_text("nothing waits or runs")
    live_site.send(30, 0.5)
    expect(verdict).to_contain_text("no worker takes queue analysis_default", timeout=SOON_MS)
    start_worker("demo_site", concurrency=2, env=live_site.environment, wait=False)
    expect(verdict).to_contain_text("of them at their tenants' limits", timeout=SOON_MS)
    row = page.get_by_role("row", name="tenant:flood")
    expect(row).to_contain_text("at its tier's limit")
    expect(page.get_by_role("row", name="enforced")).to_contain_text("1 / 2", timeout=SOON_MS)
    # A new Redis has the same address, and is empty.
    redis_server.kill()
    expect(verdict).to_contain_text("does not answer", timeout=SOON_MS)
    redis_server.restart()
    expect(page.locator("h2#queues")).to_be_visible(timeout=SOON_MS)
    expect(verdict).not_to_contain_text("does not answer")
    assert page.evaluate("window.isTheFirst")


@pytest.mark.browser
def test_nothing_is_cut_off_and_axe_finds_nothing_serious(
    page: Page, shop: Installation, live_site: LiveSite
) -> None:
    live_site.send(3, 1)
    hour = int(shop.client.time()[0]) // 3600
    for ago, count in ((0, 1_204_567), (1, 3), (5, 90_000), (23, 7_000)):
        fields = (
            f"observed free tenant:{'customer-with-a-long-name' * (ago + 1)}",
            "observed free _other",
        )
        key = shop.key(f"stats:{(hour - ago) * 60}")
        shop.client.hset(key, mapping=dict.fromkeys(fields, f"{count} 37"))
    page.goto(DASHBOARD)
    expect(page.get_by_role("row", name="tenant:flood")).to_be_visible()
    # The server shares one look at the statistics of minutes for twenty seconds.
    expect(page.locator("rect.count")).to_have_count(4, timeout=2 * SOON_MS)
    assert problems_of(page) == []
