"""``manage.py site``: everything of the demo in one command, until Ctrl-C.

It migrates, makes an administrator, starts a Redis server of its own, two workers and the
development server, and keeps sending tasks of six tenants.

Invariant: Ctrl-C and SIGTERM stop every process that it started, by process id. ``manage.py`` then
removes the site's folder, so nothing is left.

Weakness: a site that is killed leaves its folder, and ends its processes on Linux only. With
DEMO_SITE_DIR the folder stays, and serves one site at a time.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from celery_fairness.testing.server import RedisServer, ServerFailed
from demo_site.load import ADMINISTRATOR, WAITING_TASK
from demo_site.processes import Processes
from demo_site.site_folder import site_folder

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
START_SECONDS = 60.0
#: Lines of the log of a process that ended.
LINES = 15


class Command(BaseCommand):
    """Serve the demo."""

    help = "Sets up the demo site and serves it with tasks running, until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the port and the path."""
        parser.add_argument("--port", type=int, default=8000, help="on 127.0.0.1 (8000)")
        parser.add_argument(
            "--path",
            choices=("fairredis", "gate"),
            default="fairredis",
            help="the broker transport of the package, or the gate on stock Redis (fairredis)",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Set up, start, send tasks, stop."""
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup the site stays when its terminal is closed.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_signal: stopping.set())
        port = options["port"]
        _require_free(port)
        try:
            with RedisServer() as server:
                scheme = "fair" if options["path"] == "fairredis" else ""
                self._serve(f"{scheme}{server.url}", server.url[:-1] + "1", port, stopping)
        except ServerFailed as error:
            raise CommandError(str(error)) from error

    def _serve(self, broker: str, results: str, port: int, stopping: threading.Event) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        password = _administrator()
        variables = {
            "CELERY_BROKER_URL": broker,
            "CELERY_RESULT_BACKEND": results,
            "DEMO_SITE_DIR": str(site_folder()),
        }
        # A worker that is killed leaves a file for the semaphores of its pool.
        temporary = {"TMPDIR": str(site_folder())}
        processes = Processes(site_folder() / "logs", variables | temporary)
        try:
            self._start(processes, port)
            address = f"http://127.0.0.1:{port}/"
            self._wait_for(address, processes, stopping)
            if not stopping.is_set():
                self.stdout.write(_introduction(address, password))
                self.stdout.write(_how_to_look(variables))
                self.stdout.write("\nCtrl-C stops everything.")
                self.stdout.flush()
            while not stopping.wait(1.0):
                _require_alive(processes)
        finally:
            self.stdout.write("stopping …")
            processes.stop()

    def _start(self, processes: Processes, port: int) -> None:
        python = sys.executable
        web = [python, "-u", "manage.py", "runserver", "--noreload", "--skip-checks"]
        # Without DEBUG the development server serves static files only with --insecure.
        processes.start("web", [*web, "--insecure", f"127.0.0.1:{port}"], PROJECT)
        # Another process sends the tasks, because this one read its settings before the server had
        # an address.
        processes.start("load", [python, "-u", "manage.py", "send_demo_tasks"], PROJECT)
        for name in ("one", "two"):
            worker = [python, "-m", "celery", "-A", "demo_site", "worker", "--loglevel", "WARNING"]
            worker += ["--concurrency", "3", "--hostname", f"{name}@demo"]
            processes.start(f"worker-{name}", worker, PROJECT)

    def _wait_for(self, address: str, processes: Processes, stopping: threading.Event) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not stopping.wait(0.1):
            _require_alive(processes)
            try:
                with urlopen(address, timeout=5.0):  # noqa: S310 - the address is ours
                    return
            except (URLError, OSError) as error:
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"the site expected to answer at {address} within {START_SECONDS:.0f} s, "
                        f"got: {error}\n{_end_of(site_folder() / 'logs' / 'web.log')}"
                    ) from error


def _introduction(address: str, password: str) -> str:
    """Return how to log in, and what to look at."""
    search = f"{address}admin/django_celery_fairness/task/?id={WAITING_TASK}"
    return (
        f"\n  address   {address}\n  user      {ADMINISTRATOR}\n  password  {password}\n\n"
        f"A task that waits, because its tenant is paused:\n\n  {search}\n\n"
        f"Running and finished tasks by tenant:\n\n"
        f"  {address}admin/django_celery_fairness/tenant/\n\n"
    )


def _how_to_look(variables: Mapping[str, str]) -> str:
    """Return the command that shows the running site's queues, for another terminal."""
    words = [f"{name}={value}" for name, value in variables.items()]
    words += [sys.executable, "-m", "celery", "--workdir", str(PROJECT)]
    command = shlex.join([*words, "-A", "demo_site", "fairness", "status"])
    return f"In another terminal:\n\n  {command}\n"


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CommandError(
                f"port {port} expected to be free, got: {error.strerror}. "
                f'Choose another: make site ARGS="--port {port + 1}"'
            ) from error


def _require_alive(processes: Processes) -> None:
    dead = processes.dead()
    if dead is not None:
        raise CommandError(
            f"{dead.name} expected to keep running, got exit status {dead.process.returncode}. "
            f"The end of its log:\n{_end_of(dead.log)}"
        )


def _end_of(log: Path) -> str:
    """Return the last lines of a log: its file is removed with the site."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-LINES:]) or "(empty)"


def _administrator() -> str:
    """Make the administrator, and return the password for the console: a new one at each start."""
    given = os.environ.get("DJANGO_SUPERUSER_PASSWORD")
    password = given or secrets.token_urlsafe(9)
    user, _ = User.objects.get_or_create(
        username=ADMINISTRATOR, defaults={"is_staff": True, "is_superuser": True}
    )
    user.set_password(password)
    user.save()
    return "as in DJANGO_SUPERUSER_PASSWORD" if given else password
