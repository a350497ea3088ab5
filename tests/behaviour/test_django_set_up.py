"""A new Django project, set up as the how-to shows it: worker, task, and every command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.local_process import ROOT, clean_environment
from tests.support.nodes import WorkerNode
from tests.support.services import only_in_ci
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis

PAGE = ROOT / "docs/how-to/django.md"
_FILE = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROWS = """
from django_celery_fairness.models import TenantTier, Tier
for tenant in ("42", "43"):
    TenantTier.objects.create(tenant=tenant, tier=Tier.objects.get(name="enterprise"))
"""


class Project:
    """A folder with a new project, and commands in it as a person types them."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder, self.broker = folder, f"fair{redis_url}"
        # Only what a new project has: no variable names its settings.
        self.env = {**clean_environment(), "PYTHONPATH": str(folder)}
        self.env.pop("DJANGO_SETTINGS_MODULE", None)

    def run(self, *command: str, status: int = 0) -> str:
        """Run a command of Python to its end, and return what it printed to stdout."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=at_most(120),
        )
        printed = f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
        assert done.returncode == status, printed
        assert "resolver failed" not in done.stderr, printed
        return done.stdout

    def fairness(self, *command: str, status: int = 0) -> str:
        """Run ``celery -A yourproject fairness …``."""
        return self.run("-m", "celery", "-A", "yourproject", "fairness", *command, status=status)

    def append(self, path: str, text: str) -> None:
        """Add ``text`` to one of its files."""
        with (self.folder / path).open("a") as file:
            file.write(text)


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Project:
    """Set up as the page says; on the test's broker, and what is published is soon forgotten."""
    made = Project(tmp_path, redis_url)
    made.run("-m", "django", "startproject", "yourproject", ".")
    made.run("manage.py", "startapp", "reports")
    files = dict(_FILE.findall(PAGE.read_text()))
    assert set(files) == {
        *("yourproject/settings.py", "yourproject/celery.py", "yourproject/__init__.py"),
        "reports/tasks.py",
    }
    for path, text in files.items():
        made.append(path, text)
    own = f'CELERY_BROKER_URL = "{made.broker}"\nCELERY_FAIRNESS["tier_cache_seconds"] = 0\n'
    made.append("yourproject/settings.py", own)
    made.run("manage.py", "migrate", "--verbosity", "0")
    return made


@only_in_ci
def test_the_page_sets_up_a_project_whose_commands_show_the_tiers_of_the_database(
    project: Project, start_worker: Callable[..., WorkerNode]
) -> None:
    assert "no issues" in project.run("manage.py", "check", "--database", "default")
    # The page's own worker: its folder alone tells it where the settings are.
    env = {"PYTHONPATH": str(project.folder), "CELERY_BROKER_URL": project.broker}
    worker = start_worker("yourproject", pool="solo", concurrency=1, env=env)
    send = "from reports.tasks import export; export.delay(42)"
    project.run("manage.py", "shell", "-c", send)
    eventually(lambda: "exporting for 42" in worker.log_text(), timeout_seconds=at_most(30))

    project.run("manage.py", "shell", "-c", ROWS)
    project.fairness("limit", "pause", "tenant:43")

    def nothing_is_published_any_more() -> None:
        found = json.loads(project.fairness("limit", "show", "tenant:43", "--json"))
        assert not found["published"]

    # A tier without a number of its own is published for twice tier_cache_seconds and a second.
    eventually(nothing_is_published_any_more, timeout_seconds=at_most(30))
    # The tenant's key answers from its tier, though Redis knows nothing of it.
    found = json.loads(project.fairness("limit", "show", "tenant:42", "--json", status=1))
    assert (found["tier"], found["limit"], found["unknown"]) == ("enterprise", 5, "")
    assert "tenant:42: tier enterprise, limit 5" in project.fairness("tenant", "tier", "42")
    (row,) = (row for row in project.fairness("limit", "list").splitlines() if "tenant:43" in row)
    assert row.split()[1] == "enterprise"

    # Without its database it shows no number.
    (project.folder / "db.sqlite3").unlink()
    printed = project.fairness("tenant", "tier", "42", status=1)
    assert "tenant:42: tier unknown, limit unknown" in printed
    assert "the tier resolver failed: OperationalError" in printed
