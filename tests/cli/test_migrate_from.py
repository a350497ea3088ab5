"""``queue migrate --from``: tasks of another installation come to that of the app."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.control.installation.reader import Reader
from celery_fairness.scheduler import calls
from celery_fairness.transport import other_installation
from celery_fairness.transport.other_installation import Move, open_other
from tests.cli.clearing import bury, send
from tests.cli.conftest import Installation
from tests.support.parts import parts_of
from tests.support.redis_server import HOST

TENANTS = [f"t{number}" for number in range(12)]
K = pytest.mark.parametrize("partitions", [1, 4], indirect=True)
OLD = ("--from-namespace", "fairness")


@pytest.fixture
def old(client, partitions):
    """The other installation, with something of each tenant in every place."""
    made = Installation(client, partitions=partitions)
    bury(made, "t0", "dead")
    for number in range(3):
        for tenant in TENANTS:
            send(made, tenant, f"{tenant}-{number}")
    send(made, "t0", "late", eta_ms=9_000_000_000_123)
    send(made, "", "nobody", queue="other")
    return made


@pytest.fixture
def make_new(make_fairness):
    """A factory of the app's installation, in a namespace of its own, with eight partitions."""

    def make(url="", partitions=8):
        return make_fairness(url, fairness={"namespace": "new", "partitions": partitions})

    return make


@pytest.fixture
def migrate(run, redis_url):
    """Run the command; the other installation is on the Redis of the test."""

    def migrate(of, *words, url=f"fair{redis_url}"):
        return run("queue", "migrate", *words, "--from", url, *OLD, of=of)

    return migrate


def ids(of, **wanted):
    """Return how often each id is listed."""
    return Counter(each.task_id for each in of.tasks.list(**wanted, limit=50).items)


def all_ids():
    return {"dead", "late", "nobody", *(f"{each}-{n}" for each in TENANTS for n in range(3))}


@K
def test_all_queues_come_and_the_order_of_each_tenant_stays(old, make_new, migrate, fairness):
    new = make_new()
    done = migrate(new, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["moved"], found["running"], found["waiting"]) == (
        {"celery": 38, "other": 1},
        0,
        0,
    )
    assert "tenant tier and queue limit" in done.stderr
    assert ids(new) == dict.fromkeys(all_ids(), 1)
    assert ids(fairness) == {}
    for tenant in TENANTS[1:]:
        waiting = [each.task_id for each in new.tasks.list(tenant=tenant).items]
        assert waiting == [f"{tenant}-{number}" for number in range(3)]
    (late,) = new.tasks.list(state="delayed").items
    assert late.due_at.timestamp() * 1000 == pytest.approx(9_000_000_000_123)
    assert ids(new, state="dead") == {"dead": 1}
    assert new.check().findings == fairness.check().findings == ()
    assert old.find("t1-1") == []


@pytest.mark.one_redis("servers")
@K
def test_one_redis_moves_to_several_servers(old, make_new, migrate, several_servers):
    url = "fairservers://" + ";".join(f"{HOST}:{each.port}/0" for each in several_servers)
    new = make_new(url, partitions=4)
    assert migrate(new, "celery").exit_code == 0
    assert ids(new) == dict.fromkeys(all_ids() - {"nobody"}, 1)
    assert ids(new, state="dead") == {"dead": 1}
    assert old.find("nobody")[0][1] == "waiting"
    for server in several_servers[1:]:
        with server.client() as client:
            assert client.keys("{new#*}:lane:*")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("partitions", [4], indirect=True)
@pytest.mark.parametrize("answered", [False, True])
def test_a_move_that_dies_at_any_call_is_completed_by_the_next(
    old, make_new, migrate, monkeypatch, answered, fairness, redis_url
):
    monkeypatch.setattr(other_installation, "AT_MOST", 5)
    new = make_new()
    ran, wanted = set(), all_ids() - {"dead", "late"}
    call, left = Reader.call, 0

    def dies(reader, function, args):
        nonlocal left
        is_ours = function in (calls.MOVE_OUT, calls.MOVE_IN)
        left -= is_ours
        if left == 0 and is_ours:
            if answered:
                call(reader, function, args)
            raise Killed
        return call(reader, function, args)

    monkeypatch.setattr(Reader, "call", dies)
    here = parts_of(new).installation
    worker = Installation(old.client, "{new}:", 8)
    worker.partitions = here.limiter.partitions
    moment = 0
    while True:
        # It gets a call further each time, or to its end.
        moment, left = moment + 1, 1 + moment % 12
        try:
            Move(here, open_other(here, f"fair{redis_url}", "fairness")).run()
        except Killed:
            # What came runs at once, so its tag is not known any more.
            ran |= run_all(worker, ran)
        else:
            break
    ran |= run_all(worker, ran)
    assert moment >= 9
    assert ran == wanted
    assert ids(new) == {"dead": 1, "late": 1}
    assert ids(fairness) == {}
    assert new.check().findings == fairness.check().findings == ()


def run_all(worker, ran):
    """Run what waits, and return the ids; none may have run before."""
    found = []
    for queue in ("celery", "other"):
        while tasks := worker.claim(100, queue=queue):
            for task in tasks:
                found.append(json.loads(task.message)["headers"]["id"])
                worker.settle(task)
    assert len(set(found)) == len(found)
    assert ran.isdisjoint(found)
    return set(found)


