"""``queue migrate``: what it prints, its JSON, and its exit codes."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_fairness import Fairness
from celery_fairness.control.installation.views import WorkerStatus
from celery_fairness.transport import migration
from tests.cli.conftest import Installation
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
def test_a_misspelled_queue_is_named_and_nothing_is_written(run, send, client, to):
    send("42")
    done = run("queue", "migrate", "mial", "--to", to)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == (
        "celery fairness: queue 'mial' is not known: expected one that the app or a worker names, "
        "or that has or had tasks on fairredis:// or redis://, did you mean 'mail'?\n"
    )
    assert not client.exists("{fairness}:queue_limits")


def in_a_setting(run_in, _client):
    run_in({"queues": {"emails": {"global_limit": 1}}})


def with_a_plain_list(_run_in, client):
    client.lpush("emails\x06\x169", "{}")


def with_a_binding(_run_in, client):
    client.sadd("_kombu.binding.emails", "emails\x06\x16\x06\x16emails")


def with_a_limit_of_an_operator(run_in, _client):
    run_in().queues.set_limit("emails", global_limit=1)


def of_a_worker(run_in, _client):
    installation = parts_of(run_in()).installation
    status = WorkerStatus(name="w", pid=1, path="dispatch", enforcement="on", queues=("emails",))
    installation.limiter.announce(status.model_dump_json())


def moved_before(run_in, client):
    client.hset("{fairness}:queue_limits", "moved emails", "redis")


def with_a_delayed_task_alone(_run_in, client):
    Installation(client).put("42", "t1", queue="emails", eta_ms=9_000_000_000_000)


@pytest.mark.parametrize("to", ["redis", "fairredis"])
@pytest.mark.parametrize(
    "known",
    [
        in_a_setting,
        with_a_plain_list,
        with_a_binding,
        with_a_limit_of_an_operator,
        of_a_worker,
        moved_before,
        with_a_delayed_task_alone,
    ],
)
def test_a_queue_that_anything_names_moves_also_if_it_is_empty(
    run, make_fairness, client, known, to
):
    of = []

    def run_in(fairness=None):
        of.append(make_fairness(fairness=fairness))
        return of[-1]

    known(run_in, client)
    done = run("queue", "migrate", "emails", "--to", to, of=of[-1] if of else None)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("emails: ")


@pytest.mark.parametrize("to", ["redis", "fairredis"])
def test_a_redis_that_dies_meanwhile_is_one_clear_line(run, send, redis_server, monkeypatch, to):
    send("42")
    if to == "fairredis":
        assert run("queue", "migrate", "mail", "--to", "redis").exit_code == 0
    connect = migration.Redis

    def die(**options):
        redis_server.kill()
        return connect(**options)

    monkeypatch.setattr(migration, "Redis", die)
    done = run("queue", "migrate", "mail", "--to", to)
    assert done.exit_code == 69
    assert done.output.startswith("celery fairness: redis://127.0.0.1:")
    assert " does not answer: " in done.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("", "--to", "redis"), "queue: expected text in valid UTF-8 that is not empty"),
        (("mail", "--to", "rabbitmq"), "'rabbitmq' is not one of 'redis', 'fairredis'"),
        (("mail",), "expected --from, or one QUEUE and --to"),
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
