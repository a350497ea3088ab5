"""Where the limiter's Redis is: from an address, or from the broker where that is Redis."""

from __future__ import annotations

import ssl
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_fairness.errors import SettingsError
from celery_fairness.store.address import (
    Address,
    address_from_broker,
    address_from_url,
    hide_password,
)

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("given", "url", "options"),
    [
        ("redis://h", "redis://h", {}),
        ("redis://u:p@h:6380/3", "redis://u:p@h:6380/3", {}),
        ("redis://h/0?socket_keepalive=1", "redis://h/0?socket_keepalive=1", {}),
        ("rediss://h:6379/0", "rediss://h:6379/0", {}),
        (
            "rediss://h/0?ssl_cert_reqs=CERT_NONE",
            "rediss://h/0",
            {"ssl_cert_reqs": "none"},
        ),
        (
            "rediss://h/0?ssl_cert_reqs=required&ssl_ca_certs=/ca.pem",
            "rediss://h/0?ssl_ca_certs=%2Fca.pem",
            {"ssl_cert_reqs": "required"},
        ),
        ("unix:///run/r.sock", "unix:///run/r.sock", {}),
        ("unix:///run/r.sock?db=2", "unix:///run/r.sock?db=2", {}),
        ("redis+socket:///run/r.sock", "unix:///run/r.sock", {}),
        ("redis+socket:///run/r.sock?virtual_host=/2", "unix:///run/r.sock?db=2", {}),
        ("redis+socket://:p@/run/r.sock", "unix://:p@/run/r.sock", {}),
        ("redis+socket:///run/redis@6379/r.sock", "unix:///run/redis@6379/r.sock", {}),
        ("redis://h/0?client_name=me@x", "redis://h/0?client_name=me%40x", {}),
    ],
)
def test_an_address_is_written_in_redis_pys_words(given, url, options):
    address = address_from_url(given)
    assert (address.urls, address.options, address.master_name) == ((url,), options, "")


@pytest.mark.parametrize(
    ("given", "name", "hosts"),
    [
        (
            "sentinel://a:1;sentinel://b:2/0?master_name=main",
            "",
            ("sentinel://a:1", "sentinel://b:2/0?master_name=main"),
        ),
        ("sentinel://a:1;b:2", "main", ("sentinel://a:1", "sentinel://b:2")),
        ("sentinel://a:1;sentinel://b:2;", "main", ("sentinel://a:1", "sentinel://b:2")),
    ],
)
def test_a_sentinel_group_has_hosts_and_a_name(given, name, hosts):
    address = address_from_url(given, master_name=name)
    assert (address.urls, address.master_name) == (hosts, "main")


def test_a_sentinel_group_without_a_name_is_an_error_that_says_where_to_give_it():
    with pytest.raises(SettingsError, match=r"\?master_name=NAME or in broker_transport_options"):
        address_from_url("sentinel://a:1;sentinel://b:2")


@pytest.mark.parametrize(
    "password",
    ["hunter2/x", "hunter2#x", "hunter2?x", "/hunter2", "x;hunter2", "[hunter2]", "x[hunter2"],
)
@pytest.mark.parametrize("scheme", ["redis", "rediss", "sentinel"])
def test_a_password_that_cannot_be_told_from_a_path_is_an_error_without_it(scheme, password):
    with pytest.raises(SettingsError) as caught:
        address_from_url(f"{scheme}://:{password}@h:6379/0", master_name="main")
    assert "redis_url: expected a port that is a number, and a password whose" in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_broker_that_kombu_cannot_read_is_an_error_without_its_password():
    with pytest.raises(SettingsError) as caught:
        address_from_broker(broker(f"redis://:[{SECRET}]@h:6379/0"))
    assert "broker_url: expected a port that is a number, and a password" in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("scheme", ["redis", "sentinel"])
def test_the_servers_of_a_list_are_shown_without_their_passwords(scheme):
    address = address_from_url(f"{scheme}://:{SECRET}@a;:{SECRET}@b:2", master_name="main")
    assert str(address) == f"{scheme}://a;{scheme}://b:2"
    with pytest.raises(SettingsError) as caught:
        address_from_url(f"{scheme}://:{SECRET}@a;:{SECRET}@b:x", master_name="main")
    assert str(caught.value).endswith(f"for {scheme}://b:x")


