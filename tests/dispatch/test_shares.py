"""``celery fairness worker`` with real processes: the places of a service's queues."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery.result import AsyncResult
from redis import Redis

from tests.dispatch.conftest import assert_nothing_left
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.local_process import LocalProcess
from tests.support.waiting import at_most, eventually

QUEUES = PRIORITY, DEFAULT, SCHEDULED = (
    "analysis_priority",
    "analysis_default",
    "analysis_scheduled",
)
BORROW = {"services": {"analysis": {"shares": "borrow"}}}
START_SECONDS = at_most(30.0)


class Service:
    """A shop's service, its command, and what runs of each queue."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.queues: dict[str, str] = {}
        self.command: Any = None

    def start(self, *options: str, pool: str = "prefork", workers: int = 1) -> LocalProcess:
        """Start the command and wait until its workers take tasks."""
        words = ["-A", "tests.support.shop", "fairness", "worker", "analysis", "-l", "INFO"]
        argv = [sys.executable, "-m", "celery", *words, "-P", pool, *options]
        argv += ["--without-mingle", "--without-gossip"]
        server = self.shop.fork_server(pool)
        self.command = LocalProcess("service", argv, env=self.shop.env, fork_server=server).start()

        def ready() -> None:
            log = self.command.log_text()
            assert self.command.alive, log
            assert log.count(" ready.") == workers, log

        eventually(ready, START_SECONDS)
        return self.command

    def send(self, queue: str, gate: Path, number: int = 1) -> list[AsyncResult[Any]]:
        """Send tasks that wait for a file."""
        sent = [
            self.shop.send("work", gate=str(gate), options={"queue": queue}) for _ in range(number)
        ]
        self.queues |= {each.id: queue for each in sent}
        return sent

    def running(self) -> dict[str, int]:
        """Return how many tasks of each queue run."""
        count = Counter(self.queues[each["id"]] for each in self.shop.ledger("start"))
        count.subtract(self.queues[each["id"]] for each in self.shop.ledger("end"))
        return {queue: number for queue, number in count.items() if number}

    def await_running(self, **numbers: int) -> None:
        """Wait until so many of each class of queues run."""
        wanted = {f"analysis_{name}": number for name, number in numbers.items()}

        def run() -> None:
            assert self.running() == wanted

        eventually(run)


@pytest.fixture
def make_service(make_shop: Callable[..., Shop]) -> Iterator[Callable[..., Service]]:
    """A factory: ``make_service(broker, fairness=…)``."""
    made: list[Service] = []

    def make(broker: str = "fairredis", **options: Any) -> Service:
        made.append(Service(make_shop(broker, **options)))
        return made[-1]

    yield make
    for each in made:
        if each.command is not None:
            # In order: a killed worker tells nobody of the tasks that have just ended.
            each.command.stop()
            each.command.discard_log()


def get(results: list[AsyncResult[Any]]) -> None:
    for each in results:
        assert each.get(timeout=RESULT_SECONDS) == "done"


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_s34_strict_places_of_a_queue_stay_idle_without_its_tasks(
    make_service: Callable[..., Service], memory: Redis, pool: str
) -> None:
    service = make_service()
    command = service.start("-c", "6", pool=pool)
    gate = service.shop.gate_file()
    sent = service.send(DEFAULT, gate, 5)
    service.await_running(default=2)
    # Whoever could take a third would have had it by the time that this one runs.
    sent += service.send(PRIORITY, gate)
    service.await_running(default=2, priority=1)
    sent += service.send(PRIORITY, gate, 4) + service.send(SCHEDULED, gate, 4)
    service.await_running(default=2, priority=3, scheduled=1)
    gate.touch()
    get(sent)
    assert_nothing_left(memory)
    assert command.stop("SIGTERM") == 0, command.log_text()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_s34_idle_places_are_lent_and_given_back_within_one_task(
    make_service: Callable[..., Service], memory: Redis, pool: str
) -> None:
    service = make_service(fairness=BORROW)
    service.start("-c", "6", pool=pool)
    # A worker is ready some moments before its first announcement.
    eventually(lambda: len(service.shop.fairness.stats.status().workers) == 1, RESULT_SECONDS)
    (worker,) = service.shop.fairness.stats.status().workers
    assert worker.shares == {PRIORITY: 3, DEFAULT: 2, SCHEDULED: 1}
    assert (worker.places, worker.lends) == (6, True)
    first, rest = service.shop.gate_file(), service.shop.gate_file()
    sent = service.send(DEFAULT, first, 3) + service.send(DEFAULT, rest, 5)
    service.await_running(default=6)
    sent += service.send(PRIORITY, rest, 4)
    # Three places come free: all are those of the queue that has room, nobody else's.
    first.touch()
    get(sent[:3])
    service.await_running(default=3, priority=3)
    rest.touch()
    get(sent)
    assert_nothing_left(memory)


