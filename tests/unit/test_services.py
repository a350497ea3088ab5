"""What a run says and demands about its services, seen on small suites of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = "[tool:pytest]\nmarkers =\n    redis:\n    rabbitmq:\n    postgres:\n    browser:\n"
CONFTEST = """
import pytest
from tests_support import ServiceCount, missing

def pytest_configure(config):
    config.pluginmanager.register(ServiceCount(config))

@pytest.fixture
def redis_server():
    return "a server"

@pytest.fixture
def rabbit_server():
    missing("rabbitmq-server is not installed")
"""
ALL = """
import pytest

def test_cache(redis_server): pass
def test_mail(rabbit_server): pass
@pytest.mark.postgres
def test_table(): pass
@pytest.mark.browser
def test_page(): pass
"""


TWO_PROCESSES = ("-p", "xdist", "-n", "2")
in_one_and_in_two_processes = pytest.mark.parametrize(
    "processes", [(), TWO_PROCESSES], ids=["one process", "two processes"]
)


@pytest.fixture
def run(tmp_path):
    """Run pytest on a suite in a folder of its own."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "setup.cfg").write_text(SETTINGS)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    source = (ROOT / "tests" / "support" / "services.py").read_text()
    (tmp_path / "tests_support.py").write_text(source)

    def run_pytest(suite: str, *args: str, ci: str) -> tuple[int, str]:
        (tmp_path / "tests" / "test_it.py").write_text(suite)
        done = subprocess.run(
            # Without plugins: they take a second and are not what is looked at.
            [
                sys.executable,
                "-m",
                "pytest",
                "-rs",
                "-p",
                "no:cacheprovider",
                *args,
            ],
            cwd=tmp_path,
            env={**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run_pytest


@in_one_and_in_two_processes
def test_a_laptop_skips_with_the_reason(run, processes):
    status, shown = run(ALL, "tests", *processes, ci="")
    assert status == pytest.ExitCode.OK
    assert "services: redis 1 tests, rabbitmq 0 tests, postgres 1 tests, browser 1 tests" in shown
    assert "rabbitmq-server is not installed" in shown
    assert "1 skipped" in shown


def test_ci_fails_what_is_missing(run):
    status, shown = run(ALL, "tests", ci="1")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "rabbitmq-server is not installed; CI is set" in shown


@in_one_and_in_two_processes
def test_ci_passes_a_whole_run_with_every_service(run, processes):
    marked = ALL.replace("def test_mail(rabbit_server)", "@pytest.mark.rabbitmq\ndef test_mail()")
    status, shown = run(marked, "tests", *processes, ci="1")
    assert status == pytest.ExitCode.OK
    assert "services: redis 1 tests, rabbitmq 1 tests, postgres 1 tests, browser 1 tests" in shown


@in_one_and_in_two_processes
def test_ci_fails_a_whole_run_without_a_service(run, processes):
    status, shown = run("def test_nothing(redis_server): pass", "tests", *processes, ci="1")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "services: no test ran on rabbitmq, postgres, browser" in shown
    assert "1 passed" in shown


@pytest.mark.parametrize(
    "chosen",
    [["tests/test_it.py"], ["tests", "-k", "nothing"], ["tests", "-m", "redis"]],
    ids=["a file", "a name", "a marker"],
)
def test_a_part_of_the_suite_may_lack_services(run, chosen):
    status, shown = run("def test_nothing(redis_server): pass", *chosen, ci="1")
    assert status == pytest.ExitCode.OK
    assert "no test ran on" not in shown
