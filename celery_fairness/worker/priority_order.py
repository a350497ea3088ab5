"""Logs which priority goes first if the user has not chosen an order.

The stock Redis transport runs the lowest number first, this one the highest. Messages and code that
come from the stock transport expect the other order.
"""

from __future__ import annotations

import logging
from typing import Any

from celery_fairness.config.settings import Settings

logger = logging.getLogger("celery_fairness")


def log_priority_order(settings: Settings, session: Any, priority: Any) -> None:
    """Log the order once in a process, with the first task that has a priority.

    Args:
        settings: The worker's settings.
        session: The process's session, which stores that the line was logged.
        priority: A message's priority, for which kombu sets 0 if the producer gives none.
    """
    if not priority or session.order_logged:
        return
    session.order_logged = True
    if "priority_order" not in settings.model_fields_set:
        logger.warning(
            "a task has the priority %r: this worker starts the highest priority first, and the "
            "stock Redis transport the lowest; set priority_order to 'low_first' for that order, "
            "or to 'high_first' to keep this one",
            priority,
        )
