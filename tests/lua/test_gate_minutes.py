"""What gates count by minute, tier and queue: starts, and rejections by the tier."""

from __future__ import annotations

import itertools

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tiers import Tier
from celery_fairness.control.health.stats_api import KEPT, MINUTE_MS
from celery_fairness.limiter.types import Admitted, Job, Lease, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.store.keys import Names
from tests.contract.conftest import stop_key

NAMES = Names("fairness")
#: Fields of a minute. Claims and gates count more queues as one.
FIELDS_AT_MOST = 1000
WIDE = Limit("api", concurrency=100)

_ids = itertools.count(1)


def ask(*limits, tenant="42", queue="q", copy=None, job=True):
    keys = [f"tenant:{tenant}"] * bool(tenant) + [limit.key for limit in limits]
    name = f"t{next(_ids)}"
    return SlotRequest(
        Lease(name, ",".join(keys)),
        tenant,
        "free",
        copy,
        "s2",
        write_limits(limits),
        Job(name, "shop.pay", queue) if job else None,
    )


@pytest.fixture
def limiter(make_limiter):
    return make_limiter(frozen=True)


@pytest.fixture(params=["tenant alone", "steered", "more limits"])
def limits(request, limiter, clock):
    """The limits of a task whose tier alone may reject it: both scripts of a gate are asked."""
    if request.param == "steered":
        stop_key(limiter, clock, "pause", "other")
    return (WIDE,) if request.param == "more limits" else ()


def admit(limiter, request, *enforcement):
    answer = limiter.acquire(request, *enforcement)
    assert isinstance(answer, Admitted), answer
    return answer.lease


def reject(limiter, request):
    answer = limiter.acquire(request)
    assert isinstance(answer, Rejected), answer
    return answer


