"""Partitions on the primaries of a Redis Cluster, and what a change of the cluster does to them."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_fairness import Fairness
from celery_fairness.config.settings import Settings
from celery_fairness.errors import SettingsError
from celery_fairness.limiter import partitioned
from celery_fairness.scheduler import calls
from celery_fairness.store.address import address_from_url
from celery_fairness.store.cluster import slot_of
from celery_fairness.store.note_sender import NoteSender
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport.session import sessions
from tests.support.redis_cluster import Node, RedisCluster
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import (
    BATCHES,
    Connect,
    Inbox,
    charged,
    drain,
    publish,
    spread_of,
    take,
)

pytestmark = [pytest.mark.redis, pytest.mark.one_redis("partitions")]

COUNT = 16
SEVERAL: dict[str, Any] = {"partitions": COUNT, "tiers": "unlimited"}
PLACES = Partitions("fairness", count=COUNT)
TENANTS = [f"t{number}" for number in range(40)]
#: The key of each partition's clock.
CLOCKS = [names.clock for names in PLACES.names]


@pytest.fixture
def open_there(connect: Connect, cluster: RedisCluster) -> Any:
    """``open_there()``: connect to the cluster."""

    def opened(fairness: dict[str, Any] = SEVERAL, **options: Any) -> Connection:
        return connect(cluster.url("faircluster"), fairness=fairness, **options)

    return opened


def tenants_at(cluster: RedisCluster, node: Node) -> list[str]:
    """Return the tenants whose partitions are on a primary."""
    there = {number for number in PLACES if cluster.primary(CLOCKS[number]) is node}
    return [tenant for tenant in TENANTS if PLACES.of_tenant(tenant) in there]


def test_tenants_of_all_primaries_take_turns(open_there: Any, cluster: RedisCluster) -> None:
    connection = open_there()
    for tenant in TENANTS:
        publish(connection, "jobs", *range(5), headers=charged(tenant))
    for node in cluster.nodes:
        if node.do("ROLE")[0] == "master":
            slots = {slot_of(key) for key in map(bytes.decode, node.client().scan_iter("*lane*"))}
            assert len(slots & {slot_of(clock) for clock in CLOCKS}) >= 3
    inbox = Inbox(connection, "jobs", prefetch_count=4)
    served = drain(inbox, 5 * len(TENANTS))
    assert Counter(served) == dict.fromkeys(TENANTS, 5)
    assert spread_of(served, TENANTS) <= 5


@BATCHES
def test_a_batch_goes_to_all_primaries(open_there: Any, cluster: RedisCluster) -> None:
    connection = open_there()
    producer = connection.Producer(serializer="json")
    with producer.batch():
        for tenant in TENANTS:
            producer.publish(tenant, exchange="", routing_key="jobs", headers=charged(tenant))
    assert connection.channel()._size("jobs") == len(TENANTS)
    cluster.move(cluster.other(CLOCKS[3]), CLOCKS[3])
    with producer.batch():
        for tenant in TENANTS:
            producer.publish(tenant, exchange="", routing_key="jobs", headers=charged(tenant))
    assert connection.channel()._size("jobs") == 2 * len(TENANTS)


def test_a_slot_moves_while_all_partitions_go_on(open_there: Any, cluster: RedisCluster) -> None:
    connection = open_there()
    for tenant in TENANTS:
        publish(connection, "jobs", *range(5), headers=charged(tenant))
    inbox = Inbox(connection, "jobs", prefetch_count=4)
    served = take(inbox, 40)
    target = cluster.other(CLOCKS[5])
    source, slot = cluster.begin_move(target, CLOCKS[5])
    theirs = [tenant for tenant in TENANTS if PLACES.of_tenant(tenant) == 5]
    others = [tenant for tenant in TENANTS if tenant not in theirs]
    while sum(served.count(each) for each in others) < 5 * len(others):
        served += take(inbox, 1)
    cluster.end_move(source, target, slot)
    served += take(inbox, 5 * len(TENANTS) - len(served))
    assert Counter(served) == dict.fromkeys(TENANTS, 5)
    assert sessions()[0].servers.of(5).node[1] == target.port


def test_a_killed_primary_stops_its_own_tenants_alone(
    open_there: Any, cluster: RedisCluster
) -> None:
    connection = open_there()
    for tenant in TENANTS:
        publish(connection, "jobs", *range(5), headers=charged(tenant))
    inbox = Inbox(connection, "jobs", prefetch_count=4)
    served = take(inbox, 40)
    # Not the home, whose sleepers wait for it.
    killed = cluster.other()
    theirs = tenants_at(cluster, killed)
    others = [tenant for tenant in TENANTS if tenant not in theirs]
    assert theirs
    epochs = list(sessions()[0].renewals.epochs)
    cluster.await_copies(killed)
    killed.kill()
    began = time.monotonic()
    while sum(served.count(each) for each in others) < 5 * len(others):
        served += take(inbox, 1)
    assert time.monotonic() - began < at_most(1.0)
    served += take(inbox, 5 * len(TENANTS) - len(served))
    assert Counter(served) == dict.fromkeys(TENANTS, 5)
    later = sessions()[0].renewals.epochs
    changed = {number for number in PLACES if epochs[number] != later[number]}
    assert changed == {PLACES.of_tenant(tenant) for tenant in theirs}
    killed.restart()
    cluster.await_agreement()


def test_the_tenants_of_a_primary_apart_from_the_others_go_on(
    open_there: Any, cluster: RedisCluster
) -> None:
    connection = open_there()
    for tenant in TENANTS:
        publish(connection, "jobs", "before", headers=charged(tenant))
    inbox = Inbox(connection, "jobs", prefetch_count=4)
    take(inbox, len(TENANTS))
    # It answers clients, and lets them know that it reaches too few others.
    apart = cluster.other()
    tenant = tenants_at(cluster, apart)[0]
    cluster.part(apart)
    try:
        cluster.await_primary(apart, CLOCKS[PLACES.of_tenant(tenant)])
        eventually(lambda: put_one(connection, tenant), at_most(5.0))
        inbox.messages.clear()
        assert take(inbox, 1) == [tenant]
    finally:
        cluster.join()
        cluster.await_agreement()


def put_one(connection: Connection, tenant: str) -> None:
    """Publish, if the primary of the tenant takes it now."""
    try:
        publish(connection, "jobs", "after", headers=charged(tenant))
    except connection.connection_errors as error:
        raise AssertionError(str(error)) from None


def test_a_begin_goes_to_the_node_that_has_its_partition_by_now(cluster: RedisCluster) -> None:
    address = address_from_url(cluster.url("cluster"))
    one = 5
    at = cluster.primary(CLOCKS[one])
    other = next(each for each in PLACES if each != one and cluster.primary(CLOCKS[each]) is at)
    with closing(partitioned.connect(address, PLACES, Settings(), 2.0, 1)) as connection:
        prefixes = PLACES.prefix(one), PLACES.prefix(other)
        sender = NoteSender(connection.at(prefixes[0]), connection)
        assert connection.at(prefixes[1]) is connection.at(prefixes[0])
        args = calls.tenant_args("tenant:begun", "free")
        # The first call only loads the library.
        sender.send(calls.PUBLISH_TENANT, prefixes[1], args)
        cluster.move(cluster.other(CLOCKS[one]), CLOCKS[one])
        # The other partition has just had its answer over the same connection.
        for prefix in reversed(prefixes):
            sender.send(calls.PUBLISH_TENANT, prefix, args)
        for prefix in prefixes:
            with cluster.client(prefix) as client:
                assert client.exists(f"{prefix}tenant:begun") == 1


def test_begins_leave_a_primary_that_does_not_come_back(cluster: RedisCluster) -> None:
    address = address_from_url(cluster.url("cluster"))
    killed = cluster.other()
    partition = next(each for each in PLACES if cluster.primary(CLOCKS[each]) is killed)
    prefix = PLACES.prefix(partition)
    with closing(partitioned.connect(address, PLACES, Settings(), 2.0, 1)) as connection:

        def begin(number: int) -> None:
            sender = NoteSender(connection.at(prefix), connection)
            args = calls.tenant_args(f"tenant:begun{number}", "free")
            sender.send(calls.PUBLISH_TENANT, prefix, args)

        begin(1)
        cluster.await_copies(killed)
        killed.kill()
        try:
            cluster.await_primary(killed, CLOCKS[partition])
            begin(2)

            def arrives() -> None:
                begin(3)
                with cluster.client(prefix) as client:
                    assert client.exists(f"{prefix}tenant:begun3") == 1

            eventually(arrives, at_most(5.0))
        finally:
            killed.restart()
            cluster.await_agreement()


def test_a_prefix_of_all_keys_is_an_error(open_there: Any) -> None:
    options = {"global_keyprefix": "{jobs}:"}
    with pytest.raises(SettingsError, match=r"expected none with several .* got: '{jobs}:'"):
        publish(open_there(transport_options=options), "jobs", 1)


def test_python_calls_reach_all_primaries(open_there: Any, cluster: RedisCluster) -> None:
    connection = open_there()
    for tenant in TENANTS:
        publish(connection, "jobs", 1, headers=charged(tenant))
    app = Celery("calls", broker=cluster.url("faircluster"), set_as_current=False)
    app.conf.fairness = SEVERAL
    with closing(app), closing(Fairness(app)) as fairness:
        assert fairness.tasks.count(queue="jobs") == len(TENANTS)
        assert fairness.tasks.dead_letters().items == ()
        for tenant in TENANTS:
            fairness.tenants.pause(tenant, for_seconds=60)
        assert take(Inbox(connection, "jobs", prefetch_count=4), 0) == []
        cluster.move(cluster.other(CLOCKS[5]), CLOCKS[5])
        assert fairness.tasks.count(queue="jobs") == len(TENANTS)
