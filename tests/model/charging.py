"""What a task charges its tenant: `fairness_by`.

    tasks     one unit each
    cost      what the task declares
    runtime   the seconds for which it holds a place of a worker's pool

How long a task will run nobody knows when it is claimed: it is charged an estimate, the running
mean of its tenant, and when its lease ends the tenant's finish is put right by what it held: from
the claim to the end that is told, or until its lease is found to have ended by itself. So a death
is charged too, and what a worker gives back for the time that it kept it. All of it is divided by
the tenant's weight, as it was at the claim; its clock is that of the leases.

Invariant: what a tenant was charged is, once its leases have ended, the time that they lived. In
the ring its finish is put right wherever that lies, also behind the ring's time: a refund is no
credit for having been idle.

Weakness: of a shared limit only the tags that are ahead of its time are put right. The mean is that
of a tenant with something waiting, and is forgotten with its last waiting task.
"""

from __future__ import annotations

from typing import NamedTuple

from celery_fairness.scheduler.cost import cost_of

#: The part that the last run has in a mean is one of so many.
MEAN_PARTS = 8


def mean_of(mean: float | None, seconds: float) -> float:
    """Return the running mean after one more run."""
    return seconds if mean is None else mean + (seconds - mean) / MEAN_PARTS


class Charged(NamedTuple):
    """How a running task was charged, where that was an estimate.

    Attributes:
        estimate: In seconds.
        weight: Of its tenant, at the claim.
        since: Logical time of the claim.
        finish: Of the tenant in its ring, with this charge.
        queue: Whose ring.
    """

    estimate: float
    weight: float
    since: int
    finish: float
    queue: str

    def held_seconds(self, logical: int) -> float:
        """Return how long the task has held its place."""
        return max(0.0, (logical - self.since) / 1000)

    def missing(self, logical: int) -> float:
        """Return by how much the tenant was charged too little; below 0: too much."""
        real = cost_of(self.held_seconds(logical), self.weight)
        return real - cost_of(self.estimate, self.weight)
