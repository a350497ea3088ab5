"""Kombu on one slot of a Redis Cluster: every operation, and what a change of the cluster does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection, Exchange, Queue
from kombu.exceptions import ChannelError

from celery_fairness.errors import LimiterUnavailable, SettingsError
from celery_fairness.store import cluster as store_cluster
from celery_fairness.store.address import address_from_url
from celery_fairness.store.cluster import TRIES, slot_of
from celery_fairness.store.connection import Connection as LimiterConnection
from celery_fairness.store.readiness import ServerNotReady
from celery_fairness.transport.migration import to_stock
from celery_fairness.transport.session import sessions
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import HOST, RedisServer, ReservedPort
from tests.support.rights import rights_of
from tests.support.services import missing
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import BATCHES, Connect, Inbox, publish
from tests.transport.test_addresses import make_certificate

pytestmark = pytest.mark.redis

Open = Callable[..., Connection]
#: A key of slot 0.
FIRST_SLOT = "{06S}"


@pytest.fixture
def at(connect: Connect, cluster: RedisCluster) -> Open:
    """``at(scheme, **options)``: connect to a node that has not the slot."""

    def opened(scheme: str = "faircluster", **options: Any) -> Connection:
        return connect(f"{scheme}://{HOST}:{cluster.other().port}/0", **options)

    return opened


def test_every_operation_works_from_any_node(at: Open, cluster: RedisCluster) -> None:
    connection = at()
    channel = connection.channel()
    topic = Exchange("orders", type="topic", channel=channel)
    queue = Queue("mail", exchange=topic, routing_key="mail.#", expires=60.0, channel=channel)
    queue.declare()
    connection.Producer(channel, serializer="json").publish(
        "bound", exchange="orders", routing_key="mail.now"
    )
    assert channel.queue_declare("mail", passive=True).message_count == 1
    assert Inbox(connection, queue).await_count(1) == ["bound"]
    publish(connection, "jobs", "first", "second")
    message = channel.basic_get("jobs")
    assert message.payload == "first"
    message.ack()
    assert channel.queue_purge("jobs") == 1
    with pytest.raises(ChannelError):
        channel.queue_declare("nothing", passive=True)
    channel.queue_delete("mail")
    # All of it is in one slot.
    slot = slot_of("{fairness}")
    with cluster.client() as client:
        assert {slot_of(key) for key in client.scan_iter()} == {slot}
    assert sum(node.do("DBSIZE") for node in cluster.nodes if node is not cluster.primary()) == (
        cluster.replica(cluster.primary()).do("DBSIZE")
    )


def test_replies_of_the_stock_transport_are_read(at: Open) -> None:
    name = "1234.reply.celery.pidbox"
    connection = at()
    inbox = Inbox(connection, name, no_ack=True)
    publish(connection, name, "pong")
    assert inbox.await_count(1) == ["pong"]
    other = "5678.reply.celery.pidbox"
    publish(connection, other, "pong")
    assert connection.channel().queue_declare(other, passive=True).message_count == 1


def test_a_fanout_reaches_every_consumer(at: Open) -> None:
    events = Exchange("events", type="fanout")
    inboxes = [
        Inbox(at(), Queue(f"events{number}", exchange=events), no_ack=True) for number in range(2)
    ]
    producer = at().Producer(serializer="json")
    for inbox in inboxes:

        def got(inbox: Inbox = inbox) -> None:
            producer.publish("event", exchange=events, declare=[events])
            inbox.turn()
            assert inbox.messages

        # A subscription may be later than the first event.
        eventually(got)


@BATCHES
def test_a_batch_follows_a_moved_slot(at: Open, cluster: RedisCluster) -> None:
    connection = at()
    publish(connection, "jobs", 0)
    cluster.move(cluster.other())
    producer = connection.Producer(serializer="json")
    with producer.batch(max_size=10):
        for number in range(1, 4):
            producer.publish(number, exchange="", routing_key="jobs")
    assert sorted(Inbox(connection, "jobs").await_count(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("change", ["move", "move_at_once", "fail_over"])
def test_a_planned_change_loses_and_doubles_nothing(
    at: Open, cluster: RedisCluster, change: str
) -> None:
    inbox, producer = Inbox(at(), "jobs"), at()
    publish(producer, "jobs", "before")
    inbox.await_count(1)
    if change == "move_at_once" and not cluster.moves_at_once:
        pytest.skip("the server does not move a slot as one by this command")
    getattr(cluster, change)(*([] if change == "fail_over" else [cluster.other()]))
    # As ``delay()`` does, because a failover may pause clients for as long as a socket waits.
    publish(producer, "jobs", "after", retry=True)
    assert inbox.await_count(2) == ["before", "after"]
    for message in inbox.messages:
        message.ack()
    (session,) = sessions()
    session.flush()
    with cluster.client() as client:
        assert client.zcard("{fairness}:ends") == 0


def test_a_claim_loads_the_library_where_its_slot_is_now(at: Open, cluster: RedisCluster) -> None:
    inbox, producer = Inbox(at(), "jobs"), at()
    publish(producer, "jobs", "before")
    inbox.await_count(1)
    # The claim comes to the new node before the connections of puts do, which loads the library.
    publish(producer, "jobs", "waits")
    cluster.move(cluster.other())
    assert inbox.await_count(2) == ["before", "waits"]


def test_a_put_waits_until_a_move_ends(at: Open, cluster: RedisCluster) -> None:
    producer, consumer = at(), at()
    publish(producer, "jobs", "before")
    to = cluster.other()
    source, slot = cluster.begin_move(to)
    source.do("CONFIG", "RESETSTAT")
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(publish, producer, "jobs", "during")
        eventually(lambda: _expect("errorstat_ASK" in source.do("INFO", "errorstats")))
        cluster.end_move(source, to, slot)
        put.result(at_most(10.0))
    assert Inbox(consumer, "jobs").await_count(2) == ["before", "during"]


def put_one(producer: Connection) -> None:
    """Publish, if the cluster takes it now."""
    try:
        publish(producer, "jobs", "after")
    except producer.connection_errors as error:
        raise AssertionError(str(error)) from None


def test_a_killed_primary_is_replaced(at: Open, cluster: RedisCluster) -> None:
    producer = at()
    publish(producer, "jobs", "before")
    # A replica copies a moment later, and what it lacks is lost with the primary.
    cluster.await_copies()
    before = cluster.kill_primary()
    try:
        cluster.await_primary(before)
        eventually(lambda: put_one(producer))
        # Not from `before`, which is away.
        assert Inbox(at(), "jobs").await_count(2) == ["before", "after"]
    finally:
        before.restart()
        cluster.await_agreement()


def test_a_primary_apart_from_the_others_is_left(
    at: Open, connect: Connect, cluster: RedisCluster
) -> None:
    # Every table of slots begins with it, and it goes on to name itself.
    before = cluster.primary(FIRST_SLOT)
    if cluster.primary() is not before:
        cluster.move(before)
    url = f"faircluster://{HOST}:{before.port}/0;faircluster://{HOST}:{cluster.other().port}/0"
    producer = connect(url)
    publish(producer, "jobs", "before")
    cluster.part(before)
    try:
        cluster.await_primary(before)
        for connection in (producer, connect(url)):
            eventually(lambda connection=connection: put_one(connection))
        assert Inbox(at(), "jobs").await_count(3) == ["before", "after", "after"]
    finally:
        cluster.join()
        cluster.await_agreement()


def test_nodes_without_the_names_that_the_cluster_wants(
    at: Open, connect: Connect, cluster: RedisCluster
) -> None:
    option = "cluster-preferred-endpoint-type"
    for node in cluster.nodes:
        node.do("CONFIG", "SET", option, "hostname")
    try:
        producer = at()
        publish(producer, "jobs", 1)
        cluster.move(cluster.other())
        # The old primary answers MOVED to the host "?".
        publish(producer, "jobs", 2, retry=False)
        other = connect(f"faircluster://localhost:{cluster.nodes[0].port}/0")
        publish(other, "jobs", 3)
        for connection in (producer, other):
            assert primary_of(connection) == (HOST, cluster.primary().port)
    finally:
        for node in cluster.nodes:
            node.do("CONFIG", "SET", option, "ip")


def primary_of(connection: Connection) -> tuple[str, int]:
    """Return the node to which a connection leads."""

    def asked(*_: Any) -> Any:
        raise AssertionError("the primary is not known")

    found: tuple[str, int] = connection.transport.slot_primary.address(asked)
    return found


def test_a_long_absence_of_the_slot_makes_no_call_wait(
    at: Open, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, to = at(), cluster.other()
    publish(producer, "jobs", "before")
    source, slot = cluster.begin_move(to)
    source.do("CONFIG", "RESETSTAT")
    monkeypatch.setattr(store_cluster, "PATIENCE_SECONDS", 0.0)
    try:
        with pytest.raises(ServerNotReady, match="ASK"):
            publish(producer, "jobs", "during", retry=False)
        tries = re.search(r"errorstat_ASK:count=(\d+)", source.do("INFO", "errorstats"))
        assert tries is not None
        assert int(tries[1]) < TRIES
    finally:
        for node in (source, to):
            node.do("CLUSTER", "SETSLOT", slot, "STABLE")
    publish(producer, "jobs", "after")


def test_tasks_move_from_and_to_lists_under_a_prefix_with_a_tag(
    at: Open, connect: Connect, cluster: RedisCluster
) -> None:
    # Stock kombu works at the node that has the slot of all its keys.
    prefix = "{jobs}:"
    stock = connect(f"redis://{HOST}:{cluster.primary(prefix).port}/0", prefix=prefix)
    fair = at(prefix=prefix)
    publish(stock, "jobs", *range(3))
    inbox = Inbox(fair, "jobs")
    assert inbox.await_count(3) == [0, 1, 2]
    for message in inbox.messages:
        message.requeue()
    fair.release()
    channel = at(prefix=prefix).channel()
    assert to_stock(channel, "jobs").moved == 3
    assert sorted(Inbox(stock, "jobs").await_count(3)) == [0, 1, 2]


# -- what is rejected ------------------------------------------------------------------------------


def opened(connection: Connection) -> Any:
    return connection.channel()


def test_a_prefix_needs_a_hash_tag(at: Open) -> None:
    with pytest.raises(SettingsError, match=r"global_keyprefix'\]: expected a hash tag.*'jobs:'"):
        opened(at(prefix="jobs:"))
    publish(at(prefix="{jobs}:"), "jobs", 1)


def test_a_cluster_has_one_database(connect: Connect, cluster: RedisCluster) -> None:
    with pytest.raises(SettingsError, match=r"^broker_url: .* only that one, got: '3'"):
        opened(connect(f"faircluster://{HOST}:{cluster.nodes[0].port}/3"))


def test_all_nodes_have_one_scheme(connect: Connect) -> None:
    for other in ("fairclusters://:secret@b:2", "fairredis://:secret@b:2"):
        with pytest.raises(SettingsError, match=r"^broker_url: .* the same scheme") as caught:
            opened(connect(f"faircluster://a:1;{other}"))
        assert "secret" not in str(caught.value)


def test_a_broker_of_one_redis_names_that_of_a_cluster(at: Open, cluster: RedisCluster) -> None:
    for node in cluster.nodes[:3]:
        connection = at("fairredis")
        connection.switch(f"fairredis://{HOST}:{node.port}/0")
        with pytest.raises(
            SettingsError, match="expected faircluster:// or fairclusters:// for a node"
        ):
            connection.channel().queue_declare("jobs")


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """kombu tries an address that fails once more, two seconds later."""
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda seconds: None)


no_pauses_between_tries = pytest.mark.usefixtures("no_pauses")


@pytest.mark.one_redis("it needs a Redis that is no cluster")
@no_pauses_between_tries
def test_a_redis_that_is_no_cluster_is_named(connect: Connect, redis_server: RedisServer) -> None:
    connection = connect(f"faircluster://{HOST}:{redis_server.port}/0")
    with pytest.raises(redis.ConnectionError, match="cluster support disabled"):
        opened(connection)


@no_pauses_between_tries
def test_no_node_that_answers_is_a_lost_connection(connect: Connect) -> None:
    closed = ReservedPort()
    with pytest.raises(redis.ConnectionError, match="no node of the cluster"):
        opened(connect(f"faircluster://{HOST}:{closed.number}/0"))
    closed.release()


# -- rights and TLS -------------------------------------------------------------------------------


@pytest.fixture
def worker_user(cluster: RedisCluster) -> Any:
    """A user on every node with the rights that the page gives for a cluster."""

    def set_rights(*more: str) -> str:
        for node in cluster.nodes:
            rights = (*rights_of("clustered-worker"), *more)
            node.do("ACL", "SETUSER", "worker", "reset", "on", ">pw", *rights)
        return f"faircluster://worker:pw@{HOST}:{cluster.other().port}/0"

    yield set_rights
    for node in cluster.nodes:
        node.do("ACL", "DELUSER", "worker")


def test_the_rights_of_the_page_are_enough(connect: Connect, worker_user: Any) -> None:
    connection = connect(worker_user())
    queue = Queue("mail", exchange=Exchange("mail"), routing_key="mail", expires=60.0)
    inbox = Inbox(connection, queue)
    connection.Producer(serializer="json").publish("hello", exchange="mail", routing_key="mail")
    assert inbox.await_count(1) == ["hello"]
    fanout = Exchange("events", type="fanout")
    Inbox(connection, Queue("events", exchange=fanout), no_ack=True).nothing_comes()


def test_a_producer_needs_what_the_page_gives_it(
    connect: Connect, worker_user: Any, cluster: RedisCluster
) -> None:
    # A producer does not load the library.
    publish(connect(worker_user()), "jobs", 1)
    keys = {"~celery*": "~{fairness}.*", "~_kombu.*": ""}
    rights = [keys.get(each, each) for each in rights_of("producer")]
    try:
        for node in cluster.nodes:
            given = [*filter(None, rights), "+cluster|slots"]
            node.do("ACL", "SETUSER", "producer", "reset", "on", ">pw", *given)
        producer = connect(f"faircluster://producer:pw@{HOST}:{cluster.other().port}/0")
        queue = Queue("mail", exchange=Exchange("mail"), routing_key="mail")
        producer.Producer(serializer="json").publish(
            "hello", exchange="mail", routing_key="mail", declare=[queue]
        )
    finally:
        for node in cluster.nodes:
            node.do("ACL", "DELUSER", "producer")
    assert Inbox(connect(worker_user()), queue).await_count(1) == ["hello"]


@no_pauses_between_tries
def test_nodes_with_tls(connect: Connect, tmp_path: Path) -> None:
    program = shutil.which("redis-server")
    if program is None:
        missing("a Redis server with TLS is not installed (Debian: apt-get install redis-server)")
    key, certificate = make_certificate(tmp_path)
    args = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    args += ("--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no")
    with RedisCluster(2, binary=program, args=args) as made:
        for node in made.nodes:
            url = f"fairclusters://{HOST}:{node.tls_port}/0"
            connection = connect(url, ssl={"ssl_ca_certs": str(certificate)})
            publish(connection, "jobs", 1)
            inbox = Inbox(connection, "jobs")
            assert inbox.await_count(1) == [1]
            inbox.messages[0].ack()
            with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
                opened(connect(url))
            connection.release()
            limiter = LimiterConnection(
                address_from_url(f"clusters://{HOST}:{node.tls_port}?ssl_ca_certs={certificate}"),
                prefix="{fairness}:",
            )
            assert limiter.read("EXISTS", "{fairness}:clock") == 1
            limiter.close()


@no_pauses_between_tries
def test_a_missing_right_is_named(connect: Connect, worker_user: Any) -> None:
    with pytest.raises(redis.ConnectionError, match=re.escape("cluster|slots")):
        opened(connect(worker_user("-cluster|slots")))


@no_pauses_between_tries
def test_a_wrong_password_is_named(connect: Connect, cluster: RedisCluster) -> None:
    where = f"limited:secret@{HOST}:{cluster.nodes[0].port}"
    with pytest.raises(redis.AuthenticationError, match=r"no node of the cluster.*password"):
        opened(connect(f"faircluster://{where}"))
    limiter = LimiterConnection(address_from_url(f"cluster://{where}"), prefix="{fairness}:")
    with pytest.raises(LimiterUnavailable, match="correct the user and the password") as caught:
        limiter.read("EXISTS", "{fairness}:clock")
    assert "secret" not in str(caught.value)
    limiter.close()


def test_an_ipv6_address_is_a_seed() -> None:
    uri = Connection("faircluster://[::1]:7000/0").as_uri()
    assert address_from_url(uri.removeprefix("fair")).nodes() == [("::1", 7000)]


def _expect(condition: bool) -> None:
    assert condition
