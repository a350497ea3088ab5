"""The cost of each call for a server.

``make bench ARGS="--only calls"`` measures them, and compares them with these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """CPU time of the Redis process in microseconds, without that of the write.

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
        announce: An announcement of a worker.
        ask: A report of a partition that needs permits, or returns them.
        grant: The answer of the home of a key to such a report.
        holder: What each partition that has permits adds to a grant.
        accept: The entry of granted permits in a partition.
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
    ask: float
    grant: float
    holder: float
    accept: float

    def of_claim(self, tasks: int, ends: int) -> float:
        """Return the cost of a claim that has brought ``tasks`` and carried ``ends``."""
        brought = self.claim + self.more * (tasks - 1) if tasks else self.look
        return brought + self.settle * ends


#: Permits are not measured. These are the costs of a prototype of the three functions.
MEASURED = Costs(
    write=11,
    put=46,
    look=57,
    claim=131,
    more=70,
    settle=45,
    renew=63,
    pop=2,
    ring=16,
    announce=40,
    ask=50,
    grant=45,
    holder=1.3,
    accept=40,
)
