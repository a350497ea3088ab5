"""Why a gate refused a task, in words for its log."""

from __future__ import annotations

from celery_fairness.limiter.types import Reason, Rejected
from celery_fairness.message.attribution import Attribution

_LIMITS_SAY = {
    Reason.AT_CONCURRENCY_LIMIT: "has no free slot",
    Reason.AT_RATE_LIMIT: "has reached its rate",
    Reason.AT_THROTTLE: "spaces its starts",
    Reason.PAUSED: "is paused",
    Reason.COOLING_DOWN: "cools down",
    Reason.BEHIND_OTHERS: "has others waiting for it",
    Reason.AT_LOCAL_LIMIT: "lets this worker run no more",
}


def because(charge: Attribution, refused: Rejected) -> str:
    """Return why, for the line that begins with the task."""
    if refused.reason is Reason.LIMITER_UNAVAILABLE:
        return "the limiter's Redis does not answer"
    if refused.key:
        return f"the limit {refused.key!r} {_LIMITS_SAY[refused.reason]}"
    if refused.reason is Reason.PAUSED:
        return f"tenant {charge.tenant!r} ({refused.tier}) is paused"
    return f"tenant {charge.tenant!r} ({refused.tier}) is at its limit of {refused.limit}"
