"""Limits of queues with real workers: declared, set while tasks wait, by partition, by process."""

from __future__ import annotations

from collections.abc import Callable

from redis import Redis

from tests.dispatch.conftest import assert_nothing_left
from tests.dispatch.test_shared_limits import KINDS, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.parts import parts_of
from tests.support.waiting import eventually

ONE = {"concurrency": 1}


def held(shop: Shop, queue: str) -> int:
    """Return how many slots are held of a queue, or of one of its partitions."""
    return parts_of(shop.fairness).limiter.leases_of(f"queue:{queue}").held


def most_of(shop: Shop, name: str) -> int:
    """Return the largest number of bodies of one kind that ran at the same time."""
    most = running = 0
    for entry in sorted(shop.ledger(name=name), key=lambda e: (e["at"], e["event"] == "start")):
        running += 1 if entry["event"] == "start" else -1
        most = max(most, running)
    return most


def test_s30_rlr005_a_declared_limit_holds_over_workers_tenants_and_kinds(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(fairness={"queues": {"a": {"global_limit": 2}}})
    for pool in ("prefork", "threads"):
        shop.worker(app=KINDS, pool=pool, concurrency=3, queues=["a", "b"])
    results = [
        send(shop, user, queue="a", name=name)
        for _ in range(4)
        for user in (None, "41", "42")
        for name in ("late", "early")
    ]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once() <= 2
    assert_nothing_left(memory)


def test_what_people_set_acts_on_what_waits_and_stops_no_other_queue(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    shop.worker(app=KINDS, pool="threads", concurrency=8, queues=["a", "b"])
    shop.fairness.queues.set_limit("a", global_limit=0)
    gate = shop.gate_file()
    waiting = [send(shop, str(user), queue="a", gate=str(gate)) for user in range(6)]
    other = send(shop, "9", queue="b")
    assert other.get(timeout=RESULT_SECONDS) == "done"
    assert len(shop.ledger("start")) == 1
    shop.fairness.queues.set_limit("a", global_limit=2)
    eventually(lambda: len(shop.ledger("start")) == 3)
    assert shop.fairness.queues.inspect("a").limit.held == 2
    shop.fairness.queues.clear_limit("a")
    eventually(lambda: len(shop.ledger("start")) == 7)
    gate.touch()
    for result in waiting:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_each_customer_has_the_limit_of_a_partitioned_queue_for_itself(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(
        fairness={"queues": {"a": {"partition": ONE, "by_args": ["gate"], "by_kind": True}}}
    )
    shop.worker(app=KINDS, pool="threads", concurrency=8, queues=["a"])
    one, two = shop.gate_file(), shop.gate_file()
    ones = [send(shop, str(user), queue="a", gate=str(one)) for user in range(3)]
    twos = [send(shop, str(user), queue="a", gate=str(two)) for user in range(3, 6)]
    kind = send(shop, None, queue="a", gate=str(one), name="early")
    eventually(lambda: len(shop.ledger("start")) == 3)
    one.touch()
    for result in (*ones, kind):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert len(shop.ledger("start")) == 5
    two.touch()
    for result in twos:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_s30_rlr005_each_kind_has_the_limit_of_a_queue_for_itself(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(fairness={"queues": {"a": {"partition": ONE, "by_kind": True}}})
    shop.worker(app=KINDS, pool="threads", concurrency=8, queues=["a", "b"])
    gate = shop.gate_file()
    # Of tenants that each could start one.
    results = [
        send(shop, str(user), queue="a", gate=str(gate), name=name)
        for user, name in enumerate(["late", "late", "late", "early", "early", "early"])
    ]
    eventually(lambda: len(shop.ledger("start")) == 2)
    # Whoever waits at no limit is served in the meantime.
    assert send(shop, "9", queue="b", name="plain").get(timeout=RESULT_SECONDS) == "done"
    began = sorted(entry["name"] for entry in shop.ledger("start"))
    assert began == ["kinds.early", "kinds.late", "kinds.plain"]
    assert [held(shop, f"a:kinds.{name}") for name in ("late", "early", "plain")] == [1, 1, 0]
    assert shop.fairness.queues.inspect("a").limit.held == 2
    gate.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert {most_of(shop, f"kinds.{name}") for name in ("late", "early")} == {1}
    assert_nothing_left(memory)


def test_s30_rlr005_each_set_of_all_arguments_has_the_limit_of_a_queue_for_itself(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(fairness={"queues": {"a": {"partition": ONE, "by_args": []}}})
    shop.worker(app=KINDS, pool="threads", concurrency=8, queues=["a", "b"])
    one, two = shop.gate_file(), shop.gate_file()
    same = [send(shop, str(user), queue="a", gate=str(one)) for user in range(3)]
    # Its kind is not asked for.
    same.append(send(shop, "3", queue="a", gate=str(one), name="early"))
    others = [
        send(shop, "4", queue="a", gate=str(two)),
        send(shop, "5", queue="a", gate=str(one), how="otherwise"),
    ]
    eventually(lambda: len(shop.ledger("start")) == 3)
    assert send(shop, "9", queue="b").get(timeout=RESULT_SECONDS) == "done"
    began = {entry["id"] for entry in shop.ledger("start") if entry["user"] != "9"}
    assert began == {same[0].id, *(result.id for result in others)}
    assert shop.fairness.queues.inspect("a").limit.held == 3
    one.touch()
    for result in (*same, others[1]):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    two.touch()
    assert others[0].get(timeout=RESULT_SECONDS) == "done"
    ids = {result.id for result in same}
    events = sorted((e["at"], e["event"]) for e in shop.ledger() if e["id"] in ids)
    assert [event for _, event in events] == ["start", "end"] * 4
    assert_nothing_left(memory)


def test_s30_arguments_that_are_said_in_another_way_are_the_same_set(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    tiers = {"free": {"concurrency": None}}
    queues = {"a": {"partition": ONE, "by_args": []}}
    shop = make_fair_shop(fairness={"tiers": tiers, "queues": queues})
    shop.worker(app=KINDS, pool="threads", concurrency=8, queues=["a", "b"])
    gate = shop.gate_file()
    in_queue = {"options": {"queue": "a"}}
    same = [
        shop.send("work", user="41", gate=str(gate), **in_queue),
        shop.send("work", "ok", "41", gate=str(gate), **in_queue),
        shop.send("work", how="ok", user="41", gate=str(gate), **in_queue),
    ]
    other = shop.send("work", user="42", gate=str(gate), **in_queue)
    eventually(lambda: len(shop.ledger("start")) == 2)
    assert send(shop, "9", queue="b").get(timeout=RESULT_SECONDS) == "done"
    began = {entry["id"] for entry in shop.ledger("start", "shop.work")}
    assert began == {same[0].id, other.id}
    gate.touch()
    for result in (*same, other):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once("41") == 1
    assert_nothing_left(memory)


def test_a_process_holds_no_more_of_a_queue_than_its_local_limit(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(fairness={"queues": {"a": {"local_limit": 1, "global_limit": 5}}})
    shop.worker(app=KINDS, pool="threads", concurrency=4, queues=["a", "b"])
    gate = shop.gate_file()
    results = [send(shop, str(user), queue="a", gate=str(gate)) for user in range(4)]
    results += [send(shop, None, queue="b") for _ in range(3)]
    for result in results[4:]:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.fairness.queues.inspect("a").limit.held == 1
    shop.worker(app=KINDS, pool="prefork", concurrency=3, queues=["a"])
    eventually(lambda: shop.fairness.queues.inspect("a").limit.held == 2)
    gate.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_what_a_killed_worker_held_of_a_queue_is_free_again(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": 1, "queues": {"a": {"global_limit": 1}}})
    worker = shop.worker(app=KINDS, pool="threads", concurrency=2, queues=["a"])
    gate = shop.gate_file()
    first = send(shop, "41", queue="a", gate=str(gate))
    eventually(lambda: len(shop.ledger("start")) == 1)
    second = send(shop, "42", queue="a")
    worker.kill()
    gate.touch()
    shop.worker(app=KINDS, pool="threads", concurrency=2, queues=["a"])
    for result in (first, second):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)
