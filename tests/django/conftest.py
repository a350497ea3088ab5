"""Fixtures of the demo site as processes and of pages in a browser; and Django kept to itself.

Invariant: the tests in ``suite/`` configure Django for their whole process, so they run in a
process of their own (:mod:`tests.django.test_on_databases`), unless they are asked for by path.

Weakness: ``pytest -k`` on the whole suite chooses among them by the names that
``test_on_databases`` gives them, and the process runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import Installation
from tests.django.live_site import PROJECT, SESSION_COOKIE, LiveSite
from tests.support.process_tree import descendants
from tests.support.redis_server import RedisServer
from tests.support.servers import NotInstalled, find_chromium
from tests.support.services import missing
from tests.support.waiting import at_most

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

collect_ignore = ["suite"]

BROWSER_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture
def site_environment(tmp_path: Path) -> dict[str, str]:
    """Variables for a demo site with a folder of its own."""
    return {
        "DEMO_SITE_DIR": str(tmp_path / "site"),
        "PYTHONPATH": str(PROJECT),
        "DJANGO_SUPERUSER_PASSWORD": "let me in",
    }


@pytest.fixture
def manage(site_environment: dict[str, str]) -> Callable[..., str]:
    """Run a management command of the demo site to its end; give back what it printed."""

    def manage(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), *arguments],
            env={**os.environ, **site_environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=at_most(60),
        )
        printed = done.stdout + done.stderr
        assert done.returncode == status, f"{arguments} ended with {done.returncode}:\n{printed}"
        return printed

    return manage


@pytest.fixture(scope="package")
def shared_site(
    tmp_path_factory: pytest.TempPathFactory,
    redis_server: RedisServer,
    lives_on: Callable[[Callable[[], list[int]]], None],
) -> Iterator[LiveSite]:
    """The site of all browser tests of a process."""
    site = LiveSite(tmp_path_factory.mktemp("site"), redis_server.url)
    lives_on(site.pids)
    yield site
    site.stop()


@pytest.fixture
def live_site(shared_site: LiveSite, redis_url: str) -> LiveSite:
    """The site with an empty Redis, and with its database as after the set-up."""
    shared_site.reset()
    return shared_site


@pytest.fixture
def shop(live_site: LiveSite, redis_server: RedisServer) -> Iterator[Installation]:
    """What a producer and a worker of the site do, without either."""
    with redis_server.client(decode_responses=True) as client:
        yield Installation(client)


@pytest.fixture(scope="package")
def browser(lives_on: Callable[[Callable[[], list[int]]], None]) -> Iterator[Browser]:
    """Debian's chromium."""
    from playwright.sync_api import sync_playwright

    try:
        chromium = find_chromium()
    except NotInstalled as error:
        missing(str(error))
    before = set(descendants())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(BROWSER_FLAGS))
        mains = set(descendants()) - before
        lives_on(lambda: [pid for main in mains for pid in (main, *descendants(main))])
        yield browser
        browser.close()


@pytest.fixture
def page_of(browser: Browser, live_site: LiveSite) -> Iterator[Callable[[str], Page]]:
    """Open a page at which a user is logged in; "" is nobody."""
    contexts = []

    def page_of(user: str) -> Page:
        context = browser.new_context(base_url=live_site.address)
        contexts.append(context)
        if user:
            session = live_site.sessions[user]
            cookie = {"name": SESSION_COOKIE, "value": session, "url": live_site.address}
            context.add_cookies([cookie])
        return context.new_page()

    yield page_of
    for context in contexts:
        context.close()


@pytest.fixture
def page(page_of: Callable[[str], Page]) -> Page:
    """A page of the administrator."""
    return page_of("boss")
