"""The command that explains where a task is, and what keeps it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import NotFound
from celery_fairness.limiter.types import Job, Lease, Parking, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict, Waiting
from celery_fairness.store.library import build, load
from celery_fairness.util.ids import new_lease_id
from tests.cli.clearing import bury, send, tag_of
from tests.cli.conftest import RULES, Installation
from tests.support.parts import parts_of

#: Takes what happens after the next call, and returns the names of all calls.
Meanwhile = Callable[[Callable[[], None]], list[str]]

ONE = write_limits((Limit("api", concurrency=1),))
ONCE_AN_HOUR = write_limits((Limit("mail", rate=((1, 3_600_000),)),))


@pytest.fixture
def shop(installation, client):
    client.flushdb()
    installation.announce("celery", "other", "mail", "reports")
    return installation


def told(run, task_id):
    done = run("task", "explain", task_id)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def by_no_limit(queue):
    takes = f"a worker that takes {queue} and has registered shop.work"
    where = "rate_limit): see the workers' logs, and celery -A APP inspect registered"
    stored = f"Redis does not store whether one has registered shop.work, and how fast (its {where}"
    return [
        f"no limit blocks it: {takes} starts it in its turn",
        f"1 worker takes {queue}; {stored}",
    ]


def test_a_task_whose_queue_no_worker_takes_says_so(run, shop, fairness):
    send(shop, "42", "t1", queue="nobody's")
    lines = told(run, "t1")
    assert "no worker takes queue nobody's: start one with -Q 'nobody'\"'\"'s'" in lines
    assert not any("expected to start" in each for each in lines)
    assert fairness.tasks.explain("t1").taken_by == ()
    shop.announce("nobody's", "celery")
    assert fairness.tasks.explain("t1").taken_by == ("celery@web",)
    assert not any("no worker" in each for each in told(run, "t1"))


def test_a_task_that_may_start_says_who_goes_before_it(run, shop):
    send(shop, "41", "before")
    for number in range(3):
        send(shop, "42", f"t{number}")
    assert told(run, "t2") == [
        "task shop.work[t2] of tenant:42, queue celery",
        "2 tasks before it in its lane",
        "1 tenant before its own in this queue",
        *by_no_limit("celery"),
        "",
        "limit      numbers    on limit  held  state      why",
        "tenant:42  1 at once  wait         0  available  tier free",
    ]


def test_a_header_that_named_the_tenant_is_named(run, shop, fairness):
    names = {"v": 1, "tenant": "42", "tenant_from": "x-tenant-id"}
    send(shop, "42", "t1", headers={"fairness": names})
    assert told(run, "t1")[1] == "the header or property x-tenant-id names its tenant"
    assert len(shop.claim()) == 1
    assert fairness.tasks.explain("t1").tenant_from == "x-tenant-id"
    for number, header in enumerate(["nonsense", {"v": 1, "tenant": "42"}, {"tenant_from": [1]}]):
        send(shop, "42", f"other{number}", headers={"fairness": header})
        assert fairness.tasks.explain(f"other{number}").tenant_from == ""


def test_more_names_than_a_call_counts_make_the_number_a_lower_bound(
    run, shop, client, monkeypatch
):
    for number in range(4):
        send(shop, "42", f"t{number}", kind=f"k{number}")
    send(shop, "42", "last", kind="k0")
    assert told(run, "last")[1] == "4 tasks before it in its lane"
    few = build({"OLDER_LANES_AT_MOST": 2})
    load(client.execute_command, few)
    monkeypatch.setattr("celery_fairness.store.connection.library", lambda: few)
    assert told(run, "last")[1] == "at least 2 tasks before it in its lane"
    # The lanes after the task's own have only newer tasks.
    assert told(run, "t1")[1] == "1 task before it in its lane"


def test_where_a_priority_orders_the_queue_more_urgent_tenants_go_before_it(
    run, shop, make_fairness
):
    of = make_fairness(fairness={"priority_scope": "queue"})
    by_queue = replace(RULES, priority_scope="queue", default_limit=None)
    for tenant, rank in (("41", 0), ("42", 5), ("43", 5), ("44", 9)):
        shop.put(tenant, f"tag-{tenant}", rank=rank)
        send(shop, tenant, f"t{tenant}", rank=rank)
    assert [task.key for task in shop.claim(1, rules=by_queue)] == ["tenant:44"]
    done = run("task", "explain", "t41", of=of)
    assert done.output.splitlines()[1:4] == [
        "1 task before it in its lane",
        "3 tenants before its own in this queue",
        by_no_limit("celery")[0],
    ]
    # How soon nobody can say.
    assert "expected" not in done.output
    assert "2 tenants before its own" in run("task", "explain", "t43", of=of).output


def test_a_task_that_has_waited_long_goes_as_one_of_the_highest_priority(run, shop, make_fairness):
    of = make_fairness(fairness={"priority_scope": "queue", "priority_aging": 10})
    aged = replace(RULES, priority_scope="queue", priority_aging_ms=2, default_limit=None)
    raised = "goes as one of the highest priority: it has waited for priority_aging"

    def lines(task):
        return run("task", "explain", task, of=of).output.splitlines()[1:4]

    send(shop, "41", "old", rank=3)
    send(shop, "41", "next", rank=3)
    while raised not in lines("old"):
        assert shop.claim(0, rules=aged) == []
    send(shop, "42", "other", rank=8)
    assert lines("old")[:2] == ["0 tasks before it in its lane", raised]
    assert lines("next")[0] == "1 task before it in its lane"
    assert raised not in lines("next")
    assert "1 tenant before its own in this queue" in lines("other")


def test_what_came_back_goes_before_it(run, shop):
    for number in range(3):
        send(shop, "", f"t{number}")
    for task in shop.claim(2):
        shop.settle(task, Verdict.HEAD)
    assert told(run, "t2")[1] == "2 tasks before it in its lane"
    assert told(run, "t1")[1] == "1 task before it in its lane"
    assert told(run, "t0")[1] == "0 tasks before it in its lane"


def test_a_task_behind_its_tenants_limit_says_who_holds_it(run, shop):
    send(shop, "42", "holds")
    send(shop, "42", "waits")
    assert len(shop.claim()) == 1
    *lines, lease, _, _, limit = told(run, "waits")
    assert limit == "tenant:42  1 at once  wait         1  concurrency  tier free"
    assert lines == [
        "task shop.work[waits] of tenant:42, queue celery",
        "0 tasks before it in its lane",
        "blocked by tenant:42: concurrency, held 1 of 1",
        "",
        "held by  task       state    held for  owner",
    ]
    assert re.fullmatch(r"holds    shop\.work  claimed  \d\.\d s     worker-1", lease)
    (line,) = [
        each for each in run("limit", "show", "tenant:42").output.splitlines() if "holds" in each
    ]
    assert re.fullmatch(
        r"holds    1\d\.\d s +\d\.\d s     claimed  shop\.work  celery  worker-1", line
    )
    assert told(run, "holds") == [
        "task shop.work[holds] of tenant:42, queue celery",
        "runs at worker-1",
    ]


def test_a_tenant_whose_name_is_written_as_a_hash_is_checked_by_its_own_tier(run, shop, fairness):
    from celery_fairness.config.tenants import key_part

    fairness.tenants.set_tier("a b", "free", concurrency=0)
    send(shop, key_part("a b"), "waits")
    (line,) = [line for line in told(run, "waits") if "blocked by" in line]
    assert line == f"blocked by tenant:{key_part('a b')}: paused, held 0 of 0"


def test_a_task_at_a_limit_says_which_and_who_holds_it(run, shop):
    send(shop, "41", "holds", limits=ONE)
    assert len(shop.claim()) == 1
    send(shop, "42", "waits", limits=ONE)
    assert not shop.claim()
    found = json.loads(run("task", "explain", "waits", "--json").stdout)
    (blocker,) = found["blocked_by"]
    assert (blocker["key"], blocker["reason"]) == ("api", "concurrency")
    assert (blocker["held"], blocker["limit"], blocker["opens_in_seconds"]) == (1, 1, None)
    assert [each["id"] for each in blocker["holders"]] == [f"{tag_of('holds')}.1.1"]
    assert (found["ahead_in_lane"], found["tenants_ahead"]) == (0, None)


def test_a_rate_says_when_it_opens(run, shop):
    for number in range(2):
        send(shop, "4", f"t{number}", limits=ONCE_AN_HOUR, service=str(number))
    assert len(shop.claim()) == 1
    (waits,) = [
        x
        for x in ("t0", "t1")
        if json.loads(run("task", "explain", x, "--json").stdout)["state"] == "waiting"
    ]
    (blocker,) = json.loads(run("task", "explain", waits, "--json").stdout)["blocked_by"]
    assert (blocker["key"], blocker["reason"], blocker["limit"]) == ("mail", "rate", None)
    assert 3_000 < blocker["opens_in_seconds"] <= 3_600


def test_a_stopped_key_says_so(run, shop, fairness):
    send(shop, "42", "waits", limits=ONE)
    fairness.limits.cool_down("api", for_seconds=60)
    assert not shop.claim()
    (line,) = [line for line in told(run, "waits") if "blocked by" in line]
    assert line.startswith("blocked by api: cool-down, held 0 of 1, available in ")
    fairness.limits.pause("api")
    (line,) = [line for line in told(run, "waits") if "blocked by" in line]
    assert line.startswith(
        "blocked by api: paused, held 0 of 1; paused until it is resumed, by ada since "
    )
    fairness.limits.resume("api")
    fairness.limits.clear_cool_down("api")
    fairness.limits.override("api", concurrency=0)
    shop.claim()
    assert "blocked by api: paused, held 0 of 0; override until it is cleared" in told(run, "waits")


def test_a_task_that_waits_for_its_time_and_a_dead_letter(run, shop):
    send(shop, "42", "later", eta_ms=9_000_000_000_000)
    assert told(run, "later")[1].startswith("waits for its time, ")
    bury(shop, "42", "died")
    assert told(run, "died")[1] == ("is a dead letter: celery -A APP fairness task requeue died")


def test_a_task_that_nobody_knows(run, shop):
    done = run("task", "explain", "nobody")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("celery fairness: task 'nobody' neither waits nor runs: it has")


@pytest.mark.parametrize("enabled", ["observe", False])
def test_what_is_not_enforced_keeps_nothing(run, shop, make_fairness, enabled):
    send(shop, "42", "holds")
    send(shop, "42", "waits")
    assert len(shop.claim()) == 1
    done = run("task", "explain", "waits", of=make_fairness(fairness={"enabled": enabled}))
    assert "no limit blocks it" in done.output


def test_a_limit_that_is_open_again_keeps_nothing(run, shop, fairness):
    send(shop, "42", "waits", limits=ONE)
    fairness.limits.pause("api")
    assert not shop.claim()
    fairness.limits.resume("api")
    assert "no limit blocks it" in run("task", "explain", "waits").output


@pytest.mark.parametrize("told_tenant", ["42", "x\ud800", "_none", 7.5])
def test_the_tenant_that_is_charged_is_asked_and_not_the_one_that_a_message_names(
    run, shop, told_tenant
):
    send(shop, "42", "holds")
    assert len(shop.claim()) == 1
    message = {"headers": {"id": "waits", "task": "t", "fairness": {"tenant": told_tenant}}}
    waiting = Waiting("celery", "tag", "_invalid", message=json.dumps(message), task_id="waits")
    shop.run(calls.PUT, calls.put_args(waiting))
    assert "no limit blocks it" in "".join(told(run, "waits"))
    send(shop, "_invalid", "before", rank=9)
    assert len(shop.claim()) == 1
    assert "blocked by tenant:_invalid: concurrency, held 1 of 1" in told(run, "waits")


def test_a_task_of_before_each_service_counted_apart_is_explained(run, shop, make_fairness):
    send(shop, "42", "waits")
    of = make_fairness(fairness={"tier_scope": "service"})
    assert "no limit blocks it" in run("task", "explain", "waits", of=of).output


@pytest.mark.parametrize("caller", ["caller", "the first caller", "h_1"])
def test_a_caller_that_holds_what_a_parked_task_waits_for_is_named(
    fairness: Fairness, client: Redis, caller: str
) -> None:
    limiter, word = parts_of(fairness).limiter, "api|C1|w"

    def ask(name: str) -> SlotRequest:
        lease, job = Lease(new_lease_id(), "tenant:42,api"), Job(name, "shop.work", "celery")
        return SlotRequest(lease, "42", "free", Copy(name), "n", word, job)

    limiter.acquire(ask(caller))
    headers = {"id": "waits", "task": "shop.work", "parent_id": caller, "root_id": "first"}
    message = json.dumps({"headers": headers, "routing_key": "celery"})
    assert limiter.park(ask("waits"), message) is Parking.PARKED
    blocked_by = fairness.tasks.explain("waits").blocked_by
    callers = {blocker.key: blocker.callers for blocker in blocked_by}
    assert callers == {"tenant:42": (caller,), "api": (caller,)}


@pytest.fixture
def meanwhile(fairness: Fairness, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Return a function: it lets something happen once, after the next call of a function.

    The list that it returns gets the names of the functions that are called, and of the commands
    that read tables.
    """
    limiter = parts_of(fairness).limiter
    # Each process compares this number once, before its first call.
    limiter.expect_number()
    connection = type(limiter.connection)
    run_function, read_table = connection.run, connection.read

    def happens(act: Callable[[], None]) -> list[str]:
        names: list[str] = []

        def run(self: Any, name: str, *args: Any) -> Any:
            answer = run_function(self, name, *args)
            names.append(name)
            if len(names) == 1:
                act()
            return answer

        def read(self: Any, command: str, *args: Any) -> Any:
            names.append(" ".join(map(str, (command, *args))))
            return read_table(self, command, *args)

        monkeypatch.setattr(connection, "run", run)
        monkeypatch.setattr(connection, "read", read)
        return names

    return happens


