"""The Celery app: messages are in RabbitMQ, and limits in a Redis beside it."""

import time

from celery import Celery

from celery_fairness import Fairness, FairTask

app = Celery("shop", broker="amqp://guest:guest@localhost//", backend="redis://localhost:6379/1")
app.conf.fairness = {
    "redis_url": "redis://localhost:6379/0",
    # A report over its account's limit waits in Redis, and not for the next try in RabbitMQ.
    "tier_on_limit": "wait",
    "tier_resolver": "shop:tier_of",
}
fairness = Fairness(app)


def tier_of(account: str) -> str | None:
    """Return the plan of an account; None is the default tier, free."""
    return {"petra": "pro"}.get(account)


@app.task(base=FairTask, tenant="account")
def report(name: str, account: str) -> dict[str, str]:
    """Make a report."""
    print(f"report {name} of {account} begins")
    time.sleep(1)  # Stands for the work.
    print(f"report {name} of {account} ends")
    return {"account": account, "text": f"{name}: all is well"}
