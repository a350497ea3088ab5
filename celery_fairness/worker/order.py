"""Which priority goes first, logged by a worker whose user has not chosen.

The stock Redis transport runs the lowest number first, this one the highest. Who comes from there
has messages, and code, that mean the other order.
"""

from __future__ import annotations

import logging
from typing import Any

from celery_fairness.config.settings import Settings

logger = logging.getLogger("celery_fairness")


def tell_of_order(settings: Settings, home: Any, priority: Any) -> None:
    """Log the order once in a process, with the first task that has a priority.

    Args:
        settings: Those of the worker.
        home: The process's, which remembers that it is logged.
        priority: That of a message; kombu gives 0 to a message whose producer gives none.
    """
    if not priority or home.order_logged:
        return
    home.order_logged = True
    if "priority_order" not in settings.model_fields_set:
        logger.warning(
            "a task has the priority %r: this worker starts the highest priority first, and the "
            "stock Redis transport the lowest; set priority_order to 'low_first' for that order, "
            "or to 'high_first' to keep this one",
            priority,
        )
