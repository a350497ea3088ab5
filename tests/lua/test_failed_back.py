"""A server fails over, and comes back as the same process with an older memory (ADR 30).

Its replica misses the last writes and is the primary for a while. The server becomes a replica of
it, and then the primary again. If the other one was not called, the server has written its memory
itself. Only its `master_replid` differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import pytest
from redis import Redis

from celery_fairness.scheduler import calls
from tests.lua.test_lots import Rated
from tests.lua.test_permits import LIFE, MARGIN, Installation
from tests.support.library import call
from tests.support.proxy import Proxy
from tests.support.redis_server import HOST, RedisServer
from tests.support.sentinel_group import await_link

pytestmark = pytest.mark.redis

QUICK = ("--repl-diskless-sync-delay", "0")


class Pair:
    """A server and its replica.

    Attributes:
        client: A client of the server.
    """

    def __init__(self) -> None:
        self._server, self._replica = RedisServer(args=QUICK), RedisServer(args=QUICK)

    def __enter__(self) -> Self:
        self._server.start()
        self._wire = Proxy(self._server.port).start()
        self._replica.start()
        self.client = self._server.client(decode_responses=True)
        with self._replica.client() as replica:
            replica.replicaof(HOST, self._wire.port)
        await_link(self._replica)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        for each in (self._replica, self._wire, self._server):
            each.stop()

    def forget_from_now_on(self) -> None:
        """Let the replica have all so far, and nothing more."""
        self.client.set("written", 1)
        assert self.client.wait(1, 5_000) == 1
        self._wire.hang()

    def fail_over_and_back(self) -> None:
        """Let the replica be the primary for a while, and the server the primary again."""
        run = self.client.info("server")["run_id"]
        with self._replica.client() as replica:
            replica.replicaof("no", "one")
            self.client.replicaof(HOST, self._replica.port)
            await_link(self._server)
            self.client.replicaof("no", "one")
        assert self.client.info("server")["run_id"] == run


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made


def test_permits_that_went_back_start_nothing(client: Redis, pair: Pair) -> None:
    place = Installation(client, limit=1)
    place.clients = {1: pair.client}
    place.recount()
    place.want(1)
    place.borrow(1)
    place.claim(1)
    place.end(1)
    pair.forget_from_now_on()
    place.grant(place.request(1))
    place.want(2)
    assert place.borrow(2) == 1
    assert len(place.claim(2).tasks) == 1
    pair.fail_over_and_back()
    place.want(1)
    assert place.counts() == [0, 0, 1, 0]
    # The permit comes back as any other.
    place.borrow(1)
    place.end(2)
    place.borrow(2)
    assert place.borrow(1) == 1
    assert len(place.claim(1).tasks) == 1


def test_a_home_does_not_grant_again_what_it_has_granted(client: Redis, pair: Pair) -> None:
    place = Installation(client, limit=1)
    place.clients = {place.home: pair.client}
    place.recount()
    pair.forget_from_now_on()
    place.want(1)
    assert place.borrow(1) == 1
    pair.fail_over_and_back()
    place.want(2)
    assert place.borrow(2) == 0
    place.wait(MARGIN + 1)
    assert [each["n"] for each in place.recount()["answers"]] == [0, 1, 0, 0]


def test_a_lot_that_is_used_up_starts_nothing(client: Redis, pair: Pair) -> None:
    place = Rated(client, 4, "R1/60000")
    place.clients = {1: pair.client}
    place.recount()
    place.want(1, 2)
    place.visit(1)
    pair.forget_from_now_on()
    assert place.start(1) == 1
    pair.fail_over_and_back()
    assert place.start(1) == 0


def test_a_home_does_not_lend_again_what_it_has_lent(client: Redis, pair: Pair) -> None:
    place = Rated(client, 4, "R1/60000")
    place.clients = {place.home: pair.client}
    place.recount()
    pair.forget_from_now_on()
    place.want(1)
    assert place.lot(1)
    assert place.start(1) == 1
    pair.fail_over_and_back()
    place.want(2)
    assert place.lot(2) is None


def test_a_memory_that_comes_back_is_a_new_epoch(pair: Pair) -> None:
    args = calls.epoch_args(LIFE, None)
    before = int(call(pair.client, calls.EPOCH, "{fairness}:", args))
    assert int(call(pair.client, calls.EPOCH, "{fairness}:", args)) == before
    pair.forget_from_now_on()
    pair.fail_over_and_back()
    assert int(call(pair.client, calls.EPOCH, "{fairness}:", args)) > before
