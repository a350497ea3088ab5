"""The Celery app. Containers get the broker's address in the variable CELERY_BROKER_URL."""

import time

from celery import Celery

from celery_fairness import Fairness, FairTask

app = Celery("shop", broker="fairredis://localhost:6379/0")
app.conf.task_ignore_result = True
app.conf.fairness = {"tiers": {"free": {"concurrency": 2}}, "default_tier": "free"}
fairness = Fairness(app)


@app.task(base=FairTask, tenant="customer", acks_late=True)
def work(number: int, customer: str) -> None:
    """Work for a customer."""
    print(f"task {number} of {customer} begins")
    time.sleep(1)  # Stands for the work.
    print(f"task {number} of {customer} ends")
