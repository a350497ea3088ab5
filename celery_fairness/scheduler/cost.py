"""What a task costs its tenant in virtual time, as the function library counts it."""

#: What one task costs, at least and at most.
LEAST_COST, LARGEST_COST = 1e-6, 1e6
#: The expected run time of a task whose tenant has not run any lately, in seconds.
FIRST_SECONDS = 1.0


def cost_of(cost: float, weight: float) -> float:
    """Return what a task of ``cost`` costs a tenant of ``weight``."""
    return min(max(cost / weight, LEAST_COST), LARGEST_COST)
