"""The commands that cancel and requeue tasks: what they do, say, and how they exit."""

from __future__ import annotations

import json

import pytest

from celery_fairness.scheduling.limits import Limit, write_limits
from celery_fairness.scheduling.words import Verdict
from tests.cli.clearing import bury, send


@pytest.fixture
def shop(installation, client):
    """The installation, emptied."""
    client.flushdb()
    return installation


def place_later(shop):
    send(shop, "42", "first", eta_ms=9_000_000_000_000)


def place_lane(shop):
    send(shop, "42", "before")
    send(shop, "42", "first")


def place_back(shop):
    send(shop, "42", "first", kind="shop.work")
    (task,) = shop.claim()
    shop.settle(task, Verdict.HEAD)


def place_parked(shop):
    limits = write_limits((Limit("api", 0),))
    send(shop, "42", "first", limits=limits)
    assert not shop.claim()


@pytest.mark.parametrize("place", [place_later, place_lane, place_back, place_parked])
def test_a_task_is_cancelled_wherever_it_waits(run, shop, client, audit, place):
    place(shop)
    done = run("cancel", "first")
    assert done.output == "task first: cancelled; it waited in queue celery\n"
    assert done.exit_code == 0
    assert not client.sismember(shop.key("known"), "tag-of-first")
    assert client.hget(shop.key("counts"), "cancelled") == "1"
    assert not audit().findings
    (row,) = client.zrange(shop.key("obituaries"), 0, -1)
    assert row.startswith("- cancelled 6 celery")
    again = run("cancel", "first")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("celery fairness: task 'first' neither waits nor runs: it has")


def test_a_task_that_runs_is_left_running(run, shop, client):
    send(shop, "42", "first")
    assert len(shop.claim()) == 1
    done = run("cancel", "first")
    assert done.exit_code == 1
    assert done.output == (
        "task first: runs at worker-1; what ends it: "
        "celery -A APP control terminate SIGTERM first\n"
    )
    assert client.hlen(shop.key("running")) == 1
    found = json.loads(run("cancel", "first", "--json").stdout)
    assert found == {
        "task_id": "first",
        "state": "running",
        "queue": "celery",
        "owner": "worker-1",
    }


def test_a_tenant_is_purged_and_the_others_wait_on(run, shop, client, audit):
    place_later(shop)
    for number in range(120):
        send(shop, "42", f"t{number}", rank=number % 2, queue=f"q{number % 2}")
    send(shop, "42", "elsewhere", service="pdf")
    for other in ("4", "421", "42:pdf"):
        send(shop, other, f"of-{other}")
    done = run("purge", "42")
    assert (done.exit_code, done.output) == (0, "tenant 42: 122 tasks cancelled\n")
    assert client.smembers(shop.key("known")) == {f"tag-of-of-{x}" for x in ("4", "421", "42:pdf")}
    assert client.zcard(shop.key("obituaries")) == 122
    assert not audit().findings
    assert run("purge", "42").output == "tenant 42: 0 tasks cancelled\n"
    assert json.loads(run("purge", "4", "--json").stdout) == {"tenant": "4", "cancelled": 1}


@pytest.mark.parametrize("tenant", ["Ünïcode", "a b", "*", "h_0", "_none", "x" * 150])
def test_a_hostile_tenant_is_purged_alone(run, shop, client, fairness, tenant):
    from celery_fairness.tenants import key_part

    send(shop, key_part(tenant), "its")
    send(shop, "42", "of-another")
    assert fairness.purge_tenant(tenant).cancelled == (0 if tenant == "_none" else 1)
    assert client.sismember(shop.key("known"), "tag-of-of-another")


def test_dead_letters_are_shown_and_wait_again(run, shop, client, audit):
    assert run("dead").output == "no dead letters\n"
    bury(shop, "42", "first")
    bury(shop, "43", "second")
    done = run("dead")
    assert done.output.splitlines() == [
        "queue   task       id      tenant  attempts  deaths",
        "celery  shop.work  second  43             1       1",
        "celery  shop.work  first   42             1       1",
    ]
    assert run("dead", "--queue", "other").output == "no dead letters\n"
    done = run("dead", "requeue", "first")
    assert (done.exit_code, done.output) == (0, "task first: waits again in queue celery\n")
    assert [each["task_id"] for each in json.loads(run("dead", "--json").stdout)] == ["second"]
    # Its result was not written yet, and is not any more.
    (row,) = client.zrange(shop.key("obituaries"), 0, -1)
    assert '"second"' in row
    (task,) = shop.claim()
    assert (task.lease, task.attempt) == ("tag-of-first.2", 2)
    shop.settle(task, Verdict.BEGUN)
    shop.settle(task, Verdict.DIED)
    # Its deaths were counted from 0: by these rules one is too many all the same.
    assert json.loads(run("dead", "--json").stdout)[0]["deaths"] == 1
    assert not audit().findings
    again = run("dead", "requeue", "nobody")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("celery fairness: task 'nobody' is no dead letter; ")


def test_a_dead_letter_that_says_no_id_is_named_by_its_tag(run, installation):
    (letter,) = json.loads(run("dead", "--json").stdout)
    assert (letter["task_id"], letter["task"], letter["tenant"]) == ("d1", "", "dead")
    assert run("dead", "requeue", "d1").exit_code == 0


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("cancel",), "Missing argument 'TASK'"),
        (("purge",), "Missing argument 'TENANT'"),
        (("purge", ""), "tenant: expected a tenant, got: ''"),
        (("purge", "x" * 201), "expected at most 200 bytes, got: 201"),
        (("dead", "requeue"), "expected nothing, --queue QUEUE, or: requeue TASK"),
        (("dead", "requeue", "x", "--queue", "q"), "expected nothing, --queue QUEUE, or: requeue"),
        (("dead", "bury", "x"), "'bury' is not 'requeue'"),
    ],
)
def test_wrong_usage_names_what_is_expected(run, args, problem):
    done = run(*args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


@pytest.mark.parametrize("args", [("cancel", "x"), ("purge", "x"), ("dead",)])
def test_the_gate_path_has_none_of_it(run, make_fairness, redis_url, args):
    done = run(*args, of=make_fairness(url=redis_url))
    assert done.exit_code == 2
    assert "broker: expected one at fairredis://" in " ".join(done.output.split())
