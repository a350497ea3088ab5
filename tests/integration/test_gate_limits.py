"""Limits beside the tiers on brokers that do not claim fairly: the gate keeps all or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from celery import chord
from celery.exceptions import ChordError
from celery.result import AsyncResult

from celery_fairness import RateLimitDropped, RateLimitPolicy
from celery_fairness.limiter.types import Admitted, Lease, SlotRequest
from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.support.parts import parts_of
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.parametrize("broker", BROKERS)

KEY = "api.example.com"
#: A snooze that no test waits for.
LONG = {"snooze_seconds": 600, "snooze_jitter_seconds": 0, "lease_seconds": 60}


@contextmanager
def key_taken(shop: Shop) -> Iterator[None]:
    """Hold the key's only slot from outside."""
    lease, limiter, is_over = Lease("held", KEY), parts_of(shop.fairness).limiter, Event()

    def renew() -> None:
        while not is_over.wait(0.3):
            limiter.renew([lease])

    answer = limiter.acquire(SlotRequest(lease, "", "", limits=f"{KEY}|C1|w"))
    assert isinstance(answer, Admitted)
    # On a slow machine the body of the test takes longer than a lease.
    renewer = Thread(target=renew)
    renewer.start()
    try:
        yield
    finally:
        is_over.set()
        renewer.join()
        limiter.release([lease])


def send(shop: Shop, user: str | None, *limits: RateLimitPolicy, **options: object) -> AsyncResult:
    how = str(options.pop("how", "ok"))
    seconds = options.pop("seconds", 0.0)
    options["limits"] = list(limits)
    return shop.send("work", how, user=user, seconds=seconds, options=options)


def await_count(shop: Shop, counter: str, count: int) -> None:
    def counted() -> None:
        assert shop.fairness.stats.counters().get(counter, 0) >= count

    eventually(counted, RESULT_SECONDS)


def assert_all_free(shop: Shop, *keys: str) -> None:
    def free() -> None:
        assert [parts_of(shop.fairness).limiter.leases_of(key).held for key in keys] == [0] * len(
            keys
        )

    eventually(free, RESULT_SECONDS)


def events_of(shop: Shop) -> list[tuple[str, str]]:
    """Return each event of a limit and the id of its task, "" where it is of none."""
    events = shop.fairness.events.read().events
    told = [(event.type, event.subject) for event in events]
    return [each for each in told if each[0].startswith("rate_limit.")]


def starts(shop: Shop) -> list[float]:
    return sorted(entry["at"] for entry in shop.ledger("start"))


def test_one_limit_holds_over_workers_and_tenants_and_frees_every_slot(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={"tiers": {"free": {"concurrency": 3}}})
    for _ in range(2):
        shop.worker(pool="threads", concurrency=4)
    two, other = RateLimitPolicy(KEY, concurrency=2), RateLimitPolicy("db", concurrency=3)
    results = [send(shop, f"u{n % 3}", two, other, seconds=0.1) for n in range(9)]
    results += [send(shop, None, two, seconds=0.1) for _ in range(3)]
    for result in results:
        assert result.get(timeout=at_most(60)) == "done"
    running, most = 0, 0
    for entry in sorted(shop.ledger(), key=lambda e: (e["at"], e["event"] == "start")):
        running += 1 if entry["event"] == "start" else -1
        most = max(most, running)
    assert most <= 2
    assert set(shop.runs().values()) == {1}
    assert_all_free(shop, KEY, "db", "tenant:u0", "tenant:u1", "tenant:u2")


def test_s39_s46_s47_a_task_that_waits_spends_no_retry_and_takes_no_other_slot(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={"lease_seconds": 60})
    shop.worker(pool="threads", concurrency=2)
    one, other = RateLimitPolicy(KEY, concurrency=1), RateLimitPolicy("db", concurrency=1)
    with key_taken(shop):
        waits = send(shop, "42", one, other)
        await_count(shop, "limited", 1)
        # Its tenant's only slot, and that of its other limit, are of others meanwhile.
        assert send(shop, "42", other).get(timeout=RESULT_SECONDS) == "done"
        assert waits.state == "PENDING"
    assert waits.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["retries"] for entry in shop.ledger("start")] == [0, 0]
    assert shop.fairness.stats.rejections().tiers == {}
    assert events_of(shop) == [("rate_limit.exceeded", waits.id), ("rate_limit.released", waits.id)]


def test_a_rescheduled_task_comes_when_its_rate_is_open_and_not_before(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=LONG)
    shop.worker(pool="threads", concurrency=2)
    rate = RateLimitPolicy(KEY, rate="1/PT2S", on_limit="reschedule")
    sent_at = time.time()
    for result in [send(shop, f"u{n}", rate) for n in range(3)]:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert all(at - sent_at > 2 * n for n, at in enumerate(starts(shop)))
    assert shop.fairness.stats.counters()["rescheduled"] >= 2


