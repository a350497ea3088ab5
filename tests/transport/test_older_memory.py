"""Redis comes back with an older memory: no slot is counted for two, and none is forgotten."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as Lost

from tests.support.redis_server import RedisServer
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import Connect, Inbox, charged, publish, running_leases, settled
from tests.transport.test_lost import LEASES, RUNNING, ask, received, session_of

pytestmark = pytest.mark.redis

Save = Callable[[], Callable[[], None]]

#: A lease so long that nothing is renewed by time alone.
LIMITED = {"lease_seconds": 3600}
#: The same for Redis. This process takes it for another one, with its own lease table and owners.
OTHER = {**LIMITED, "max_deliveries": 9}


@pytest.fixture(params=["rdb", "aof"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test alone, which keeps what it knows in files."""
    writes_all = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
    args = writes_all if request.param == "aof" else ()
    folder = tmp_path / "server"
    folder.mkdir()
    with RedisServer(directory=folder, args=args) as made:
        yield made


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    with server.client(decode_responses=True) as made:
        yield made


@pytest.fixture
def save(server: RedisServer, client: Redis, tmp_path: Path) -> Save:
    """Keep the files as they are; what it returns kills the server and starts it with them."""
    files, kept = tmp_path / "server", tmp_path / "kept"

    def keep() -> Callable[[], None]:
        client.save()
        shutil.copytree(files, kept)

        def come_back() -> None:
            server.kill()
            shutil.rmtree(files)
            shutil.copytree(kept, files)
            server.restart()

        return come_back

    return keep


@pytest.fixture
def first(connect: Connect, server: RedisServer) -> Inbox:
    """A consumer that has heard of Redis; two tasks of one tenant wait since."""
    inbox = Inbox(connect(f"fair{server.url}", fairness=LIMITED), "jobs")
    inbox.nothing_comes()
    publish(connect(f"fair{server.url}"), "jobs", 1, 2, headers=charged("a"))
    return inbox


def test_the_end_of_who_had_a_task_before_frees_no_slot_of_who_has_it_now(
    first: Inbox, connect: Connect, server: RedisServer, client: Redis, save: Save
) -> None:
    come_back = save()
    first.await_count(1)
    come_back()
    second = Inbox(connect(f"fair{server.url}", fairness=OTHER), "jobs")
    assert received(second, 1) == first.bodies == [1]
    (lease,) = running_leases(client)
    first.messages[0].ack()
    eventually(lambda: not session_of(first).lease_table.has_ends)
    assert running_leases(client) == {lease}
    assert client.zrange(LEASES, 0, -1) == [lease]
    second.nothing_comes()
    second.messages[0].ack()
    assert received(second, 2) == [1, 2]


def test_what_a_process_holds_counts_before_anything_is_claimed(
    first: Inbox,
    connect: Connect,
    server: RedisServer,
    client: Redis,
    save: Save,
    caplog: pytest.LogCaptureFixture,
) -> None:
    come_back = save()
    first.await_count(1)
    come_back()
    said: list[str] = []
    session_of(first).renewals.on_memory_lost = lambda: said.append("lost")
    (held,) = session_of(first).lease_table.held()

    def it_counts() -> None:
        with contextlib.suppress(Lost, OSError):
            first.turn()
        assert client.zrange(LEASES, 0, -1) == [held.lease]

    eventually(it_counts, at_most(10.0), poll_seconds=0)
    first.nothing_comes()
    second = Inbox(connect(f"fair{server.url}", fairness=OTHER), "jobs")
    second.nothing_comes()
    assert "Redis has an older memory without all leases held here" in caplog.text
    assert said == ["lost"]


def test_where_nothing_was_lost_nobody_says_so(
    first: Inbox, client: Redis, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "celery_fairness")
    first.await_count(1)
    known = session_of(first).renewals.epoch
    save()()
    first.messages[0].ack()
    assert received(first, 2) == [1, 2]
    assert session_of(first).renewals.epoch != known
    assert "lost its memory" not in caplog.text
    assert "Redis was restarted and kept its memory" in caplog.text
    first.messages[1].ack()
    settled(client)


def test_one_message_is_got_within_the_limit(
    connect: Connect, server: RedisServer, client: Redis, save: Save
) -> None:
    channel = connect(f"fair{server.url}", fairness=LIMITED).channel()
    assert channel.basic_get("jobs") is None
    publish(channel.connection.client, "jobs", 1, 2, headers=charged("a"))
    come_back = save()
    first = channel.basic_get("jobs")
    come_back()
    # Not the call that finds the connection lost: what it sends again is a claim.
    assert channel._size("jobs") == 2
    assert channel.basic_get("jobs") is None
    assert client.zcard(LEASES) == 1
    # Its task waits in the older memory, and its end withdraws it: it does not run twice.
    first.ack()
    assert channel.basic_get("jobs").payload == 2


def test_an_answer_that_was_lost_is_given_in_the_new_epoch(
    connect: Connect, server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(f"fair{server.url}", fairness=LIMITED)
    publish(connection, "jobs", 1, headers=charged("a"))
    inbox = Inbox(connection, "jobs")
    ask(inbox)
    eventually(lambda: client.hlen(RUNNING) == 1)
    inbox.channel.client.connection.disconnect()
    # Another server has the same memory.
    client.hset("{fairness}:clock", "server", "another")
    session = session_of(inbox)
    with monkeypatch.context() as late:
        # Nobody renews yet: claims are rejected.
        late.setattr(session.renewals, "saw_epoch", lambda *_epoch: None)
        inbox.nothing_comes()
    inbox.await_count(1)
    assert running_leases(client) == {session.lease_table.held()[0].lease}


def test_who_may_not_ask_which_server_it_is_goes_on_without(
    first: Inbox, connect: Connect, server: RedisServer, client: Redis
) -> None:
    client.acl_setuser("default", enabled=True, commands=["-info"])
    second = Inbox(connect(f"fair{server.url}", fairness=OTHER), "jobs")
    assert received(second, 1) == [1]
    session = session_of(second)
    known = session.renewals.epoch
    session.renewals.renew(session.call)
    assert session.renewals.epoch == known
