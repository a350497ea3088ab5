"""What waits for limits: groups of parked lanes, and where each group waits.

A claim that meets a lane whose limit is closed parks it: the lane is ready no more, and no claim
looks at it until that limit opens. All parked lanes of one queue with the same shared limits are
one group. It waits at one closed limit and moves as a whole: thousands of lanes that need two full
limits cost no more than one. A lane that a private limit refused waits in a group of its own,
because its limits are those of no other tenant.

    lane --refused--> group, at the limit that refused --opens--> candidates of its queue

Which limit opens is found by key: ``pump`` looks at all that wait at it, after whatever may have
made room (an end, a time, a change of numbers). What is open is a candidate of its queue until a
claim finds it closed; nothing is handed to anybody, so nothing is lost with who does not take it.

Among the tenants of a group the one with the least tag goes first. Tags are the limit's own virtual
time, over all queues: so a limit that many share is divided fairly among them. They are kept only
while somebody waits at the limit, and of a bounded number of tenants, because who waits may be of a
queue whose workers are gone: where there are more, the time goes on to the least tag, and nobody is
let off before who owes less. A tag that is out of date is put right before it decides.

Invariants: a group that waits has at least one lane; a limit of a key at which groups wait is a
candidate of their queues, or it is closed, and where only time opens it, that time stands in
``due``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.keys import CLOSED

#: Waiting limits that one call looks at, of all keys; a claim looks at as many again of keys whose
#: time has come.
PUMPED_AT_MOST = 64
#: Of a partition the version of its queue's numbers, divided by this, is taken off.
VERSIONS = 2**24
#: What the place of a task among all is of its tenant's tag: a thousand million tasks are a part of
#: a thousand of one start.
AGE = 2**-40
#: Of one key, tags that are kept.
TAGS_AT_MOST = 1000


@dataclass(slots=True)
class Group:
    """Parked lanes of one queue with the same shared limits; or one that its private limit parked.

    Attributes:
        at: Where it waits.
        tags: By tenant's key, the virtual time at which it is due.
    """

    at: Limit
    tags: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The least tag."""
        return min(self.tags.values())

    def first(self) -> str:
        """Return whose turn it is."""
        return min(self.tags, key=lambda key: (self.tags[key], key))


@dataclass(slots=True)
class SharedTime:
    """The virtual time of one key, while somebody waits at it."""

    virtual: float = 0.0
    tags: dict[str, float] = field(default_factory=dict)


