"""Listening to a bell: in time, hearing what rings between two waits, and losing no connection."""

from __future__ import annotations

import itertools
import time
from statistics import median

import pytest

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.store.wakeups import Listener
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.redis


@pytest.fixture
def connection(redis_url):
    made = Connection(address_from_url(redis_url))
    yield made
    made.close()


@pytest.fixture
def listener(connection):
    made = Listener(connection)
    yield made
    made.close()


def test_a_wait_ends_in_time(listener, connection):
    """A BLPOP alone takes up to 0.1 s more: the server looks ten times a second."""
    ours, alone = [], []
    for _ in range(20):
        began = time.monotonic()
        assert listener.wait("bell", 0.01) is False
        heard = time.monotonic()
        assert connection.read("BLPOP", "bell", "0.01") is None
        ours.append(heard - began)
        alone.append(time.monotonic() - heard)
    assert median(ours) < median(alone)


def test_what_rings_is_taken_before_a_wait_in_it_and_after_it(listener, connection):
    connection.read("RPUSH", "bell", "1")
    assert listener.wait("bell", 5) is True
    assert listener.wait("bell", 0.001) is False
    # Nobody waits, and the bell is heard.
    connection.read("RPUSH", "bell", "1")
    eventually(lambda: _equal(connection.read("EXISTS", "bell"), 0))
    assert listener.wait("bell", 0) is True
    assert listener.wait("bell", 0) is False


def test_it_goes_on_where_the_server_has_ended_a_blpop(listener, connection, monkeypatch):
    monkeypatch.setattr("celery_fairness.store.wakeups.LISTEN_SECONDS", 0.01)

    def lines():
        """Connections that wait, or did as the last thing: other tests may have left some."""
        return connection.read("CLIENT", "LIST").count("cmd=blpop")

    before = lines()
    assert listener.wait("bell", 0.5) is False
    assert lines() <= before + 1
    connection.read("RPUSH", "bell", "1")
    assert listener.wait("bell", 5) is True


def test_a_server_that_went_is_said_and_found_again(redis_server, redis_url):
    with Proxy(redis_server.port) as proxy:
        connection = Connection(address_from_url(proxy.url(redis_url)))
        listener = Listener(connection)
        assert listener.wait("bell", 0.001) is False
        proxy.cut()
        with pytest.raises(LimiterUnavailable):
            listener.wait("bell", 5)
        assert listener.wait("bell", 0.001) is False
        listener.close()
        connection.close()


def test_a_server_that_is_silent_for_too_long_is_said(listener, monkeypatch):
    times = itertools.count(1.0, 2.0)
    listener.wait("bell", 0)
    # The clock is everybody's: fixtures that clean up wait by it, too.
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: next(times) + 1e6)
        patch.setattr(type(listener._connection), "can_read", lambda *_, **__: False)
        with pytest.raises(LimiterUnavailable, match="no end"):
            listener.wait("bell", 0)


def _equal(found, expected):
    assert found == expected
