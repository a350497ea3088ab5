"""Corners that were wrong once: one test for each."""

import pytest
import redis
from celery import Task

from celery_fairness import FairTask
from celery_fairness.config.environment import load_settings
from celery_fairness.config.settings import build_settings
from celery_fairness.config.tenants import normalise
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import HeaderInvalid, SettingsError, TenantInvalid
from celery_fairness.message.headers import parse_header
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from tests.unit.worker.gate.test_gate import World


def test_a_key_that_is_no_text_is_a_settings_error():
    with pytest.raises(SettingsError):
        build_settings({1: 2})


def test_a_variable_wins_over_a_tier_given_as_an_object():
    loaded = load_settings({"tiers": {"free": Tier("free", 2)}}, {"FAIRNESS_FREE_LIMIT": "7"})
    assert loaded.tiers["free"].concurrency == 7


def test_a_bound_method_is_a_callable_tenant(shop):
    class Plans:
        def tenant_of(self, args, kwargs):
            return kwargs.get("user")

    @shop.task(base=FairTask, tenant=Plans().tenant_of, name="shop.t")
    def work(user=None):
        pass

    work.delay(user="42")
    assert shop.one().fairness["tenant"] == "42"


@pytest.mark.parametrize("url", ["unix:///run/r.sock?db=2", "redis+socket:///run/r.sock"])
def test_a_unix_socket_is_an_address(url):
    client = redis.Redis.from_url(address_from_url(url).urls[0])
    assert client.connection_pool.connection_kwargs["path"] == "/run/r.sock"


def test_a_sentinels_password_is_decoded_as_everywhere_else():
    address = address_from_url("sentinel://:p%40ss@a:1/0?master_name=main")
    pool = Connection(address)._sentinel_client().connection_pool
    assert pool.connection_kwargs["password"] == "p@ss"


@pytest.mark.parametrize("enabled", [False, "observe"])
def test_off_and_observe_reject_nothing_while_redis_is_away(clock, enabled):
    world = World(clock, enabled=enabled)
    world.limiter.away = True
    assert world.deliver() == "traced"


def test_a_header_nested_without_end_is_invalid():
    deep = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(HeaderInvalid):
        parse_header({"v": 1, "more": deep})


def test_a_header_above_16_kib_is_invalid_whatever_field_is_long():
    with pytest.raises(HeaderInvalid):
        parse_header({"v": 1, "invalid": "x" * 20_000})


def test_a_number_of_thousands_of_digits_is_no_tenant():
    with pytest.raises(TenantInvalid):
        normalise(10**5000)


def test_a_users_own_attribute_called_service_is_not_ours(shop):
    class Billing(Task):
        abstract = True
        service = "billing"

    @shop.task(base=Billing, name="shop.billing")
    def bill():
        pass

    bill.delay()
    assert shop.one().queue == "celery"


def test_the_same_weight_is_no_news(make_redis_limiter):
    limiter = make_redis_limiter()
    for weight in (1, 1.0):
        limiter.publish_tiers([Tier("free", 1, weight)], "database")
        assert limiter.config_version() == 1


def test_forgetting_nobody_is_no_news(make_redis_limiter):
    limiter = make_redis_limiter()
    limiter.publish_tenant("a", None, {"concurrency": 3})
    assert limiter.config_version() == 0


@pytest.mark.parametrize("text", ["1_0", "+5"])
def test_a_limit_is_digits(text):
    with pytest.raises(SettingsError):
        load_settings({}, {"FAIRNESS_FREE_LIMIT": text})


def test_a_tier_stands_under_its_own_name():
    with pytest.raises(SettingsError):
        build_settings({"tiers": {"free": Tier("pro", 2)}})


def test_two_threads_that_ask_first_share_one_client(redis_url, monkeypatch):
    """Without a lock: both make a client, the one that is dropped closes its connections when it is
    collected, and a thread that uses one of them meets
    AttributeError: 'NoneType' object has no attribute 'readline'."""
    import threading

    connection = Connection(address_from_url(redis_url))
    both_inside = threading.Barrier(2)
    made = []
    real = connection._server_client

    def server():
        try:
            both_inside.wait(timeout=0.5)
        except threading.BrokenBarrierError:
            pass
        made.append(1)
        return real()

    monkeypatch.setattr(connection, "_server_client", server)
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(connection.read("PING"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.close()
    assert answers == ["PONG"] * 2
    assert len(made) == 1
