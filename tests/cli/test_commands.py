"""The commands: what they show, in text and in JSON, and how they exit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict
from celery_fairness.texts.status import table
from tests.cli.conftest import RULES, Installation
from tests.support.parts import parts_of
from tests.support.redis_server import RedisServer

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct-horse-battery"
COMMANDS = (["status"], ["limit", "show", "tenant:42"], ["check"])

every_command = pytest.mark.parametrize("args", COMMANDS, ids=lambda args: args[0])


def lines_of(result):
    return [" ".join(line.split()) for line in result.output.splitlines()]


def test_status_shows_queues_owners_and_tiers(installation, run):
    installation.client.hset(installation.key("counters"), "expired", 2)
    done = run("status")
    assert done.exit_code == 0
    lines = lines_of(done)
    assert "dispatch path" in lines[0]
    counts = "waiting startable at tier limit at other limit paused oldest wait"
    assert f"queue {counts} running delayed dead" in lines
    rows = [re.sub(r"\d+\.\d s", "WAIT", line) for line in lines]
    assert "celery 3 1 2 0 0 WAIT 1 1 1" in rows
    assert "other 1 1 0 0 0 WAIT 0 0 0" in rows
    assert "worker-1 1" in lines
    assert "tier concurrency burst rate throttle weight queue class max waiting rejected" in lines
    assert "free 1 unlimited unlimited 1 default unlimited 1" in lines
    assert "expired 2" in lines
    assert "\x1b" not in done.output


def test_status_in_json_has_the_same_facts(installation, run):
    found = json.loads(run("status", "--json").stdout)
    assert found["path"] == "dispatch"
    (queue,) = (each for each in found["queues"] if each["queue"] == "celery")
    tenants, waits = queue.pop("tenants"), queue.pop("oldest_wait_seconds")
    assert queue == {
        "queue": "celery",
        "waiting": 3,
        "delayed": 1,
        "running": 1,
        "dead": 1,
        "active": 1,
        "blocked": 1,
        "startable": 1,
        "blocked_tasks": {"tier": 2},
        "limits": [],
        "is_complete": True,
    }
    first = {each["key"]: each for each in tenants}["tenant:42"]
    assert first.pop("waits_seconds") == pytest.approx(waits, abs=1)
    assert first == {
        "key": "tenant:42",
        "tier": "free",
        "weight": 1.0,
        "limit": 1,
        "held": 1,
        "entitled": 0.5,
        "waiting": 2,
        "startable": 0,
        "state": "tier",
    }
    assert found["owners"] == [{"owner": "worker-1", "leases": 1}]
    assert found["verdict"]["line"] == "no worker takes queue celery, queue other: 4 tasks wait"


def test_a_queue_in_which_something_only_waits_for_its_time_or_is_dead_is_shown(client, run):
    installation = Installation(client)
    installation.put("42", "l1", queue="tomorrow", eta_ms=9_000_000_000_000)
    installation.put("42", "d1", queue="graves")
    (task,) = installation.claim(queue="graves")
    installation.settle(task, Verdict.BEGUN)
    installation.settle(task, Verdict.DIED)
    lines = lines_of(run("status"))
    assert "tomorrow 0 0 1 0" in lines
    assert "graves 0 0 0 1" in lines


def test_a_status_shows_the_queues_with_the_most_tasks_and_a_list_shows_all(client, run):
    installation = Installation(client)
    names = [f"q{number:03d}" for number in range(105)]
    for name in names:
        installation.put("42", f"t-{name}", queue=name)
    installation.put("42", "more", queue="q104")
    lines = lines_of(run("status"))
    shown = [line.partition(" ")[0] for line in lines if line.startswith("q1")]
    assert "q104" in shown
    assert "q103" not in shown
    assert any(line.endswith("with fewer waiting tasks: queue list shows all") for line in lines)
    assert {line.partition(" ")[0] for line in lines_of(run("queue", "list"))} >= set(names)


def test_a_worker_whose_queues_have_changed_is_listed_once_with_the_new_ones(client, run):
    installation = Installation(client)
    same = {"name": "celery@web", "pid": 7, "path": "dispatch", "enforcement": "on"}
    for age_ms, queues in ((1, ["celery", "other"]), (0, ["celery"])):
        status = json.dumps({**same, "places": 4, "queues": queues})
        installation.run(calls.ANNOUNCE, calls.announce_args(RULES, status, 15_000 - age_ms, None))
    (worker,) = json.loads(run("status", "--json").stdout)["workers"]
    assert worker["queues"] == ["celery"]


def test_a_queue_shows_its_tenants_the_longest_wait_first_and_why_they_wait(client, run):
    installation = Installation(client)
    for number in range(3):
        installation.put("flood", f"f{number}", limits="api|C1|w")
    installation.put("quiet", "q1")
    assert len(installation.claim(want=1)) == 1
    installation.put("paused", "p1")
    run("tenant", "pause", "paused")
    installation.claim(want=0)
    lines = lines_of(run("queue", "show", "celery"))
    heads = "tenant tier limit held entitled waiting startable state first waits"
    first = lines.index(heads) + 1
    # Without the last two words, the time that the first task has waited.
    rows = [line.rsplit(" ", 2)[0] for line in lines[first : first + 3]]
    assert rows[0].startswith("tenant:flood ")
    assert sorted(rows) == [
        "tenant:flood free 1 1 0.5 2 0 tier",
        "tenant:paused free 0 0 0.0 1 0 paused",
        "tenant:quiet free 1 0 0.5 1 1 ready",
    ]


def test_on_the_gate_path_status_shows_tiers_and_rejections(client, redis_url, make_fairness, run):
    client.hset("{fairness}:counters", mapping={"rejected:free": 7, "opened": 1})
    gate = make_fairness(url=redis_url)
    lines = lines_of(run("status", of=gate))
    assert lines[0].startswith("gate path")
    assert "tier concurrency burst rate throttle weight queue class max waiting rejected" in lines
    assert "free 1 unlimited unlimited 1 default unlimited 7" in lines
    assert "opened 1" in lines
    assert json.loads(run("status", "--json", of=gate).stdout)["queues"] == []


def test_no_more_tasks_wait_at_limits_than_wait_at_all(installation, client, fairness):
    """A count was lost with an eviction, or tasks came between two calls of a status."""
    installation.announce("celery", "other")
    for number in range(33):
        installation.put("flood", f"f{number}")
    installation.claim()
    client.hset("{fairness}:waiting", "celery", 2)
    (queue,) = (each for each in fairness.stats.status().queues if each.queue == "celery")
    held_back = sum(queue.blocked_tasks.values())
    assert held_back > 2
    assert queue.startable is not None
    assert queue.waiting >= held_back + queue.startable


def test_status_shows_how_many_tasks_of_a_tenant_may_wait(make_fairness, run):
    of = make_fairness(fairness={"tiers": {"free": {"max_waiting": 1000}}})
    assert "free 1 unlimited unlimited 1 default 1000 0" in lines_of(run("status", of=of))
    tiers = json.loads(run("status", "--json", of=of).stdout)["tiers"]
    most = {each["tier"]: each["max_waiting"] for each in tiers}
    assert most == {"enterprise": None, "free": 1000, "pro": None, "pro_plus": None}
    assert {each.tier: each.max_waiting for each in of.stats.status().tiers} == most


def test_on_the_gate_path_a_check_compares_what_is_there(redis_url, make_fairness, run):
    done = run("check", of=make_fairness(url=redis_url))
    assert done.exit_code == 0
    assert done.output == "0 findings in 0 keys\n"


def test_inspect_shows_leases_lanes_and_that_a_tenant_is_closed(installation, run):
    done = run("limit", "show", "tenant:42")
    assert done.exit_code == 0
    lines = lines_of(done)
    assert lines[0] == "tenant:42: tier free, limit 1, held 1, weight 1"
    assert lines[1] == "limit 1: tier free"
    assert lines[2] == "at its limit in celery; checked with config version 0"
    (lease,) = (line for line in lines if line.startswith("t0 "))
    assert lease.endswith("claimed shop.export celery worker-1")
    assert "celery 5 2" in lines


def test_inspect_in_json_has_the_same_facts(installation, run):
    found = json.loads(run("limit", "show", "tenant:42", "--json").stdout)
    (lease,) = found.pop("leases")
    assert 0 < lease.pop("expires_in_seconds") <= 15
    assert 0 <= lease.pop("held_seconds") <= 15
    assert lease == {
        "id": "t0.1.1",
        "owner": "worker-1",
        "queue": "celery",
        "state": "claimed",
        "task": "shop.export",
        "charged": "tenant:42",
        "task_id": "t0",
        "usual_seconds": None,
        "slots": 1,
    }
    assert found == {
        "key": "tenant:42",
        "concurrency": {
            "limit": 1,
            "active": 1,
            "available": 0,
        },
        "waiting_count": 2,
        "delayed_count": 0,
        "tier": "free",
        "limit": 1,
        "in_force": {
            "limit": 1,
            "reasons": [
                {
                    "kind": "tier",
                    "limit": 1,
                    "tier": "free",
                    "until": None,
                    "since": None,
                    "by": "",
                    "why": "",
                    "pattern": "",
                    "pause_of": "",
                }
            ],
        },
        "held": 1,
        "ended_unswept": 0,
        "blocked_by": "concurrency",
        "opens_in_seconds": None,
        "burst": None,
        "weight": 1.0,
        "published": False,
        "waiting": [{"queue": "celery", "rank": 5, "tasks": 2}],
        "at_limit": True,
        "full_in": ["celery"],
        "checked_by": 0,
        "waited": [],
        "local_limit": None,
        "holds": {
            "key": "tenant:42",
            "paused": False,
            "cool_down_seconds": 0.0,
            "pause_seconds": None,
            "paused_until": None,
            "paused_since": None,
            "paused_by": "",
            "pause_of": "",
            "cools_until": None,
            "reported_left": None,
            "reported_until": None,
        },
        "saving": None,
        "unknown": "",
        "known": True,
    }


def test_inspect_judges_by_the_tier_that_came_with_the_tasks(client, run):
    Installation(client).put("43", "t1", tier="enterprise")
    assert "tier enterprise, limit 5" in run("limit", "show", "tenant:43").output


def test_inspect_shows_what_came_back_and_weight(installation, fairness, run):
    fairness.tenants.set_tier("back", "pro", concurrency=None)
    lines = lines_of(run("limit", "show", "tenant:back"))
    assert lines[0] == "tenant:back: tier pro, limit unlimited, held 0, weight 1"
    assert "no leases" in lines
    assert "celery 0 1" in lines


def test_a_closed_tenant_whose_tier_was_said_anew_will_be_judged_anew(installation, run):
    installation.put("42", "t9", tier="pro")
    assert "the next claim checks it again" in run("limit", "show", "tenant:42").output


def test_inspect_takes_the_tenant_as_it_is(client, run):
    from celery_fairness.config.tenants import key_part

    Installation(client).put(key_part("me@example.org"), "t1")
    assert run("limit", "show", "tenant:me@example.org").exit_code == 0


def test_inspect_shows_tasks_without_a_tenant(installation, run):
    done = run("limit", "show", "_system")
    assert done.exit_code == 0
    assert lines_of(done)[0] == "_system: limit unlimited, held 0, weight 1"
    assert "other 0 1" in lines_of(done)


def test_inspect_shows_leases_of_the_gate(client, redis_url, make_fairness, run):
    from celery_fairness.limiter.types import Lease, SlotRequest

    gate = make_fairness(url=redis_url)
    parts_of(gate).limiter.acquire(SlotRequest(Lease("l1", "tenant:42"), "42", "free"))
    lines = lines_of(run("limit", "show", "tenant:42", of=gate))
    assert "held by lease ends in" in lines
    assert "nothing waits" in lines


def test_a_key_of_which_nothing_is_kept_exits_with_1(installation, run):
    done = run("limit", "show", "tenant:stranger")
    assert done.exit_code == 1
    assert "idle or never seen" in done.output
    assert json.loads(run("limit", "show", "tenant:stranger", "--json").stdout)["known"] is False


def test_a_check_that_finds_nothing_prints_one_line(installation, run):
    done = run("check")
    assert done.exit_code == 0
    (line,) = done.output.splitlines()
    assert line.startswith("0 findings in ")


def test_a_check_shows_what_it_found_and_a_repair_what_it_did(installation, run):
    installation.client.zadd(installation.key("leases:tenant:7"), {"gone.1": "inf"})
    done = run("check")
    assert done.exit_code == 1
    head, _, *found = lines_of(done)
    assert head.startswith("1 finding in ")
    assert found == [
        "leases:tenant:7 gone.1",
        "no task runs under this lease",
        "celery -A APP fairness check --repair",
    ]
    done = run("check", "--json")
    assert (done.exit_code, done.stderr) == (1, "")
    (told,) = json.loads(done.stdout)["findings"]
    assert (told["check"], told["key"]) == ("slot_without_task", "leases:tenant:7")
    done = run("check", "--repair")
    assert done.exit_code == 0
    assert lines_of(done)[-1] == "repaired: gave the slot back"
    assert run("check").output.startswith("0 findings in ")


def test_a_repair_that_leaves_something_exits_with_1(installation, run):
    installation.client.delete(installation.key("lane:tenant:back 0 shop.work celery"))
    done = run("check", "--repair")
    assert done.exit_code == 1
    assert "read its message with HGET" in done.output
    assert "repaired: counted them" in done.output


def test_a_terminal_sees_how_far_a_check_is(installation, run, monkeypatch):
    keys = len(installation.client.keys("{fairness}:*"))
    assert run("check").stderr == ""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    assert run("check").stderr == f"\r{keys} keys compared\n"


def test_a_user_without_the_right_to_load_functions_is_told(
    redis_server, without_check_library, make_fairness, run
):
    rights = ["~*", "&*", "+@all", "-function|load"]
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "operator", "reset", "on", ">pw", *rights)
        client.hset("{fairness}:counters", "opened", 1)
        try:
            url = redis_server.url.replace("redis://", "fairredis://operator:pw@")
            done = run("check", of=make_fairness(url=url))
        finally:
            client.execute_command("ACL", "DELUSER", "operator")
            client.delete("{fairness}:counters")
    assert done.exit_code == 69
    assert (
        "the user may not load functions, grant +fcall +function|list +function|load" in done.stderr
    )
    assert "pw" not in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["limit", "show"],
        ["limit", "show", "of mine"],
        ["limit", "show", "tenant:"],
        ["limit", "show", "tenant:1", "tenant:2"],
        ["status", "--yaml"],
        ["look"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_says_what_is_expected(fairness, run, args):
    done = run(*args)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Usage:" in done.stderr


def test_a_setting_that_cannot_be_meant_exits_with_2(make_fairness, run):
    done = run("status", of=make_fairness(fairness={"lease_second": 3}))
    assert done.exit_code == 2
    assert "lease_second" in done.stderr


@every_command
def test_a_password_is_not_shown(make_fairness, run, args):
    server = RedisServer().start()
    try:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        guarded = server.url.replace("redis://", f"fairredis://:{PASSWORD}@")
        fairness = make_fairness(url=guarded)
        for more in ([], ["--json"]):
            done = run(*args, *more, of=fairness)
            assert done.exit_code in (0, 1)
            assert done.stdout
            assert PASSWORD not in done.output
        # The server's own words, where the password is wrong.
        wrong = make_fairness(url=guarded.replace(PASSWORD, f"{PASSWORD}2"))
        done = run(*args, of=wrong)
        assert done.exit_code == 69
        assert PASSWORD not in done.output
        assert "answers with an error: invalid username-password pair" in done.stderr
    finally:
        server.stop()


@every_command
def test_a_terminal_has_colours_unless_told_otherwise(installation, run, args):
    assert "\x1b[" in run(*args, terminal=True).output
    assert "\x1b" not in run(*args).output
    assert "\x1b" not in run(*args, terminal=True, no_color=True).output


def test_a_name_from_a_message_does_not_steer_the_terminal(client, run):
    Installation(client).put("42", "t1", queue="red\x1b[31m")
    assert "red\\x1b[31m" in run("status", terminal=True).output


def test_numbers_stand_to_the_right_and_text_to_the_left():
    heads, *rows = table(("name", "count"), [("a", 5), ("long", 1234567)])
    assert rows == ["a           5", "long  1234567"]
    assert "name    count" in heads


def celery(*args, env):
    return subprocess.run(
        [sys.executable, "-m", "celery", *args],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_celery_finds_the_commands(installation, redis_url):
    env = {"CELERY_BROKER_URL": f"fair{redis_url}", "CELERY_RESULT_BACKEND": redis_url}
    done = celery("-A", "tests.support.shop", "fairness", "status", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert [each["waiting"] for each in json.loads(done.stdout)["queues"]][:3] == [3, 1, 0]
    done = celery("fairness", "status", env=env)
    assert done.returncode == 2
    assert "celery -A APP fairness" in done.stderr


def test_a_celery_command_loads_nothing_of_ours_but_the_names_of_the_commands():
    code = (
        "import sys, celery_fairness.cli.commands; "
        "print([m for m in sys.modules if m.startswith(('celery.', 'kombu', 'redis', 'pydantic'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


APP_WITH_AN_OPTION = """
from celery import Celery
from click import Option
from celery_fairness import Fairness

app = Celery("options", broker="fairredis://127.0.0.1:1/0")
app.user_options["preload"].add(Option(("--region",)))
Fairness(app)
"""


@pytest.mark.parametrize("given", [(), ("--region", "eu")])
def test_an_option_that_an_app_adds_to_every_command_disturbs_none(tmp_path, given):
    (tmp_path / "options.py").write_text(APP_WITH_AN_OPTION)
    env = {"PYTHONPATH": str(tmp_path)}
    done = celery("-A", "options", "fairness", *given, "limit", "show", "api", env=env)
    assert done.returncode == 69, done.stderr
    assert "does not answer" in done.stderr
