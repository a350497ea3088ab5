"""Inspection as the Open Job Spec has it (section 10), by row, on both paths."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from celery_fairness import RateLimitPolicy
from celery_fairness.app.publish_settings import publish_queues
from celery_fairness.app.task import FairTask
from celery_fairness.config.limit_spec import read_limits, write_limits
from celery_fairness.config.tenants import key_part, tier_key
from celery_fairness.errors import NotFound
from celery_fairness.limiter.types import Admitted, Rejected, SlotRequest
from celery_fairness.limiter.types import Lease as Slot
from celery_fairness.message.headers import Copy
from celery_fairness.message.partition import queue_limits_text
from celery_fairness.scheduler.types import Verdict
from tests.cli.conftest import Installation
from tests.support.parts import parts_of

API = write_limits((RateLimitPolicy("api", 2, "5/PT1H", "1/PT1M").limit(),))
ONE = write_limits((RateLimitPolicy("api", 1).limit(),))
RATE = write_limits((RateLimitPolicy("api", rate="2/PT1H").limit(),))
SPACED = write_limits((RateLimitPolicy("api", throttle="1/PT1H").limit(),))
HOSTILE = ["a b\n}|,", "Größe", "h_42", "a:b", "x" * 150]
HOUR = timedelta(hours=1)


class Dispatch(Installation):
    """What a producer and a worker do on the dispatch path."""

    def start(self, tag, tenant="", limits="", queue="celery"):
        self.put(key_part(tenant) if tenant else "", tag, queue, limits=limits)
        (task,) = self.claim(queue=queue)
        return task

    def wait(self, tag, tenant="", limits="", queue="celery"):
        self.put(key_part(tenant) if tenant else "", tag, queue, limits=limits)
        assert self.claim(queue=queue) == []

    def end(self, task):
        self.settle(task)


class Gate:
    """The same behind a gate that parks what waits."""

    def __init__(self, limiter):
        self.limiter = limiter

    def ask(self, tag, tenant, limits):
        keys = [tier_key(tenant)] if tenant else []
        keys += [limit.key for limit in read_limits(limits)]
        slot = Slot(tag, ",".join(dict.fromkeys(keys)))
        return SlotRequest(slot, tenant, "free", Copy(tag), f"{tag}-next", limits)

    def start(self, tag, tenant="", limits="", queue="celery"):
        of_queue = queue_limits_text(queue, None) if queue != "celery" else ""
        request = self.ask(tag, tenant, ",".join(filter(None, (limits, of_queue))))
        assert isinstance(self.limiter.acquire(request), Admitted)
        return request.lease

    def wait(self, tag, tenant="", limits="", queue="celery"):
        of_queue = queue_limits_text(queue, None) if queue != "celery" else ""
        request = self.ask(tag, tenant, ",".join(filter(None, (limits, of_queue))))
        assert isinstance(self.limiter.acquire(request), Rejected)
        self.limiter.park(request, "{}")

    def end(self, lease):
        self.limiter.release([lease])


@pytest.fixture(params=["dispatch", "gate"])
def path(request):
    return request.param


@pytest.fixture
def fairness(path, make_fairness, redis_url):
    if path == "dispatch":
        return make_fairness()
    settings = {"tier_on_limit": "wait", "queues": {"emails": {}}}
    return make_fairness(url=redis_url, fairness=settings)


@pytest.fixture
def world(path, fairness, client):
    return Dispatch(client) if path == "dispatch" else Gate(parts_of(fairness).limiter)


def dumped(fairness, key):
    """The object of a key, which is plain JSON."""
    found = fairness.limits.inspect(key).model_dump(mode="json")
    assert json.loads(json.dumps(found)) == found
    return found


def left(text):
    """How long it is until a time as it is written: RFC 3339 in UTC."""
    assert text.endswith("Z")
    return datetime.fromisoformat(text) - datetime.now(UTC)


def near(text, expected):
    return timedelta(seconds=-20) < left(text) - expected < timedelta(seconds=1)


def test_s43_rl005_a_key_of_a_limit_has_all_numbers(fairness, world):
    world.start("t1", "a", API)
    world.wait("t2", "b", API)
    found = dumped(fairness, "api")
    assert near(found["rate"].pop("window_resets_at"), HOUR)
    assert near(found["throttle"].pop("next_allowed_at"), timedelta(minutes=1))
    assert found == {
        "key": "api",
        "concurrency": {"limit": 2, "active": 1, "available": 1},
        "rate": {"limit": 5, "period": "PT1H", "current_count": 1},
        "throttle": {"limit": 1, "period": "PT1M"},
        "waiting_count": 1,
    }


@pytest.mark.parametrize(
    ("limits", "parts"),
    [(ONE, set()), (RATE, {"rate"}), (SPACED, {"throttle"}), (API, {"rate", "throttle"})],
)
def test_s43_what_a_limit_does_not_say_is_left_out(fairness, world, limits, parts):
    world.start("t1", "a", limits)
    limit = {ONE: 1, API: 2}.get(limits)
    found = dumped(fairness, "api")
    assert found.keys() == {"key", "concurrency", "waiting_count"} | parts
    available = None if limit is None else limit - 1
    assert found["concurrency"] == {"limit": limit, "active": 1, "available": available}


def test_s43_a_window_that_is_full_resets_when_one_more_start_fits(fairness, world):
    for tag in ("t1", "t2"):
        world.end(world.start(tag, "a", RATE))
    world.wait("t3", "a", RATE)
    found = dumped(fairness, "api")
    assert (found["rate"]["current_count"], found["waiting_count"]) == (2, 1)
    assert near(found["rate"]["window_resets_at"], HOUR)
    fairness.limits.override("api", rate="1/PT1S")
    assert fairness.limits.inspect("api").rate.limit == 1


def test_s43_a_tenants_key_is_computed_from_its_tier(fairness, world):
    world.start("t1", "42")
    world.wait("t2", "42")
    assert dumped(fairness, "tenant:42") == {
        "key": "tenant:42",
        "concurrency": {"limit": 1, "active": 1, "available": 0},
        "waiting_count": 1,
    }


def test_s43_a_policy_with_a_tenants_key_is_held_by_its_tier_too(fairness, world):
    limits = write_limits((RateLimitPolicy("tenant:42", 9, "5/PT1H").limit(),))
    world.start("t1", "42", limits)
    world.wait("t2", "42", limits)
    found = dumped(fairness, "tenant:42")
    assert found["concurrency"] == {"limit": 1, "active": 1, "available": 0}
    assert (found["rate"]["limit"], found["rate"]["current_count"]) == (5, 1)
    assert found["waiting_count"] == 1


def test_s43_a_service_of_a_tenant_has_its_own_numbers(path, client, make_fairness, redis_url):
    url = redis_url if path == "gate" else ""
    fairness = make_fairness(url=url, fairness={"tier_scope": "service"})
    fairness.tenants.pause("a b")
    key = f"tenant:{key_part('a b')}:analysis"
    assert fairness.limits.inspect("tenant:a b:analysis").key == key
    assert fairness.limits.inspect("tenant:a b:analysis").limit == 0
    assert fairness.limits.inspect("tenant:other:analysis").limit == 1


@pytest.mark.parametrize("tenant", HOSTILE)
def test_s43_a_tenant_of_any_name_has_its_own_numbers(fairness, world, tenant):
    world.start("t1", tenant)
    world.wait("t2", tenant)
    found = dumped(fairness, f"tenant:{tenant}")
    assert found["key"] == tier_key(tenant)
    assert (found["concurrency"]["active"], found["waiting_count"]) == (1, 1)
    assert dumped(fairness, "tenant:a")["concurrency"]["active"] == 0
    (item,) = fairness.limits.list().items
    assert item.model_dump() == fairness.limits.inspect(f"tenant:{tenant}").model_dump()


def test_s43_a_queues_key_has_its_numbers_and_all_that_waits_in_it(fairness, world):
    fairness.queues.set_limit("emails", global_limit=1, rate="5/PT1H")
    world.start("t1", "a", queue="emails")
    world.wait("t2", "b", queue="emails")
    world.wait("t3", "c", ONE, queue="emails")
    found = dumped(fairness, "queue:emails")
    assert found["concurrency"] == {"limit": 1, "active": 1, "available": 0}
    assert (found["rate"]["limit"], found["rate"]["current_count"]) == (5, 1)
    assert (found["waiting_count"], dumped(fairness, "api")["waiting_count"]) == (2, 1)
    # What started by older numbers says nothing any more.
    fairness.queues.set_limit("emails", rate="9/PT1H")
    found = dumped(fairness, "queue:emails")
    assert (found["concurrency"]["limit"], found["rate"]["limit"]) == (None, 9)


def test_s43_a_partition_has_the_numbers_of_its_queue(fairness, world):
    settings = type(fairness.settings).model_validate(
        {"queues": {"emails": {"partition": {"concurrency": 1}, "by_args": ["customer"]}}}
    )
    publish_queues(parts_of(fairness).limiter, settings.queues)
    one, other = (queue_limits_text("emails", f"queue:emails:{number}") for number in "12")
    if isinstance(world, Dispatch):
        # There a claim adds the limit of the whole.
        one, other = (word.partition(",")[0] for word in (one, other))
    world.start("t1", "a", one)
    world.wait("t2", "b", one)
    world.start("t3", "c", other)
    assert dumped(fairness, "queue:emails:1") == {
        "key": "queue:emails:1",
        "concurrency": {"limit": 1, "active": 1, "available": 0},
        "waiting_count": 1,
    }
    assert dumped(fairness, "queue:emails")["concurrency"]["limit"] is None
    with pytest.raises(NotFound):
        fairness.limits.inspect("queue:emails:3")
    assert dumped(fairness, "queue:emails:2")["waiting_count"] == 0


def test_s43_d04_an_override_is_shown_with_its_end(fairness, world):
    world.start("t1", "a", API)
    made = fairness.limits.override(
        "api", concurrency=0, rate=None, for_seconds=60, reason="a sale"
    )
    found = made.model_dump(mode="json")
    assert near(found["override"].pop("expires_at"), timedelta(minutes=1))
    assert found["override"] == {"concurrency": 0, "rate": None, "reason": "a sale"}
    assert found["concurrency"] == {"limit": 0, "active": 1, "available": 0}
    # What it does not say is as the tasks have it; what it lifts is left out.
    assert "rate" not in found
    assert found["throttle"]["limit"] == 1
    assert fairness.limits.inspect("api").model_dump().keys() == made.model_dump().keys()
    assert fairness.limits.clear_override("api")
    assert "override" not in dumped(fairness, "api")


def test_d04_an_override_of_a_key_that_nobody_has_seen_answers_with_it(fairness):
    found = fairness.limits.override("new", throttle="2/PT1S").model_dump(mode="json")
    assert found["override"] == {"throttle": {"limit": 2, "period": "PT1S"}, "expires_at": None}
    assert near(found["throttle"].pop("next_allowed_at"), timedelta())
    assert found["throttle"] == {"limit": 2, "period": "PT1S"}
    found = fairness.limits.override("tenant:42", concurrency=7).model_dump(mode="json")
    assert found["concurrency"] == {"limit": 7, "active": 0, "available": 7}


def test_s43_a_pause_is_a_limit_of_0_and_says_when_it_ends(fairness, world):
    world.start("t1", "a", API)
    fairness.limits.pause("api", for_seconds=7200)
    found = dumped(fairness, "api")
    assert found["concurrency"] == {"limit": 0, "active": 1, "available": 0}
    for at in (found["rate"]["window_resets_at"], found["throttle"]["next_allowed_at"]):
        assert near(at, 2 * HOUR)
    fairness.limits.pause("api")
    found = dumped(fairness, "api")
    assert found["rate"]["window_resets_at"] is None
    assert found["throttle"]["next_allowed_at"] is None
    fairness.tenants.pause("a")
    assert dumped(fairness, "tenant:a")["concurrency"] == {"limit": 0, "active": 1, "available": 0}


def test_s43_s42_a_cool_down_is_in_the_times(fairness, world):
    world.start("t1", "a", API)
    fairness.limits.cool_down("api", for_seconds=7200)
    found = dumped(fairness, "api")
    for at in (found["rate"]["window_resets_at"], found["throttle"]["next_allowed_at"]):
        assert near(at, 2 * HOUR)
    assert found["concurrency"]["limit"] == 2


def test_d03_the_policy_that_was_said_last_is_shown(fairness, world):
    world.start("t1", "a", write_limits((RateLimitPolicy("api", rate="1/PT1H").limit(),)))
    # A 0 stops its own task, and is no number of the key.
    for number, (own, limit) in enumerate(((1, 1), (0, 1), (3, 3), (2, 2))):
        policy = RateLimitPolicy("api", own, rate="1/PT2H")
        world.wait(f"w{number}", f"u{number}", write_limits((policy.limit(),)))
        found = fairness.limits.inspect("api")
        assert (found.limit, found.rate.period) == (limit, "PT2H")


def test_d14_what_waits_is_counted_wherever_it_does(client, make_fairness):
    fairness, world = make_fairness(), Dispatch(client)
    running = world.start("t1", "a", ONE)
    both = write_limits((RateLimitPolicy("api", 1).limit(), RateLimitPolicy("db", 5).limit()))
    for number, limits in enumerate((ONE, ONE, both, both)):
        world.wait(f"w{number}", f"u{number % 2}", limits)
    world.put("u0", "other", "other", limits=ONE)
    world.put("u0", "plain", "other")
    world.put("u0", "late", limits=ONE, eta_ms=9_000_000_000_000)
    counts = {key: dumped(fairness, key)["waiting_count"] for key in ("api", "db", "tenant:u0")}
    assert counts == {"api": 5, "db": 2, "tenant:u0": 4}
    world.settle(running, Verdict.HEAD)
    assert dumped(fairness, "api")["waiting_count"] == 6
    fairness.tasks.cancel("w2")
    counts = {key: dumped(fairness, key)["waiting_count"] for key in ("api", "db")}
    assert counts == {"api": 5, "db": 1}


def test_d14_what_a_gate_has_parked_is_counted_for_each_of_its_limits(fairness, world):
    both = write_limits((RateLimitPolicy("api", 1).limit(), RateLimitPolicy("db", 5).limit()))
    world.start("t1", "a", ONE)
    for number in range(3):
        world.wait(f"w{number}", f"u{number}", both)
    keys = ("api", "db", "tenant:u0", "tenant:u1", "tenant:a")
    assert [dumped(fairness, key)["waiting_count"] for key in keys] == [3, 3, 1, 1, 0]


def test_d18_a_key_that_is_idle_answers_until_it_is_forgotten(fairness, world, client):
    world.end(world.start("t1", "a", API))
    found = dumped(fairness, "api")
    assert found["concurrency"]["active"] == found["waiting_count"] == 0
    assert found["rate"]["current_count"] == 1
    client.delete("{fairness}:window:api", "{fairness}:key_expiry")
    with pytest.raises(NotFound) as told:
        fairness.limits.inspect("api")
    assert (told.value.what, told.value.name) == ("key", "api")


def test_d18_a_key_that_was_put_and_never_claimed_answers_at_once(client, make_fairness):
    Dispatch(client).put("a", "t1", limits=API)
    found = make_fairness().limits.inspect("api")
    assert (found.limit, found.rate.limit, found.throttle.limit) == (2, 5, 1)
    assert found.model_dump()["waiting_count"] == 1


@pytest.mark.parametrize("key", ["never", "queue:celery", "type:none", "queue:emails:9"])
def test_d18_a_key_of_which_nothing_is_known_is_not_found(fairness, world, key):
    world.start("t1", "a", ONE)
    with pytest.raises(NotFound, match="is not known"):
        fairness.limits.inspect(key)


@pytest.mark.parametrize("tenant", ["stranger", *HOSTILE])
def test_d18_a_tenants_key_always_answers(fairness, tenant):
    found = fairness.limits.inspect(f"tenant:{tenant}")
    assert not found.known
    assert found.model_dump() == {
        "key": tier_key(tenant),
        "concurrency": {"limit": 1, "active": 0, "available": 1},
        "waiting_count": 0,
    }


def test_d18_what_this_app_declares_answers_and_fills_in_what_redis_does_not_say(fairness, world):
    @parts_of(fairness).app.task(
        base=FairTask,
        shared=False,
        name="shop.report",
        limits=[
            RateLimitPolicy("reports", 3, "5/PT1H"),
            RateLimitPolicy("type:{task}", 4),
            RateLimitPolicy("of:{args.x}", 9),
        ],
    )
    def report(x=None):
        pass

    found = dumped(fairness, "reports")
    assert near(found["rate"].pop("window_resets_at"), timedelta())
    assert found == {
        "key": "reports",
        "concurrency": {"limit": 3, "active": 0, "available": 3},
        "rate": {"limit": 5, "period": "PT1H", "current_count": 0},
        "waiting_count": 0,
    }
    assert fairness.limits.inspect("type:shop.report").limit == 4
    # What a task says that runs or waits goes before it.
    world.start("t1", "a", write_limits((RateLimitPolicy("reports", 8).limit(),)))
    if isinstance(world, Dispatch):
        assert fairness.limits.inspect("reports").limit == 8
    with pytest.raises(NotFound):
        fairness.limits.inspect("of:1")


@pytest.mark.parametrize("url", ["", "gate"])
def test_d18_a_queue_that_the_settings_limit_answers_before_a_worker_says_so(
    make_fairness, redis_url, url
):
    queues = {"emails": {"global_limit": 3}, "mails": {"global_limit": 2, "by_kind": True}}
    fairness = make_fairness(url=url and redis_url, fairness={"queues": queues})
    assert fairness.limits.inspect("queue:emails").limit == 3
    assert fairness.limits.inspect("queue:mails").limit == 2
    for key in ("queue:mails:shop.work", "queue:emails:1"):
        with pytest.raises(NotFound):
            fairness.limits.inspect(key)


def test_s45_d07_a_list_has_the_same_objects_and_its_pagination(fairness, world):
    world.start("t1", "a", API)
    world.wait("t2", "b", API)
    fairness.limits.override("db", concurrency=3)
    keys = ["api", "db", "tenant:a", "tenant:b"]
    found = fairness.limits.list(per_page=3).model_dump(mode="json")
    assert found["pagination"] == {"total": 4, "page": 1, "per_page": 3}
    assert [each["key"] for each in found["items"]] == keys[:3]
    last = fairness.limits.list(2, 3).model_dump(mode="json")
    assert last["pagination"] == {"total": 4, "page": 2, "per_page": 3}
    assert last["items"] == [fairness.limits.inspect("tenant:b").model_dump(mode="json")]
    api = found["items"][0]
    assert (api["concurrency"]["limit"], api["concurrency"]["active"]) == (2, 1)
    assert (api["rate"]["limit"], api["rate"]["current_count"]) == (5, 1)
    assert api["waiting_count"] == 1
    assert fairness.limits.list(3, 3).model_dump(mode="json")["items"] == []


def test_the_command_has_the_object_and_all_else_that_is_known(fairness, world, run):
    world.start("t1", "a", API)
    world.wait("t2", "b", API)
    shown = json.loads(run("limit", "show", "api", "--json").stdout)
    found = json.loads(fairness.limits.inspect("api").model_dump_json())
    for part in ("key", "concurrency", "waiting_count"):
        assert shown[part] == found[part]
    assert shown["rate"].keys() == found["rate"].keys()
    assert (shown["known"], shown["held"], len(shown["leases"])) == (True, 1, 1)
    lines = run("limit", "show", "api").output.splitlines()
    assert lines[0] == "api: held 1"
    assert lines[1] == "limit 2: declared by its tasks"
    assert lines[2].startswith("rate 5/PT1H, 1 counted, resets ")
    assert lines[2].endswith("; waiting 1")
    words = [line.split() for line in run("limit", "list").output.splitlines()]
    assert [
        "api",
        "2",
        "1",
        "1",
        "of",
        "5/PT1H",
        "1/PT1M",
        "1",
        "declared",
        "by",
        "its",
        "tasks",
    ] in words
    assert (
        json.loads(run("limit", "list", "--json").stdout)["items"][0]["rate"]["current_count"] == 1
    )


def test_the_command_shows_an_override_to_programs_as_the_same_object(fairness, run):
    shown = json.loads(run("limit", "override", "api", "--rate", "5/PT1H", "--json").stdout)
    rate = {"limit": 5, "period": "PT1H"}
    assert shown["override"] == {"rate": rate, "expires_at": None, "by": "ada"}
    assert json.loads(run("limit", "override", "api", "--clear", "--json").stdout) == {
        "key": "api",
        "cleared": True,
    }


def test_every_fact_of_a_key_is_beside_its_object(fairness, world, run):
    world.start("t1", "a")
    found = fairness.limits.inspect("tenant:a")
    shown = json.loads(run("limit", "show", "tenant:a", "--json").stdout)
    assert (shown["tier"], shown["weight"]) == (found.tier, found.weight) == ("free", 1)
    facts = {name for name, _ in found} - {"numbers"}
    assert shown.keys() >= facts - {"rate", "throttle", "override"}
    with pytest.raises(ValueError, match="frozen"):
        found.waiting_count = 3
