"""What people do and what goes wrong stays, however much happens to tasks."""

from __future__ import annotations

import itertools
import json

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler.types import Verdict
from tests.cli.conftest import Installation, client, fairness, make_fairness, partitions, run

__all__ = ["client", "fairness", "make_fairness", "partitions", "run"]

#: More than a stream keeps, with the rest of a block.
FLOOD = 10_400
ONE = write_limits((Limit("api", concurrency=1),))


@pytest.fixture
def flood(client):
    """More starts and rejections of tasks than are kept, as their entries are."""

    def flood() -> None:
        with client.pipeline() as pipe:
            for number in range(FLOOD):
                fields = {"type": "rate_limit.exceeded", "key": "api", "job_id": str(number)}
                pipe.xadd("{fairness}:events", fields, maxlen=10_000)
            pipe.execute()

    return flood


@pytest.fixture
def steered(fairness, client):
    """An installation in which people did each thing that they can, and something was lost."""
    shop = Installation(client)
    fairness.tenants.pause("42", by="ada")
    fairness.tenants.resume("42", by="ada")
    fairness.limits.override("api", concurrency=1)
    fairness.limits.clear_override("api")
    fairness.queues.set_limit("celery", global_limit=5)
    fairness.queues.clear_limit("celery")
    fairness.tenants.set_tier("42", "pro")
    fairness.tenants.clear_tier("42")
    fairness.limits.cool_down("mail", for_seconds=60)
    fairness.limits.clear_cool_down("mail")
    shop.put("7", "waits")
    fairness.tenants.purge("7")
    shop.fill()
    return {each.type for each in fairness.events.read().events if "rate_limit.e" not in each.type}


def test_a_flood_of_tasks_pushes_out_nothing_that_people_did(steered, fairness, flood, run):
    assert {"fairness.paused", "fairness.cancelled", "fairness.dead_lettered"} <= steered
    before = fairness.events.read(types=steered).events
    flood()
    assert fairness.events.read(types=steered).events == before
    assert fairness.events.read().events[: len(before)] == before
    paused = run("events", "--types", "fairness.paused").output.splitlines()
    assert len(paused) == 1
    assert paused[0].endswith("  fairness.paused  key=tenant:42 by=ada")


def test_starts_and_rejections_are_read_among_what_people_did(fairness, client):
    """Each task that starts after it was rejected emits two events."""
    shop = Installation(client)
    fairness.tenants.pause("42")
    for number in range(20):
        shop.put("1", f"t{number}", limits=ONE)
    for _ in range(20):
        (task,) = shop.claim(2)
        shop.settle(task, Verdict.DONE)
    kinds = [each.type for each in fairness.events.read().events]
    assert kinds[0] == "fairness.paused"
    assert kinds.count("rate_limit.exceeded") == kinds.count("rate_limit.released") == 19


def test_readers_see_one_sequence_each_event_once(steered, fairness, flood):
    fairness.tenants.pause("first")
    flood()
    fairness.tenants.pause("second")
    seen, cursor = [], None
    for _ in itertools.count():
        page = fairness.events.read(after=cursor, limit=1000)
        seen += page.events
        cursor = page.cursor
        if not page.has_more:
            break
    ids = [each.id for each in seen]
    assert len(set(ids)) == len(ids)
    assert [each.at for each in seen] == sorted(each.at for each in seen)
    assert [each.data["key"] for each in seen if each.type == "fairness.paused"] == [
        "tenant:42",
        "tenant:first",
        "tenant:second",
    ]
    # A follower begins behind any of them, also behind one that the flood pushed out.
    first = next(each for each in seen if each.data.get("key") == "tenant:first")
    followed = fairness.events.follow(after=first.id)
    assert next(followed).id == ids[ids.index(first.id) + 1]


def test_the_command_shows_the_newest_and_the_oldest_of_these_first(fairness, run):
    assert run("events").output == "no events\n"
    for number in range(5):
        fairness.tenants.pause(f"{number}")
    shown = run("events", "--last", "2").output.splitlines()
    assert [line.split("key=")[1].split()[0] for line in shown[:2]] == ["tenant:3", "tenant:4"]
    assert shown[-1] == "note: there are older ones: --last N shows more"
    assert len(run("events").output.splitlines()) == 5
    page = json.loads(run("events", "--last", "2", "--json").stdout)
    assert [each["data"]["key"] for each in page["events"]] == ["tenant:3", "tenant:4"]
    assert fairness.events.read(last=2).cursor == fairness.events.read().cursor


def test_the_newest_of_a_type_are_found_behind_a_flood(fairness, flood, run):
    fairness.tenants.pause("42")
    flood()
    (paused,) = fairness.events.read(types=["fairness.paused"], last=10).events
    assert paused.data["key"] == "tenant:42"
    assert len(fairness.events.read(last=1000).events) == 1000


def test_a_type_that_does_not_exist_is_an_error_that_lists_those_that_do(run):
    done = run("events", "--types", "fairness.pause")
    assert done.exit_code == 2
    assert "types: expected some of fairness.abandoned, fairness.cancelled, " in done.stderr
    assert "got: 'fairness.pause', did you mean 'fairness.paused'" in done.stderr


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--last", "0"), "0 is not in the range 1<=x<=1000"),
        (("--last", "2", "--follow"), "expected --last, or --after and --follow"),
        (("--limit", "2"), "--limit: expected with --after; the newest are --last N"),
    ],
)
def test_options_that_exclude_each_other_are_wrong_usage(run, args, problem):
    done = run("events", *args)
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.split())


def test_a_line_shows_only_the_fields_that_have_a_value(fairness, run):
    fairness.tenants.set_tier("42", "pro")
    assert run("events").output.endswith("  fairness.tier_set  key=tenant:42 tier=pro\n")
    fairness.tenants.pause("42", by="ada")
    assert run("events", "--last", "1").output.splitlines()[0].endswith("key=tenant:42 by=ada")
