"""Fixtures of the whole suite: servers, real workers, and what must be true after every test.

Invariant: after a test no process, thread, lease or unacknowledged message of it is left, except
the leases and messages of a worker that the test itself killed.

Weakness: what a killed worker leaves in Redis is not looked at; the next test flushes it.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psutil
import pytest
from celery import _state

# pytest-celery shadows this fixture with one that needs containers.
from celery.contrib.pytest import celery_worker as celery_thread_worker
from hypothesis import HealthCheck, settings

from tests.support.fork_server import ForkServer, read_version_once
from tests.support.local_process import SCRUBBED_PREFIXES
from tests.support.nodes import WorkerNode
from tests.support.postgres import PostgresServer
from tests.support.process_tree import descendants
from tests.support.rabbit import RabbitServer
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer, ServerFailed
from tests.support.servers import NotInstalled
from tests.support.services import ServiceCount, missing
from tests.support.waiting import at_most, eventually

#: Seconds a worker has for its warm shutdown after a test; a task that still runs is killed then.
SHUTDOWN_SECONDS = 5.0
#: Seconds in which workers whose tasks have all ended are expected to hold nothing any more.
SETTLE_SECONDS = 0.5
#: A test that still runs after this hangs.
TEST_SECONDS = 200.0
LOG_LINES_SHOWN = 200

_long_lived = pytest.StashKey[list[Callable[[], list[int]]]]()
_workers = pytest.StashKey[list[WorkerNode]]()


@pytest.fixture(autouse=True)
def own_tasks() -> Iterator[None]:
    """Keep the tasks of one test's app out of the apps that later tests make.

    ``app.task`` shares a task with every app that is finalised from then on.
    """
    kept = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers.intersection_update(kept)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.timeout is None:
        config.option.timeout = at_most(TEST_SECONDS)
    # Settings of the person who runs the tests are not what is tested.
    for name in [name for name in os.environ if name.startswith(SCRUBBED_PREFIXES)]:
        del os.environ[name]
    # How long a random value takes says something of the machine only.
    slow = [HealthCheck.too_slow]
    settings.register_profile("tests", deadline=None, suppress_health_check=slow)
    settings.load_profile("tests")
    read_version_once()
    config.stash[_long_lived] = []
    config.pluginmanager.register(ServiceCount(config), "service-count")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.processes import OneByOne

    return OneByOne(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("TEST_CLUSTER"):
        items[:] = [each for each in items if each.get_closest_marker("one_redis") is None]
    if hasattr(config, "workerinput"):
        from tests.support.processes import spread

        spread(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.failed:
        for node in item.stash.get(_workers, []):
            tail = "\n".join(node.log_text().splitlines()[-LOG_LINES_SHOWN:])
            report.sections.append((f"log of {node.hostname()}", tail))
    return report


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a worker in this process does to the root logger."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in handlers if handler not in root.handlers]:
        root.addHandler(handler)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread or a child process behind."""
    threads_before = set(threading.enumerate())
    processes_before = set(descendants())
    yield

    def no_thread_left() -> None:
        # A native thread that has logged stands there too, without ever having begun.
        left = [
            thread
            for thread in threading.enumerate()
            if thread not in threads_before and not isinstance(thread, threading._DummyThread)
        ]
        assert not left, f"threads left behind: {left}"

    def no_process_left() -> None:
        started = {
            pid: process for pid, process in descendants().items() if pid not in processes_before
        }
        if not started:
            return
        for pids in request.config.stash[_long_lived]:
            for pid in pids():
                started.pop(pid, None)
        left = {pid: command for pid in started if (command := _command(started[pid]))}
        assert not left, f"processes left behind: {left}"

    eventually(no_thread_left, timeout_seconds=at_most(10.0))
    eventually(no_process_left, timeout_seconds=at_most(10.0))


def _command(process: psutil.Process) -> str:
    """Return the command of a process that a test must not leave behind, "" for any other."""
    try:
        command = " ".join(process.cmdline())
        # Python's own helper of multiprocessing lives as long as the interpreter.
        ours = process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in command
    except psutil.NoSuchProcess:
        return ""
    return (command or f"process {process.pid}") if ours else ""


def _family(pid: int) -> list[int]:
    return [pid, *descendants(pid)]