class Parking:
    """Every group of an installation.

    Args:
        tags: Of one key, so many are kept.
    """

    def __init__(self, tags: int = TAGS_AT_MOST) -> None:
        self.tags = tags
        #: By queue and name.
        self.groups: dict[tuple[str, str], Group] = {}
        #: By key: the limits and queues that are waited for, in the order in which they are looked
        #: at next.
        self.waited: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        #: By queue, names of limits at which its groups wait: when each was looked at last where it
        #: may be open, else CLOSED or PAUSED.
        self.candidates: defaultdict[str, dict[str, float]] = defaultdict(dict)
        #: By key: the logical time at which it is looked at in any case; with a space before it:
        #: that at which a look goes on.
        self.due: dict[str, float] = {}
        #: By key: how many of those that are waited for a look has not come to yet.
        self.left: dict[str, int] = {}
        self.times: dict[str, SharedTime] = {}

    # -- who waits where --------------------------------------------------------------------------

    def enter(
        self, queue: str, name: str, key: str, at: Limit, shut_as: float, seq: int = 0
    ) -> bool:
        """A tenant's lane, whose first task has ``seq``, waits in a group, wherever that waits.

        Returns:
            Whether it waits at ``at``, as the first of its group.
        """
        group = self.groups.get((queue, name))
        is_new = group is None
        if group is None:
            group = self.groups[queue, name] = Group(at)
            self._register(queue, at, shut_as)
        if key not in group.tags:
            # Of those that are due at one time who waits longest goes first.
            group.tags[key] = self.start_of(group.at.key, key) + seq * AGE
        return is_new

    def leave(self, queue: str, name: str, key: str) -> None:
        """A tenant has no lane in a group any more."""
        group = self.groups[queue, name]
        del group.tags[key]
        if not group.tags:
            del self.groups[queue, name]
            self._unregister(queue, group.at)

    def move(self, queue: str, name: str, at: Limit, shut_as: float) -> None:
        """A group waits at another of its limits; the order of its tenants is that of before."""
        group = self.groups[queue, name]
        before, group.at = group.at, at
        self._unregister(queue, before)
        self._register(queue, at, shut_as)

    def _register(self, queue: str, at: Limit, shut_as: float) -> None:
        if (at.name, queue) not in self.waited[at.key]:
            self.waited[at.key].append((at.name, queue))
            self.shut(queue, at.name, shut_as)
        self.times.setdefault(at.key, SharedTime())

    def _unregister(self, queue: str, at: Limit) -> None:
        if any(group.at.name == at.name for group in self.groups_of(queue).values()):
            return
        self.waited[at.key].remove((at.name, queue))
        del self.candidates[queue][at.name]
        if not self.candidates[queue]:
            del self.candidates[queue]
        if not self.waited[at.key]:
            del self.waited[at.key], self.times[at.key]
            self.due.pop(at.key, None)
            self.goes_on(at.key)

    def goes_on(self, key: str) -> int:
        """Return how many a look has not come to yet, and forget it."""
        self.due.pop(" " + key, None)
        return self.left.pop(key, 0)

    def groups_of(self, queue: str) -> dict[str, Group]:
        """Return the groups of a queue by name."""
        return {name: group for (other, name), group in self.groups.items() if other == queue}

    # -- which may be open ------------------------------------------------------------------------

    def open(self, queue: str, limit: str, logical: int) -> None:
        """What waits at a limit in a queue is a candidate."""
        self.candidates[queue][limit] = logical

    def shut(self, queue: str, limit: str, shut_as: float) -> None:
        """A limit was found closed: as CLOSED or PAUSED, less what says by which numbers."""
        self.candidates[queue][limit] = shut_as

    def candidate(self, queue: str, met: Collection[str] = ()) -> str | None:
        """Return the limit that was looked at longest ago among those that may be open.

        Args:
            queue: Of which something waits there.
            met: Limits that are left out.
        """
        found = self.candidates.get(queue, {}).items()
        looked = [(at, limit) for limit, at in found if at >= 0 and limit not in met]
        return min(looked)[1] if looked else None

    def best_group(self, queue: str, limit: str) -> str:
        """Return the name of the group with the least tag that waits at a limit."""
        groups = self.groups_of(queue)
        return min(
            (name for name, group in groups.items() if group.at.name == limit),
            key=lambda name: (groups[name].best, name),
        )

    # -- the limits' own time ---------------------------------------------------------------------

    def start_of(self, limit_key: str, key: str) -> float:
        """Return when a tenant is due at a key, if it comes now."""
        time = self.times[limit_key]
        return max(time.tags.get(key, 0.0), time.virtual)

    def overdue(self, group: Group, key: str) -> float | None:
        """Return a tenant's tag where the group has an older one: it was served elsewhere."""
        tag = self.times[group.at.key].tags.get(key, 0.0)
        return tag if tag > group.tags[key] else None

    def is_before(self, queue: str, limit: str, tag: float) -> bool:
        """Say whether somebody of ``queue`` waits at an open limit, due before ``tag``."""
        if self.candidates.get(queue, {}).get(limit, CLOSED) < 0:
            return False
        return self.groups[queue, self.best_group(queue, limit)].best < tag

    def served(self, queue: str, name: str, key: str) -> None:
        """A tenant of a group was served and waits on."""
        group = self.groups[queue, name]
        group.tags[key] = self.start_of(group.at.key, key)

    def charge(self, limit_key: str, key: str, amount: float) -> None:
        """A tenant started something under a key at which somebody waits."""
        time = self.times.get(limit_key)
        if time is None:
            return
        time.virtual = self.start_of(limit_key, key)
        time.tags[key] = time.virtual + amount
        passed = sorted((tag, each) for each, tag in time.tags.items() if tag <= time.virtual)
        for _, other in passed[:4]:
            del time.tags[other]
        if len(time.tags) > self.tags:
            least = min(time.tags, key=lambda each: (time.tags[each], each))
            time.virtual = time.tags.pop(least)

    def correct(self, limit_key: str, key: str, amount: float) -> None:
        """A tenant was charged ``amount`` too little: its tag, where it is kept, is put right."""
        time = self.times.get(limit_key)
        if time is not None and key in time.tags:
            time.tags[key] += amount
