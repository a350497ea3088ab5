"""The commands that cancel and requeue tasks: what they do, say, and how they exit."""

from __future__ import annotations

import json

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.tenants import tier_key
from celery_fairness.control.installation.task_records import read_head
from celery_fairness.control.task.cancellation import purge_queue
from celery_fairness.errors import NotFound
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Job, Lease, Parking, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Verdict, Waiting
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from tests.cli.clearing import bury, send, tag_of
from tests.support.parts import parts_of


def place_later(shop):
    send(shop, "42", "first", eta_ms=9_000_000_000_000)


def place_lane(shop):
    send(shop, "42", "before")
    send(shop, "42", "first")


def place_back(shop):
    send(shop, "42", "first")
    (task,) = shop.claim()
    shop.settle(task, Verdict.HEAD)


def place_parked(shop):
    limits = write_limits((Limit("api", concurrency=0),))
    send(shop, "42", "first", limits=limits)
    assert not shop.claim()


@pytest.mark.parametrize("place", [place_later, place_lane, place_back, place_parked])
def test_a_task_is_cancelled_wherever_it_waits(run, shop, client, check, place):
    place(shop)
    done = run("task", "cancel", "first")
    assert done.output == "task first: cancelled; it waited in queue celery\n"
    assert done.exit_code == 0
    assert client.hget(shop.key("counters"), "cancelled") == "1"
    assert not check().findings
    head = read_head(tag_of("first"), client.hget(shop.key("tasks"), tag_of("first")))
    assert head.rejected_by == "cancelled|-"
    assert shop.find("first") == [(tag_of("first"), "ended")]
    again = run("task", "cancel", "first")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("celery fairness: task 'first' neither waits nor runs: it has")


@pytest.mark.parametrize("act", ["explain", "cancel"])
def test_an_id_is_found_by_as_many_commands_however_many_tasks_wait(fairness, shop, client, act):
    """The tasks are of one tenant. A longer queue in front costs nothing either."""

    def commands():
        return sum(each["calls"] for each in client.info("commandstats").values())

    send(shop, "42", "first")
    getattr(fairness.tasks, act)("first")
    used = []
    for total in (20, 2_000):
        for number in range(total):
            send(shop, "42", f"{total}.{number}")
        before = commands()
        # The clock is due, however fast this machine is.
        client.hincrby(shop.key("clock"), "seen", -50)
        getattr(fairness.tasks, act)(f"{total}.10")
        used.append(commands() - before)
    assert used[0] == used[1] < 100


def test_a_task_that_runs_is_left_running(run, shop, client):
    send(shop, "42", "first")
    assert len(shop.claim()) == 1
    done = run("task", "cancel", "first")
    assert done.exit_code == 1
    assert done.output == (
        "task first: runs at worker-1; what ends it: "
        "celery -A APP control terminate SIGTERM first\n"
    )
    assert client.hlen(shop.key("running")) == 1
    found = json.loads(run("task", "cancel", "first", "--json").stdout)
    assert found == {
        "task_id": "first",
        "state": "running",
        "queue": "celery",
        "owner": "worker-1",
    }


def test_a_tenant_is_purged_and_the_others_wait_on(run, shop, client, check):
    place_later(shop)
    for number in range(120):
        send(shop, "42", f"t{number}", rank=number % 2, queue=f"q{number % 2}")
    send(shop, "42", "elsewhere", service="pdf")
    others = ("4", "421", "42:pdf")
    for other in others:
        send(shop, other, f"of-{other}")
    done = run("tenant", "purge", "42")
    assert (done.exit_code, done.output) == (0, "tenant 42: 122 tasks cancelled\n")
    for name in others:
        assert shop.find(f"of-{name}") == [(tag_of(f"of-{name}"), "waiting")]
    for name in ("first", "elsewhere", *(f"t{number}" for number in range(120))):
        assert shop.find(name) == [(tag_of(name), "ended")]
    assert client.zcard(shop.key("outcomes")) == 122
    assert not check().findings
    assert run("tenant", "purge", "42").stdout == "tenant 42: 0 tasks cancelled\n"
    assert json.loads(run("tenant", "purge", "4", "--json").stdout) == {
        "tenant": "4",
        "cancelled": 1,
    }


