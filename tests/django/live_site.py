"""The demo site as processes that several tests share: a web server, and a console of Django.

Invariant: `reset` gives each test the database as it was after the set-up. The sessions of its
users are in it, so a page is logged in by its cookie.

Weakness: the web server keeps what it has in memory, for example the dashboard's look at Redis,
which may be two seconds old.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from celery_fairness.testing.child_process import dying_with_parent
from tests.support.local_process import LocalProcess, clean_environment
from tests.support.process_tree import descendants
from tests.support.redis_server import ReservedPort
from tests.support.waiting import at_most, eventually

PROJECT = Path(__file__).resolve().parents[2] / "django_app"
PASSWORD = "let me in"
SESSION_COOKIE = "fairness_demo_session"

#: Runs the code of each line of its input, a JSON text, and prints its `answer`.
_CONSOLE = """
import json, sys
from django.db import connections
for line in sys.stdin:
    names = {}
    exec(json.loads(line), names)
    connections.close_all()
    print(json.dumps(names.get("answer")), flush=True)
"""

#: The administrator, and staff who may look at everything of this app and change nothing.
_SET_UP = f"""
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
boss = User.objects.create_superuser("boss", "boss@example.com", {PASSWORD!r})
clerk = User.objects.create_user("clerk", is_staff=True)
ours = Permission.objects.filter(content_type__app_label="django_celery_fairness")
clerk.user_permissions.set(ours.filter(codename__startswith="view_"))
answer = {{}}
for user in boss, clerk:
    client = Client()
    client.force_login(user)
    answer[user.username] = client.cookies[{SESSION_COOKIE!r}].value
"""


class LiveSite:
    """A migrated site that serves, with the users `boss` and `clerk`."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        """Start it in a folder of its own."""
        self.database = folder / "site.sqlite3"
        self.environment = {
            "DEMO_SITE_DIR": str(folder),
            "PYTHONPATH": str(PROJECT),
            "CELERY_BROKER_URL": f"fair{redis_url}",
        }
        self._pristine = folder / "pristine.sqlite3"
        self._port = ReservedPort()
        host = f"127.0.0.1:{self._port.number}"
        self.address = f"http://{host}"
        command = [sys.executable, "manage.py", "runserver", "--noreload", "--insecure", host]
        self._web = LocalProcess("web", command, env=self.environment, cwd=PROJECT)
        self._console_log = (folder / "console.log").open("w+")
        # The two start at the same time.
        self._console = subprocess.Popen(
            dying_with_parent([sys.executable, "manage.py", "shell", "-v0", "-c", _CONSOLE]),
            cwd=PROJECT,
            env={**clean_environment(), **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._console_log,
            text=True,
        )
        try:
            self._web.start()
            #: Value of the session cookie, by user.
            self.sessions: dict[str, str] = self.run(_SET_UP)
            _copy(self.database, self._pristine)
            eventually(self._answers, timeout_seconds=at_most(60))
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> None:
        assert self._web.alive, self._web.log_text()
        try:
            urlopen(self.address, timeout=at_most(5)).close()
        except OSError as error:
            raise AssertionError(f"{error}\n{self._web.log_text()}") from error

    def pids(self) -> list[int]:
        """Return its processes."""
        mains = [self._console.pid, self._web.pid]
        return [pid for main in mains for pid in (main, *descendants(main))]

    def run(self, code: str) -> Any:
        """Run code in the console, and return what it has called ``answer``."""
        assert self._console.stdin is not None
        assert self._console.stdout is not None
        self._console.stdin.write(json.dumps(code) + "\n")
        self._console.stdin.flush()
        answer = self._console.stdout.readline()
        if not answer:
            self._console.wait()
            self._console_log.seek(0)
            raise AssertionError(f"the console of the site ended:\n{self._console_log.read()}")
        return json.loads(answer)

    def send(self, tasks: int, seconds: float, tenant: str = "flood") -> None:
        """Send tasks of a tenant that take so many seconds each."""
        self.run(
            "from demo_site.load import send\n"
            f"for _ in range({tasks}):\n    send({tenant!r}, 'analyze', {seconds})"
        )

    def reset(self) -> None:
        """Make the database as it was after the set-up."""
        _copy(self._pristine, self.database)

    def stop(self) -> None:
        """End it."""
        self._console.kill()
        self._console.communicate()
        self._console_log.close()
        self._web.stop()
        self._web.assert_gone()
        self._web.discard_log()
        self._port.release()


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
