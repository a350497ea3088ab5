"""What a status says if nobody can answer on Celery's control bus."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result

from celery_fairness import Fairness

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


def test_nobody_answers(fairness: Fairness, run: Run) -> None:
    found = fairness.stats.status()
    assert (found.replies.problem, found.replies.answered) == ("", 0)
    (line,) = found.verdict.unchecked
    assert "no worker answered Celery's control bus at " in line
    assert "no worker answered Celery's control bus at " in run("status").stdout
    names = {each.metric.name: each.samples for each in fairness.stats.metrics()}
    assert [each.value for each in names["fairness_workers_answered"]] == [0]
    assert names["fairness_workers_unannounced"] == ()
