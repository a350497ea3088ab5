"""What a status says if nobody can answer on Celery's control bus."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.control.installation import control_bus
from celery_fairness.control.installation.control_bus import ControlBus
from celery_fairness.control.installation.workers import READ_AT_MOST
from tests.cli.conftest import Installation
from tests.support.parts import parts_of

pytestmark = pytest.mark.redis

Make = Callable[..., Fairness]
Run = Callable[..., Result]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def of_broker(make: Make, redis_url: str, url: str, **conf: object) -> Fairness:
    return make(url=url, conf=conf, fairness={"redis_url": redis_url})


def test_a_broker_that_is_down_is_named_without_its_password(
    make_fairness: Make, run: Run, redis_url: str
) -> None:
    of = of_broker(make_fairness, redis_url, "amqp://shop:secret@127.0.0.1:1//")
    found = of.stats.status()
    assert found.replies.problem.startswith("OperationalError: ")
    assert (found.replies.answered, found.replies.unannounced) == (0, ())
    (line,) = found.verdict.unchecked
    assert line.startswith("whether a worker that is not announced takes tasks: OperationalError")
    assert not any("answered" in each for each in found.verdict.ruled_out)
    for args in (["status"], ["doctor"], ["top", "--once"], ["status", "--json"]):
        result = run(*args, of=of)
        assert result.exit_code in (0, 1), result.output
        assert "secret" not in result.output
    assert "not checked: whether a worker" in run("status", of=of).stdout
    assert "cannot be seen: OperationalError" in " ".join(run("doctor", of=of).stdout.split())
    names = {each.metric.name: each.samples for each in of.stats.metrics()}
    assert names["fairness_workers_answered"] == names["fairness_workers_unannounced"] == ()


def test_a_broker_that_is_silent_is_waited_for_once(
    make_fairness: Make, redis_url: str, silent_port: int
) -> None:
    of = of_broker(make_fairness, redis_url, f"amqp://127.0.0.1:{silent_port}//")
    assert of.stats.status().replies.problem
    assert of.stats.status().replies.problem


def test_an_app_without_remote_control_asks_nobody(
    make_fairness: Make, redis_url: str, silent_port: int
) -> None:
    of = of_broker(
        *(make_fairness, redis_url, f"amqp://127.0.0.1:{silent_port}//"),
        worker_enable_remote_control=False,
    )
    problem = of.stats.status().replies.problem
    assert problem == "worker_enable_remote_control is off in this app"


def test_of_more_workers_than_are_read_none_is_named(
    fairness: Fairness, installation: Installation, client: Redis
) -> None:
    until = 9_000_000_000_000
    names = {f"worker-{number}": until for number in range(READ_AT_MOST + 1)}
    client.zadd(installation.key("workers"), names)
    found = fairness.stats.status()
    assert found.replies.problem == "more than 1,000 workers are announced"
    assert found.replies.unannounced == ()


def test_threads_ask_once(
    make_fairness: Make, redis_url: str, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = of_broker(make_fairness, redis_url, f"amqp://127.0.0.1:{silent_port}//")
    monkeypatch.setattr(control_bus, "WAIT_SECONDS", 0.01)
    asked: list[int] = []
    monkeypatch.setattr(ControlBus, "_ask", lambda _: asked.append(1) or gate.wait())
    bus, gate, begin = ControlBus(parts_of(of).app, None), threading.Event(), threading.Barrier(8)

    def compare() -> None:
        begin.wait()
        bus.compare((), ())

    threads = [threading.Thread(target=compare) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    gate.set()
    bus.close()
    assert asked == [1]


def test_nobody_answers(fairness: Fairness, run: Run) -> None:
    found = fairness.stats.status()
    assert (found.replies.problem, found.replies.answered) == ("", 0)
    (line,) = found.verdict.unchecked
    assert "no worker answered Celery's control bus at " in line
    assert "no worker answered Celery's control bus at " in run("status").stdout
    names = {each.metric.name: each.samples for each in fairness.stats.metrics()}
    assert [each.value for each in names["fairness_workers_answered"]] == [0]
    assert names["fairness_workers_unannounced"] == ()