def test_an_interrupt_ends_the_page_that_is_open(old, make_new, redis_url, monkeypatch, fairness):
    monkeypatch.setattr(other_installation, "AT_MOST", 5)
    new = make_new()
    call, pages = Reader.call, []

    def interrupted(reader, function, args):
        pages.append(function == calls.MOVE_OUT)
        if pages.count(True) == 2 and function == calls.MOVE_IN:
            pages.append(True)
            raise KeyboardInterrupt
        return call(reader, function, args)

    monkeypatch.setattr(Reader, "call", interrupted)
    here = parts_of(new).installation
    found = Move(here, open_other(here, f"fair{redis_url}", "fairness")).run()
    assert found.moved == {"celery": 10}
    assert found.waiting == 29
    assert (ids(new) + ids(fairness)) == dict.fromkeys(all_ids(), 1)


def test_pauses_and_overrides_come_first_and_replace_none(old, make_new, migrate, fairness):
    new = make_new()
    fairness.tenants.pause("t1")
    fairness.limits.pause("api")
    fairness.limits.override("mail", concurrency=3)
    new.limits.override("mail", concurrency=5)
    done = migrate(new)
    assert "copied: pause api\n" in done.stdout
    assert "copied: pause tenant:t1\n" in done.stdout
    assert new.tenants.inspect("t1").blocked_by == "paused"
    assert new.limits.inspect("api").blocked_by == "paused"
    assert new.limits.inspect("mail").concurrency.limit == 5
    assert "mail" not in done.stdout


def test_a_task_that_runs_stays_and_is_named(old, make_new, migrate):
    (task,) = old.claim(1)
    new = make_new()
    done = migrate(new, "celery")
    assert done.exit_code == 0
    assert "1 task still running there: run the command again" in done.stdout
    old.settle(task)
    assert len(ids(new)) == 37


def test_a_key_that_is_an_error_here_keeps_its_task_there(old, make_new, migrate, fairness):
    limits = write_limits([Limit("api", concurrency=5, on_limit="drop")])
    send(old, "t3", "shared", queue="mail", limits=limits)
    new = make_new()
    done = migrate(new, "mail")
    assert done.exit_code == 2
    assert "task shared of queue mail stays" in done.stderr
    assert "got: 'api'" in done.stderr
    assert old.find("shared")[0][1] == "waiting"
    assert fairness.check().findings == ()


def test_the_same_installation_is_an_error_and_all_stays(old, run, redis_url, fairness):
    done = run("queue", "migrate", "--from", f"fair{redis_url}", of=fairness)
    assert done.exit_code == 2
    assert "expected another installation than that of the app" in done.stderr
    assert ids(fairness) == dict.fromkeys(all_ids(), 1)
    assert fairness.check().findings == ()


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ((), 2, "expected --from, or one QUEUE and --to"),
        (("a", "b", "--to", "redis"), 2, "--to: expected one QUEUE"),
        (("a", "--to", "redis", "--follow"), 2, "--to: expected one QUEUE, and no other option"),
        (
            ("--from", "redis://:secret@h/0"),
            2,
            "expected the URL of a broker with one of fairredis",
        ),
        (("--from", "fairredis://127.0.0.1:1/0"), 69, "127.0.0.1:1/0 does not answer"),
    ],
)
def test_wrong_words_are_named(run, fairness, words, code, problem):
    done = run("queue", "migrate", *words, of=fairness)
    assert done.exit_code == code
    assert problem in done.stderr
    assert "secret" not in done.stderr


def test_what_is_not_there_is_named(old, run, make_new, redis_url):
    new, url = make_new(), f"fair{redis_url}"
    done = run("queue", "migrate", "--from", url, "--from-namespace", "none", of=new)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "installation 'none' is not at redis://" in done.stderr
    done = run("queue", "migrate", "celeri", "--from", url, *OLD, of=new)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "did you mean 'celery'?" in done.stderr


@pytest.mark.one_redis("servers")
def test_a_server_that_goes_away_ends_the_move_and_the_next_completes_it(
    old, make_new, redis_url, several_servers, monkeypatch, migrate, fairness
):
    monkeypatch.setattr(other_installation, "AT_MOST", 5)
    url = "fairservers://" + ";".join(f"{HOST}:{each.port}/0" for each in several_servers)
    new = make_new(url, partitions=4)
    several_servers[1].pause()
    try:
        done = migrate(new)
        assert done.exit_code == 69
        assert "run the command again, and it goes on" in done.stderr
        assert f"{several_servers[1].port}" in done.stderr
    finally:
        several_servers[1].resume()
    assert migrate(new).exit_code == 0
    assert ids(new) == dict.fromkeys(all_ids(), 1)
    assert ids(fairness) == {}


@pytest.mark.one_redis("a cluster beside it")
def test_one_redis_moves_to_a_cluster_and_back(
    old, make_new, migrate, run, cluster, fairness, redis_url
):
    new = make_new(cluster.url("faircluster"), partitions=4)
    assert migrate(new).exit_code == 0
    assert ids(new) == dict.fromkeys(all_ids(), 1)
    assert ids(fairness) == {}
    url = cluster.url("faircluster")
    done = run("queue", "migrate", "--from", url, "--from-namespace", "new", of=fairness)
    assert done.exit_code == 0, done.stderr
    assert ids(fairness) == dict.fromkeys(all_ids(), 1)
    for tenant in TENANTS[1:]:
        waiting = [each.task_id for each in fairness.tasks.list(tenant=tenant).items]
        assert waiting == [f"{tenant}-{number}" for number in range(3)]
