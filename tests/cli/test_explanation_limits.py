"""Which limits keep a task, and when they open, as the command that explains it says."""

from __future__ import annotations

import json
import re

import pytest

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.limiter.types import Job, Lease, Parking, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.message.partition import partition_limit_text, queue_limits_text
from tests.cli.clearing import send
from tests.cli.test_explanation import ONE, by_no_limit, shop, told
from tests.cli.test_queues_api import declare
from tests.contract.test_parked import ask, park, promote
from tests.support.limits import changed
from tests.support.parts import parts_of

__all__ = ["shop"]


def test_a_stop_that_no_claim_has_met_yet_is_told(run, shop, fairness):
    send(shop, "42", "waits", limits=ONE)
    fairness.limits.cool_down("api", for_seconds=60)
    (line,) = [line for line in told(run, "waits") if "blocked by" in line]
    assert line.startswith("blocked by api: cool-down, held 0 of 1, available in ")
    fairness.limits.clear_cool_down("api")
    fairness.limits.override("api", concurrency=0)
    assert "blocked by api: paused, held 0 of 0; override until it is cleared" in told(run, "waits")
    fairness.limits.clear_override("api")
    fairness.limits.pause("api")
    assert "blocked by api: paused, held 0 of 1; paused until it is resumed, by ada since " in (
        "\n".join(told(run, "waits"))
    )


def test_a_full_limit_that_no_claim_has_met_yet_is_told(run, shop):
    send(shop, "41", "holds", limits=ONE)
    assert len(shop.claim()) == 1
    send(shop, "42", "waits", limits=ONE)
    assert "blocked by api: concurrency, held 1 of 1" in told(run, "waits")


def test_a_partition_that_is_paused_is_told(run, shop, fairness):
    fairness.queues.set_limit("emails", global_limit=5)
    word = write_limits((Limit("queue:emails:6", of=OF_QUEUE),))
    send(shop, "42", "waits", queue="emails", limits=word)
    fairness.limits.pause("queue:emails:6")
    assert "blocked by queue:emails:6: paused, held 0" in "\n".join(told(run, "waits"))


def test_of_several_limits_each_that_rejects_is_told(run, shop, fairness):
    both = write_limits(
        (Limit("api", concurrency=1), Limit("db", concurrency=2), Limit("mail", concurrency=3))
    )
    send(shop, "42", "waits", limits=both)
    fairness.limits.pause("api")
    fairness.limits.pause("db")
    lines = told(run, "waits")
    assert [line.partition(";")[0] for line in lines if "blocked by" in line] == [
        "blocked by api: paused, held 0 of 1",
        "blocked by db: paused, held 0 of 2",
    ]
    assert [line.partition("  paused until")[0] for line in lines[-5:]] == [
        "limit      numbers    on limit  held  state      why",
        "tenant:42  1 at once  wait         0  available  tier free",
        "api        1 at once  wait         0  paused   ",
        "db         2 at once  wait         0  paused   ",
        "mail       3 at once  wait         0  available  declared by its tasks",
    ]
    found = json.loads(run("task", "explain", "waits", "--json").stdout)
    assert [(each["key"], each["blocked_by"]) for each in found["limits"]] == [
        *(("tenant:42", ""), ("api", "paused"), ("db", "paused"), ("mail", "")),
    ]


@pytest.mark.parametrize("key", ["api", "tenant:42"])
def test_a_pause_with_an_end_and_an_override_of_none_say_when_they_open(shop, fairness, key):
    send(shop, "42", "waits", limits=ONE)
    fairness.limits.pause(key, for_seconds=300)
    (blocker,) = fairness.tasks.explain("waits").blocked_by
    assert (blocker.key, blocker.reason) == (key, "paused")
    assert 200 < blocker.opens_in_seconds <= 300
    fairness.limits.override(key, concurrency=0, for_seconds=600)
    assert 400 < fairness.tasks.explain("waits").blocked_by[0].opens_in_seconds <= 600
    fairness.limits.resume(key)
    (blocker,) = fairness.tasks.explain("waits").blocked_by
    assert (blocker.reason, blocker.limit) == ("paused", 0)
    assert 400 < blocker.opens_in_seconds <= 600
    fairness.limits.pause(key)
    assert fairness.tasks.explain("waits").blocked_by[0].opens_in_seconds is None


