"""The keys whose numbers an operator may override."""

from __future__ import annotations

from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.control.inspect import typed_key
from celery_fairness.control.installation import Installation
from celery_fairness.control.queue_keys import QueueKeys


def override_key(installation: Installation, key: str) -> str:
    """Return a key in its form in Redis, without a change of Redis.

    Args:
        installation: The installation.
        key: The key, as a person writes it.

    Raises:
        ValueError: The key has another form, or no queue is known that it may mean.
        TenantInvalid: Its tenant is not valid.
        PolicyInvalid: No worker would check its queue.
    """
    queue = ""
    if key.startswith(PREFIX):
        queues = QueueKeys(installation)
        key, queue = queues.find(key)
        if queue:
            queues.expect_checked(queue)
    return typed_key(key, installation.settings, of_all=False)[0]
