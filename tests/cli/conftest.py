"""An installation on the dispatch path, moved by its scripts, and the command line on it."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from redis import Redis
from redis.exceptions import ResponseError

from celery_fairness import Fairness
from celery_fairness.cli.commands import fairness as group
from celery_fairness.config.tenants import key_part
from celery_fairness.control.health.views import Check
from celery_fairness.control.installation import control_bus
from celery_fairness.control.installation.views import WorkerStatus
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Claimed, Rules, Settle, Verdict, Waiting
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.store.library import check_library
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport.permit_agent import PermitAgent
from tests.support.kombu_channel import close_soon
from tests.support.library import call
from tests.support.parts import parts_of
from tests.support.shop import make_app
from tests.support.tables import leases_of
from tests.transport.conftest import empty_sessions

RULES = Rules(default_limit=1, max_deliveries=1)


#: For tests that hold for one partition and for several.
PARTITIONS = pytest.mark.parametrize("partitions", [1, 4], indirect=True)


class Installation:
    """What a producer and a worker of one installation do, without either."""

    def __init__(self, client: Redis, prefix: str = "{fairness}:", partitions: int = 1) -> None:
        self.client = client
        self.prefix = prefix
        self.partitions = Partitions("fairness", count=partitions)
        self.number = 0
        if partitions > 1:
            self.run(calls.EPOCH, calls.epoch_args(RULES.lease_ms, partitions))

    def run(self, verb: str, args: list[str], partition: int | None = None) -> Any:
        """Call a function in the home, or in a partition. A lone partition is the home."""
        several = self.partitions.are_several and partition is not None
        prefix = self.partitions.prefix(partition) if several else self.prefix
        return call(self.client, verb, prefix, args)

    def of_tag(self, tag: str) -> int:
        return self.partitions.of_tag(tag)

    def announce(self, *queues: str) -> None:
        """Announce a worker that takes these queues."""
        status = WorkerStatus(
            name="celery@web",
            pid=1,
            path="dispatch",
            enforcement="on",
            places=1,
            queues=queues or ("celery",),
        )
        args = calls.announce_args(RULES, status.model_dump_json(), 600_000, None)
        self.run(calls.ANNOUNCE, args)

    def put(self, tenant: str, tag: str, queue: str = "celery", **fields: Any) -> None:
        self.submit(Waiting(queue, tag, tenant, **{"message": "{}", **fields}))

    def submit(self, waiting: Waiting) -> None:
        """Put a task into the partition of its tenant, with a tag of that partition."""
        place = self.partitions.of_tenant(waiting.tenant, waiting.task_id or waiting.tag)
        tagged = waiting._replace(tag=self.partitions.tag_of(place, waiting.tag))
        self.run(calls.PUT, calls.put_args(tagged), place)

    def claim(
        self, want: int = 10, owner: str = "worker-1", queue: str = "celery", rules: Rules = RULES
    ) -> list[Any]:
        self.number += 1
        tasks: list[Any] = []
        for place in self.partitions:
            args = calls.claim_args(owner, self.number, want - len(tasks), [queue], rules)
            tasks += calls.read_claim(self.run(calls.CLAIM, args, place)).tasks
        return tasks

    def borrow(self, key: str) -> None:
        """Carry permits and lots of a key to all partitions, as workers do."""
        agent = PermitAgent(self.run, lambda *_: None, self.partitions, RULES, LeaseTable())
        for place in self.partitions:
            agent._borrow(place, key, None)

    def settle(self, task: Claimed, verdict: Verdict = Verdict.DONE) -> None:
        args = calls.settle_args([Settle(task.lease, verdict)], RULES)
        self.run(calls.SETTLE, args, self.of_tag(task.lease))

    def find(self, task_id: str) -> list[tuple[str, str]]:
        """Return tag and state of each task of an id."""
        args = [key_part(task_id), ""]
        found = [self.run(calls.FIND, args, place)[1:] for place in self.partitions]
        return [(row[0], row[1]) for rows in found for row in rows]

    def fill(self) -> None:
        """Something everywhere: running, waiting, later, come back, full, in a ring, dead."""
        self.put("dead", "d1")
        (task,) = self.claim()
        self.settle(task, Verdict.BEGUN)
        self.settle(task, Verdict.DIED)
        self.put("back", "b1", kind="shop.work", task_id="id-b1")
        (returned,) = self.claim()
        for number in range(3):
            self.put("42", f"t{number}", rank=5, kind="shop.export")
        assert len(self.claim()) == 1
        self.claim()
        self.settle(returned, Verdict.HEAD)
        self.put("late", "l1", eta_ms=9_000_000_000_000)
        self.put("", "s1", queue="other")

    def run_all(self) -> None:
        """Claim and settle until every task that runs or waits in a lane has ended."""
        for place, names in enumerate(self.partitions.names):
            for lease in leases_of(self.client, names.prefix):
                args = calls.settle_args([Settle(lease, Verdict.DONE)], RULES)
                self.run(calls.SETTLE, args, place)
        for queue in ("celery", "other"):
            while tasks := self.claim(queue=queue):
                for task in tasks:
                    self.settle(task)

    def key(self, name: str) -> str:
        return self.prefix + name


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> str:
    """The user of this process, who pauses what is paused."""
    monkeypatch.setenv("LOGNAME", "ada")
    return "ada"


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker runs that could answer a status, so none needs the time to do so."""
    monkeypatch.setattr(control_bus, "REPLY_SECONDS", 0.05)
    close_soon(monkeypatch)


