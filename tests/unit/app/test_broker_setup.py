"""What an app's configuration becomes where its broker claims fairly."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu.utils.json import dumps, loads

from celery_fairness import Fairness
from celery_fairness.transport import schemes
from tests.support.parts import parts_of


@pytest.mark.parametrize(
    ("url", "named", "expected"),
    [
        ("fairredis://h/0", None, schemes.Transport),
        ("fairrediss://h/0", None, schemes.TLSTransport),
        ("redis://h/0", "celery_fairness.transport:Transport", schemes.Transport),
        ("rediss://h/0", "celery_fairness.transport:Transport", schemes.TLSTransport),
        ("sentinel://h:1", "celery_fairness.transport:Transport", schemes.SentinelTransport),
        ("redis://h/0", "celery_fairness.transport:TLSTransport", schemes.TLSTransport),
    ],
)
def test_a_connection_has_the_transport_that_its_address_asks_for(url, named, expected):
    app = Celery("claims", broker=url)
    if named is not None:
        app.conf.broker_transport = named
    fairness = Fairness(app)
    try:
        assert app.conf.timezone is None
        assert parts_of(fairness).claims_fairly
        assert app.connection_for_write().get_transport_cls() is expected
    finally:
        fairness.close()
        app.close()


@pytest.mark.parametrize(
    ("read", "write", "claims", "settings"),
    [
        ("fairredis://r/0", "amqp://w//", True, True),
        ("fairredis://r/0", "fairredis://w/0", True, True),
        ("redis://r/0", "fairredis://w/0", False, True),
        (["fairredis://r/0", "fairredis://s/0"], "redis://w/0", True, True),
        ("redis://r/0", "amqp://w//", False, False),
    ],
)
def test_of_two_brokers_the_one_that_is_read_decides(read, write, claims, settings):
    app = Celery("claims", broker="redis://h/0")
    app.conf.update(broker_read_url=read, broker_write_url=write)
    fairness = Fairness(app)
    try:
        assert app.conf.timezone is None
        parts = parts_of(fairness)
        assert parts.claims_fairly is claims
        assert parts.address.urls[0] == "redis://r/0"
        # A put into our broker needs its namespace and its bounds.
        assert ("fairness" in app.conf.broker_transport_options) is settings
        assert bool(app.steps["consumer"]) is claims
    finally:
        fairness.close()
        app.close()


def test_remote_control_can_send_what_the_transport_is_told():
    app = Celery("claims", broker="fairredis://h/0")
    app.conf.fairness = {"queues": {"q": {"global_limit": 1, "rate": "5/PT1S", "by_args": ["a"]}}}
    fairness = Fairness(app)
    try:
        told = loads(dumps(app.conf.broker_transport_options["fairness"]))
        assert told["queues"]["q"]["by_args"] == ["a"]
    finally:
        fairness.close()
        app.close()