@pytest.mark.parametrize("tenant", ["Ünïcode", "a b", "*", "h_0", "_none", "x" * 150])
def test_a_hostile_tenant_is_purged_alone(run, shop, fairness, tenant):
    from celery_fairness.config.tenants import key_part

    send(shop, key_part(tenant), "its")
    send(shop, "42", "of-another")
    assert fairness.tenants.purge(tenant).cancelled == (0 if tenant == "_none" else 1)
    assert shop.find("of-another") == [(tag_of("of-another"), "waiting")]


def test_dead_letters_are_shown_and_wait_again(run, shop, client, check):
    assert run("task", "dead").output == "no dead letters\npage 1 of 1, 0 dead letters\n"
    bury(shop, "42", "first")
    bury(shop, "43", "second")
    done = run("task", "dead")
    assert done.output.splitlines() == [
        "queue   task       id      tenant  attempts  deaths  cause",
        "celery  shop.work  second  43             1       1  deaths",
        "celery  shop.work  first   42             1       1  deaths",
        "page 1 of 1, 2 dead letters",
    ]
    assert run("task", "dead", "--queue", "other").output.startswith("no dead letters\n")
    second = run("task", "dead", "--page", "2", "--per-page", "1").output.splitlines()
    assert "first" in second[1]
    assert second[2:] == ["page 2 of 2, 2 dead letters"]
    done = run("task", "requeue", "first")
    assert (done.exit_code, done.output) == (0, "task first: waits again in queue celery\n")
    left = json.loads(run("task", "dead", "--json").stdout)
    assert [each["task_id"] for each in left["items"]] == ["second"]
    assert left["pagination"] == {"total": 1, "page": 1, "per_page": 20}
    assert left["by_queue"] == {"celery": 1}
    # Its result was not written yet, and is not any more.
    assert client.zrange(shop.key("outcomes"), 0, -1) == [tag_of("second")]
    (task,) = shop.claim()
    assert (task.lease, task.attempt) == (f"{tag_of('first')}.2.1", 2)
    shop.settle(task, Verdict.BEGUN)
    shop.settle(task, Verdict.DIED)
    # Its deaths were counted from 0: by these rules one is too many all the same.
    assert json.loads(run("task", "dead", "--json").stdout)["items"][0]["deaths"] == 1
    assert not check().findings
    again = run("task", "requeue", "nobody")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("celery fairness: task 'nobody' is no dead letter; ")


def test_a_message_that_is_unreadable_after_a_death_is_a_letter_of_that(run, shop):
    rules = Rules(default_limit=1, max_deliveries=2)
    send(shop, "42", "first")
    for verdicts in ((Verdict.BEGUN, Verdict.DIED), (Verdict.UNREADABLE,)):
        (task,) = shop.claim(rules=rules)
        for each in verdicts:
            shop.run(calls.SETTLE, calls.settle_args([Settle(task.lease, each)], rules))
    (row,) = json.loads(run("task", "dead", "--json").stdout)["items"]
    assert (row["deaths"], row["cause"]) == (1, "unreadable")


