"""A publish whose answer is lost may have put its message: its retry does not put it twice."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError as Lost

from celery_fairness.scheduler import calls
from celery_fairness.transport.session import Session
from tests.transport.conftest import Connect, publish

pytestmark = pytest.mark.redis

RETRY = {"max_retries": 5, "interval_start": 0, "interval_step": 0}


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many answers to puts are lost from now on: ``lose[0] = 2``."""
    left, call = [0], Session.call

    def call_and_lose(session: Session, verb: str, *args: Any) -> Any:
        answer = call(session, verb, *args)
        if verb == calls.PUT and left[0]:
            left[0] -= 1
            raise Lost("the answer is lost")
        return answer

    monkeypatch.setattr(Session, "call", call_and_lose)
    return left


def waiting(client):
    return int(client.hget("{fairness}:waiting", "jobs") or 0)


def headers(name="shop.work"):
    return {"task": name, "fairness": {"v": 1, "tenant": "a"}}


def test_a_retry_of_kombu_puts_one_message(connect: Connect, client, lose):
    lose[0] = 1
    publish(connect(), "jobs", 1, headers=headers(), retry=True, retry_policy=RETRY)
    assert lose == [0]
    assert waiting(client) == 1


def test_who_publishes_the_same_again_puts_one_message(connect: Connect, client, lose):
    connection, same = connect(), headers()
    lose[0] = 1
    with pytest.raises(connection.connection_errors):
        publish(connection, "jobs", 1, headers=same)
    publish(connection, "jobs", 1, headers=same)
    assert waiting(client) == 1
    # And then it is another one.
    publish(connection, "jobs", 1, headers=same)
    assert waiting(client) == 2


@pytest.mark.parametrize(
    ("body", "again"), [(2, "the same"), (1, "equal"), (1, None)], ids=["body", "headers", "none"]
)
def test_what_only_looks_alike_is_put(connect: Connect, client, lose, body, again):
    connection, first = connect(), headers() if again else None
    lose[0] = 1
    with pytest.raises(connection.connection_errors):
        publish(connection, "jobs", 1, headers=first)
    second = first if again in ("the same", None) else headers()
    publish(connection, "jobs", body, headers=second)
    assert waiting(client) == 2