def test_a_tenant_whose_tier_lets_nothing_start_does_not_open_with_its_pause(shop, fairness):
    fairness.tenants.set_tier("42", "free", concurrency=0)
    send(shop, "42", "waits")
    fairness.limits.pause("tenant:42", for_seconds=300)
    assert fairness.tasks.explain("waits").blocked_by[0].opens_in_seconds is None


@pytest.mark.parametrize("enabled", ["observe", False])
def test_a_limit_of_none_holds_though_nothing_is_enforced(run, shop, make_fairness, enabled):
    send(shop, "42", "waits", limits=write_limits((Limit("api", concurrency=0),)))
    done = run("task", "explain", "waits", of=make_fairness(fairness={"enabled": enabled}))
    assert "blocked by api: paused" in done.output


def test_what_redis_cannot_know_is_said(run, shop):
    send(shop, "42", "waits", queue="reports")
    assert told(run, "waits")[3:5] == by_no_limit("reports")


def test_a_local_limit_of_none_is_told(run, shop, fairness):
    fairness.queues.set_limit("emails", local_limit=0)
    send(shop, "42", "waits", queue="emails")
    assert not shop.claim(queue="emails")
    lines = told(run, "waits")
    assert "blocked by queue:emails: local, held 0 of 0 in each process" in lines
    assert "no limit blocks it" not in "".join(lines)
    assert lines[-1] == (
        "queue:emails  0 in one process  wait         0  local      set for the queue by a person"
    )


def test_a_local_limit_keeps_where_each_process_holds_as_much(run, shop, fairness):
    # A hyphen has a meaning in a pattern.
    queue = "e-mails"
    fairness.queues.set_limit(queue, local_limit=1)
    for number in range(4):
        send(shop, f"u{number}", f"t{number}", queue=queue)
    for owner in ("worker-1", "worker-2"):
        assert len(shop.claim(owner=owner, queue=queue, want=1)) == 1
    found = fairness.tasks.explain("t3")
    (blocker,) = found.blocked_by
    assert (blocker.key, blocker.reason) == (f"queue:{queue}", "local")
    assert (blocker.held, blocker.limit, len(blocker.holders)) == (1, 1, 2)
    # A process that runs only tasks of another queue may not take this one.
    send(shop, "u9", "other")
    assert len(shop.claim(owner="worker-3")) == 1
    assert [each.reason for each in fairness.tasks.explain("t3").blocked_by] == ["local"]
    fairness.queues.set_limit(queue, local_limit=2)
    assert fairness.tasks.explain("t3").blocked_by == ()


def test_a_local_limit_of_partitions_is_of_each(shop, fairness):
    declare(fairness, emails={"partition": {"local_limit": 1}, "by_args": ["customer_id"]})
    for number, part in enumerate(("10", "1", "10")):
        word = partition_limit_text(f"queue:emails:{part}")
        send(shop, f"u{number}", f"t{number}", queue="emails", limits=word)
    assert len(shop.claim(queue="emails", want=1)) == 1
    assert fairness.tasks.explain("t1").blocked_by == ()
    (blocker,) = fairness.tasks.explain("t2").blocked_by
    assert (blocker.key, blocker.reason) == ("queue:emails:10", "local")


