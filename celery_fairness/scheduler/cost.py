"""The cost of a task for its tenant in virtual time, as the function library counts it."""

#: Bounds of the cost of one task.
LEAST_COST, LARGEST_COST = 1e-6, 1e6


def cost_of(cost: float, weight: float) -> float:
    """Return what a task of ``cost`` costs a tenant of ``weight``."""
    return min(max(cost / weight, LEAST_COST), LARGEST_COST)
