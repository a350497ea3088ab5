"""What workers that only observe would have rejected in the last day, as people read it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from celery_fairness.control.health import observed as module
from celery_fairness.control.health import stats_api as stats
from celery_fairness.control.health.observed import HOUR_MS
from celery_fairness.control.health.views import ObservedTenant, ObservedTier
from celery_fairness.control.installation.views import WorkerStatus
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules

RULES = Rules(default_limit=1, enforcement="observe")


@pytest.fixture
def now(monkeypatch) -> int:
    """This hour in ms, which does not end while a test runs."""
    now = int(time.time()) * 1000
    monkeypatch.setattr(module, "server_now", lambda _reader: now)
    return now


def note(shop, now, hours_ago: int, **counts: str) -> None:
    """Let an hour have counts of tenants of the tier free."""
    key = shop.key(f"stats:{(now // HOUR_MS - hours_ago) * 60}")
    shop.client.hset(
        key, mapping={f"observed free tenant:{name}": each for name, each in counts.items()}
    )


def announce(shop, enforcement: str, started_at: datetime | None, name: str = "celery@a") -> None:
    status = WorkerStatus(
        name=name, pid=1, path="dispatch", enforcement=enforcement, started_at=started_at
    )
    shop.run(calls.ANNOUNCE, calls.announce_args(Rules(), status.model_dump_json(), 15_000, None))


def test_what_a_worker_observed_is_summed_by_hour_tier_and_tenant(shop, fairness, now):
    for tenant, tasks in (("flood", 5), ("calm", 1), ("some", 2)):
        for number in range(tasks):
            shop.put(tenant, f"{tenant}-{number}", tier="free")
    assert len(shop.claim(rules=RULES)) == 8
    note(shop, now, 23, flood="10 4")
    note(shop, now, 24, flood="99 99")
    found = fairness.stats.observed()
    assert found.tiers == (
        ObservedTier(tier="free", concurrency=1, over_limit=15, tenants=2, most_at_once=5),
    )
    assert found.tenants == (
        ObservedTenant(key="tenant:flood", tier="free", over_limit=14, most_at_once=5),
        ObservedTenant(key="tenant:some", tier="free", over_limit=1, most_at_once=2),
    )
    assert (found.over_limit, found.others) == (15, 0)
    numbers = {number: each.over_limit for number, each in enumerate(found.hours)}
    assert {number: each for number, each in numbers.items() if each} == {0: 10, 23: 5}
    assert found.hours[0].at == datetime.fromtimestamp((now // HOUR_MS - 23) * 3600, UTC)
    assert len(fairness.stats.observed(hours=2).hours) == 2
    assert fairness.stats.observed(hours=2).over_limit == 5


def test_those_who_are_not_named_are_counted_together(shop, fairness, now):
    note(shop, now, 0, a="3 2", b="2 2", c="1 2")
    shop.client.hset(shop.key(f"stats:{now // HOUR_MS * 60}"), "observed free _other", "7 30")
    found = fairness.stats.observed(top=2)
    assert [each.key for each in found.tenants] == ["tenant:a", "tenant:b"]
    assert (found.others, found.over_limit) == (8, 13)
    assert (found.tiers[0].tenants, found.tiers[0].most_at_once) == (3, 30)


def test_a_tier_that_is_not_known_now_has_no_limit(shop, fairness, now):
    shop.client.hset(shop.key(f"stats:{now // HOUR_MS * 60}"), "observed gone tenant:a", "1 2")
    assert fairness.stats.observed().tiers[0].concurrency is None


def test_it_is_known_since_when_workers_observe(shop, fairness, now):
    assert fairness.stats.observed().since is None
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    announce(shop, "on", began - timedelta(hours=9), "celery@on")
    announce(shop, "observe", None)
    assert fairness.stats.observed().since is None
    announce(shop, "observe", began, "celery@b")
    found = fairness.stats.observed()
    assert (found.observing, found.workers, found.since) == (2, 3, began)
    note(shop, now, 20, a="1 2")
    assert fairness.stats.observed().since == found.hours[3].at


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"hours": 0}, "hours: expected a whole number from 1 to 24, got: 0"),
        ({"hours": 25}, "hours: expected a whole number from 1 to 24, got: 25"),
        ({"top": 0}, "top: expected a whole number from 1 to 1000, got: 0"),
        ({"top": "5"}, "top: expected a whole number from 1 to 1000, got: '5'"),
    ],
)
def test_a_number_out_of_range_says_so(fairness, arguments, problem):
    with pytest.raises(ValueError, match=problem):
        fairness.stats.observed(**arguments)


def test_the_command_prints_a_bar_for_each_hour_and_two_tables(shop, fairness, now, run):
    announce(shop, "observe", datetime.fromtimestamp(now / 1000, UTC) - timedelta(days=1))
    note(shop, now, 2, fred="1 2", ann="79 9")
    note(shop, now, 0, fred="20 37")
    done = run("observed", "--top", "1")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    begins = [datetime.fromtimestamp((now // HOUR_MS - ago) * 3600, UTC) for ago in (2, 1, 0)]
    hours = [f"{each:%m-%d %H:00}" for each in begins]
    assert lines[0].startswith("1 of 1 worker only observes; counted since 2")
    assert lines[2] == "100 tasks started above the limit of a tier, by hour (UTC)"
    assert lines[4:7] == [
        f"{hours[0]}  80  {'#' * 40}",
        f"{hours[1]}   0",
        f"{hours[2]}  20  {'#' * 10}",
    ]
    assert [line.split() for line in lines[9:10] + lines[12:]] == [
        ["free", "1", "100", "2", "37"],
        ["tenant:ann", "free", "79", "9"],
        ["and", "21", "tasks", "of", "other", "tenants"],
    ]
    assert "\x1b" not in done.stdout


def test_the_command_names_what_counts_if_nothing_was_counted(shop, fairness, run):
    text = run("observed").stdout
    assert "no task of the last 24 hours started above the limit of a tier" in text
    assert "workers that are started with FAIRNESS_ENABLED=observe count such tasks" in text
    announce(shop, "observe", None)
    assert "FAIRNESS_ENABLED" not in run("observed").stdout


def test_the_first_minute_of_an_hour_has_its_own_counts_too(shop, fairness, now, monkeypatch):
    first = now // HOUR_MS * HOUR_MS
    monkeypatch.setattr(stats, "server_now", lambda _reader: first)
    shop.client.hset(shop.key(f"stats:{first // 60_000}"), "started free celery", 7)
    note(shop, now, 0, a="1 2")
    ((counted,),) = (each.counts for each in fairness.stats.minutes(1))
    assert (counted.tier, counted.started, counted.rejected) == ("free", 7, 0)
    assert fairness.stats.observed().over_limit == 1


def test_it_takes_the_same_commands_however_many_tenants(shop, fairness, now, client):
    def cost() -> int:
        client.config_resetstat()
        fairness.stats.observed()
        stats = client.info("commandstats")
        return sum(each["calls"] for name, each in stats.items() if name != "cmdstat_info")

    note(shop, now, 0, a="1 2")
    cost()
    few = cost()
    note(shop, now, 1, **{f"t{number}": "1 2" for number in range(500)})
    assert cost() <= few
