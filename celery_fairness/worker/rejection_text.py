"""The reason for a rejection, as text for the log."""

from __future__ import annotations

from celery_fairness.limiter.types import Reason, Rejected
from celery_fairness.message.attribution import Attribution

_TEXTS_OF_LIMITS = {
    Reason.AT_CONCURRENCY_LIMIT: "has no free slot",
    Reason.AT_RATE_LIMIT: "has reached its rate",
    Reason.AT_THROTTLE: "spaces its starts",
    Reason.PAUSED: "is paused",
    Reason.COOLING_DOWN: "cools down",
    Reason.BEHIND_OTHERS: "has others waiting for it",
    Reason.AT_LOCAL_LIMIT: "lets this worker run no more",
}


def rejection_text(attribution: Attribution, rejected: Rejected) -> str:
    """Return the reason; the log line begins with the task."""
    if rejected.reason is Reason.LIMITER_UNAVAILABLE:
        return "the limiter's Redis does not answer"
    if rejected.key:
        return f"the limit {rejected.key!r} {_TEXTS_OF_LIMITS[rejected.reason]}"
    if rejected.reason is Reason.PAUSED:
        return f"tenant {attribution.tenant!r} ({rejected.tier}) is paused"
    return f"tenant {attribution.tenant!r} ({rejected.tier}) is at its limit of {rejected.limit}"
