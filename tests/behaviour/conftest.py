"""Fixtures of the tests that describe behaviour: shops of both paths, and connections of kombu."""

from tests.integration.conftest import make_shop, shop  # noqa: F401 - fixtures
from tests.transport.conftest import connect, empty_sessions  # noqa: F401 - fixtures

#: A broker of each path: the dispatch path and the gate.
PATHS = ("fairredis", "redis")