def test_a_dead_letter_that_says_no_id_is_named_by_its_tag(run, installation):
    (letter,) = json.loads(run("task", "dead", "--json").stdout)["items"]
    assert (letter["task_id"], letter["task"], letter["tenant"]) == ("d1", "", "dead")
    assert run("task", "requeue", "d1").exit_code == 0


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            (
                "task",
                "cancel",
            ),
            "expected ID, or any of --tenant, --queue and --key",
        ),
        (
            (
                "tenant",
                "purge",
            ),
            "Missing argument 'TENANT'",
        ),
        (("tenant", "purge", ""), "tenant: expected a tenant, got: ''"),
        (("tenant", "purge", "x" * 201), "expected at most 200 bytes, got: 201"),
        (("task", "requeue"), "Missing argument 'ID'"),
        (("task", "bury", "x"), "No such command 'bury'"),
    ],
)
def test_wrong_usage_names_what_is_expected(run, args, problem):
    done = run(*args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


def test_the_gate_path_has_no_dead_letters(run, make_fairness, redis_url):
    done = run("task", "dead", of=make_fairness(url=redis_url))
    assert done.exit_code == 2
    assert "broker: expected fairredis://" in " ".join(done.output.split())


def parked_at(fairness, *names, tenant="42", queue="celery", limiter=None, word="api|C0|w"):
    """Park tasks of the gate, usually at a limit without slots."""
    for name in names:
        message = {"headers": {"id": name, "task": "shop.t"}, "routing_key": queue}
        lease = Lease(f"of {name}", f"{tier_key(tenant)},{word.partition('|')[0]}")
        job = Job(name, "shop.t", queue)
        request = SlotRequest(lease, tenant, "free", Copy(name), "n", word, job)
        parking = (limiter or parts_of(fairness).limiter).park(request, json.dumps(message))
        assert parking is Parking.PARKED


def test_what_is_parked_behind_a_gate_is_explained_cancelled_and_purged(
    run, make_fairness, redis_url, client
):
    client.flushdb()
    fairness = make_fairness(url=redis_url)
    parked_at(fairness, "m1", "m2", "m3")
    parked_at(fairness, "m4", tenant="x" * 200)
    shown = run("task", "explain", "m2", of=fairness)
    assert shown.exit_code == 0
    assert "1 task before it in its lane" in shown.output
    assert "blocked by api: paused, held 0 of 0" in shown.output
    assert "waiting 4" in run("limit", "show", "api", of=fairness).output.splitlines()
    assert (
        "m1: cancelled; it waited in queue celery"
        in run("task", "cancel", "m1", of=fairness).output
    )
    assert run("task", "cancel", "nobody", of=fairness).exit_code == 1
    assert "2 tasks cancelled" in run("tenant", "purge", "42", of=fairness).output
    assert "1 task cancelled" in run("tenant", "purge", "x" * 200, of=fairness).output
    assert parts_of(fairness).limiter.promote(16).tasks == ()
    heads = client.hgetall("{fairness}:tasks")
    assert {tag: read_head(tag, head).rejected_by for tag, head in heads.items()} == {
        f"m{n}": "cancelled|-" for n in range(1, 5)
    }
    assert fairness.check().findings == ()
    assert not client.exists("{fairness}:waiting_at")


def test_the_parked_tasks_of_one_queue_and_broker_are_purged(make_fairness, redis_url, client):
    client.flushdb()
    fairness = make_fairness(url=redis_url)
    parked_at(fairness, "m1", "m2")
    parked_at(fairness, "m3", queue="other")
    elsewhere = Limiter(Connection(address_from_url(redis_url)), fairness.settings, broker="b")
    parked_at(fairness, "m4", limiter=elsewhere)
    assert purge_queue(parts_of(fairness).installation, "celery") == 2
    states = {f"m{n}": fairness.tasks.explain(f"m{n}").state for n in (3, 4)}
    assert states == {"m3": "parked", "m4": "parked"}
    for cancelled in ("m1", "m2"):
        with pytest.raises(NotFound):
            fairness.tasks.explain(cancelled)


def test_the_queues_of_parked_tasks_are_shown_nowhere(run, make_fairness, redis_url, client):
    client.flushdb()
    gate = make_fairness(url=redis_url)
    parked_at(gate, "m1", "m2")
    parked_at(gate, "m3", word="db|C1|w")
    assert len(parts_of(gate).limiter.promote(1).tasks) == 1
    fairness = make_fairness()
    status = fairness.stats.status()
    # A promoted task has slots and does not run.
    assert (status.owners, status.running) == ((), 0)
    commands = ("status", "queue list", "limit list", "limit show api")
    commands += ("tenant show 42", "task explain m1", "limit show api --json")
    for command in commands:
        shown = run(*command.split(), of=fairness)
        assert shown.exit_code == 0, command
        assert "@parked" not in shown.output, command
    shown = run("tenant", "show", "42", of=fairness).output
    assert "(parked) 0 2" in " ".join(shown.split())
    keys = " ".join(run("limit", "list", of=fairness).output.split())
    assert "api 0 0 2 declared by its tasks" in keys
    assert "tenant:42 free 1 1 2 tier free" in keys
    assert "(parked)" in run("limit", "show", "api", of=fairness).output


@pytest.mark.parametrize("task_id", ["é", 'order"7', "a\\b", "a\nb", "a/b", "*", "x;touch${IFS}y"])
def test_an_id_of_any_letters_is_found(run, shop, task_id):
    send(shop, "42", task_id)
    send(shop, "42", "another", eta_ms=9_000_000_000_000)
    assert run("task", "explain", task_id).exit_code == 0
    assert run("task", "cancel", task_id).exit_code == 0
    bury(shop, "43", task_id, tag="again")
    assert json.loads(run("task", "dead", "--json").stdout)["items"][0]["task_id"] == task_id
    assert run("task", "requeue", task_id).exit_code == 0
    assert run("task", "explain", "another").exit_code == 0


def test_an_id_is_shown_and_given_to_a_shell_as_it_is(run, shop):
    send(shop, "42", "\x1b]0;owned\x07")
    assert "\x1b" not in run("task", "cancel", "\x1b]0;owned\x07").output
    send(shop, "42", "x;touch y")
    assert len(shop.claim()) == 1
    assert run("task", "cancel", "x;touch y").output.endswith("terminate SIGTERM 'x;touch y'\n")


@pytest.mark.parametrize("said", [None, True, {"a": 1}, [1]])
def test_an_id_that_is_none_is_that_of_no_task(run, shop, said):
    send(shop, "42", said)
    assert run("task", "cancel", str(said)).exit_code == 1
    assert run("task", "cancel", tag_of(str(said))).exit_code == 0


def test_one_message_that_cannot_be_read_hides_no_dead_letter(run, shop):
    nested = json.dumps({"headers": {"id": "deep"}})[:-2] + ', "deep": ' + "[" * 9_000
    shop.run(calls.PUT, calls.put_args(Waiting("celery", "deep", "41", message=nested)))
    (task,) = shop.claim()
    shop.settle(task, Verdict.UNREADABLE)
    bury(shop, "42", "first")
    found = json.loads(run("task", "dead", "--json").stdout)["items"]
    assert [each["task_id"] for each in found] == ["first", "deep"]


def test_all_messages_of_one_id_are_cancelled_and_one_that_runs_is_told(run, shop):
    for tag in ("first", "second"):
        send(shop, "42", "twice", tag=tag, queue=tag)
    assert run("task", "cancel", "twice").output.startswith(
        "task twice: cancelled; it waited in queue "
    )
    assert run("task", "cancel", "twice").exit_code == 1
    send(shop, "42", "again", tag="runs")
    assert len(shop.claim()) == 1
    send(shop, "42", "again", tag="waits", eta_ms=9_000_000_000_000)
    done = run("task", "cancel", "again")
    assert (done.exit_code, "runs at worker-1" in done.output) == (1, True)
    assert json.loads(run("status", "--json").stdout)["queues"][0]["delayed"] == 0


def test_many_messages_of_one_id_are_found_and_cancelled_in_pages(run, shop, fairness, monkeypatch):
    for number in range(25):
        send(shop, "42", "same", tag=f"tag{number:03}")
    pages = []
    run_script = type(parts_of(fairness).limiter.connection).run

    def counted(self, name, prefix, args, *rest):
        answer = run_script(self, name, prefix, args, *rest)
        if name == calls.FIND:
            pages.append(len(answer) - 1)
        if name == calls.CANCEL:
            assert len(answer) <= 50
        return answer

    monkeypatch.setattr(type(parts_of(fairness).limiter.connection), "run", counted)
    assert run("task", "explain", "same").exit_code == 0
    # One page has a task that waits, however many there are.
    assert pages == [11]
    pages.clear()
    assert run("task", "cancel", "same").exit_code == 0
    assert pages == [11, 10, 4]


def test_no_message_of_an_id_is_missed_if_older_ones_end_meanwhile(
    run, shop, fairness, monkeypatch
):
    for number in range(120):
        send(shop, "42", "same", tag=f"tag{number:03}")
    run_script = type(parts_of(fairness).limiter.connection).run
    unlimited = iter([Rules(default_limit=None)])

    def meanwhile(self, name, prefix, args, *rest):
        answer = run_script(self, name, prefix, args, *rest)
        for rules in unlimited if name == calls.FIND else ():
            for task in shop.claim(want=30, rules=rules):
                shop.settle(task)
        return answer

    monkeypatch.setattr(type(parts_of(fairness).limiter.connection), "run", meanwhile)
    assert run("task", "cancel", "same").exit_code == 0
    assert not any(each["waiting"] for each in json.loads(run("status", "--json").stdout)["queues"])


@pytest.mark.parametrize("verb", ["cancel", "requeue", "purge"])
def test_an_answer_that_is_lost_on_the_way_is_the_same_when_it_is_asked_again(
    fairness, shop, monkeypatch, verb
):
    names = []
    run_script = type(parts_of(fairness).limiter.connection).run

    def twice(self, name, *args):
        if name not in (calls.CANCEL, calls.REQUEUE):
            return run_script(self, name, *args)
        names.append(name)
        run_script(self, name, *args)
        return run_script(self, name, *args)

    if verb == "requeue":
        bury(shop, "42", "first")
    else:
        send(shop, "42", "first")
    monkeypatch.setattr(type(parts_of(fairness).limiter.connection), "run", twice)
    if verb == "cancel":
        assert fairness.tasks.cancel("first").state == "cancelled"
    elif verb == "purge":
        assert fairness.tenants.purge("42").cancelled == 1
    else:
        assert fairness.tasks.requeue("first").queue == "celery"
    assert names
    assert fairness.stats.counters().get("cancelled", 0) == (0 if verb == "requeue" else 1)


def test_a_purge_goes_on_behind_another_tenants_tasks_in_one_lane(fairness, shop, check):
    # Both have the key tenant:42:pdf: the one of an installation where each service counts apart.
    for number in range(60):
        send(shop, "42:pdf", f"other{number}")
    for number in range(60):
        send(shop, "42", f"its{number}", service="pdf")
    assert fairness.tenants.purge("42").cancelled == 60
    assert not check().findings


@pytest.mark.parametrize("act", ["purge", "set_tier"])
def test_the_tasks_of_a_tenant_are_found_however_many_others_wait(
    fairness, installation, client, act
):
    def commands():
        return sum(each["calls"] for each in client.info("commandstats").values())

    fairness.tenants.purge("nobody")
    used = []
    for others in (3, 400):
        for number in range(others):
            installation.put(f"{others}.{number}", f"w{others}.{number}")
            installation.put(f"{others}.{number}", f"l{others}.{number}", eta_ms=9_000_000_000_000)
        installation.put("mine", f"mw{others}")
        installation.put("mine", f"ml{others}", eta_ms=9_000_000_000_000)
        before = commands()
        # The clock is due, however fast this machine is.
        client.hincrby(installation.key("clock"), "seen", -50)
        if act == "purge":
            assert fairness.tenants.purge("mine").cancelled == 2
        else:
            fairness.tenants.set_tier("mine", "pro")
            fairness.tenants.set_tier("mine", "free")
        used.append(commands() - before)
    assert used[0] == used[1] < 150


def test_no_command_but_the_check_searches_the_names_of_all_keys(fairness, installation, client):
    installation.put("42", "t1")
    installation.put("42", "t2", eta_ms=9_000_000_000_000)
    installation.put("43", "t3")
    client.config_resetstat()
    fairness.tenants.purge("42")
    fairness.tenants.set_tier("43", "pro")
    fairness.stats.status()
    fairness.tasks.dead_letters()
    fairness.limits.list()
    assert "cmdstat_scan" not in client.info("commandstats")
    fairness.check()
    assert "cmdstat_scan" in client.info("commandstats")
