"""``queue migrate``: what it prints, its JSON, and its exit codes."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_fairness import Fairness
from celery_fairness.transport import migration
from tests.support.parts import parts_of


@pytest.fixture
def send(fairness):
    """Send a task of a tenant to the queue ``mail``."""

    def send(tenant: str) -> None:
        headers = {"fairness": {"v": 1, "tenant": tenant}}
        parts_of(fairness).app.send_task("shop.work", queue="mail", headers=headers)

    return send


def test_a_queue_moves_there_and_back(run, send, client):
    for _ in range(3):
        send("42")
    done = run("queue", "migrate", "mail", "--to", "redis")
    assert (done.exit_code, done.output) == (0, "mail: 3 tasks moved to redis://\n")
    assert client.llen("mail") == 3
    done = run("queue", "migrate", "mail", "--to", "fairredis", "--json")
    assert done.exit_code == 0
    assert json.loads(done.output) == {
        "queue": "mail",
        "to": "fairredis",
        "moved": 3,
        "waiting": 0,
        "held_by": [],
    }
    assert client.hget("{fairness}:waiting", "mail") == "3"


def test_tasks_that_a_pause_holds_do_not_move_and_the_exit_code_is_1(run, send, fairness):
    send("42")
    send("7")
    fairness.tenants.pause("42")
    done = run("queue", "migrate", "mail", "--to", "redis")
    assert done.exit_code == 1
    assert done.output.startswith("mail: 1 task moved to redis://\n1 task did not move: a pause")


def test_a_queue_that_was_moved_away_is_no_limit(run, send):
    send("42")
    assert run("queue", "migrate", "mail", "--to", "redis").exit_code == 0
    listed = run("limit", "list", "--json")
    assert listed.exit_code == 0
    assert '"mail"' not in listed.stdout


@pytest.mark.parametrize("to", ["redis", "fairredis"])
def test_a_redis_that_dies_meanwhile_is_one_clear_line(run, send, redis_server, monkeypatch, to):
    send("42")
    if to == "fairredis":
        assert run("queue", "migrate", "mail", "--to", "redis").exit_code == 0
    step = migration._queue_table

    def die(channel):
        redis_server.kill()
        return step(channel)

    monkeypatch.setattr(migration, "_queue_table", die)
    done = run("queue", "migrate", "mail", "--to", to)
    assert done.exit_code == 69
    assert done.output.startswith("celery fairness: redis://127.0.0.1:")
    assert " does not answer: " in done.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("", "--to", "redis"), "queue: expected text in valid UTF-8 that is not empty"),
        (("mail", "--to", "rabbitmq"), "'rabbitmq' is not one of 'redis', 'fairredis'"),
        (("mail",), "Missing option '--to'"),
    ],
)
def test_wrong_usage_is_named(run, words, problem):
    done = run("queue", "migrate", *words)
    assert done.exit_code == 2
    assert problem in done.output


def test_an_app_on_another_broker_is_named(run, redis_url):
    app = Celery("other", broker=redis_url, set_as_current=False)
    other = Fairness(app)
    done = run("queue", "migrate", "mail", "--to", "redis", app=app)
    other.close()
    assert done.exit_code == 2
    assert "broker: expected fairredis://" in done.output