def broker(url, **conf):
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.mark.parametrize(
    ("url", "conf", "found", "options"),
    [
        ("redis://:p@h:6379/0", {}, "redis://:p@h:6379/0", {}),
        (
            "redis://h/0",
            {"broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED}},
            "rediss://h/0",
            {"ssl_cert_reqs": ssl.CERT_REQUIRED},
        ),
        (
            "rediss://h/0?ssl_cert_reqs=CERT_NONE",
            {},
            "rediss://h/0",
            # kombu has read it already.
            {"ssl_cert_reqs": ssl.CERT_NONE},
        ),
        # The broker that workers read decides.
        ("redis://h/0", {"broker_write_url": "redis://w/1"}, "redis://h/0", {}),
        ("amqp://h//", {"broker_read_url": "redis://r/1"}, "redis://r/1", {}),
        ("redis://h/0", {"broker_read_url": "fairredis://r/1"}, "redis://r/1", {}),
    ],
)
def test_a_broker_that_is_redis_is_the_limiters_too(url, conf, found, options):
    address = address_from_broker(broker(url, **conf))
    assert address.urls == (found,)
    assert dict(address.options) == options


def test_a_broker_behind_sentinel_gives_its_name_and_options():
    app = broker(
        "sentinel://:p@a:1/0;sentinel://:p@b:2/0",
        broker_transport_options={"master_name": "main", "sentinel_kwargs": {"password": SECRET}},
    )
    address = address_from_broker(app)
    assert address.master_name == "main"
    assert address.urls == ("sentinel://:p@a:1/0", "sentinel://:p@b:2/0")
    assert address.options["sentinel_kwargs"] == {"password": SECRET}
    assert SECRET not in repr(address)


def test_the_result_backend_is_never_taken():
    app = Celery("shop", broker="memory://", backend="redis://h/0", set_as_current=False)
    with pytest.raises(SettingsError, match="FAIRNESS_REDIS_URL: expected the address of a Redis"):
        address_from_broker(app)


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://user:{SECRET}@rabbit:5672//",
        f"amqps://user:{SECRET}@rabbit//",
        f"filesystem://user:{SECRET}@",
    ],
)
def test_another_broker_is_an_error_without_its_password(url):
    with pytest.raises(SettingsError) as caught:
        address_from_broker(broker(url))
    assert SECRET not in str(caught.value)
    assert "for example FAIRNESS_REDIS_URL=redis://localhost:6379/1" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://user:{SECRET}@h:6379/0", "redis://h:6379/0"),
        (f"redis://:{SECRET}@h", "redis://h"),
        (f"redis://h/0?password={SECRET}", "redis://h/0"),
        (f"redis://:p@{SECRET}@h/0", "redis://h/0"),
        (f"unix://:{SECRET}@/run/r.sock?db=1", "unix:///run/r.sock"),
        (f"unix://:{SECRET}@/run/redis@6379/r.sock", "unix:///run/redis@6379/r.sock"),
        (f"redis://:{SECRET}@h/0?client_name=me@x", "redis://h/0"),
        (f"sentinel://:{SECRET}@a:1;sentinel://:{SECRET}@b:2", "sentinel://a:1;sentinel://b:2"),
    ],
)
def test_an_address_is_shown_without_its_password(url, shown):
    address = address_from_url(url, {"password": SECRET}, "main")
    assert str(address) == repr(address) == f"{address}" == shown
    assert ";".join(hide_password(each) for each in url.split(";")) == shown


def test_a_credential_provider_is_taken_over(monkeypatch):
    made = object()
    app = broker("redis://h/0", broker_transport_options={"credential_provider": made})
    assert address_from_broker(app).options["credential_provider"] is made
    import sys

    monkeypatch.setitem(sys.modules, "shop_keys", SimpleNamespace(Provider=lambda: made))
    app = broker(
        "redis://h/0", broker_transport_options={"credential_provider": "shop_keys.Provider"}
    )
    assert address_from_broker(app).options["credential_provider"] is made


def test_addresses_are_values():
    assert Address(("redis://h",)) == Address(("redis://h",))


def test_a_broker_that_kombu_does_not_know_is_a_wrong_setting():
    app = Celery(broker="fairredi://localhost/0", set_as_current=False)
    with pytest.raises(SettingsError, match=r"broker_url: expected .*got: .*fairredi"):
        address_from_broker(app)


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_database_is_a_number(scheme):
    with pytest.raises(
        SettingsError, match=r"expected the number of a database .* got: 'abc'"
    ) as at:
        address_from_url(f"{scheme}://:secret@localhost:6379/abc")
    assert "secret" not in str(at.value)
    assert address_from_url(f"{scheme}://localhost:6379/7").urls == (
        f"{scheme}://localhost:6379/7",
    )
