"""Where the broker is and how it is reached: databases, prefixes, sockets, TLS, Sentinel."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import pytest
import redis
from kombu import Connection
from redis import Redis
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import ConnectionError as NotYet

from celery_fairness.transport.session import sessions
from tests.support.local_process import LocalProcess
from tests.support.redis_server import RedisServer, ReservedPort, find_binary
from tests.support.services import missing
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import BATCHES, Connect, Inbox, leases, publish, settled

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py tries ten times, with longer and longer pauses."""
    monkeypatch.setattr("redis.retry.sleep", lambda seconds: None)


def opened(connection: Connection) -> None:
    """Open a connection, without trying again."""
    connection.transport.establish_connection()


def works(connection: Connection, queue: str = "jobs") -> None:
    """Publish, consume and acknowledge."""
    publish(connection, queue, "hello")
    inbox = Inbox(connection, queue)
    assert inbox.await_count(1) == ["hello"]
    inbox.messages[0].ack()
    assert inbox.channel._size(queue) == 0


@pytest.mark.one_redis("a database")
def test_the_database_is_that_of_the_url(connect: Connect, redis_url: str, client: Redis) -> None:
    connection = connect("fair" + redis_url.removesuffix("/0") + "/7")
    publish(connection, "jobs", 1)
    assert not list(client.scan_iter("*fairness*"))
    Inbox(connection, "jobs").await_count(1)
    Inbox(connect(), "jobs").nothing_comes()


@BATCHES
@pytest.mark.one_redis("a prefix without a tag")
def test_the_keys_of_a_batch_begin_with_the_prefix(connect: Connect, client: Redis) -> None:
    producer = connect(prefix="shop:").Producer()
    with producer.batch():
        producer.publish(4, exchange="", routing_key="jobs", serializer="json")
    assert [key for key in client.scan_iter("*") if not key.startswith("shop:")] == []
    Inbox(connect(prefix="shop:"), "jobs").await_count(1)


@pytest.mark.one_redis("a prefix without a tag")
def test_every_key_begins_with_the_prefix(
    connect: Connect, client: Redis, redis_server: RedisServer
) -> None:
    connection = connect(prefix="shop:")
    inbox = Inbox(connection, "jobs")
    inbox.nothing_comes()
    publish(connection, "jobs", 1, 2, headers={"fairness": {"v": 1, "tenant": "a"}})
    publish(connection, "jobs", 3, headers={"eta": "2999-01-01T00:00:00+00:00"})
    publish(connection, "jobs", 4)
    assert client.exists("shop:{fairness}:wakeup:jobs")
    inbox.await_count(2)
    assert [key for key in client.scan_iter("*") if not key.startswith("shop:")] == []
    assert leases(client, "shop:") == 2
    sessions()[0].renewals.renew(sessions()[0].call)
    assert sessions()[0].lease_table.held()[0].lost is False
    for message in inbox.messages:
        message.ack()
    inbox.await_count(3)
    inbox.messages[-1].ack()
    inbox.channel.queue_purge("jobs")
    settled(client, "shop:")
    assert [key for key in client.scan_iter("*") if not key.startswith("shop:")] == []


@pytest.mark.one_redis("a prefix without a tag")
def test_apps_with_different_prefixes_do_not_meet(connect: Connect) -> None:
    one, two = connect(prefix="one:"), connect(prefix="two:")
    inboxes = Inbox(one, "jobs"), Inbox(two, "jobs")
    for inbox in inboxes:
        inbox.nothing_comes()
    publish(one, "jobs", 1)
    assert inboxes[0].await_count(1) == [1]
    inboxes[1].nothing_comes()


@pytest.mark.one_redis("two hash slots")
def test_namespaces_do_not_meet(connect: Connect, client: Redis) -> None:
    publish(connect(fairness={"namespace": "other"}), "jobs", 1)
    Inbox(connect(), "jobs").nothing_comes()
    assert client.exists("{other}:clock")


