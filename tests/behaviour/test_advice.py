"""Messages name no setting that has no effect on the path on which they appear."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_fairness import Fairness
from celery_fairness.cli.commands import fairness as group
from celery_fairness.config.environment import VARIABLES
from celery_fairness.config.settings import Settings, acts_on
from celery_fairness.errors import LimiterUnavailable
from tests.behaviour.conftest import PATHS
from tests.integration.conftest import Shop
from tests.support.parts import parts_of
from tests.support.redis_server import RedisServer
from tests.support.shop import make_app

#: By broker: the path on which a setting must act, to be named there.
NAMES = {"fairredis": "dispatch", "redis": "gate"}
#: One value of each setting that acts on one path alone.
GIVEN = {
    "max_deliveries": 3,
    "fairness_by": "cost",
    "priority_scope": "queue",
    "priority_aging": 600,
    "priority_order": "low_first",
    "redis_lost": "open",
    "snooze_jitter_seconds": 0.1,
}
PAGE = Path(__file__).parents[2] / "docs/reference/log-lines.md"
NOWHERE = "redis://:secret@127.0.0.1:1/0"


def ineffective(path: str) -> set[str]:
    """Return the names of settings and variables that do not act on a path."""
    settings = {name for name in Settings.model_fields if acts_on(name) not in ("", NAMES[path])}
    return settings | {name for name, each in VARIABLES.items() if each.setting in settings}


def named(text: str, names: set[str]) -> set[str]:
    return {name for name in names if re.search(rf"\b{name}\b", text)}


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A Redis that the test may stop."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def away() -> Iterator[Callable[[str], Fairness]]:
    """A factory: an app on a path whose Redis nobody has started."""
    made: list[Fairness] = []

    def make(path: str) -> Fairness:
        fair = "fair" if path == "fairredis" else ""
        app = make_app({"CELERY_BROKER_URL": fair + NOWHERE, "SHOP_CONF": "{}"})
        made.append(Fairness.of(app))
        return made[-1]

    yield make
    for each in made:
        each.close()
        parts_of(each).app.close()


def invoke(of: Fairness, *args: str) -> Result:
    context = CLIContext(app=parts_of(of).app, no_color=True, workdir=None)
    return CliRunner().invoke(group, list(args), obj=context)


ASKS: dict[str, Callable[[Fairness], Any]] = {
    "status": lambda of: of.stats.status(),
    "inspect": lambda of: of.limits.inspect("tenant:42"),
    "pause": lambda of: of.tenants.pause("42"),
    "tier": lambda of: of.tenants.set_tier("42", "pro"),
    "override": lambda of: of.limits.override("api", concurrency=1),
    "queue limit": lambda of: of.queues.set_limit("celery", global_limit=1),
    "explain": lambda of: of.tasks.explain("4fd6"),
    "events": lambda of: of.events.read(),
    "purge": lambda of: of.tenants.purge("42"),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("path", PATHS)
def test_an_error_of_a_redis_that_is_away_advises_what_helps(
    away: Callable[[str], Fairness], path: str, ask: Callable[[Fairness], Any]
) -> None:
    of = away(path)
    if ask is ASKS["queue limit"] and path == "redis":
        parts_of(of).app.conf.fairness = {
            **parts_of(of).app.conf.fairness,
            "queues": {"celery": {}},
        }
    with pytest.raises(LimiterUnavailable) as caught:
        ask(of)
    text = str(caught.value)
    assert named(text, ineffective(path)) == set()
    assert ("broker_url" if path == "fairredis" else "FAIRNESS_REDIS_URL") in text
    assert "secret" not in text


@pytest.mark.parametrize("command", ["status", "limit list", "check", "events"])
@pytest.mark.parametrize("path", PATHS)
def test_a_command_without_redis_names_no_setting_without_effect(
    away: Callable[[str], Fairness], path: str, command: str
) -> None:
    result = invoke(away(path), *command.split())
    assert result.exit_code == 69
    assert "127.0.0.1:1" in result.stderr
    assert named(result.stderr, ineffective(path)) == set()


@pytest.mark.parametrize("path", PATHS)
def test_the_log_of_a_worker_whose_redis_went_away_advises_what_helps(
    make_shop: Callable[..., Shop], own_server: RedisServer, path: str
) -> None:
    if path == "fairredis":
        urls = {"CELERY_BROKER_URL": f"fair{own_server.url}"}
        shop = make_shop(fairness={"lease_seconds": 1}, variables=urls)
    else:
        shop = make_shop(fairness={"lease_seconds": 1, "redis_url": own_server.url})
    worker = shop.worker(pool="threads", concurrency=1, args=["-E"])
    own_server.kill()
    worker.wait_for_log("events could not be forwarded")
    worker.wait_for_log("leases could not be renewed")
    # The shop's own settings are warned of before.
    log = worker.log_text().partition(" ready.")[2]
    lines = [line for line in log.splitlines() if "does not answer" in line]
    assert lines
    assert named("\n".join(lines), ineffective(path)) == set()
    own_server.restart()
    worker.wait_for_log("leases are renewed again")


@pytest.mark.parametrize("path", PATHS)
def test_a_starting_worker_warns_of_each_setting_without_effect_on_its_path(
    make_shop: Callable[..., Shop], path: str
) -> None:
    shop = make_shop(path, fairness=GIVEN)
    log = shop.worker(pool="solo", concurrency=1).log_text()
    warned = set(re.findall(r"WARNING/MainProcess\] (\w+) is set and has no effect", log))
    assert warned == ineffective(path) & set(GIVEN)


@pytest.mark.parametrize(("path", "advised"), [("fairredis", True), ("redis", False)])
def test_a_pool_that_is_too_small_is_advised_to_lend_places_where_it_can(
    away: Callable[[str], Fairness], path: str, *, advised: bool
) -> None:
    result = invoke(away(path), "worker", "analysis", "--concurrency", "2")
    assert result.exit_code == 2
    assert "expected a pool with a slot for each queue" in result.stderr
    assert ("borrow" in result.stderr) is advised


@pytest.mark.parametrize(("broker", "setting"), [("fairredis", "broker_url"), ("redis", None)])
def test_a_broker_that_cannot_be_read_is_named_by_its_own_setting(
    broker: str, setting: str | None
) -> None:
    url = "fairsentinel://h:1/0" if setting else "memory://"
    conf = json.dumps({})
    fairness = {} if setting else {"redis_url": "sentinel://h:1/0"}
    app = make_app(
        {"CELERY_BROKER_URL": url, "SHOP_CONF": conf, "SHOP_FAIRNESS": json.dumps(fairness)}
    )
    with pytest.raises(ValueError, match=f"{setting or 'redis_url'}: expected the name"):
        Fairness.of(app).stats.status()
    Fairness.of(app).close()
    app.close()


def test_the_description_of_a_setting_says_on_which_path_it_acts() -> None:
    begins = {"dispatch": "On `fairredis`", "gate": "On the gate"}
    for name, field in Settings.model_fields.items():
        path = acts_on(name)
        assert not path or str(field.description).startswith(begins[path]), name


def test_the_page_names_no_setting_of_fairredis_beside_a_line_of_a_gate() -> None:
    table = PAGE.read_text().partition("\n## Tasks in a worker\n")[2].partition("\n## ")[0]
    assert table
    assert named(table, ineffective("redis")) == set()


def test_the_page_of_fairredis_names_no_setting_of_the_gate() -> None:
    table = PAGE.read_text().partition("\n## Workers on fairredis\n")[2].partition("\n## ")[0]
    assert "priority_order" in named(table, set(Settings.model_fields))
    assert named(table, ineffective("fairredis")) == set()


def test_a_starting_worker_logs_what_doctor_would_find(
    make_shop: Callable[..., Shop], own_server: RedisServer
) -> None:
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    urls = {"CELERY_BROKER_URL": f"fair{own_server.url}", "FAIRNESS_FREE_LIMITS": "3"}
    log = make_shop(variables=urls).worker(pool="solo", concurrency=1).log_text()
    warned = [line.rpartition("] ")[2] for line in log.splitlines() if ": WARNING/" in line]
    for symptom in (
        "maxmemory-policy is allkeys-lru, and maxmemory is not set: ",
        "variable FAIRNESS_FREE_LIMITS is not known: it has no effect; write FAIRNESS_FREE_LIMIT",
        "nobody chose the tier free, and there is no tier_resolver and no published tier: every te",
    ):
        assert len([line for line in warned if line.startswith(symptom)]) == 1, warned


def test_a_worker_starts_without_a_redis_to_check(
    make_shop: Callable[..., Shop], own_server: RedisServer
) -> None:
    conf = {"worker_eta_task_limit": 7}
    shop = make_shop(fairness={"redis_url": own_server.url}, conf=conf)
    own_server.kill()
    log = shop.worker(pool="solo", concurrency=1).log_text()
    assert "worker_eta_task_limit is 7: " in log
    assert "maxmemory" not in log
    assert "Traceback" not in log