@pytest.fixture(scope="session")
def lives_on(pytestconfig: pytest.Config) -> Callable[[Callable[[], list[int]]], None]:
    """Register a function that lists the processes of a server that several tests share."""
    return pytestconfig.stash[_long_lived].append


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> Iterator[RedisServer]:
    """A Redis-compatible server; TEST_REDIS_BINARY (a path or a name on PATH) chooses another.

    With TEST_CLUSTER it is the node of a cluster that has the slot of the tests.
    """
    name = os.environ.get("TEST_REDIS_BINARY")
    binary = shutil.which(name) or name if name else None
    if os.environ.get("TEST_CLUSTER"):
        with RedisCluster(binary=binary) as cluster:
            pytestconfig.stash[_long_lived].append(
                lambda: [each.pid for each in cluster.nodes if each.alive]
            )
            yield cluster.primary()
        return
    try:
        server = RedisServer(binary).start()
    except ServerFailed as error:
        missing(str(error))
    pytestconfig.stash[_long_lived].append(lambda: _family(server.pid) if server.alive else [])
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _shared_cluster(pytestconfig: pytest.Config) -> Iterator[RedisCluster]:
    name = os.environ.get("TEST_REDIS_BINARY")
    binary = shutil.which(name) or name if name else None
    with RedisCluster(3, 1, binary, wired=True) as made:
        pytestconfig.stash[_long_lived].append(
            lambda: [each.pid for each in made.nodes if each.alive]
        )
        yield made


@pytest.fixture
def cluster(_shared_cluster: RedisCluster) -> RedisCluster:
    """An empty Redis Cluster of three primaries and their replicas; a test may move its slots."""
    for node in _shared_cluster.nodes:
        if node.do("ROLE")[0] == "master":
            node.do("FLUSHALL")
            node.do("FUNCTION", "FLUSH")
    return _shared_cluster


@pytest.fixture(scope="session")
def _more_servers(pytestconfig: pytest.Config) -> Iterator[list[RedisServer]]:
    name = os.environ.get("TEST_REDIS_BINARY")
    binary = shutil.which(name) or name if name else None
    with ExitStack() as stack:
        made = [stack.enter_context(RedisServer(binary)) for _ in range(2)]
        pytestconfig.stash[_long_lived].append(lambda: [each.pid for each in made if each.alive])
        yield made


@pytest.fixture
def several_servers(
    redis_server: RedisServer, redis_url: str, _more_servers: list[RedisServer]
) -> Iterator[list[RedisServer]]:
    """Three empty Redis servers; a test may kill or pause any of them."""
    for server in _more_servers:
        server.resume()
        if not server.alive:
            server.restart()
        with server.client() as client:
            client.flushall()
    yield [redis_server, *_more_servers]
    for server in _more_servers:
        server.resume()


@pytest.fixture
def stock_redis_url(request: pytest.FixtureRequest, redis_url: str) -> Iterator[str]:
    """URL of an empty Redis for stock Celery, which has no broker on a cluster."""
    if not redis_url.startswith("cluster"):
        yield redis_url
        return
    server = request.getfixturevalue("_server_beside_cluster")
    with server.client() as client:
        client.flushall()
    yield server.url


@pytest.fixture(scope="session")
def _server_beside_cluster(pytestconfig: pytest.Config) -> Iterator[RedisServer]:
    with RedisServer() as server:
        pytestconfig.stash[_long_lived].append(lambda: [server.pid] if server.alive else [])
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """URL of an empty Redis; a test may kill, pause or restart `redis_server` as it likes."""
    redis_server.resume()
    if not redis_server.alive:
        redis_server.restart()
    client = redis_server.client()
    client.flushall()
    client.config_resetstat()
    yield redis_server.url

    def nobody_waits() -> None:
        waiting = [each for each in client.client_list() if "b" in each["flags"]]
        assert not waiting, f"clients still wait on the server: {waiting}"

    try:
        redis_server.resume()
        if redis_server.alive:
            # A consumer that outlived its test would take the messages of the next one.
            eventually(nobody_waits, timeout_seconds=at_most(10.0))
    except AssertionError:
        # The next test is not to pay for this one.
        client.client_kill_filter(_type="normal", skipme=True)
        raise
    finally:
        client.close()


@pytest.fixture(scope="session")
def rabbit_server(pytestconfig: pytest.Config) -> Iterator[RabbitServer]:
    """A RabbitMQ broker without plugins."""
    try:
        server = RabbitServer()
    except NotInstalled as error:
        missing(str(error))
    server.start()
    pytestconfig.stash[_long_lived].append(server.pids)
    yield server
    server.stop()


