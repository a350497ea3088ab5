"""Operators see a tier resolver that fails in a producer; each task is sent nevertheless."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_fairness import Fairness
from celery_fairness.cli.commands import fairness as group
from tests.behaviour.conftest import PATHS
from tests.support.local_process import clean_environment
from tests.support.parts import parts_of
from tests.support.shop import make_app

pytestmark = pytest.mark.redis

RESOLVER = "tests.support.resolver:tier_of"
#: A producer that sends for some tenants and ends, as a script of cron does.
SCRIPT = """
import sys
from tests.support.shop import app
for user in sys.argv[1:]:
    app.tasks["shop.work"].delay(user=user)
"""


class Site:
    """A producer in a process of its own, and the operator's app."""

    def __init__(self, url: str) -> None:
        settings = json.dumps({"tier_resolver": RESOLVER})
        self.env = {"CELERY_BROKER_URL": url, "SHOP_FAIRNESS": settings, "SHOP_CONF": "{}"}
        self.fairness = Fairness.of(make_app(self.env))

    def send(self, *users: str) -> None:
        env = {**clean_environment(), **self.env}
        command = [sys.executable, "-c", SCRIPT, *users]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def command(self, *args: str) -> tuple[int, str]:
        context = CLIContext(app=parts_of(self.fairness).app, no_color=True, workdir=None)
        done = CliRunner().invoke(group, list(args), obj=context)
        return done.exit_code, " ".join(done.stdout.split())


@pytest.fixture
def make_site(redis_url: str) -> Iterator[Callable[[str], Site]]:
    made: list[Site] = []

    def make(path: str) -> Site:
        made.append(Site(f"fair{redis_url}" if path == "fairredis" else redis_url))
        return made[-1]

    yield make
    for each in made:
        each.fairness.close()
        parts_of(each.fairness).app.close()


@pytest.mark.parametrize("path", PATHS)
def test_everything_that_speaks_of_health_names_the_tenants(
    make_site: Callable[[str], Site], path: str
) -> None:
    site = make_site(path)
    site.send("pro-1", "broken", "broken", "prro-2")
    status = site.fairness.stats.status()
    rows = {(each.key, each.failures, each.error) for each in status.unresolved}
    assert rows == {("tenant:broken", 1, "RuntimeError"), ("tenant:prro-2", 1, "UnknownTier")}
    assert status.counts["unresolved"] == 2
    code, text = site.command("status")
    assert code == 0
    assert "the tier resolver failed for 2 tenants in the last 15 minutes: " in text
    assert "they had the default tier free at that time" in text
    assert status.verdict.level == "trouble"
    code, text = site.command("doctor")
    assert code == 1
    assert "PROBLEM resolver: the tier resolver failed for 2 tenants" in text
    # It was called here too.
    assert "; it fails here for 2 of " in text
    metrics = {each.metric.name: each.samples for each in site.fairness.stats.metrics()}
    (failures,) = metrics["fairness_tier_resolver_failures"]
    (tenants,) = metrics["fairness_tenants_unresolved"]
    assert (failures.value, tenants.value) == (2, 2)


def test_a_resolver_that_only_the_producer_lacks_is_told_from_one_that_fails_everywhere(
    make_site: Callable[[str], Site],
) -> None:
    site = make_site("fairredis")
    site.env["SHOP_FAIRNESS"] = json.dumps({"tier_resolver": "no_such_module:tier_of"})
    site.send("pro-1")
    code, text = site.command("doctor")
    assert code == 1
    assert "with SettingsError; it answers here for pro-1" in text
    assert "compare the settings of the other processes with those of this one" in text


def test_doctor_calls_the_resolver_for_tenants_that_wait(
    make_site: Callable[[str], Site],
) -> None:
    site = make_site("fairredis")
    site.env["SHOP_FAIRNESS"] = "{}"
    site.send("broken", "pro-1", "a b")
    code, text = site.command("doctor")
    assert code == 1
    assert "PROBLEM resolver: the tier resolver fails here for 1 of 2 tenants, for broken" in text
    assert site.fairness.stats.status().unresolved == ()
