"""Connections to the server are as many as are used, and go with what has opened them."""

from __future__ import annotations

import gc

import pytest
from kombu import Connection
from redis import Redis

from celery_fairness.transport.session import Session, sessions
from tests.support.waiting import eventually
from tests.transport.conftest import Connect, publish, quick_leases

pytestmark = pytest.mark.redis


def clients(client: Redis) -> int:
    return len(client.client_list())


def one_is_busy_and_idle_again(connection: Connection) -> Session:
    """Hold a task until it is renewed, and nothing until the thread that renews sleeps."""
    channel = connection.default_channel
    publish(connection, "jobs", 1)
    message = channel.basic_get("jobs")
    session = channel.session
    before = session.renewals.renewed_at
    eventually(lambda: session.renewals.renewed_at > before)
    message.ack()
    eventually(lambda: session.renewals._sleeps)
    return session


def test_what_was_busy_and_idle_again_has_no_more_connections(
    connect: Connect, client: Redis
) -> None:
    # Those of a test before may still be closing.
    others = clients(client)
    connection = connect(fairness=quick_leases())
    session = one_is_busy_and_idle_again(connection)
    before = clients(client)
    for _ in range(2):
        one_is_busy_and_idle_again(connection)
    assert clients(client) <= before
    connection.release()
    session.close()
    eventually(lambda: clients(client) <= others)


# The collector may find a socket before the connection that would close it.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_connection_that_nobody_closed_goes_with_its_last_user(
    redis_url: str, connect: Connect, client: Redis
) -> None:
    publish(connect(), "jobs", 0)
    gc.collect()
    before = clients(client)
    for number in range(5):
        publish(Connection(f"fair{redis_url}"), "jobs", number)
    gc.collect()
    assert clients(client) <= before
    assert len(sessions()[0].wakers) == 1
