"""Fixtures of the tests that describe behaviour: shops of both paths, and connections of kombu."""

from tests.dispatch.conftest import fair_shop, make_fair_shop, memory
from tests.integration.conftest import make_shop, shop
from tests.transport.conftest import client, connect, empty_sessions

#: A broker of each path: the dispatch path and the gate.
PATHS = ("fairredis", "redis")
