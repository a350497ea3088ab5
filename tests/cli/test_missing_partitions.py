"""Answers about an installation of which one server of three does not answer."""

from __future__ import annotations

import pytest

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.exporter.scrape import Scraper
from celery_fairness.store.partitions import Partitions
from tests.support.redis_server import HOST

pytestmark = pytest.mark.one_redis("servers")

COUNT = 4
PLACES = Partitions("fairness", count=COUNT)


@pytest.fixture
def divided(make_fairness, several_servers):
    """An installation whose partitions are on three servers."""
    url = "fairservers://" + ";".join(f"{HOST}:{each.port}/0" for each in several_servers)
    return make_fairness(url, fairness={"partitions": COUNT})


def tenant_in(partition):
    return next(name for name in map(str, range(1000)) if PLACES.of_tenant(name) == partition)


def test_a_status_names_the_partitions_that_are_missing(divided, several_servers, run, caplog):
    for partition in range(COUNT):
        divided.tenants.pause(tenant_in(partition))
    assert divided.stats.status().missing == ()
    assert divided.check().findings == ()

    several_servers[1].pause()
    try:
        status = divided.stats.status()
        (missing,) = status.missing
        assert missing.startswith(f"partition 1 of {COUNT} at ")
        assert str(several_servers[1].port) in missing
        assert status.verdict.level == "trouble"
        assert status.verdict.line.startswith("partition 1 of 4 at ")

        diagnosis = divided.stats.doctor()
        assert [each.what for each in diagnosis.symptoms if each.check == "missing"] == [
            status.verdict.line
        ]
        (up, *_) = Scraper(divided.stats.metrics).families()
        assert (up.metric.name, up.samples[0].value) == ("fairness_up", 0.0)
        assert "a scrape could not read Redis: " in caplog.text
        assert "(partition 1 of 4)" in caplog.text

        with pytest.raises(LimiterUnavailable, match=r"\(partition 1 of 4\)"):
            divided.tenants.resume(tenant_in(1))
        for partition in (0, 2, 3):
            assert not divided.tenants.resume(tenant_in(partition)).paused
        with pytest.raises(LimiterUnavailable, match=r"\(partition 1 of 4\)"):
            divided.limits.pause("api")
    finally:
        several_servers[1].resume()


def test_without_the_home_there_is_no_status(divided, several_servers):
    divided.tenants.pause("42")
    several_servers[0].pause()
    try:
        with pytest.raises(LimiterUnavailable):
            divided.stats.status()
    finally:
        several_servers[0].resume()


def test_an_uninstall_leaves_nothing_on_any_server(divided, several_servers, run):
    for partition in range(COUNT):
        divided.tenants.pause(tenant_in(partition))
    assert run("uninstall", "--yes", of=divided).exit_code == 0
    for server in several_servers:
        with server.client(decode_responses=True) as client:
            assert client.keys("*") == []


def test_the_memory_of_all_servers_is_added(divided, several_servers):
    found = {each.metric.name: each.samples for each in divided.stats.metrics()}
    (used,) = found["fairness_redis_memory_used_bytes"]
    with several_servers[0].client() as client:
        one = client.info("memory")["used_memory"]
    assert used.value > 1.5 * one


def test_the_doctor_looks_at_each_server(divided, several_servers):
    divided.tenants.pause("42")
    with several_servers[2].client() as client:
        before = client.config_get("maxmemory-policy")["maxmemory-policy"]
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = [each for each in divided.stats.doctor().symptoms if each.check == "eviction"]
        finally:
            client.config_set("maxmemory-policy", before)
    assert [str(several_servers[2].port) in each.what for each in found] == [True]