@pytest.fixture
def client(redis_server: Any, redis_url: str) -> Iterator[Redis]:
    with redis_server.client(decode_responses=True) as made:
        yield made


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    made = Connection(address_from_url(redis_url))
    yield made
    made.close()


@pytest.fixture
def partitions(request: pytest.FixtureRequest) -> int:
    """The number of partitions of the default installation; see :data:`PARTITIONS`."""
    return int(getattr(request, "param", 1))


@pytest.fixture
def installation(client: Redis, partitions: int) -> Installation:
    """The default namespace, with something everywhere."""
    made = Installation(client, partitions=partitions)
    made.fill()
    return made


@pytest.fixture
def shop(client: Redis, partitions: int) -> Installation:
    """The default namespace, with nothing in it."""
    return Installation(client, partitions=partitions)


@pytest.fixture
def make_fairness(redis_url: str, partitions: int) -> Iterator[Callable[..., Fairness]]:
    """A factory: ``make_fairness(url=…, conf=…, fairness=…)``; on ``fairredis`` by default."""
    made: list[Fairness] = []

    def make(url: str = "", conf: Any = None, fairness: Any = None) -> Fairness:
        if partitions > 1:
            fairness = {"partitions": partitions, **(fairness or {})}
        environ = {
            "CELERY_BROKER_URL": url or f"fair{redis_url}",
            "SHOP_CONF": json.dumps(conf or {}),
            "SHOP_FAIRNESS": json.dumps(fairness or {}),
        }
        made.append(Fairness.of(make_app(environ)))
        return made[-1]

    yield make
    for each in made:
        each.close()
        parts_of(each).app.close()


@pytest.fixture
def fairness(make_fairness: Callable[..., Fairness]) -> Fairness:
    return make_fairness()


@pytest.fixture
def check(fairness: Fairness) -> Callable[..., Check]:
    return fairness.check


@pytest.fixture
def without_check_library(client: Redis) -> None:
    """The server has no library that checks, as before the first check."""
    with contextlib.suppress(ResponseError):
        client.function_delete(check_library().name)


def named(check: Check) -> set[tuple[str, str, str]]:
    """Return which check found what."""
    return {(each.check, each.key, each.row) for each in check.findings}


@pytest.fixture
def coming_and_going(redis_server: Any) -> Callable[..., AbstractContextManager[None]]:
    """``with coming_and_going(put):`` has another worker claim and settle meanwhile.

    Before each of its claims it calls ``put(installation, turn)``; of the three that it claims
    one is done, so that as much waits at the end as at the beginning, however long the test takes.
    """

    @contextmanager
    def meanwhile(put: Callable[[Installation, int], None]) -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            with redis_server.client(decode_responses=True) as own:
                worker = Installation(own)
                for turn in itertools.count():
                    if stop.is_set():
                        return
                    put(worker, turn)
                    for place, task in enumerate(worker.claim(3, owner="worker-2")):
                        verdicts = (Verdict.DONE, Verdict.HEAD, Verdict.TAIL)
                        worker.settle(task, verdicts[(turn + place) % 3])

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    return meanwhile


@pytest.fixture
def run(fairness: Fairness) -> Callable[..., Result]:
    """``run("tenant", "show", "42")`` on the default app, or on that of ``of=``."""

    def invoke(
        *args: str,
        of: Any = None,
        app: Any = None,
        no_color: bool = False,
        terminal: bool = False,
        typed: str | None = None,
    ) -> Result:
        app = app or parts_of(of or fairness).app
        context = CLIContext(app=app, no_color=no_color, workdir=None)
        return CliRunner().invoke(group, list(args), obj=context, color=terminal, input=typed)

    return invoke
