"""The thread that probes a server which is away."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from celery_fairness.store.servers import Servers
from tests.support.waiting import eventually


def test_any_error_lets_the_thread_ask_again(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers([("one", 1), ("two", 2)])
    errors: list[Exception] = [ValueError("a wrong option"), KeyError(), OSError()]

    class Answering:
        def client(self) -> Any:
            return self

        def execute_command(self, *_: str) -> None: ...

        def close(self) -> None: ...

    def connect(_server: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return Answering()

    servers.connect = connect
    backs: list[bool] = []
    servers.on_back.append(lambda: backs.append(True))
    server = servers.of(1)
    with caplog.at_level(logging.ERROR, "celery_fairness"):
        servers.lost(server, OSError("gone"))
        assert server.problem == "gone"
        eventually(lambda: backs == [True])
    assert server.problem == ""
    (line,) = caplog.messages
    assert line == "two:2 cannot be probed, it is tried again: a wrong option"


def test_each_outage_causes_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_fairness.store.servers.start_thread", lambda _probe: None)
    servers = Servers([("one", 1), ("two", 2)])
    away: list[str] = []
    servers.on_away.append(lambda server: away.append(f"{server}: {server.problem}"))
    servers.lost(servers.of(1), OSError("gone"))
    servers.lost(servers.of(1), OSError("gone again"))
    servers.lost(servers.of(0), OSError("gone too"))
    assert away == ["two:2: gone", "one:1: gone too"]
