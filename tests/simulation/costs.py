"""What each call takes of a server.

``make bench ARGS="--only calls"`` measures them, and compares them with these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """CPU time of the Redis process, in microseconds, beside that of the write.

    Attributes:
        write: A write, which may have several calls, and its answer.
        put: A put.
        look: A claim that finds nothing.
        claim: A claim of one task.
        more: Each further task of a claim.
        settle: An end that a claim carries.
        renew: A renewal of two leases.
        pop: A look at the bells.
        ring: A bell.
        announce: What a worker announces of itself.
    """

    write: float
    put: float
    look: float
    claim: float
    more: float
    settle: float
    renew: float
    pop: float
    ring: float
    announce: float

    def of_claim(self, tasks: int, ends: int) -> float:
        """Return the cost of a claim that has brought ``tasks`` and carried ``ends``."""
        brought = self.claim + self.more * (tasks - 1) if tasks else self.look
        return brought + self.settle * ends


MEASURED = Costs(
    write=11, put=46, look=57, claim=131, more=70, settle=45, renew=63, pop=2, ring=16, announce=40
)