def test_s48_a_dropped_task_ends_for_whoever_waits_for_it(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=LONG)
    worker = shop.worker(pool="prefork", concurrency=1)
    drops = RateLimitPolicy(KEY, concurrency=1, on_limit="drop")
    plain = shop.app.tasks["shop.plain"]
    errback = plain.si()
    told = errback.freeze()
    with key_taken(shop):
        dropped = send(shop, "42", drops, link_error=[errback])
        with pytest.raises(RateLimitDropped) as raised:
            dropped.get(timeout=RESULT_SECONDS)
        assert (raised.value.task_id, raised.value.key) == (dropped.id, KEY)
        assert told.get(timeout=RESULT_SECONDS) == "plain"
        # The failure of a chord has one, of Celery.
        assert "Traceback" not in worker.log_text()
        part = shop.app.tasks["shop.work"].signature((), {"user": "42"}, limits=[drops])
        after = chord([part, shop.app.tasks["shop.add"].s(1, 2)], app=shop.app)(plain.si())
        with pytest.raises(ChordError, match="RateLimitDropped"):
            # Not that of the chord itself, which asks its parts first.
            shop.app.AsyncResult(after.id).get(timeout=RESULT_SECONDS)
    assert dropped.state == "FAILURE"
    assert shop.ledger("start", "shop.work") == []
    assert shop.fairness.stats.counters() == {"dropped": 2, "limited": 2}
    assert [what for what, _ in events_of(shop)] == ["rate_limit.dropped"] * 2
    assert events_of(shop)[0] == ("rate_limit.dropped", dropped.id)
    assert send(shop, "42", drops).get(timeout=RESULT_SECONDS) == "done"
    assert_all_free(shop, KEY, "tenant:42")
    assert f"was dropped by the limit {KEY}" in worker.log_text()


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_dropped_message_is_acknowledged(
    make_shop: Callable[..., Shop], broker: str, acks_late: bool
) -> None:
    shop = make_shop(broker, {"task_acks_late": acks_late}, LONG)
    worker = shop.worker(pool="threads", concurrency=1)
    drops = RateLimitPolicy(KEY, concurrency=1, on_limit="drop")
    with key_taken(shop), pytest.raises(RateLimitDropped):
        send(shop, "42", drops).get(timeout=RESULT_SECONDS)
    worker.terminate()
    shop.worker(pool="threads", concurrency=1)
    assert send(shop, "42").get(timeout=RESULT_SECONDS) == "done"
    assert len(shop.ledger("start")) == 1


def test_s41_s49_a_body_that_says_it_was_too_much_cools_its_key_for_everybody(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker)
    worker = shop.worker(pool="threads", concurrency=2)
    api = RateLimitPolicy(KEY, concurrency=5)
    first = send(shop, "41", api, how="too_many")
    worker.wait_for_log(f"{KEY} cools down")
    second = send(shop, "42", api)
    assert send(shop, "43").get(timeout=RESULT_SECONDS) == "done"
    assert first.get(timeout=RESULT_SECONDS) == "done"
    assert second.get(timeout=RESULT_SECONDS) == "done"
    began = {entry["user"]: entry["at"] for entry in shop.ledger("start")}
    said_at = next(e["at"] for e in shop.ledger("end") if e["user"] == "41")
    assert min(began["41"], began["42"]) - said_at > 1.9
    assert {entry["retries"] for entry in shop.ledger("start")} == {0}
    assert ("rate_limit.dynamic_adjusted", "") in events_of(shop)
    assert ("rate_limit.exceeded", second.id) in events_of(shop)


@pytest.mark.parametrize("name", ["called", "retried"])
def test_a_body_that_says_it_was_too_much_is_heard_whatever_its_class_and_options_are(
    make_shop: Callable[..., Shop], broker: str, name: str
) -> None:
    shop = make_shop(broker)
    worker = shop.worker(pool="threads", concurrency=2)
    # Of a policy, though a tenant's begins so.
    key = "tenant:acme-corp:reports"
    options = {"limits": [RateLimitPolicy(key, concurrency=5)]}
    met = shop.send(name, "too_many", user="41", options=options)
    worker.wait_for_log(f"{key} cools down")
    assert met.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["retries"] for entry in shop.ledger("start")] == [0, 0]
    assert_all_free(shop, key, "tenant:41")


def test_a_paused_key_starts_nothing_until_it_is_resumed(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker)
    shop.worker(pool="threads", concurrency=2)
    api = RateLimitPolicy(KEY, concurrency=5, on_limit="drop")
    assert shop.fairness.limits.pause(KEY).paused
    waits = send(shop, "42", api)
    await_count(shop, "limited", 1)
    resumed_at = time.time()
    assert not shop.fairness.limits.resume(KEY).paused
    assert waits.get(timeout=RESULT_SECONDS) == "done"
    assert starts(shop)[0] >= resumed_at


def test_slots_of_a_killed_child_are_free(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker)
    shop.worker(pool="prefork", concurrency=1)
    one = RateLimitPolicy(KEY, concurrency=1)
    killed = send(shop, "42", one, how="kill_child")
    with pytest.raises(Exception, match="signal 9"):
        killed.get(timeout=RESULT_SECONDS)
    assert_all_free(shop, KEY, "tenant:42")
    assert send(shop, "42", one).get(timeout=RESULT_SECONDS) == "done"
