"""Pages of tasks that leave one installation for another: each call may come twice, or never."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Put, Rules, Verdict
from tests.lua.dispatching import NOW, PREFIX, RULES, Dispatch
from tests.support.library import call, tag_of
from tests.support.tables import findings

pytestmark = pytest.mark.redis

HERE = "{here}:"
RULE = Rules(max_deliveries=2, default_limit=10)
API = write_limits([Limit("api", concurrency=3)])


class Here(Dispatch):
    """The installation into which they come."""

    def run(self, verb, args):
        return call(self.client, verb, HERE, args)


@pytest.fixture
def there(client):
    return Dispatch(client, RULE)


@pytest.fixture
def here(client):
    return Here(client, RULE)


def out(there, page, closed=None, queues=("q", "r"), most=100, back=False):
    args = calls.move_out_args(page, queues, most, RULES.lease_ms, closed, back, str(there.now))
    return there.run(calls.MOVE_OUT, args) or [None]


def bring_in(here, page, rows):
    flat = [text for row in rows for text in row]
    return here.run(calls.MOVE_IN, calls.move_in_args(page, flat, RULES.lease_ms, str(here.now)))


def move(there, here, most=100):
    """Move everything, and return the number of pages."""
    closed, pages = None, 0
    while True:
        page, *rows = out(there, f"p{pages}", closed, most=most)
        if page is None:
            return pages
        assert bring_in(here, page, rows) == 1
        closed, pages = page, pages + 1


def everything(client, prefix=PREFIX):
    """Return every table, but what calls note of themselves."""
    found = {}
    for key in client.scan_iter(f"{prefix}*"):
        name = key.removeprefix(prefix)
        if name.partition(":")[0] in ("clock", "stats", "wakeup", "last_answer", "debts"):
            continue
        kind = client.type(key)
        read = {
            "hash": client.hgetall,
            "set": client.smembers,
            "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
            "list": lambda key: client.lrange(key, 0, -1),
            "string": client.get,
            "stream": client.xlen,
        }
        found[name] = read[kind](key)
    return found


def die(there, tag, times):
    there.put("a", tag=tag)
    for _ in range(times):
        tasks = there.claim().tasks
        there.settle(tasks, Verdict.BEGUN)
        there.settle(tasks, Verdict.DIED)


def fill(there):
    """A task in every place, and one that runs, which is returned."""
    there.put("a", tag="run")
    running = there.claim().tasks
    for tag in ("dead1", "dead2"):
        die(there, tag, 2)
    there.next_outcome(there.next_outcome().name)
    die(there, "died", 1)
    there.put("a", tag="low")
    there.put("b", tag="b", tier="pro", cost=2.5, kind="shop.work")
    there.put("a", tag="high", rank=9)
    there.put("a", tag="api", limits=API, unique="d|0|sync:7", expires_ms=NOW + 60_000)
    there.put("", tag="system", queue="r")
    for tag, eta_ms in (("late", NOW + 5_001), ("soon", NOW + 5_000), ("as soon", NOW + 5_000)):
        there.put("a", tag=tag.replace(" ", "-"), eta_ms=eta_ms, expires_ms=NOW + 90_000)
    return running


def served(dispatch):
    """Claim everything in a queue one after the other, and return the tags by tenant."""
    found = {}
    while tasks := dispatch.claim_all(1):
        for task in tasks:
            found.setdefault(task.key.partition(",")[0], []).append(tag_of(task.lease))
        dispatch.settle(tasks)
    return found


@pytest.mark.parametrize("most", [1, 3, 100])
def test_tasks_come_with_their_places_and_leave_nothing_behind(there, here, client, most):
    running = fill(there)
    before = everything(client)
    assert move(there, here, most) == -(-11 // most)
    assert everything(client)["tasks"].keys() == {"run"}
    assert findings(client, PREFIX, RULE, there.now) == []
    assert findings(client, HERE, RULE, here.now) == []

    after = everything(client, HERE)
    for name in ("messages", "ids", "unique", "expires:q", "waiting", "queues"):
        has = dict(before[name]) if name in ("messages", "ids", "expires:q") else before[name]
        if isinstance(has, dict):
            has.pop("run", None)
            assert dict(after[name]) == has
        else:
            assert after[name] == has
    dues = [(member[17:], due) for member, due in after["scheduled:q"]]
    assert dues == [("soon", NOW + 5_000), ("as-soon", NOW + 5_000), ("late", NOW + 5_001)]
    assert here.letters() == there_letters(before)
    outcome = here.next_outcome()
    assert (outcome.message, outcome.state) == ("of dead2", "dead")
    for tag in ("died", "b", "api"):
        old, new = before["tasks"][tag].split(" "), after["tasks"][tag].split(" ")
        assert new[1:10] == old[1:10]
    assert here.find("died")[1].deaths == 1

    # A worker there ends what it has.
    there.settle(running)
    assert "tasks" not in everything(client)
    assert served(here) == {"tenant:a": ["high", "died", "low", "api"], "tenant:b": ["b"]}
    here.now += 5_001
    assert served(here) == {"tenant:a": ["soon", "as-soon", "late"]}


def there_letters(before):
    dead = [tag for tag, _ in before["dead:q"]]
    return [before["messages"][tag] for tag in reversed(dead)]


def test_an_open_page_is_returned_until_it_is_closed_and_nothing_of_it_starts(there, client):
    fill(there)
    page, *rows = out(there, "p1", most=4)
    assert (page, len(rows)) == ("p1", 4)
    assert out(there, "p2", most=100) == [page, *rows]
    assert out(there, "p2", closed="p0", most=100) == [page, *rows]
    tags = {row[0] for row in rows}
    assert tags.isdisjoint(tag_of(task.lease) for task in there.claim_all())
    assert {there.find(tag)[0] for tag in tags} == {"moving"}
    assert there.put("a", tag=rows[0][0]) is Put.KNOWN
    assert findings(client, PREFIX, RULE, there.now) == []
    other, *_ = out(there, "p2", closed="p1")
    assert other == "p2"
    assert all(there.find(tag) is None for tag in tags)


def test_a_page_comes_once_even_if_its_tasks_have_ended(there, here):
    there.put("a", tag="t1")
    page, *rows = out(there, "p1")
    assert bring_in(here, page, rows) == 1
    assert bring_in(here, page, rows) == 0
    here.settle(here.claim().tasks)
    assert bring_in(here, page, rows) == 0
    assert here.find("t1") is None
    assert out(there, "p2", closed=page) == [None]


def test_a_page_that_cannot_come_goes_back_to_its_places(there, client):
    fill(there)
    before = everything(client)
    page, *_ = out(there, "p1")
    assert out(there, "", closed=page, queues=(), back=True) == [None]
    after = everything(client)
    assert after.pop("outcomes")[0][0] == before.pop("outcomes")[0][0]
    for table in ("active:q", "active:r", "virtual_times", "kept_events", "events"):
        for tables in (before, after):
            tables.pop(table, None)
    assert after == before
    assert findings(client, PREFIX, RULE, there.now) == []


def test_a_page_does_not_come_into_the_installation_that_it_leaves(there):
    there.put("a", tag="t1")
    page, *rows = out(there, "p1")
    with pytest.raises(ResponseError, match="SAME"):
        bring_in(there, page, rows)


def test_a_head_that_cannot_be_read_writes_nothing(there, here, client):
    there.put("a", tag="t1")
    there.put("a", tag="t2")
    page, *rows = out(there, "p1")
    rows[1][1] = "no head"
    with pytest.raises(ResponseError):
        bring_in(here, page, rows)
    assert everything(client, HERE) == {}


def test_a_page_ends_with_the_message_that_fills_it(there):
    for number in range(3):
        there.put("a", tag=f"t{number}", message="x" * 600_000)
    assert [len(out(there, "p1")) - 1, len(out(there, "p2", closed="p1")) - 1] == [2, 1]


def test_a_unique_key_that_another_task_has_here_stays_with_it(there, here, client):
    there.put("a", tag="t1", unique="d|0|sync:7")
    here.put("a", tag="mine", unique="d|0|sync:7")
    move(there, here)
    assert client.hget(f"{HERE}unique", "key sync:7").endswith(" mine")
    assert here.tags_of(here.claim()) == ["mine", "t1"]


def test_a_paused_key_keeps_what_came(there, here):
    args = calls.stop_args("pause", "tenant:a", 0, RULES.lease_ms, "on", str(NOW))
    for each in (there, here):
        each.run(calls.STOP, args)
    there.put("a", tag="t1")
    assert there.claim().tasks == ()
    move(there, here)
    assert here.claim().tasks == ()
    assert here.find("t1")[0] == "waiting"
