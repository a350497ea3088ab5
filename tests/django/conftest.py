"""Fixtures of the demo site as processes; and Django kept out of the rest of the suite.

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
from urllib.request import urlopen

import pytest

from tests.support.local_process import LocalProcess
from tests.support.redis_server import ReservedPort
from tests.support.servers import NotInstalled, find_chromium
from tests.support.services import missing
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

collect_ignore = ["suite"]

BROWSER_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

PROJECT = Path(__file__).resolve().parents[2] / "django_app"


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
            timeout=60,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == status, f"{arguments} ended with {done.returncode}:\n{printed}"
        return printed

    return manage


@pytest.fixture
def site_redis_url(redis_url: str) -> str:
    """The Redis of the site. A test that restarts it has one of its own."""
    return redis_url


@pytest.fixture
def address(
    site_environment: dict[str, str], site_redis_url: str, manage: Callable[..., str]
) -> Iterator[str]:
    """A live server of the migrated site, with the administrator `boss`."""
    site_environment |= {
        "CELERY_BROKER_URL": f"fair{site_redis_url}",
        "DJANGO_SUPERUSER_USERNAME": "boss",
        "DJANGO_SUPERUSER_EMAIL": "boss@example.com",
    }
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
    """A page of Debian's chromium."""
    from playwright.sync_api import sync_playwright

    try:
        chromium = find_chromium()
    except NotInstalled as error:
        missing(str(error))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(BROWSER_FLAGS))
        yield browser.new_page()
        browser.close()
