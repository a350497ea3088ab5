"""A task that waits for a limit whose slot its own parent holds.

If the parent waits for its result, as ``result.get()`` in a body does where Celery was told to
allow it, neither ever ends. A worker cannot see whether it waits; it can see that it could.

Weakness: of a key with more than a hundred leases the first are looked at; grandparents are not.
"""

from __future__ import annotations

from typing import Any

from celery_fairness.decision import Reason, Refused
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.ids import is_lease_of
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.notice import Notices


def tell_of_parent(
    notices: Notices, limiter: Limiter, task: Any, request: Any, tier_key: str, refused: Refused
) -> None:
    """Log that the parent of a refused task holds a slot of what refused it.

    Args:
        notices: Where it is logged, once a minute for each kind of task.
        limiter: Where the slot is held.
        task: That was refused.
        request: Its request.
        tier_key: Of its tenant's tier limit.
        refused: How.
    """
    parent, key = request.parent_id, refused.key or tier_key
    if not parent or refused.reason is not Reason.AT_CONCURRENCY_LIMIT:
        return
    try:
        leases = limiter.inspect(key, "", refused.tier).leases
    except LimiterUnavailable:
        return
    if any(is_lease_of(each.id, parent) for each in leases):
        notices.error(
            f"parent:{task.name}",
            "task %s[%s] waits for the limit %s, of which its parent %s holds a slot: if that "
            "waits for its result, neither ends",
            task.name,
            request.id,
            key,
            parent,
        )
