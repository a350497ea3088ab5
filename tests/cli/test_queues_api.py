"""``queue-limit``, and what ``inspect``, ``list``, ``explain`` and ``check`` say of queues."""

from __future__ import annotations

import json

import pytest

from celery_fairness.app.publish_settings import publish_queues
from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.control.queue.views import QueueLimit
from celery_fairness.errors import NotFound, PolicyInvalid
from celery_fairness.message.partition import partition_limit_text
from tests.cli.conftest import Installation
from tests.support.parts import parts_of

HOSTILE = ["a b\n}|,", "a:b", "h_1", "ü", "x" * 300]


def told(tag):
    return json.dumps({"headers": {"id": tag, "task": "shop.work"}})


def declare(fairness, **queues):
    settings = type(fairness.settings).model_validate({"queues": queues})
    publish_queues(parts_of(fairness).limiter, settings.queues)


def test_a_limit_is_set_shown_and_cleared(run, fairness):
    done = run("queue", "show", "emails")
    assert (done.exit_code, done.output) == (
        1,
        "celery fairness: queue 'emails' has no limit, and no task was in it\n",
    )
    done = run("queue", "limit", "emails", "--global-limit", "5", "--rate", "100/1m")
    line = "emails: global_limit 5, rate 100/PT1M, on limit wait; set by an operator; 0 running\n"
    assert (done.exit_code, done.output) == (0, line)
    assert run("queue", "show", "emails").output.endswith(line)
    done = run("queue", "limit", "emails", "--clear")
    assert done.output == "emails: its numbers are those of the settings again\n"
    done = run("queue", "limit", "emails", "--clear")
    assert (done.exit_code, done.output) == (1, "emails: nothing was set\n")
    with pytest.raises(NotFound):
        fairness.queues.inspect("emails")


