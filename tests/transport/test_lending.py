"""A worker process that keeps back some of its places from lent tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from celery_fairness.config.tiers import Tier, write_tier
from celery_fairness.scheduler import calls
from tests.support.library import call
from tests.transport.conftest import Connect, Inbox, charged, publish
from tests.transport.test_passing import turn_until_asleep

pytestmark = pytest.mark.redis


@pytest.fixture
def worker(connect: Connect, client: Redis) -> Iterator[Inbox]:
    """A worker with four places that lends all but two of the free ones."""
    rows = {"free": write_tier(Tier("free", 1, burst=9))}
    call(client, calls.PUBLISH_TIERS, "{fairness}:", calls.tiers_args(rows, "database"))
    worker = Inbox(connect(), "a")
    worker.channel.serves_worker = True
    worker.channel.session.start(lambda: 4, {}, False, 2)
    yield worker
    worker.channel.session.slots = None


def test_it_lends_again_at_once_when_more_places_are_free(
    connect: Connect, client: Redis, worker: Inbox
) -> None:
    publish(connect(), "a", *(f"big{number}" for number in range(6)), headers=charged("big"))
    assert worker.await_count(2) == ["big0", "big1"]
    worker.nothing_comes()
    publish(connect(), "a", "quiet", headers=charged("quiet"))
    assert worker.await_count(3, 0.5)[2] == "quiet"
    turn_until_asleep(worker, client)
    # Two places are free again, and it keeps both back.
    worker.messages[2].ack()
    worker.nothing_comes()
    turn_until_asleep(worker, client)
    worker.messages[0].ack()
    assert worker.await_count(4, 0.5)[3] == "big2"


def test_places_that_a_claim_does_not_want_are_kept_back_first(worker: Inbox) -> None:
    session, wanted = worker.channel.session, []
    for want in (4, 3, 2):
        session.count_open(want, for_places=True)
        wanted.append(session.spare(for_places=True))
        session.count_open(-want, for_places=True)
    assert wanted == [2, 1, 0]
    assert session.spare(for_places=False) == 0
