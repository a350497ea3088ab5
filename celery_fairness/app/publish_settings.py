"""A starting worker publishes the tiers and queue limits of its settings, and logs differences."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from celery_fairness.config.numbers import UNLIMITED, numbers_of
from celery_fairness.config.queue_limits import DECLARED
from celery_fairness.config.queue_policy import QueuePolicy
from celery_fairness.config.tiers import DEFAULT_TIERS, Tier, tier_numbers
from celery_fairness.limiter.redis import Limiter
from celery_fairness.util.log_fields import about

logger = logging.getLogger("celery_fairness")


def publish_tiers(limiter: Limiter, tiers: Mapping[str, Tier]) -> Mapping[str, Tier]:
    """Publish the settings' tiers unless the database's are in force, and log each difference.

    Returns:
        The tiers that were in force before.
    """
    source, published = limiter.published_tiers()
    limiter.publish_tiers(tiers.values(), "settings", force=False)
    for name in sorted(set(tiers) | set(published)) if published else ():
        ours, theirs = tiers.get(name), published.get(name)
        if ours != theirs:
            # Somebody who edits tiers in the database need not repeat them in the settings.
            is_meant = source == "database" and ours == DEFAULT_TIERS.get(name)
            logger.log(
                logging.INFO if is_meant else logging.WARNING,
                "tier %s: this worker's settings have %s, Redis had %s from the %s; %s holds",
                name,
                _numbers(ours),
                _numbers(theirs),
                source,
                "the database" if source == "database" else "this worker's",
                extra=about(tier=name),
            )
    return published or tiers


def publish_queues(limiter: Limiter, queues: Mapping[str, QueuePolicy]) -> None:
    """Publish the settings' limits of queues, which replace the limits declared before."""
    before = limiter.queue_rows()
    for name in sorted(set(before) | {n for n, each in queues.items() if each.limits}):
        policy = queues.get(name, QueuePolicy())
        limit = policy.limit if policy.limits else None
        row = before.get(name)
        declared = (row.declared, row.declared_part) if row else (None, None)
        if declared == (limit, policy.part_limit):
            continue
        if row is not None and row.declared is not None:
            logger.warning(
                "queue %r: this worker's settings declare another limit than Redis had; "
                "this worker's holds",
                name,
                extra=about(queue=name),
            )
        limiter.limit_queue(DECLARED, name, limit, policy.part_limit)


def _numbers(tier: Tier | None) -> str:
    if tier is None:
        return "nothing"
    has = {"concurrency": None} | tier_numbers(tier)
    numbers = (
        f"{word} {UNLIMITED if has[each.name] is None else each.kind.show(has[each.name])}"
        for word, each in numbers_of("tier").items()
        if each.name in has
    )
    return f"{', '.join(numbers)}, {tier.queue_class} queue"
