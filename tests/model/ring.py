"""The ring of one queue: who is served next.

Each tenant with something waiting has a start, the virtual time at which its next task is due; who
has the least is served, and is then due later by what the task costs, divided by the tenant's
weight. The ring's own virtual time is the start of who was served last.

Invariant: a tenant comes into the ring at the larger of its own finish and the ring's virtual time,
for whatever reason it was out. So nobody saves up credit by being idle, paused or at its limit, and
nobody loses a debt by leaving.

    waiting, may start        members
    waiting, may start none   full      (at its limit, or all its lanes are parked; costs nothing)
    nothing waiting           out       (only while its finish is ahead of the ring)

Where a claim wants more and nobody may start anything, nobody competes: the ring's time goes on to
the greatest finish of those who are out, and their debts are over.

Weakness: where nothing at all waits in the queue, the ring begins anew and debts are forgotten.
Where what a task charges is put right at its end (``charging``), a tenant may lag behind the ring;
what it lags by because it was passed over is then its credit too.
"""

from __future__ import annotations

#: Debts that the ring has passed and one served task clears away.
CLEAR_AT_MOST = 4


class Ring:
    """The tenants of one queue, by the key of their tier limit.

    Attributes:
        virtual: The start of who was served last.
        members: Tenants that may start something, with their start.
        full: Tenants of whom nothing in a lane may start, with theirs.
        out: Tenants that have nothing waiting and are ahead of the ring, with their finish.
        bell: Something came: a sleeping worker will be woken.
        left: A claim left something: a sleeping worker that passed nothing over will be woken.
        unranked: Tenants with their start that were here when ranks began to order the queue, and
            are to be looked at once for that.
    """

    def __init__(self) -> None:
        self.virtual = 0.0
        self.members: dict[str, float] = {}
        self.full: dict[str, float] = {}
        self.out: dict[str, float] = {}
        self.bell = False
        self.left = False
        self.unranked: dict[str, float] = {}

    def at(self, place: int) -> str | None:
        """Return who stands at ``place``: the least start first, of equal ones the least key."""
        if not place:
            return min(self.members, key=lambda key: (self.members[key], key), default=None)
        order = sorted((start, key) for key, start in self.members.items())
        return order[place][1] if place < len(order) else None

    def rank_some(self, most: int) -> bool:
        """Look at ``most`` of those whose rank is not known; say whether there may be more."""
        looked = sorted((start, key) for key, start in self.unranked.items())[:most]
        for _, key in looked:
            del self.unranked[key]
        return len(looked) == most

    def enter(self, key: str) -> None:
        """Take in a tenant that had nothing waiting."""
        self._enter(key, self.out.pop(key, self.virtual))

    def enter_again(self, key: str) -> None:
        """Take in a tenant that was out and has something waiting, if it was."""
        if key in self.full:
            self._enter(key, self.full.pop(key))

    def _enter(self, key: str, finish: float) -> None:
        self.members[key] = max(finish, self.virtual)
        self.bell = True

    def charge(self, key: str, amount: float, lags: bool = False) -> float:
        """The tenant is served: the ring is at its start, and it is due later by ``amount``.

        Who was passed over and lags behind the ring has no credit for it; who ``lags`` because it
        was charged too much has.

        Returns:
            Its finish.
        """
        places = self.members if key in self.members else self.full
        start = self.start_of(key)
        self.virtual = max(start, self.virtual)
        places[key] = (start if lags else self.virtual) + amount
        return places[key]

    def correct(self, key: str, amount: float, finish: float) -> None:
        """The tenant was charged ``amount`` too little when its finish became ``finish``.

        Where its debt is forgotten it is not more than what was missing.
        """
        for places in (self.members, self.full, self.out):
            if key in places:
                places[key] += amount
                return
        finish = min(finish, self.virtual) + amount
        if finish > self.virtual:
            self.out[key] = finish

    def fill(self, key: str) -> None:
        """Nothing of the tenant may start from its lanes: it leaves and keeps its place."""
        self.full[key] = self.members.pop(key)

    def start_of(self, key: str) -> float:
        """Return when a tenant with something waiting is due, if it comes now."""
        if key in self.members:
            return self.members[key]
        return max(self.full[key], self.virtual)

    def leave(self, key: str) -> None:
        """The tenant has nothing waiting any more: its finish is kept while it is a debt."""
        places = self.members if key in self.members else self.full
        finish = places.pop(key)
        if finish > self.virtual:
            self.out[key] = finish

    def forget_passed(self, tasks: int) -> None:
        """``tasks`` were served: forget some debts that the ring has passed, the oldest first."""
        passed = sorted((finish, key) for key, finish in self.out.items() if finish <= self.virtual)
        for _, key in passed[: CLEAR_AT_MOST * tasks]:
            del self.out[key]

    def forget_debts(self) -> None:
        """A claim wanted more, and nobody may start anything."""
        self.virtual = max([self.virtual, *self.out.values()])
        self.out.clear()