def test_s31_the_limit_of_a_queue_has_the_same_facts_in_python_and_json(run, fairness):
    made = fairness.queues.set_limit(
        "emails", global_limit=0, local_limit=2, throttle="2/PT1S", on_limit="drop"
    )
    window = {"limit": 2, "period": "PT1S"}
    assert made == QueueLimit(
        queue="emails",
        key="queue:emails",
        source="people",
        partition=None,
        global_limit=0,
        local_limit=2,
        rate=None,
        throttle=window,
        on_limit="drop",
        held=0,
    )
    assert fairness.queues.inspect("emails").limit == made
    shown = json.loads(run("queue", "show", "emails", "--json").output)["limit"]
    assert shown["throttle"] == window
    assert shown["global_limit"] == 0
    assert fairness.queues.clear_limit("emails")
    assert not fairness.queues.clear_limit("emails")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--global-limit", "-1"), "global_limit: expected a whole number from 0"),
        (("--local-limit", "many"), "local_limit: expected a whole number from 0"),
        (("--rate", "5"), "rate: expected 'LIMIT/PERIOD'"),
        (("--on-limit", "wiat"), "'wiat' is not one of 'wait', 'reschedule', 'drop'"),
        (("--clear", "--rate", "unlimited"), "expected numbers, or --clear alone"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(run, client, args, problem):
    done = run("queue", "limit", "emails", *args)
    assert done.exit_code == 2
    assert problem in done.output
    assert not client.exists("{fairness}:queue_limits")


@pytest.mark.parametrize("queue", ["", 5, None, "\ud800", "@parked:jobs"])
def test_a_queue_is_named_by_text(fairness, queue):
    with pytest.raises(PolicyInvalid, match="queue: expected"):
        fairness.queues.set_limit(queue, global_limit=1)


@pytest.mark.parametrize("queue", HOSTILE)
def test_a_queue_of_any_name_is_limited(client, fairness, queue):
    installation = Installation(client)
    fairness.queues.set_limit(queue, global_limit=1)
    for number in range(3):
        installation.put(f"u{number}", f"t{number}", queue)
    (task,) = installation.claim(queue=queue)
    assert fairness.queues.inspect(queue).limit.held == 1
    assert fairness.queues.inspect(queue).limit.key == queue_key(queue)
    assert fairness.check().findings == ()
    installation.settle(task)
    assert fairness.queues.inspect(queue).limit.held == 0


@pytest.mark.parametrize("queue", ["emails", "a b\n}|,"])
def test_a_queue_that_nobody_limited_is_paused_by_its_key(client, fairness, run, queue):
    installation = Installation(client)
    installation.put("42", "t1", queue)
    assert fairness.limits.pause(f"queue:{queue}").paused
    assert installation.claim(queue=queue) == []
    assert not fairness.limits.resume(f"queue:{queue}").paused
    assert len(installation.claim(queue=queue)) == 1
    assert fairness.check().findings == ()


@pytest.mark.parametrize("named", ["queue:a:b", queue_key("a:b")])
def test_a_queue_with_a_colon_in_its_name_is_steered_by_name_and_as_it_is_shown(
    client, fairness, run, named
):
    installation = Installation(client)
    for number in range(3):
        installation.put(f"u{number}", f"t{number}", "a:b")
    assert run("limit", "pause", named).output.startswith(
        f"{queue_key('a:b')}: paused until it is resumed,"
    )
    assert installation.claim(queue="a:b") == []
    assert fairness.limits.inspect(named).holds.paused
    assert not fairness.limits.resume(named).paused
    assert fairness.limits.override(named, concurrency=1).limit == 1
    assert len(installation.claim(queue="a:b")) == 1
    assert fairness.limits.clear_override(named)
    fairness.limits.cool_down(named, for_seconds=60)
    assert installation.claim(queue="a:b") == []
    assert not fairness.limits.clear_cool_down(named).cool_down_seconds
    assert len(installation.claim(queue="a:b")) == 2
    assert fairness.limits.inspect(named).key == queue_key("a:b")
    assert fairness.check().findings == ()


@pytest.mark.parametrize("where", ["settings", "limit"])
def test_a_queue_is_known_before_anything_waits_in_it(client, make_fairness, where):
    fairness = make_fairness(fairness={"queues": {"a:b": {}} if where == "settings" else {}})
    if where == "limit":
        fairness.queues.set_limit("a:b", global_limit=5)
    assert fairness.limits.pause("queue:a:b").key == queue_key("a:b")
    installation = Installation(client)
    installation.put("42", "t1", "a:b")
    assert installation.claim(queue="a:b") == []


def test_a_partition_is_steered_by_its_key_and_a_key_that_is_used_is_meant(client, fairness):
    parts_of(fairness).limiter.limit_queue("declare", "a", None, Limit("", concurrency=5))
    assert fairness.limits.pause("queue:a:b").key == "queue:a:b"
    assert not fairness.limits.resume("queue:a:b").paused
    installation = Installation(client)
    word = partition_limit_text("queue:a:b")
    installation.put("42", "t1", "a", limits=word)
    installation.put("42", "t2", "a:b")
    fairness.limits.override("queue:a:b", concurrency=0)
    assert installation.claim(queue="a") == []
    assert len(installation.claim(queue="a:b")) == 1


@pytest.mark.parametrize("named", ["queue:a:b", queue_key("a:b")])
def test_what_may_be_several_things_and_is_none_is_rejected(client, fairness, run, named):
    done = run("limit", "pause", named)
    assert done.exit_code == 2
    assert "queue or partition of which anything is known" in " ".join(done.stderr.split())
    assert "queue limit QUEUE" in done.stderr
    for say in (
        lambda: fairness.limits.override(named, concurrency=1),
        lambda: fairness.limits.cool_down(named, for_seconds=5),
    ):
        with pytest.raises(ValueError, match="of which anything is known"):
            say()
    assert not client.exists("{fairness}:changes", "{fairness}:cool_downs")


def test_an_override_and_a_cool_down_of_a_queue_hold(client, fairness):
    installation = Installation(client)
    fairness.limits.override("queue:emails", concurrency=1)
    for number in range(3):
        installation.put(f"u{number}", f"t{number}", "emails")
    (task,) = installation.claim(queue="emails")
    fairness.limits.clear_override("queue:emails")
    fairness.limits.cool_down("queue:emails", for_seconds=60)
    assert installation.claim(queue="emails") == []
    fairness.limits.clear_cool_down("queue:emails")
    assert len(installation.claim(queue="emails")) == 2
    installation.settle(task)


def test_a_starting_worker_declares_and_takes_back(client, fairness, caplog):
    limit = {"global_limit": 3, "by_kind": True, "partition": {"concurrency": 2}}
    declare(fairness, emails=limit, plain={"max_waiting": 5})
    made = fairness.queues.inspect("emails").limit
    assert (made.source, made.global_limit) == ("settings", 3)
    assert (made.partition.source, made.partition.concurrency) == ("settings", 2)
    with pytest.raises(NotFound):
        fairness.queues.inspect("plain")
    assert caplog.text == ""
    fairness.queues.set_limit("emails", global_limit=1)
    declare(fairness, emails={"global_limit": 4})
    assert "queue 'emails': this worker's settings declare another limit" in caplog.text
    assert fairness.queues.inspect("emails").limit.global_limit == 1
    fairness.queues.clear_limit("emails")
    assert fairness.queues.inspect("emails").limit.global_limit == 4
    declare(fairness)
    with pytest.raises(NotFound):
        fairness.queues.inspect("emails")
    assert not client.exists("{fairness}:queue_limits")


def test_inspect_and_list_know_the_key_of_a_queue(client, fairness, run):
    installation = Installation(client)
    fairness.queues.set_limit("emails", global_limit=2)
    installation.put("42", "t1", "emails")
    installation.claim(queue="emails")
    state = fairness.limits.inspect("queue:emails")
    assert (state.limit, state.held, state.known) == (2, 1, True)
    assert "queue:emails" in [each.key for each in fairness.limits.list().items]


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [({"global_limit": 1}, "concurrency"), ({"rate": "1/PT1M"}, "rate")],
)
def test_explain_names_the_queue_s_limit(client, fairness, numbers, reason):
    installation = Installation(client)
    fairness.queues.set_limit("emails", **numbers)
    for tag in ("t1", "t2"):
        args = {"queue": "emails"}
        waiting = {"message": told(tag)}
        put_with(installation, tag, args, waiting)
    installation.claim(queue="emails")
    (blocker,) = fairness.tasks.explain("t2").blocked_by
    assert (blocker.key, blocker.reason, blocker.held) == ("queue:emails", reason, 1)
    assert (blocker.opens_in_seconds is None) == (reason == "concurrency")


