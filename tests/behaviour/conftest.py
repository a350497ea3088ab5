"""Fixtures of the tests that describe behaviour: shops of both paths, and connections of kombu."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_fairness import Fairness
from tests.dispatch.conftest import fair_shop, make_fair_shop, memory
from tests.integration.conftest import make_shop, shop
from tests.support.parts import parts_of
from tests.transport.conftest import client, connect, empty_sessions
from tests.transport.test_addresses import tls_server

Command = Callable[..., Result]
#: A broker of each path: the dispatch path and the gate.
PATHS = ("fairredis", "redis")


@pytest.fixture
def command(fairness: Fairness) -> Command:
    """``command("limit", "show", "tenant:42")``: ``celery fairness limit show tenant:42``."""
    (entry,) = entry_points(group="celery.commands", name="fairness")
    context = CLIContext(app=parts_of(fairness).app, no_color=True, workdir=None)
    return lambda *args: CliRunner().invoke(entry.load(), list(args), obj=context)
