"""An autoscaler starts and stops real workers by what the exporter answers, as KEDA does."""

from __future__ import annotations

import json
import math
import threading
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_fairness.exporter.collector import Exposition
from celery_fairness.exporter.server import MetricsServer
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.nodes import WorkerNode
from tests.support.waiting import at_most, eventually

QUEUE = "celery"
#: Places of one worker, which are the target of the scaler, and most workers.
PLACES, MOST = 2, 4


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    """A shop whose tenants run one task at a time."""
    return make_shop("fairredis", fairness={"tiers": {"free": {"concurrency": 1}}})


@pytest.fixture
def exporter(shop: Shop) -> Iterator[str]:
    """The address of an exporter of the shop."""
    server = MetricsServer(Exposition(shop.fairness), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.url
    server.shutdown()
    thread.join()
    server.server_close()


class Scaler:
    """Holds as many workers as the tasks of a queue need."""

    def __init__(self, shop: Shop, exporter: str) -> None:
        self._shop, self._exporter = shop, exporter
        self.workers: list[WorkerNode] = []

    def tasks(self) -> int:
        """Return the number of tasks once both examples of the page agree on it."""

        def agreed() -> None:
            assert self._by_json() == self._by_query()

        eventually(agreed)
        return self._by_json()

    def turn(self) -> int:
        """Start or stop workers, and return how many there are then."""
        wanted = min(MOST, math.ceil(self.tasks() / PLACES))
        while len(self.workers) < wanted:
            self.workers.append(self._shop.worker(concurrency=PLACES, pool="threads"))
        while len(self.workers) > wanted:
            assert self.workers.pop().terminate() == 0
        return wanted

    def await_workers(self, count: int) -> None:
        """Take turns until there are as many workers."""

        def are_there() -> None:
            assert self.turn() == count

        eventually(are_there, RESULT_SECONDS)

    def work_until(self, runs: int) -> None:
        """Take turns until so many tasks have run, and then until there are no workers.

        The exporter reads what could start and what runs one after the other. A task that ends
        between them may show none of both, as an autoscaler that has a cool-down also sees.
        """

        def have_run() -> None:
            self.turn()
            assert len(self._shop.runs()) == runs

        eventually(have_run, RESULT_SECONDS)
        self.await_workers(0)

    def _by_json(self) -> int:
        """The trigger `metrics-api`."""
        return int(json.loads(self._get(f"/autoscale?queue={QUEUE}"))["tasks"])

    def _by_query(self) -> int:
        """The query of the trigger `prometheus`."""
        startable, running = 0.0, 0.0
        for family in text_string_to_metric_families(self._get("/metrics")):
            for sample in family.samples:
                if sample.labels.get("queue") == QUEUE:
                    if sample.name == "fairness_tasks_startable":
                        startable = max(startable, sample.value)
                    elif sample.name == "fairness_tasks_running":
                        running += sample.value
        return int(startable + running)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._exporter + path, timeout=at_most(60)) as answer:
            return str(answer.read().decode())


def test_only_tasks_that_a_place_could_start_add_workers(shop: Shop, exporter: str) -> None:
    scaler = Scaler(shop, exporter)
    assert scaler.turn() == 0
    first, second = shop.gate_file(), shop.gate_file()
    shop.fairness.tenants.pause("paused")
    sent = [shop.send("work", user="paused") for _ in range(6)]
    # Six tasks wait, and no worker could start one of them.
    assert scaler.turn() == 0

    # One tenant has six tasks, and its tier lets one run.
    sent += [shop.send("work", user="42", gate=str(first)) for _ in range(6)]
    assert scaler.turn() == 1
    shop.await_held("42", 1)
    assert (scaler.tasks(), scaler.turn()) == (1, 1)

    # Five more tenants could start one each.
    sent += [shop.send("work", user=f"t{n}", gate=str(second)) for n in range(5)]
    assert scaler.turn() == 3
    for number in range(5):
        shop.await_held(f"t{number}", 1)
    assert (scaler.tasks(), scaler.turn()) == (6, 3)

    # They end one after the other, and the tenant with many tasks keeps one worker.
    second.touch()
    scaler.await_workers(1)
    assert scaler.tasks() == 1
    first.touch()
    scaler.work_until(len(sent) - 6)

    # Tasks that only a pause held back need a worker after it.
    shop.fairness.tenants.resume("paused")
    assert scaler.turn() == 1
    scaler.work_until(len(sent))
    assert shop.runs() == {task.id: 1 for task in sent}
