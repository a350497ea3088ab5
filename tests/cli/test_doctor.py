"""``doctor``: what each check finds on a server that is set up so, and what it does not find."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema_rs
import pytest
from celery import Celery, Task
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from redis import Redis

from celery_fairness import Fairness, FairTask, RateLimitPolicy
from celery_fairness.cli.commands import fairness as group
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import INVALID
from celery_fairness.config.tiers import Tier
from celery_fairness.control.health import stats_api
from celery_fairness.control.health.doctor import diagnosis, facts, fleet
from celery_fairness.control.health.doctor.diagnosis import CHECKS, at_start
from celery_fairness.control.health.doctor.facts import ServerFacts, backend_name, server_facts
from celery_fairness.control.health.doctor.symptoms import Diagnosis, Symptom
from celery_fairness.control.health.verdict import NOTHING_AT_A_GATE
from celery_fairness.control.installation.control_bus import ControlBus
from celery_fairness.control.installation.views import (
    UnannouncedWorker,
    WorkerReplies,
    WorkerStatus,
)
from celery_fairness.limiter.types import Lease, SlotRequest
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Verdict
from celery_fairness.store.connection import Connection
from celery_fairness.store.library import check_library, library, loaded
from tests.cli.conftest import RULES, Installation
from tests.support.parts import parts_of
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.redis

DAY_MS = 86_400_000
#: The announcement of a worker outlives its test.
ANNOUNCED_MS = 3_600_000
QUEUES = ("celery",)


class Scene:
    """One installation, which a test breaks in one way."""

    def __init__(self, server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.client = client
        self.monkeypatch = monkeypatch
        self.installation = Installation(client)
        self.url = f"fair{server.url}"
        self.conf: dict[str, Any] = {"result_backend": "cache+memory://"}
        self.fairness: dict[str, Any] = {"tier_resolver": lambda _tenant: None}
        self.environ: dict[str, str] = {}
        self.task: dict[str, Any] = {"tenant": "user"}
        self.workers: list[dict[str, Any]] = [{}]
        self._config: dict[str, str] = {}
        self._made: list[Fairness] = []
        # What is measured on the host that runs the tests is no fault of the installation.
        self.see(ahead_seconds=0.0, ping_seconds=0.001)
        self.at_end: Callable[[], None] = lambda: None
        self.answers()

    def on_gate(self) -> None:
        """Take the gate's path: the broker is stock Redis."""
        self.url = self.server.url

    def config(self, name: str, value: str) -> None:
        """Set a setting of the server until the end of the test."""
        self._config.setdefault(name, self.client.config_get(name)[name])
        self.client.config_set(name, value)

    def see(self, **facts: float) -> None:
        """Let a look at the server have other facts than it has."""
        look = diagnosis.server_facts

        def changed(limiter: Any, **how: bool) -> ServerFacts:
            return replace(look(limiter, **how), **facts)

        self.monkeypatch.setattr(diagnosis, "server_facts", changed)

    def info(self, **fields: str) -> None:
        """Let the server's INFO have other fields than it has."""
        look = diagnosis.server_facts

        def changed(limiter: Any, **how: bool) -> ServerFacts:
            facts = look(limiter, **how)
            return replace(facts, info={**(facts.info or {}), **fields})

        self.monkeypatch.setattr(diagnosis, "server_facts", changed)

    def answers(self, *others: UnannouncedWorker, problem: str = "", answered: int = 1) -> None:
        """Let workers answer Celery, of which ``others`` are not announced."""
        amount = 0 if problem else answered + len(others)
        replies = WorkerReplies(
            at=datetime.now(UTC), answered=amount, unannounced=others, problem=problem
        )
        self.monkeypatch.setattr(ControlBus, "compare", lambda *_: replies)

    def as_user(self, *rights: str) -> None:
        """Use a user of Redis who has all rights but those that ``rights`` take."""
        everything = ["reset", "on", ">secret", "~*", "&*", "+@all"]
        self.client.execute_command("ACL", "SETUSER", "watcher", *everything, *rights)
        self.url = self.url.replace("redis://", "redis://watcher:secret@")

    def task_took(self, seconds: float, name: str = "shop.long") -> None:
        """Let the last tasks of a name have taken a time."""
        self.installation.client.hset(
            self.installation.key("clock"), "run_times", f"{name}~{seconds * 1000:.0f}"
        )

    def announce(self) -> None:
        """Announce the workers, as each does by itself."""
        for number, changes in enumerate(self.workers):
            app = self.app
            status = WorkerStatus(
                name=f"celery@web-{number}",
                pid=number + 1,
                path="dispatch" if self.url.startswith("fair") else "gate",
                enforcement="on",
                queues=QUEUES,
                places=1,
                app="shop",
                backend=backend_name(app),
                lease_seconds=15.0,
            ).model_copy(update=changes)
            args = calls.announce_args(RULES, status.model_dump_json(), ANNOUNCED_MS, None)
            self.installation.run(calls.ANNOUNCE, args)

    @property
    def app(self) -> Celery:
        """The app; it is made at the first use."""
        if not self._made:
            app = Celery("shop", broker=self.url, set_as_current=False)
            app.conf.update(self.conf)
            app.conf.fairness = self.fairness
            self._made.append(Fairness(app, self.environ))
            options = {"name": "shop.work", "base": FairTask, "shared": False, **self.task}

            @app.task(**options)
            def work(user: str) -> None:
                """Do nothing."""

        app = parts_of(self._made[0]).app
        app.finalize()
        return app

    def diagnose(self) -> Diagnosis:
        """Announce the workers and return the diagnosis."""
        self.announce()
        return Fairness.of(self.app).stats.doctor()

    def run(self, *args: str) -> Result:
        """Run the command ``doctor``."""
        context = CLIContext(app=self.app, no_color=True, workdir=None)
        return CliRunner().invoke(group, ["doctor", *args], obj=context)

    def close(self) -> None:
        """Undo what was set."""
        self.at_end()
        for name, value in self._config.items():
            self.client.config_set(name, value)
        self.client.execute_command("ACL", "DELUSER", "watcher")
        for each in self._made:
            each.close()
            parts_of(each).app.close()


