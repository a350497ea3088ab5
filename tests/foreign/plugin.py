"""Runs the tests of Celery's own suite on a server of their own, with or without this package.

pytest loads it with ``-p`` before Celery's conftest.py, which reads the addresses of broker and
backend when it is imported. A test that exceptions.toml lists is expected to fail: if it passes,
the list is wrong and the run fails.

Invariant: each process of pytest-xdist has a Redis and a Celery worker of its own, and no test is
run twice.

Weakness: Celery's suite marks many tests as flaky and runs them up to six times, so here one that
fails now and then must be listed.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from celery_fairness.transport import register
from tests.foreign import fixtures
from tests.foreign.modes import (
    MODE_VARIABLE,
    QUICK_VARIABLE,
    REPORT_VARIABLE,
    current_mode,
    read_exceptions,
)
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer

#: From the best to the worst; of all that is reported of a test the worst counts.
OUTCOMES = ("passed", "skipped", "expected", "failed")
_outcomes: dict[str, str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the server, and say where it is."""
    server = RedisServer().start()
    atexit.register(server.stop)
    scheme = current_mode().scheme
    if scheme == "faircluster":
        cluster = RedisCluster().start()
        atexit.register(cluster.stop)
        os.environ["TEST_BROKER"], os.environ["TEST_BACKEND"] = cluster.url(scheme), cluster.url()
    else:
        os.environ["TEST_BROKER"] = server.url.replace("redis", scheme, 1)
        os.environ["TEST_BACKEND"] = server.url
    # The tests also have a client of their own.
    os.environ["REDIS_HOST"], os.environ["REDIS_PORT"] = "127.0.0.1", str(server.port)
    # As Celery runs it: some tests read what the worker logs.
    os.environ["WORKER_LOGLEVEL"] = "INFO"


def pytest_configure(config: pytest.Config) -> None:
    """Add the fixtures after those of Celery's plugin, which they replace."""
    config.addinivalue_line("markers", "flaky: Celery's suite runs it again when it fails")
    config.pluginmanager.register(fixtures, "foreign-fixtures")
    # Some tests make apps of their own.
    register()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file that is left out, or look beside Celery's source."""
    if not collection_path.is_relative_to(config.rootpath):
        return True
    nodeid = collection_path.relative_to(config.rootpath).as_posix()
    left_out = any(each.left_out and each.test == nodeid for each in read_exceptions())
    return True if left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out and mark what exceptions.toml lists."""
    mode, quick = os.environ[MODE_VARIABLE], bool(os.environ.get(QUICK_VARIABLE))
    listed = [each for each in read_exceptions() if mode in each.modes]
    _check_list(config, items)
    left_out = []
    for item in items:
        for each in (each for each in listed if each.names(item.nodeid)):
            if each.left_out or (each.slow and quick):
                left_out.append(item)
            elif not each.slow:
                mark = pytest.mark.xfail(reason=each.reason, strict=not each.sometimes)
                item.add_marker(mark)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _check_list(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Check that each test of the list is one of its file, where whole files are run."""
    ids = [item.nodeid for item in items]
    files = {nodeid.partition("::")[0] for nodeid in ids}
    for each in read_exceptions() if "::" not in "".join(config.args) else ():
        if each.test.partition("::")[0] in files and not any(map(each.names, ids)):
            raise pytest.UsageError(
                f"exceptions.toml: expected a test of the suite, got: {each.test}"
            )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what came out."""
    outcome = "expected" if hasattr(report, "wasxfail") else str(report.outcome)
    before = _outcomes.get(report.nodeid, outcome)
    _outcomes[report.nodeid] = max(before, outcome, key=OUTCOMES.index)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write it down, once for all processes."""
    path = os.environ.get(REPORT_VARIABLE)
    if path and not hasattr(session.config, "workerinput"):
        Path(path).write_text(json.dumps(_outcomes))


def outcomes_of(path: Path) -> dict[str, str]:
    """Return what a run wrote; nothing where it did not come so far."""
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found
