"""Lists of tasks: every state with its reason, filters, pages that change, and bulk cancel."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from celery_fairness.cli import nouns
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.tenants import key_part
from celery_fairness.control.task import task_list
from celery_fairness.errors import TenantInvalid
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict, Waiting
from celery_fairness.store import connection, library
from tests.cli.clearing import bury, send, tag_of

API = write_limits((Limit("api", concurrency=1),))
FAR_MS = 9_000_000_000_000


@pytest.fixture
def small(monkeypatch, client):
    """A library that sorts few lanes, and looks at few tasks in one call.

    A table of more than ``whole`` fields is walked in parts.
    """
    setting = "hash-max-listpack-entries"
    before = client.config_get(setting)[setting]

    def use(lanes=2, tasks=3, whole=100):
        client.config_set(setting, whole)
        changed = {"LISTED_LANES": lanes, "LISTED_TASKS": tasks, "BATCH": 2, "LEAST_COUNT": 2}
        made = library.build(changed)
        for module in (connection, library):
            monkeypatch.setattr(module, "library", lambda: made)

    yield use
    client.config_set(setting, before)


def pages(fairness, limit=2, between=None, **wanted):
    """Return the tasks of all pages, and let something happen between two of them."""
    found, cursor = [], None
    for turn in range(10_000):
        page = fairness.tasks.list(**wanted, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found
        if between is not None:
            between(turn)
    raise AssertionError("the list has no end")


def ids(rows):
    return [each.task_id for each in rows]


def put_message(shop, tenant, task_id, headers, **fields):
    """Put a task with these headers beside its id and its name."""
    message = json.dumps({"body": "the-body", "headers": {"id": task_id, **headers}})
    fields = {"task_id": task_id, "kind": "shop.work"} | fields
    waiting = Waiting("celery", tag_of(task_id), key_part(tenant), message=message, **fields)
    shop.run(calls.PUT, calls.put_args(waiting))


def test_every_state_has_its_row(shop, fairness):
    bury(shop, "dead", "buried")
    send(shop, "42", "runs", limits=API, rank=7, tier="pro")
    send(shop, "42", "waits", limits=API)
    send(shop, "late", "due", eta_ms=FAR_MS)
    assert len(shop.claim()) == 1
    rows = pages(fairness, limit=50)
    shown = [(each.task_id, each.state, each.why, each.key, each.owner) for each in rows]
    assert shown == [
        ("buried", "dead", "deaths", "", ""),
        ("runs", "running", "claimed", "", "worker-1"),
        ("waits", "waiting", "concurrency", "api", ""),
        ("due", "delayed", "", "", ""),
    ]
    _, runs, waits, due = rows
    assert (runs.task, runs.tenant, runs.queue) == ("shop.work", "42", "celery")
    assert (runs.priority, waits.priority, runs.tier) == (7, 0, "pro")
    assert 0 <= runs.age_seconds < 60
    assert 0 <= waits.age_seconds < 60
    assert (due.age_seconds, due.due_at.timestamp()) == (None, FAR_MS / 1000)
    assert due.due_in_seconds > 0


@pytest.mark.parametrize(
    ("act", "why", "key"),
    [
        (lambda of: of.tenants.pause("42"), "paused", "tenant:42"),
        (lambda of: of.limits.pause("api"), "paused", "api"),
        (lambda of: of.limits.cool_down("api", for_seconds=60), "cool-down", "api"),
        (lambda of: of.limits.override("api", concurrency=0), "paused", "api"),
        (lambda of: None, "", ""),
    ],
)
def test_a_waiting_task_has_the_limit_that_blocks_it(shop, fairness, act, why, key):
    send(shop, "42", "first", limits=API)
    act(fairness)
    (row,) = fairness.tasks.list().items
    assert (row.state, row.why, row.key) == ("waiting", why, key)


def test_a_list_has_the_tasks_of_its_filter(shop, fairness):
    bury(shop, "42", "buried")
    send(shop, "42", "runs", limits=API)
    assert len(shop.claim()) == 1
    for tenant in ("42", "43"):
        for queue in ("celery", "mail"):
            send(shop, tenant, f"waits-{tenant}-{queue}", queue=queue, limits=API)
            send(shop, tenant, f"due-{tenant}-{queue}", queue=queue, eta_ms=FAR_MS)

    def listed(**wanted):
        return set(ids(pages(fairness, **wanted)))

    assert len(listed()) == 10
    of_42 = {each for each in listed() if "43" not in each}
    assert listed(tenant="42") == of_42 == {"buried", "runs", *(e for e in of_42 if "42" in e)}
    assert listed(queue="mail") == {each for each in listed() if each.endswith("mail")}
    assert listed(tenant="42", queue="mail") == {"waits-42-mail", "due-42-mail"}
    assert listed(tenant="42", queue="mail", state="delayed") == {"due-42-mail"}
    assert listed(key="api") == {"runs", *(each for each in listed() if "waits" in each)}
    assert listed(key="tenant:43") == listed(tenant="43")
    assert listed(state="running") == {"runs"}
    assert listed(state="dead", tenant="43") == set()
    assert listed(queue="nobody") == listed(tenant="nobody") == listed(key="nobody") == set()


def test_the_limit_of_a_queue_is_a_key_of_its_tasks(shop, fairness):
    fairness.queues.set_limit("celery", global_limit=1)
    send(shop, "42", "first")
    send(shop, "43", "second", queue="mail")
    assert ids(pages(fairness, key="queue:celery")) == ["first"]
    assert len(shop.claim()) == 1
    assert ids(pages(fairness, key="queue:celery", state="running")) == ["first"]


def test_waiting_tasks_are_listed_the_oldest_first_over_all_lanes(shop, fairness):
    chance = random.Random(7)
    for number in range(60):
        tenant, name = chance.choice("abc"), chance.choice(["mail", "pdf"])
        send(shop, tenant, f"id-{number}", kind=name, rank=chance.randrange(3))
    expected = [f"id-{number}" for number in range(60)]
    assert ids(pages(fairness, limit=7)) == expected
    assert fairness.tasks.list(state="waiting").is_ordered


def test_delayed_tasks_are_listed_by_time_and_those_of_one_time_once_each(shop, fairness):
    for number in range(9):
        send(shop, "42", f"id-{number}", eta_ms=FAR_MS - number % 3)
    times = [each.due_at for each in pages(fairness)]
    assert (len(times), times) == (9, sorted(times))
    assert sorted(ids(pages(fairness))) == [f"id-{number}" for number in range(9)]


def test_dead_letters_are_listed_the_newest_first(shop, fairness):
    for number in range(5):
        bury(shop, "42", f"id-{number}")
    assert ids(pages(fairness)) == [f"id-{number}" for number in reversed(range(5))]


def test_more_lanes_than_are_sorted_are_listed_in_no_order(shop, fairness, small):
    small(lanes=4)
    for number in range(40):
        send(shop, str(number % 10), f"id-{number}")
    rows = pages(fairness, limit=5)
    assert sorted(ids(rows)) == sorted(f"id-{number}" for number in range(40))
    assert not fairness.tasks.list().is_ordered
    # A tenant has few lanes.
    assert ids(pages(fairness, tenant="3")) == ["id-3", "id-13", "id-23", "id-33"]
    assert fairness.tasks.list(tenant="3").is_ordered


@pytest.mark.parametrize(
    ("lanes", "whole"),
    [(2, 10), (2, 130), (2, 10_000), (500, 130)],
    ids=["in-parts", "whole-at-first", "whole", "ordered"],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_page_that_changes_loses_and_repeats_nothing(shop, fairness, small, seed, lanes, whole):
    """Tasks are put, start, end and are cancelled between the pages. The table of them grows."""
    small(lanes=lanes, tasks=5, whole=whole)
    chance = random.Random(seed)
    for number in range(120):
        eta = FAR_MS if number % 5 == 0 else 0
        send(shop, f"t{number % 7}", f"id-{number}", eta_ms=eta, kind=chance.choice("xy"))
    moved, claimed = set(), []

    def between(turn):
        tag_ids = {tag_of(f"id-{number}"): f"id-{number}" for number in range(120)}
        what = chance.choice(["put", "claim", "done", "cancel"])
        if what == "put":
            for number in range(4):
                send(shop, f"t{chance.randrange(9)}", f"new-{turn}-{number}")
        elif what == "claim":
            for task in shop.claim(3):
                moved.add(tag_ids.get(task.lease.rsplit(".", 2)[0], ""))
                claimed.append(task)
        elif what == "done" and claimed:
            shop.settle(claimed.pop())
        elif what == "cancel":
            name = f"id-{chance.randrange(120)}"
            if name not in moved:
                moved.add(name)
                shop.run(calls.CANCEL, calls.cancel_args([tag_of(name)], 60_000))

    found = ids(pages(fairness, limit=4, between=between))
    assert len(found) == len(set(found))
    stayed = {f"id-{number}" for number in range(120)} - moved
    assert stayed <= set(found)
    assert len(moved) > 5


def test_a_delayed_task_that_comes_due_meanwhile_is_on_one_page_at_most(shop, fairness):
    for number in range(6):
        send(shop, "42", f"id-{number}", eta_ms=FAR_MS)

    def between(turn):
        if turn == 0:
            for number in range(6):
                shop.run(calls.CANCEL, calls.cancel_args([tag_of(f"id-{number}")], 60_000))

    assert len(pages(fairness, between=between)) == 2


def test_a_row_has_the_texts_of_the_arguments_and_never_the_body(shop, fairness):
    texts = {"argsrepr": "(1, 'two')", "kwargsrepr": "{'amount': 3}"}
    put_message(shop, "42", "both", texts)
    put_message(shop, "42", "hidden", {"argsrepr": "('***',)", "kwargsrepr": "{}"})
    put_message(shop, "42", "only", {"argsrepr": "()", "kwargsrepr": "{'a': 1}"})
    put_message(shop, "42", "empty", {"argsrepr": "()", "kwargsrepr": "{}"})
    put_message(shop, "42", "none", {})
    put_message(shop, "42", "odd", {"argsrepr": {"a": 1}, "kwargsrepr": 7})
    put_message(shop, "42", "long", {"argsrepr": "é" * 500})
    page = fairness.tasks.list()
    shown = {each.task_id: each.args for each in page.items}
    assert shown == {
        "both": "(1, 'two') {'amount': 3}",
        "hidden": "('***',)",
        "only": "{'a': 1}",
        "empty": "()",
        "none": None,
        "odd": None,
        "long": "é" * 79 + "…",
    }
    assert "the-body" not in page.model_dump_json()


@pytest.mark.parametrize(
    "message",
    ["", "no json", "[]", '{"headers": 3}', "[" * 2000, '{"headers": {"id": "\\ud800"}}'],
)
def test_a_message_that_nobody_can_read_has_a_row(shop, fairness, message):
    waiting = Waiting("celery", "tag", "42", message=message, kind="shop.work", task_id="first")
    shop.run(calls.PUT, calls.put_args(waiting))
    (row,) = fairness.tasks.list().items
    assert (row.task_id, row.task, row.args) == ("first", "shop.work", None)


def test_a_large_message_is_not_read_and_many_end_a_call(shop, fairness):
    for number in range(12):
        headers = {"argsrepr": "(1,)", "filler": "x" * 60_000}
        put_message(shop, "42", f"id-{number}", headers)
    put_message(shop, "42", "large", {"argsrepr": "(2,)", "filler": "x" * 70_000})
    rows = fairness.tasks.list().items
    assert [each.args for each in rows] == ["(1,)"] * 12 + [None]


HOSTILE = [
    "a:b",
    "x y",
    "\n\t",
    "'; DROP",
    "<script>",
    "é😀",
    "*",
    "a" * 200,
]


@pytest.mark.parametrize("tenant", HOSTILE)
def test_a_hostile_tenant_is_listed_by_its_name(shop, fairness, tenant):
    put_message(shop, tenant, "first", {"fairness": {"v": 1, "tenant": tenant}})
    put_message(shop, "a", "other", {"fairness": {"v": 1, "tenant": "a"}})
    (row,) = pages(fairness, tenant=tenant)
    assert (row.task_id, row.tenant) == ("first", tenant)
    assert fairness.tasks.count(tenant=tenant) == 1
    assert fairness.tasks.cancel_all(tenant=tenant).cancelled == 1
    assert ids(pages(fairness)) == ["other"]


def test_a_message_that_names_another_tenant_is_shown_with_that_of_its_key(shop, fairness):
    waiting = Waiting(
        "celery", "tag", "42", message=json.dumps({"headers": {"fairness": {"tenant": "43"}}})
    )
    shop.run(calls.PUT, calls.put_args(waiting))
    (row,) = fairness.tasks.list().items
    assert (row.tenant, row.task_id) == ("42", "tag")


def test_a_page_of_rare_tasks_ends_after_some_calls_with_a_cursor(
    shop, fairness, small, run, monkeypatch
):
    small(lanes=2, tasks=3)
    monkeypatch.setattr(task_list, "CALLS_AT_MOST", 2)
    for number in range(150):
        send(shop, str(number), f"id-{number}", limits=API if number == 50 else "")
    turns = []
    assert ids(pages(fairness, key="api", between=turns.append)) == ["id-50"]
    assert len(turns) > 1
    # A person sees no empty page.
    assert "id-50" in run("task", "list", "--key", "api").stdout


def test_the_cost_of_a_page_does_not_depend_on_the_tasks(shop, fairness, client):
    def cost(**wanted):
        before = sum(each["calls"] for each in client.info("commandstats").values())
        assert len(fairness.tasks.list(**wanted, limit=5).items) == 5
        return sum(each["calls"] for each in client.info("commandstats").values()) - before

    wishes = ({}, {"tenant": "42"}, {"queue": "celery"}, {"key": "api"}, {"state": "delayed"})
    costs = []
    for total in (20, 800):
        for number in range(len(client.hkeys(shop.key("tasks"))), total):
            eta = FAR_MS if number % 2 else 0
            send(shop, "42", f"id-{number}", limits=API, eta_ms=eta)
        fairness.tasks.list()
        costs.append([cost(**each) for each in wishes])
    few, many = costs
    # Commands of a binary search are not counted with 20 tasks.
    assert all(after <= before + 20 for before, after in zip(few, many, strict=True)), costs


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "é", "!!!", 7, "W10", "WyJkZWFkIiwiIiwiIl0", "WyJub25lIiwiIiwiIiwiIl0", "bnVsbA"],
)
def test_a_text_that_is_no_cursor_is_an_error_that_says_so(shop, fairness, cursor):
    with pytest.raises(ValueError, match="cursor: expected the cursor of a page, got: "):
        fairness.tasks.list(cursor=cursor)


@pytest.mark.parametrize("at", ["1_0", "nan", "(1", "1e", "٣"])
def test_a_cursor_without_a_number_is_an_error(shop, fairness, at):
    cursor = task_list._cursor(
        task_list.Place(0, {"section": "delayed", "part": "", "at": at, "member": ""}), 1
    )
    with pytest.raises(ValueError, match="cursor: expected"):
        fairness.tasks.list(cursor=cursor)


def test_a_cursor_of_another_list_is_no_error(shop, fairness):
    for number in range(6):
        send(shop, "42", f"id-{number}", eta_ms=FAR_MS if number % 2 else 0)
    for section in ("dead", "running", "waiting", "parked", "retried", "delayed"):
        for part in ("", "celery", "9" * 30, "tenant:42"):
            place = {"section": section, "part": part, "at": "1", "member": "x"}
            for wanted in ({}, {"tenant": "42"}, {"key": "api"}):
                cursor = task_list._cursor(task_list.Place(0, place), 1)
                assert len(fairness.tasks.list(**wanted, cursor=cursor).items) <= 6


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"state": "later"}, "state: expected one of waiting, delayed, parked, running, dead, got"),
        ({"state": "waitin"}, "did you mean 'waiting'"),
        ({"tenant": ""}, "tenant: expected a tenant, got: ''"),
        ({"queue": ""}, "queue: expected the name of a queue, got: ''"),
        ({"queue": "\ud800"}, "queue: expected the name of a queue, got: "),
        ({"key": "a b"}, "key: expected the key of a limit"),
        ({"limit": 0}, "limit: expected "),
        ({"limit": 51}, "limit: expected "),
    ],
)
def test_an_argument_that_is_wrong_is_named(shop, fairness, wanted, problem):
    with pytest.raises(ValueError, match=problem):
        fairness.tasks.list(**wanted)


def test_a_tenant_that_cannot_be_one_is_an_error(shop, fairness):
    with pytest.raises(TenantInvalid):
        fairness.tasks.list(tenant="x" * 201)


def fill(shop):
    bury(shop, "42", "buried")
    for number in range(4):
        send(shop, "42", f"waits-{number}", limits=API)
        send(shop, "42", f"due-{number}", eta_ms=FAR_MS)
        send(shop, "43", f"other-{number}", queue="mail", limits=API)
    assert len(shop.claim(1)) == 1


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"tenant": "42"}, 7),
        ({"tenant": "42", "state": "waiting"}, 3),
        ({"tenant": "42", "state": "delayed"}, 4),
        ({"queue": "mail"}, 4),
        ({"queue": "mail", "tenant": "42"}, 0),
        ({"key": "api"}, 7),
    ],
)
def test_a_bulk_cancel_ends_what_its_filter_shows(shop, fairness, check, wanted, expected):
    fill(shop)
    before = set(ids(pages(fairness)))
    states = {"waiting", "delayed", "parked"}
    shown = {each.task_id for each in pages(fairness, **wanted) if each.state in states}
    assert fairness.tasks.count(**wanted) == len(shown) == expected
    seen = []
    done = fairness.tasks.cancel_all(**wanted, progress=seen.append)
    assert (done.cancelled, done.has_more) == (expected, False)
    assert (seen[-1], all(one <= other for one, other in pairwise(seen))) == (expected, True)
    assert set(ids(pages(fairness))) == before - shown
    assert fairness.tasks.count(**wanted) == 0
    assert not check().findings


def test_a_bulk_cancel_ends_at_its_bound_and_goes_on(shop, fairness):
    fill(shop)
    done = fairness.tasks.cancel_all("42", most=5)
    assert (done.cancelled, done.has_more) == (5, True)
    done = fairness.tasks.cancel_all("42", most=2)
    assert (done.cancelled, done.has_more) == (2, False)


def test_a_bulk_cancel_needs_a_filter_and_a_state_that_waits(shop, fairness):
    with pytest.raises(ValueError, match="expected a tenant, a queue or a key, got: none"):
        fairness.tasks.cancel_all(state="waiting")
    with pytest.raises(ValueError, match="state: expected one of waiting, parked, delayed, got"):
        fairness.tasks.cancel_all("42", state="running")
    with pytest.raises(ValueError, match="most: expected "):
        fairness.tasks.cancel_all("42", most=0)


def test_a_task_that_ended_is_on_no_page(shop, fairness):
    send(shop, "42", "first")
    (task,) = shop.claim()
    shop.settle(task, Verdict.DONE)
    assert pages(fairness) == []


def test_a_command_shows_how_to_go_on(shop, run):
    for number in range(3):
        send(shop, "42", f"id-{number}")
    first = run("task", "list", "--limit", "2")
    assert "id-0" in first.stdout
    assert "id-2" not in first.stdout
    cursor = first.stdout.rsplit("there are more: --cursor ", 1)[1].strip()
    assert "id-2" in run("task", "list", "--limit", "2", "--cursor", cursor).stdout


def test_a_command_asks_before_it_cancels(shop, run, monkeypatch):
    fill(shop)
    monkeypatch.setattr(nouns, "_may_ask", lambda: True)
    words = ("task", "cancel", "--tenant", "42", "--state", "delayed")
    done = run(*words, typed="n\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Cancel 4 tasks of tenant 42, state delayed? [y/N]" in done.stderr
    done = run(*words, typed="y\n")
    assert (done.exit_code, done.stdout) == (0, "4 tasks cancelled\n")


def test_a_command_that_nobody_confirms_cancels_nothing(shop, run, fairness):
    fill(shop)
    done = run("task", "cancel", "--queue", "mail")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "4 tasks of queue mail: expected --yes to cancel them" in done.stderr
    assert fairness.tasks.count(queue="mail") == 4


def test_delayed_tasks_count_for_their_tenant_and_their_queue(shop, fairness, run):
    for number in range(3):
        send(shop, "42", f"id-{number}", queue="mail", eta_ms=FAR_MS)
    fairness.queues.set_limit("mail", global_limit=1)
    found = fairness.tenants.inspect("42")
    assert (found.waiting_count, found.delayed_count, found.known) == (0, 3, True)
    assert fairness.limits.inspect("queue:mail").delayed_count == 3
    shown = run("tenant", "show", "42")
    assert (shown.exit_code, "delayed 3" in shown.stdout) == (0, True)
    assert fairness.limits.inspect("tenant:43").delayed_count == 0