def test_a_unix_socket(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RedisServer(args=("--unixsocket", str(path))) as server:
        works(connect(f"fairredis+socket://{path}"))
        works(connect(f"fairredis+socket://{path}?virtual_host=2"))
        with server.client() as client:
            for database in (0, 2):
                client.select(database)
                assert client.exists("{fairness}:clock"), database
        for connection in (connect(f"fairredis+socket://{path}"),):
            works(connection.clone())


def test_two_databases_of_one_unix_socket_are_two_places(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RedisServer(args=("--unixsocket", str(path))) as server:
        connections = [
            connect(f"fairredis+socket://{path}", virtual_host=str(database))
            for database in range(2)
        ]
        for number, connection in enumerate(connections):
            publish(connection, "jobs", number)
        for database, connection in enumerate(connections):
            with server.client() as client:
                client.select(database)
                assert client.hget("{fairness}:waiting", "jobs") == b"1"
            assert Inbox(connection, "jobs").await_count(1) == [database]


def test_user_and_password(connect: Connect) -> None:
    with RedisServer() as server:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "shop", "on", ">pa/ss", "~*", "&*", "+@all")
            client.config_set("requirepass", "other")
        address = f"127.0.0.1:{server.port}/0"
        works(connect(f"fairredis://shop:pa%2Fss@{address}"))
        with pytest.raises(redis.AuthenticationError):
            opened(connect(f"fairredis://shop:wrong@{address}"))


@pytest.mark.skipif(kombu.VERSION < (5, 6), reason="kombu 5.5 reads no credential provider")
def test_a_credential_provider(connect: Connect) -> None:
    with RedisServer() as server:
        with server.client() as client:
            client.config_set("requirepass", "s3cret")
        provider = UsernamePasswordCredentialProvider("default", "s3cret")
        works(connect(f"fairredis://127.0.0.1:{server.port}/0", credential_provider=provider))


def test_a_password_is_in_no_message_to_people(connect: Connect, caplog) -> None:
    with RedisServer() as server:
        with server.client() as client:
            client.config_set("requirepass", "s3cret")
        connection = connect(f"fairredis://:s3cret@127.0.0.1:{server.port}/0")
        publish(connection, "jobs", 1)
        inbox = Inbox(connection, "jobs")
        inbox.await_count(1)
        server.kill()
        inbox.messages[0].ack()
        eventually(lambda: "could not be sent" in caplog.text)
        assert "s3cret" not in caplog.text
        assert "s3cret" not in repr(sessions())


class Listener:
    """A server that is no Redis: it keeps the first bytes that it is sent."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(3)
        self.port = self.socket.getsockname()[1]

    def first_bytes(self, use: Callable[[], object]) -> bytes:
        heard: list[bytes] = []

        def listen() -> None:
            with self.socket:
                end, _ = self.socket.accept()
            with end:
                heard.append(end.recv(64))

        thread = threading.Thread(target=listen)
        thread.start()
        with contextlib.suppress(Exception):
            use()
        thread.join(at_most(5))
        return heard[0]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("fairrediss://{}", {}),
        ("fairrediss://{}", {"ssl": {}}),
        ("fairrediss://{}", {"ssl": True}),
        ("fairrediss://{}?ssl_cert_reqs=none", {}),
        ("fairrediss://{}", {"ssl": {"ssl_cert_reqs": ssl.CERT_NONE}}),
        ("fairredis://{}", {"ssl": True}),
        ("fairredis://{}?ssl_cert_reqs=required", {}),
        ("redis://{}", {"transport": "celery_fairness.transport:TLSTransport"}),
        ("redis://nowhere:1;fairrediss://{}", {}),
    ],
)
def test_where_tls_is_asked_for_nothing_is_said_without_it(
    connect: Connect, url: str, options: dict
) -> None:
    listener = Listener()
    host, _, after = url.partition("{}")
    target = f"{host}127.0.0.1:{listener.port}/0{after}"
    connection = connect(target, **options)
    if ";" in target:
        connection.switch(target.split(";")[1])

    handshake = 0x16
    assert listener.first_bytes(lambda: opened(connection))[0] == handshake


def make_certificate(folder: Path) -> tuple[Path, Path]:
    program = shutil.which("openssl")
    if program is None:
        missing("openssl is not installed (Debian: apt-get install openssl)")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return key, certificate


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A server that speaks nothing but TLS: its port and its certificate."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        missing("a Redis server with TLS is not installed (Debian: apt-get install redis-server)")
    key, certificate = make_certificate(tmp_path)
    reserved = ReservedPort()
    port = reserved.number
    command = [program, "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1"]
    command += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    command += ["--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]
    command += ["--save", "", "--dir", str(tmp_path)]
    reserved.release()
    server = LocalProcess("tls-redis", command).start()

    def answers() -> None:
        with redis.Redis(port=port, ssl=True, ssl_ca_certs=str(certificate)) as client:
            try:
                assert client.ping()
            except NotYet as error:
                raise AssertionError(str(error)) from None

    try:
        eventually(answers)
        yield port, certificate
    finally:
        server.stop()
        server.discard_log()


def test_a_server_with_tls(connect: Connect, tls_server: tuple[int, Path]) -> None:
    port, certificate = tls_server
    url = f"fairrediss://127.0.0.1:{port}/0"
    works(connect(f"{url}?ssl_cert_reqs=required&ssl_ca_certs={certificate}"))
    works(connect(url, ssl={"ssl_ca_certs": str(certificate)}))
    works(connect(f"{url}?ssl_cert_reqs=none"))
    with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        opened(connect(url))


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[tuple[RedisServer, list[int], list[LocalProcess]]]:
    """A master, and two Sentinels that watch it."""
    with RedisServer() as master:
        ports, processes = [], []
        for number in range(2):
            reserved = ReservedPort()
            folder = tmp_path / str(number)
            folder.mkdir()
            conf = folder / "sentinel.conf"
            conf.write_text(
                f"port {reserved.number}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor shop 127.0.0.1 {master.port} 1\n"
            )
            ports.append(reserved.number)
            reserved.release()
            processes.append(
                LocalProcess("sentinel", [find_binary(), str(conf), "--sentinel"]).start()
            )

        def answer() -> None:
            for port in ports:
                with redis.Redis(port=port) as client:
                    try:
                        assert client.ping()
                    except NotYet as error:
                        raise AssertionError(str(error)) from None

        try:
            eventually(answer)
            yield master, ports, processes
        finally:
            for process in processes:
                process.stop()
                process.discard_log()


def test_a_sentinel_group_with_several_hosts(connect: Connect, sentinels) -> None:
    master, ports, processes = sentinels
    url = ";".join(f"fairsentinel://127.0.0.1:{port}/0" for port in ports)
    options = {"master_name": "shop"}
    first = connect(url, transport_options=options)
    works(first)
    processes[0].stop()
    works(connect(url, transport_options=options))
    switched = connect(url, transport_options=options)
    switched.switch(url.split(";")[1])
    works(switched)
    with master.client() as client:
        assert client.exists("{fairness}:clock")
    # Whichever host is asked, it is one Redis and one book.
    assert len(sessions()) == 1


def test_a_sentinel_group_needs_its_name(connect: Connect, sentinels) -> None:
    _, ports, _ = sentinels
    with pytest.raises(ValueError, match="master_name"):
        opened(connect(f"fairsentinel://127.0.0.1:{ports[0]}/0"))


USES_ITS_NAME = """
import sys
from kombu import Connection
with Connection(sys.argv[1], transport="celery_fairness.transport:Transport") as connection:
    producer = connection.Producer(serializer="json")
    producer.publish("hello", exchange="", routing_key="jobs")
"""

#: The import of the package, once and twice; tests/unit/transport/test_schemes.py has other orders.
IMPORTS = {
    "package first": "import celery_fairness; {nothing}; import kombu, celery",
    "twice": (
        "import celery_fairness, importlib; importlib.reload(celery_fairness); import kombu.pools"
    ),
}
NOTHING = """
import sys, threading
loaded = [name for name in sys.modules if name.partition(".")[0] in ("kombu", "redis", "celery")]
assert not loaded, loaded
assert threading.active_count() == 1
"""
KNOWN = """
import sys, threading
from kombu import Connection
for name in ("fairredis", "fairrediss", "fairredis+socket", "fairsentinel"):
    assert Connection(name + "://").get_transport_cls().driver_type == "redis"
assert Connection("redis://").get_transport_cls().__module__ == "kombu.transport.redis"
assert threading.active_count() == 1
ours = [each for each in sys.meta_path if type(each).__module__.startswith("celery_fairness")]
assert len(ours) == 1, ours
"""


def run(code: str, *args: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_transport_may_be_named_in_the_settings(
    connect: Connect, redis_url: str, client: Redis
) -> None:
    run(USES_ITS_NAME, redis_url)
    assert Inbox(connect(), "jobs").await_count(1) == ["hello"]


@pytest.mark.parametrize("order", IMPORTS)
def test_the_schemes_are_known_from_the_import_on(order: str) -> None:
    run(IMPORTS[order].replace("; ", "\n").replace("{nothing}", NOTHING) + KNOWN)
