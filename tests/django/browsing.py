"""Steps of a person in the browser, and the checks of a page that everybody can use."""

from __future__ import annotations

import itertools
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from tests.support.waiting import at_most

ADMIN = "/admin/django_celery_fairness"
DASHBOARD = f"{ADMIN}/dashboard/"
#: Longer than a person would wait, because the machine may be busy.
SOON_MS = 1000 * at_most(20)
#: Widths of a window, in pixels: a laptop's and a phone's.
WIDE, NARROW = 1280, 390
SCHEMES = ("light", "dark")

#: Rows of each kind in the console of the site, with long names and texts.
ROWS = """
from datetime import timedelta
from django.utils import timezone
from django_celery_fairness.models import LimitOverride, QueueLimit, TenantTier, Tier
from demo_site.celery import fairness
pro, now = Tier.objects.get(name="pro"), timezone.now()
why = "pays for more until the end of the year"
for name in ("acme", "billing@customer.example.com"):
    TenantTier.objects.create(
        tenant=name, tier=pro, concurrency=12, note=why,
        valid_from=now - timedelta(days=1), valid_until=now + timedelta(days=30))
fairness.tenants.override("acme", concurrency=7, reason="a sale", by="ada")
fairness.tenants.pause("acme", by="grace", for_seconds=3600)
QueueLimit.objects.create(
    queue="a_queue_with_quite_a_long_name_default", global_limit=10, local_limit=2,
    rate="1000/PT24H", throttle="60/m", on_limit="reschedule", note=why)
LimitOverride.objects.create(
    key="api.customer-with-a-long-name.example.com", concurrency="unlimited", rate="1000/PT24H",
    throttle="unlimited", ends_at=now + timedelta(days=2), reason=why, author_name="token deploy")
"""

# Only our part of the page: the frame and the search above a list are Django's.
_AXE = """
axe.run(
  {include: ["#content-main"], exclude: ["#toolbar"]}, {resultTypes: ["violations"]}
).then((found) => found.violations)
"""

#: Tables that a person has to scroll, and words of up to 15 letters that go on in the next line.
_CUT = r"""
() => {
  const found = [];
  for (const region of document.querySelectorAll(".fairness-scroll")) {
    const hidden = region.scrollWidth - region.clientWidth;
    if (hidden > 0) found.push(`${hidden} pixels of a table are cut off: ${region.ariaLabel}`);
    const texts = document.createTreeWalker(region, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.textContent.matchAll(/[A-Za-z0-9]+/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        const lines = new Set(Array.from(range.getClientRects(), (rect) => Math.round(rect.top)));
        if (word[0].length <= 15 && lines.size > 1) found.push(`a word is broken: ${word[0]}`);
      }
    }
  }
  return found;
}
"""


def log_in(page: Page, path: str, password: str) -> None:
    """Open a page of the admin as the administrator, by the form."""
    page.goto(path)
    page.fill("#id_username", "boss")
    page.fill("#id_password", password)
    page.click("input[type=submit]")


def set_width(page: Page, width: int) -> None:
    """Make the window so wide, and wait until the page is."""
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function("width => window.innerWidth === width", arg=width)


def problems_of(page: Page) -> list[str]:
    """Return what is cut off in a wide or narrow window, and what axe finds serious in both.

    Both themes are looked at. The window is narrow and dark afterwards.
    """
    page.evaluate(AXE_SCRIPT)
    problems: list[str] = []
    for scheme, width in itertools.product(SCHEMES, (WIDE, NARROW)):
        page.emulate_media(color_scheme=scheme)
        set_width(page, width)
        # A link's colour changes slowly from one theme's to the other's.
        page.wait_for_function("document.getAnimations().length === 0")
        if page.evaluate("document.documentElement.scrollWidth") > width:
            problems.append(f"{width}, {scheme}: it is wider than the window")
        problems += [f"{width}, {scheme}: {each}" for each in page.evaluate(_CUT)]
        found: list[dict[str, Any]] = page.evaluate(_AXE)
        problems += [
            f"{width}, {scheme}: {each['id']}: {each['nodes'][0]['html']}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
    return problems
