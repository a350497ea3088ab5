"""Celery's own tools do on this broker what they do on stock Redis."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import pools
from redis import Redis

from celery_fairness.transport import register
from tests.dispatch.conftest import assert_nothing_left, send, waiting_in
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.local_process import ROOT, clean_environment
from tests.support.nodes import WorkerNode
from tests.support.services import and_in_ci
from tests.support.waiting import at_most, eventually

KINDS = "tests.dispatch.kinds"


def celery(shop: Shop, *args: str) -> str:
    """Run a ``celery`` command and return what it printed."""
    done = shop.command(*args, app=KINDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_inspection_shows_what_runs_and_that_nothing_is_prefetched(
    fair_shop: Shop, pool: str
) -> None:
    worker = fair_shop.worker(app=KINDS, pool=pool, concurrency=2)
    gate = fair_shop.gate_file()
    results = [send(fair_shop, "kinds.late", None, gate=str(gate)) for _ in range(5)]
    eventually(lambda: len(fair_shop.ledger("start")) == 2)
    assert fair_shop.ask(worker, "ping") == {"ok": "pong"}
    assert {each["id"] for each in fair_shop.ask(worker, "active")} == {r.id for r in results[:2]}
    # They are at the broker, where others can have them.
    assert fair_shop.ask(worker, "reserved") == []
    assert fair_shop.ask(worker, "scheduled") == []
    stats = fair_shop.ask(worker, "stats")
    assert stats["pool"]["max-concurrency"] == 2
    assert stats["broker"]["transport_options"]["fairness"]["namespace"] == "fairness"
    assert fair_shop.ask(worker, "conf")
    assert fair_shop.ask(worker, "report")
    assert fair_shop.ask(worker, "query_task", results[0].id)
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 5


@pytest.mark.parametrize("pool", and_in_ci(["prefork"], "gevent"))
def test_workers_hear_of_each_other(fair_shop: Shop, pool: str) -> None:
    first = fair_shop.worker(app=KINDS, pool=pool, alone=False)

    def is_revoked(worker: WorkerNode) -> None:
        assert fair_shop.ask(worker, "revoked") == ["a-task"]

    fair_shop.revoke("a-task")
    is_revoked(first)
    # Mingle: what the others know is asked for at the start.
    args = ("--loglevel", "DEBUG")
    second = fair_shop.worker(app=KINDS, pool=pool, alone=False, args=args)
    second.wait_for_log("mingle: sync with 1 nodes")
    eventually(lambda: is_revoked(second))
    # Gossip: who says nothing any more is missed.
    second.wait_for_log(f"{first.hostname()} joined the party")
    first.kill()
    second.wait_for_log(f"missed heartbeat from {first.hostname()}", timeout=RESULT_SECONDS)
    assert "Traceback" not in second.log_text()


def test_queues_are_added_and_cancelled_at_run_time(fair_shop: Shop, memory: Redis) -> None:
    worker = fair_shop.worker(app=KINDS, concurrency=2, queues=["celery"])
    first = send(fair_shop, "kinds.late", "42", options={"queue": "more"})
    fair_shop.tell(worker, "add_consumer", "more")
    assert first.get(timeout=RESULT_SECONDS) == "done"
    fair_shop.tell(worker, "cancel_consumer", "more")
    second = send(fair_shop, "kinds.late", "42", options={"queue": "more"})
    assert send(fair_shop, "kinds.late", "42").get(timeout=RESULT_SECONDS) == "done"
    assert waiting_in(memory, "more") == [second.id]
    fair_shop.tell(worker, "add_consumer", "more")
    assert second.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_pool_that_grows_or_shrinks_claims_for_its_places(fair_shop: Shop, pool: str) -> None:
    worker = fair_shop.worker(app=KINDS, pool=pool, concurrency=1)
    gates = [fair_shop.gate_file() for _ in range(2)]
    results = [send(fair_shop, "kinds.late", None, gate=str(gates[0])) for _ in range(3)]
    eventually(lambda: len(fair_shop.ledger("start")) == 1)
    fair_shop.tell(worker, "pool_grow", 2)
    eventually(lambda: len(fair_shop.ledger("start")) == 3)
    gates[0].touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 3

    # A process is busy a moment longer than its result says. The command would stop the idle ones,
    # and a second one would stop the last.
    eventually(lambda: fair_shop.ask(worker, "active") == [])
    fair_shop.tell(worker, "pool_shrink", 2)
    more = [send(fair_shop, "kinds.late", None, gate=str(gates[1])) for _ in range(3)]
    eventually(lambda: len(fair_shop.ledger("start")) == 4)
    assert fair_shop.ask(worker, "reserved") == []
    gates[1].touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in more] == ["done"] * 3


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
@pytest.mark.parametrize("multiplier", and_in_ci([None, 3], 0))
def test_a_worker_whose_pool_has_no_process_claims_nothing(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str, multiplier: int | None
) -> None:
    conf = {} if multiplier is None else {"worker_prefetch_multiplier": multiplier}
    shop = make_fair_shop(conf=conf)
    empty = shop.worker(app=KINDS, pool=pool, concurrency=2)
    shop.tell(empty, "pool_shrink", 2)
    # It looks at the queue in its own time, and other workers are not asked meanwhile.
    results = [send(shop, "kinds.late", f"u{number}") for number in range(4)]
    assert shop.ask(empty, "reserved") == []
    assert len(waiting_in(memory)) == 4
    other = shop.worker(app=KINDS, concurrency=1)
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 4
    shop.tell(other, "cancel_consumer", "celery")
    last = send(shop, "kinds.late", "42")
    shop.tell(empty, "pool_grow", 1)
    assert last.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_what_a_shrunk_pool_has_not_begun_goes_back(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(conf={"worker_prefetch_multiplier": 3}, fairness={"lease_seconds": 600})
    shrunk = shop.worker(app=KINDS, concurrency=1)
    (process,) = shrunk.children()
    os.kill(process, signal.SIGSTOP)
    results = [send(shop, "kinds.late", f"u{number}") for number in range(3)]
    eventually(lambda: len(shop.ask(shrunk, "reserved")) == 3)
    # The process is not busy: it has not begun the task in its pipe.
    shop.tell(shrunk, "pool_shrink", 1)
    os.kill(process, signal.SIGKILL)
    eventually(lambda: len(waiting_in(memory)) == 3)
    assert shop.ask(shrunk, "reserved") == []
    shop.worker(app=KINDS, concurrency=1)
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 3
    assert set(shop.runs().values()) == {1}
    assert_nothing_left(memory)


def test_autoscale_grows_the_pool_for_what_waits(fair_shop: Shop, memory: Redis) -> None:
    worker = fair_shop.worker(app=KINDS, concurrency=1, args=("--autoscale", "4,1"))
    gate = fair_shop.gate_file()
    results = [send(fair_shop, "kinds.late", None, gate=str(gate)) for _ in range(6)]
    eventually(lambda: len(fair_shop.ledger("start")) == 4)
    assert fair_shop.ask(worker, "reserved") == []
    assert len(waiting_in(memory)) == 2
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 6
    assert_nothing_left(memory)


@pytest.mark.parametrize(
    ("conf", "args", "left"),
    [
        ({}, (), 4),
        ({"worker_prefetch_multiplier": 2}, (), 2),
        ({}, ("--prefetch-multiplier", "2"), 2),
        ({"worker_prefetch_multiplier": 0}, (), 0),
        ({"worker_prefetch_multiplier": 2, "worker_disable_prefetch": True}, (), 4),
    ],
    ids=["default", "set", "by_option", "without_end", "disabled"],
)
def test_tasks_are_claimed_ahead_only_where_the_user_asks_for_it(
    make_fair_shop: Callable[..., Shop],
    memory: Redis,
    conf: dict[str, Any],
    args: tuple[str, ...],
    left: int,
) -> None:
    shop = make_fair_shop(conf=conf)
    gate = shop.gate_file()
    results = [send(shop, "kinds.late", None, gate=str(gate)) for _ in range(6)]
    shop.worker(app=KINDS, pool="threads", concurrency=2, args=args)
    eventually(lambda: len(shop.ledger("start")) == 2)
    eventually(lambda: len(waiting_in(memory)) == left)
    # What was claimed holds its slot while it waits for its place.
    assert memory.zcard("{fairness}:leases:_system") == 6 - left
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 6
    assert len(shop.ledger("start")) == 6


@pytest.mark.parametrize("pool", and_in_ci(["prefork", "gevent"], "threads", "solo"))
def test_a_rate_limit_holds_is_reached_and_loses_nothing(
    fair_shop: Shop, memory: Redis, pool: str
) -> None:
    worker = fair_shop.worker(app=KINDS, pool=pool, concurrency=2)
    fair_shop.tell(worker, "rate_limit", "kinds.late", "20/s")
    sent_at = time.time()
    results = [send(fair_shop, "kinds.late", None) for _ in range(41)]
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 41
    times = sorted(entry["at"] for entry in fair_shop.ledger("start"))
    # A body may begin long after the worker counted it, and never before.
    assert all(at - sent_at > (n - 2) / 20 for n, at in enumerate(times))
    # A look each second would find the last one after 40 s.
    assert times[-1] - sent_at < at_most(10)
    fair_shop.tell(worker, "rate_limit", "kinds.late", "1/h")
    assert send(fair_shop, "kinds.late", None).get(timeout=RESULT_SECONDS) == "done"
    waits = send(fair_shop, "kinds.late", None)
    assert send(fair_shop, "kinds.early", None).get(timeout=RESULT_SECONDS) == "done"
    assert waiting_in(memory) == [waits.id]
    fair_shop.tell(worker, "rate_limit", "kinds.late", "0")
    assert waits.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_a_task_over_its_rate_waits_in_redis_and_holds_neither_slot_nor_place(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(conf={"task_annotations": {"kinds.late": {"rate_limit": "1/h"}}})
    worker = shop.worker(app=KINDS, pool="threads", concurrency=1)
    results = [send(shop, "kinds.late", "42") for _ in range(3)]
    assert results[0].get(timeout=RESULT_SECONDS) == "done"
    # Another kind of the same tenant, which may have one slot, on the only place.
    assert send(shop, "kinds.early", "42").get(timeout=RESULT_SECONDS) == "done"
    shop.await_held("42", 0)
    assert shop.ask(worker, "reserved") == []
    assert waiting_in(memory) == [result.id for result in results[1:]]
    assert worker.terminate() == 0
    assert waiting_in(memory) == [result.id for result in results[1:]]


def test_rate_limits_that_are_switched_off_are_not_kept(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(conf={"worker_disable_rate_limits": True})
    worker = shop.worker(app=KINDS, pool="threads", concurrency=1)
    shop.tell(worker, "rate_limit", "kinds.late", "1/h")
    results = [send(shop, "kinds.late", None) for _ in range(3)]
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 3
    assert_nothing_left(memory)


def test_the_command_line_sees_and_empties_queues(fair_shop: Shop, memory: Redis) -> None:
    worker = fair_shop.worker(app=KINDS, queues=["other"], args=("-E",))
    for _ in range(3):
        send(fair_shop, "kinds.late", "42")
    send(fair_shop, "kinds.late", "42", options={"countdown": 3600})
    assert worker.hostname() in celery(fair_shop, "status")
    assert "pong" in celery(fair_shop, "inspect", "ping")
    assert re.search(r"Purged 4 messages", celery(fair_shop, "purge", "-f", "-Q", "celery"))
    assert_nothing_left(memory)


def test_celery_amqp_takes_one_message(fair_shop: Shop, memory: Redis) -> None:
    sent = send(fair_shop, "kinds.late", "42")
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", KINDS, "amqp", "repl"],
        env={**clean_environment(), **fair_shop.env},
        cwd=ROOT,
        input="basic.get celery\nexit\n",
        capture_output=True,
        text=True,
        timeout=at_most(60),
        check=False,
    )
    assert sent.id in done.stdout, done.stdout + done.stderr
    # It was not acknowledged.
    assert waiting_in(memory) == [sent.id]


def test_events_tell_of_every_step(fair_shop: Shop) -> None:
    seen: list[tuple[str, str]] = []
    with fair_shop.app.connection_for_read() as own:
        receiver = fair_shop.app.events.Receiver(
            own, {"*": lambda event: seen.append((event["type"], event.get("uuid", "")))}
        )
        with receiver.consumer_context() as (connection, _, _):
            # Redis subscribes when somebody listens.
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
            fair_shop.worker(app=KINDS, pool="threads", args=("-E",))
            result = send(fair_shop, "kinds.late", "42")

            def all_there() -> None:
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)
                types = [type_ for type_, uuid in seen if uuid == result.id]
                assert types == ["task-received", "task-started", "task-succeeded"]

            eventually(all_there, RESULT_SECONDS)


@pytest.fixture
def plain_producer(fair_shop: Shop) -> Iterator[Celery]:
    """A producer on the same broker without ``Fairness``."""
    register()
    app = Celery(
        "plain",
        broker=fair_shop.env["CELERY_BROKER_URL"],
        backend=fair_shop.env["CELERY_RESULT_BACKEND"],
        set_as_current=False,
    )
    yield app
    app.close()
    pools.reset()


def test_a_producer_without_fairness_sends_system_tasks_or_says_the_tenant(
    fair_shop: Shop, memory: Redis, plain_producer: Celery
) -> None:
    fair_shop.worker(app=KINDS, pool="threads", concurrency=4)
    gate = fair_shop.gate_file()
    header = {"fairness": {"v": 1, "tenant": "42"}}
    kwargs = {"gate": str(gate)}
    ids = [plain_producer.send_task("kinds.plain", kwargs=kwargs).id for _ in range(2)]
    ids += [
        plain_producer.send_task("kinds.plain", kwargs=kwargs, headers=header).id for _ in range(2)
    ]
    eventually(lambda: len(fair_shop.ledger("start")) == 3)
    assert fair_shop.held("42") == 1
    gate.touch()
    for task_id in ids:
        assert fair_shop.app.AsyncResult(task_id).get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_what_beat_sends_runs_as_a_system_task_or_in_the_scheduled_queue(
    make_fair_shop: Callable[..., Shop], tmp_path: Any
) -> None:
    schedule = {
        "plain": {"task": "kinds.plain", "schedule": 0.2},
        "routed": {"task": "shop.routed", "schedule": 0.2},
    }
    shop = make_fair_shop(conf={"beat_schedule": schedule, "beat_max_loop_interval": 0.2})
    worker = shop.worker(
        app=KINDS, concurrency=2, args=("--beat", "--schedule", str(tmp_path / "beat"))
    )
    eventually(lambda: len(shop.ledger("start", "kinds.plain")) >= 2, RESULT_SECONDS)
    assert {entry["user"] for entry in shop.ledger("start", "kinds.plain")} == {None}
    worker.wait_for_log("'analysis_scheduled'", timeout=RESULT_SECONDS)
    worker.signal(signal.SIGTERM)
    eventually(lambda: not worker.alive, RESULT_SECONDS)


@pytest.mark.one_redis("a database")
def test_another_limiter_s_address_is_ignored_with_one_warning(
    make_fair_shop: Callable[..., Shop], redis_url: str
) -> None:
    other = redis_url.removesuffix("/0") + "/3"
    shop = make_fair_shop(variables={"FAIRNESS_REDIS_URL": other})
    worker = shop.worker(app=KINDS, concurrency=1)
    assert send(shop, "kinds.plain", "42").get(timeout=RESULT_SECONDS) == "done"
    assert worker.log_text().count("is set to another Redis than the broker's") == 1
    same = make_fair_shop(fairness={"redis_url": redis_url}).worker(app=KINDS, concurrency=1)
    assert "another Redis" not in same.log_text()


@pytest.mark.parametrize("conf", [{"task_ignore_result": True}, {"task_track_started": True}])
def test_states_are_those_of_stock_celery(
    make_fair_shop: Callable[..., Shop], memory: Redis, conf: dict[str, Any]
) -> None:
    shop = make_fair_shop(conf=conf)
    shop.worker(app=KINDS, concurrency=2)
    gate = shop.gate_file()
    first, second = (send(shop, "kinds.late", "42", gate=str(gate)) for _ in range(2))
    shop.await_held("42", 1)
    eventually(lambda: len(shop.ledger("start")) == 1)
    tracked = "task_track_started" in conf
    eventually(lambda: first.state == ("STARTED" if tracked else "PENDING"))
    # What waits for its tenant has not started for anybody who looks.
    assert second.state == "PENDING"
    gate.touch()
    eventually(lambda: len(shop.ledger("end")) == 2)
    assert_nothing_left(memory)
    assert json.dumps(first.state) == json.dumps("SUCCESS" if tracked else "PENDING")