def test_all_facts_of_an_explanation_come_from_one_call(
    shop: Installation,
    fairness: Fairness,
    meanwhile: Meanwhile,
) -> None:
    fairness.queues.set_limit("celery", global_limit=5, local_limit=2)
    send(shop, "41", "holds", limits=ONE)
    assert len(shop.claim()) == 1
    send(shop, "42", "waits", limits=ONE)
    names = meanwhile(lambda: None)
    found = fairness.tasks.explain("waits")
    assert [each.key for each in found.limits] == ["tenant:42", "api", "queue:celery"]
    assert [each.key for each in found.blocked_by] == ["api"]
    assert names[:2] == [calls.FIND, calls.EXPLAIN]
    # The others read which workers live.
    assert [name for name in names[2:] if "workers" not in name and name != "TIME"] == []


def test_a_task_that_starts_while_it_is_explained_runs(
    shop: Installation,
    fairness: Fairness,
    meanwhile: Meanwhile,
) -> None:
    send(shop, "42", "waits", limits=ONE)
    meanwhile(lambda: shop.claim())
    found = fairness.tasks.explain("waits")
    assert (found.state, found.owner, found.limits) == ("running", "worker-1", ())


def test_a_task_that_ends_while_it_is_explained_is_not_found(
    shop: Installation,
    fairness: Fairness,
    meanwhile: Meanwhile,
) -> None:
    send(shop, "42", "waits")
    meanwhile(lambda: shop.settle(*shop.claim()))
    with pytest.raises(NotFound):
        fairness.tasks.explain("waits")