def put_with(installation, tag, args, waiting):
    from celery_fairness.scheduler import calls
    from celery_fairness.scheduler.types import Waiting

    made = Waiting(args["queue"], tag, f"u{tag}", task_id=tag, **waiting)
    installation.run(calls.PUT, calls.put_args(made))


def test_partitions_that_wait_are_no_finding_and_are_shown(client, fairness):
    installation = Installation(client)
    declare(fairness, emails={"partition": {"concurrency": 1}, "by_args": ["customer_id"]})
    for number in range(6):
        word = partition_limit_text(f"queue:emails:{number % 2}")
        installation.put(f"u{number}", f"t{number}", "emails", limits=word)
    assert len(installation.claim(queue="emails")) == 2
    installation.claim(queue="emails")
    (waited,) = fairness.limits.inspect("queue:emails:1").waited
    assert (waited.numbers["concurrency"], waited.state, waited.tasks) == (1, "exhausted", 2)
    assert fairness.check().findings == ()
    fairness.queues.set_limit("emails", partition={"concurrency": 0})
    installation.claim(queue="emails")
    assert fairness.check().findings == ()


def test_the_whole_queue_and_each_partition_are_set_shown_and_cleared_apart(run, fairness):
    declare(fairness, mails={"global_limit": 9, "by_kind": True, "partition": {"concurrency": 3}})
    done = run("queue", "limit", "mails", "--partition-concurrency", "2", "--partition-rate", "9/m")
    assert done.output.splitlines() == [
        "mails: global_limit 9, on limit wait; of the settings; 0 running",
        "mails, each partition: concurrency 2, rate 9/PT1M, on limit wait; set by an operator",
    ]
    found = fairness.queues.set_limit("mails", global_limit=4, on_limit="drop")
    assert (found.global_limit, found.partition.concurrency) == (4, 3)
    assert (found.source, found.partition.source) == ("people", "settings")
    fairness.queues.set_limit("mails", partition={})
    assert fairness.queues.inspect("mails").limit.partition.concurrency is None
    assert fairness.queues.clear_limit("mails")
    found = fairness.queues.inspect("mails").limit
    assert (found.global_limit, found.partition.concurrency) == (9, 3)


def test_explain_names_which_of_the_two_limits_of_a_queue_is_closed(client, fairness):
    installation = Installation(client)
    declare(fairness, mails={"global_limit": 2, "by_args": ["c"], "partition": {"concurrency": 1}})
    for number, part in enumerate("112"):
        limits = partition_limit_text(f"queue:mails:{part}")
        put_with(
            installation, f"t{number}", {"queue": "mails"}, {"message": told("t"), "limits": limits}
        )
    installation.claim(queue="mails", want=1)
    (blocker,) = fairness.tasks.explain("t1").blocked_by
    assert (blocker.key, blocker.limit) == ("queue:mails:1", 1)
    installation.claim(queue="mails")
    found = {each.key: each.limit for each in fairness.tasks.explain("t1").blocked_by}
    assert found == {"queue:mails": 2, "queue:mails:1": 1}


@pytest.mark.parametrize("where", ["settings", "row"])
def test_numbers_of_partitions_need_partitions(make_fairness, where):
    queues = {"mails": {"by_kind": True}} if where == "settings" else {}
    fairness = make_fairness(fairness={"queues": queues})
    if where == "row":
        declare(fairness, mails={"by_kind": True, "partition": {}})
    fairness.queues.set_limit("mails", partition={"concurrency": 1})
    with pytest.raises(PolicyInvalid, match="partition: expected a queue that the setting queues"):
        fairness.queues.set_limit("emails", partition={"concurrency": 1})
    with pytest.raises(PolicyInvalid, match="partition: concurrency: expected a whole number"):
        fairness.queues.set_limit("mails", partition={"concurrency": -1})


def test_on_a_gate_only_queues_that_the_settings_name_can_have_a_limit(make_fairness, redis_url):
    fairness = make_fairness(redis_url, fairness={"queues": {"emails": {}}})
    assert fairness.queues.set_limit("emails", global_limit=2).source == "people"
    fairness.limits.pause("queue:emails")
    expected = (
        "queue: on a broker that does not claim fairly expected one that the setting queues names "
        r"\({} is enough\), got: 'others'"
    )
    for say in (
        lambda: fairness.queues.set_limit("others", global_limit=2),
        lambda: fairness.limits.pause("queue:others"),
        lambda: fairness.limits.override("queue:others", concurrency=1),
        lambda: fairness.limits.cool_down("queue:others", for_seconds=5),
    ):
        with pytest.raises(PolicyInvalid, match=expected):
            say()
    with pytest.raises(NotFound):
        fairness.queues.inspect("others")
