"""The work on an order."""

import time

from celery import shared_task

from celery_fairness import FairTask, RateLimitPolicy

# For all customers together: the payment service takes two calls at once, and 100 a minute.
payments = RateLimitPolicy("payments", concurrency=2, rate="100/m")


@shared_task(base=FairTask, tenant="customer", limits=[payments])
def charge(order: int, customer: str) -> None:
    """Charge an order to its customer."""
    print(f"order {order} of {customer} begins")
    time.sleep(1)  # Stands for the call.
    print(f"order {order} of {customer} ends")