def test_numbers_of_variables_hold_for_each_worker(
    make_service: Callable[..., Service], memory: Redis
) -> None:
    variables = {
        f"AN_QUEUE_{n}_WORKERS": str(v)
        for n, v in (("PRIORITY", 1), ("DEFAULT", 2), ("SCHEDULED", 0))
    }
    service = make_service(
        fairness={"services": {"analysis": {"env_prefix": "AN"}}}, variables=variables
    )
    service.start(pool="threads")
    gate = service.shop.gate_file()
    sent = service.send(SCHEDULED, gate, 1)
    sent += service.send(PRIORITY, gate, 3) + service.send(DEFAULT, gate, 3)
    service.await_running(priority=1, default=2)
    gate.touch()
    get(sent[1:])
    assert service.shop.runs().get(sent[0].id) is None


@pytest.mark.parametrize(
    "broker", ["redis", pytest.param("rabbitmq_quorum", marks=pytest.mark.rabbitmq)]
)
def test_other_brokers_have_a_pool_for_each_queue_under_one_command(
    make_service: Callable[..., Service], broker: str
) -> None:
    service = make_service(broker)
    command = service.start("-c", "4", pool="threads", workers=3)
    gate = service.shop.gate_file()
    sent = [each for queue in QUEUES for each in service.send(queue, gate, 3)]
    service.await_running(priority=2, default=1, scheduled=1)
    for queue in QUEUES:
        assert f"{queue}: [" in command.log_text()
    gate.touch()
    get(sent)
    # As Ctrl-C of a terminal: a warm shutdown of each, no second one, and Celery's exit code.
    command.kill("SIGINT")
    eventually(lambda: command.exit_code is not None, START_SECONDS)
    assert command.exit_code == 1, command.log_text()
    assert command.log_text().count("Warm shutdown") == 3
    assert not command.survivors()


def test_a_pool_that_is_killed_ends_the_others_after_their_tasks(
    make_service: Callable[..., Service],
) -> None:
    service = make_service("redis")
    command = service.start("-c", "3", pool="threads", workers=3)
    gate = service.shop.gate_file()
    (last,) = service.send(DEFAULT, gate)
    service.await_running(default=1)
    (killed,) = [
        each
        for each in command.children()
        if PRIORITY in each.cmdline() and each.ppid() == command.pid
    ]
    killed.send_signal(signal.SIGKILL)
    eventually(lambda: "the other workers are stopped too" in command.log_text())
    gate.touch()
    get([last])
    eventually(lambda: command.exit_code is not None, START_SECONDS)
    assert command.exit_code == 137
    assert not command.survivors()


def test_pools_end_with_a_command_that_is_killed(make_service: Callable[..., Service]) -> None:
    service = make_service("redis")
    command = service.start("-c", "3", pool="threads", workers=3)
    psutil.Process(command.pid).kill()
    eventually(lambda: not command.survivors(), START_SECONDS)
