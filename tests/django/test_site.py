"""``manage.py site``: up with one command, and gone with one signal."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.django.conftest import PROJECT
from tests.django.demo_ledger import Ledger
from tests.support.local_process import LocalProcess, clean_environment
from tests.support.redis_server import ReservedPort
from tests.support.waiting import eventually

START_SECONDS = 60


@pytest.fixture
def port() -> int:
    reserved = ReservedPort()
    reserved.release()
    return reserved.number


@pytest.fixture
def site(site_environment: dict[str, str], port: int) -> Iterator[LocalProcess]:
    del site_environment["DJANGO_SUPERUSER_PASSWORD"]
    command = [sys.executable, "-u", str(PROJECT / "manage.py"), "site", "--port", str(port)]
    process = LocalProcess("site", command, env=site_environment)
    yield process
    process.kill()
    process.discard_log()


def serve(site: LocalProcess) -> str:
    """Start it, and give back what it printed once it serves."""

    def serves() -> str:
        assert site.alive, site.log_text()
        printed = site.log_text(since_start=True)
        assert "Ctrl-C stops everything." in printed
        return printed

    site.start()
    return eventually(serves, timeout_seconds=START_SECONDS)


def get(port: int, path: str = "") -> str:
    with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as response:
        return response.read().decode()


def asked(command: str, environment: dict[str, str]) -> str:
    """Run a command as a shell does."""
    done = subprocess.run(
        ["sh", "-c", command],
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_serves_running_tasks_and_the_admin_and_stops_without_a_trace(
    site: LocalProcess, port: int, site_environment: dict[str, str]
) -> None:
    printed = serve(site)
    assert f"http://127.0.0.1:{port}/" in printed
    [password] = re.findall(r"user admin, password (\S+) \(shown this once\)", printed)
    folder = Path(site_environment["DEMO_SITE_DIR"])
    [broker] = re.findall(r"broker +(fairredis://\S+)", printed)

    def tasks_run_on_both_workers() -> None:
        runs = Ledger.of(folder / "site.sqlite3", "dave").runs
        assert {run.worker for run in runs if run.finished} == {"one@demo", "two@demo"}

    eventually(tasks_run_on_both_workers, timeout_seconds=START_SECONDS)
    assert Ledger.of(folder / "site.sqlite3", "alice").most_at_once() == 1
    page = get(port)
    assert all(tenant in page for tenant in ("alice", "bob", "carol", "dave"))
    assert 'http-equiv="refresh"' in page
    assert "waits in Redis" in page
    assert "is unknown" not in page
    # The printed command, for another terminal.
    [command] = re.findall(r"^ +(CELERY_BROKER_URL=\S+ .* fairness status)$", printed, re.MULTILINE)
    assert f"CELERY_BROKER_URL={broker} " in command
    status = json.loads(asked(f"{command} --json", site_environment))
    assert status["path"] == "dispatch"
    assert {"analysis_default", "specview_priority"} <= {each["queue"] for each in status["queues"]}
    assert sum(each["waiting"] for each in status["queues"]) > 0
    tier = asked(command.removesuffix("status") + "tenant tier dave", site_environment)
    assert "tier enterprise, limit 5" in tier
    assert not re.findall(r"https?://", page), "the page asks the internet for something"
    assert "Log in" in get(port, "admin/login/")
    assert get(port, "static/admin/css/base.css")
    with pytest.raises(HTTPError, match="404"):
        get(port, "nothing-here")

    assert site.stop("SIGTERM", timeout_seconds=20) == 0
    site.assert_gone()
    assert (folder / "secret_key").stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    assert password not in "".join(path.read_text() for path in folder.glob("logs/*.log"))

    # A second time: the same administrator, a new server, and Ctrl-C.
    assert "password as before" in serve(site)
    assert site.stop("SIGINT", timeout_seconds=20) == 0
    site.assert_gone()


def test_a_site_that_is_killed_takes_everything_along(site: LocalProcess) -> None:
    serve(site)
    children = [child.pid for child in site.children()]
    assert len(children) >= 4
    assert site.popen is not None
    site.popen.kill()
    site.popen.wait()

    def all_gone() -> None:
        left = [str(process) for process in site.survivors()]
        assert not left, left

    eventually(all_gone, timeout_seconds=30)


def test_a_port_that_is_taken_is_one_sentence(manage: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        printed = manage("site", "--port", str(number), status=1)
    assert f"port {number} expected to be free" in printed
    assert f"--port {number + 1}" in printed
    assert "Traceback" not in printed


def test_a_worker_that_dies_ends_the_site_with_its_name(site: LocalProcess) -> None:
    serve(site)
    [worker] = [
        child
        for child in site.children()
        if child.ppid() == site.pid and "two@demo" in child.cmdline()
    ]
    worker.kill()

    def has_ended() -> None:
        assert site.exit_code == 1

    eventually(has_ended, timeout_seconds=20)
    assert "worker-two expected to keep running" in site.log_text()
    site.assert_gone()