def counted(client, clock):
    return client.hgetall(NAMES.of("stats", str(clock.now_ms // MINUTE_MS)))


def test_starts_and_rejections_of_the_tier_are_counted_by_minute_tier_and_queue(
    limiter, limits, client, clock
):
    admit(limiter, ask(*limits))
    for _ in range(2):
        reject(limiter, ask(*limits, queue="é b"))
    assert counted(client, clock) == {"started free q": "1", "rejected free é b": "2"}
    before = counted(client, clock)
    clock.now_ms += MINUTE_MS - clock.now_ms % MINUTE_MS
    reject(limiter, ask(*limits))
    clock.now_ms -= 1
    assert counted(client, clock) == before
    clock.now_ms += 1
    assert counted(client, clock) == {"rejected free q": "1"}


def test_they_are_of_the_tier_that_was_judged(limiter, limits, client, clock):
    limiter.publish_tiers([Tier("free", 9), Tier("pro", 1)], "database")
    limiter.publish_tenant("42", "pro")
    admit(limiter, ask(*limits))
    reject(limiter, ask(*limits))
    assert counted(client, clock) == {"started pro q": "1", "rejected pro q": "1"}


@pytest.mark.parametrize("tenant", ["", "42"])
def test_what_limits_beside_the_tier_reject_is_no_rejection_of_the_tier(
    limiter, client, clock, tenant
):
    one, tier = Limit("api", concurrency=1), "free" if tenant else ""
    limiter.publish_tenant("42", "free", {"concurrency": 3})
    admit(limiter, ask(one, tenant=tenant))
    for on_limit in ("wait", "reschedule", "drop"):
        reject(limiter, ask(Limit("api", concurrency=1, on_limit=on_limit), tenant=tenant))
    assert counted(client, clock) == {f"started {tier} q": "1"}


def test_what_both_reject_the_tier_rejects_too(limiter, client, clock):
    drops = Limit("api", concurrency=1, on_limit="drop")
    admit(limiter, ask(drops))
    assert reject(limiter, ask(drops)).action == "drop"
    assert counted(client, clock) == {"started free q": "1", "rejected free q": "1"}


@pytest.mark.parametrize(
    ("enforcement", "rejected"), [(Enforcement.OBSERVE, {"rejected free q": "1"}), ("off", {})]
)
def test_where_nothing_is_rejected_all_start_and_what_would_be_is_counted(
    limiter, limits, client, clock, enforcement, rejected
):
    for _ in range(2):
        admit(limiter, ask(*limits), Enforcement(enforcement))
    assert counted(client, clock) == {"started free q": "2", **rejected}


def test_an_attempt_that_asks_twice_starts_once_and_a_superseded_copy_not_at_all(
    limiter, limits, client, clock
):
    asked = ask(*limits)
    for _ in range(2):
        admit(limiter, asked)
    copied = ask(*limits, copy=Copy("m1"))
    reject(limiter, copied)
    before = counted(client, clock)
    assert before == {"started free q": "1", "rejected free q": "1"}
    reject(limiter, ask(*limits, copy=Copy("m1", "another")))
    assert counted(client, clock) == before


def test_a_task_that_was_parked_starts_once(make_limiter, client, clock):
    limiter = make_limiter(frozen=True, tier_on_limit="wait")
    held = admit(limiter, ask())
    rejected = ask(copy=Copy("m1"))
    reject(limiter, rejected)
    limiter.park(rejected, "message")
    limiter.release([held])
    clock.advance(1)
    (task,) = limiter.promote(1).tasks
    admit(limiter, ask(copy=task.copy))
    minute = {"started free q": "2", "rejected free q": "1", "done  ": "1"}
    assert counted(client, clock) == {**minute, "limited:10  _other": "1"}


def test_a_parked_task_counts_its_whole_wait_behind_a_limit_at_its_first_start(
    limiter, client, clock
):
    limiter.publish_tenant("42", "free", {"concurrency": 9})
    one, asked = Limit("api", concurrency=1), ask(Limit("api", concurrency=1), copy=Copy("m1"))
    held = admit(limiter, ask(one))
    reject(limiter, asked)
    limiter.park(asked, "message")
    clock.advance(1)
    limiter.release([held])
    (task,) = limiter.promote(1).tasks
    # Its copy finds the key paused, and the task waits again in its old place.
    stop_key(limiter, clock, "pause", "api")
    again = ask(one, copy=task.copy)
    reject(limiter, again)
    limiter.park(again, "message")
    stop_key(limiter, clock, "resume", "api")
    clock.advance(2)
    (task,) = limiter.promote(1).tasks
    started = ask(one, copy=task.copy)
    limiter.release([admit(limiter, started)])
    # The broker delivers it again, because its worker died. It has waited once.
    admit(limiter, ask(one, copy=task.copy))
    waits = {field: count for field, count in counted(client, clock).items() if "limited" in field}
    assert waits == {"limited:12  api": "1"}


def test_who_does_not_say_what_asks_is_not_counted(limiter, limits, client, clock):
    for answer in (admit, reject):
        answer(limiter, ask(*limits, job=False))
    assert counted(client, clock) == {}


def test_a_message_that_names_no_queue_is_counted_without(limiter, limits, client, clock):
    admit(limiter, ask(*limits, queue=""))
    assert counted(client, clock) == {"started free ": "1"}


@pytest.mark.parametrize("answer", [admit, reject])
def test_a_count_is_one_command_more(limiter, limits, client, commands, answer):
    # What a call does for the first time is done.
    limiter.publish_tenant("42", "free", {"concurrency": 0 if answer is reject else 9})
    answer(limiter, ask(*limits))
    with commands() as without:
        answer(limiter, ask(*limits, job=False))
    with commands() as ran:
        answer(limiter, ask(*limits))
    assert ran == {**without, "hincrby": without.get("hincrby", 0) + 1}


def test_a_minute_is_kept_until_nobody_asks_for_it(limiter, limits, client, clock):
    admit(limiter, ask(*limits))
    key = NAMES.of("stats", str(clock.now_ms // MINUTE_MS))
    assert 0 <= KEPT * MINUTE_MS + MINUTE_MS - client.pttl(key) < 30_000


def test_of_too_many_queues_the_others_are_one(limiter, limits, client, clock):
    limiter.publish_tenant("42", "free", {"concurrency": 9})
    key = NAMES.of("stats", str(clock.now_ms // MINUTE_MS))
    client.hset(key, mapping={f"started free q{n}": 1 for n in range(FIELDS_AT_MOST - 1)})
    for queue in ("x", "y", "x", "z", "y"):
        admit(limiter, ask(*limits, queue=queue))
    assert client.hmget(key, "started free x", "started free y") == ["2", None]
    assert client.hget(key, "started free _other") == "3"
    assert client.hlen(key) == FIELDS_AT_MOST + 1