@pytest.fixture
def scene(
    redis_server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """An installation in which no check finds anything, until a test breaks it."""
    made = Scene(redis_server, client, monkeypatch)
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def with_a_file(redis_server: RedisServer) -> Iterator[None]:
    """The server has an append-only file, as it should."""
    redis_server.resume()
    if not redis_server.alive:
        redis_server.restart()
    with redis_server.client() as client:
        client.config_set("appendonly", "yes")
        yield
        if redis_server.alive:
            client.config_set("appendonly", "no")


BREAKS: dict[tuple[str, str, str], Callable[[Scene], Any]] = {}


def breaks(check: str, level: str, what: str) -> Callable[[Any], Any]:
    """Add a scene: a check finds something of a level, and its text has ``what``."""

    def add(scene: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
        BREAKS[check, level, what] = scene
        return scene

    return add


@breaks("rights", "advice", "may not run INFO")
def _(scene: Scene) -> None:
    scene.as_user("-info")


@breaks("version", "problem", "the server is Valkey 7.1.9")
def _(scene: Scene) -> None:
    scene.info(valkey_version="7.1.9")


@breaks("moves", "advice", "the cluster is of Valkey 8.1.5, which moves a hash slot key by key")
def _(scene: Scene) -> None:
    scene.info(cluster_enabled="1", valkey_version="8.1.5")


@breaks("role", "problem", "the server is a replica")
def _(scene: Scene) -> None:
    scene.info(role="slave")


@breaks("eviction", "advice", "maxmemory-policy is allkeys-lru, and maxmemory is not set")
def _(scene: Scene) -> None:
    scene.config("maxmemory-policy", "allkeys-lru")


@breaks("eviction", "problem", "maxmemory-policy is volatile-ttl")
def _(scene: Scene) -> None:
    scene.config("maxmemory-policy", "volatile-ttl")
    scene.config("maxmemory", "1gb")


def _fill_to(scene: Scene, part: float) -> None:
    # A full memory takes no library.
    scene.diagnose()
    used = int(scene.client.info("memory")["used_memory"])
    scene.config("maxmemory", str(int(used / part)))


@breaks("memory", "advice", "of its maxmemory")
def _(scene: Scene) -> None:
    _fill_to(scene, 0.82)


@breaks("memory", "problem", "of its maxmemory")
def _(scene: Scene) -> None:
    _fill_to(scene, 0.97)


@breaks("persistence", "problem", "writes nothing to a disk and has no replica")
def _(scene: Scene) -> None:
    scene.config("appendonly", "no")
    scene.config("save", "")


@breaks("persistence", "advice", "writes nothing to a disk and has no replica")
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.config("appendonly", "no")
    scene.config("save", "")


@breaks("persistence", "advice", "appendonly is no")
def _(scene: Scene) -> None:
    scene.config("appendonly", "no")
    scene.config("save", "3600 1")


@breaks("persistence", "problem", "could not write the snapshot")
def _(scene: Scene) -> None:
    scene.info(rdb_last_bgsave_status="err")


@breaks("replicas", "advice", "min-replicas-to-write is 0 behind Sentinel")
def _(scene: Scene) -> None:
    address = parts_of(Fairness.of(scene.app)).limiter.connection
    address.client()  # It stays a client of the server itself.
    address.address = replace(address.address, master_name="mymaster")


@breaks("replicas", "advice", "min-replicas-to-write is 0 in a cluster")
def _(scene: Scene) -> None:
    address = parts_of(Fairness.of(scene.app)).limiter.connection
    address.client()  # It stays a client of the server itself.
    address.address = replace(address.address, is_cluster=True)


@breaks("clock", "advice", "the server's clock is 3 s ahead of the clock of this host")
def _(scene: Scene) -> None:
    scene.see(ahead_seconds=3.0)


@breaks("clock", "problem", "the server's clock is 60 s behind the clock of this host")
def _(scene: Scene) -> None:
    scene.see(ahead_seconds=-60.0)


@breaks("latency", "advice", "a message to Redis and back takes 20 ms")
def _(scene: Scene) -> None:
    scene.see(ping_seconds=0.02)


@breaks("latency", "problem", "a message to Redis and back takes 200 ms")
def _(scene: Scene) -> None:
    scene.see(ping_seconds=0.2)


@breaks("variables", "problem", "variable FAIRNESS_FREE_LIMITS is not known")
def _(scene: Scene) -> None:
    scene.environ["FAIRNESS_FREE_LIMITS"] = "3"


@breaks("ignored", "advice", "redis_lost is set and has no effect on fairredis")
def _(scene: Scene) -> None:
    scene.fairness["redis_lost"] = "open"


@breaks("ignored", "advice", "fairness_by is set and has no effect at a gate")
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.fairness["fairness_by"] = "cost"


@breaks("ignored", "problem", "is set to another Redis than the broker's")
def _(scene: Scene) -> None:
    scene.fairness["redis_url"] = "redis://127.0.0.1:1/0"


@breaks("ignored", "advice", "tier_on_limit is 'reschedule'")
def _(scene: Scene) -> None:
    scene.fairness["tier_on_limit"] = "reschedule"


@breaks("ignored", "advice", "visibility_timeout of broker_transport_options is set")
def _(scene: Scene) -> None:
    scene.conf["broker_transport_options"] = {"visibility_timeout": 60}


@breaks(
    "visibility", "problem", "is 40 s, and the broker delivers a waiting message again after 30"
)
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.conf["broker_transport_options"] = {"visibility_timeout": 30}


@breaks("eta_limit", "problem", "worker_eta_task_limit is 20")
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.conf["worker_eta_task_limit"] = 20


@breaks("prefetch", "advice", "worker_prefetch_multiplier is 4")
def _(scene: Scene) -> None:
    scene.conf["worker_prefetch_multiplier"] = 4


@breaks("prefetch", "problem", "worker_prefetch_multiplier is 0")
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.conf["worker_prefetch_multiplier"] = 0


@breaks("prefetch", "advice", "task shop.long takes 60 s, and a worker prefetches 4 messages")
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.task_took(60.0)


@breaks("lease", "advice", "lease_seconds is 1")
def _(scene: Scene) -> None:
    scene.fairness["lease_seconds"] = 1.0


@breaks("lease", "advice", "lease_seconds is 600, and tasks take 2.0 s at most")
def _(scene: Scene) -> None:
    scene.fairness["lease_seconds"] = 600.0
    scene.task_took(2.0)


@breaks(
    "priorities", "advice", "priority_order is not set, and there are priorities: task shop.work"
)
def _(scene: Scene) -> None:
    scene.task["priority"] = 9


@breaks("base", "problem", "task shop.work has tenant= without base=FairTask")
def _(scene: Scene) -> None:
    scene.task["base"] = Task


@breaks("strategies", "problem", "task shop.work with a Strategy that is not Celery's")
def _(scene: Scene) -> None:
    scene.on_gate()

    class Buffered(FairTask):
        abstract = True

        def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # as celery-batches has it
            return lambda *_: None

    scene.task["base"] = Buffered


@breaks(
    "base",
    "problem",
    "2 tasks have tenant= and limits= without base=FairTask: shop.pay, shop.work",
)
def _(scene: Scene) -> None:
    scene.task["base"] = Task

    class Pay(Task):
        name = "shop.pay"
        limits = (RateLimitPolicy("api", concurrency=1),)

    scene.app.register_task(Pay())


NOBODY_CHOSE = "nobody chose the tier free, and there is no tier_resolver and no published tier"


@breaks("tiers", "advice", NOBODY_CHOSE)
def _(scene: Scene) -> None:
    del scene.fairness["tier_resolver"]


@breaks("tiers", "advice", f"{NOBODY_CHOSE[:40]}")
def _(scene: Scene) -> None:
    # No tenant has the tier that was chosen.
    del scene.fairness["tier_resolver"]
    scene.fairness["tiers"] = {"pro": {"concurrency": 9}}


@breaks("tier_rates", "advice", "tier free has a rate of 100/PT1H, and tier_on_limit is")
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.fairness["tiers"] = {
        "free": {"concurrency": 1, "rate": "100/h"},
        "pro": {"concurrency": 1, "rate": "100/m"},
    }


@breaks("tier_rates", "advice", "tier free has a throttle of 1/PT1H, and tier_on_limit is")
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.fairness["tiers"] = {
        "free": {"concurrency": 1, "throttle": "1/h"},
        "pro": {"concurrency": 1, "throttle": "100/h"},
    }


@breaks("library", "problem", "the user may not load functions")
def _(scene: Scene) -> None:
    scene.as_user("-function", "+function|list")
    scene.announce()
    scene.client.function_delete(library().name)
    scene.monkeypatch.setattr(scene, "announce", lambda: None)


@breaks("library", "problem", "'fcall'")
def _(scene: Scene) -> None:
    scene.as_user("-fcall")
    scene.monkeypatch.setattr(scene, "announce", lambda: None)


@breaks("resolver", "problem", "the tier resolver failed for 1 tenant in the last 15 minutes: 42; ")
def _(scene: Scene) -> None:
    row = f"tenant:42~{time.time() * 1000:.0f}~7~OSError"
    scene.client.hset(scene.installation.key("clock"), "unresolved", row)


def _raises(tenant: str) -> None:
    raise OSError(tenant)


@breaks(
    "resolver", "problem", "the tier resolver fails here for 1 of 1 tenants, for 42 with OSErro"
)
def _(scene: Scene) -> None:
    scene.fairness["tier_resolver"] = _raises
    scene.installation.put("42", "t1")


@breaks("resolver", "problem", "the tier resolver does not answer here within 0.1 s")
def _(scene: Scene) -> None:
    scene.monkeypatch.setattr(facts, "TRIAL_SECONDS", 0.1)
    scene.monkeypatch.setattr(fleet, "TRIAL_SECONDS", 0.1)
    over = threading.Event()
    scene.fairness["tier_resolver"] = lambda _: over.wait()
    scene.at_end = over.set
    scene.installation.put("42", "t1")


@breaks("workers", "advice", "no worker runs")
def _(scene: Scene) -> None:
    scene.workers = []
    scene.answers(answered=0)


@breaks("workers", "advice", "no worker of this installation runs")
def _(scene: Scene) -> None:
    scene.workers = []


@breaks("enforcement", "problem", "1 of 2 workers does not enforce limits: celery@web-1")
def _(scene: Scene) -> None:
    scene.workers = [{}, {"enforcement": "observe"}]


@breaks("unannounced", "problem", "1 worker answers and is not announced: old (takes queue celery)")
def _(scene: Scene) -> None:
    scene.answers(UnannouncedWorker("old", QUEUES, shares=True))


@breaks("unannounced", "advice", "other worker on this broker takes no queue that is known here: m")
def _(scene: Scene) -> None:
    scene.answers(UnannouncedWorker("m", ("mail",), shares=False))


@breaks("unannounced", "advice", "celery-fairness cannot be seen: no worker answered Celery's")
def _(scene: Scene) -> None:
    scene.answers(answered=0)


@breaks("unannounced", "advice", "celery-fairness cannot be seen: it is down")
def _(scene: Scene) -> None:
    scene.answers(problem="it is down")


@breaks("missing", "problem", "partition 1 of 4 at redis://h:6379/0 does not answer")
def _(scene: Scene) -> None:
    # tests/cli/test_missing_partitions.py has such a server.
    look, missing = stats_api._status, ("partition 1 of 4 at redis://h:6379/0",)
    scene.monkeypatch.setattr(
        stats_api, "_status", lambda of: look(of).model_copy(update={"missing": missing})
    )


@breaks("enforcement", "advice", "all workers only observe")
def _(scene: Scene) -> None:
    scene.workers = [{"enforcement": "observe"}]


@breaks("enforcement", "advice", "all workers only observe, since 2")
def _(scene: Scene) -> None:
    scene.workers = [{"enforcement": "observe", "started_at": datetime.now(UTC)}]


@breaks("enforcement", "advice", "no worker enforces limits")
def _(scene: Scene) -> None:
    scene.workers = [{"enforcement": "off"}]


@breaks("leases", "problem", "workers have different lease_seconds: 15, 60")
def _(scene: Scene) -> None:
    scene.workers = [{}, {"lease_seconds": 60.0}]


@breaks("installations", "problem", "apps with 2 result backends share the namespace fairness")
def _(scene: Scene) -> None:
    scene.workers = [{}, {"backend": "another"}]


@breaks("installations", "advice", "2 apps share the namespace fairness: blog, shop")
def _(scene: Scene) -> None:
    scene.workers = [{}, {"app": "blog"}]


@breaks("queues", "problem", "no worker takes the queue: reports")
def _(scene: Scene) -> None:
    scene.installation.put("42", "t1", queue="reports")


@breaks("queues", "advice", "no worker takes the queue: celery")
def _(scene: Scene) -> None:
    scene.workers = [{"queues": ("other",)}]


@breaks("paused", "advice", "the tenant 42 is paused or may run 0 tasks")
def _(scene: Scene) -> None:
    scene.installation.put("42", "t1")
    Fairness.of(scene.app).tenants.pause("42")
    scene.installation.claim(want=1)


@breaks("paused", "advice", "the limit api is paused or 0")
def _(scene: Scene) -> None:
    scene.installation.put("42", "t1", limits="api|C1|w")
    Fairness.of(scene.app).limits.pause("api")
    scene.installation.claim(want=1)


@breaks("tenants", "advice", "1 of 2 tasks of the last 15 minutes had no tenant")
def _(scene: Scene) -> None:
    for tenant, tag in (("42", "t1"), ("", "t2")):
        scene.installation.put(tenant, tag)
    assert len(scene.installation.claim(want=2)) == 2


@breaks("tenants", "problem", "3 tasks had no valid tenant, the last one at ")
def _(scene: Scene) -> None:
    for tag in ("t1", "t2", "t3"):
        scene.installation.put("_invalid", tag)


@breaks("tenants", "problem", "1 task had no valid tenant, the last one at ")
def _(scene: Scene) -> None:
    scene.on_gate()
    limiter = parts_of(Fairness.of(scene.app)).limiter
    limiter.acquire(SlotRequest(Lease("l1", "tenant:_invalid"), INVALID, "free"), Enforcement.ON)
    limiter.count("invalid")


@breaks("partitions", "advice", "1 task waits in queue celery without a value for repo")
def _(scene: Scene) -> None:
    part = {"concurrency": 1}
    scene.fairness["queues"] = {"celery": {"by_args": ["repo"], "partition": part}}
    scene.installation.put("42", "t1", limits="queue:celery:|C1|w")


@breaks("partition_numbers", "advice", "queue celery has by_args and no partition")
def _(scene: Scene) -> None:
    scene.fairness["queues"] = {"celery": {"global_limit": 1, "by_args": ["repo"]}}


@breaks("numbers_of_one_path", "advice", "burst is set for tier free")
def _(scene: Scene) -> None:
    scene.on_gate()
    scene.fairness["tiers"] = {"free": {"burst": 10}}


@breaks("unreached", "advice", "2 limits were never reached since")
def _(scene: Scene) -> None:
    scene.task["limits"] = [RateLimitPolicy("api", concurrency=5)]
    scene.fairness["queues"] = {"celery": {"global_limit": 9}}
    scene.announce()
    _age(scene, days=8)


def _age(scene: Scene, days: int) -> None:
    clock = scene.installation.key("clock")
    began = int(scene.client.hget(clock, "began"))
    scene.client.hset(clock, "began", began - days * DAY_MS)


@breaks("letters", "advice", "1 dead letter is in the queue celery: a worker could not read their")
def _(scene: Scene) -> None:
    scene.installation.put("42", "t1")
    scene.installation.settle(scene.installation.claim()[0], Verdict.UNREADABLE)


@breaks("letters", "advice", "1 dead letter is in the queue celery: Redis no longer has their mess")
def _(scene: Scene) -> None:
    # An eviction deletes a whole table.
    scene.installation.put("42", "t1")
    scene.client.delete(scene.installation.key("messages"))
    scene.installation.settle(scene.installation.claim()[0], Verdict.UNREADABLE)


@breaks("letters", "advice", "1 dead letter is in the queue celery: their processes died too often")
def _(scene: Scene) -> None:
    scene.installation.put("42", "t1")
    (task,) = scene.installation.claim()
    scene.installation.settle(task, Verdict.BEGUN)
    scene.installation.settle(task, Verdict.DIED)


@breaks("memory_lost", "advice", "Redis lost its memory on ")
def _(scene: Scene) -> None:
    scene.client.hset(scene.installation.key("counters"), "memory_lost", 1)


@breaks("old_libraries", "advice", "1 old function library is on the server: cf_0123456789ab")
def _(scene: Scene) -> None:
    code = "redis.register_function('cf_0123456789ab_no', function() return 1 end)"
    scene.client.function_load(f"#!lua name=cf_0123456789ab\n{code}", replace=True)


@pytest.fixture(autouse=True)
def no_old_libraries(client: Redis) -> Iterator[None]:
    """Tests before this one may leave a library, and this one must not."""

    def delete() -> None:
        for name in loaded(client.execute_command):
            if name not in (library().name, check_library().name):
                client.function_delete(name)

    delete()
    yield
    delete()


def of_check(symptoms: Any, check: str) -> list[Symptom]:
    return [each for each in symptoms if each.check == check]


@pytest.mark.parametrize("case", BREAKS, ids=lambda case: f"{case[0]}-{case[2]}")
def test_a_check_finds(scene: Scene, case: tuple[str, str, str]) -> None:
    check, level, what = case
    BREAKS[case](scene)
    found = of_check(scene.diagnose().symptoms, check)
    assert [each.level for each in found if what in each.what] == [level], found
    for each in found:
        assert all((each.what, each.consequence, each.fix))
        assert not any("\n" in text for text in (each.what, each.consequence, each.fix))


def test_every_check_has_a_scene_in_which_it_finds_something() -> None:
    assert {check for check, _, _ in BREAKS} == {each.name for each in CHECKS}


@pytest.mark.parametrize("path", ["dispatch", "gate"])
def test_no_check_finds_anything_in_a_sound_installation(scene: Scene, path: str) -> None:
    if path == "gate":
        scene.on_gate()
    found = scene.diagnose()
    assert found.symptoms == ()
    assert found.is_well
    done = scene.run()
    assert done.exit_code == 0
    first, _, verdict = done.stdout.splitlines()
    assert first == f"{len(CHECKS)} checks: nothing is wrong"
    idle = "nothing waits or runs" if path == "dispatch" else NOTHING_AT_A_GATE
    assert verdict == found.verdict.line == idle


def a_limit_that_was_reached(scene: Scene) -> None:
    scene.task["limits"] = [RateLimitPolicy("api", concurrency=1)]
    for tag in ("t1", "t2"):
        scene.installation.put(tag, tag, limits="api|C1|w")
    assert len(scene.installation.claim()) == 1
    _age(scene, days=8)


def a_limit_that_is_young(scene: Scene) -> None:
    scene.task["limits"] = [RateLimitPolicy("api", concurrency=1)]
    scene.announce()
    _age(scene, days=6)


def a_published_tenant(scene: Scene) -> None:
    del scene.fairness["tier_resolver"]
    Fairness.of(scene.app).tenants.set_tier("42", "pro")


def a_tier_table_in_the_database(scene: Scene) -> None:
    del scene.fairness["tier_resolver"]
    tenants = Fairness.of(scene.app).tenants
    tenants.publish_tiers([Tier("free", 1), Tier("pro", 9)], "database")


def turns_without_limits(scene: Scene) -> None:
    scene.fairness = {"tiers": "unlimited"}


def a_number_of_the_default_tier(scene: Scene) -> None:
    scene.fairness = {"tiers": {"free": {"concurrency": 1}}}


def a_variable_of_the_default_tier(scene: Scene) -> None:
    scene.fairness = {}
    scene.environ["FAIRNESS_FREE_LIMIT"] = "1"


def another_default_tier(scene: Scene) -> None:
    scene.fairness = {"default_tier": "pro"}


def tasks_without_tenants(scene: Scene) -> None:
    del scene.fairness["tier_resolver"]
    del scene.task["tenant"]


def options_that_another_class_knows(scene: Scene) -> None:
    class Audited(Task):
        abstract = True
        tenant = service = ""

    class Report(Task):
        name = "shop.report"

        def tenant(self) -> str:
            """Return what is a FairTask's option elsewhere."""
            return "42"

    scene.task.update(base=Audited, service="books")
    scene.app.register_task(Report())


def a_chosen_order(scene: Scene) -> None:
    scene.task["priority"] = 9
    scene.fairness["priority_order"] = "high_first"


def shared_tasks_without_tenants(scene: Scene) -> None:
    scene.fairness["no_tenant"] = "shared"
    scene.installation.put("", "t1")
    scene.installation.claim()


def invalid_tenants_of_the_past(scene: Scene) -> None:
    scene.installation.put("_invalid", "t1")
    clock, before = scene.installation.key("clock"), 16 * 60_000
    scene.client.hset(clock, "invalid_at", int(scene.client.hget(clock, "invalid_at")) - before)


def a_loss_of_long_ago(scene: Scene) -> None:
    scene.announce()
    scene.client.hset(scene.installation.key("counters"), "memory_lost", 1)
    _age(scene, days=8)


def a_library_in_use(scene: Scene) -> None:
    BREAKS[next(case for case in BREAKS if case[0] == "old_libraries")](scene)
    now = int(scene.client.time()[0]) * 1000
    scene.client.hset(scene.installation.key("clock"), "lib:cf_0123456789ab", now)


def a_disabled_prefetch(scene: Scene) -> None:
    scene.conf.update(worker_prefetch_multiplier=4, worker_disable_prefetch=True)


def a_disabled_prefetch_of_long_tasks(scene: Scene) -> None:
    scene.on_gate()
    scene.task_took(300.0)
    scene.conf.update(worker_disable_prefetch=True)


def a_long_lease_of_long_tasks(scene: Scene) -> None:
    scene.fairness["lease_seconds"] = 600.0
    scene.task_took(300.0)
    scene.workers = [{"lease_seconds": 600.0}]


def the_settings_of_the_server_cannot_be_read(scene: Scene) -> None:
    scene.as_user("-config")


def a_worker_of_an_older_version(scene: Scene) -> None:
    scene.workers = [{}, {"app": None, "backend": "", "lease_seconds": 0.0}]


@pytest.mark.parametrize(
    "sound",
    [
        a_limit_that_was_reached,
        a_limit_that_is_young,
        a_published_tenant,
        a_tier_table_in_the_database,
        turns_without_limits,
        a_number_of_the_default_tier,
        a_variable_of_the_default_tier,
        another_default_tier,
        tasks_without_tenants,
        options_that_another_class_knows,
        a_chosen_order,
        shared_tasks_without_tenants,
        invalid_tenants_of_the_past,
        a_loss_of_long_ago,
        a_library_in_use,
        a_disabled_prefetch,
        a_disabled_prefetch_of_long_tasks,
        a_long_lease_of_long_tasks,
        the_settings_of_the_server_cannot_be_read,
        a_worker_of_an_older_version,
    ],
)
def test_what_is_meant_or_cannot_be_known_is_no_symptom(
    scene: Scene, sound: Callable[[Scene], None]
) -> None:
    sound(scene)
    assert scene.diagnose().symptoms == ()


def test_the_name_of_a_queue_can_be_pasted_into_a_shell(scene: Scene) -> None:
    scene.installation.put("42", "t1", queue="mail;reboot")
    (symptom,) = scene.diagnose().symptoms
    assert shlex.split(symptom.fix)[-2:] == ["-Q", "mail;reboot"]


def test_a_pause_of_all_services_of_a_tenant_is_ended_by_its_name(scene: Scene) -> None:
    scene.fairness["tier_scope"] = "service"
    tenants = Fairness.of(scene.app).tenants
    for service in ("mail", "pdf"):
        scene.installation.put("42", service, service=service)
    tenants.pause("42")
    scene.installation.claim(want=2)
    (symptom,) = scene.diagnose().symptoms
    assert symptom.what == "the tenant 42 is paused or may run 0 tasks"
    assert symptom.consequence == "2 tasks wait until that ends"
    assert symptom.fix.startswith("look at celery -A APP fairness tenant show 42 --service ")
    assert symptom.fix.endswith("; tenant resume 42 ends a pause")


def test_a_problem_ends_the_command_with_1_and_the_verdict_is_its_last_line(scene: Scene) -> None:
    scene.installation.put("42", "t1", queue="reports")
    scene.announce()
    done = scene.run()
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "PROBLEM queues: no worker takes the queue: reports"
    assert lines[1] == "  1 task waits there until one does"
    assert lines[-1] == Fairness.of(scene.app).stats.status().verdict.line
    assert max(map(len, lines)) <= 80


def test_advice_alone_ends_the_command_with_0(scene: Scene) -> None:
    scene.fairness["redis_lost"] = "open"
    scene.announce()
    done = scene.run()
    assert done.exit_code == 0
    assert done.stdout.startswith("ADVICE ignored: redis_lost is set")


def test_the_way_to_the_server_and_its_clock_are_measured(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port, delay_seconds=0.03) as network:
        app = Celery(broker=f"fairredis://127.0.0.1:{network.port}/0", set_as_current=False)
        fairness = Fairness(app, {})
        facts = server_facts(parts_of(fairness).installation.limiter, with_config=False)
        fairness.close()
        app.close()
    assert facts.ping_seconds >= 0.06
    # The clocks are the same one, and the server looked at it on the message's way.
    assert abs(facts.ahead_seconds) <= facts.ping_seconds / 2 + 0.001


def test_problems_come_first(scene: Scene) -> None:
    scene.config("maxmemory-policy", "allkeys-lru")
    scene.installation.put("42", "t1", queue="reports")
    assert [each.level for each in scene.diagnose().symptoms] == ["problem", "advice"]


def test_the_json_has_the_same_facts_in_the_form_of_its_schema(scene: Scene) -> None:
    scene.config("maxmemory-policy", "allkeys-lru")
    found = scene.diagnose()
    done = scene.run("--json")
    shown = json.loads(done.stdout)
    schema = {**Diagnosis.model_json_schema(mode="serialization"), "additionalProperties": False}
    jsonschema_rs.validate(schema, shown)
    assert [each["check"] for each in shown["symptoms"]] == ["eviction"]
    assert Diagnosis.model_validate(shown).symptoms == found.symptoms


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_without_redis_the_command_ends_with_69(scene: Scene, args: tuple[str, ...]) -> None:
    scene.url = "fairredis://127.0.0.1:1/0"
    done = scene.run(*args)
    assert done.exit_code == 69
    assert "127.0.0.1:1" in done.stderr
    assert done.stdout == ""


def test_a_server_without_the_library_is_a_problem_and_not_an_outage(scene: Scene) -> None:
    BREAKS[next(case for case in BREAKS if case[0] == "library")](scene)
    done = scene.run()
    assert done.exit_code == 1
    assert "PROBLEM library: " in done.stdout
    assert "secret" not in done.stdout


def test_nothing_is_written_and_the_calls_do_not_grow_with_the_tasks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    call = Connection._call

    def counted(self: Connection, parts: Any) -> Any:
        sent.append(parts)
        return call(self, parts)

    monkeypatch.setattr(Connection, "_call", counted)

    def dump() -> dict[str, Any]:
        return {key: scene.client.dump(key) for key in sorted(scene.client.scan_iter("*"))}

    calls_of = []
    # Of a queue with more than three pages of tenants, a status reads the first three.
    for number in (200, 400):
        for each in range(number):
            scene.installation.put(f"tenant-{each}", f"t-{number}-{each}")
        scene.diagnose()
        before = dump()
        sent.clear()
        Fairness.of(scene.app).stats.doctor()
        calls_of.append(len(sent))
        assert dump() == before
    assert calls_of[0] == calls_of[1] > 10


def test_a_start_runs_the_checks_that_need_no_worker(scene: Scene) -> None:
    scene.config("maxmemory-policy", "allkeys-lru")
    scene.environ["FAIRNESS_FREE_LIMITS"] = "3"
    scene.workers = []
    found = at_start(parts_of(Fairness.of(scene.app)).installation)
    assert [each.check for each in found] == ["eviction", "variables"]


def test_a_start_without_redis_runs_the_checks_of_the_app(scene: Scene) -> None:
    scene.url = "fairredis://127.0.0.1:1/0"
    scene.environ["FAIRNESS_FREE_LIMITS"] = "3"
    scene.task.update(base=Task, service="mail")
    found = at_start(parts_of(Fairness.of(scene.app)).installation)
    assert [each.check for each in found] == ["variables", "base"]
    assert str(found[1]) == (
        "task shop.work has tenant= and service= without base=FairTask: Celery ignores these "
        "options: no tenant is charged and no tier chooses the queue; set base=FairTask"
    )


def test_after_a_day_of_observing_it_leads_to_the_table_and_before_it_waits(scene: Scene) -> None:
    now = datetime.now(UTC)
    scene.workers = [{"enforcement": "observe", "started_at": now - timedelta(hours=23)}]
    (found,) = scene.diagnose().symptoms
    assert found.consequence == (
        "no limit holds; no task of the last 24 hours would have been rejected"
    )
    ready = now + timedelta(hours=1)
    assert found.fix.startswith(f"after {ready:%Y-%m-%d %H:%M} UTC look at celery -A APP fairness ")
    scene.client.flushdb()
    for number in range(3):
        scene.installation.put("42", f"t{number}", tier="free")
    scene.installation.claim(rules=Rules(default_limit=1, enforcement="observe"))
    scene.workers = [{"enforcement": "observe", "started_at": now - timedelta(hours=25)}]
    (found,) = scene.diagnose().symptoms
    assert found.consequence == (
        "no limit holds; 2 tasks of the last 24 hours would have been rejected, 2 of them of "
        "tenant:42"
    )
    assert found.fix.startswith("look at celery -A APP fairness observed, choose the numbers")


def test_without_a_resolver_a_worker_that_observes_reports_what_would_hold(scene: Scene) -> None:
    del scene.fairness["tier_resolver"]
    scene.fairness["enabled"] = "observe"
    (found,) = (each for each in at_start(_installation(scene)) if each.check == "tiers")
    assert found.consequence == "with enabled=true every tenant would run at most 1 task at once"


@pytest.mark.parametrize(
    ("path", "without"),
    [("dispatch", "tenants only take turns"), ("gate", "no tenant has a limit")],
)
def test_defaults_that_nobody_chose_are_named_with_the_two_ways_out(
    scene: Scene, path: str, without: str
) -> None:
    scene.fairness = {}
    if path == "gate":
        scene.on_gate()
    (found,) = (each for each in at_start(_installation(scene)) if each.check == "tiers")
    assert str(found) == (
        f"{NOBODY_CHOSE}: every tenant runs at most 1 task at once; set tiers to 'unlimited', so "
        f"that {without}, or set tiers and tier_resolver for limits of your own"
    )


def _installation(scene: Scene) -> Any:
    return parts_of(Fairness.of(scene.app)).installation
