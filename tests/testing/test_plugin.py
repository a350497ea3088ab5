"""The pytest plugin as a user has it: runs of pytest that load this plugin and no other."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import eventually

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/testing.md"


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest on files made before: ``run(*options)`` returns its result."""
    # As the entry point does, whether or not it is installed.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [PYTHONPATH])]))

    def run_pytest(*options):
        plugin = ("-p", "celery_fairness.testing.plugin", "-p", "no:cacheprovider")
        # Celery's result backend calls a command that redis-py deprecates.
        strict = ("-W", "error", "-W", "ignore:Call to deprecated setex:DeprecationWarning")
        return pytester.runpytest_subprocess(*plugin, *strict, *options)

    return run_pytest


PYTHONPATH = os.environ.get("PYTHONPATH", "")


def test_the_example_of_the_page_runs(pytester, run):
    example, conftest, _ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    pytester.makepyfile(test_reports=example)
    run().assert_outcomes(passed=1)
    pytester.makeconftest(conftest)
    pytester.makepyfile(
        test_settings="""
        from celery_fairness import Fairness

        def test_they_are_those_of_the_conftest(fairness_app):
            assert Fairness.of(fairness_app).settings.tiers["free"].concurrency == 2
        """
    )
    run("test_settings.py").assert_outcomes(passed=1)


def test_each_test_has_an_empty_server_and_the_app_that_was_current_comes_back(pytester, run):
    pytester.makepyfile(
        """
        import celery
        import pytest
        from celery_fairness import Fairness, FairTask

        @celery.shared_task(base=FairTask, tenant="user_id")
        def echo(user_id=None):
            return user_id

        mine = celery.Celery("mine")

        @pytest.mark.parametrize("again", [1, 2])
        def test_it_is_empty(fairness_app, again):
            assert celery.current_app._get_current_object() is fairness_app
            fairness = Fairness.of(fairness_app)
            assert [each.waiting for each in fairness.stats.status().queues] == [0]
            echo.delay(user_id="42")
            assert [each.waiting for each in fairness.stats.status().queues] == [1]

        def test_the_app_is_mine_again():
            assert celery.current_app._get_current_object() is mine
        """
    )
    run().assert_outcomes(passed=3)


def test_the_worker_serves_the_queues_of_all_services_with_the_apps_own_settings(pytester, run):
    pytester.makepyfile(
        """
        import pytest
        from celery import Celery
        from celery_fairness import Fairness, FairTask

        mine = Celery("mine")

        @mine.task(base=FairTask, tenant="user_id", service="mail", name="mine.mail")
        def mail(user_id=None):
            return user_id

        @mine.task(name="mine.plain")
        def plain():
            return "plain"

        @pytest.fixture(scope="session")
        def fairness_config():
            return {"fairness": {"tier_resolver": lambda tenant: "pro"}}

        @pytest.fixture(scope="session")
        def fairness_worker_options():
            return {"concurrency": 2}

        def test_it(fairness_app, fairness_worker):
            assert fairness_worker.concurrency == 2
            assert fairness_app.tasks["mine.mail"].delay(user_id="42").get(timeout=10) == "42"
            assert fairness_app.tasks["mine.plain"].delay().get(timeout=10) == "plain"
            assert Fairness.of(fairness_app).tenants.inspect("42").concurrency.limit == 3
        """
    )
    run().assert_outcomes(passed=1)


def test_variables_of_the_machine_change_nothing(pytester, run, monkeypatch):
    monkeypatch.setenv("FAIRNESS_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("FAIRNESS_NAMESPACE", "production")
    pytester.makepyfile(
        """
        from celery_fairness import Fairness

        def test_it(fairness_app, fairness_server):
            status = Fairness.of(fairness_app).stats.status()
            assert status.namespace == "fairness"
            assert str(fairness_server.port) in status.redis
        """
    )
    run().assert_outcomes(passed=1)


def test_the_server_ends_with_the_session(pytester, run):
    pytester.makepyfile(
        """
        from pathlib import Path

        def test_it(fairness_server):
            Path("pid").write_text(str(fairness_server.pid))
        """
    )
    run().assert_outcomes(passed=1)
    pid = int((pytester.path / "pid").read_text())
    eventually(lambda: _gone(pid))


def _gone(pid):
    assert not psutil.pid_exists(pid)


def test_a_run_that_uses_no_fixture_loads_nothing(pytester, run):
    pytester.makepyfile(
        """
        import sys

        def test_it(request):
            assert request.config.pluginmanager.has_plugin("celery_fairness.testing.plugin")
            heavy = {"celery", "kombu", "redis", "pydantic", "celery_fairness.testing.server"}
            assert heavy & set(sys.modules) == set()
        """
    )
    run().assert_outcomes(passed=1)