@pytest.mark.parametrize("local_limit", [0, 1])
def test_no_parked_task_waits_for_a_local_limit(client, redis_url, make_fairness, local_limit):
    client.flushdb()
    fairness = make_fairness(url=redis_url, fairness={"tier_on_limit": "wait"})
    part = {"concurrency": 2, "local_limit": local_limit}
    declare(
        fairness,
        emails={"global_limit": 2, "local_limit": local_limit, "by_args": ["c"], "partition": part},
    )
    limiter, limits = parts_of(fairness).limiter, queue_limits_text("emails", "queue:emails:1")

    def request(name):
        lease = Lease(f"{name}.1", f"tenant:{name},queue:emails:1,queue:emails")
        job = Job(name, "shop.work", "emails")
        return SlotRequest(lease, name, "free", Copy(name), f"{name}-next", limits, job)

    running, parked = [request("a"), request("b")], [request("c"), request("d")]
    for each in running:
        limiter.acquire(each)
    for each in parked:
        message = {"headers": {"id": each.copy.message}, "routing_key": "emails"}
        assert limiter.park(each, json.dumps(message)) is Parking.PARKED
    limiter.release([each.lease for each in running])
    assert len(promote(limiter, 1)) == 1
    found = fairness.tasks.explain("d")
    assert (found.state, found.blocked_by) == ("parked", ())
    assert [each.numbers.get("local_limit") for each in found.limits] == [None, None, None]
    # So the next promotion is its own.
    assert [each.copy.message for each in promote(limiter, 1)] == ["d"]


@pytest.mark.parametrize("enabled", ["observe", False])
def test_a_local_limit_that_is_not_enforced_keeps_nothing(shop, make_fairness, enabled):
    fairness = make_fairness(fairness={"enabled": enabled})
    fairness.queues.set_limit("emails", local_limit=0)
    send(shop, "42", "waits", queue="emails")
    assert fairness.tasks.explain("waits").blocked_by == ()


def test_inspect_and_list_show_a_local_limit(run, shop, fairness):
    fairness.queues.set_limit("emails", local_limit=3)
    fairness.queues.set_limit("reports", global_limit=5)
    assert "3 in one process; waiting 0" in run("limit", "show", "queue:emails").output
    assert "in one process" not in run("limit", "show", "queue:reports").output
    (line,) = [each for each in run("limit", "list").output.splitlines() if "queue:emails" in each]
    assert "3 in one process" in line
    assert json.loads(run("limit", "show", "queue:emails", "--json").stdout)["local_limit"] == 3
    items = json.loads(run("limit", "list", "--json").stdout)["items"]
    shown = {each["key"]: each["local_limit"] for each in items}
    assert (shown["queue:emails"], shown["queue:reports"]) == (3, None)


@pytest.mark.parametrize("key", ["api", "tenant:42"])
def test_a_gate_says_paused_of_what_was_rejected_so(client, redis_url, make_fairness, run, key):
    client.flushdb()
    fairness = make_fairness(url=redis_url, fairness={"tier_on_limit": "wait"})
    fairness.limits.pause(key, for_seconds=300)
    park(parts_of(fairness).limiter, ask("waits", Limit("api", concurrency=1), tenant="42"))
    (blocker,) = fairness.tasks.explain("waits").blocked_by
    assert (blocker.key, blocker.reason, blocker.held) == (key, "paused", 0)
    assert 200 < blocker.opens_in_seconds <= 300
    output = run("task", "explain", "waits", of=fairness).output
    assert f"blocked by {key}: paused, held 0 of 1, available in " in output
    fairness.limits.override(key, concurrency=0)
    assert fairness.tasks.explain("waits").blocked_by[0].opens_in_seconds is None
    closed = {each.key: each.blocked_by for each in fairness.tasks.explain("waits").limits}
    assert closed == {"api": "", "tenant:42": ""} | {key: "paused"}


def test_what_a_limit_has_put_back_says_which(run, shop, client):
    limits = write_limits(
        (Limit("db", concurrency=5), Limit("api", concurrency=1, on_limit="reschedule"))
    )
    send(shop, "41", "holds", limits=limits)
    send(shop, "42", "waits", limits=limits)
    assert len(shop.claim()) == 1
    _, waits, *lines = told(run, "waits")
    assert re.fullmatch(r"waits for its time, \d\.\d s from now: api has rescheduled it", waits)
    assert lines[-2:] == [
        "db         5 at once  wait           1  available    declared by its tasks",
        "api        1 at once  reschedule     1  concurrency  declared by its tasks",
    ]
    assert json.loads(run("task", "explain", "waits", "--json").stdout)["put_back_by"] == "api"
    # A key remembers the first hundred of these; the others know what they were told.
    assert client.delete("{fairness}:rescheduled:api")
    assert "from now: api has rescheduled it" in run("task", "explain", "waits").output


