"""Tasks, their leases, and what a start charges."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.reference.admission import SYSTEM, Waiter, keys_of
from tests.reference.limits import without_amounts
from tests.reference.order import Span

#: A charge is at least and at most this, for every cost and weight.
LEAST_CHARGE, LARGEST_CHARGE = 1e-6, 1e6


def is_parked(queue: str) -> bool:
    """Whether a queue has the parked tasks of a broker."""
    return queue.startswith("@parked:")


@dataclass
class Task:
    """One task that exists.

    Attributes:
        place: ``waiting``, ``delayed``, ``leased`` or ``dead``. A task is in exactly one place.
        seq: Its place among all tasks: a task that began to wait earlier has the smaller one.
        put_back_by: Keys of the limits one of which rescheduled it.
        rejected_by: Key and strategy of its first rejection, if an event reported that.
        is_released: An event reported its start after that rejection.
        since_ms: Server time since which it waits for its first start. None before that.
        waited_ms: How long it had waited at most when the server's clock was set back. A task that
            a claim has raised stays raised then.
        is_noisy: It began to wait behind another task of its tenant.
    """

    tag: str
    queue: str
    tenant: str
    service: str
    tier: str
    rank: int
    cost: float
    kind: str
    limits: str
    message: str
    expires_ms: int
    seq: int
    place: str = ""
    eta_ms: int = 0
    attempt: int = 0
    deaths: int = 0
    put_back_by: frozenset[str] = frozenset()
    rejected_by: tuple[str, str] | None = None
    is_released: bool = False
    since_ms: int | None = None
    waited_ms: int = 0
    is_noisy: bool = False

    @property
    def key(self) -> str:
        """Key of its tenant's tier."""
        if not self.tenant:
            return SYSTEM
        return ":".join(filter(None, ("tenant", self.tenant, self.service)))

    @property
    def is_parked(self) -> bool:
        """Whether a gate has parked it."""
        return is_parked(self.queue)

    @property
    def route(self) -> str:
        """The queue in its events: a parked task's is the routing key of its message."""
        return str(json.loads(self.message)["routing_key"]) if self.is_parked else self.queue

    @property
    def lane(self) -> tuple[str, str, int, str]:
        """Tasks of one lane are first in, first out, however much each of them takes."""
        return self.queue, self.key, self.rank, without_amounts(self.limits)

    @property
    def waiter(self) -> Waiter:
        """Keys save for it, or for another task of its tenant at the same place."""
        return Waiter(self.key, self.queue, keys_of(self.key, self.limits))


class Unique(NamedTuple):
    """The unique key of a put: `d` drops a duplicate, `e` names the other task, `r` replaces it.

    Attributes:
        latest_ms: The time from the first put, after which no further put delays the task.
    """

    action: str
    latest_ms: int
    key: str


def read_unique(text: str) -> Unique | None:
    """Read the word of a put."""
    if not text:
        return None
    action, latest_ms, key = text.split("|")
    return Unique(action, int(latest_ms), key)


def id_of(task: Task) -> str:
    """Return the id in the message of a task; its tag if there is none."""
    try:
        return str(json.loads(task.message)["headers"]["id"])
    except ValueError:
        return task.tag


class Charge(NamedTuple):
    """The charge of a start by an expected run time. The end of the task corrects it."""

    seconds: float
    weight: float
    finish: Span


@dataclass
class Lease:
    """One attempt of one task: it holds a slot of each of its keys.

    Attributes:
        state: ``claimed``, ``begun`` or ``acked``. A promotion is ``promoted``, or ``sent`` when
            its broker has the copy.
        keys: Every key once, the tenant's first.
        units: By key, what its body has reported.
    """

    name: str
    task: Task
    owner: str
    ends: int
    since: int
    keys: tuple[str, ...]
    state: str = "claimed"
    charge: Charge | None = None
    units: dict[str, int] = field(default_factory=dict)

    @property
    def is_promotion(self) -> bool:
        """Whether a promoter has it."""
        return self.state in ("promoted", "sent")


@dataclass
class Account:
    """What is stored of a tenant while some task of it waits."""

    tier: str
    mean: float | None = None


def charge_of(amount: float, weight: float) -> float:
    """Return what a start adds to the virtual time of a tenant."""
    charge = amount / weight
    return min(charge, LARGEST_CHARGE) if charge > LEAST_CHARGE else LEAST_CHARGE
