"""``manage.py site``: up with one command, alive on every page, and gone with one signal."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from html import unescape
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.django.conftest import PROJECT
from tests.django.demo_ledger import Ledger
from tests.support.local_process import LocalProcess, clean_environment
from tests.support.redis_server import ReservedPort
from tests.support.services import only_in_ci
from tests.support.waiting import at_most, eventually

START_SECONDS = at_most(60)
ADMIN = "admin/django_celery_fairness"
#: A task of the paused tenant.
WAITS = "00000000-0000-0000-0000-000000000001"
#: What each page shows, on both paths.
PAGES = {
    "admin/": ("tenant:erin", "tenant:carol"),
    f"{ADMIN}/dashboard/": (
        "tasks wait",
        "tenant:alice",
        "at its tier's limit",
        "tenant:erin",
        "payments.example.com",
        "one@demo",
        "two@demo",
    ),
    f"{ADMIN}/tier/": ("enterprise", "pro_plus"),
    f"{ADMIN}/tenanttier/": (
        "paused until it is resumed, by admin",
        "override until",
        "the quarter ends",
    ),
    f"{ADMIN}/limitkey/": ("payments.example.com", "of 12 / PT10S", "queue:reports_priority"),
    f"{ADMIN}/limitkey/payments.example.com/change/": ("cools down", "demo_site.tasks.charge"),
    f"{ADMIN}/queue/": ("reports_priority", "global_limit 2"),
    f"{ADMIN}/queue/reports_priority/change/": ("one@demo", "two@demo"),
    f"{ADMIN}/task/?id={WAITS}": ("Blocked by tenant:erin: paused",),
    # The last task of a chord starts when all its parts have ended.
    f"{ADMIN}/tenant/": ("alice", "bob", "carol", "dave", "erin", "frank", "join"),
}
ON_FAIRREDIS = {
    f"{ADMIN}/queue/analysis_default/change/": ("tenant:alice", "paused"),
    f"{ADMIN}/deadletter/": ("demo_site.tasks.convert", "its process died 2 times"),
}
AT_GATE = {f"{ADMIN}/deadletter/": ("keeps no dead letters",)}


@pytest.fixture
def port() -> Iterator[int]:
    """A port that only the site gets: it is reserved until the test ends."""
    reserved = ReservedPort()
    yield reserved.number
    reserved.release()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the site makes its temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def start(folder: Path, port: int) -> Iterator[Callable[..., LocalProcess]]:
    """Start a site, and wait until it serves."""
    started: list[LocalProcess] = []

    def start(*arguments: str) -> LocalProcess:
        command = [sys.executable, "-u", str(PROJECT / "manage.py"), "site", "--port", str(port)]
        environment = {"TMPDIR": str(folder), "PYTHONPATH": str(PROJECT)}
        site = LocalProcess("site", [*command, *arguments], env=environment)
        started.append(site.start())

        def serves() -> None:
            assert site.alive, site.log_text()
            assert "Ctrl-C stops everything." in site.log_text()

        eventually(serves, timeout_seconds=START_SECONDS)
        return site

    yield start
    for site in started:
        site.kill()
        site.discard_log()


class Visitor:
    """A person with a browser, without the browser."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/"
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))

    def read(self, path: str, **form: str) -> str:
        """Return a page, after sending a form."""
        data = urlencode(form).encode() if form else None
        with self._opener.open(self._address + path, data, timeout=at_most(20)) as response:
            self.at = response.url.removeprefix(self._address)
            return unescape(response.read().decode())

    def log_in(self, password: str) -> str:
        """Log in at the page that follows the address of the site."""
        self.read("")
        assert self.at.startswith("admin/login/")
        [token] = [each.value for each in self._cookies if each.name == "fairness_demo_csrf"]
        form = {"username": "admin", "password": password, "csrfmiddlewaretoken": str(token)}
        return self.read(self.at, **form)

    def expect(self, pages: dict[str, tuple[str, ...]]) -> None:
        """Look at each page until each text was on it, though not all at the same time."""
        for path, texts in pages.items():
            missing = set(texts)

            def shows(path: str = path, missing: set[str] = missing) -> None:
                page = self.read(path)
                missing -= {text for text in missing if text in page}
                assert not missing, path

            eventually(shows, timeout_seconds=START_SECONDS, poll_seconds=0.2)


def asked(command: str) -> str:
    """Run a command as a shell does."""
    done = subprocess.run(
        ["sh", "-c", command],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=at_most(60),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def login_of(site: LocalProcess, port: int) -> Visitor:
    """Log in with what the site printed."""
    printed = site.log_text()
    assert f"address   http://127.0.0.1:{port}/" in printed
    [password] = re.findall(r"user +admin\n +password +(\S+)\n", printed)
    visitor = Visitor(port)
    assert "Dashboard" in visitor.log_in(password)
    assert visitor.at == f"{ADMIN}/dashboard/"
    return visitor


def test_something_happens_on_every_page_and_ctrl_c_leaves_nothing_behind(
    start: Callable[..., LocalProcess], port: int, folder: Path
) -> None:
    site = start()
    visitor = login_of(site, port)
    visitor.expect(PAGES | ON_FAIRREDIS)
    [own] = folder.glob("fairness-site-*")
    assert own.stat().st_mode & 0o077 == 0
    assert Ledger.of(own / "site.sqlite3", "alice").most_at_once() == 1
    assert Ledger.of(own / "site.sqlite3", "erin").runs == []
    page = visitor.read(f"{ADMIN}/tenant/")
    assert not re.findall(r'(?:src|href)="https?://', page), "the page needs the internet"
    assert visitor.read("static/admin/css/base.css")
    with pytest.raises(HTTPError, match="404"):
        visitor.read("nothing-here")
    # The printed command, for another terminal.
    [command] = re.findall(r"^ +(\w+=\S+ .* fairness status)$", site.log_text(), re.MULTILINE)
    status = json.loads(asked(f"{command} --json"))
    assert status["path"] == "dispatch"
    assert sum(each["waiting"] for each in status["queues"]) > 0

    assert site.stop("SIGINT", timeout_seconds=at_most(30)) == 0
    site.assert_gone()
    assert list(folder.iterdir()) == []


@only_in_ci
def test_the_gate_has_the_same_pages_and_a_worker_that_dies_ends_the_site(
    start: Callable[..., LocalProcess], port: int, folder: Path
) -> None:
    site = start("--path", "gate")
    login_of(site, port).expect(PAGES | AT_GATE)
    [worker] = [
        child
        for child in site.children()
        if child.ppid() == site.pid and "two@demo" in child.cmdline()
    ]
    worker.kill()

    def has_ended() -> None:
        assert site.exit_code == 1

    eventually(has_ended, timeout_seconds=at_most(30))
    assert "worker-two expected to keep running, got exit status -9" in site.log_text()
    site.assert_gone()
    assert list(folder.iterdir()) == []


def test_a_site_that_is_killed_takes_everything_along(start: Callable[..., LocalProcess]) -> None:
    site = start()
    children = [child.pid for child in site.children()]
    assert len(children) >= 4
    assert site.popen is not None
    site.popen.kill()
    site.popen.wait()

    def all_gone() -> None:
        left = [str(process) for process in site.survivors()]
        assert not left, left

    eventually(all_gone, timeout_seconds=at_most(30))


def test_a_port_that_is_taken_is_one_sentence(manage: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        printed = manage("site", "--port", str(number), status=1)
    assert f"port {number} expected to be free" in printed
    assert f"--port {number + 1}" in printed
    assert printed.count("\n") == 1