def test_the_limit_that_has_put_back_is_told_though_another_one_was_closed_too(shop, fairness):
    limits = write_limits(
        (Limit("db", concurrency=1), Limit("api", concurrency=1, on_limit="reschedule"))
    )
    send(shop, "41", "holds", limits=limits)
    send(shop, "42", "waits", limits=limits)
    assert len(shop.claim()) == 1
    # The event of the rejection names the first closed limit.
    assert fairness.tasks.explain("waits").put_back_by == "api"
    # The key forgets its rescheduled tasks.
    fairness.limits.pause("api")
    assert fairness.tasks.explain("waits").put_back_by == "api"


def test_what_a_partition_or_a_queue_has_put_back_says_which(shop, fairness):
    fairness.queues.set_limit("emails", rate="1/PT1M", on_limit="reschedule")
    part = {"rate": "1/PT1M"}
    declare(fairness, reports={"partition": part, "on_limit": "reschedule", "by_args": ["id"]})
    word = partition_limit_text("queue:reports:6")
    for number in range(2):
        send(shop, f"u{number}", f"e{number}", queue="emails")
        send(shop, f"v{number}", f"r{number}", queue="reports", limits=word)
    assert len([*shop.claim(queue="emails"), *shop.claim(queue="reports")]) == 2
    assert fairness.tasks.explain("e1").put_back_by == "queue:emails"
    assert fairness.tasks.explain("r1").put_back_by == "queue:reports:6"


def test_what_waits_for_its_own_time_was_put_back_by_nobody(shop, fairness):
    send(shop, "42", "later", eta_ms=9_000_000_000_000, limits=ONE)
    found = fairness.tasks.explain("later")
    assert (found.put_back_by, [each.key for each in found.limits]) == ("", ["tenant:42", "api"])


def test_the_unique_key_of_a_task_is_told(run, shop):
    send(shop, "42", "waits", unique="d|0|sync:7")
    assert "has the unique key sync:7" in told(run, "waits")
    assert json.loads(run("task", "explain", "waits", "--json").stdout)["unique_key"] == "sync:7"


TEN = Limit("tokens", rate=((10, 3_600_000),))


def test_a_task_that_takes_several_units_is_told_what_it_needs(run, shop):
    limit = write_limits((changed(TEN, units=6),))
    send(shop, "41", "runs", limits=limit)
    assert len(shop.claim()) == 1
    send(shop, "42", "needs", limits=limit)
    send(shop, "43", "behind", queue="other", limits=write_limits((TEN,)))
    assert not shop.claim()
    (line,) = [line for line in told(run, "needs") if "blocked by" in line]
    assert "; needs 6 of 10, 4 free; the key saves for it" in line
    (line,) = [line for line in told(run, "behind") if "blocked by" in line]
    assert "; needs 1 of 10, 4 free; the key saves 6 for tenant:42, for at most" in line


EIGHTY = Limit("gpu:memory", concurrency=80)


def test_a_task_that_takes_several_slots_is_told_what_it_needs(run, shop, installation):
    send(shop, "41", "runs", limits=write_limits((changed(EIGHTY, slots=70),)))
    assert len(shop.claim()) == 1
    send(shop, "42", "needs", limits=write_limits((changed(EIGHTY, slots=24),)))
    send(shop, "43", "behind", queue="other", limits=write_limits((EIGHTY,)))
    assert not shop.claim()
    (line,) = [line for line in told(run, "needs") if "blocked by" in line]
    assert "; needs 24 of 80, 10 free; the key saves for it" in line
    (line,) = [line for line in told(run, "behind") if "blocked by" in line]
    assert "; needs 1 of 80, 10 free; the key saves 24 for tenant:42" in line
    assert "for at most" not in line
    # It waits at the same place.
    send(shop, "44", "next", limits=write_limits((EIGHTY,)))
    assert not shop.claim()
    (line,) = [line for line in told(run, "next") if "blocked by" in line]
    assert "; needs 1 of 80, 10 free; the key saves 24 for tenant:42" in line