def test_a_task_that_is_tried_again_while_it_is_explained_waits(
    shop: Installation,
    fairness: Fairness,
    meanwhile: Meanwhile,
) -> None:
    send(shop, "42", "tried")
    (task,) = shop.claim()

    def is_tried_again() -> None:
        send(shop, "42", "tried", tag="again")
        shop.settle(task)

    meanwhile(is_tried_again)
    assert fairness.tasks.explain("tried").state == "waiting"


@pytest.mark.parametrize("others", [0, 2, 15])
def test_a_caller_is_named_among_many_holders(
    shop: Installation, fairness: Fairness, others: int
) -> None:
    fairness.tenants.publish_tiers([Tier("free", None)])
    more = (Limit(f"other{number}", concurrency=500) for number in range(others))
    limits = write_limits((Limit("api", concurrency=60), *more))
    free = replace(RULES, default_limit=None)
    for number in range(59):
        send(shop, "42", f"holds{number}", limits=limits)
    while shop.claim(rules=free):
        pass
    send(shop, "42", "caller", limits=limits)
    assert len(shop.claim(rules=free)) == 1
    headers = {"id": "waits", "task": "shop.work", "parent_id": "caller", "root_id": "waits"}
    message = json.dumps({"body": "", "headers": headers})
    waiting = Waiting(
        *("celery", "tag", "42"), message=message, task_id="waits", kind="shop.work", limits=limits
    )
    shop.run(calls.PUT, calls.put_args(waiting))
    (blocker,) = fairness.tasks.explain("waits").blocked_by
    assert (blocker.key, len(blocker.holders), blocker.callers) == ("api", 60, ("caller",))


