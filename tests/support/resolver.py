"""A tier resolver for tests: the tier is what stands before the dash."""

from __future__ import annotations


def tier_of(tenant: str) -> str | None:
    """Return the tier, None for strangers; fail for ``broken``."""
    if tenant == "broken":
        raise RuntimeError("the billing database is away")
    tier, dash, _ = tenant.partition("-")
    return tier if dash else None
