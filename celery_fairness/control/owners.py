"""What every key belongs to: which checks it leads to.

Each table leads to its partners, and they to it; so one that is gone is missed by the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from celery_fairness.control.checks import (
    Account,
    BeganLease,
    Check,
    KeyOfNobody,
    LeaseOfTask,
    QueueKeys,
)
from celery_fairness.control.closed import ClosedTenant
from celery_fairness.control.gate import GateKey, GatePlace, GateTurn, ParkedAtGate
from celery_fairness.control.keys import (
    key_of_limit,
    lane_parts,
    order_key,
    read_group,
    read_parked,
    read_shelf,
)
from celery_fairness.control.limits import (
    Group,
    LimitKey,
    LimitOfQueue,
    StartsOfKey,
    WaitingLimit,
)
from celery_fairness.control.places import (
    LANES_AT_MOST,
    KindOfLane,
    PartOfLane,
    Place,
    Shelf,
    orders_of,
)
from celery_fairness.control.ranks import RankOfMember
from celery_fairness.control.scan import Reader
from celery_fairness.scheduler.types import Rules

#: Keys that belong to the installation, not to a queue, a tenant or a limit.
_SINGLE = {
    *(
        "clock",
        "closed",
        "cooled",
        "counts",
        "ends",
        "events",
        "exceeded",
        "idle",
        "known",
        "looks",
        "news",
    ),
    *("outcomes", "opens", "paused", "returned", "running", "sequence", "shared", "tiers"),
    *("charged", "forwarder", "forwarded", "workers"),
    *("gate_bell", "gate_expires", "gate_looks", "gate_promoted", "gate_tasks"),
    *("gate_virtual", "gate_waiting", "gate_watched"),
    *("overrides", "overrides_end", "people_events", "trouble_events", "cancel_events"),
    *("paused_by", "paused_until", "queue_keys"),
    *("queue_limits", "task_events", "unused", "virtual", "waiting"),
}
#: TaskFilter of keys that need nothing else, and those that go away by themselves.
_FREE = {
    *("aside", "bell", "left", "copy", "dead", "declared", "expires", "freed", "gate_promised"),
    *("later", "minute", "here", "pace", "reply", "rescheduled", "tenant", "unranked"),
}


class Owners:
    """Goes through the keys of one installation.

    Args:
        reader: Of the installation.
        rules: What its workers' settings say of tenants of which no news say anything.
        compared: Where it counts what it looks at.
        note: Called with what could not be compared.
    """

    def __init__(
        self, reader: Reader, rules: Rules, compared: Counter[str], note: Callable[[str], None]
    ) -> None:
        self._reader = reader
        self._rules = rules
        self._keys = reader.keys
        self._compared = compared
        self._note = note

    def checks(self) -> Iterator[Check]:
        """Yield what is to be compared for every key there is."""
        yield from self._single()
        of_kind: dict[str, Callable[[str], Iterator[Check]]] = {
            "account": self._account,
            "back": partial(self._lane, "back"),
            "began": self._began,
            "candidates": self._candidates,
            "full": partial(self._ring, "full"),
            "gate_at": self._gate_at,
            "gate_finish": self._gate_key,
            "gate_places": self._gate_places,
            "gate_turns": self._gate_turns,
            "group": self._group,
            "groups": self._groups,
            "kinds": self._kinds,
            "lane": partial(self._lane, "lane"),
            "leases": self._leases,
            "out": self._queue,
            "parked": self._order,
            "rank": self._rank,
            "ranked": self._ranked,
            "ready": self._order,
            "ring": partial(self._ring, "ring"),
            "shelf": self._shelf,
            "starts": self._starts,
            "tags": self._limit_key,
            "wait": self._wait,
            "waited": self._waited,
            "window": self._starts,
        }
        for key in self._reader.scan():
            self._compared["keys"] += 1
            kind, colon, name = key.partition(":")
            if colon and kind in of_kind:
                yield from of_kind[kind](name)
            elif key not in _SINGLE and kind not in _FREE:
                yield KeyOfNobody(key)

    def _single(self) -> Iterator[Check]:
        reader, keys = self._reader, self._keys
        for key, _ in reader.pairs("ZSCAN", keys.closed):
            yield Account(key)
        for hash_key in (keys.waiting, keys.virtual):
            for queue, _ in reader.pairs("HSCAN", hash_key):
                yield QueueKeys(queue)
        for command, table in (
            ("ZSCAN", keys.opens),
            ("HSCAN", keys.looks),
            ("HSCAN", keys.shared),
        ):
            for key, _ in reader.pairs(command, table):
                yield LimitKey(key.strip())
        for key, _ in reader.pairs("ZSCAN", keys.idle):
            if not key.startswith(" "):
                yield StartsOfKey(key)
        for tag, record in reader.pairs("HSCAN", keys.gate_tasks):
            self._compared["parked"] += 1
            task = read_parked(record)
            yield ParkedAtGate(tag, *(() if task is None else (task.tenant, task.places)))
        for tag, _ in reader.pairs("ZSCAN", keys.gate_expires):
            yield ParkedAtGate(tag)
        for table in (keys.gate_waiting, keys.gate_virtual):
            for key, _ in reader.pairs("HSCAN", table):
                yield GateKey(key)
        for queue, _ in reader.pairs("HSCAN", keys.queue_limits):
            yield LimitOfQueue(queue)
        for _, queue in reader.pairs("HSCAN", keys.queue_keys):
            yield LimitOfQueue(queue)

    # -- tenants ----------------------------------------------------------------------------------

    def _account(self, key: str) -> Iterator[Check]:
        yield Account(key)
        account = self._keys.of("account", key)
        for field in self._reader.read("HKEYS", account):
            if field == "closed":
                tenant = self._reader.read("HGET", account, "tenant")
                yield ClosedTenant(key, tenant or "", self._rules)
            elif field.startswith("q:"):
                self._compared["places"] += 1
                yield from self._place(key, field[2:])

    def _without_account(self, key: str, queue: str) -> Iterator[Check]:
        """Yield a place that its tenant's account does not lead to."""
        if self._reader.read("HEXISTS", self._keys.of("account", key), f"q:{queue}") == 0:
            yield from self._place(key, queue)

    def _place(self, key: str, queue: str) -> Iterator[Check]:
        groups, parts = orders_of(self._reader, key, queue)
        if len(parts) > LANES_AT_MOST:
            self._note(f"{key} {queue}: it has more than {LANES_AT_MOST} lanes: no sum was made")
        else:
            yield Place(key, queue, groups, parts)

    def _lane(self, kind: str, name: str) -> Iterator[Check]:
        key, part, queue = lane_parts(kind, name)
        yield PartOfLane(key, part, queue)
        yield from self._without_account(key, queue)

    def _order(self, name: str) -> Iterator[Check]:
        key, _, queue = name.partition(" ")
        yield from self._without_account(key, queue)

    def _kinds(self, name: str) -> Iterator[Check]:
        key, lane, queue = lane_parts("lane", name)
        for kind in self._reader.members(self._keys.of("kinds", name)):
            yield KindOfLane(key, lane, kind, queue)

    def _leases(self, key: str) -> Iterator[Check]:
        for lease, score in self._reader.pairs("ZSCAN", self._keys.of("leases", key)):
            if score == "inf":
                self._compared["leases"] += 1
                yield LeaseOfTask(lease, (key,))

    def _began(self, key: str) -> Iterator[Check]:
        for lease, _ in self._reader.pairs("ZSCAN", self._keys.of("began", key)):
            yield BeganLease(lease, key)

    # -- queues -----------------------------------------------------------------------------------

    def _queue(self, queue: str) -> Iterator[Check]:
        yield QueueKeys(queue)

    def _ring(self, kind: str, queue: str) -> Iterator[Check]:
        yield QueueKeys(queue)
        is_ranked = kind == "ring" and self._reader.read("HEXISTS", self._keys.clock, "ranked")
        for key, _ in self._reader.pairs("ZSCAN", self._keys.of(kind, queue)):
            yield from self._without_account(key, queue)
            if is_ranked:
                yield RankOfMember(key, queue)

    def _ranked(self, queue: str) -> Iterator[Check]:
        yield QueueKeys(queue)
        for key, _ in self._reader.pairs("ZSCAN", self._keys.of("ranked", queue)):
            yield RankOfMember(key, queue)

    def _rank(self, name: str) -> Iterator[Check]:
        queue = name.partition(" ")[2]
        for key, _ in self._reader.pairs("ZSCAN", self._keys.of("rank", name)):
            yield RankOfMember(key, queue)

    # -- limits -----------------------------------------------------------------------------------

    def _shelf(self, name: str) -> Iterator[Check]:
        key, group, queue = read_shelf(name)
        order = order_key(self._keys, key, group, queue)
        yield Shelf(key, group, queue, tuple(self._reader.read("ZRANGE", order, 0, LANES_AT_MOST)))

    def _group(self, name: str) -> Iterator[Check]:
        group, queue = read_group(name)
        limit = self._reader.read("HGET", self._keys.of("groups", queue), group)
        yield Group(group, queue, limit or "")
        for key, _ in self._reader.pairs("ZSCAN", self._keys.of("group", name)):
            yield Shelf(key, group, queue, ())

    def _groups(self, queue: str) -> Iterator[Check]:
        yield QueueKeys(queue)
        for group, limit in self._reader.pairs("HSCAN", self._keys.of("groups", queue)):
            self._compared["groups"] += 1
            yield Group(group, queue, limit)
            yield WaitingLimit(limit, queue)

    def _wait(self, name: str) -> Iterator[Check]:
        limit, _, queue = name.partition(" ")
        yield WaitingLimit(limit, queue)
        for group, _ in self._reader.pairs("ZSCAN", self._keys.of("wait", name)):
            yield Group(group, queue, limit)

    def _candidates(self, queue: str) -> Iterator[Check]:
        yield QueueKeys(queue)
        for limit, _ in self._reader.pairs("ZSCAN", self._keys.of("candidates", queue)):
            yield WaitingLimit(limit, queue)
            yield LimitKey(key_of_limit(limit))

    def _waited(self, key: str) -> Iterator[Check]:
        yield LimitKey(key)
        for both in self._reader.list_items(self._keys.of("waited", key)):
            limit, _, queue = both.partition(" ")
            yield WaitingLimit(limit, queue)

    def _gate_at(self, name: str) -> Iterator[Check]:
        tenant, _, place = name.partition(" ")
        yield GatePlace(place)
        lane = self._keys.of("gate_at", name)
        first = self._reader.read("ZRANGE", lane, 0, 0, "WITHSCORES")
        if first:
            yield GateTurn(tenant, place, int(float(first[1])))
        for tag, _ in self._reader.pairs("ZSCAN", lane):
            yield ParkedAtGate(tag, tenant, (place,))

    def _gate_turns(self, place: str) -> Iterator[Check]:
        yield GatePlace(place)
        for name, _ in self._reader.pairs("ZSCAN", self._keys.of("gate_turns", place)):
            seq, _, tenant = name.partition(" ")
            yield GateTurn(tenant, place, int(seq))

    def _gate_places(self, key: str) -> Iterator[Check]:
        yield GateKey(key)
        for place, _ in self._reader.pairs("ZSCAN", self._keys.of("gate_places", key)):
            yield GatePlace(place)

    def _gate_key(self, key: str) -> Iterator[Check]:
        yield GateKey(key)

    def _limit_key(self, key: str) -> Iterator[Check]:
        yield LimitKey(key)

    def _starts(self, key: str) -> Iterator[Check]:
        yield StartsOfKey(key)
