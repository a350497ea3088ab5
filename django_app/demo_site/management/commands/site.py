"""``manage.py site``: everything of the demo in one command, until Ctrl-C.

It migrates, makes an administrator, starts a Redis server of its own, two workers and the
development server, and keeps sending tasks of four tenants.

Invariant: Ctrl-C and SIGTERM stop every process that it started, by process id, and leave nothing
behind but the site's folder.

Weakness: one folder serves one site. A second one needs another DEMO_SITE_DIR and port.
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
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from celery_fairness.testing.server import RedisServer, ServerFailed
from demo_site.processes import Processes
from demo_site.site_folder import site_folder

PROJECT = Path(__file__).resolve().parent.parent.parent.parent
ADMINISTRATOR = "admin"
START_SECONDS = 30.0


class Command(BaseCommand):
    """Serve the demo."""

    help = "Sets up the demo site and serves it with tasks running, until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the port."""
        parser.add_argument("--port", type=int, default=8000, help="on 127.0.0.1 (8000)")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Set up, start, send tasks, stop."""
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_signal: stopping.set())
        port = options["port"]
        _require_free(port)
        try:
            with RedisServer() as server:
                self._serve(f"fair{server.url}", port, stopping)
        except ServerFailed as error:
            raise CommandError(str(error)) from error

    def _serve(self, broker: str, port: int, stopping: threading.Event) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        login = _administrator()
        processes = Processes(site_folder() / "logs", {"CELERY_BROKER_URL": broker})
        try:
            self._start(processes, port)
            address = f"http://127.0.0.1:{port}/"
            self._wait_for(address, processes, stopping)
            if not stopping.is_set():
                self.stdout.write(f"\n  tasks   {address}\n  admin   {address}admin/   {login}\n")
                self.stdout.write(f"  broker  {broker}\n  logs    {site_folder() / 'logs'}\n")
                self.stdout.write(_how_to_look(broker))
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
            worker = [python, "-m", "celery", "-A", "demo_site", "worker", "--loglevel", "INFO"]
            worker += ["--concurrency", "4", "--hostname", f"{name}@demo"]
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
                        f"got: {error}; see {site_folder() / 'logs' / 'web.log'}"
                    ) from error


def _how_to_look(broker: str) -> str:
    """Return the command that shows the running site's queues, for another terminal."""
    words = [f"CELERY_BROKER_URL={broker}", sys.executable, "-m", "celery"]
    words += ["--workdir", str(PROJECT), "-A", "demo_site", "fairness", "status"]
    return f"In another terminal:\n\n  {shlex.join(words)}\n"


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CommandError(
                f"port {port} expected to be free, got: {error.strerror}. "
                f"Choose another: manage.py site --port {port + 1}"
            ) from error


def _require_alive(processes: Processes) -> None:
    dead = processes.dead()
    if dead is not None:
        raise CommandError(
            f"{dead.name} expected to keep running, got exit status {dead.process.returncode}; "
            f"see {dead.log}"
        )


def _administrator() -> str:
    """Make the administrator if there is none, and return the text about the login."""
    users = User.objects
    given = os.environ.get("DJANGO_SUPERUSER_PASSWORD")
    user = users.filter(username=ADMINISTRATOR).first()
    if user is None:
        password = given or secrets.token_urlsafe(9)
        users.create_superuser(ADMINISTRATOR, "", password)
        if given:
            return f"user {ADMINISTRATOR}, password as in DJANGO_SUPERUSER_PASSWORD"
        return f"user {ADMINISTRATOR}, password {password} (shown this once)"
    if given and not user.check_password(given):
        user.set_password(given)
        user.save()
        return f"user {ADMINISTRATOR}, password set to DJANGO_SUPERUSER_PASSWORD"
    return (
        f"user {ADMINISTRATOR}, password as before "
        "(DJANGO_SUPERUSER_PASSWORD=… make site sets another)"
    )
