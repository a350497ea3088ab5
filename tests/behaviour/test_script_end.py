"""A script that used the broker ends without a word."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.services import only_in_ci

pytestmark = pytest.mark.redis

SCRIPTS = {
    "inspect": "print(app.control.inspect(timeout=0.2).ping())",
    "send": "app.send_task('jobs.work', queue='jobs')",
    "purge": "app.control.purge()",
    "kept": "kept = app.connection_for_read(); kept.default_channel",
}


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("fairredis", "inspect"),
        ("fairredis", "kept"),
        pytest.param("fairredis", "send", marks=only_in_ci),
        pytest.param("fairredis", "purge", marks=only_in_ci),
        pytest.param("redis", "inspect", marks=only_in_ci),
    ],
)
def test_a_script_ends_silently(redis_url: str, scheme: str, name: str) -> None:
    script = (
        "from celery import Celery\n"
        "from celery_fairness import Fairness\n"
        f"app = Celery('script', broker={redis_url.replace('redis', scheme, 1)!r})\n"
        "Fairness(app)\n"
        f"{SCRIPTS[name]}\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