@pytest.fixture
def rabbit_url(request: pytest.FixtureRequest, rabbit_server: RabbitServer) -> Iterator[str]:
    """URL of an empty virtual host of its own; it is deleted after the test."""
    # A test that chose its broker by a parameter carries no marker yet.
    request.node.add_marker("rabbitmq")
    rabbit_server.start()
    name = f"test_{uuid4().hex[:8]}"
    yield rabbit_server.add_vhost(name)
    rabbit_server.start()
    rabbit_server.delete_vhost(name)


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A PostgreSQL cluster: `.dsn`, `.host`, `.port`, `.user`, `.password`, `.database`."""
    try:
        server = PostgresServer()
    except NotInstalled as error:
        missing(str(error))
    server.start()
    pytestconfig.stash[_long_lived].append(
        lambda: [p for pid in server.pids() for p in _family(pid)]
    )
    yield server
    server.stop()


@pytest.fixture(scope="session")
def fork_server(pytestconfig: pytest.Config) -> Iterator[Callable[[str], ForkServer]]:
    """Return the process that forks workers of this pool; it has imported what they import."""
    servers: dict[bool, ForkServer] = {}

    def of_pool(pool: str) -> ForkServer:
        gevent = pool == "gevent"
        if gevent not in servers:
            servers[gevent] = ForkServer(gevent=gevent)
        return servers[gevent]

    pytestconfig.stash[_long_lived].append(lambda: [each.pid for each in servers.values()])
    yield of_pool
    for server in servers.values():
        server.stop()


@pytest.fixture
def start_worker(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    redis_url: str,
    fork_server: Callable[[str], ForkServer],
) -> Iterator[Callable[..., WorkerNode]]:
    """Start real workers; broker and result backend are `redis_url` unless `env` says otherwise."""
    nodes: list[WorkerNode] = request.node.stash.setdefault(_workers, [])

    def start(
        app: str = "tests.support.shop",
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        wait: bool = True,
        alone: bool = True,
    ) -> WorkerNode:
        urls = {"CELERY_BROKER_URL": redis_url, "CELERY_RESULT_BACKEND": redis_url}
        # It decides what an import finds.
        imports_anew = "PYTHONPATH" in (env or {})
        node = WorkerNode.launch(
            app,
            pool=pool,
            concurrency=concurrency,
            queues=queues,
            env={**urls, **(env or {})},
            args=args,
            alone=alone,
            fork_server=None if imports_anew else fork_server(pool),
        )
        nodes.append(node)
        return node.wait_ready() if wait else node

    yield start

    redis_server.resume()
    try:
        _end_workers(nodes, redis_server)
        for node in nodes:
            node.process.assert_gone()
            # Such a thread has died, for example the one that renews leases.
            assert "Exception ignored in thread" not in node.log_text()
    finally:
        for node in nodes:
            node.process.discard_log()


def _end_workers(nodes: Sequence[WorkerNode], redis_server: RedisServer) -> None:
    """End all workers and check that those that were not killed by the test held nothing."""
    untouched = all(node.alive or node.exit_code == 0 for node in nodes) and redis_server.alive
    if untouched and _settles_by_itself(redis_server):
        # Idle workers hold nothing, and their orderly end takes seconds: kill them.
        for node in nodes:
            node.process.kill()
        return
    for node in nodes:
        node.process.ask_to_end()
    orderly = [node.process.ended_in_order(SHUTDOWN_SECONDS) for node in nodes]
    if untouched and all(orderly):
        _assert_nothing_held(redis_server)


def _settles_by_itself(server: RedisServer) -> bool:
    try:
        eventually(lambda: _assert_nothing_held(server), timeout_seconds=SETTLE_SECONDS)
    except AssertionError:
        return False
    return True


def _assert_nothing_held(server: RedisServer) -> None:
    """No slot is taken and no message is out."""
    with server.client(decode_responses=True) as client:
        leases = {key: client.zcard(key) for key in client.scan_iter("*:leases:*")}
        held = {key: count for key, count in leases.items() if count}
        assert not held, f"leases left behind: {held}"
        # Behind a prefix of the broker in a cluster.
        unacknowledged = sum(map(client.hlen, client.scan_iter("*unacked")))
        assert not unacknowledged, f"{unacknowledged} unacknowledged messages left behind"