def test_a_task_that_is_tried_again_is_not_its_own_caller(
    shop: Installation, fairness: Fairness
) -> None:
    send(shop, "42", "tried", limits=ONE)
    assert len(shop.claim()) == 1
    headers = {"id": "tried", "task": "shop.work", "root_id": "tried"}
    message = json.dumps({"body": "", "headers": headers})
    again = Waiting("celery", "again", "42", message=message, task_id="tried", limits=ONE)
    shop.run(calls.PUT, calls.put_args(again))
    blocked = fairness.tasks.explain("tried").blocked_by
    assert [holder.task_id for each in blocked for holder in each.holders] == ["tried", "tried"]
    assert [each.callers for each in blocked] == [(), ()]


def test_limits_with_many_holders_show_an_even_sample(
    shop: Installation, fairness: Fairness
) -> None:
    fairness.tenants.publish_tiers([Tier("free", None)])
    keys = [f"key{number}" for number in range(4)]
    limits = write_limits(Limit(key, concurrency=60) for key in keys)
    free = replace(RULES, default_limit=None)
    for number in range(60):
        send(shop, "42", f"holds{number:02}", limits=limits)
    while shop.claim(rules=free):
        pass
    send(shop, "42", "waits", limits=limits)
    blocked = fairness.tasks.explain("waits").blocked_by
    assert [each.key for each in blocked] == keys
    for each in blocked:
        begun = [int(holder.task_id.removeprefix("holds")) for holder in each.holders]
        # Two claims of one millisecond have leases of one time, so the order of these is any.
        held = [holder.held_seconds or 0.0 for holder in each.holders]
        assert held == sorted(held, reverse=True)
        assert 25 <= len(set(begun)) <= 26
        assert all(3 <= sum(number // 10 == ten for number in begun) <= 6 for ten in range(6))
