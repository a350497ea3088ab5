"""A task that waits for a limit whose slot its own parent holds.

If the parent waits for its result, as ``result.get()`` in a body does where Celery was told to
allow it, neither ever ends. A worker cannot see whether it waits; it can see that it could.

Weakness: of a key with more than a hundred leases the first are looked at; grandparents are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_fairness.config.limit_spec import read_limits
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.types import Reason, Rejected
from celery_fairness.message.attribution import Attribution
from celery_fairness.util.ids import is_lease_of
from celery_fairness.util.throttled_log import Notices


def tell_of_parent(
    notices: Notices,
    limiter: Limiter,
    task: Any,
    request: Any,
    charge: Attribution,
    refused: Rejected,
) -> None:
    """Log that the parent of a refused task holds a slot of what keeps it.

    Args:
        notices: Where it is logged, once a minute for each kind of task.
        limiter: Where the slot is held.
        task: That was refused.
        request: Its request.
        charge: The keys of its limits.
        refused: How.
    """
    parent = request.parent_id
    if not parent or refused.reason in (Reason.SUPERSEDED, Reason.LIMITER_UNAVAILABLE):
        return
    try:
        key = next(_held_by(parent, limiter, charge, refused), None)
    except LimiterUnavailable:
        return
    if key is not None:
        notices.error(
            f"parent:{task.name}",
            "task %s[%s] waits for the limit %s, of which its parent %s holds a slot: if that "
            "waits for its result, neither ends",
            task.name,
            request.id,
            key,
            parent,
        )


def _held_by(
    parent: str, limiter: Limiter, charge: Attribution, refused: Rejected
) -> Iterator[str]:
    """Yield the keys that keep a task, now or after what refused it, and that its parent holds."""
    # What is full by its own numbers; of the tier, and of what refused it, the limiter has said so.
    full_from = {limit.key: limit.concurrency for limit in read_limits(charge.limits_text)}
    if refused.key:
        by_lease = refused.reason is Reason.AT_CONCURRENCY_LIMIT
        full_from = {refused.key: 0 if by_lease else None} | {
            key: held for key, held in full_from.items() if key != refused.key
        }
    if refused.limit and refused.held >= refused.limit:
        full_from[charge.key] = 0
    for key, held in full_from.items():
        if held is None:
            continue
        state = limiter.inspect(key, "", refused.tier)
        if state.held >= held and any(is_lease_of(each.id, parent) for each in state.leases):
            yield key
