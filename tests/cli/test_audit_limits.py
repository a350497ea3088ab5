"""The audit of tables that limits beside the tiers' have: healthy as random walks leave them, and
each broken by one command.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from celery_fairness.config.limit_spec import shape_of
from celery_fairness.control import places
from celery_fairness.control.audit import Auditor
from celery_fairness.control.closed import ClosedTenant
from celery_fairness.control.keys import Keys
from celery_fairness.control.owners import Owners
from celery_fairness.control.scan import Reader
from celery_fairness.scheduler.types import Rules, Verdict
from tests.cli.conftest import RULES
from tests.lua.dispatching import PREFIX, Dispatch
from tests.model.both import Both
from tests.model.operations import scene
from tests.support.waiting import eventually

#: Operations between two audits of one walk.
EVERY = 40
SEEDS = [seed for seed in range(60) if scene(seed).limited][:12]


def differences(reader, checks):
    return [each for _, found in Auditor(reader, RULES)._ask(checks) for each in found]


# Not each walk comes to a task that is parked, or to a tenant at its limit; of four one does.
@pytest.mark.parametrize("seeds", [SEEDS[first::3] for first in range(3)])
def test_nothing_is_found_wherever_a_walk_leads(client, connection, seeds):
    met = sum((met_by_walk(client, connection, seed) for seed in seeds), Counter())
    assert met["groups"], "nothing was parked"
    assert met["closed"], "nobody was at a limit"


def met_by_walk(client, connection, seed):
    """Audit a walk again and again; return how many groups and closed tenants were compared."""
    place = scene(seed)
    walk = Both(client, f"{{walk{seed}}}:", place)
    operations = iter(place.operations())
    reader = Reader(connection, Keys(walk.scripts.prefix))
    met, stale = Counter(), []
    while some := list(itertools.islice(operations, EVERY)):
        for operation in some:
            walk.run(operation)
        found = Auditor(reader, place.rules).run()
        assert (found.findings, found.notes) == ((), ())
        assert differences(reader, stale) == []
        stale = list(Owners(reader, place.rules, Counter(), print).checks())
        met.update(
            groups=found.compared.get("groups", 0),
            closed=sum(isinstance(check, ClosedTenant) for check in stale),
        )
    walk.scripts.forget()
    return met


def test_nothing_is_found_while_tasks_come_and_go(coming_and_going, audit):
    words = (
        "api|2|||w",
        "own:{0}|1|||wp,api|2|||w",
        "rate||3/50||w",
        "api|1|||w,rate||9/50||w",
        "tenant:c7|1|||w",
        "",
    )

    def put(installation, turn):
        tenant = f"c{turn % 40}"
        limits = words[turn % len(words)].format(tenant)
        installation.put(tenant, f"{turn}", kind="k", limits=limits)

    found, groups = [], 0

    def many_and_with_groups():
        nonlocal groups
        found.append(audit())
        groups += found[-1].compared.get("groups", 0)
        return len(found) >= 8 and groups

    with coming_and_going(put):
        eventually(many_and_with_groups, 20, 0)
    assert [each.findings for each in found] == [()] * len(found)


API, OWN, RATE, OFF = "api|1|||w", "own:d|2|||wp", "rate||2/60000||w", "off|0|||w"
#: A lane parked in the group of its shared limit, though it has a private one.
GROUP = shape_of(API)
BOTH = f"0,own:b|1|||wp,{API}"
D_LANE, D_GROUP = f"0,{OWN}", f"tenant:d 0,{shape_of(OWN)}"


@pytest.fixture
def waiting(client):
    """Tasks that wait at a shared limit, a private one, a rate and a pause; one that came back."""
    it = Dispatch(client, Rules(default_limit=9))
    it.put("a", limits=API)
    it.put("a", limits=API)
    assert len(it.claim(1).tasks) == 1
    for tenant in "bc":
        it.put(tenant, kind="k", limits=f"own:{tenant}|1|||wp,{API}")
        it.put(tenant, rank=5, limits=API)
    for _ in range(4):
        it.put("d", kind="k", limits=OWN)
        it.put("r", limits=RATE)
    it.put("e", limits=OFF)
    it.put("e")
    tasks = it.claim_all()
    of_d = [task for task in tasks if task.key == "tenant:d,own:d"]
    assert (len(tasks), len(of_d)) == (5, 2)
    it.settle(of_d[:1], Verdict.HEAD)
    it.put("n")
    return it


def test_nothing_is_found_where_everything_agrees(waiting, audit):
    found = audit()
    assert (found.findings, found.notes) == ((), ())
    assert (found.compared["groups"], found.compared["waiting"]) == (4, 12)


def test_what_is_gone_since_is_no_difference(waiting, client, connection):
    reader = Reader(connection, Keys(PREFIX))
    checks = list(Owners(reader, RULES, Counter(), print).checks())
    client.flushdb()
    assert differences(reader, checks) == []


def change(command, key, *args):
    return lambda client: client.execute_command(command, PREFIX + key, *args)


def move(member, place, other):
    script = "redis.call('ZREM', KEYS[1], ARGV[1]); redis.call('ZADD', KEYS[2], 0, ARGV[1])"
    return lambda client: client.eval(script, 2, PREFIX + place, PREFIX + other, member)


PLANTED = {
    "a parked lane that no group knows": (
        change("ZREM", f"group:{GROUP} q", "tenant:b"),
        ("a group knows its tenants", f"tenant:b {GROUP} q"),
    ),
    "a tenant of a group without a parked lane": (
        change("ZADD", f"group:{GROUP} q", 1, "tenant:idle"),
        ("a group knows its tenants", f"tenant:idle {GROUP} q"),
    ),
    "a lane on a shelf that is not parked": (
        change("ZREM", "parked:tenant:b q", BOTH),
        ("parked lanes", "tenant:b q"),
    ),
    "a lane that is parked elsewhere": (
        change("ZADD", "parked:tenant:b q", 1, BOTH),
        ("parked lanes", "tenant:b q"),
    ),
    "a parked lane without a task": (
        change("ZADD", "parked:tenant:b q", 0, f"9,{API}"),
        ("parked lanes", "tenant:b q"),
    ),
    "a parked lane that is ready too": (
        change("ZADD", "ready:tenant:b q", 0, BOTH),
        ("lanes of a tenant", "tenant:b q"),
    ),
    "a parked lane on no shelf": (
        change("ZREM", f"shelf:tenant:b {GROUP} q", BOTH),
        ("lanes of a tenant", "tenant:b q"),
    ),
    "a lane on a shelf that is not there": (
        change("ZADD", f"shelf:tenant:b {GROUP} q", 0, "9,x|1|||w"),
        ("lanes of a tenant", "tenant:b q"),
    ),
    "a lane with limits that claims do not see": (
        change("RPUSH", f"lane:tenant:n 0,{API} q", f"1 x 0 0 1 0 n    {API}  \n"),
        ("lanes of a tenant", "tenant:n q"),
    ),
    "a parked lane that stands after its turn": (
        change("ZADD", f"shelf:tenant:b {GROUP} q", 5e15 + 1e14, BOTH),
        ("order of lanes", f"tenant:b {BOTH} q"),
    ),
    "a parked lane that stands as another rank's": (
        change("ZADD", f"shelf:tenant:b {GROUP} q", 5, BOTH),
        ("order of lanes", f"tenant:b {BOTH} q"),
    ),
    "a tenant in the ring of whom nothing is ready": (
        move("tenant:b", "full:q", "ring:q"),
        ("place of a tenant", "tenant:b q"),
    ),
    "a tenant that has something ready, is full and not closed": (
        move("tenant:n", "ring:q", "full:q"),
        ("full is closed", "tenant:n q"),
    ),
    "a wrong count of a tenant whose lanes are parked": (
        change("HINCRBY", "account:tenant:b", "q:q", 1),
        ("waiting of a tenant", "tenant:b q"),
    ),
    "a kind that did not come back": (
        change("SADD", f"kinds:tenant:d {D_LANE} q", "other"),
        ("kinds of a lane", f"tenant:d {D_LANE}b other q"),
    ),
    "a kind that came back and is not noted": (
        change("DEL", f"kinds:tenant:d {D_LANE} q"),
        ("kinds of a lane", f"tenant:d {D_LANE}b k q"),
    ),
    "a group that waits nowhere": (
        change("HDEL", "groups:q", GROUP),
        ("a group waits somewhere", f"{GROUP} q"),
    ),
    "a group without a tenant": (
        change("DEL", f"group:{D_GROUP} q"),
        ("a group has tenants", f"{D_GROUP} q"),
    ),
    "a group that waits at a limit of others": (
        change("HSET", "groups:q", GROUP, "off|0||"),
        ("a group waits at its own", f"{GROUP} q"),
    ),
    "a group that waits at two limits": (
        change("ZADD", "wait:off|0|| q", 0, GROUP),
        ("a group waits once", f"{GROUP} q"),
    ),
    "a group in the wrong place": (
        change("ZADD", "wait:api|#|| q", 3, GROUP),
        ("order of groups", f"{GROUP} q"),
    ),
    "a group that its limit does not know": (
        change("DEL", "wait:api|#|| q"),
        ("order of groups", f"{GROUP} q"),
    ),
    "a group at a limit that is no candidate": (
        change("ZREM", "candidates:q", "api|#||"),
        ("candidates of a queue", "api|#|| q"),
    ),
    "a candidate at which nothing waits": (
        change("ZADD", "candidates:q", 5, "api||#|"),
        ("candidates of a queue", "api||#| q"),
    ),
    "candidates of a queue in which nothing waits": (
        change("ZADD", "candidates:empty", -1, "api|#||"),
        ("a key has an owner", "candidates:empty"),
    ),
    "groups of a queue in which nothing waits": (
        change("HSET", "groups:empty", GROUP, "api|#||"),
        ("a key has an owner", "groups:empty"),
    ),
    "a paused limit that is said to wait for room": (
        change("ZADD", "candidates:q", -1, "off|0||"),
        ("candidates of a queue", "off|0|| q"),
    ),
    "a limit that is said to be paused": (
        change("ZADD", "candidates:q", -2, "api|#||"),
        ("candidates of a queue", "api|#|| q"),
    ),
    "a limit with room that is closed for ever": (
        change("ZADD", "candidates:q", -1, "own:d|#||"),
        ("a closed limit opens", "own:d|#|| q"),
    ),
    "a rate that no time opens": (
        change("ZREM", "opens", "rate"),
        ("a closed limit opens", "rate||#| q"),
    ),
    "a limit that no look comes to": (
        change("DEL", "waited:api"),
        ("waited is looked at", "api|#|| q"),
    ),
    "a limit that a look comes to twice": (
        change("RPUSH", "waited:api", "api|#|| q"),
        ("waited is looked at", "api|#|| q"),
    ),
    "a look at a limit at which nothing waits": (
        change("RPUSH", "waited:api", "api|#|| q"),
        ("waited is looked at", "api|#|| q"),
    ),
    "a time for a key at which nothing waits": (
        change("ZADD", "opens", 1, "nothing"),
        ("a key is waited for", "nothing"),
    ),
    "looks that nobody goes on with": (
        change("HSET", "looks", "api", 3),
        ("a closed limit opens", "api"),
    ),
    "a key at which something waits, without its virtual time": (
        change("HDEL", "shared", "api"),
        ("a key is waited for", "api"),
    ),
    "a virtual time of a key at which nothing waits": (
        change("HSET", "shared", "nothing", 3),
        ("a key is waited for", "nothing"),
    ),
    "tags of a key at which nothing waits": (
        change("ZADD", "tags:nothing", 3, "tenant:a"),
        ("a key is waited for", "nothing"),
    ),
    "claims that do not look at limits": (
        change("HDEL", "clock", "limited"),
        ("claims look at limits", "api"),
    ),
    "a window that is never forgotten": (
        change("ZREM", "idle", "rate"),
        ("starts of a key", "rate"),
    ),
    "a window that is forgotten too early": (
        change("ZADD", "idle", 5, "rate"),
        ("starts of a key", "rate"),
    ),
    "a window without starts": (
        change("DEL", "starts:rate"),
        ("starts of a key", "rate"),
    ),
    "starts without a window": (
        change("DEL", "window:rate"),
        ("starts of a key", "rate"),
    ),
    "a start that was not counted": (
        change("HINCRBY", "window:rate", "count", -1),
        ("starts of a key", "rate"),
    ),
    "an idle key without a window": (
        change("ZADD", "idle", 5, "nothing"),
        ("starts of a key", "nothing"),
    ),
    "a lease of a limit's key that nothing runs for": (
        change("ZADD", "leases:api", "inf", "gone.1"),
        ("counted is running", "gone.1"),
    ),
    "a lease of a limit's key that its task does not have": (
        change("ZADD", "leases:rate", "inf", "t1.1.w1"),
        ("counted is running", "t1.1.w1"),
    ),
    "a running task that its limit does not count": (
        change("ZREM", "leases:api", "t1.1.w1"),
        ("running is counted", "t1.1.w1"),
    ),
    "a running task whose count for a limit ends by itself": (
        change("ZADD", "leases:api", 5, "t1.1.w1"),
        ("running is counted", "t1.1.w1"),
    ),
    "a record of a task that came back, and no task": (
        change("HSET", "returned", "gone", f"1 gone 1 0 1 0 d   k {OWN}\n"),
        ("what came back is kept", "gone"),
    ),
}


def everything(client):
    return {key: client.dump(key) for key in client.scan_iter(PREFIX + "*")}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(waiting, client, audit, name):
    plant, expected = PLANTED[name]
    before = everything(client)
    plant(client)
    assert everything(client) != before
    assert expected in {(each.check, each.name) for each in audit().findings}


#: Nothing else says what stands there, or it may be gone.
ALONE = (
    *(
        "bell",
        "clock",
        "declared",
        "events",
        "exceeded",
        "left",
        "minute",
        "reply",
        "sequence",
        "starts",
    ),
    *("tags", "virtual"),
)
#: Of a hash, fields that stand nowhere else.
FIELDS = ("tenant", "tier", "tenant", "ideal", "most", "asked")


def removals(client):
    """Yield what takes away one element of one table, each."""
    for key in sorted(client.scan_iter(PREFIX + "*")):
        if key.removeprefix(PREFIX).partition(":")[0] in ALONE:
            continue
        kind = client.type(key)
        if kind == "hash":
            yield from (("HDEL", key, field) for field in client.hkeys(key) if field not in FIELDS)
        elif kind == "list":
            yield from (("LREM", key, 1, item) for item in client.lrange(key, 0, -1))
        elif kind == "set":
            yield from (("SREM", key, member) for member in client.smembers(key))
        else:
            # A space stands before what is only known for a while, in `idle`.
            members = [m for m in client.zrange(key, 0, -1) if key[-4:] != "idle" or m[0] != " "]
            yield from (("ZREM", key, member) for member in members)


def test_nothing_may_be_missing(waiting, client, audit):
    taken = list(removals(client))
    assert len(taken) > 100
    for removal in taken:
        before = client.dump(removal[1])
        assert client.execute_command(*removal) == 1
        assert audit().findings, removal
        client.restore(removal[1], 0, before, replace=True)
    assert audit().findings == ()


def test_more_lanes_than_are_summed_are_told(waiting, client, audit, monkeypatch):
    monkeypatch.setattr(places, "LANES_AT_MOST", 1)
    monkeypatch.setattr("celery_fairness.control.owners.LANES_AT_MOST", 1)
    found = audit()
    assert found.findings == ()
    assert "tenant:b q: it has more than 1 lanes: no sum was made" in found.notes
